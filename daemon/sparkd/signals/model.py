"""What the reading and judging of evidence speaks in: records, signals, evidence, diagnosis.

Times are seconds on the reading daemon's monotonic clock. A time of another node is translated before it
comes here (`Signal.at_s` of a peer's signal = time of receipt minus the age that the peer reported, minus
what the message waited, as far as that is measured: `core.offset`), so that nothing is ordered by two wall
clocks.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from sparkd.words import Phase, UnitName

# The node of a log that nobody named, whatever other nodes its lines tell of.
UNNAMED = "-"


class Proof(StrEnum):
    """What a signal is worth: decides alone, supports, follows from something else, or means nothing."""

    PROVES = "proves"
    SUGGESTS = "suggests"
    CASCADE = "cascade"
    NOISE = "noise"


@dataclass(frozen=True, slots=True)
class Record:
    """One line (or one multi-line record) of one source, as it was read.

    Attributes:
        source: where it came from, as an operator would name it ("serve log", "raylet.out", "kernel").
        node: the node that read it.
        text: the text, decoded with replacement, ANSI codes removed, at most `intake` 's length limit.
        at_s: when it was read (monotonic seconds of the reading daemon).
        generation: the generation whose unit wrote it; 0 where none is known.
        printed: the time as the source printed it, for quoting only.
        process: who wrote it, as its prefix says ("EngineCore", "Worker_TP1"), empty where none is printed.
        level: the level as the source printed it ("INFO", "E"), empty where none is printed.
        address: the address of another node that wrote it (Ray forwards workers' lines with `ip=`).
        rank: the rank that wrote it, where the prefix says so.
        file: the file that it stands in, where the source is a log of several (rotated) files.
    """

    source: str
    node: str
    text: str
    at_s: float = 0.0
    generation: int = 0
    printed: str | None = None
    process: str = ""
    level: str = ""
    address: str | None = None
    rank: int | None = None
    file: str = ""


@dataclass(frozen=True, slots=True)
class Quantity:
    """A measured number with its unit in its name (`used_bytes`, `shard_total`)."""

    name: str
    value: float


@dataclass(frozen=True, slots=True)
class Signal:
    """One fact recognised in a record, a unit's exit, a membership or a memory observation.

    Attributes:
        id: the catalogue's name of it (`ray_kill_details`), or of the observation that made it.
        cause: the cause code that it stands for (`ray_oom_kill`); they stand in docs/runbook.md.
        proof: what it is worth.
        fatal: the running generation cannot go on after it, whatever the cause turns out to be.
        node: the node that it concerns (not always the node that printed it); empty where the text is about
            another node without naming it.
        rank: the rank that it concerns, where the text says so.
        phase: the phase that its text proves, where it does.
        quantities: measured numbers, in the catalogue's order.
        source, quote, printed: where it stands, the words themselves (shortened), the printed time.
        at_s: time of receipt (see the module's note).
        generation: the generation that it belongs to; 0 = not known.
        reader: the node whose source printed it; empty = `node`, `UNNAMED` = nobody said which. See `writer`.
        file: the file that it stands in, where the source is a log of several; empty = `source`.
        error_s: by how much `at_s` may be wrong because it was placed from another node's clock.
    """

    id: str
    cause: str
    proof: Proof
    node: str
    source: str
    quote: str
    at_s: float
    generation: int = 0
    fatal: bool = False
    rank: int | None = None
    phase: Phase | None = None
    printed: str | None = None
    quantities: tuple[Quantity, ...] = ()
    reader: str = ""
    file: str = ""
    error_s: float = 0.0

    @property
    def writer(self) -> str:
        """The node whose source printed it; empty where nobody said which."""
        return "" if self.reader == UNNAMED else self.reader or self.node

    def quantity(self, name: str) -> float | None:
        """Return the value of the named quantity, or None where the text did not give it."""
        return next((q.value for q in self.quantities if q.name == name), None)


@dataclass(frozen=True, slots=True)
class UnitExit:
    """How a unit's root process ended. Exactly one of `code` and `signal` is known, or neither."""

    node: str
    unit: UnitName
    generation: int
    at_s: float
    code: int | None = None
    signal: int | None = None
    ordered: bool = False


@dataclass(frozen=True, slots=True)
class Work:
    """The engine was seen at work: on which node, by which source, until when."""

    node: str
    source: str
    at_s: float


@dataclass(frozen=True, slots=True)
class Heard:
    """From when to when a log speaks."""

    node: str
    source: str
    first_s: float
    last_s: float


@dataclass(frozen=True, slots=True)
class MemorySample:
    """One reading of a node's memory, in bytes; pressure is PSI `some avg10` in percent, None = unknown."""

    at_s: float
    available_bytes: int
    total_bytes: int
    swap_used_bytes: int = 0
    pressure_percent: float | None = None


@dataclass(frozen=True, slots=True)
class Curve:
    """A node's memory in the last minute, bytes.

    Attributes:
        node: whose it is; total_bytes: all that it has, None = unknown.
        floor_bytes: below it the guard ends the engine.
        samples: (time, available), the oldest first, about one a second.
        lowest_bytes: the least available since the start, None = unknown.
    """

    node: str
    total_bytes: int | None
    floor_bytes: int
    samples: tuple[tuple[float, int], ...] = ()
    lowest_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Evidence:
    """All that a judgement may use: no state, no clock, no files.

    Attributes:
        signals, exits: what was recognised, and which units ended.
        phase: the phase that the generation had reached.
        nodes, head: the cluster.
        kv_cache_bytes: KV cache of one rank, where it was allocated already.
        kv_cache_told: the same of each run in view, with the time at which it was said.
        fence_at_s: since when sparkd itself was ending the generation; None = it was not.
        recorded: the evidence was read from files: times are as printed, so how long before the end something
            proven was said is no argument.
        works, starts: when the engine was seen at work, and when it began anew.
        steps: when a start was seen to go forward to a later phase.
        worked_at_s: when the engine was last seen to do what it is asked, or asked nothing; None = never.
        alive_at_s: when it was last seen to count at all, be it no tokens; None = never.
        speakers: sources that speak as an engine does; the others of such a log are other programs.
        heard: from when to when each log speaks; of a live engine, each node.
        order_error_s: by how much the times of two nodes may be wrong against each other; None = not known:
            they are as printed.
        memory: what was measured of each node's memory.
        read: what the logs are called that were read, whether or not they say anything.
        port: the port of the API that a recorded start was told; None = not known.
        headless: only ranks without a server speak in it.
        spread: the engine is spread over nodes; on_ray: by Ray.
    """

    signals: tuple[Signal, ...] = ()
    exits: tuple[UnitExit, ...] = ()
    phase: Phase | None = None
    nodes: tuple[str, ...] = ()
    head: str | None = None
    kv_cache_bytes: int | None = None
    kv_cache_told: tuple[tuple[float, int], ...] = ()
    fence_at_s: float | None = None
    recorded: bool = False
    works: tuple[Work, ...] = ()
    starts: tuple[float, ...] = ()
    steps: tuple[Work, ...] = ()
    worked_at_s: float | None = None
    alive_at_s: float | None = None
    speakers: tuple[str, ...] = ()
    heard: tuple[Heard, ...] = ()
    order_error_s: float | None = None
    memory: tuple[Curve, ...] = ()
    read: tuple[str, ...] = ()
    port: int | None = None
    headless: bool = False
    spread: bool = False
    on_ray: bool = False


@dataclass(frozen=True, slots=True)
class Weighed:
    """What became of one signal in a judgement.

    Attributes:
        signal: the signal, with the proof that it had in the end.
        verdict: "root", "support", "cascade", "set aside" or "noise".
        why: the reason, as a clause.
    """

    signal: Signal
    verdict: str
    why: str


@dataclass(frozen=True, slots=True)
class Quote:
    """A piece of quoted evidence: where, when (as printed, else empty) and the words."""

    node: str
    source: str
    printed: str
    text: str
    role: str = "root"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The root cause, named, quantified and quoted.

    Attributes:
        cause: a cause code; `unknown` where no evidence decides, `none` where nothing is wrong.
        phase: the phase in which it happened, None = not known.
        node, rank: where, None = not known.
        transient: whether an unchanged restart can help; None = not known.
        confidence: 0 to 1; below 0.5 the cause is `unknown`.
        explanation: one sentence that a person would write.
        evidence: the quotes that decided, root first; cascade: the quotes that it explains.
        candidates: for `unknown`: the causes that the evidence would allow, best first.
        advice: what only a person can do, empty where sparkd acts by itself.
    """

    cause: str
    phase: Phase | None
    node: str | None
    transient: bool | None
    confidence: float
    explanation: str
    rank: int | None = None
    quantities: tuple[Quantity, ...] = ()
    evidence: tuple[Quote, ...] = ()
    cascade: tuple[Quote, ...] = ()
    candidates: tuple[str, ...] = ()
    advice: str = ""

    def quantity(self, name: str) -> float | None:
        """Return the value of the named quantity, or None where no evidence gave it."""
        return next((q.value for q in self.quantities if q.name == name), None)


@dataclass(frozen=True, slots=True)
class CauseInfo:
    """What is known of a cause, beside its signals: see `signals.causes`."""

    code: str
    transient: bool | None
    permanent: bool
    title: str
    advice: str = ""
