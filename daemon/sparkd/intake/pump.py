"""Chunks of bytes in, batches of signals and phase facts out: what stands between log sources and the loop.

Bounded in everything: bytes of a line, lines of a report, signals of a generation; what is dropped is
counted and told with the batch. Nothing here waits or reads a clock: the time is an argument.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from enum import Enum

from sparkd.core.events import PhaseSeen
from sparkd.engines.model import LineFact
from sparkd.intake.lines import Blocks, text_of
from sparkd.intake.records import Reader
from sparkd.intake.sieve import Sieve, Sifter
from sparkd.signals import prefix
from sparkd.signals.catalogue import Catalogue
from sparkd.signals.hear import hear
from sparkd.signals.match import NO_PLACES, Places
from sparkd.signals.model import Proof, Record, Signal
from sparkd.signals.precedence import BURST, LONE_IDS, UNEXPLAINED_ID
from sparkd.signals.repeats import Key, key_of
from sparkd.words import UnitName

# The same fact of the same node and rank is told again only after this time, or at the end of its source.
REPEAT_S = 30.0
# Signals told within that time of one generation, of fatal ones and of others each; the core keeps 64 of an
# incident. Beyond it what a signature says that was silent for so long is told once: no flood hides a fact.
SIGNALS_MAX = 256
FACTS_MAX = 64

ReadLine = Callable[[str], LineFact | None]


@dataclass(frozen=True, slots=True)
class Batch:
    """What one chunk gave.

    Attributes:
        signals: recognised and not told before, in the order of reading.
        phases: what the engine's lines mean for the phase, those of one phase folded into one.
        repeated: signals that were told already; dropped: signals and facts beyond the bounds.
    """

    signals: tuple[Signal, ...] = ()
    phases: tuple[PhaseSeen, ...] = ()
    repeated: int = 0
    dropped: int = 0

    def __bool__(self) -> bool:
        """Whether there is anything to tell."""
        return bool(self.signals or self.phases or self.repeated or self.dropped)


class _Answer(Enum):
    """What becomes of a signal."""

    TELL = "tell"
    HOLD = "hold"
    REPEATED = "repeated"
    DROP = "drop"


@dataclass(slots=True)
class _Told:
    """What was told of one generation within `REPEAT_S`: when each signal was told last, the oldest first.

    What is older is forgotten: a generation serves for weeks, and what it says now and then is not a flood.
    `held`: the newest of each that was not told: it may be what ended the engine, and is told at the end.
    """

    last_s: dict[Key, float] = field(default_factory=dict)
    ids: Counter[str] = field(default_factory=Counter)
    times: Counter[Key] = field(default_factory=Counter)
    held: dict[Key, Signal] = field(default_factory=dict)

    def ask(self, signal: Signal) -> _Answer:
        """Return what becomes of *signal*, and keep that it was told."""
        self._renew(signal.at_s)
        key = key_of(signal)
        if signal.id == UNEXPLAINED_ID:
            self._hold(key, signal)
            return _Answer.HOLD
        if key in self.last_s and not self._is_of_a_burst(key):
            self._hold(key, signal)
            return _Answer.REPEATED
        if key not in self.last_s and len(self.last_s) >= SIGNALS_MAX and self.ids[signal.id]:
            return _Answer.DROP
        self.held.pop(key, None)
        self.ids[signal.id] += key not in self.last_s
        self.last_s.setdefault(key, signal.at_s)
        self.times[key] += 1
        return _Answer.TELL

    def _hold(self, key: Key, signal: Signal) -> None:
        self.held.pop(key, None)
        if len(self.held) >= SIGNALS_MAX:
            del self.held[next(iter(self.held))]
        self.held[key] = signal

    def _is_of_a_burst(self, key: Key) -> bool:
        """Return whether a repeat counts: of some, so many in a row say what one does not."""
        return key[0] in LONE_IDS and self.times[key] < BURST

    def _renew(self, at_s: float) -> None:
        while self.last_s:
            key, last_s = next(iter(self.last_s.items()))
            if at_s - last_s < REPEAT_S:
                return
            del self.last_s[key], self.times[key]
            self.ids[key[0]] -= 1


@dataclass(slots=True)
class _Stream:
    """One source of one generation."""

    unit: UnitName | None
    generation: int
    blocks: Blocks
    reader: Reader
    sifter: Sifter


@dataclass(slots=True)
class _Draft:
    """A batch in the making."""

    signals: list[Signal] = field(default_factory=list)
    phases: list[PhaseSeen] = field(default_factory=list)
    repeated: int = 0
    dropped: int = 0

    def batch(self) -> Batch:
        return Batch(tuple(self.signals), tuple(self.phases), self.repeated, self.dropped)


class Intake:
    """Reads all sources of one node."""

    def __init__(
        self, node: str, catalogue: Catalogue, read_line: ReadLine, places: Places = NO_PLACES
    ) -> None:
        self._node = node
        self._catalogue = catalogue
        self._read_line = read_line
        self._places = places
        self._sieve = Sieve(catalogue)
        self._streams: dict[tuple[str, int], _Stream] = {}
        self._told: dict[tuple[int, bool], _Told] = {}

    def feed(self, source: str, unit: UnitName | None, generation: int, chunk: bytes, at_s: float) -> Batch:
        """Take a chunk of a source; `unit` None = a source of the host (kernel log)."""
        stream = self._stream(source, unit, generation)
        draft = _Draft()
        self._take(stream, stream.blocks.feed(chunk), at_s, draft)
        return draft.batch()

    def tick(self, at_s: float) -> Batch:
        """Close reports that have fallen silent. Call it about every `records.IDLE_S` while `waiting`."""
        draft = _Draft()
        for stream in self._streams.values():
            self._recognise(stream.reader.tick(at_s), draft)
        return draft.batch()

    def end(self, source: str, generation: int, at_s: float) -> Batch:
        """Take a source's end: its unfinished line and reports are read, the source is forgotten."""
        draft = _Draft()
        stream = self._streams.pop((source, generation), None)
        if stream is not None:
            self._take(stream, stream.blocks.flush(), at_s, draft)
            self._recognise(stream.reader.flush(), draft)
        return draft.batch()

    def end_all(self, generation: int, at_s: float) -> Batch:
        """Take the end of every source of a generation, and forget it."""
        draft = _Draft()
        for source, number in [key for key in self._streams if key[1] == generation]:
            stream = self._streams.pop((source, number))
            self._take(stream, stream.blocks.flush(), at_s, draft)
            self._recognise(stream.reader.flush(), draft)
        held = [signal for told in self._of(generation) for signal in told.held.values()]
        draft.signals += sorted(held, key=lambda s: s.at_s)
        self.forget(generation)
        return draft.batch()

    def drop_held(self, generation: int) -> None:
        """Forget what is held back of a generation: it is of an end before the one that may come."""
        for told in self._of(generation):
            told.held.clear()

    def _of(self, generation: int) -> list[_Told]:
        return [told for (number, _), told in self._told.items() if number == generation]

    def forget(self, generation: int) -> None:
        """Forget a generation whose sources have been read to their ends."""
        for fatal in (False, True):
            self._told.pop((generation, fatal), None)
        for key in [key for key in self._streams if key[1] == generation]:
            del self._streams[key]

    @property
    def waiting(self) -> bool:
        """Whether a report is open, so that `tick` may give something."""
        return any(stream.reader.waiting for stream in self._streams.values())

    def _stream(self, source: str, unit: UnitName | None, generation: int) -> _Stream:
        key = (source, generation)
        if key not in self._streams:
            reader = Reader(source, self._node, generation)
            sifter = Sifter(self._sieve, lambda: reader.waiting)
            self._streams[key] = _Stream(unit, generation, Blocks(), reader, sifter)
        return self._streams[key]

    def _take(self, stream: _Stream, block: bytes, at_s: float, draft: _Draft) -> None:
        for _, raw in stream.sifter.lines(block):
            line = text_of(raw)
            fact = self._read_line(line) if stream.unit is UnitName.SERVE else None
            if fact is not None:
                _fold(draft, fact, stream.generation)
            self._recognise(stream.reader.line(prefix.split(line), at_s), draft)

    def _recognise(self, records: list[Record], draft: _Draft) -> None:
        for record in records:
            for signal in hear(record, self._catalogue, self._places):
                if signal.proof is not Proof.NOISE:
                    self._tell(signal, draft)

    def _tell(self, signal: Signal, draft: _Draft) -> None:
        answer = self._told.setdefault((signal.generation, signal.fatal), _Told()).ask(signal)
        if answer is _Answer.TELL:
            draft.signals.append(signal)
        elif answer is not _Answer.HOLD:
            draft.repeated += answer is _Answer.REPEATED
            draft.dropped += answer is _Answer.DROP


_FACTS = tuple(item.name for item in fields(PhaseSeen) if item.name != "generation")


def _fold(draft: _Draft, fact: LineFact, generation: int) -> None:
    """Add a fact; what continues the last one (no phase of its own, or the same) is folded into it."""
    said = {name: getattr(fact, name) for name in _FACTS if getattr(fact, name) is not None}
    last = draft.phases[-1] if draft.phases else None
    if fact.sizes is not None and last is not None and last.sizes is not None:
        said["sizes"] = last.sizes.with_news(fact.sizes)
    if last is not None and fact.phase in {None, last.phase}:
        draft.phases[-1] = replace(last, **said)
    elif len(draft.phases) < FACTS_MAX:
        draft.phases.append(PhaseSeen(generation=generation, **said))
    else:
        draft.dropped += 1
