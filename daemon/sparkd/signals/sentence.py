"""The one sentence that a person would write of a diagnosis."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from types import MappingProxyType

from sparkd.signals.causes import UNKNOWN, cause_info
from sparkd.signals.model import Proof, Signal
from sparkd.signals.quantities import threshold_share_of
from sparkd.words import GIB, Phase

_DURING: Mapping[Phase, str] = MappingProxyType(
    {
        Phase.FORMING: "while the cluster was forming",
        Phase.RESOLVING_CONFIG: "while the configuration was read",
        Phase.INIT_DISTRIBUTED: "while the ranks were connecting",
        Phase.LOADING_WEIGHTS: "while loading weights",
        Phase.COMPILING: "during compilation",
        Phase.PROFILING: "during memory profiling",
        Phase.ALLOCATING_KV_CACHE: "while allocating the KV cache",
        Phase.CAPTURING_GRAPHS: "during graph capture",
        Phase.STARTING_API: "while the API was starting",
        Phase.VERIFYING: "while the start was verified",
        Phase.SERVING: "while serving",
    }
)
# Causes in whose sentence the size of an already allocated KV cache helps.
_OF_MEMORY = frozenset(
    {
        "ray_oom_kill",
        "kernel_oom",
        "cgroup_oom",
        "cuda_oom",
        "uma_host_exhaustion",
        "host_memory_pressure",
        "shm_too_small",
    }
)
# Causes whose sentence needs the program's own words: which option, which file, which port.
_IN_ITS_WORDS = frozenset(
    {
        "bad_cli_argument",
        "weights_missing_or_corrupt",
        "model_unsupported",
        "missing_python_dependency",
        "broken_install",
        "compile_toolchain_missing",
        "cuda_arch_unsupported",
        "wrong_interface",
        "nccl_socket_connect",
        "gloo_connect_failure",
        "ib_roce_error",
        "gpu_xid",
        "port_in_use",
        "disk_full",
        "hf_auth",
        "driver_library_mismatch",
        "os_resource_limit",
        "permission_denied",
        "hf_network",
        "tokenizer_or_template_error",
        "host_overheated",
        "memory_guard_kill",
        "engine_internal_error",
        "unknown",
    }
)
_IDS_IN_THEIR_WORDS = frozenset({"unit_start_timed_out"})
# Causes that are a state and not an event: when it was noticed adds nothing.
_STATES = frozenset(
    {
        "bad_cli_argument",
        "broken_install",
        "compile_toolchain_missing",
        "hf_auth",
        "hf_network",
        "kv_cache_too_small",
        "memory_profiling_error",
        "missing_python_dependency",
        "model_unsupported",
        "permission_denied",
        "port_in_use",
        "ray_auth_refused",
        "ray_insufficient_resources",
        "ray_version_mismatch",
        "startup_free_memory_too_low",
        "tokenizer_or_template_error",
        "weights_missing_or_corrupt",
        "wrong_interface",
    }
)
# What is said of another node than the one that says it, where its name stands before.
_OF_THE_NODE = MappingProxyType(
    {
        "peer_lost": "the node was lost",
        "ray_node_died": "the node's Ray process died or was lost",
    }
)
# Causes of which it is told how long they lasted.
_LASTS = frozenset({"c10d_connect_timeout", "engine_hang", "ray_gcs_unreachable"})
WORDS_CHARS = 160
_RANK_LAST = re.compile(r"\(rank \d+\)$")
# What stands before the words of a refused option says only that it was checked.
_CHECKED = re.compile(
    r"^(?:[\w.]+\.)?ValidationError: \d+ validation errors? for \w+ +(?:Value|Assertion) error, "
)
_Clause = Callable[[Signal], str]
# What nobody can say the reason of, and which is no end by itself.
_ENDS_NOTHING = frozenset(
    {"unexplained_error", "engine_broadcast_waits", "ray_worker_unregistered", "pod_unschedulable"}
)


def explain(root: Signal, phase: Phase | None, node: str | None, kv_cache_bytes: int | None) -> str:
    """Return the sentence: where, what, how long, when, how much; quantities before adjectives.

    When it happened belongs to what happened: what is not known of it (", and nothing says …") comes after.
    """
    what, mark, untold = _title(root, node).partition(", and ")
    words = [_with_rank(what, root)]
    if waited := _waited(root):
        words.append(waited)
    if phase is not None and phase in _DURING and root.cause not in _STATES:
        words.append(_DURING[phase])
    told = " ".join(words) + mark + untold
    clause = _CLAUSES.get(root.cause, _words)(root)
    text = f"{node}: " * bool(node) + _joined(told, clause)
    if kv_cache_bytes is not None and root.cause in _OF_MEMORY:
        text += f"; {kv_cache_bytes / GIB:.1f} GiB of KV cache was already allocated"
    return text


def _joined(told: str, clause: str) -> str:
    """Return what happened with its clause; of two brackets in a row one is made."""
    if clause.startswith("(") and _RANK_LAST.search(told):
        return f"{told[:-1]}, {clause[1:]}"
    return f"{told} {clause}".rstrip()


def explain_exit(node: str, unit: str, how: str, phase: Phase | None) -> str:
    """Return the sentence for an end that nothing explains."""
    during = f" {_DURING[phase]}" if phase is not None and phase in _DURING else ""
    return f"{node}: {unit} {how}{during}, and no evidence says why"


def _title(root: Signal, node: str | None) -> str:
    threshold = threshold_share_of(root)
    if root.cause == "host_memory_pressure" and threshold is not None:
        return f"the node's memory was over Ray's threshold of {100 * threshold:.2f} %"
    if root.cause != UNKNOWN:
        title = cause_info(root.cause).title
        return _OF_THE_NODE.get(root.cause, title) if node else title
    if root.proof is Proof.SUGGESTS:
        return "a step did not end, and nothing tells a node that hangs from one that is lost"
    if root.id == "observed_start_failed":
        return "a unit could not be started, and the error decides no cause"
    ended = root.id not in _ENDS_NOTHING
    return f"an error {'ended the engine' if ended else 'is in view'}, and no evidence says why"


def _with_rank(what: str, root: Signal) -> str:
    if root.rank is None:
        return what
    if root.cause == "ray_oom_kill":
        return f"{what.removesuffix(' a worker')} worker rank {root.rank}"
    return f"{what} (rank {root.rank})"


def _gib(root: Signal, name: str) -> str | None:
    value = root.quantity(name)
    return None if value is None else f"{value / GIB:.2f}"


def _size(value: float) -> str:
    """Return a size in GiB; in MiB where GiB would say next to nothing."""
    return f"{value / GIB:.2f} GiB" if abs(value) >= GIB / 10 or not value else f"{value / (1 << 20):.0f} MiB"


def _used_of_total(root: Signal) -> str:
    used, total = root.quantity("used_bytes"), root.quantity("total_bytes")
    if used is None or not total:
        return ""
    return f"at {used / GIB:.2f} of {total / GIB:.2f} GiB ({100 * used / total:.2f} %)"


def _killed_at(root: Signal) -> str:
    used, threshold = _used_of_total(root), threshold_share_of(root)
    return used if not used or threshold is None else f"{used}, over its threshold of {100 * threshold:.2f} %"


def _used(root: Signal) -> str:
    used = _used_of_total(root).removeprefix("at ")
    return f"({used.replace(' (', ' in use, ')}" if used else ""


def _requested(root: Signal) -> str:
    requested, free, total = map(root.quantity, ("requested_bytes", "free_bytes", "total_bytes"))
    if requested is None:
        return ""
    of = f" with {_size(free)} of {_size(total)} free" if free is not None and total else ""
    return f"when asked for {_size(requested)}{of}"


def _free_below_wanted(root: Signal) -> str:
    free, total, wanted = _gib(root, "free_bytes"), _gib(root, "total_bytes"), _gib(root, "wanted_bytes")
    return f"({free} of {total} GiB free, {wanted} GiB wanted)" if free and total and wanted else ""


def _left_of_total(root: Signal) -> str:
    left, total = root.quantity("available_bytes"), _gib(root, "total_bytes")
    return f"({_size(left)} of {total} GiB were left)" if left is not None and total else ""


def _kv_cache(root: Signal) -> str:
    needed, available = root.quantity("needed_bytes"), root.quantity("available_bytes")
    estimated, wanted = root.quantity("estimated_tokens"), root.quantity("wanted_tokens")
    if needed is None or available is None:
        if estimated is None or wanted is None:
            return ""
        return f"({wanted:.0f} tokens wanted, {estimated:.0f} fit)"
    if not needed:  # the engine rounds to a tenth of a GiB: both are less
        return "(both what is needed and what is available is below 0.05 GiB)"
    fits = f", which would hold {estimated:.0f} tokens" if estimated is not None else ""
    return f"({_size(needed)} needed, {_size(available)} available{fits})"


def _profiling(root: Signal) -> str:
    before, after = _gib(root, "initial_free_bytes"), _gib(root, "current_free_bytes")
    return f"({before} GiB free before, {after} GiB after)" if before and after else ""


def _victim(root: Signal) -> str:
    victim, pid = _gib(root, "victim_bytes"), root.quantity("victim_pid")
    if pid is None:
        return ""
    return f"(process {pid:.0f}" + (f", {victim} GiB of its own)" if victim else ")")


def _collective(root: Signal) -> str:
    sequence, timeout = root.quantity("sequence_count"), root.quantity("timeout_s")
    if sequence is None or timeout is None:
        return ""
    first = ", the first of all: the transport never worked" if sequence == 1 else ""
    return f"(number {sequence:.0f}, {timeout:.0f} s{first})"


def _waited(root: Signal) -> str:
    waited = root.quantity("waited_s")
    return "" if waited is None or root.cause not in _LASTS else f"for {waited:.0f} s"


def _waited_in_vain(root: Signal) -> str:
    waited = root.quantity("waited_s")
    return "" if waited is None else f"(it waited for them for {waited:.0f} s)"


def _words(root: Signal) -> str:
    """Return the program's own words, for what no number says better."""
    untold = root.cause not in _IN_ITS_WORDS and root.id not in _IDS_IN_THEIR_WORDS
    if root.id.startswith(("observed_", "exit_")) or untold:
        return ""
    quote = _CHECKED.sub("", root.quote)
    return f'("{quote if len(quote) <= WORDS_CHARS else quote[:WORDS_CHARS] + "…"}")'


def _port(root: Signal) -> str:
    port = root.quantity("port_number")
    return _words(root) if port is None else f"(port {port:.0f}) {_words(root)}".rstrip()


_CLAUSES: Mapping[str, _Clause] = MappingProxyType(
    {
        "ray_oom_kill": _killed_at,
        "host_memory_pressure": _used,
        "uma_host_exhaustion": _left_of_total,
        "cuda_oom": _requested,
        "kernel_oom": _victim,
        "cgroup_oom": _victim,
        "nccl_timeout": _collective,
        "port_in_use": _port,
        "startup_free_memory_too_low": _free_below_wanted,
        "kv_cache_too_small": _kv_cache,
        "memory_profiling_error": _profiling,
        "ray_insufficient_resources": _waited_in_vain,
    }
)
