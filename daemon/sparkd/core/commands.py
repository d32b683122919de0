"""What goes out: one effect each, in the imperative. Its outcome comes back as an event.

Commands on units are idempotent by (generation, unit): after a crash they are derived again from what is
desired and what is observed, nothing is replayed.
"""

from __future__ import annotations

from dataclasses import dataclass

from sparkd.core.messages import IncidentNotice, Intent, MemberStatus, Report, Telemetry
from sparkd.words import Phase, Settings, Stamp, UnitName


@dataclass(frozen=True, slots=True)
class SweepLeftovers:
    """Find what an earlier daemon left of this cluster on this node; LeftoversSwept.

    Units that can be taken over run on, every other process is killed.
    """


@dataclass(frozen=True, slots=True)
class StartUnit:
    """Start a unit of a generation; UnitStarted, UnitStartFailed or CommandFailed, later UnitExited.

    UnitEmptied follows a StopUnit only, also after a start that failed.
    """

    unit: UnitName
    stamp: Stamp
    settings: Settings


@dataclass(frozen=True, slots=True)
class StopUnit:
    """End a unit's whole tree: SIGTERM, after *grace_s* SIGKILL; UnitEmptied or UnitUnkillable."""

    unit: UnitName
    generation: int
    grace_s: float


@dataclass(frozen=True, slots=True)
class DrainSources:
    """Read every log source of the generation to its end; SourcesDrained."""

    generation: int


@dataclass(frozen=True, slots=True)
class CheckModel:
    """Check what must be there before a launch; ModelChecked."""


@dataclass(frozen=True, slots=True)
class EvictPages:
    """Let the kernel drop the model's files from the page cache; nothing waits for it."""


@dataclass(frozen=True, slots=True)
class ProbeMembership:
    """Ask Ray's GCS for its nodes; MembershipObserved."""

    generation: int


@dataclass(frozen=True, slots=True)
class ProbeEngine:
    """Ask /health and /metrics; EngineObserved."""

    generation: int


@dataclass(frozen=True, slots=True)
class SendCanary:
    """Ask for one real generation with a deadline; CanaryAnswered."""

    generation: int
    deadline_s: float


@dataclass(frozen=True, slots=True)
class ProbePeer:
    """Ask a peer's HTTP view for its status, and for its evidence from a sequence number on.

    StatusReceived and ReportReceived (path http) on success; always PeerProbed.
    """

    node: str
    reports_from: int | None = None


@dataclass(frozen=True, slots=True)
class PublishStatus:
    """Publish this node's status (retained)."""

    status: MemberStatus


@dataclass(frozen=True, slots=True)
class PublishIntent:
    """Publish the coordinator's intent (retained)."""

    intent: Intent


@dataclass(frozen=True, slots=True)
class PublishReport:
    """Publish evidence."""

    report: Report


@dataclass(frozen=True, slots=True)
class PublishTelemetry:
    """Publish the second's telemetry."""

    telemetry: Telemetry


@dataclass(frozen=True, slots=True)
class PublishIncident:
    """Publish an incident's newest turn for people and automations."""

    notice: IncidentNotice


@dataclass(frozen=True, slots=True)
class LeaseFloor:
    """Ask the memory guard for a phase's floor, for the next half a minute."""

    phase: Phase
    floor_bytes: int


@dataclass(frozen=True, slots=True)
class EndDaemon:
    """The daemon may end: its member is stopped, its status is published."""


Command = (
    SweepLeftovers
    | StartUnit
    | StopUnit
    | DrainSources
    | CheckModel
    | EvictPages
    | ProbeMembership
    | ProbeEngine
    | SendCanary
    | ProbePeer
    | PublishStatus
    | PublishIntent
    | PublishReport
    | PublishTelemetry
    | PublishIncident
    | LeaseFloor
    | EndDaemon
)
