"""Which evidence wins: the order of causes, and which signals only follow from others.

The order is the taxonomy's: what is nearer to the physical reason stands first. What a survivor prints,
what a fence of our own makes a process print, and what every death prints are consequences.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from sparkd.signals.causes import NONE, UNKNOWN
from sparkd.signals.model import Evidence, Proof, Signal
from sparkd.words import LIVE, Phase

# Times of two readers closer than this are not an order (both read their logs by polling).
TIE_S = 0.25
# A signal that does not end a generation explains its end only if it is near; what lasts may linger. A proven
# fault of the fabric or of the driver lingers where something then stood still: vLLM waits 300 s for a step,
# NCCL's watchdog 600 s. What only suggests is repeated while it lasts (vLLM every 60 s; its wait for Ray's
# resources in doubling steps up to half an hour).
NEAR_S = 60.0
REPEATED_S = 130.0
LINGER_S = 900.0
# A hang that is only suspected (an unanswered generation) may be a death whose log line is read a bit later.
SUSPICION_S = 1.0
# So much later than a survivor's error the death that caused it may be read; what ends of an error of its own
# takes longer (5 to 8 s measured on GPUs, 4 s on CPUs).
REMOTE_S = 3.0

ORDER: tuple[tuple[str, ...], ...] = (
    ("clean_shutdown",),
    (
        "cgroup_oom",
        "kernel_oom",
        "memory_guard_kill",
        "driver_library_mismatch",
        "gpu_xid",
        "uma_host_exhaustion",
        "host_overheated",
    ),
    ("ray_oom_kill",),
    ("cuda_oom", "startup_free_memory_too_low", "kv_cache_too_small", "memory_profiling_error"),
    ("shm_too_small", "ib_roce_error", "cuda_illegal_memory_access", "device_side_assert"),
    (
        "ray_auth_refused",
        "ray_version_mismatch",
        "wrong_interface",
        "port_in_use",
        "nccl_socket_connect",
        "gloo_connect_failure",
        "c10d_connect_timeout",
        "ray_insufficient_resources",
    ),
    (
        "no_cuda_device",
        "cuda_fork_reinit",
        "cuda_arch_unsupported",
        "compile_toolchain_missing",
        "missing_python_dependency",
        "broken_install",
        "model_unsupported",
        "weights_missing_or_corrupt",
        "hf_auth",
        "tokenizer_or_template_error",
        "bad_cli_argument",
        "disk_full",
        "os_resource_limit",
        "permission_denied",
        "hf_network",
    ),
    ("ray_gcs_unreachable", "ray_node_died", "peer_lost"),
    ("nccl_timeout", "engine_hang"),
    ("worker_process_died",),
    ("killed_unspecified", "nccl_init_failure", "nccl_remote_error", "host_memory_pressure"),
    ("engine_internal_error",),
    ("unknown",),
    ("engine_dead_unspecified",),
)
# What is wrong with the installation or with what a person set.
INSTALLED = frozenset(next(group for group in ORDER if "disk_full" in group))
_UNLOADED = frozenset(LIVE[: LIVE.index(Phase.LOADING_WEIGHTS)])
# Phases in which "no broadcast block for 60 s" is ordinary work.
BUSY = frozenset(LIVE[: LIVE.index(Phase.STARTING_API)])
WAITS = frozenset({"engine_broadcast_waits"})
# A start that a person interrupted was perhaps hanging: nothing says that it was meant to end.
INTERRUPTS = frozenset({"interrupted"})
_PLACES = {cause: (rank, place) for rank, group in enumerate(ORDER) for place, cause in enumerate(group)}
_LAST = (len(ORDER), 0)
_HANG = _PLACES["engine_hang"][0]
_DEATH = _PLACES["worker_process_died"][0]
# A suggestion of these says why a start waits or with which error a process ended by itself: it beats "no
# progress" and "a process ended".
EXPLAINS_AN_END = frozenset(
    {
        "c10d_connect_timeout",
        "gloo_connect_failure",
        "ray_insufficient_resources",
        "ray_version_mismatch",
        "hf_network",
        "shm_too_small",
        "wrong_interface",
    }
)
_LINGERING = frozenset(
    {
        "ib_roce_error",
        "gpu_xid",
        "nccl_timeout",
        "engine_hang",
        "peer_lost",
        "ray_node_died",
        "ray_gcs_unreachable",
        "uma_host_exhaustion",
        "ray_insufficient_resources",
        "wrong_interface",
    }
)
# Of these, what ended for a reason of its own did not wait for the fault to show.
_STANDS_STILL = frozenset({"gpu_xid", "ib_roce_error"})
# What names a cause even where nothing failed (yet): something stands still, refuses, or was stopped.
_SPEAKS_ALONE = frozenset(
    {
        "clean_shutdown",
        "engine_hang",
        "host_memory_pressure",
        "kv_cache_too_small",
        "nccl_timeout",
        "peer_lost",
        "ray_insufficient_resources",
        "tokenizer_or_template_error",
        "wrong_interface",
    }
)
# What names a cause in a log that somebody gives, though nothing in it shows an end: a piece of a kernel log
# is about a kill, and a warning that a start never got beyond is about its reason.
_SPEAKS_WHEN_READ = frozenset({"kernel_oom", "cgroup_oom", "gpu_xid", "ib_roce_error", "nccl_init_failure"})
_SPEAKS_BEFORE_LOADING = frozenset({"gloo_connect_failure"})
# Of any process: of a log that somebody gives it is the subject; of a live node it tells only as much.
OF_ANYBODY = {"kernel_oom_other": "host_memory_pressure", "cgroup_oom_other": NONE, "gpu_xid_other": NONE}
# What is said only where nothing else is: an error that nobody knows, requests that failed.
_LEAST = frozenset({"unexplained_error", "requests_failed"})
# Two different suggestions of one node make a proof of these.
_CORROBORATED = frozenset({"uma_host_exhaustion"})
# What ends or is ended after a hang was seen is its consequence, or that of the fence that answered it.
_AFTER_A_HANG = frozenset(
    {"worker_process_died", "clean_shutdown", "ray_node_died", "ray_gcs_unreachable", "killed_unspecified"}
)
HANGS = frozenset({"engine_hang", "nccl_timeout"})
# An exception of the engine's own; what ends after it was ended by its shutdown.
_OWN_ERRORS = frozenset({"worker_exception", "engine_core_failed"})
_ANY_ERRORS = frozenset({*_OWN_ERRORS, "unexplained_exception"})
# A crash that a process's own end may be: of an exception, while the interpreter is torn down.
_CRASHES = frozenset({"process_crashed", "crash_reported"})
# What runs out of time after a death was waiting for the dead.
WAITED_FOR_A_DEAD = frozenset({"c10d_connect_timeout", "engine_hang", "nccl_timeout"})
_REMOTE = frozenset({"peer_lost", "nccl_remote_error", "nccl_init_failure"})


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
    }
)
BURST_ID = "uma_driver_burst"
"""A driver that ran out of memory again and again: more than one line of it, and no second witness."""
FAILING_ID = "requests_failed"
"""Requests that the server answers with an error: a server that ends after them was not asked to."""
_REPORTED_STOPS = frozenset({"stop_reported", "interrupted"})
OWN_SOURCE = "sparkd"
"""Source of what sparkd itself observed: it looked before it ended anything."""


# Of what only follows from something: a death that somebody tells of, then an exception that nobody knows,
# and only then what a survivor prints.
_FIRST_OF_CASCADE = {"worker_process_died": 0.0, UNKNOWN: 0.5}


def weight(signal: Signal) -> float:
    """Return how far down the order a signal stands as a root cause; cascade stands below everything."""
    rank = _PLACES.get(signal.cause, _LAST)[0]
    if signal.id in _LEAST:
        return float(3 * len(ORDER))
    if signal.proof is Proof.PROVES:
        return float(rank)
    if signal.proof is Proof.SUGGESTS:
        return _HANG - 0.5 if signal.cause in EXPLAINS_AN_END else _DEATH + 0.25 + rank / 100
    return float(2 * len(ORDER)) + _FIRST_OF_CASCADE.get(signal.cause, 1.0) + rank / 100


def speaks_alone(signal: Signal, evidence: Evidence) -> bool:
    """Return whether a signal names a cause where nothing is seen to have failed."""
    if signal.fatal or signal.proof is not Proof.SUGGESTS:
        return True
    if signal.cause in _SPEAKS_ALONE or signal.id == BURST_ID:
        return True
    if not evidence.recorded:
        return False
    if signal.id == FAILING_ID:
        return _failed_before_a_stop(evidence)
    return signal.cause in _SPEAKS_WHEN_READ or _stands_before_loading(signal, evidence)


def _stands_before_loading(signal: Signal, evidence: Evidence) -> bool:
    """Return whether a warning about the way to other nodes is the last that is heard of a start.

    Of one node alone it is harmless, and so it is where the engine was stopped as it should be.
    """
    if signal.cause not in _SPEAKS_BEFORE_LOADING:
        return False
    if evidence.phase is not None and evidence.phase not in _UNLOADED:
        return False
    alone = len({*evidence.nodes, signal.node}) < 2 and ", ip=" not in signal.quote
    return not alone and all(s.cause != "clean_shutdown" for s in evidence.signals)


def _failed_before_a_stop(evidence: Evidence) -> bool:
    """Return whether request after request failed, and then the server ended without a word of who asked."""
    failed = [s.at_s for s in evidence.signals if s.id == FAILING_ID]
    return len(failed) > 1 and any(
        s.id in _REPORTED_STOPS and failed[0] < s.at_s < failed[0] + NEAR_S for s in evidence.signals
    )


def why_first(signal: Signal) -> str:
    """Return why a signal won, as a clause."""
    if signal.proof is Proof.PROVES:
        return "proves its cause, and nothing nearer to the physical reason does"
    if signal.proof is Proof.SUGGESTS:
        return "suggests its cause, and nothing proves another"
    return "is all that is in view: it follows from something that is not"


def why_after(signal: Signal, root: Signal | None) -> str:
    """Return why a signal lost against *root*, as a clause."""
    if root is None:
        return "explains nothing"
    if signal.proof is Proof.CASCADE:
        return f"always follows from something; {root.cause} explains it"
    if weight(signal) > weight(root):
        return f"{root.cause} is nearer to the physical reason"
    return f"later than {root.cause}"


def place(signal: Signal) -> int:
    """Return the place of a signal's cause among equal ranks."""
    return _PLACES.get(signal.cause, _LAST)[1]


