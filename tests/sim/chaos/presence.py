"""Who is lost is noticed: what a daemon says of its peers, held against the words that truly reached it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sparkd.core.records import PeerChanged, Record

if TYPE_CHECKING:
    from sim.chaos.daemon import Daemon
    from sim.chaos.world import World

EVERY_S = 7.0
LATE_S = 6.0
"""A record waits for the disk, 2 s at most; a stall of less than 3 s is none."""
ANEW = "its sparkd was started anew"
"""An edge, said also of a peer that is heard over HTTP alone."""


class Presence:
    """When each daemon heard each peer through the broker, and what it said of that peer last."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.heard: dict[tuple[str, str], float] = {}
        self.present: set[tuple[str, str]] = set()
        world.at(EVERY_S, self._look)

    def word(self, daemon: Daemon, node: str) -> None:
        """A word of *node* reached *daemon* live."""
        self.heard[daemon.instance, node] = self.world.now

    def records(self, daemon: Daemon, records: Sequence[Record]) -> None:
        """What a daemon says of its peers."""
        for record in records:
            if isinstance(record, PeerChanged) and record.reason != ANEW:
                change = self.present.add if record.present else self.present.discard
                change((daemon.instance, record.node))

    def _look(self) -> None:
        world = self.world
        for machine in world.machines.values():
            daemon = machine.daemon
            if daemon is not None and not daemon.stopped:
                self._look_at(daemon)
        world.at(EVERY_S, self._look)

    def _look_at(self, daemon: Daemon) -> None:
        """What stood still itself begins its waits anew."""
        world = self.world
        limit_s = daemon.policy.peer_silence_s * 1.05 + LATE_S
        for node in world.plan.names:
            pair = daemon.instance, node
            silent_s = world.now - max(self.heard.get(pair, 0.0), world.stalled_s)
            if pair in self.present and silent_s > limit_s:
                text = f"{daemon.instance} calls {node} present, which it has not heard for {silent_s:.1f} s"
                world.violate("who is lost is noticed", text)
