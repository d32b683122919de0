"""Which of several logs are of which run: an engine's log that begins after all others ended is of another.

A cluster has one engine at a time. Logs of the nodes of one run overlap; what is no engine's log (the
kernel's, Ray's) may go over many runs, and of it each run has what was said in its time.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from sparkd.intake.clock import LogClock, clock_of
from sparkd.intake.sieve import read_phase
from sparkd.signals import prefix, wrapping
from sparkd.signals.model import Record
from sparkd.signals.precedence import NEAR_S, PRINTED_S
from sparkd.words import Phase

# What a rank says of itself that has no server: it may begin, and fail, before the rank that has one.
_HEADLESS = "headless"


@dataclass(frozen=True, slots=True)
class Span:
    """From when to when an engine's log speaks.

    Attributes:
        source: what the log is called.
        begins: whether it begins with a start; serves: whether it is of the rank that has the server.
    """

    source: str
    first_s: float
    last_s: float
    begins: bool = True
    serves: bool = True


@dataclass(frozen=True, slots=True)
class Turns:
    """The runs, one after the other: where each engine's log belongs, and when the later runs begin."""

    own: Mapping[str, int] = field(default_factory=dict)
    borders: Sequence[float] = ()

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self.borders) + 1

    def of(self, record: Record) -> int:
        """Return the number of the run that a record is of."""
        if not self.borders:
            return 0
        own = self.own.get(record.source, self.own.get(record.source.rpartition(" ")[0]))
        return bisect_right(self.borders, record.at_s) if own is None else own


ONE = Turns()


def turns_of(spans: Iterable[Span]) -> Turns:
    """Return the runs that engines' logs are of.

    What other logs say soon after a run's end (a collector's summary, an OOM killer's report) is about it.
    """
    own: dict[str, int] = {}
    borders: list[float] = []
    end_s = float("-inf")
    serves = False
    for span in sorted(spans, key=lambda span: span.first_s):
        # Two ranks with a server are never of one run; one without may have ended before the other began.
        apart_s = PRINTED_S if serves and span.serves else NEAR_S
        if own and span.begins and span.first_s > end_s + apart_s:
            borders.append(min(span.first_s, end_s + NEAR_S))
            serves = False
        own[span.source] = len(borders)
        serves = serves or span.serves
        end_s = max(end_s, span.last_s)
    return Turns(own, borders)


def span_of(source: str, head: Sequence[str], tail: Sequence[str]) -> Span | None:
    """Return when an engine's log speaks, by its first and last lines; None where nothing tells."""
    clock = clock_of(head)
    last_s = _last_s(clock, tail)
    if clock.first_s is None or last_s is None or last_s < clock.first_s:
        return None
    facts = [read_phase(wrapping.unwrap(line).body) for line in head]
    phases = {fact.phase for fact in facts if fact is not None and fact.phase is not None}
    if not phases:
        return None
    return Span(
        source,
        clock.first_s,
        last_s,
        begins=Phase.RESOLVING_CONFIG in phases,
        serves=not any(_HEADLESS in line for line in head),
    )


def _last_s(clock: LogClock, lines: Sequence[str]) -> float | None:
    for line in reversed(lines):
        unwrapped = wrapping.unwrap(line)
        at_s = clock.at(unwrapped.time, prefix.split(unwrapped.body).printed)
        if at_s is not None:
            return at_s
    return None
