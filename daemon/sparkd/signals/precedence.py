"""Which evidence wins: the order of causes, and which signals only follow from others.

The order is the taxonomy's: what is nearer to the physical reason stands first. What a survivor prints,
what a fence of our own makes a process print, and what every death prints are consequences.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence

from sparkd.signals.causes import NONE, UNKNOWN
from sparkd.signals.model import Evidence, Proof, Signal
from sparkd.words import LIVE, Phase

# Times of two readers closer than this are not an order (both read their logs by polling).
TIE_S = 0.25
# Times that two nodes printed count to the second.
PRINTED_S = 1.0
# A signal that does not end a generation explains its end only if it is near; what lasts may linger. A proven
# fault of the fabric or of the driver lingers where something then stood still: vLLM waits 300 s for a step,
# NCCL's watchdog 600 s. What only suggests is repeated while it lasts (vLLM every 60 s; its wait for Ray's
# resources in doubling steps up to half an hour).
NEAR_S = 60.0
REPEATED_S = 130.0
LINGER_S = 900.0
# Until then a stop goes on: systemd waits 90 s for a unit, and kills it then.
STOP_LASTS_S = 180.0
# A hang that is only suspected (an unanswered generation) may be a death whose log line is read a bit later.
SUSPICION_S = 1.0
# So much later than a survivor's error the death that caused it may be read; what ends of an error of its own
# takes longer (5 to 8 s measured on GPUs, 4 s on CPUs).
REMOTE_S = 3.0

UNEXPLAINED_ID = "unexplained_error"
"""An error that no signature knows, after the last work of the engine."""

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
# What kills or breaks an engine from outside: who then asks it to stop answers that. Short memory alone
# does neither.
KILLS = frozenset((*ORDER[1], *ORDER[2])) - {"uma_host_exhaustion"}
_UNLOADED = frozenset(LIVE[: LIVE.index(Phase.LOADING_WEIGHTS)])
# Phases in which "no broadcast block for 60 s" is ordinary work.
BUSY = frozenset(LIVE[: LIVE.index(Phase.STARTING_API)])
WAITS = frozenset({"engine_broadcast_waits"})
# A wait for a broadcast block that is said once is a long step; said again with no step between, a hang.
WAITED_TWICE = 2
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
_SPEAKS_WHEN_READ = frozenset(
    {
        "cgroup_oom",
        "gpu_xid",
        "ib_roce_error",
        "kernel_oom",
        "memory_guard_kill",
        "nccl_init_failure",
        "ray_gcs_unreachable",
        "ray_oom_kill",
    }
)
# Of these an engine that works ends with words of its own; one that says nothing may not have felt them.
_FELT_AT_ONCE = frozenset({"ib_roce_error", "gpu_xid", "nccl_init_failure"})
# A fault of a process of a name that is not only an engine's.
_OF_SOME_PROCESS = frozenset({"gpu_xid_application"})
_NAMED = re.compile(r"name=(?:ray::|VLLM|vllm|EngineCore)")
_SPEAKS_BEFORE_LOADING = frozenset({"gloo_connect_failure"})
# Of any process: of a log in which no engine speaks it is the subject; beside one it tells only as much.
OF_ANYBODY = {
    "kernel_oom_other": "host_memory_pressure",
    "guard_kill_other": "host_memory_pressure",
    "cgroup_oom_other": NONE,
    "gpu_xid_other": NONE,
}
# What is said only where nothing else is: an error that nobody knows, requests that failed, a bad exit code.
_LEAST = frozenset({UNEXPLAINED_ID, "requests_failed", "something_gave_up"})
# Two different suggestions of one node make a proof of these.
_CORROBORATED = frozenset({"uma_host_exhaustion"})
HANGS = frozenset({"engine_hang", "nccl_timeout"})
# What runs out of time after a death was waiting for the dead.
WAITED_FOR_A_DEAD = frozenset({"c10d_connect_timeout", "engine_hang", "nccl_timeout"})


UNKNOWN_EXCEPTION = "unexplained_exception"
"""An exception that no signature knows."""
ENGINES_OWN = "engines_own_exception"
"""One that the engine's own code raised, as its innermost frame shows (`slips`)."""
UNEXPLAINED = frozenset({UNKNOWN_EXCEPTION, ENGINES_OWN})
LONE_IDS = frozenset({"uma_driver_no_memory"})
"""What a healthy node's driver says, too: of these one line is nothing, and `BURST` lines are."""
BURST = 5
BURST_ID = "uma_driver_burst"
"""A driver that ran out of memory again and again: more than one line of it, and no second witness."""
FAILING_ID = "requests_failed"
"""Requests that the server answers with an error: a server that ends after them was not asked to."""
REPORTED_STOPS = frozenset({"stop_reported", "interrupted"})
OWN_SOURCE = "sparkd"
"""Source of what sparkd itself observed: it looked before it ended anything."""


