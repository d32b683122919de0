"""How many bytes must be freed: what was read, what typically still comes, and what the limit will be.

A kill shows a lower bound: the process dies at a threshold and its peak is never seen. What will be in use
when the engine serves is therefore projected: from what was held before vLLM's first snapshot, its share
(with a cache of fixed size: weights, cache, a step) and what comes beyond it (growth, and graphs above what
was left free for them). It is at least what was read and a little more; where nothing can be projected, the
reading and what typically still comes (`core.spikes`). To it comes what is added to be sure, and a margin;
what is then above the limit of the next start has to be freed. After settings of the ladder's own were too
much, the typical amounts count double, after a second time threefold.
"""

from __future__ import annotations

from dataclasses import dataclass

from sparkd.core import spikes
from sparkd.core.policy import Policy
from sparkd.signals.model import Diagnosis
from sparkd.words import GIB, NO_SIZES, Backend, Phase, Settings, Sizes

RAISED_THRESHOLD = 0.98
"""Ray's monitor as high as it goes while nothing else guards the node: before the kernel has to act."""

STEP_GROWTH = 1.6
"""The activation peak was still rising when it was read: how much larger it is taken to be than what was
seen (reasoned: a kill comes somewhere in the last half of the rise; `make bench-policy` judges it)."""

STEP_ROOM = 0.35
"""What a step may take of the memory that the weights leave: the rest is for the KV cache, whose need nobody
knows yet."""

REFUSALS = ("startup_free_memory_too_low", "kv_cache_too_small")
"""vLLM ended itself before anything ran out."""


@dataclass(frozen=True, slots=True)
class Known:
    """What the daemon knows beside the diagnosis; None = unknown, which is never zero.

    Attributes:
        settings: of the generation that failed.
        kv_cache_bytes: KV cache of one rank, where it was sized.
        request_kv_bytes, request_tokens: KV cache that one request of full length needs, and that length.
        weights_bytes: weights of one rank.
        total_bytes: the node's memory.
        baseline_bytes: what was available on the node before the launch.
        loading_available_bytes: the same when the weights began to load.
        lowest_available_bytes: the least during the generation.
        sizes: what else the engine said of its memory.
        repeats: how often settings of the ladder's own were too much: kills after the first failure.
        refusals: earlier failures of this incident in which vLLM found its KV cache too small.
    """

    settings: Settings
    kv_cache_bytes: int | None = None
    request_kv_bytes: int | None = None
    request_tokens: int | None = None
    weights_bytes: int | None = None
    total_bytes: int | None = None
    baseline_bytes: int | None = None
    loading_available_bytes: int | None = None
    lowest_available_bytes: int | None = None
    sizes: Sizes = NO_SIZES
    repeats: int = 0
    refusals: int = 0

    @property
    def cache_bytes(self) -> int | None:
        """The KV cache, pinned or sized."""
        return self.settings.kv_cache_bytes or self.kv_cache_bytes

    @property
    def graphs_share(self) -> float:
        """The CUDA graphs that the engine captured or foresaw, as a multiple of the typical ones."""
        said = self.sizes.captured_bytes if self.sizes.captured_bytes is not None else self.sizes.graphs_bytes
        typical = spikes.GRAPHS_BYTES[self.settings.cudagraph]
        return said / typical if said is not None and typical else 1.0


@dataclass(frozen=True, slots=True)
class Need:
    """What is to be freed, and how that was found.

    Attributes:
        free_bytes: to be freed; 0: the next start fits as it is.
        total_bytes: the memory that vLLM's share is of; 0 = unknown.
        known: what it was found from.
        phase: where it failed.
        read_bytes: what was in use at the failure; None = nothing says.
        rest_bytes: what is expected to come after it.
        aim_bytes: what should be used at most at the next start.
        share_bytes: what vLLM's share may be at most; None = unknown.
        projected_bytes: what will be in use when the engine serves, from what was held and what the engine
            said; None = unknown.
        weights_bytes: of one rank, as far as known.
        step_bytes: the activation peak that is expected; None = unknown.
        step_share: to what share of it the activation peak has to come down; None = unknown.
        ceiling_share: vLLM's share as the operator asks for it; ceiling_kv_bytes: his KV cache, None = any.
    """

    free_bytes: int
    total_bytes: int
    known: Known
    phase: Phase | None = None
    read_bytes: int | None = None
    rest_bytes: int = 0
    aim_bytes: int = 0
    share_bytes: int | None = None
    projected_bytes: int | None = None
    weights_bytes: int | None = None
    step_bytes: int | None = None
    step_share: float | None = None
    ceiling_share: float = 0.0
    ceiling_kv_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class _Sizes:
    """The memory that is used up, what vLLM's share is of, the aim, what was held before, the reading."""

    pool: int
    total: int
    aim: int
    before: int | None
    read: int | None


