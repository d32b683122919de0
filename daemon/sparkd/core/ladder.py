"""From the evidence of a memory failure to the next settings: which setting, and by how much.

The cause and phase pick the setting, the evidence picks the amount, the least harmful comes first, and one
relaunch should be enough. A rung returns the new settings with a sentence, or None at its floor; the next
rung is tried then. The order is that of the cost to users (design: settings and the ladder).

Sources: vLLM takes the KV cache from `total x utilisation - weights - peak`; with `kv_cache_bytes` the
utilisation no longer sizes the cache but is still checked at start-up against free memory, so both go down
together. Ray kills above `threshold x total`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from sparkd.core.policy import Floors, Policy
from sparkd.signals.model import Diagnosis
from sparkd.words import GIB, CudaGraph, LoadFormat, Phase, Settings

RAISED_THRESHOLD = 0.98
"""Ray's monitor as high as it goes while nothing else guards the node: before the kernel has to act."""

KV_TOKENS_STEP = 128
DEFAULT_BATCHED_TOKENS = 2048
"""vLLM 0.32's default for the API server where the device's memory size is unknown (engine/arg_utils.py)."""


@dataclass(frozen=True, slots=True)
class Need:
    """What the evidence says: how many bytes are to be freed on the node, of how many."""

    free_bytes: int
    total_bytes: int
    kv_cache_bytes: int | None
    phase: Phase | None


Rung = Callable[[Settings, Need, Floors], tuple[Settings, str] | None]


def gib(value: float) -> str:
    """Return bytes as a person reads them."""
    return f"{value / GIB:.1f} GiB" if value >= GIB else f"{value / (1 << 20):.0f} MiB"


def need_of(
    diagnosis: Diagnosis, kv_cache_bytes: int | None, total_bytes: int | None, policy: Policy
) -> Need:
    """Return what is to be freed: the measured overshoot and the margin (a kill shows a lower bound)."""
    total = int(diagnosis.quantity("total_bytes") or total_bytes or 0)
    overshoot = _overshoot(diagnosis, total)
    margin = int(total * policy.margin_share)
    return Need(overshoot + margin, total, kv_cache_bytes, diagnosis.phase)


def _overshoot(diagnosis: Diagnosis, total: int) -> int:
    used = diagnosis.quantity("used_bytes")
    threshold = diagnosis.quantity("threshold_bytes")
    requested, free = diagnosis.quantity("requested_bytes"), diagnosis.quantity("free_bytes")
    if used is not None and threshold is not None:
        return max(0, int(used - threshold))
    if used is not None and total:
        return max(0, int(used - 0.95 * total))
    if requested is not None and free is not None:
        return max(0, int(requested - free))
    return int(requested or 0)


def lower_kv(settings: Settings, need: Need, floors: Floors) -> tuple[Settings, str] | None:
    """Take the amount from the KV cache: costs concurrency and context, one for one."""
    known = settings.kv_cache_bytes or need.kv_cache_bytes
    if known is None:
        return lower_utilization(settings, need, floors)
    target = max(known - need.free_bytes, floors.kv_cache_bytes)
    if target >= known:
        return None
    text = f"KV cache {gib(known)} -> {gib(target)}"
    lowered = lower_utilization(settings, replace(need, free_bytes=known - target), floors)
    base = lowered[0] if lowered else settings
    return replace(base, kv_cache_bytes=target), text


def lower_utilization(settings: Settings, need: Need, floors: Floors) -> tuple[Settings, str] | None:
    """Take the amount from vLLM's share of the memory."""
    if need.total_bytes <= 0:
        return None
    before = settings.gpu_memory_utilization
    after = math.floor((before - need.free_bytes / need.total_bytes) * 100) / 100
    after = max(after, floors.gpu_memory_utilization)
    if after >= before:
        return None
    return replace(settings, gpu_memory_utilization=after), f"utilisation {before:.2f} -> {after:.2f}"


