"""What the rest of the evidence makes of a signal before anything is weighed: over, once more, or another.

A link came back, the engine answered after a wait, an earlier start was asked to stop: what was said is over
and explains nothing. A driver that was out of memory again and again is more than one line of it. These are
the same for a live engine and for logs that somebody gives: both collect, and here it is told what it means.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from sparkd.signals import boots, memory, retold, runs, spread
from sparkd.signals.causes import UNKNOWN
from sparkd.signals.model import Evidence, Proof, Signal
from sparkd.signals.precedence import (
    BURST,
    BURST_ID,
    BUSY,
    INTERRUPTS,
    LONE_IDS,
    UNEXPLAINED_ID,
    WAITED_TWICE,
    WAITS,
)
from sparkd.words import Phase

# A link that came back, a service that answers: what was wrong before explains nothing.
_MENDED = {"fabric_link_down": "fabric_link_up", "ray_gcs_unhealthy": "ray_gcs_healthy"}
# A server that ends its engine, and for how long it then tells of an engine that is dead.
_STOPPING, _DEAD = "engine_stopping", "engine_dead"
_STOPPED_S = 5.0
_BEFORE = (float("-inf"), 0)


def settled(evidence: Evidence) -> tuple[Evidence, dict[Signal, str]]:
    """Return the evidence that is to be weighed, and what of it is over, each with the reason."""
    told = tuple(_ordinary(s, evidence.phase) for s in evidence.signals)
    evidence = replace(evidence, signals=told)
    over: dict[Signal, str] = {}
    for found, why in (
        (runs.of_a_loop(evidence), runs.WHY_AGAIN),
        (runs.before_the_last(evidence), runs.WHY),
        (_mended(told), "what it tells of came back"),
        (boots.ordered(evidence), boots.WHY),
        (_asked_before(told, evidence.starts), "about an earlier start"),
        (_left_by_their_server(told), "its server was ending it"),
        (retold.of_others(evidence), retold.WHY),
        (_old_errors(evidence), "the engine went on after it, or it was not the last"),
        (_ended_waits(evidence), "the engine worked on after it, or it was one long step"),
    ):
        over = {**dict.fromkeys(found, why), **over}
    left = [_untold(s, evidence) for s in told if s not in over]
    return replace(evidence, signals=_meaning(left, evidence)), over


def _meaning(told: Sequence[Signal], evidence: Evidence) -> tuple[Signal, ...]:
    """Return signals with what they mean beside the others."""
    timeouts = spread.timeouts(told) if evidence.spread else ()
    told = boots.explained(told, timeouts)
    told = spread.weighed(told) if evidence.spread else told
    return (*told, *_bursts(told), *memory.exhausted(evidence))


def _ordinary(signal: Signal, phase: Phase | None) -> Signal:
    """Return what tells of work that is ordinary in the phase where it was said as the noise that it is."""
    phase = signal.phase or phase
    wait = signal.id in WAITS and phase in BUSY
    interrupt = signal.id in INTERRUPTS and phase not in {None, Phase.SERVING}
    return replace(signal, proof=Proof.NOISE) if wait or interrupt else signal


def _mended(told: Sequence[Signal]) -> list[Signal]:
    """Return what was wrong before it was told to be right again; in one text the order of reading counts."""
    up: dict[tuple[str, str], tuple[float, int]] = {}
    for number, signal in enumerate(told):
        place = (signal.id, signal.node)
        up[place] = max(up.get(place, _BEFORE), (signal.at_s, number))
    return [
        s
        for number, s in enumerate(told)
        if s.id in _MENDED and (s.at_s, number) < up.get((_MENDED[s.id], s.node), _BEFORE)
    ]


def _asked_before(told: Sequence[Signal], starts: Sequence[float]) -> list[Signal]:
    """Return requests to stop that an earlier start was given."""
    last_s = max(starts, default=float("-inf"))
    return [s for s in told if s.cause == "clean_shutdown" and s.at_s < last_s]


def _left_by_their_server(told: Sequence[Signal]) -> list[Signal]:
    """Return what tells of a dead engine where its server ended it: it leaves the server without one."""
    stops = [s.at_s for s in told if s.id == _STOPPING]
    return [s for s in told if s.id == _DEAD and any(0.0 <= at_s - s.at_s <= _STOPPED_S for at_s in stops)]


def _last_error(evidence: Evidence) -> Signal | None:
    """Return the last error that nobody knows, where nothing shows that the engine went on after it."""
    errors = [s for s in evidence.signals if s.id == UNEXPLAINED_ID]
    last = max(errors, key=lambda error: error.at_s, default=None)
    return None if last is None or _is_after(evidence.alive_at_s, last) else last


def _old_errors(evidence: Evidence) -> list[Signal]:
    last = _last_error(evidence)
    return [s for s in evidence.signals if s.id == UNEXPLAINED_ID and s != last]


def _ended_waits(evidence: Evidence) -> list[Signal]:
    """Return the waits that the engine's work has ended, and those said once while nothing failed."""
    told = [s for s in evidence.signals if s.id in WAITS and s.proof is not Proof.NOISE]
    open_ = [s for s in told if not _is_after(evidence.worked_at_s, s)]
    if _has_failed(evidence):
        return [s for s in told if s not in open_]
    if _is_bare(evidence):
        return []
    return [s for s in told if s not in open_ or s in _said_once(open_)]


def _said_once(waits: Sequence[Signal]) -> list[Signal]:
    count = Counter((s.node, s.rank) for s in waits)
    return [s for s in waits if count[s.node, s.rank] < WAITED_TWICE]


def _is_bare(evidence: Evidence) -> bool:
    """Return whether a log that somebody gives shows neither a phase nor any work."""
    return evidence.recorded and evidence.phase is None and not evidence.works


def _untold(signal: Signal, evidence: Evidence) -> Signal:
    """Return a wait that is all that is shown of an engine as what it is: a hang, or one long step."""
    if signal.id not in WAITS or _has_failed(evidence) or not _is_bare(evidence):
        return signal
    once = _said_once([s for s in evidence.signals if s.id in WAITS and s.proof is not Proof.NOISE])
    return replace(signal, cause=UNKNOWN, proof=Proof.CASCADE) if signal in once else signal


def _is_after(at_s: float | None, signal: Signal) -> bool:
    return at_s is not None and at_s >= signal.at_s


def _has_failed(evidence: Evidence) -> bool:
    ended = any(not end.ordered for end in evidence.exits)
    failed = any(s.fatal and s.cause != "clean_shutdown" for s in evidence.signals)
    return ended or failed or _last_error(evidence) is not None


def _bursts(told: Iterable[Signal]) -> tuple[Signal, ...]:
    """Return a signal for each node whose driver ran out of memory again and again."""
    lone = [s for s in told if s.id in LONE_IDS]
    count = Counter((s.id, s.node, s.rank) for s in lone)
    first: dict[str, Signal] = {}
    for signal in lone:
        if count[signal.id, signal.node, signal.rank] >= BURST:
            first.setdefault(signal.node, signal)
    return tuple(replace(signal, id=BURST_ID) for signal in first.values())
