"""Records → assessment, without a daemon: what `sparkctl diagnose` asks of any log from anywhere.

It does for whole files what the intake and the core do for a live engine: recognise, follow the phase, judge;
and it tells of every signal why it won or lost.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from sparkd.signals import boots, foreigners, pasted, spread
from sparkd.signals.catalogue import Catalogue
from sparkd.signals.causes import NONE, UNKNOWN
from sparkd.signals.exceptions import failed_in, raised_in
from sparkd.signals.follow import Follower, ReadLine, is_later
from sparkd.signals.frames import phase_of
from sparkd.signals.judge import weigh
from sparkd.signals.match import NO_PLACES, QUOTE_CHARS, Places, recognise
from sparkd.signals.model import Diagnosis, Evidence, Proof, Record, Signal, Weighed
from sparkd.signals.precedence import (
    BURST,
    BURST_ID,
    LONE_IDS,
    UNEXPLAINED,
    UNEXPLAINED_ID,
    WAITED_TWICE,
    WAITS,
)
from sparkd.signals.survive import ENDS_BY_ITSELF, Survival
from sparkd.words import Phase

# Kept signals of one assessment, and repeats of one of them: the first, which tell of a burst,
# and the last.
SIGNALS_MAX = 2048
REPEATS_MAX = 8
# Lines of one source have an order even where their times are equal; so small that ties stay ties.
_STEP_S = 1e-7
# So many sizes of the KV cache are remembered: one or two a run and rank.
KV_CACHE_MAX = 256
# What says no more than that something failed: an exception in the same record may be the reason.
SURFACE = "engine_dead_unspecified"
# Below it a short text is read once more; see `pasted`.
DECIDED = 0.9
_LOUD = frozenset({"ERROR", "CRITICAL", "FATAL"})
_QUIET = frozenset({"DEBUG", "INFO", "WARNING", "D", "I", "W"})
# A link that came back, a service that answers: what was wrong before explains nothing.
_MENDED = {"fabric_link_up": "fabric_link_down", "ray_gcs_healthy": "ray_gcs_unhealthy"}
# So many characters of a quote, blanks left out, tell where it stands.
PLACE_CHARS = 60
# A server that ends its engine, and for how long it then tells of an engine that is dead.
STOPPING = "engine_stopping"
STOPPED_S = 5.0
_WAIT = re.compile(r"block\s*found\s*in")


@dataclass(frozen=True, slots=True)
class Assessment:
    """What an assessment gave.

    Attributes:
        diagnosis: the diagnosis.
        weighed: every kept signal with its verdict and the reason, in the order of reading.
        noise_count: records that are known to be harmless; noise: how many by signature, most first.
        signals_dropped: signals beyond the bounds.
    """

    diagnosis: Diagnosis
    weighed: tuple[Weighed, ...] = ()
    noise_count: int = 0
    noise: tuple[tuple[str, int], ...] = ()
    signals_dropped: int = 0


def _no_facts(_text: str) -> None:
    return None


@dataclass(slots=True)
class Assessor:
    """Takes records in the order of reading; bounded: it keeps signals, not records."""

    catalogue: Catalogue
    places: Places = NO_PLACES
    read_line: ReadLine = _no_facts
    _follower: Follower = field(init=False)
    _signals: list[Signal] = field(default_factory=list)
    _seen: Counter[tuple[str, str, int | None]] = field(default_factory=Counter)
    _noise: Counter[str] = field(default_factory=Counter)
    _nodes: dict[str, None] = field(default_factory=dict)
    _count: int = 0
    _first_s: float | None = None
    _dropped: int = 0
    _errors: dict[str, tuple[Signal, int]] = field(default_factory=dict)
    _first: bool = True
    _mended: set[str] = field(default_factory=set)
    _waited: Counter[tuple[str, int | None]] = field(default_factory=Counter)
    _survival: Survival = field(default_factory=Survival)
    _spread: bool = False
    _on_ray: bool = False
    _last_s: dict[tuple[str, str], float] = field(default_factory=dict)
    _boots: boots.Boots = field(default_factory=boots.Boots)
    _whole_phase: Phase | None = None
    _kv_cache: list[tuple[float, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Begin to follow."""
        self._follower = Follower(self.read_line)

    def add(self, record: Record) -> None:
        """Take one record."""
        self._count += 1
        self._heard(record)
        starts = self._follower.starts
        self._follower.see(record)
        if self._follower.starts != starts:  # who asked an earlier one to stop explains nothing of this one
            self._signals = [s for s in self._signals if s.cause != "clean_shutdown"]
            self._survival.start(self._clock(record))
        if self._follower.kv_cache_at == self._count and self._follower.kv_cache_bytes is not None:
            self._kv_cache.append((self._clock(record), self._follower.kv_cache_bytes))
            del self._kv_cache[:-KV_CACHE_MAX]
        if self._follower.worked_at == self._count:
            self._went_on()
        if self._count in {self._follower.served_at, self._follower.counted_at}:
            is_rate = self._follower.counted_at == self._count
            self._survival.work(record, self._clock(record), is_rate=is_rate)
        if self._follower.stepped_at == self._count:
            self._survival.step(record, self._clock(record))
        found = recognise(record, self.catalogue, self.places)
        if all(s.cause == SURFACE for s in found):
            found = (*found, *_unexplained(record))
        if not found and record.level in _LOUD:
            self._errors[record.source] = (_unexplained_error(record, record.text), self._follower.count)
        for signal in found:
            self._keep(signal, record)

    def _heard(self, record: Record) -> None:
        """Note who speaks, and of what kind of engine."""
        self._nodes.setdefault(record.node)
        self._first = (record.node, record.source) not in self._last_s
        self._last_s[record.node, record.source] = self._clock(record)
        self._spread = self._spread or spread.is_spread(record.text)
        self._on_ray = self._on_ray or "Ray" in record.text or "ay" in record.process

    def reread(self, whole: Record) -> Assessment:
        """Return the assessment; where it decides nothing, also of the *whole* text without its breaks."""
        whole = foreigners.without(whole, self._follower.speakers())
        self._whole_phase = phase_of(whole.text)
        found = self.finish()
        if found.diagnosis.cause != NONE and found.diagnosis.confidence >= DECIDED:
            return found
        known = {signal.id for signal in self._signals} | self._mended
        places = _Places(whole.text, self._signals)
        for signal in pasted.signals_of(whole, self.catalogue, self.places):
            if signal.id in known:
                self._signals = [_completed(s, signal) for s in self._signals]
            else:
                self._signals = [s for s in self._signals if not _is_part(s, signal)]
                self._count_wait(signal, whole)
                phase = signal.phase or (phase_of(whole.text) if signal.fatal else None)
                read = replace(signal, at_s=places.time_of(signal), phase=phase)
                self._signals.append(foreigners.attributed(read, self._follower.speakers()))
        if not self._errors:
            heard = foreigners.without_chatter(whole, self._follower.speakers())
            failed = _error_in(heard, self.catalogue, self.read_line)
            self._errors = {} if failed is None else {whole.source: failed}
        return self.finish()

    def finish(self) -> Assessment:
        """Return the assessment of all that was added."""
        told = [s for s in self._signals if s.id not in WAITS or self._stands_still(s)]
        foreign = self._foreign()
        error = self._last_error(foreign)
        told = boots.explained(told, spread.timeouts(told) if self._spread else ())
        told = spread.weighed(told) if self._spread else told
        signals = (*told, *_bursts(told, self._seen), *error)
        head = self.places.head
        evidence = Evidence(
            signals=signals,
            phase=self._follower.phase() or self._follower.any_frames() or self._whole_phase,
            nodes=tuple(self._nodes),
            head=head,
            kv_cache_bytes=self._follower.kv_cache_bytes,
            kv_cache_told=tuple(self._kv_cache),
            recorded=True,
            works=self._survival.works,
            starts=self._survival.starts,
            steps=self._survival.steps,
            foreign=foreign,
            engines=self._follower.speakers(),
            unheard=self._spread and not self._on_ray and spread.is_silent(told, self._last_s),
        )
        diagnosis, weighed = weigh(evidence)
        return Assessment(
            diagnosis=diagnosis,
            weighed=weighed,
            noise_count=sum(self._noise.values()),
            noise=tuple(self._noise.most_common()),
            signals_dropped=self._dropped,
        )

    def _foreign(self) -> tuple[str, ...]:
        sources = (*(s.source for s in self._signals), *self._errors)
        return foreigners.of(self._follower.speakers(), sources)

    def _last_error(self, foreign: Sequence[str] = ()) -> tuple[Signal, ...]:
        """Return the last error that nobody knows, where nothing shows that the engine went on after it."""
        errors = [error for source, error in self._errors.items() if source not in foreign]
        last = max(errors, key=lambda error: error[1], default=None)
        return () if last is None or self._follower.progress_at > last[1] else (last[0],)

    def _went_on(self) -> None:
        """Forget the waits that the engine's work has ended."""
        if self._waited:
            self._waited.clear()
            self._mended |= WAITS
            self._signals = [s for s in self._signals if s.id not in WAITS]

    def _count_wait(self, signal: Signal, record: Record) -> None:
        if signal.id in WAITS:
            self._waited[signal.node, signal.rank] += len(_WAIT.findall(record.text))

    def _stands_still(self, wait: Signal) -> bool:
        """Return whether a wait was said again, or something failed: one alone is a long step."""
        failed = any(s.fatal and s.cause != "clean_shutdown" for s in self._signals)
        return failed or bool(self._last_error()) or self._waited[wait.node, wait.rank] >= WAITED_TWICE

    def _keep(self, signal: Signal, record: Record) -> None:
        if signal.id in _MENDED:
            self._mended.add(_MENDED[signal.id])
            self._signals = [s for s in self._signals if s.id != _MENDED[signal.id]]
        if signal.proof is Proof.NOISE or self._follower.is_ordinary(signal, record):
            self._noise[signal.id] += 1
            return
        if signal.id in {boots.BOOTED_ID, boots.SHUT_DOWN_ID}:
            placed = self._placed(signal, record)
            if not self._boots.is_unordered(placed, first=self._first):
                return
        if signal.id == STOPPING:  # an engine that its server ends leaves the server without an engine
            since_s = self._clock(record) - STOPPED_S
            self._signals = [s for s in self._signals if s.id != "engine_dead" or s.at_s < since_s]
        if signal.fatal:
            self._follower.trouble(record)
        self._count_wait(signal, record)
        key = (signal.id, signal.node, signal.rank)
        self._seen[key] += 1
        if self._seen[key] > REPEATS_MAX:
            self._forget_one(key)
        if len(self._signals) >= SIGNALS_MAX:
            self._dropped += 1
            return
        self._signals.append(self._placed(signal, record))

    def _forget_one(self, key: tuple[str, str, int | None]) -> None:
        """Forget the last kept repeat: the next one, which may be what ended the engine, takes its place."""
        for place in range(len(self._signals) - 1, -1, -1):
            signal = self._signals[place]
            if (signal.id, signal.node, signal.rank) == key:
                del self._signals[place]
                return

    def _clock(self, record: Record) -> float:
        """Return the time of the record that is being read, on the assessment's clock."""
        if self._first_s is None:
            self._first_s = record.at_s
        return record.at_s - self._first_s + self._count * _STEP_S

    def _placed(self, signal: Signal, record: Record) -> Signal:
        """Return the signal on the assessment's clock, with the phase of the frames above it."""
        at_s = signal.at_s - record.at_s + self._clock(record)
        phase = signal.phase
        if phase is None and signal.fatal:
            phase = self._follower.frames(record.source, record.node)
        placed = replace(signal, at_s=at_s, phase=phase)
        return foreigners.attributed(placed, self._follower.speakers())


