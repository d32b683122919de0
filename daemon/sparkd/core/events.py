"""What comes in: everything that the core ever learns, in the past tense. Don't subclass these.

Every event of a unit, probe or source carries the generation that it is about; events of generations that
are over are folded as history and never act.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from sparkd.core.messages import GuardSeen, Intent, MemberStatus, Report, Telemetry
from sparkd.signals.model import MemorySample, Signal
from sparkd.sizing.sized import Sized
from sparkd.words import Phase, Settings, Sizes, Stamp, UnitName


class Path(StrEnum):
    """By which way a peer's word came."""

    MQTT = "mqtt"
    HTTP = "http"


class Verb(StrEnum):
    """What an operator can ask."""

    START = "start"
    STOP = "stop"
    PAUSE = "pause"
    RESUME = "resume"
    SHUTDOWN = "shutdown"


@dataclass(frozen=True, slots=True)
class RunningUnit:
    """A unit that an earlier daemon started and that runs on: with what stamp and settings it was started."""

    unit: UnitName
    stamp: Stamp
    settings: Settings


@dataclass(frozen=True, slots=True)
class EndedUnit:
    """A unit that ended while no daemon was there, not by sparkd's order; `by_hand`: by a person's.

    Exactly one of `code` and `signal`, or neither where nobody noted it.
    """

    unit: UnitName
    stamp: Stamp
    settings: Settings
    code: int | None = None
    signal: int | None = None
    by_hand: bool = False


@dataclass(frozen=True, slots=True)
class LeftoversSwept:
    """What earlier daemons left was looked for: `running` can be taken over, of the rest nothing lives.

    `generations`: of all that was found; `survivors`: pids that survived SIGKILL; `ended`: what had run and
    whose end nobody has seen.
    """

    generations: tuple[int, ...]
    survivors: tuple[int, ...] = ()
    running: tuple[RunningUnit, ...] = ()
    ended: tuple[EndedUnit, ...] = ()


@dataclass(frozen=True, slots=True)
class BrokerChanged:
    """The session with the broker came up or was lost."""

    connected: bool
    reason: str = ""


@dataclass(frozen=True, slots=True)
class StatusReceived:
    """A peer's status; retained ones inform only."""

    status: MemberStatus
    path: Path
    retained: bool = False


@dataclass(frozen=True, slots=True)
class IntentReceived:
    """An intent from the broker; retained ones inform only."""

    intent: Intent
    retained: bool = False


@dataclass(frozen=True, slots=True)
class ReportReceived:
    """Evidence of a peer."""

    report: Report
    path: Path


@dataclass(frozen=True, slots=True)
class TelemetryReceived:
    """A peer's telemetry."""

    telemetry: Telemetry


@dataclass(frozen=True, slots=True)
class WillReceived:
    """The broker says that a peer's connection broke: triggers a probe, nothing else."""

    node: str
    instance: str


class Host(StrEnum):
    """What a peer's host says where its daemon says nothing.

    `refuses`: its system is well, and its sparkd does not run or hangs; `pings`: its kernel answers, and no
    program that was asked does; `silent`: nothing answers on any path; `unknown`: it answered, or nobody
    could ask.
    """

    UNKNOWN = "unknown"
    REFUSES = "refuses"
    PINGS = "pings"
    SILENT = "silent"


@dataclass(frozen=True, slots=True)
class PeerProbed:
    """Outcome of asking a peer's HTTP view; `reached` False = no path answered, with the reason.

    `host`: what its host says then; `received_bytes`: all that this node has received so far, None = unknown.
    """

    node: str
    reached: bool
    reason: str = ""
    host: Host = Host.UNKNOWN
    received_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class UnitStarted:
    """A unit's root process runs."""

    unit: UnitName
    generation: int
    pid: int


@dataclass(frozen=True, slots=True)
class UnitStartFailed:
    """A unit could not be started; what of it lives nobody knows until UnitEmptied."""

    unit: UnitName
    generation: int
    reason: str


@dataclass(frozen=True, slots=True)
class UnitExited:
    """A unit's root process ended; exactly one of code and signal is known, or neither."""

    unit: UnitName
    generation: int
    code: int | None = None
    signal: int | None = None


@dataclass(frozen=True, slots=True)
class UnitStoppedByHand:
    """Somebody else than sparkd ordered the end of a unit (a stop job of the service manager)."""

    unit: UnitName
    generation: int