# Of what only follows from something: a death that somebody tells of, then an exception that nobody knows,
# and only then what a survivor prints.
_FIRST_OF_CASCADE = {"worker_process_died": 0.0, UNKNOWN: 0.5}


def order_error_s(evidence: Evidence) -> float:
    """Return by how much the order of what two nodes said may be wrong.

    Live the times are those of reading, on one clock. Of files nobody knows how far the nodes' clocks are
    apart; printed times count to the second, closer is no order.
    """
    return max(TIE_S, PRINTED_S if evidence.order_error_s is None else evidence.order_error_s)


def tie_s(one: Signal, other: Signal, error_s: float) -> float:
    """Return how close the times of two signals are no order: *error_s* where two nodes said them."""
    return TIE_S if one.writer == other.writer else error_s


def weight(signal: Signal) -> float:
    """Return how far down the order a signal stands as a root cause; cascade stands below everything."""
    rank = _PLACES.get(signal.cause, _LAST)[0]
    if signal.id in _LEAST:
        return float(3 * len(ORDER)) + (signal.id == UNEXPLAINED_ID)
    if signal.proof is Proof.PROVES:
        return float(rank)
    if signal.proof is Proof.SUGGESTS:
        return _HANG - 0.5 if signal.cause in EXPLAINS_AN_END else _DEATH + 0.25 + rank / 100
    return float(2 * len(ORDER)) + _FIRST_OF_CASCADE.get(signal.cause, 1.0) + rank / 100


def has_engine(evidence: Evidence) -> bool:
    """Return whether an engine is in view: a live one, or one that a log shows at work or in a start."""
    return not evidence.recorded or bool(evidence.works) or evidence.phase is not None


def speaks_alone(signal: Signal, evidence: Evidence) -> bool:
    """Return whether a signal names a cause where nothing is seen to have failed."""
    if signal.id in _OF_SOME_PROCESS and evidence.recorded and evidence.works:
        return _NAMED.search(signal.quote) is not None
    if signal.fatal or signal.proof is not Proof.SUGGESTS:
        return True
    if signal.id in OF_ANYBODY and evidence.recorded:
        return not has_engine(evidence)
    if signal.cause in _SPEAKS_ALONE or signal.id == BURST_ID:
        return True
    if signal.cause in _FELT_AT_ONCE and evidence.works:
        return False
    if signal.id == FAILING_ID:
        return _failed_before_a_stop(evidence)
    if not evidence.recorded:
        return False
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
        s.id in REPORTED_STOPS and failed[0] < s.at_s < failed[0] + NEAR_S for s in evidence.signals
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


def hung_since(hang: Signal) -> float:
    """Return since when what ends is a hang's consequence."""
    return hang.at_s + (0.0 if hang.proof is Proof.PROVES else SUSPICION_S)


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
    if signal.cause == "clean_shutdown":
        limit_s = STOP_LASTS_S
    elif signal.cause not in _LINGERING or (decided and signal.cause in _STANDS_STILL):
        limit_s = NEAR_S
    elif signal.proof is Proof.PROVES or signal.cause in EXPLAINS_AN_END:
        limit_s = LINGER_S
    else:
        limit_s = REPEATED_S
    return failed_at_s - signal.at_s > limit_s
