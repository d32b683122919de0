"""What an engine lived through: work that is seen later acquits what was said before it.

An engine works when its server comes up, when it answers a request, or when it counts tokens; then nothing
that was said before has ended it, whatever the words. Not acquitted are what ended an earlier start, requests
to stop, and states that last.

A rate tells of the seconds before it, and a streamed answer begins before the engine has done anything: where
something ends the engine soon after, that work is no proof.

A start that goes on is at work, too: what only a start can end of (an option, a module, a port, a permission)
did not end one whose own log then tells of a later phase. A loose word of such a thing ends no engine by
itself, in a start or later: it is a tool's, another program's or a request's, unless the engine then ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from sparkd.signals.causes import UNKNOWN
from sparkd.signals.model import Evidence, Proof, Record, Signal, Work
from sparkd.signals.precedence import HANGS, INSTALLED, NEAR_S, OWN_SOURCE, UNEXPLAINED, UNEXPLAINED_ID, WAITS

# A rate is the mean of so many seconds; the clocks of two logs differ by less.
RATE_S = 10.0
# What goes on while the engine works: it is told for its own sake, or looked at elsewhere.
_LASTS = frozenset({"clean_shutdown", "host_memory_pressure"})
_LASTING_IDS = WAITS | {"requests_failed"}
# Ends that nothing before needs to explain: a stop, an exception that nobody knows.
_NO_END = frozenset({"clean_shutdown", UNKNOWN})
_FELT_LATER = frozenset({"gpu_xid", "ib_roce_error"})
# The engine's own words that it ends, and the node's that it shuts itself down.
_DECLARED = frozenset(
    {
        "engine_core_cancelled",
        "engine_core_died",
        "engine_core_failed",
        "engine_dead",
        "thermal_critical",
        "worker_died_local",
        "worker_died_ray",
        "worker_exception",
    }
)
# What a start checks, and what a serving engine meets again only in a request, where it goes on.
_CHECKED_AT_START = frozenset(
    {
        "kv_cache_too_small",
        "memory_profiling_error",
        "port_in_use",
        "ray_auth_refused",
        "ray_insufficient_resources",
        "ray_version_mismatch",
        "startup_free_memory_too_low",
    }
)
_MET_LATER = frozenset(
    {
        "compile_toolchain_missing",
        "cuda_arch_unsupported",
        "disk_full",
        "os_resource_limit",
        "permission_denied",
        "tokenizer_or_template_error",
    }
)
# Its server says that it is up before it takes its port.
_OF_A_START = (INSTALLED | _CHECKED_AT_START) - _MET_LATER - {"port_in_use"}
# Kills, of whatever process: what they ended is gone at once.
_ENDS_A_PROCESS = frozenset({"ray_oom_kill", "kernel_oom", "cgroup_oom", "memory_guard_kill"})
_WORKS_MAX = 4096
WHY = "the engine worked on after it"


# What an engine that it concerns ends of by itself, within seconds and with words of its own.
ENDS_BY_ITSELF = INSTALLED | _CHECKED_AT_START


def ends_at_once(signal: Signal) -> bool:
    """Return whether a fatal *signal* ends an engine by itself; else its end is waited for.

    What sparkd itself observed is no loose word. An exception that nobody knows may be a request's. Who asked
    an engine to stop is known with its end only: a person's stop would look like ours beside our own kills.
    """
    waits = signal.cause in ENDS_BY_ITSELF | {"clean_shutdown"} or signal.id in UNEXPLAINED
    return signal.source == OWN_SOURCE or not waits


@dataclass(slots=True)
class Survival:
    """When an engine was at work, and when it began anew; times are on the assessment's clock."""

    _starts: list[float] = field(default_factory=list)
    _works: dict[tuple[str, str], list[float]] = field(default_factory=dict)
    _rates: dict[tuple[str, str], float] = field(default_factory=dict)
    _steps: list[Work] = field(default_factory=list)

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

    def step(self, record: Record, at_s: float) -> None:
        """Note that a start went forward; of very many times the last is what counts."""
        if len(self._steps) >= _WORKS_MAX:
            self._steps.pop()
        self._steps.append(Work(record.node, record.source, at_s))

    @property
    def steps(self) -> tuple[Work, ...]:
        """When a start was seen to go forward."""
        return tuple(self._steps)

    @property
    def works(self) -> tuple[Work, ...]:
        """When it was seen at work."""
        return tuple(
            Work(node, source, at_s) for (node, source), times in self._works.items() for at_s in times
        )

    @property
    def starts(self) -> tuple[float, ...]:
        """When it began anew."""
        return tuple(self._starts)


def acquitted(signals: Sequence[Signal], evidence: Evidence) -> tuple[Signal, ...]:
    """Return those of *signals* that the engine lived through.

    After an error that nobody knows, what is not fatal, and what is first felt when it is used, may be the
    reason of that.
    """
    if not (evidence.works or evidence.steps):
        return ()
    trial = _Trial(signals, evidence)
    troubled = any(s.id == UNEXPLAINED_ID for s in signals)
    return tuple(
        s
        for s in signals
        if not (troubled and (not s.fatal or s.cause in _FELT_LATER)) and trial.has_survived(s)
    )