def corroborate(signals: Sequence[Signal]) -> frozenset[tuple[str, str]]:
    """Return the (cause, node) pairs for which several different suggestions stand together."""
    ids: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for signal in signals:
        if (
            signal.cause in _CORROBORATED
            and signal.id != BURST_ID
            and signal.id not in ids[signal.cause, signal.node]
        ):
            ids[signal.cause, signal.node].append(signal.id)
    return frozenset(pair for pair, names in ids.items() if len(names) > 1)


def is_decided(signals: Sequence[Signal], failed_at_s: float) -> bool:
    """Return whether something proven that is near explains a failure, and no hang came before it."""
    hung_s = min((hung_since(s) for s in signals if s.fatal and s.cause in HANGS), default=float("inf"))
    return any(
        s.proof is Proof.PROVES
        and s.cause not in HANGS | _STANDS_STILL
        and s.at_s < hung_s
        and failed_at_s - s.at_s <= NEAR_S
        for s in signals
    )


def is_stale(signal: Signal, failed_at_s: float, *, decided: bool) -> bool:
    """Return whether a signal is too old to explain what failed at *failed_at_s*.

    *decided* tells whether the failure is proven to be something else than standing still.
    """
    if signal.fatal:
        return False
    if signal.cause not in _LINGERING or (decided and signal.cause in _STANDS_STILL):
        limit_s = NEAR_S
    elif signal.proof is Proof.PROVES or signal.cause in EXPLAINS_AN_END:
        limit_s = LINGER_S
    else:
        limit_s = REPEATED_S
    return failed_at_s - signal.at_s > limit_s


