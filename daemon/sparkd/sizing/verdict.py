"""Whether a plan fits a node: which phase would fail and by how much, and the settings that fit.

`plan_for` is the one door: pure, so that the core can call it before a launch as `sparkctl plan` does.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from sparkd.sizing import declared
from sparkd.sizing.estimate import Need, Sizes, before_bytes, needs_of, sizes_of
from sparkd.sizing.model import Node, Request
from sparkd.sizing.platforms import platform_of
from sparkd.sizing.weights import Weights
from sparkd.words import GIB, Backend, Phase, Settings

VLLMS_OWN = frozenset({"startup_free_memory_too_low", "kv_cache_too_small"})
"""Causes by which vLLM ends itself, however much of the node is left."""
_BEFORE_WEIGHTS = (Phase.FORMING, Phase.INIT_DISTRIBUTED)


class Outcome(StrEnum):
    """What the numbers say of a plan."""

    FITS = "fits"
    TOO_LARGE = "too_large"
    REFUSED = "refused"  # vLLM itself would end with a message
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Failure:
    """The first phase that would fail.

    Attributes:
        phase: which.
        cause: as a diagnosis would name it.
        over_bytes: what is missing.
        text: one sentence.
    """

    phase: Phase
    cause: str
    over_bytes: int
    text: str


@dataclass(frozen=True, slots=True)
class Limit:
    """How much of the pool may be used, and what sets that."""

    bytes: int
    why: str


@dataclass(frozen=True, slots=True)
class Judged:
    """One set of settings against one node.

    Attributes:
        outcome: what the numbers say.
        settings: those that were judged.
        sizes, needs, limit: what it was judged by.
        failures: what would fail, in the order of the phases; empty where it fits or is unknown.
        unknown: why nothing can be said, empty otherwise.
    """

    outcome: Outcome
    settings: Settings
    sizes: Sizes
    needs: tuple[Need, ...]
    limit: Limit
    failures: tuple[Failure, ...] = ()
    unknown: str = ""


def gib(value: float) -> str:
    """Return bytes as a person reads them."""
    if 0 < abs(value) < 1 << 20:
        return "less than 1 MiB"
    return f"{value / GIB:.1f} GiB" if abs(value) >= GIB else f"{value / (1 << 20):.0f} MiB"


def judge(request: Request, weights: Weights | None = None) -> Judged:
    """Return what the numbers say of these settings on this node; *weights* as for `sizes_of`."""
    sizes = sizes_of(request, weights)
    needs = needs_of(request, sizes)
    limit = limit_of(request)
    judged = Judged(Outcome.FITS, request.settings, sizes, needs, limit)
    if sizes.weights.refusal:
        text = f"vLLM would refuse: {sizes.weights.refusal}"
        failure = Failure(Phase.RESOLVING_CONFIG, "bad_configuration", 0, text)
        return replace(judged, outcome=Outcome.REFUSED, failures=(failure,))
    failures = tuple(_failures(request, judged))
    if failures:
        refused = failures[0].cause in VLLMS_OWN
        outcome = Outcome.REFUSED if refused else Outcome.TOO_LARGE
        return replace(judged, outcome=outcome, failures=failures)
    unknown = _unknown(sizes)
    return replace(judged, outcome=Outcome.UNKNOWN, unknown=unknown) if unknown else judged


def limit_of(request: Request) -> Limit:
    """Return how much of the pool may be used: up to Ray's threshold, the guard's floor, or neither's."""
    node, threshold = request.node, request.settings.ray_memory_threshold
    if not node.unified:
        return Limit(max(0, node.total_bytes - declared.DEVICE_RESERVE_BYTES), "the driver's reserve")
    limits = [Limit(int(node.total_bytes * declared.RAY_CEILING), "2 % for the kernel")]
    if request.layout.backend is Backend.RAY and threshold is not None:
        limits.append(Limit(int(node.total_bytes * threshold), f"Ray's memory monitor at {threshold:.0%}"))
    if node.guard_floor_bytes is not None:
        limits.append(Limit(node.total_bytes - node.guard_floor_bytes, "the memory guard's floor"))
    return min(limits, key=lambda limit: limit.bytes)


