"""What an engine lived through: work that is seen later acquits what was said before it.

It is asked of logs only (a live engine is judged when it ends). An engine works when its server comes up,
when it answers a request, or when it counts tokens; then nothing that was said before has ended it, whatever
the words. Not acquitted are what ended an earlier start, requests to stop, and states that last.

A rate tells of the seconds before it, and a streamed answer begins before the engine has done anything: where
something ends the engine soon after, that work is no proof.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from sparkd.signals.causes import UNKNOWN
from sparkd.signals.model import Record, Signal
from sparkd.signals.precedence import HANGS, NEAR_S, WAITS

# A rate is the mean of so many seconds; the clocks of two logs differ by less.
RATE_S = 10.0
# What goes on while the engine works: it is told for its own sake, or looked at elsewhere.
_LASTS = frozenset({"clean_shutdown", "tokenizer_or_template_error", "host_memory_pressure"})
_LASTING_IDS = WAITS | {"requests_failed"}
# Ends that nothing before needs to explain: a stop, an exception that nobody knows.
_NO_END = frozenset({"clean_shutdown", UNKNOWN})
_FELT_LATER = frozenset({"gpu_xid", "ib_roce_error"})
# The engine's own words that it ends.
_DECLARED = frozenset(
    {
        "engine_core_cancelled",
        "engine_core_died",
        "engine_core_failed",
        "engine_dead",
        "worker_died_local",
        "worker_died_ray",
        "worker_exception",
    }
)
_WORKS_MAX = 4096


@dataclass(slots=True)
class Survival:
    """When an engine was at work, and when it began anew; times are on the assessment's clock."""

    _starts: list[float] = field(default_factory=list)
    _works: dict[tuple[str, str], list[float]] = field(default_factory=dict)
    _rates: dict[tuple[str, str], float] = field(default_factory=dict)

    def start(self, at_s: float) -> None:
        """Note that an engine that had begun began anew."""
        self._starts.append(at_s)

    def work(self, record: Record, at_s: float, *, is_rate: bool) -> None:
        """Note that the engine is seen at work; of very many times the last is what counts."""
        place = (record.node, record.source)
        if is_rate:
            before_s = self._rates.get(place, at_s - RATE_S)
            self._rates[place] = at_s
            at_s = max(at_s - RATE_S, before_s)
        works = self._works.setdefault(place, [])
        if len(works) >= _WORKS_MAX:
            works.pop()
        works.append(at_s)

    def open(self, signals: Iterable[Signal], *, troubled: bool) -> tuple[Signal, ...]:
        """Return *signals* without those that the engine lived through.

        *troubled* tells of an error after its last work: what is not fatal, and what is first felt when it is
        used, may be the reason.
        """
        told = tuple(signals)
        if not self._works:
            return told
        ends = [s for s in told if s.fatal and s.cause not in _NO_END]
        felt_later = {s for s in told if troubled and (not s.fatal or s.cause in _FELT_LATER)}
        return tuple(s for s in told if s in felt_later or not self._survived(s, ends))

    def _survived(self, signal: Signal, ends: Sequence[Signal]) -> bool:
        if signal.cause in _LASTS or signal.id in _LASTING_IDS:
            return False
        again = min((at_s for at_s in self._starts if at_s > signal.at_s), default=float("inf"))
        near = [end for end in ends if signal.at_s <= end.at_s < again]
        for place, works in self._works.items():
            after_s = signal.at_s + (0.0 if place == (signal.writer, signal.source) else RATE_S)
            seen = [at_s for at_s in works if after_s < at_s < again]
            if seen and _is_proof(signal, seen, near):
                return True
        return False


def _is_proof(signal: Signal, seen: Sequence[float], ends: Sequence[Signal]) -> bool:
    """Return whether work at the times *seen* shows that *signal* ended nothing.

    Where the engine ended after it, only a fatal one is refuted, by work of more than a minute.
    """
    ended_s = min((end.at_s for end in ends if _is_declared(end) or end.at_s > seen[-1]), default=None)
    if ended_s is None:
        return True
    before = [at_s for at_s in seen if at_s < ended_s]
    return signal.fatal and bool(before) and before[-1] - signal.at_s > NEAR_S


def _is_declared(end: Signal) -> bool:
    """Return whether the engine itself says that it is ending: what its API server still does is no work."""
    return end.id in _DECLARED or end.cause in HANGS
