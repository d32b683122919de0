"""What nodes say to each other. Pure values; `wire` turns them into signed bytes and back.

Retained messages inform and never order; what orders names the instance of every addressee. Outcomes are
levels: a status repeats what was applied and reached, so a lost message is only a late one.

What is said all the time has no slots: `evolve` makes it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from sparkd.core.evolve import Evolving
from sparkd.signals.model import Signal
from sparkd.words import NO_STAMP, Phase, Settings, Stamp, UnitName


class UnitState(StrEnum):
    """Where a unit is. `exited`: its root ended but processes of its tree may live; `gone`: none does."""

    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    EXITED = "exited"
    GONE = "gone"
    UNKILLABLE = "unkillable"


ENDED = (UnitState.EXITED, UnitState.GONE)
"""Where a unit's root has ended, whoever ended it."""


@dataclass(frozen=True, slots=True)
class UnitStatus:
    """One unit as its node reports it; `ordered`: its end was ordered, `by_hand`: by a person."""

    unit: UnitName
    generation: int
    state: UnitState
    code: int | None = None
    signal: int | None = None
    ordered: bool = False
    reason: str | None = None
    by_hand: bool = False


@dataclass(frozen=True, slots=True)
class Intent:
    """What the coordinator wants, as a level: the units that shall run on each node.

    A node whose `wanted` is empty fences: everything of this generation and of older ones must be dead.

    Attributes:
        stamp: (epoch, generation).
        seq: grows with every intent of one coordinator instance.
        coordinator: instance of the coordinating daemon; node: its name.
        addressees: (node, instance) of everybody for whom it is.
        wanted: (node, units) in the order of configuration.
        settings: the memory settings of this generation.
        shared_digest: digest of the plan's shared part; node_digests: each node's own, as it reported it.
        phase: the coordinator's phase; informs, and `stopping` asks for the order (serve before Ray).
        grace_s: how long a unit may take to end before it is killed with SIGKILL.
    """

    stamp: Stamp
    seq: int
    coordinator: str
    node: str
    addressees: tuple[tuple[str, str], ...]
    wanted: tuple[tuple[str, tuple[UnitName, ...]], ...]
    settings: Settings
    shared_digest: str
    node_digests: tuple[tuple[str, str], ...]
    phase: Phase
    grace_s: float = 10.0

    @property
    def wants_units(self) -> bool:
        """Whether any unit shall run anywhere; where not, it is a fence."""
        return any(units for _, units in self.wanted)

    def units_of(self, node: str) -> tuple[UnitName, ...]:
        """Return the units wanted on *node*, none where it is not named."""
        for name, units in self.wanted:
            if name == node:
                return units
        return ()

    def instance_of(self, node: str) -> str | None:
        """Return the instance of *node* for which this intent is, None where it is not addressed."""
        for name, instance in self.addressees:
            if name == node:
                return instance
        return None


@dataclass(frozen=True, slots=True)
class GuardSeen:
    """What is known of a node's memory guard.

    Attributes:
        alive: it looked a moment ago.
        enforcing: alive, and kills where it has to; the only state in which Ray's own monitor may be off.
        floor_bytes: below so much available memory it acts; None where no guard is seen.
        leased: that floor is the daemon's, not the guard's own.
        trips: how often it acted since it began.
        notes: what it says an operator should know.
        rivals: other guardians on this node, each in a sentence with who would act first.
        reason: why it is not alive or not enforcing; empty where it enforces.
    """

    alive: bool = False
    enforcing: bool = False
    floor_bytes: int | None = None
    leased: bool = False
    trips: int = 0
    notes: tuple[str, ...] = ()
    rivals: tuple[str, ...] = ()
    reason: str = ""

    @property
    def state(self) -> str:
        """What it does, in a word or two."""
        return "enforcing" if self.enforcing else "only observing" if self.alive else "not there"


