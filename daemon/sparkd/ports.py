"""Protocols for everything outside: what the loop needs of the world, and nothing more.

Adapters implement these and know nothing of each other. A port never decides; it answers or says that it
does not know. `Emit` hands an event to the loop's queue, from the loop's own thread, and never blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from sparkd.core.beginning import Remembered
from sparkd.core.events import (
    CanaryAnswered,
    EngineObserved,
    Event,
    Host,
    LeftoversSwept,
    MembershipObserved,
    ModelChecked,
)
from sparkd.core.messages import GuardSeen, IncidentNotice, Intent, MemberStatus, Report, Telemetry
from sparkd.core.records import Record
from sparkd.engines.model import Rendered
from sparkd.signals.model import MemorySample, Signal
from sparkd.words import Phase, UnitName

Emit = Callable[[Event], None]


class Clock(Protocol):
    """Monotonic seconds; the only clock that decisions see."""

    def now(self) -> float:
        """Return monotonic seconds."""


class Units(Protocol):
    """Backend of supervised process trees. Emits UnitStarted, UnitExited, UnitEmptied, UnitUnkillable."""

    async def start(self, rendered: Rendered) -> None:
        """Start the unit; its outcome is an event. Raises OSError where it cannot be started at all."""

    async def stop(self, unit: UnitName, generation: int, grace_s: float) -> None:
        """End the unit's whole tree; returns when it is empty or proved unkillable (both are events)."""

    async def names(self, unit: UnitName, generation: int) -> tuple[str, ...]:
        """Return the names (comm) of the unit's living processes, sorted."""

    async def sweep(self) -> LeftoversSwept:
        """Find what earlier daemons left, take over what can be, kill the rest; return all of it."""

    async def close(self) -> None:
        """Release resources. Does not end units."""


class Sources(Protocol):
    """The local log sources of units, read live. What they say reaches the intake."""

    def open(self, unit: UnitName, generation: int) -> None:
        """Follow the unit's own output, and the further files that belong to it."""

    def resume(self, unit: UnitName, generation: int) -> None:
        """Follow a unit that runs already, from where an earlier daemon stopped, as far as that is known."""

    async def drain(self, generation: int) -> None:
        """Read every source of the generation to its end, hand all of it on, and forget it."""

    async def close(self) -> None:
        """Stop following."""


Said = MemberStatus | Intent | Report | Telemetry | IncidentNotice
"""What a daemon says through the broker."""


class Bus(Protocol):
    """The session with the broker. Emits BrokerChanged and what was received."""

    async def run(self) -> None:
        """Keep the session up until cancelled."""

    async def publish(self, message: Said) -> None:
        """Publish; while there is no session, the newest retained message of each kind waits for it."""


class PeerView(Protocol):
    """A peer's signed HTTP view: the second path."""

    async def status(self, node: str) -> MemberStatus:
        """Return the peer's status, asked now. Raises PeerUnreachableError with the reason."""

    async def reports(self, node: str, first_seq: int) -> Report | None:
        """Return the peer's evidence from *first_seq* on, None where there is none."""

    def received_bytes(self) -> int | None:
        """Return all that this node has received on its networks so far, None = unknown."""


class PeerUnreachableError(Exception):
    """No path to the peer answered; the text says what each said, `host` what its host's own system does."""

    def __init__(self, text: str, host: Host = Host.UNKNOWN) -> None:
        super().__init__(text)
        self.host = host


class RayTable(Protocol):
    """Ray's own table of nodes."""

    async def observe(self, generation: int) -> MembershipObserved:
        """Return the table, or unknown with the reason. Never raises for an outside failure."""


class Api(Protocol):
    """vLLM's API server."""

    async def observe(self, generation: int) -> EngineObserved:
        """Return health and counters, each unknown where it did not answer."""

    async def canary(self, generation: int, deadline_s: float) -> CanaryAnswered:
        """Ask for one real generation and check the answer."""


class Memory(Protocol):
    """This node's memory as the engine's own accounting sees it."""

    def read(self) -> MemorySample | None:
        """Return one reading, None where the system does not say."""


class MemoryGuard(Protocol):
    """This node's memory guard, another process."""

    def read(self) -> GuardSeen:
        """Return what is known of it now."""

    def trips(self) -> Sequence[Signal]:
        """Return a signal for each trip that was not returned before, oldest first."""

    def lease(self, phase: Phase, floor_bytes: int) -> None:
        """Ask for the phase's floor for half a minute; what cannot be written is told, not raised."""


class ModelFiles(Protocol):
    """What must be there before a launch."""

    async def check(self) -> ModelChecked:
        """Return whether the programs and every file of the model are there and not growing."""

    async def evict(self) -> None:
        """Have the pages of the model's files dropped, as far as they may be read. Raises OSError."""


class Store(Protocol):
    """What survives a crash."""

    def load(self) -> Remembered:
        """Return what an earlier daemon remembered; damaged files are moved aside and noted."""

    async def append(self, records: Sequence[Record]) -> None:
        """Make records durable. Returns only when they are on disk; a full disk is logged, not raised."""


class Exporter(Protocol):
    """Metrics, log events, status page: told of every record and every new state."""

    def records(self, records: Sequence[Record]) -> None:
        """Take the records of one step."""
