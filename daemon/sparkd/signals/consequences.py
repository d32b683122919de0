"""Which signals only follow from others: of a hang, of the engine's own exception, of a fence of ours.

What a survivor prints after another node's end is told in `peers`; here is what follows on a node itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sparkd.signals.causes import UNKNOWN
from sparkd.signals.model import Proof, Signal, Work
from sparkd.signals.precedence import (
    FAILING_ID,
    HANGS,
    KILLS,
    NEAR_S,
    OWN_SOURCE,
    REMOTE_S,
    REPEATED_S,
    REPORTED_STOPS,
    STOP_LASTS_S,
    SUSPICION_S,
    TIE_S,
    UNEXPLAINED,
    WAITED_FOR_A_DEAD,
    WAITED_TWICE,
    WAITS,
    hung_since,
    tie_s,
)
from sparkd.signals.survive import ENDS_BY_ITSELF, worked_between

# What ends or is ended after a hang was seen is its consequence, or that of the fence that answered it.
_AFTER_A_HANG = frozenset(
    {"worker_process_died", "clean_shutdown", "ray_node_died", "ray_gcs_unreachable", "killed_unspecified"}
)
# An exception of the engine's own; what ends after it was ended by its shutdown.
_OWN_ERRORS = frozenset({"worker_exception", "engine_core_failed"})
# An error of the device ends the process that it is said in.
_DEVICE_ERRORS = frozenset({"cuda_error_untold"})
_ANY_ERRORS = frozenset({*_OWN_ERRORS, *UNEXPLAINED})
# A crash that a process's own end may be: of an exception, while the interpreter is torn down.
_CRASHES = frozenset({"process_crashed", "crash_reported"})
_REMOTE = frozenset({"peer_lost", "nccl_remote_error", "nccl_init_failure"})
# What a stop elsewhere makes others print, after however long.
_FELT_ELSEWHERE = frozenset(
    {
        *(WAITED_FOR_A_DEAD | _REMOTE),
        *("clean_shutdown", "gloo_connect_failure", "ib_roce_error", "nccl_socket_connect"),
        *("ray_gcs_unreachable", "ray_insufficient_resources", "ray_node_died"),
    }
)
_WATCHDOG = "nccl_watchdog"
TIMED_OUT_ID = "unit_timed_out"
# systemd tells the result of a unit right after its end.
RESULT_S = 10.0
# What processes say when they are ended: after our own fence it says that our fence worked.
_SAID_WHEN_ENDED = frozenset(
    {
        "c10d_connect_timeout",
        "clean_shutdown",
        "engine_dead_unspecified",
        "engine_hang",
        "killed_unspecified",
        "nccl_remote_error",
        "nccl_timeout",
        "peer_lost",
        "ray_gcs_unreachable",
        "ray_node_died",
        "worker_process_died",
        UNKNOWN,
    }
)


def of_earlier(
    signals: Sequence[Signal], ended: frozenset[str], works: Sequence[Work], error_s: float
) -> tuple[Signal, ...]:
    """Return the signals that follow from an earlier one, whatever their own proof is.

    *ended* are the nodes on which a unit ended without being ordered to: there alone a stop that is as early
    as the first trouble may be its reason; elsewhere it answers our own fence. *works* are when the engine
    was seen at work. *error_s* is by how much the times of two nodes may be wrong against each other.
    """
    first = min((s for s in signals if s.fatal), key=lambda s: s.at_s, default=None)
    errors = _own_errors(signals, error_s)
    died_s = min((s.at_s for s in signals if _is_death(s)), default=float("inf"))
    any_error_s = min((s.at_s for s in signals if s.id in _ANY_ERRORS), default=float("inf"))
    failing_s = min((s.at_s for s in signals if s.id == FAILING_ID), default=float("inf"))
    return tuple(
        s
        for s in signals
        if (s.cause == "worker_process_died" and _after_an_own_error(s, errors, error_s))
        or (s.cause == "worker_process_died" and _after_a_device_error(s, signals))
        or (s.at_s > any_error_s and (s.cause == "killed_unspecified" or s.id in _CRASHES))
        or (s.cause in WAITED_FOR_A_DEAD and s.at_s > died_s + SUSPICION_S)
        or (s.id in REPORTED_STOPS and failing_s < s.at_s < failing_s + NEAR_S)
        or (first is not None and (_after_a_hang(s, first) or _stopped_later(s, first, ended, error_s)))
        or (s.cause == "clean_shutdown" and _explains_no_end(s, signals, works))
    )


def after_our_fence(
    signals: Sequence[Signal], fence_at_s: float | None, ended: frozenset[tuple[str, bool]]
) -> tuple[Signal, ...]:
    """Return the signals that units which we were ending wrote about their end.

    *ended* has (node, whether it is the serve unit) of units that ended by themselves: what they wrote is
    evidence, however late it is read and whomever it concerns.
    """
    if fence_at_s is None:
        return ()
    return tuple(
        s
        for s in signals
        if s.at_s > fence_at_s
        and s.cause in _SAID_WHEN_ENDED
        and s.source != OWN_SOURCE
        and (s.writer, s.source.startswith("serve")) not in ended
    )


def of_a_killed_root(
    signals: Sequence[Signal], killed: Mapping[tuple[str, bool], float]
) -> tuple[Signal, ...]:
    """Return what units whose root was killed said of being asked to stop.

    systemd asks the rest of the group as soon as the root is gone, before anybody has heard of it: the words
    may be read first. *killed* has (node, whether it is the serve unit) -> when the root's end was seen.
    """
    return tuple(
        s
        for s in signals
        if s.cause == "clean_shutdown"
        and s.source != OWN_SOURCE
        and s.at_s > killed.get((s.writer, s.source.startswith("serve")), float("inf")) - TIE_S
    )


def _after_a_device_error(death: Signal, signals: Sequence[Signal]) -> bool:
    """Return whether the source of *death* told of an error of the device before."""
    return any(
        s.id in _DEVICE_ERRORS
        and (s.writer, s.source) == (death.writer, death.source)
        and 0.0 < death.at_s - s.at_s < NEAR_S
        for s in signals
    )


def _is_death(signal: Signal) -> bool:
    return signal.cause == "worker_process_died" and signal.proof is Proof.PROVES


def _after_a_hang(signal: Signal, first: Signal) -> bool:
    if first.cause not in HANGS or signal.cause not in _AFTER_A_HANG:
        return False
    return signal.at_s >= hung_since(first)


def _stopped_later(signal: Signal, first: Signal, ended: frozenset[str], error_s: float) -> bool:
    if signal.cause != "clean_shutdown" or signal.at_s < first.at_s:
        return False
    if signal.at_s == first.at_s:  # one record says both: a stop that is only reported follows
        return signal.id in REPORTED_STOPS and signal != first
    return signal.node not in ended or signal.at_s > first.at_s + tie_s(signal, first, error_s)


def _explains_no_end(stop: Signal, signals: Sequence[Signal], works: Sequence[Work]) -> bool:
    """Return whether *stop* answered what had gone wrong before it, or another start failed after it."""
    return (
        _after_a_kill(stop, signals, works)
        or _after_waits(stop, signals, works)
        or _is_a_time_out(stop, signals)
        or _outlived(stop, signals)
        or any(_is_of_another_run(s, stop) for s in signals)
    )


def _after_waits(stop: Signal, signals: Sequence[Signal], works: Sequence[Work]) -> bool:
    """Return whether the engine stood still, and said so again and again, until somebody stopped it."""
    waits = [s for s in signals if s.id in WAITS and s.at_s < stop.at_s]
    last = max(waits, key=lambda s: s.at_s, default=stop)
    if len(waits) < WAITED_TWICE or stop.at_s - last.at_s > REPEATED_S:
        return False
    return not worked_between(last, stop.at_s, works)


def _is_a_time_out(stop: Signal, signals: Sequence[Signal]) -> bool:
    """Return whether the SIGTERM that a unit ended of was its supervisor's, which had waited too long."""
    asked = any(s.cause == stop.cause and s.at_s < stop.at_s for s in signals)
    timed_out = any(s.id == TIMED_OUT_ID and 0.0 <= s.at_s - stop.at_s < RESULT_S for s in signals)
    return stop.id in REPORTED_STOPS and "status=15" in stop.quote and timed_out and not asked