@dataclass(frozen=True)
class MemberStatus(Evolving):
    """One node's retained status.

    Attributes:
        node, instance: who says it.
        seen: the highest stamp that this node has ever seen (survives restarts on its disk).
        heard: (node, instance) of the peers as this node last heard them: proves freshness without a clock.
        intent_seq, intent_coordinator: the last intent applied here.
        refused: why the newest intent for this instance was refused, None = it was not.
        units: the units known here.
        swept: leftovers of earlier daemons have been looked for, and none is left.
        emptied_generation: everything up to this generation is dead here.
        fenced_generation: ... and its memory is back, or was waited for long enough.
        unreleased_generation: the newest one of which that is so only because the wait was over, 0 = none.
        drained_generation: every local source has been read past the end of this generation.
        report_seq: highest sequence number of this instance's evidence.
        shared_digest, node_digest: the plan as this node renders it.
        ready: what must be there before a launch is there; None = not checked yet; not_ready: why not.
        leaving: this daemon is going to stop its member.
        available_bytes, total_bytes, pressure_percent: the node's memory, None = unknown.
        guard: this node's memory guard; None = not looked for yet.
    """

    node: str
    instance: str
    seen: Stamp = NO_STAMP
    heard: tuple[tuple[str, str], ...] = ()
    intent_seq: int = 0
    intent_coordinator: str = ""
    refused: str | None = None
    units: tuple[UnitStatus, ...] = ()
    swept: bool = False
    emptied_generation: int = 0
    fenced_generation: int = 0
    unreleased_generation: int = 0
    drained_generation: int = 0
    report_seq: int = 0
    shared_digest: str = ""
    node_digest: str = ""
    ready: bool | None = None
    not_ready: str | None = None
    leaving: bool = False
    unclean_generation: int = 0
    leaking: bool = False
    available_bytes: int | None = None
    total_bytes: int | None = None
    baseline_bytes: int | None = None
    lowest_bytes: int | None = None
    pressure_percent: float | None = None
    guard: GuardSeen | None = None
    version: str = ""


_MOVING = dict.fromkeys(("available_bytes", "total_bytes", "lowest_bytes", "pressure_percent"))


def same_level(before: MemberStatus | None, after: MemberStatus) -> bool:
    """Return whether two statuses say the same; memory moves all the time and rides along."""
    return before is not None and before.__dict__ | _MOVING == after.__dict__ | _MOVING


@dataclass(frozen=True, slots=True)
class Report:
    """Evidence on its way to the coordinator: signals numbered from first_seq on.

    Each signal's `at_s` is translated into `ages_s` (seconds before sending) on the wire and back.

    Attributes:
        sent_s: the sender's clock at sending, None = not said.
        received_s: the receiver's clock at receipt; does not travel.
    """

    node: str
    instance: str
    first_seq: int
    signals: tuple[Signal, ...]
    sent_s: float | None = None
    received_s: float | None = None


@dataclass(frozen=True, slots=True)
class IncidentNotice:
    """An incident's newest turn, for people and automations; no daemon reads it.

    Attributes:
        node, instance: the coordinator.
        incident, generation: its number, and the generation that failed or came of it.
        state: "open", "remedied", or its outcome ("recovered", "escalated", "stopped").
        cause: the cause code, empty where it is not judged yet.
        text: what happened and why, as a person would say it.
        action: what sparkd does about it, empty for nothing.
        needs: what only a person can do, empty for nothing.
    """

    node: str
    instance: str
    incident: int
    generation: int
    state: str
    cause: str = ""
    text: str = ""
    action: str = ""
    needs: str = ""


@dataclass(frozen=True, slots=True)
class Echo:
    """The newest stamp heard of another, as it is repeated to it.

    What its `instance` sent at `sent_s` (its clock) came at `received_s` (the clock of who repeats it).
    """

    instance: str
    sent_s: float
    received_s: float


@dataclass(frozen=True)
class Telemetry(Evolving):
    """Once a second: what the peer keeps as a black box and the status page shows. Never decides.

    `floor_bytes`: the memory guard's, None = none is seen; `guarded`: it enforces; `sent_s`: the sender's
    clock, None = not said; `echoes`: of the peers' telemetry (`core.offset`).
    """

    node: str
    instance: str
    phase: Phase
    generation: int
    available_bytes: int | None = None
    total_bytes: int | None = None
    pressure_percent: float | None = None
    done: int | None = None
    total: int | None = None
    floor_bytes: int | None = None
    guarded: bool = False
    sent_s: float | None = None
    echoes: tuple[Echo, ...] = ()
