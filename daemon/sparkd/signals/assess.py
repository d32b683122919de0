"""Records → assessment, without a daemon: what `sparkctl diagnose` asks of any log from anywhere.

It does for whole files what the intake and the core do for a live engine: recognise, follow the phase, judge;
and it tells of every signal why it won or lost.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from sparkd.signals import foreigners, pasted, refused, repeats, spread
from sparkd.signals.catalogue import Catalogue
from sparkd.signals.causes import NONE
from sparkd.signals.exceptions import failed_in, raised_in
from sparkd.signals.follow import Follower, ReadLine, is_later
from sparkd.signals.frames import phase_of
from sparkd.signals.hear import LOUD, error_of, hear
from sparkd.signals.judge import weigh
from sparkd.signals.match import NO_PLACES, Places, recognise
from sparkd.signals.model import Diagnosis, Evidence, Heard, Proof, Record, Signal, Weighed
from sparkd.signals.precedence import INTERRUPTS, UNEXPLAINED, UNEXPLAINED_ID, WAITED_TWICE, WAITS
from sparkd.signals.survive import ENDS_BY_ITSELF, Survival
from sparkd.words import Phase

# Kept signals of one assessment.
SIGNALS_MAX = 2048
# Lines of one source have an order even where their times are equal; so small that ties stay ties.
_STEP_S = 1e-7
# So many sizes of the KV cache are remembered: one or two a run and rank.
KV_CACHE_MAX = 256
# Below it a short text is read once more; see `pasted`.
DECIDED = 0.9
_QUIET = frozenset({"DEBUG", "INFO", "WARNING", "D", "I", "W"})
# So many characters of a quote, blanks left out, tell where it stands.
PLACE_CHARS = 60
# Routes that need the engine: the API server alone counts tokens and lists models also over a dead one.
_ANSWERED = re.compile(r'"POST /v1/(?:chat/completions|completions|responses|embeddings) HTTP/[\d.]+" 200 ')
_WAIT = re.compile(r"block\s*found\s*in")
# A log's keeper, or a person, joins lines that are alike.
_AGAIN = re.compile(r"message repeated [1-9]|\brepeatedly\b")
# What is said of a phase is worth what it is worth in its writer's.
_OF_A_PHASE = WAITS | INTERRUPTS
_NEVER_S = float("-inf")
_ENDED_BY_WORK = WAITS | {UNEXPLAINED_ID}


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


def _times(signal: Signal, record: Record) -> int:
    """Return how often a record says it: what waits may be joined in one, and twice is a hang."""
    if signal.id not in WAITS:
        return 1
    again = WAITED_TWICE if _AGAIN.search(record.text) else 1
    return max(again, min(len(_WAIT.findall(record.text)), WAITED_TWICE))


@dataclass(slots=True)
class Assessor:
    """Takes records in the order of reading; bounded: it keeps signals, not records."""

    catalogue: Catalogue
    places: Places = NO_PLACES
    read_line: ReadLine = _no_facts
    read: tuple[str, ...] = ()
    _follower: Follower = field(init=False)
    _signals: list[Signal] = field(default_factory=list)
    _seen: Counter[repeats.Key] = field(default_factory=Counter)
    _noise: Counter[str] = field(default_factory=Counter)
    _heard: dict[tuple[str, str], list[float]] = field(default_factory=dict)
    _count: int = 0
    _first_s: float | None = None
    _dropped: int = 0
    _survival: Survival = field(default_factory=Survival)
    _worked_s: float | None = None
    _alive_s: dict[tuple[str, str], float] = field(default_factory=dict)
    _spread: bool = False
    _on_ray: bool = False
    _whole_phase: Phase | None = None
    _kv_cache: list[tuple[float, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Begin to follow."""
        self._follower = Follower(self.read_line)

    def add(self, record: Record) -> None:
        """Take one record."""
        self._count += 1
        self._note_writer(record)
        self._follow(record)
        for signal in hear(record, self.catalogue, self.places):
            if signal.proof is Proof.NOISE:
                self._noise[signal.id] += 1
            else:
                for _ in range(_times(signal, record)):
                    self._keep(self._placed(signal, record))
                if signal.fatal:
                    self._follower.trouble(record)

    def _note_writer(self, record: Record) -> None:
        """Note who speaks, and of what kind of engine."""
        now_s = self._clock(record)
        self._heard.setdefault((record.node, record.source), [now_s, now_s])[1] = now_s
        self._spread = self._spread or spread.is_spread(record.text)
        self._on_ray = self._on_ray or "Ray" in record.text or "ray" in record.process.lower()

    def _follow(self, record: Record) -> None:
        """Note what a record shows of the engine's way."""
        follower, survival = self._follower, self._survival
        starts = follower.starts
        follower.see(record)
        if follower.starts != starts:
            survival.start(self._clock(record))
        if follower.kv_cache_at == self._count and follower.kv_cache_bytes is not None:
            self._kv_cache.append((self._clock(record), follower.kv_cache_bytes))
            del self._kv_cache[:-KV_CACHE_MAX]
        if follower.worked_at == self._count:
            self._worked_s = self._clock(record)
        if follower.progress_at == self._count:
            self._alive_s[record.node, record.source] = self._clock(record)
        if self._count in {follower.served_at, follower.counted_at}:
            survival.work(record, self._clock(record), is_rate=follower.counted_at == self._count)
        if follower.stepped_at == self._count:
            survival.step(record, self._clock(record))

    def reread(self, whole: Record) -> Assessment:
        """Return the assessment; where it decides nothing, also of the *whole* text without its breaks."""
        whole = foreigners.without(whole, self._follower.speakers())
        self._whole_phase = phase_of(whole.text)
        found = self.finish()
        if found.diagnosis.cause != NONE and found.diagnosis.confidence >= DECIDED:
            return found
        known = {signal.id for signal in self._signals}
        places = _Places(whole.text, self._signals)
        for signal in pasted.signals_of(whole, self.catalogue, self.places):
            if signal.id in known:
                self._signals = [_completed(s, signal) for s in self._signals]
            else:
                self._signals = [s for s in self._signals if not _is_part(s, signal)]
                phase = signal.phase or (phase_of(whole.text) if signal.fatal else None)
                at_s = max(places.time_of(signal), self._after_work_s(signal, whole))
                read = replace(signal, at_s=at_s, phase=phase)
                placed = foreigners.attributed(read, self._follower.speakers())
                self._signals += [placed] * _times(signal, whole)
        if UNEXPLAINED_ID not in known:
            bare = foreigners.without_chatter(whole, self._follower.speakers())
            self._signals += self._error_in(refused.without(bare, self.catalogue))
        return self.finish()

    def _error_in(self, whole: Record) -> tuple[Signal, ...]:
        """Return the last failure in whatever words, after everything."""
        words = _error_in(whole, self.catalogue, self.read_line)
        last_s = max((last_s for _, last_s in self._heard.values()), default=0.0)
        return () if words is None else (replace(error_of(whole, words), at_s=last_s + _STEP_S),)

    def finish(self) -> Assessment:
        """Return the assessment of all that was added."""
        diagnosis, weighed = weigh(self._evidence())
        noise = self._noise + Counter(w.signal.id for w in weighed if w.signal.proof is Proof.NOISE)
        return Assessment(
            diagnosis=diagnosis,
            weighed=weighed,
            noise_count=noise.total(),
            noise=tuple(noise.most_common()),
            signals_dropped=self._dropped,
        )

    def _evidence(self) -> Evidence:
        follower, survival = self._follower, self._survival
        return Evidence(
            signals=tuple(self._signals),
            phase=follower.phase() or follower.any_frames() or self._whole_phase,
            nodes=tuple(dict.fromkeys(node for node, _ in self._heard)),
            head=self.places.head,
            kv_cache_bytes=follower.kv_cache_bytes,
            kv_cache_told=tuple(self._kv_cache),
            recorded=True,
            works=survival.works,
            starts=survival.starts,
            steps=survival.steps,
            worked_at_s=self._worked_s,
            alive_at_s=max(self._alive_s.values(), default=None),
            speakers=follower.speakers(),
            heard=tuple(Heard(*place, *times) for place, times in self._heard.items()),
            read=self.read,
            port=follower.port,
            headless=follower.is_headless(),
            spread=self._spread,
            on_ray=self._on_ray,
        )

    def _keep(self, signal: Signal) -> None:
        """Keep a signal, within the bounds."""
        key = repeats.key_of(signal)
        self._seen[key] += 1
        if self._seen[key] > repeats.most_of(signal):
            repeats.forget_one(self._signals, key)
        if len(self._signals) >= SIGNALS_MAX:
            self._dropped += 1
            return
        self._signals.append(signal)

    def _clock(self, record: Record) -> float:
        """Return the time of the record that is being read, on the assessment's clock."""
        if self._first_s is None:
            self._first_s = record.at_s
        return record.at_s - self._first_s + self._count * _STEP_S

    def _after_work_s(self, signal: Signal, record: Record) -> float:
        """Return the earliest time of what work would end: what is read after it was said after it."""
        if signal.id not in _ENDED_BY_WORK:
            return _NEVER_S
        return self._alive_s.get((record.node, record.source), _NEVER_S) + _STEP_S / 2

    def _placed(self, signal: Signal, record: Record) -> Signal:
        """Return the signal on the assessment's clock, with the phase of its writer or of its frames."""
        at_s = max(signal.at_s - record.at_s + self._clock(record), self._after_work_s(signal, record))
        phase = signal.phase
        if signal.id in _OF_A_PHASE:
            phase = self._follower.told_by(record)
        elif phase is None and signal.fatal:
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
    if unexplained.id not in UNEXPLAINED:
        return False
    return pasted.squeeze(unexplained.quote).removesuffix(":") in pasted.squeeze(signal.quote)


def _error_in(whole: Record, catalogue: Catalogue, read_line: ReadLine) -> str | None:
    """Return the last failure that a short text tells of in whatever words."""
    failed: str | None = None
    reached: Phase | None = None
    passing = False
    for record in pasted.records(whole, catalogue):
        fact = read_line(record.text)
        goes_on = fact is not None and is_later(fact.phase, reached)
        reached = fact.phase if fact is not None and (goes_on or reached is None) else reached
        works = fact is not None and (fact.rate_tok_s is not None or fact.port_ready or (goes_on and passing))
        if works or _ANSWERED.search(record.text):
            failed = None
        elif record.level in LOUD:
            failed, passing = record.text, False
        elif record.level not in _QUIET and (words := failed_in(record.text) or raised_in(record.text)):
            failed, passing = words, _is_of_a_start(record, catalogue)
    return failed


def _is_of_a_start(record: Record, catalogue: Catalogue) -> bool:
    """Return whether a failure is only of a kind that a start which goes on did not end of."""
    found = recognise(record, catalogue)
    return bool(found) and all(signal.cause in ENDS_BY_ITSELF for signal in found)
