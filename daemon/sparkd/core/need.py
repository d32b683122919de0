"""How many bytes must be freed: what was read, what typically still comes, and what the limit will be.

A kill shows a lower bound: the process dies at a threshold and its peak is never seen. To the reading comes
what typically still comes (`core.spikes`) and a margin; what is then above the limit of the next start has
to be freed. After a second memory failure within one incident the typical amounts were too small and count
double, after a third threefold. Three ways to the peak, of which the largest counts:

- *read*: the reading at the kill and what still comes;
- *share*: what the node held before the snapshot, vLLM's share, what comes beyond it (until the graphs: later
  the reading knows better);
- *sum*: what was held, weights, KV cache, a step, graphs (while the cache was being allocated, or where
nothing was read).
"""

from __future__ import annotations

from dataclasses import dataclass

from sparkd.core import spikes
from sparkd.core.policy import Policy
from sparkd.signals.model import Diagnosis
from sparkd.words import GIB, Backend, Phase, Settings

RAISED_THRESHOLD = 0.98
"""Ray's monitor as high as it goes while nothing else guards the node: before the kernel has to act."""

STEP_GROWTH = 1.6
"""The activation peak was still rising when it was read: how much larger it is taken to be than what was
seen."""

STEP_ROOM = 0.5
"""What a step may take of the memory that the weights leave: the rest is for the KV cache."""

REFUSALS = ("startup_free_memory_too_low", "kv_cache_too_small")
"""vLLM ended itself before anything ran out."""

AFTER_CAPTURE = (Phase.STARTING_API, Phase.VERIFYING, Phase.SERVING)
"""From here on the reading knows better than a projection."""


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
        repeats: memory failures of this incident before this one.
        refusals: those of them in which vLLM found its KV cache too small.
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
    repeats: int = 0
    refusals: int = 0

    @property
    def cache_bytes(self) -> int | None:
        """The KV cache, pinned or sized."""
        return self.settings.kv_cache_bytes or self.kv_cache_bytes


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
        step_share: to what share of it the activation peak has to come down; None = unknown.
        ceiling_share: vLLM's share as the operator asks for it.
    """

    free_bytes: int
    total_bytes: int
    known: Known
    phase: Phase | None = None
    read_bytes: int | None = None
    rest_bytes: int = 0
    aim_bytes: int = 0
    share_bytes: int | None = None
    step_share: float | None = None
    ceiling_share: float = 0.0


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
    total = int(diagnosis.quantity("total_bytes") or known.total_bytes or 0)
    pool = int(known.total_bytes or total) if policy.unified_memory else total
    aim = limit_of(pool, after, policy) - int(pool * policy.margin_share)
    before = _held_before(diagnosis, known, pool, policy)
    sizes = _Sizes(pool, total, aim, before, reading_of(diagnosis, known, pool))
    rest = _rest(diagnosis.phase, known, policy)
    return Need(
        free_bytes=_to_free(diagnosis, known, sizes, rest, policy),
        total_bytes=total,
        known=known,
        phase=diagnosis.phase,
        read_bytes=sizes.read,
        rest_bytes=rest,
        aim_bytes=aim,
        share_bytes=_share(sizes, known, policy),
        step_share=_step_share(sizes, known),
        ceiling_share=policy.settings.gpu_memory_utilization,
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


def _rest(phase: Phase | None, known: Known, policy: Policy) -> int:
    typical = spikes.rest_bytes(phase, known.settings, unified=policy.unified_memory)
    return (typical + spikes.certainty_bytes(known.cache_bytes, typical)) * (1 + known.repeats)


def _to_free(diagnosis: Diagnosis, known: Known, sizes: _Sizes, rest: int, policy: Policy) -> int:
    """Return the largest amount that any of the evidence asks for; a refusal alone asks for none."""
    phase = diagnosis.phase
    found = [] if sizes.read is None else [sizes.read + rest - sizes.aim]
    certain = 0 if phase is Phase.CAPTURING_GRAPHS else spikes.certainty_bytes(known.cache_bytes, rest)
    share = _share(sizes, known, policy)
    late = phase in AFTER_CAPTURE and sizes.read is not None
    if share is not None and known.settings.kv_cache_bytes is None and not late:
        over = int(known.settings.gpu_memory_utilization * sizes.total) - share
        found.append(over + certain)
    peak = _sum(sizes, known, policy)
    if peak is not None and (sizes.read is None or phase is Phase.ALLOCATING_KV_CACHE):
        found.append(peak - sizes.aim + certain // 2)
    return max(0, max(found, default=0 if diagnosis.cause in REFUSALS else rest))


def _held_before(diagnosis: Diagnosis, known: Known, pool: int, policy: Policy) -> int | None:
    """Return what the memory holds when vLLM takes its first snapshot."""
    free = diagnosis.quantity("free_bytes")
    if diagnosis.cause == "startup_free_memory_too_low" and free is not None:
        return int(pool - free)
    if not policy.unified_memory:
        return spikes.DEVICE_USED_BYTES
    if known.loading_available_bytes is not None:
        return pool - known.loading_available_bytes
    return None if known.baseline_bytes is None else pool - known.baseline_bytes + spikes.HOST_BYTES


def _share(sizes: _Sizes, known: Known, policy: Policy) -> int | None:
    if sizes.before is None or not sizes.pool:
        return None
    beyond = spikes.BEYOND_BYTES if policy.unified_memory else spikes.BEYOND_DEVICE_BYTES
    return max(0, sizes.aim - sizes.before - beyond * (1 + known.repeats))


def _sum(sizes: _Sizes, known: Known, policy: Policy) -> int | None:
    if known.weights_bytes is None or known.cache_bytes is None or sizes.before is None:
        return None
    beside = spikes.BESIDE_WEIGHTS_BYTES + (spikes.LATE_BYTES if policy.unified_memory else 0)
    typical = beside * (1 + known.repeats) + spikes.transient_bytes(known.settings)
    return sizes.before + known.weights_bytes + known.cache_bytes + typical


def _step_share(sizes: _Sizes, known: Known) -> float | None:
    if sizes.read is None or known.weights_bytes is None or sizes.before is None:
        return None
    held = sizes.before + known.weights_bytes + GIB
    peak = max(sizes.read - held, GIB // 2) * STEP_GROWTH * (1 + known.repeats)
    return max(0.0, STEP_ROOM * (sizes.aim - held) / peak)