def assess(
    records: Iterable[Record],
    catalogue: Catalogue,
    places: Places = NO_PLACES,
    read_line: ReadLine = _no_facts,
) -> Assessment:
    """Return what *records* (of any sources and nodes, in the order of reading) prove.

    Args:
        records: as `model.Record` says; their times on one scale, a line without a time has that of the line
            before it.
        catalogue: what they are compared with.
        places: what tells a node from an address.
        read_line: what a line means for the phase: `engines.lines.read_line`.
    """
    assessor = Assessor(catalogue, places, read_line)
    for record in records:
        assessor.add(record)
    return assessor.finish()


def _unexplained(record: Record) -> tuple[Signal, ...]:
    """Return an exception that no signature knows as the evidence that it is."""
    raised = raised_in(record.text)
    if raised is None:
        return ()
    return (replace(_unexplained_error(record, raised), id=UNEXPLAINED, fatal=True),)


class _Places:
    """Where the signals of a text stand in it: what a second reading finds has its place among them."""

    def __init__(self, text: str, signals: Iterable[Signal]) -> None:
        self._text = pasted.squeeze(text)
        self._told = sorted((place, s.at_s) for s in signals if (place := self._place(s)) >= 0)

    def time_of(self, signal: Signal) -> float:
        """Return a time after what stands before *signal*, and before what stands after it.

        A kill of which nothing more is told ends what was ending: it comes last.
        """
        place = sys.maxsize if signal.cause == "killed_unspecified" else self._place(signal)
        before = [at_s for at, at_s in self._told if at <= place]
        if before:
            return before[-1] + _STEP_S / 2
        return self._told[0][1] - _STEP_S / 2 if self._told else 0.0

    def _place(self, signal: Signal) -> int:
        return self._text.find(pasted.squeeze(signal.quote)[:PLACE_CHARS])


