"""What happened: facts for disk, log, metrics and people. Frozen, written once, never read by the core.

A step's records are on disk before its commands run (`DURABLE` names those that must be).
"""

from __future__ import annotations

from dataclasses import dataclass

from sparkd.core.decision import Case
from sparkd.core.policy import Policy
from sparkd.signals.model import Diagnosis
from sparkd.sizing.model import Learned
from sparkd.words import NOTHING_SAID, EngineMemory, Phase, Settings, Stamp


@dataclass(frozen=True, slots=True)
class StampAdvanced:
    """The highest stamp that this node has seen grew."""

    seen: Stamp


@dataclass(frozen=True, slots=True)
class PhaseChanged:
    """The coordinator moved to another phase."""

    generation: int
    before: Phase
    after: Phase
    reason: str
    spent_s: float


@dataclass(frozen=True, slots=True)
class WaitingFor:
    """The preconditions that are missing changed."""

    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class UnitChanged:
    """A unit of this node started, ended, or could not be ended."""

    unit: str
    generation: int
    state: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class MessageDropped:
    """A message was not acted upon (old epoch, another instance, a replay, a differing plan)."""

    kind: str
    reason: str
    sender: str = ""


@dataclass(frozen=True, slots=True)
class PeerChanged:
    """A peer's daemon can be ordered from now on, or cannot any more, and why."""

    node: str
    present: bool
    reason: str


@dataclass(frozen=True, slots=True)
class SessionChanged:
    """The session with the broker came, or is gone, and why."""

    connected: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Times:
    """When the stages of one failure were reached, monotonic seconds; None = not reached.

    detected: first evidence · fence_ordered: intent with nothing wanted · emptied: every node's processes
    dead · decided: remedy chosen · fenced: memory back everywhere · launched · serving.
    """

    detected_s: float
    fence_ordered_s: float | None = None
    emptied_s: float | None = None
    decided_s: float | None = None
    fenced_s: float | None = None
    launched_s: float | None = None
    serving_s: float | None = None


@dataclass(frozen=True, slots=True)
class IncidentOpened:
    """The first signal of trouble."""

    incident: int
    generation: int
    phase: Phase
    reason: str


@dataclass(frozen=True, slots=True)
class Judged:
    """What the decision after a failed generation used: enough to make it again."""

    incident: int
    case: Case
    policy: Policy


@dataclass(frozen=True, slots=True)
class Remedied:
    """A failed generation was judged and a remedy chosen (also "nothing", with its reason)."""

    incident: int
    generation: int
    diagnosis: Diagnosis
    action: str
    explanation: str
    settings_before: Settings
    settings_after: Settings
    backoff_s: float
    times: Times


@dataclass(frozen=True, slots=True)
class IncidentClosed:
    """The incident ended: recovered, escalated, stopped, or interrupted (its daemon ended before it)."""

    incident: int
    outcome: str
    cause: str
    generation: int
    relaunches: int
    times: Times
    needs: str = ""


@dataclass(frozen=True, slots=True)
class SettingsAdopted:
    """These settings are in force from the next generation on."""

    settings: Settings
    reason: str


@dataclass(frozen=True, slots=True)
class PlanDoubted:
    """By the numbers a plan does not fit a node; what was done about it, and why.

    Attributes:
        node: where it does not.
        phase, cause: what would fail first, as a diagnosis would name it; over_bytes: what is missing.
        action: "launched", "adjusted" or "refused".
        text: the numbers, and why so.
    """

    node: str
    phase: Phase
    cause: str
    over_bytes: int
    action: str
    text: str


@dataclass(frozen=True, slots=True)
class InContext:
    """What was learned with one context (`Policy.context`).

    `settings`: in force, as learned while `asked` were asked for, None = nothing was; `proven`, `silences`,
    `learned`: as in `Kept`.
    """

    context: str = ""
    settings: Settings | None = None
    asked: Settings | None = None
    proven: Settings | None = None
    silences: tuple[tuple[Phase, float], ...] = ()
    learned: Learned | None = None