def outgrown(signals: Sequence[Signal], evidence: Evidence) -> tuple[Signal, ...]:
    """Return what only a start can end of, where the engine of the same log served and shows no end.

    An engine that begins anew, or that was stopped, had ended.
    """
    suspects = [s for s in signals if s.fatal and s.cause in _OF_A_START]
    if not (suspects and evidence.works and evidence.recorded):
        return ()
    ends = [s.at_s for s in signals if s.fatal and s.cause not in _OF_A_START | {UNKNOWN}]
    stops = [s for s in signals if s.cause == "clean_shutdown"]
    trial = _Trial(signals, evidence)
    return tuple(
        s
        for s in suspects
        if trial.has_served(s)
        and not any(at_s > s.at_s - NEAR_S for at_s in ends)
        and not any(stop.at_s < s.at_s and not worked_between(stop, s.at_s, evidence.works) for stop in stops)
    )


def worked_between(signal: Signal, until_s: float, works: Iterable[Work]) -> bool:
    """Return whether the engine was seen at work after *signal* and before *until_s*."""
    return any(signal.at_s + _apart_s(signal, work.node, work.source) < work.at_s < until_s for work in works)


def _apart_s(signal: Signal, node: str, source: str) -> float:
    """Return by how much the clock of a log may differ from that of what wrote *signal*."""
    return 0.0 if (node, source) == (signal.writer, signal.source) else RATE_S


class _Trial:
    """The works and ends of one judgement; our own fence is an end, too."""

    def __init__(self, signals: Iterable[Signal], evidence: Evidence) -> None:
        self._works: dict[tuple[str, str], list[float]] = {}
        for work in evidence.works:
            self._works.setdefault((work.node, work.source), []).append(work.at_s)
        self._steps: dict[tuple[str, str], list[float]] = {}
        for step in evidence.steps:
            self._steps.setdefault((step.node, step.source), []).append(step.at_s)
        self._starts = evidence.starts
        self._engines = evidence.speakers
        self._ends = [(end.at_s, True) for end in evidence.exits if not end.ordered]
        self._ends += [(s.at_s, _is_declared(s)) for s in signals if s.fatal and s.cause not in _NO_END]
        if evidence.fence_at_s is not None:
            self._ends.append((evidence.fence_at_s, True))

    def has_survived(self, signal: Signal) -> bool:
        """Return whether work after *signal* shows that it ended nothing."""
        if signal.cause in _LASTS or signal.id in _LASTING_IDS:
            return False
        again = min((at_s for at_s in self._starts if at_s > signal.at_s), default=float("inf"))
        ends = [end for end in self._ends if signal.at_s <= end[0] < again]
        for place, works in self._works.items():
            if self._is_another_run(signal, place):
                continue
            after_s = signal.at_s + _apart_s(signal, *place)
            seen = [at_s for at_s in works if after_s < at_s < again]
            if seen and _is_proof(signal, seen, ends):
                return True
        return signal.cause in ENDS_BY_ITSELF and self._went_on(signal, again, ends)

    def _is_another_run(self, signal: Signal, place: tuple[str, str]) -> bool:
        """Return whether work at *place* says nothing of a start that failed in an engine's own log."""
        elsewhere = place != (signal.writer, signal.source)
        return elsewhere and signal.source in self._engines and signal.cause in ENDS_BY_ITSELF

    def _went_on(self, signal: Signal, again: float, ends: Sequence[tuple[float, bool]]) -> bool:
        """Return whether the start that *signal* is about went forward, as its log or sparkd saw."""
        told = self._steps.get((signal.writer, signal.source), ())
        watched = [
            at_s for (_, source), times in self._steps.items() if source == OWN_SOURCE for at_s in times
        ]
        seen = sorted(at_s for at_s in (*told, *watched) if signal.at_s < at_s < again)
        return bool(seen) and _is_proof(signal, seen, ends)

    def has_served(self, signal: Signal) -> bool:
        """Return whether the writer of *signal* was at work before, and nothing began anew since."""
        if any(at_s > signal.at_s for at_s in self._starts):
            return False
        since = max(self._starts, default=float("-inf"))
        works = self._works.get((signal.writer, signal.source), ())
        return any(since <= at_s < signal.at_s for at_s in works)


def _is_proof(signal: Signal, seen: Sequence[float], ends: Sequence[tuple[float, bool]]) -> bool:
    """Return whether work at the times *seen* shows that *signal* ended nothing.

    Where the engine ended after it, only a fatal one or a kill is refuted, by work of more than a minute.
    """
    ended_s = min((at_s for at_s, declared in ends if declared or at_s > seen[-1]), default=None)
    if ended_s is None:
        return True
    before = [at_s for at_s in seen if at_s < ended_s]
    refutable = signal.fatal or (signal.cause in _ENDS_A_PROCESS and signal.proof is Proof.PROVES)
    return refutable and bool(before) and before[-1] - signal.at_s > NEAR_S


def _is_declared(end: Signal) -> bool:
    """Return whether the engine or its node says that it is ending: what still answers is no work."""
    return end.id in _DECLARED or end.cause in HANGS