def _outlived(stop: Signal, signals: Sequence[Signal]) -> bool:
    """Return whether the head's own rank waited out a collective after *stop*: it was not what was stopped.

    The watchdog waits longer than a stop lasts: the operation began before, or the stop was of another run.
    """
    return any(
        s.id == _WATCHDOG and s.rank == 0 and s.at_s > stop.at_s and s.writer == stop.writer for s in signals
    )


def _is_of_another_run(end: Signal, stop: Signal) -> bool:
    """Return whether *end* is none of what *stop* ended: only a start fails so, or it came long after.

    What waits for another node may fail of its stop after many minutes.
    """
    if not end.fatal or end.at_s <= stop.at_s or end.cause in _FELT_ELSEWHERE:
        return False
    if end.proof is Proof.PROVES and end.cause in ENDS_BY_ITSELF:
        return True
    return end.at_s - stop.at_s > STOP_LASTS_S and end.node in {stop.node, ""}


def _after_a_kill(stop: Signal, signals: Sequence[Signal], works: Sequence[Work]) -> bool:
    """Return whether *stop* was asked of an engine that a proven kill or fault had ended, fatal or not.

    A kill that the engine worked on after ended nothing that a person would answer.
    """
    return any(
        s.cause in KILLS
        and s.proof is Proof.PROVES
        and s.at_s < stop.at_s
        and not worked_between(s, stop.at_s, works)
        for s in signals
    )


def _own_errors(signals: Sequence[Signal], error_s: float) -> tuple[tuple[Signal, float], ...]:
    """Return each exception of the engine's own, and since when the engine was ending of it.

    An exception that tells of the other side gives a death of that side `REMOTE_S` to be read.
    """
    remote = [s for s in signals if s.cause in _REMOTE]
    return tuple(
        (s, s.at_s + (REMOTE_S if any(_tied(s, other, error_s) for other in remote) else 0.0))
        for s in signals
        if s.id in _OWN_ERRORS
    )


def _tied(one: Signal, other: Signal, error_s: float) -> bool:
    return abs(other.at_s - one.at_s) <= tie_s(one, other, error_s)


def _after_an_own_error(death: Signal, errors: Sequence[tuple[Signal, float]], error_s: float) -> bool:
    return any(death.at_s > since_s + tie_s(death, error, error_s) for error, since_s in errors)