@dataclass(frozen=True, slots=True)
class UnitSurveyed:
    """Just before a unit is ended: the names of its processes that still live."""

    unit: UnitName
    generation: int
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class UnitEmptied:
    """No process of the unit's tree is left."""

    unit: UnitName
    generation: int


@dataclass(frozen=True, slots=True)
class UnitUnkillable:
    """Processes of the unit's tree survived SIGKILL."""

    unit: UnitName
    generation: int
    pids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SourcesDrained:
    """Every local log source of the generation has been read past its end."""

    generation: int


@dataclass(frozen=True, slots=True)
class PhaseSeen:
    """The engine's own output shows a phase, or progress within it.

    `requests`: how many of the longest ones (`request_tokens`) the KV cache holds; `sizes`: what else the
    engine says of its memory.
    """

    generation: int
    phase: Phase | None = None
    done: int | None = None
    total: int | None = None
    kv_cache_bytes: int | None = None
    rate_tok_s: float | None = None
    weights_bytes: int | None = None
    request_tokens: int | None = None
    requests: float | None = None
    sizes: Sizes | None = None


@dataclass(frozen=True, slots=True)
class SignalSeen:
    """A signal recognised on this node."""

    signal: Signal


@dataclass(frozen=True, slots=True)
class RayNode:
    """One node as Ray's GCS lists it."""

    address: str
    alive: bool
    is_head: bool
    node_id: str
    resources: tuple[tuple[str, float], ...] = ()
    death_reason: str = ""


@dataclass(frozen=True, slots=True)
class MembershipObserved:
    """Ray's table of nodes; `nodes` None = unknown, with the reason (refused, deadline, token …)."""

    generation: int
    nodes: tuple[RayNode, ...] | None
    reason: str = ""
    ray_version: str | None = None


@dataclass(frozen=True, slots=True)
class EngineObserved:
    """The engine's health and counters; each None = unknown.

    `answered` False: the port refused or timed out; `healthy`: /health said 200.
    """

    generation: int
    answered: bool
    healthy: bool | None = None
    running: int | None = None
    waiting: int | None = None
    tokens_total: float | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class CanaryAnswered:
    """Outcome of one real generation; ok False with the reason; ok None = the deadline passed."""

    generation: int
    ok: bool | None
    latency_s: float
    reason: str = ""


@dataclass(frozen=True, slots=True)
class MemoryObserved:
    """One reading of this node's memory."""

    sample: MemorySample


@dataclass(frozen=True, slots=True)
class GuardObserved:
    """What this node's memory guard is changed."""

    guard: GuardSeen


@dataclass(frozen=True, slots=True)
class ModelChecked:
    """Outcome of the check before a launch (weights complete and not growing, programs there).

    `model`: what its files say of the memory that it needs; None = they do not say.
    """

    ready: bool
    reason: str = ""
    model: Sized | None = None


@dataclass(frozen=True, slots=True)
class OperatorAsked:
    """A person (or the service manager) asked for something."""

    verb: Verb
    by: str = ""


@dataclass(frozen=True, slots=True)
class LoopStalled:
    """This daemon itself did not run for a while: every silence deadline starts anew."""

    gap_s: float


@dataclass(frozen=True, slots=True)
class TimerFired:
    """The core's own deadline is due."""


@dataclass(frozen=True, slots=True)
class CommandFailed:
    """An effect could not be carried out (an error of an adapter, a deadline).

    `unit`, `generation`: what it was about, None and 0 = not said.
    """

    command: str
    reason: str
    unit: UnitName | None = None
    generation: int = 0


Event = (
    LeftoversSwept
    | BrokerChanged
    | StatusReceived
    | IntentReceived
    | ReportReceived
    | TelemetryReceived
    | WillReceived
    | PeerProbed
    | UnitStarted
    | UnitStartFailed
    | UnitExited
    | UnitStoppedByHand
    | UnitSurveyed
    | UnitEmptied
    | UnitUnkillable
    | SourcesDrained
    | PhaseSeen
    | SignalSeen
    | MembershipObserved
    | EngineObserved
    | CanaryAnswered
    | MemoryObserved
    | GuardObserved
    | ModelChecked
    | OperatorAsked
    | LoopStalled
    | TimerFired
    | CommandFailed
)
