"""What of a session with the broker is dropped: counted by its reason, logged once a minute at most."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

import aiomqtt
import structlog

from sparkd.ports import Clock
from sparkd.wire.refusal import WireError

OnDrop = Callable[[str, str, str], None]

LOG_EVERY_S = 60.0

log = structlog.get_logger("sparkd.adapters.mqtt")


class Inbox(asyncio.Queue[aiomqtt.Message]):
    """The bounded queue of the session: what does not fit is dropped and counted."""

    def __init__(self, on_full: Callable[[], None], maxsize: int = 0) -> None:
        super().__init__(maxsize)
        self._on_full = on_full

    def put_nowait(self, item: aiomqtt.Message) -> None:
        """Take *item*, or drop it."""
        if self.full():
            self._on_full()
            return
        super().put_nowait(item)


class Drops:
    """Counts what is dropped; logs the first at once, and then once a minute at most, with the numbers."""

    def __init__(self, on_drop: OnDrop, clock: Clock) -> None:
        self._on_drop = on_drop
        self._clock = clock
        self._logged_at_s = float("-inf")
        self._since: Counter[str] = Counter()

    def count(self, kind: str, reason: str, sender: str, refused: WireError | None = None) -> None:
        """Count one dropped message. Everything counted by is an enumeration or a configured name."""
        self._on_drop(str(kind), str(reason), sender)
        self._since[f"{kind} {reason} {sender}".rstrip()] += 1
        now = self._clock.now()
        if now - self._logged_at_s < LOG_EVERY_S:
            return
        log.warning(
            "messages_dropped", counts=dict(self._since), last=str(refused) if refused else str(reason)
        )
        self._logged_at_s = now
        self._since.clear()
