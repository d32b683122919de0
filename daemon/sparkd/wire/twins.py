"""Another living daemon under this node's name: recognised, and which of the two has to end.

A predecessor's last words and retained messages are not a twin: only telemetry counts, which a living
daemon says once a second, and only after it has gone on for a while. Its sequence number is also the age
of who says it, without any clock: the younger of the two, with fewer messages said, is the newcomer and ends.
"""

from __future__ import annotations

from sparkd.wire.codec import Received
from sparkd.wire.topics import Kind

MESSAGES_MIN = 3
SPAN_S = 1.5  # three words once a second span 2 s, less what each may come early or late
TWINS_MAX = 8


class Twins:
    """What was heard from other instances under this node's name."""

    def __init__(self, instance: str) -> None:
        """Take this daemon's own *instance*."""
        self._instance = instance
        self._heard: dict[str, tuple[int, float]] = {}

    def heard(self, received: Received, said: int, now: float) -> bool:
        """Take a live message of another instance; return whether it proves an elder twin.

        Args:
            received: the message.
            said: how many messages of telemetry this daemon has said.
            now: monotonic seconds.
        """
        if received.kind is not Kind.TELEMETRY:
            return False
        count, first_s = self._heard.get(received.instance, (0, now))
        if count == 0 and len(self._heard) >= TWINS_MAX:
            return False
        self._heard[received.instance] = (count + 1, first_s)
        lives = count + 1 >= MESSAGES_MIN and now - first_s >= SPAN_S
        return lives and (received.seq, received.instance) > (said, self._instance)
