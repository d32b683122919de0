"""What tells of an end that is told nearer to its reason: by a guard, another rank, the engine itself.

systemd counts what its own guard killed as an out-of-memory kill; NCCL's watchdog reports every exception,
also of a rank that went away, and runs out of time waiting for one that raised; a client calls an engine that
has shut itself down, or whose run was over, one that died.
"""

from __future__ import annotations

from collections.abc import Sequence

from sparkd.signals.model import Evidence, Signal
from sparkd.signals.precedence import LINGER_S, UNEXPLAINED

WHY = "told nearer to its reason by another"
# systemd tells the result of a unit right after what its guard did; a watchdog reports what has been raised;
# a client hears of its engine's end within moments.
_NEAR_S = 10.0
_UNIT_RESULT = "oom_kill_reported"
_GUARDS = frozenset({"guard_kill_other", "memory_guard_killed"})
_REMOTE = frozenset({"nccl_remote_closed", "nccl_remote_exited"})
_REPORTS = "either an error or timeout) detected by watchdog"
_DIED, _STOP, _RUN_DONE = "engine_core_died", "stop_reported", "offline_run_done"
_SHUTS_DOWN = "Shutdown initiated"
_NO_FAILURE = frozenset({"clean_shutdown", "none"})


def of_others(evidence: Evidence) -> tuple[Signal, ...]:
    """Return the signals that another explains, in the order given."""
    told = evidence.signals
    return tuple(
        s
        for s in told
        if _is_guards(s, told) or _is_remote(s, told) or _is_own_end(s, told) or _waited(s, evidence)
    )


def _is_guards(signal: Signal, told: Sequence[Signal]) -> bool:
    """Return whether systemd's result counts what its guard killed."""
    return signal.id == _UNIT_RESULT and any(
        s.id in _GUARDS and s.node == signal.node and abs(signal.at_s - s.at_s) <= _NEAR_S for s in told
    )


def _is_remote(signal: Signal, told: Sequence[Signal]) -> bool:
    """Return whether NCCL's watchdog reports that another rank went away, and no time-out."""
    return (
        signal.cause == "nccl_timeout"
        and _REPORTS in signal.quote
        and any(
            s.id in _REMOTE and s.writer == signal.writer and 0.0 <= signal.at_s - s.at_s <= _NEAR_S
            for s in told
        )
    )


def _waited(signal: Signal, evidence: Evidence) -> bool:
    """Return whether a collective ran out of time after an unknown exception, with no work between."""
    if signal.cause != "nccl_timeout" or not evidence.recorded:
        return False
    first_s = min(s.at_s for s in evidence.signals if s.cause == signal.cause)
    worked_s = evidence.worked_at_s
    return any(
        s.id in UNEXPLAINED and 0.0 < first_s - s.at_s <= LINGER_S and (worked_s is None or worked_s < s.at_s)
        for s in evidence.signals
    )


def _is_own_end(signal: Signal, told: Sequence[Signal]) -> bool:
    """Return whether an engine that died had shut itself down, or had done its run and nothing failed."""
    if signal.id != _DIED or any(_fails(s, signal) for s in told):
        return False
    return any(s.at_s < signal.at_s and _ends_a_run(s, signal) for s in told)


def _fails(signal: Signal, end: Signal) -> bool:
    return signal.fatal and signal.cause not in _NO_FAILURE and signal.id != end.id


def _ends_a_run(signal: Signal, end: Signal) -> bool:
    if signal.id == _STOP:
        return _SHUTS_DOWN in signal.quote and end.at_s - signal.at_s <= _NEAR_S
    return signal.id == _RUN_DONE and (signal.writer, signal.source) == (end.writer, end.source)
