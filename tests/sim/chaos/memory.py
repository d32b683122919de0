"""The engine's true need of memory, phase by phase, one rank; the core is never told.

The page cache of an eager load, the activations of profiling, the KV cache as the settings size it, the
spike of the graphs' capture, and what grows while it serves. What kills looks at one node's true use.
"""

from __future__ import annotations

from dataclasses import dataclass

from sim.chaos.plan import Load
from sparkd.words import GIB, CudaGraph, LoadFormat, Phase, Settings

TOKENS = 2048
SPIKE = {CudaGraph.FULL: 1.0, CudaGraph.PIECEWISE: 0.6, CudaGraph.REDUCED: 0.3, CudaGraph.NONE: 0.0}
RESERVE = int(0.4 * GIB)
"""Below so much the kernel kills, or the device's allocator refuses."""


@dataclass(frozen=True, slots=True)
class Shortage:
    """What killed: cause, what was in use, what was missing, what can be seen of it."""

    cause: str
    used: int
    limit: int
    missing: int


def activation(load: Load, settings: Settings) -> int:
    """Return the bytes of one step's activations."""
    return load.activation * (settings.max_num_batched_tokens or TOKENS) // TOKENS


def cache(load: Load, settings: Settings, total: int) -> int:
    """Return the bytes of the KV cache as vLLM sizes it; negative = there is no room."""
    if settings.kv_cache_bytes is not None:
        return settings.kv_cache_bytes
    share = int(total * settings.gpu_memory_utilization)
    return share - load.weights - activation(load, settings)


def one_request(load: Load, settings: Settings) -> int:
    """Return the bytes of KV cache that one request of full length needs."""
    return load.per_token * (settings.max_model_len or load.model_len)


def need(load: Load, settings: Settings, phase: Phase, total: int) -> int:
    """Return the bytes that one rank uses in *phase*."""
    if phase in (Phase.RESOLVING_CONFIG, Phase.INIT_DISTRIBUTED):
        return GIB
    if phase is Phase.LOADING_WEIGHTS:
        eager = settings.load_format is LoadFormat.AUTO
        return load.weights + (min(load.cache, load.weights) if eager else 0)
    base = load.weights + activation(load, settings)
    if phase in (Phase.COMPILING, Phase.PROFILING):
        return base
    held = base + max(0, cache(load, settings, total))
    if phase is Phase.CAPTURING_GRAPHS:
        return held + int(load.spike * SPIKE[settings.cudagraph])
    return held + int(load.spike * SPIKE[settings.cudagraph]) // 3


def shortage(
    used: int, total: int, settings: Settings, *, ray: bool, oom: str, guard: int = 0
) -> Shortage | None:
    """Return what kills at *used* bytes, None = it fits; *guard*: the floor of a guard that enforces."""
    threshold = settings.ray_memory_threshold
    if ray and threshold is not None and used > threshold * total:
        limit = int(threshold * total)
        return Shortage("ray_oom_kill", used, limit, used - limit)
    if guard and used > total - guard:
        return Shortage("memory_guard_kill", used, total - guard, used - total + guard)
    if used > total - RESERVE:
        limit = total - RESERVE
        return Shortage("cuda_oom" if oom == "cuda" else "kernel_oom", used, limit, used - limit)
    return None