@dataclass(frozen=True, slots=True)
class Kept:
    """What the coordinator keeps across its daemon's restarts and reboots, beside its settings.

    Attributes:
        context: what `proven`, `silences` and `learned` were learned with (`Policy.context`).
        proven: the settings that last served for the cooldown: last known good.
        spent: the causes of the relaunches that still count, oldest first.
        silences: the longest silence of progress that a phase of a verified start has shown, seconds.
        forgiven: the newest generation whose unclean end has been counted against its settings.
        unclean: how many boots in a row followed an unclean end.
        generation, phase: the newest generation and where it is, in a pause where that began; found running,
            it goes on there.
        learned: what the peaks of a verified start teach the next estimate; None = none was measured.
        target: whether a person asked for the engine to run, None = nobody has said; `paused`: to pause.
        climbed: the asked settings were tried in a quiet moment, and failed; not again before a person acts.
        streak: failures in a row since a generation last served for the cooldown.
        needs: what only a person can do, where it is escalated; `may_pass`: it is tried again by itself;
            `awaits_reboot`: when the nodes that show it have booted anew;
            `config`: what was configured then: an edit is what a person can do.
        others: what was learned with the last few other contexts, oldest first.
        said: what the engine of `generation` said of its memory, once it served: it says it but once.
        failed: settings that were given up for a memory reason since a person last acted, oldest first.
    """

    context: str = ""
    proven: Settings | None = None
    spent: tuple[str, ...] = ()
    silences: tuple[tuple[Phase, float], ...] = ()
    forgiven: int = 0
    unclean: int = 0
    generation: int = 0
    phase: Phase = Phase.IDLE
    learned: Learned | None = None
    target: bool | None = None
    paused: bool = False
    climbed: bool = False
    streak: int = 0
    needs: str = ""
    may_pass: bool = False
    awaits_reboot: bool = False
    config: str = ""
    others: tuple[InContext, ...] = ()
    said: EngineMemory = NOTHING_SAID
    failed: tuple[Settings, ...] = ()


@dataclass(frozen=True, slots=True)
class KeptChanged:
    """What the coordinator keeps changed."""

    kept: Kept


@dataclass(frozen=True, slots=True)
class MemberRan:
    """Units of this generation run on this node from now on: an end of the boot is unclean until it rests.

    `returned`: memory available before each of the last starts of this boot, bytes, newest last; `at_s`: when
    the first of them was started, monotonic, None = nobody knows.
    """

    generation: int
    returned: tuple[int, ...] = ()
    at_s: float | None = None


@dataclass(frozen=True, slots=True)
class MemberRested:
    """Nothing of this generation or an older one runs on this node; `returned` as in `MemberRan`."""

    generation: int
    returned: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class MemoryNotBack:
    """A dead generation's memory was not measured back on this node in time; the fence is answered without.

    `lacking_bytes`: how much less than before its start is available, None = unknown.
    """

    generation: int
    waited_s: float
    lacking_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Verified:
    """A generation answered a real generation correctly."""

    generation: int
    latency_s: float
    start_s: float


@dataclass(frozen=True, slots=True)
class InvariantBroken:
    """A rule of the core does not hold: a defect of sparkd, shown instead of hidden."""

    rule: str


Record = (
    StampAdvanced
    | PhaseChanged
    | WaitingFor
    | UnitChanged
    | MessageDropped
    | PeerChanged
    | SessionChanged
    | IncidentOpened
    | Judged
    | Remedied
    | IncidentClosed
    | SettingsAdopted
    | PlanDoubted
    | KeptChanged
    | MemberRan
    | MemberRested
    | MemoryNotBack
    | Verified
    | InvariantBroken
)
DURABLE = (
    StampAdvanced,
    IncidentOpened,
    Judged,
    Remedied,
    IncidentClosed,
    SettingsAdopted,
    KeptChanged,
    MemberRan,
    MemberRested,
)