def consequences(signals: Sequence[Signal], ended: frozenset[str]) -> tuple[Signal, ...]:
    """Return the signals that follow from an earlier one, whatever their own proof is.

    *ended* are the nodes on which a unit ended without being ordered to: there alone a stop that is as early
    as the first trouble may be its reason; elsewhere it answers our own fence.
    """
    first = min((s for s in signals if s.fatal), key=lambda s: s.at_s, default=None)
    own_error_s = _own_error(signals)
    died_s = min((s.at_s for s in signals if _is_death(s)), default=float("inf"))
    any_error_s = min((s.at_s for s in signals if s.id in _ANY_ERRORS), default=float("inf"))
    failing_s = min((s.at_s for s in signals if s.id == FAILING_ID), default=float("inf"))
    return tuple(
        s
        for s in signals
        if (s.cause == "worker_process_died" and s.at_s > own_error_s + TIE_S)
        or (s.at_s > any_error_s and (s.cause == "killed_unspecified" or s.id in _CRASHES))
        or (s.cause in WAITED_FOR_A_DEAD and s.at_s > died_s + SUSPICION_S)
        or (s.id in _REPORTED_STOPS and failing_s < s.at_s < failing_s + NEAR_S)
        or (first is not None and (_after_a_hang(s, first) or _stopped_later(s, first, ended)))
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


def hung_since(hang: Signal) -> float:
    """Return since when what ends is a hang's consequence."""
    return hang.at_s + (0.0 if hang.proof is Proof.PROVES else SUSPICION_S)


def _is_death(signal: Signal) -> bool:
    return signal.cause == "worker_process_died" and signal.proof is Proof.PROVES


def _after_a_hang(signal: Signal, first: Signal) -> bool:
    if first.cause not in HANGS or signal.cause not in _AFTER_A_HANG:
        return False
    return signal.at_s >= hung_since(first)


def _stopped_later(signal: Signal, first: Signal, ended: frozenset[str]) -> bool:
    if signal.cause != "clean_shutdown" or signal.at_s < first.at_s:
        return False
    if signal.at_s == first.at_s:  # one record says both: a stop that is only reported follows
        return signal.id in _REPORTED_STOPS and signal != first
    return signal.node not in ended or signal.at_s > first.at_s + TIE_S


def _own_error(signals: Sequence[Signal]) -> float:
    """Return since when the engine was ending of an exception of its own.

    An exception that tells of the other side gives a death of that side `REMOTE_S` to be read.
    """
    remote = [s.at_s for s in signals if s.cause in _REMOTE]
    return min(
        (
            s.at_s + (REMOTE_S if any(abs(at_s - s.at_s) <= TIE_S for at_s in remote) else 0.0)
            for s in signals
            if s.id in _OWN_ERRORS
        ),
        default=float("inf"),
    )
