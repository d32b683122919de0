"""Several starts in one log: what an earlier one failed of is over once a later one has served.

The last start counts. That an earlier one failed is told where the last is well, and of what.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sparkd.signals.causes import NONE
from sparkd.signals.model import Diagnosis, Evidence, Proof, Signal, Work
from sparkd.signals.precedence import INSTALLED
from sparkd.words import Phase

WHY = "about an earlier start: the engine began anew after it, and served"
WHY_AGAIN = "about an earlier start: the last one failed for a reason of its own"
# What the last start of a loop failed of, whatever stood before; a taken port or too little free memory is as
# often what an earlier one left behind.
_OF_ITS_OWN = (INSTALLED | {"cuda_oom", "kv_cache_too_small"}) - {"port_in_use"}
NO_FAILURE = frozenset({NONE, "clean_shutdown"})


def before_the_last(evidence: Evidence) -> tuple[Signal, ...]:
    """Return what was said before a start that then served; of a live engine there is only one start."""
    if not (evidence.recorded and evidence.starts and evidence.works):
        return ()
    return tuple(s for s in evidence.signals if s.at_s < _served_since(s, evidence))


def of_a_loop(evidence: Evidence) -> tuple[Signal, ...]:
    """Return what the one engine of a log said of its earlier starts, where the last failed of its own."""
    if not (evidence.recorded and evidence.starts) or len(evidence.speakers) != 1:
        return ()
    last_s = max(evidence.starts)
    own = [s for s in evidence.signals if s.source in evidence.speakers]
    if not any(s.at_s >= last_s and _is_of_its_own(s) for s in own):
        return ()
    return tuple(s for s in own if s.at_s < last_s)


def _is_of_its_own(signal: Signal) -> bool:
    return signal.fatal and signal.proof is Proof.PROVES and signal.cause in _OF_ITS_OWN


def _served_since(signal: Signal, evidence: Evidence) -> float:
    """Return when the last start began that served, as far as *signal* can be about another one."""
    worked_s = max((w.at_s for w in evidence.works if _tells(w, signal, evidence)), default=float("-inf"))
    return max((at_s for at_s in evidence.starts if at_s <= worked_s), default=float("-inf"))


def _tells(work: Work, signal: Signal, evidence: Evidence) -> bool:
    """Return whether *work* tells of the engine that *signal* is about, and the two can be ordered.

    An engine's own log tells of its own starts; what has no engine's words is about whatever started next.
    """
    if (work.node, work.source) == (signal.writer, signal.source):
        return True
    return signal.source not in evidence.speakers and bool(signal.printed)


def earlier(signals: Sequence[Signal], evidence: Evidence) -> Evidence:
    """Return the evidence of the last start before the one that served: what it is that it failed of."""
    end_s = max(s.at_s for s in signals)
    begun_s = max((at_s for at_s in evidence.starts if at_s <= end_s), default=float("-inf"))
    until_s = min((at_s for at_s in evidence.starts if at_s > end_s), default=float("inf"))
    told = [size for at_s, size in evidence.kv_cache_told if begun_s <= at_s < until_s]
    return replace(
        evidence,
        signals=tuple(s for s in signals if s.at_s >= begun_s),
        phase=None,
        works=tuple(w for w in evidence.works if begun_s <= w.at_s < until_s),
        steps=tuple(w for w in evidence.steps if begun_s <= w.at_s < until_s),
        starts=(),
        kv_cache_bytes=told[-1] if told else None,
        worked_at_s=None,
        alive_at_s=None,
    )


def told(last: Diagnosis, failed: Diagnosis) -> Diagnosis:
    """Return the diagnosis of the last start with what an earlier one failed of."""
    if failed.cause in NO_FAILURE:
        return last
    phase = Phase.SERVING if last.cause == NONE else last.phase
    return replace(
        last,
        phase=phase,
        explanation=f"{last.explanation}; an earlier start in this log failed: {failed.explanation}",
    )