def _completed(told: Signal, whole: Signal) -> Signal:
    """Return a signal with the numbers that a line break had cut off."""
    if told.id != whole.id or told.quantities or not whole.quantities:
        return told
    return replace(told, quantities=whole.quantities, quote=whole.quote)


def _is_part(unexplained: Signal, signal: Signal) -> bool:
    """Return whether an exception that nobody knew is the beginning of a message that was wrapped."""
    if unexplained.id != UNEXPLAINED:
        return False
    return pasted.squeeze(unexplained.quote).removesuffix(":") in pasted.squeeze(signal.quote)


def _unexplained_error(record: Record, words: str) -> Signal:
    """Return an error that no signature knows: it keeps a judgement from saying that nothing is wrong."""
    return Signal(
        id=UNEXPLAINED_ID,
        cause=UNKNOWN,
        proof=Proof.CASCADE,
        node=record.node,
        source=record.source,
        quote=" ".join(words.split())[:QUOTE_CHARS],
        at_s=record.at_s,
        rank=record.rank,
        printed=record.printed,
    )


def _error_in(whole: Record, catalogue: Catalogue, read_line: ReadLine) -> tuple[Signal, int] | None:
    """Return the last failure that a short text tells of in whatever words, with a place after everything."""
    failed: str | None = None
    reached: Phase | None = None
    passing = False
    for record in pasted.records(whole, catalogue):
        fact = read_line(record.text)
        goes_on = fact is not None and is_later(fact.phase, reached)
        reached = fact.phase if fact is not None and (goes_on or reached is None) else reached
        if fact is not None and (fact.rate_tok_s is not None or fact.port_ready or (goes_on and passing)):
            failed = None
        elif record.level in _LOUD:
            failed, passing = record.text, False
        elif record.level not in _QUIET and (words := failed_in(record.text) or raised_in(record.text)):
            failed, passing = words, _is_of_a_start(record, catalogue)
    return None if failed is None else (_unexplained_error(whole, failed), sys.maxsize)


def _is_of_a_start(record: Record, catalogue: Catalogue) -> bool:
    """Return whether a failure is only of a kind that a start which goes on did not end of."""
    found = recognise(record, catalogue)
    return bool(found) and all(signal.cause in ENDS_BY_ITSELF for signal in found)


def _bursts(signals: Iterable[Signal], seen: Counter[tuple[str, str, int | None]]) -> tuple[Signal, ...]:
    """Return a signal for each node whose driver ran out of memory again and again."""
    first: dict[str, Signal] = {}
    for signal in signals:
        if signal.id in LONE_IDS and seen[signal.id, signal.node, signal.rank] >= BURST:
            first.setdefault(signal.node, signal)
    return tuple(replace(signal, id=BURST_ID) for signal in first.values())