def gib(value: float) -> str:
    """Return bytes as a person reads them."""
    return f"{value / GIB:.1f} GiB" if abs(value) >= GIB else f"{value / (1 << 20):.0f} MiB"


def need_of(diagnosis: Diagnosis, known: Known, after: Settings, policy: Policy) -> Need:
    """Return what is to be freed.

    Args:
        diagnosis: what failed, with its quantities.
        known: what the daemon knows beside it.
        after: the settings so far decided (Ray's monitor loosened): they set the limit.
        policy: the margin, the guard, the kind of memory.
    """
    total = _total(diagnosis, known, policy)
    pool = int(known.total_bytes or total) if policy.unified_memory else total
    aim = limit_of(pool, after, policy) - int(pool * policy.margin_share)
    before = _held_before(diagnosis, known, pool, policy)
    sizes = _Sizes(pool, total, aim, before, reading_of(diagnosis, known, pool))
    rest = _rest(diagnosis.phase, known, policy)
    return Need(
        free_bytes=_to_free(diagnosis, known, sizes, rest, policy),
        projected_bytes=_projected(sizes, known, policy),
        total_bytes=total,
        known=known,
        phase=diagnosis.phase,
        read_bytes=sizes.read,
        rest_bytes=rest,
        aim_bytes=aim,
        share_bytes=_share(sizes, known, policy),
        weights_bytes=weights_of(known, policy),
        step_bytes=_step(sizes, known, policy),
        step_share=_step_share(sizes, known, policy),
        ceiling_share=policy.settings.gpu_memory_utilization,
        ceiling_kv_bytes=policy.settings.kv_cache_bytes,
    )


def limit_of(total: int, settings: Settings, policy: Policy) -> int:
    """Return how much of the memory may be used: up to Ray's threshold, the guard's floor, or neither's."""
    if not policy.unified_memory:
        return max(0, total - spikes.DEVICE_RESERVE_BYTES)
    limits = [int(total * RAISED_THRESHOLD)]
    if policy.backend is Backend.RAY and settings.ray_memory_threshold is not None:
        limits.append(int(total * settings.ray_memory_threshold))
    if policy.guard_enforcing:
        limits.append(total - policy.guard_floor_bytes)
    return max(0, min(limits))


def reading_of(diagnosis: Diagnosis, known: Known, total: int) -> int | None:
    """Return what was in use at the failure, the largest of what the evidence says; None = it does not."""
    used, trigger = diagnosis.quantity("used_bytes"), diagnosis.quantity("trigger_bytes")
    requested, free = diagnosis.quantity("requested_bytes"), diagnosis.quantity("free_bytes")
    found = [int(value) for value in (used, trigger) if value is not None]
    if requested is not None and free is not None and total:
        found.append(int(total - free + requested))
    if known.lowest_available_bytes is not None and known.total_bytes == total and not found:
        found.append(total - known.lowest_available_bytes)
    if diagnosis.cause == "kernel_oom" and total:
        found.append(total)
    return max(found, default=None)


def _total(diagnosis: Diagnosis, known: Known, policy: Policy) -> int:
    """Return the memory that vLLM's share is of; on a discrete GPU the node's is another. 0 = unknown."""
    said = diagnosis.quantity("total_bytes") or known.sizes.device_bytes
    if said or policy.unified_memory:
        return int(said or known.total_bytes or 0)
    free = known.sizes.start_free_bytes
    return 0 if free is None else free + spikes.DEVICE_USED_BYTES


def _rest(phase: Phase | None, known: Known, policy: Policy) -> int:
    return spikes.rest_bytes(phase, known.settings, unified=policy.unified_memory) * (1 + known.repeats)


def _to_free(diagnosis: Diagnosis, known: Known, sizes: _Sizes, rest: int, policy: Policy) -> int:
    """Return what the next start would be above its limit; a refusal alone asks for nothing."""
    projected = _projected(sizes, known, policy)
    found = [] if projected is None else [projected]
    if sizes.read is not None:
        least = spikes.LEAST_REST_BYTES if policy.unified_memory else spikes.LEAST_REST_DEVICE_BYTES
        found.append(sizes.read + (rest if projected is None else min(rest, least)))
    if not found:
        return 0 if diagnosis.cause in REFUSALS else rest
    over = max(found) - sizes.aim
    if diagnosis.cause in REFUSALS:
        return max(0, over)
    # Of the cache that will be left: one that was asked for and never fitted says nothing.
    left = max(0, (known.cache_bytes or 0) - max(0, over))
    sure = spikes.certainty_bytes(left, rest) * (1 + known.repeats)
    return max(0, over + max(0, sure - _spare(sizes, known, policy)))


