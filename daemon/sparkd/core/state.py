"""One frozen tree: folds and references, no raw data. At most `SIGNALS_MAX` signals an incident.

The records that change in most steps have no slots: `evolve` copies their dictionary. What such a record has
by default and is an object of ours comes from a factory: CPython looks a field slowly up whose class has an
attribute of the same name, of a class that could yet become a descriptor.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from sparkd.core.events import (
    EndedUnit,
    EngineObserved,
    Host,
    MembershipObserved,
    PhaseSeen,
    RunningUnit,
)
from sparkd.core.evolve import Evolving
from sparkd.core.messages import Echo, GuardSeen, Intent, MemberStatus, Telemetry, UnitState
from sparkd.core.offset import UNKNOWN, Offset
from sparkd.core.records import InContext, Kept, Times
from sparkd.signals.model import Diagnosis, MemorySample, Signal, UnitExit
from sparkd.sizing.model import Learned
from sparkd.sizing.sized import Sized
from sparkd.words import NO_STAMP, NOTHING_SAID, EngineMemory, Phase, Settings, Stamp, UnitName

# Bounds of what is kept, so that a state stays small however long it goes on: 64 signals an incident (design
# section 3); twice that of evidence on its way; a minute of readings a second; the rest is more than any
# ladder or budget reaches.
SIGNALS_MAX = 64
REPORTS_MAX = 128
CURVE_MAX = 60
RETIRED_MAX = 32
CAUSES_MAX = 32
FAILED_MAX = 32
NEVER_S = float("inf")
NEVER_BEFORE_S = float("-inf")
AT_ONCE = (float("-inf"),) * 4


_GONE = UnitState.GONE  # looked up once: it is asked for of every unit in every step


@dataclass(frozen=True, slots=True)
class Unit:
    """A unit of this node's member.

    `ordered`: its end was wanted; `by_hand`: by a person, not by sparkd; `established`: it had come up fully
    before it was ended, so that what is missing of it is news.
    """

    unit: UnitName
    generation: int
    state: UnitState
    since_s: float
    pid: int | None = None
    code: int | None = None
    signal: int | None = None
    ordered: bool = False
    reason: str | None = None
    established: bool = False
    by_hand: bool = False

    @property
    def alive(self) -> bool:
        """Whether any process of it may exist."""
        return self.state is not _GONE


@dataclass(frozen=True, slots=True)
class Outbox:
    """Evidence of this instance, kept for peers: signals number first_seq … first_seq + len - 1."""

    first_seq: int = 1
    signals: tuple[Signal, ...] = ()
    sent_seq: int = 0

    @property
    def last_seq(self) -> int:
        """Sequence number of the newest signal, 0 where there is none."""
        return self.first_seq + len(self.signals) - 1


@dataclass(frozen=True)
class Published(Evolving):
    """What was last said, and when; so that only changes and heartbeats are published."""

    level: MemberStatus | None = None
    status_at_s: float = float("-inf")
    telemetry_at_s: float = float("-inf")
    leased: Phase | None = None
    leased_at_s: float = float("-inf")
    intent_at_s: float = float("-inf")
    intent_seq: int = 0


@dataclass(frozen=True)
class Member(Evolving):
    """The engine's part on this node.

    `found`: what an earlier daemon had started here and still ran when this one looked; `ended`: what had
    ended by then, and nobody had seen it;
    `baseline_bytes`, `lowest_bytes`: memory available before the newest start, and at the least since; `ran`:
    something was started and has not rested since, `ran_at_s`: when, None = nobody knows;
    `curve`: (time, available) of the last samples;
    `unclean_generation`: what ran here when an earlier boot ended without rest, 0 = nothing; `returned`:
    memory available before each of the last starts, bytes; `leaking`: it falls with every one; `model`: what
    the model's files say, None = nothing is known; `guard`: the memory guard, None = not looked for yet;
    `unreleased_generation`: as in `MemberStatus`; `rose_bytes`, `rose_at_s`: what was available when it last
    rose after the last end, and when that was; `deserted_generation`: what this worker ended because its
    head's host was gone (`core.orphan`).
    """

    intent: Intent | None = None
    refused: str | None = None
    units: tuple[Unit, ...] = ()
    sweeping: bool = False
    sweep_after_s: float = float("-inf")
    swept: bool = False
    found: tuple[RunningUnit, ...] = ()
    ended: tuple[EndedUnit, ...] = ()
    emptied_at_s: float | None = None
    rose_bytes: int = 0
    rose_at_s: float = float("-inf")
    emptied_generation: int = 0
    fenced_generation: int = 0
    unreleased_generation: int = 0
    draining_generation: int = 0
    drained_generation: int = 0
    memory: MemorySample | None = None
    curve: tuple[tuple[float, int], ...] = ()
    baseline_bytes: int | None = None
    lowest_bytes: int | None = None
    ran: bool = False
    ran_at_s: float | None = None
    outbox: Outbox = field(default_factory=Outbox)
    ready: bool | None = None
    not_ready: str | None = None
    checked_at_s: float = float("-inf")
    leaving: bool = False
    unclean_generation: int = 0
    returned: tuple[int, ...] = ()
    leaking: bool = False
    model: Sized | None = None
    guard: GuardSeen | None = None
    deserted_generation: int = 0


@dataclass(frozen=True)
class Peer(Evolving):
    """Another node, as far as it is known. `told_present`: what people were last told, None = nothing yet.

    `available_bytes`: its free memory by its newest word, status or telemetry, None = unknown; `curve`: as in
    `Member`, as its telemetry told; `will`: its session broke and nothing was heard since;
    `host`: what its host said to the last probe; `received`: when that was, and all that this node had
    received by then, bytes; `deserted_since_s`: since when its host is silent and nothing is received here,
    None = it is not; `told_wedged`: people were told that it is wedged; `offset`: of its clock; `echo`: what
    is repeated to it for that, None = it sent no stamp.
    """

    node: str
    status: MemberStatus | None = None
    heard_at_s: float = float("-inf")
    mqtt_at_s: float = float("-inf")
    http_at_s: float = float("-inf")
    fresh: bool = False
    retired: tuple[str, ...] = ()
    received_seq: int = 0
    will: bool = False
    probing: bool = False
    probed_at_s: float = float("-inf")
    probe_reason: str = ""
    telemetry: Telemetry | None = None
    available_bytes: int | None = None
    curve: tuple[tuple[float, int], ...] = ()
    told_present: bool | None = None
    host: Host = field(default_factory=lambda: Host.UNKNOWN)
    received: tuple[float, int] | None = None
    deserted_since_s: float | None = None
    told_wedged: bool = False
    offset: Offset = field(default_factory=lambda: UNKNOWN)
    echo: Echo | None = None


@dataclass(frozen=True)
class Watch(Evolving):
    """What is observed of the running generation; everything starts anew with a generation.

    `said`: what the engine says of its memory; `loading_available_bytes`: this node's memory when the load
    began. `silences`: the longest silence of progress of each phase so far; `busy_at_s`: when somebody last
    asked. `token_at_s`: since when no token was seen, which our own stall begins anew; `worked_at_s`: when
    one truly was. `peaks`: the most that was in use on this node in each phase, bytes.
    """

    progress: PhaseSeen | None = None
    progress_at_s: float = 0.0
    said: EngineMemory = field(default_factory=lambda: NOTHING_SAID)
    loading_available_bytes: int | None = None
    rate_tok_s: float | None = None
    membership: MembershipObserved | None = None
    membership_ok_at_s: float = 0.0
    membership_why: str = ""
    probing_membership: bool = False
    probed_membership_at_s: float = float("-inf")
    proven: bool = False
    engine: EngineObserved | None = None
    probing_engine: bool = False
    probed_engine_at_s: float = float("-inf")
    tokens_total: float | None = None
    token_at_s: float = 0.0
    worked_at_s: float = NEVER_BEFORE_S
    canary_sent_at_s: float | None = None
    canary_done_at_s: float = float("-inf")
    canary_ok: bool | None = None
    canary_latency_s: float | None = None
    canary_why: str = ""
    canary_misses: int = 0
    outstanding_since_s: float | None = None
    busy_at_s: float = float("-inf")
    silences: tuple[tuple[Phase, float], ...] = ()
    peaks: tuple[tuple[Phase, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Failure:
    """One failed generation, from its first evidence to the decision; it was in `phase` since then."""

    generation: int
    phase: Phase
    times: Times
    signals: tuple[Signal, ...] = ()
    exits: tuple[UnitExit, ...] = ()
    kv_cache_bytes: int | None = None
    phase_since_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Incident:
    """From the first signal of trouble to verified recovery or escalation."""

    number: int
    opened_at_s: float
    failures: int = 0
    relaunches: int = 0
    causes: tuple[str, ...] = ()
    diagnosis: Diagnosis | None = None
    remedy: str = ""
    times: Times | None = None


@dataclass(frozen=True)
class Coordinator(Evolving):
    """What only the head has: the engine's phase, the intent, the incident, the budgets.

    `asked_target`, `asked_pause`: what a person said last, None = nothing; `climbed`: the asked settings were
    tried in a quiet moment already; `leaks_forgiven`: a person wants one more try; `unguarded`: what runs was
    launched while not every node's guard enforced; `streak`: failures in a row since a generation last served
    for the cooldown; `trial`: the settings in force are tried although others are proven; `retry_at_s`,
    `retrying`: an escalation that tries again by itself; `awaits_reboot`: one that a reboot ends; `verified`:
    the settings that served last; `edited`: what was edited since the start of what was taken over, for the
    next start; `learned`: what the measured peaks `learned_from` teach the next estimate; `failed`: settings
    that were given up for a memory reason; `context`: what it is all learned with, `others`: what was with
    other ones; `kept`: what is on disk of all this.
    """

    phase: Phase = field(default_factory=lambda: Phase.IDLE)
    phase_since_s: float = 0.0
    target: bool = True
    asked_target: bool | None = None
    asked_pause: bool = False
    epoch: int = 0
    generation: int = 0
    seq: int = 0
    intent: Intent | None = None
    waiting: tuple[str, ...] = ()
    settings: Settings = field(default_factory=Settings)
    watch: Watch = field(default_factory=Watch)
    recent: tuple[Signal, ...] = ()
    failure: Failure | None = None
    incident: Incident | None = None
    incidents: int = 0
    spent: tuple[tuple[str, float], ...] = ()
    backoff_until_s: float | None = None
    needs: str = ""
    launched_at_s: float | None = None
    shutdown: bool = False
    pause_wanted: bool = False
    stop_wanted: bool = False
    restart_wanted: bool = False
    paused_from: Phase = Phase.IDLE
    streak: int = 0
    trial: bool = False
    climbed: bool = False
    leaks_forgiven: bool = False
    unguarded: bool = False
    retry_at_s: float | None = None
    retrying: bool = False
    awaits_reboot: bool = False
    failed: tuple[Settings, ...] = ()
    verified: Settings | None = None
    proven: Settings | None = None
    silences: tuple[tuple[Phase, float], ...] = ()
    learned: Learned | None = None
    learned_from: tuple[tuple[Phase, int], ...] = ()
    forgiven: int = 0
    unclean: int = 0
    edited: tuple[tuple[str, Any], ...] = ()
    context: str = ""
    others: tuple[InContext, ...] = ()
    kept: Kept = field(default_factory=Kept)

    @property
    def at(self) -> Phase:
        """The phase; in a pause the one that it interrupted."""
        return self.paused_from if self.phase is Phase.PAUSED else self.phase


@dataclass(frozen=True)
class State(Evolving):
    """Everything that the core knows.

    Attributes:
        seen: the highest stamp ever seen by this node (on disk before any command runs).
        coordinator: None on workers.
        broker_why: why there is no session with the broker, as it was last said.
        told_session: what people were last told of that session, None = nothing yet.
        ending_since_s: when EndDaemon was last ordered, None = it was not.
        wakes: when each concern of a step (`turn.Concern`) is due again, at the latest.
        head: the coordinating node's name.
    """

    node: str
    instance: str
    member: Member
    peers: tuple[Peer, ...]
    published: Published = field(default_factory=Published)
    coordinator: Coordinator | None = None
    seen: Stamp = field(default_factory=lambda: NO_STAMP)
    broker: bool = False
    broker_since_s: float = 0.0
    broker_why: str = ""
    told_session: bool | None = None
    leaving_since_s: float | None = None
    ending_since_s: float | None = None
    wakes: tuple[float, ...] = AT_ONCE
    head: str = ""

    def peer(self, node: str) -> Peer | None:
        """Return what is known of *node*."""
        for peer in self.peers:
            if peer.node == node:
                return peer
        return None