def lower_batched_tokens(settings: Settings, _need: Need, floors: Floors) -> tuple[Settings, str] | None:
    """Halve the tokens of one step: the activation peak of profiling; costs prefill speed."""
    before = settings.max_num_batched_tokens or DEFAULT_BATCHED_TOKENS
    after = max(before // 2, floors.max_num_batched_tokens)
    if after >= before:
        return None
    return replace(settings, max_num_batched_tokens=after), f"batched tokens {before} -> {after}"


def lower_graphs(settings: Settings, _need: Need, floors: Floors) -> tuple[Settings, str] | None:
    """Capture fewer CUDA graphs: costs latency per token."""
    order = list(CudaGraph)
    index = order.index(settings.cudagraph) + 1
    if index >= len(order) or (order[index] is CudaGraph.NONE and not floors.eager_allowed):
        return None
    return replace(settings, cudagraph=order[index]), f"CUDA graphs {settings.cudagraph} -> {order[index]}"


def lazy_load(settings: Settings, _need: Need, _floors: Floors) -> tuple[Settings, str] | None:
    """Read weights without filling the page cache ahead: costs load time at most."""
    if settings.load_format is LoadFormat.LAZY:
        return None
    return replace(settings, load_format=LoadFormat.LAZY), "weights are read lazily"


RUNGS: dict[Phase | None, tuple[Rung, ...]] = {
    Phase.LOADING_WEIGHTS: (lazy_load, lower_utilization),
    Phase.COMPILING: (lower_batched_tokens, lower_kv, lower_graphs),
    Phase.PROFILING: (lower_batched_tokens, lower_kv, lower_graphs),
    Phase.CAPTURING_GRAPHS: (lower_kv, lower_graphs),
}
ANY_PHASE: tuple[Rung, ...] = (lower_kv, lower_batched_tokens, lower_graphs)


def step_down(settings: Settings, need: Need, floors: Floors) -> tuple[Settings, str] | None:
    """Return the settings of the first rung that still goes down, None at the bottom of the ladder."""
    for rung in RUNGS.get(need.phase, ANY_PHASE):
        lowered = rung(settings, need, floors)
        if lowered is not None:
            return lowered
    return None


def after_ray_kill(settings: Settings, need: Need, policy: Policy) -> tuple[Settings, str] | None:
    """Ray's monitor off where guards enforce, else raised; and the KV cache lower by what was missing."""
    loosened, said = _loosen_monitor(settings, policy)
    lowered = step_down(loosened, need, policy.floors)
    if lowered is None:
        return (loosened, said) if said else None
    return lowered[0], " · ".join(filter(None, (said, lowered[1])))


def _loosen_monitor(settings: Settings, policy: Policy) -> tuple[Settings, str]:
    before = settings.ray_memory_threshold
    if before is None:
        return settings, ""
    if policy.guard_enforcing:
        return replace(settings, ray_memory_threshold=None), "Ray's monitor off, the guard watches instead"
    if before >= RAISED_THRESHOLD:
        return settings, ""
    raised = replace(settings, ray_memory_threshold=RAISED_THRESHOLD)
    return raised, f"Ray's monitor {before:.2f} -> {RAISED_THRESHOLD:.2f} (no guard enforces, so it stays on)"


def fit_free_memory(settings: Settings, diagnosis: Diagnosis, policy: Policy) -> tuple[Settings, str] | None:
    """Ask for no more than was free at start-up."""
    free, total = diagnosis.quantity("free_bytes"), diagnosis.quantity("total_bytes")
    if not free or not total:
        return None
    after = math.floor((free / total - policy.margin_share / 2) * 100) / 100
    if not policy.floors.gpu_memory_utilization <= after < settings.gpu_memory_utilization:
        return None
    text = f"utilisation {settings.gpu_memory_utilization:.2f} -> {after:.2f}: {gib(free)} were free"
    return replace(settings, gpu_memory_utilization=after), text


def fit_context(settings: Settings, diagnosis: Diagnosis, policy: Policy) -> tuple[Settings, str] | None:
    """Ask for no longer context than the KV cache holds, by the engine's own estimate."""
    fits = int(diagnosis.quantity("estimated_max_model_len") or 0) // KV_TOKENS_STEP * KV_TOKENS_STEP
    before = settings.max_model_len
    if fits < policy.floors.max_model_len or (before is not None and fits >= before):
        return None
    text = f"longest context {before or 'of the model'} -> {fits} tokens"
    return replace(settings, max_model_len=fits), text


def raise_kv_share(settings: Settings, need: Need, floors: Floors) -> tuple[Settings, str] | None:
    """Leave the KV cache more of the same share: smaller steps and fewer graphs need less beside it."""
    return lower_batched_tokens(settings, need, floors) or lower_graphs(settings, need, floors)