def _spare(sizes: _Sizes, known: Known, policy: Policy) -> int:
    """Return what is left above the limit before anything ends a process: nothing where a monitor acts."""
    watched = policy.backend is Backend.RAY and known.settings.ray_memory_threshold is not None
    if not policy.unified_memory or policy.guard_enforcing or watched:
        return 0
    return int((1 - RAISED_THRESHOLD) * sizes.pool)


def _held_before(diagnosis: Diagnosis, known: Known, pool: int, policy: Policy) -> int | None:
    """Return what the memory holds when vLLM takes its first snapshot."""
    free = diagnosis.quantity("free_bytes")
    if diagnosis.cause == "startup_free_memory_too_low" and free is not None:
        return int(pool - free)
    start = known.sizes.start_free_bytes
    if start is not None and pool > start:
        return pool - start
    if not policy.unified_memory:
        return spikes.DEVICE_USED_BYTES
    if known.loading_available_bytes is not None:
        return pool - known.loading_available_bytes
    return None if known.baseline_bytes is None else pool - known.baseline_bytes + spikes.HOST_BYTES


def _share(sizes: _Sizes, known: Known, policy: Policy) -> int | None:
    if sizes.before is None or not sizes.pool:
        return None
    return max(0, sizes.aim - sizes.before - _beyond(known, policy))


def _beyond(known: Known, policy: Policy) -> int:
    """Return what comes beyond vLLM's share: growth, and graphs for which nothing was left free."""
    late = spikes.LATE_BYTES if policy.unified_memory else spikes.LATE_DEVICE_BYTES
    return late * (1 + known.repeats) + _graphs_beyond(known)


def _counted(known: Known) -> int:
    """Return what was left free for the graphs beside the KV cache."""
    return 0 if known.sizes.graphs_counted is False else known.sizes.graphs_bytes or 0


def _graphs_beyond(known: Known) -> int:
    said = known.sizes
    if said.captured_bytes is not None:
        return said.captured_bytes - _counted(known)
    if said.graphs_bytes is None:
        return int(spikes.GRAPHS_BEYOND * spikes.GRAPHS_BYTES[known.settings.cudagraph])
    return int((1 + spikes.GRAPHS_BEYOND) * said.graphs_bytes) - _counted(known)


def _projected(sizes: _Sizes, known: Known, policy: Policy) -> int | None:
    """Return what will be in use when the engine serves: from its share, or the sum with a fixed cache."""
    if sizes.before is None or not sizes.total:
        return None
    if known.settings.kv_cache_bytes is None:
        share = int(known.settings.gpu_memory_utilization * sizes.total)
        return sizes.before + share + _beyond(known, policy)
    weights = weights_of(known, policy)
    if weights is None:
        return None
    graphs = known.sizes.captured_bytes
    step = (
        spikes.transient_bytes(known.settings)
        if graphs is None
        else graphs + spikes.step_bytes(known.settings)
    )
    late = spikes.LATE_BYTES if policy.unified_memory else spikes.LATE_DEVICE_BYTES
    beside = (spikes.BESIDE_WEIGHTS_BYTES + late) * (1 + known.repeats)
    return sizes.before + weights + known.settings.kv_cache_bytes + beside + step


def weights_of(known: Known, policy: Policy) -> int | None:
    """Return the weights of one rank: as loaded, else an even part of their files."""
    if known.weights_bytes is not None or known.sizes.checkpoint_bytes is None:
        return known.weights_bytes
    return known.sizes.checkpoint_bytes // (len(policy.nodes) * policy.gpus)


def _step_held(sizes: _Sizes, known: Known, policy: Policy) -> int | None:
    weights = weights_of(known, policy)
    if sizes.read is None or weights is None or sizes.before is None:
        return None
    return sizes.before + weights + GIB


def _step(sizes: _Sizes, known: Known, policy: Policy) -> int | None:
    held = _step_held(sizes, known, policy)
    if held is None or sizes.read is None:
        return None
    return int(max(sizes.read - held, GIB // 2) * STEP_GROWTH * (1 + known.repeats))


def _step_share(sizes: _Sizes, known: Known, policy: Policy) -> float | None:
    held, peak = _step_held(sizes, known, policy), _step(sizes, known, policy)
    if held is None or peak is None:
        return None
    return max(0.0, STEP_ROOM * (sizes.aim - held) / peak)