def _unknown(sizes: Sizes) -> str:
    if not sizes.weights.exact:
        first = sizes.weights.unplaced[0]
        bounds = dict.fromkeys((gib(sizes.weights.least_bytes), gib(sizes.weights.bytes)))
        return f"weights of {' to '.join(bounds)} a rank: how vLLM splits {first} over the ranks is not known"
    if sizes.layers.unknown:
        return f"the KV cache of a request: {sizes.layers.unknown}"
    if sizes.step_bytes is None:
        return "a step's activations: config.json says no hidden_size and vocab_size"
    return ""


def _failures(request: Request, judged: Judged) -> list[Failure]:
    """Where weights are only bounded, what already the lower bound breaks is a failure all the same."""
    slack = judged.sizes.weights.bytes - judged.sizes.weights.least_bytes
    found = []
    for need in judged.needs:
        over = need.bytes - judged.limit.bytes - (slack if need.phase not in _BEFORE_WEIGHTS else 0)
        if over > 0:
            found.append(_over(need, over, judged.limit, request.node))
    order = list(Phase)
    found += [failure for failure in (_free(request, judged), _cache(judged)) if failure is not None]
    return sorted(found, key=lambda failure: order.index(failure.phase))


def _over(need: Need, over: int, limit: Limit, node: Node) -> Failure:
    names = sorted(need.parts, key=lambda part: -part.bytes)[:3]
    parts = ", ".join(f"{part.name} {gib(part.bytes)}" for part in names)
    cause = "ray_oom_kill" if limit.why.startswith("Ray") else "host_memory_pressure"
    cause = cause if node.unified else "cuda_oom"
    phase = need.phase.value.replace("_", " ")
    text = f"{phase} needs {gib(need.bytes)}, {gib(over)} more than may be used ({limit.why}): {parts}"
    return Failure(need.phase, cause, over, text)


def _free(request: Request, judged: Judged) -> Failure | None:
    """The share is compared with what is free at the start, on a GPU also where the cache is pinned."""
    pinned = request.settings.kv_cache_bytes is not None
    ignored = pinned and not platform_of(request).shares_pinned
    if ignored or not judged.sizes.accounting.refuses_more_than_free:
        return None
    free = free_at_start(request)
    over = judged.sizes.requested_bytes - free
    if over <= 0:
        return None
    share, asked = request.settings.gpu_memory_utilization, gib(judged.sizes.requested_bytes)
    text = f"vLLM would refuse: {gib(free)} will be free when it starts, its share of {share:g} is {asked}"
    return Failure(Phase.INIT_DISTRIBUTED, "startup_free_memory_too_low", over, text)


def free_at_start(request: Request) -> int:
    """Return what vLLM finds free at its first look: its own and Ray's processes are there by then."""
    held = before_bytes(request)[0] + platform_of(request).host_bytes(request.layout.backend)
    return max(0, request.node.total_bytes - held)


def _cache(judged: Judged) -> Failure | None:
    sizes, tokens = judged.sizes, judged.sizes.max_model_len
    if sizes.kv_cache_bytes is None:
        return None
    one = 0 if tokens is None or sizes.layers.unknown else sizes.cache.request_bytes(tokens)
    if sizes.kv_cache_bytes == 0:
        text = "vLLM would refuse: its share leaves no memory for the KV cache"
        return Failure(Phase.ALLOCATING_KV_CACHE, "kv_cache_too_small", max(one, 1), text)
    if one <= sizes.kv_cache_bytes:
        return None
    text = (
        f"vLLM would refuse: one request of {tokens} tokens needs {gib(one)} of KV cache, "
        f"{gib(sizes.kv_cache_bytes)} are left"
    )
    return Failure(Phase.ALLOCATING_KV_CACHE, "kv_cache_too_small", one - sizes.kv_cache_bytes, text)
