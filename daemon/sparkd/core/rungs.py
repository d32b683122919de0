"""The rungs: one setting each, down by what is asked, never beyond the operator's floors.

A rung returns the new settings with its explanation, or None where it goes no further. In which order, and
how far, is decided by `core.ladder` and `core.room`.

What vLLM makes of the settings (0.32, `v1/worker/gpu_worker.py`; runtime-facts §4):
- KV cache = share - weights - activation peak - estimate of the graphs. With an unchanged share smaller steps
  or fewer graphs make the cache larger and free nothing: to free memory they need a pinned cache.
- With `kv_cache_bytes` the share no longer sizes the cache, but it is still checked against the free memory
  at the start: both go down together.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from sparkd.core.need import RAISED_THRESHOLD, Need, gib
from sparkd.core.policy import Policy
from sparkd.core.spikes import (
    DEFAULT_BATCHED_TOKENS,
    DEFAULT_SEQS,
    certainty_bytes,
    step_bytes,
    sure_bytes,
    transient_bytes,
)
from sparkd.words import CudaGraph, Floors, LoadFormat, Phase, Settings

Step = tuple[Settings, str] | None
Rung = Callable[[Settings, Need, Floors], Step]

SHARE_DIGITS = 1000
"""The utilisation moves in steps of 0.001 (0.12 GiB of a Spark), always to the smaller side."""

STEP_FIXED = 0.15
"""Of the activation peak what does not depend on the tokens of a step: the logits of all requests (256 of
151936 words in 32 bits are 0.15 GiB, of a peak of about one)."""

STEP_PHASES = (Phase.COMPILING, Phase.PROFILING)
"""In these the activation peak was seen itself."""

TOKENS_STEP = 128
"""The longest context is a multiple of this: of any block size of vLLM's KV cache (8 to 128 tokens)."""


@dataclass(frozen=True, slots=True)
class Draft:
    """Settings in the making: what is still to be freed, and what was said."""

    settings: Settings
    left_bytes: int = 0
    said: tuple[str, ...] = ()

    def take(self, step: Step, freed: int = 0) -> Draft:
        """Return the draft after *step*, which freed so much; None changes nothing."""
        if step is None:
            return self
        return Draft(step[0], self.left_bytes - freed, (*self.said, step[1]))

    def try_(self, rung: Rung, need: Need, floors: Floors) -> Draft:
        """Return the draft after *rung*, with what that surely frees."""
        step = rung(self.settings, need, floors)
        if step is None:
            return self
        return self.take(step, sure_bytes(self.settings, step[0], need.known.graphs_share))

    @property
    def step(self) -> Step:
        """The settings with all that was said, None where nothing changed."""
        return (self.settings, " · ".join(self.said)) if self.said else None


def loosen_monitor(settings: Settings, policy: Policy) -> tuple[Settings, str]:
    """Ray's monitor off where every guard enforces, else raised; empty text where it is loose already."""
    before = settings.ray_memory_threshold
    if before is None:
        return settings, ""
    if policy.guard_enforcing:
        return replace(settings, ray_memory_threshold=None), "Ray's monitor off, the guard watches instead"
    if before >= RAISED_THRESHOLD:
        return settings, ""
    raised = replace(settings, ray_memory_threshold=RAISED_THRESHOLD)
    return raised, f"Ray's monitor {before:.2f} -> {RAISED_THRESHOLD:.2f} (no guard enforces, so it stays on)"


def lower_kv(settings: Settings, need: Need, floors: Floors) -> Step:
    """Take the amount from the KV cache: costs concurrency and context, one for one."""
    before = need.known.cache_bytes
    if before is None or before <= 0:
        return lower_utilization(settings, need, floors)
    target = _at_most_asked(max(before - need.free_bytes, floors.kv_cache_bytes), need)
    if target >= before:
        return None
    lowered = lower_utilization(settings, replace(need, free_bytes=before - target), floors)
    base = lowered[0] if lowered else settings
    return replace(base, kv_cache_bytes=target), f"KV cache {gib(before)} -> {gib(target)}"


def pin_kv(settings: Settings, need: Need) -> Settings:
    """Hold the KV cache at what it was, so that what other settings free stays free."""
    known = need.known.cache_bytes
    if settings.kv_cache_bytes is not None or known is None or known <= 0:
        return settings
    return replace(settings, kv_cache_bytes=_at_most_asked(known, need))


def pin_at(settings: Settings, kv_cache_bytes: int) -> Step:
    """Fix the KV cache where vLLM's share, by what is known, would leave none."""
    if kv_cache_bytes <= 0:
        return None
    text = f"KV cache fixed at {gib(kv_cache_bytes)}: vLLM's share would leave none"
    return replace(settings, kv_cache_bytes=kv_cache_bytes), text


def _at_most_asked(kv_cache_bytes: int, need: Need) -> int:
    """A cache that vLLM sized by its share may be larger than the one that the operator pinned."""
    ceiling = need.ceiling_kv_bytes
    return kv_cache_bytes if ceiling is None else min(kv_cache_bytes, ceiling)


def lower_utilization(settings: Settings, need: Need, floors: Floors) -> Step:
    """Take the amount from vLLM's share of the memory."""
    if need.total_bytes <= 0:
        return None
    share = settings.gpu_memory_utilization - need.free_bytes / need.total_bytes
    return lower_share_to(settings, share, floors)


def lower_share_to(settings: Settings, share: float, floors: Floors) -> Step:
    """Lower vLLM's share to *share*."""
    before = settings.gpu_memory_utilization
    after = max(_floor_share(share), floors.gpu_memory_utilization)
    if after >= before:
        return None
    return replace(settings, gpu_memory_utilization=after), f"utilisation {before:g} -> {after:g}"


def fit_share(settings: Settings, need: Need, floors: Floors) -> Step:
    """Lower vLLM's share to what will fit by projection."""
    if need.share_bytes is None or not need.total_bytes:
        return None
    return lower_share_to(settings, need.share_bytes / need.total_bytes, floors)


def fit_pin(settings: Settings, need: Need, floors: Floors) -> Step:
    """Lower a KV cache of fixed size to what fits by projection, with steps and graphs as they are now."""
    if settings.kv_cache_bytes is None or need.projected_bytes is None:
        return None
    before = need.known.settings
    steps = transient_bytes(settings) - transient_bytes(before) + step_beyond(settings, need)
    over = need.projected_bytes + steps - need.aim_bytes
    over += certainty_bytes(settings.kv_cache_bytes, need.rest_bytes)
    return lower_kv(settings, replace(need, free_bytes=over), floors) if over > 0 else None


def step_beyond(settings: Settings, need: Need) -> int:
    """Return what a step takes above the typical one, where its peak was what failed; else 0."""
    if need.phase not in STEP_PHASES or need.step_bytes is None:
        return 0
    before = need.known.settings.max_num_batched_tokens or DEFAULT_BATCHED_TOKENS
    tokens = (settings.max_num_batched_tokens or DEFAULT_BATCHED_TOKENS) / before
    left = int(need.step_bytes * (STEP_FIXED + (1 - STEP_FIXED) * tokens))
    return max(0, left - step_bytes(settings))


def unpin(settings: Settings, need: Need, _floors: Floors) -> Step:
    """Let vLLM size the cache within its share, where nobody knows yet what the weights leave.

    Not where the operator pins it: the share could leave more than that, which is no step down.
    """
    cache = settings.kv_cache_bytes
    if cache is None or need.ceiling_kv_bytes is not None or need.projected_bytes is not None:
        return None
    text = f"KV cache not of {gib(cache)} but what vLLM's share leaves (weights not known)"
    return replace(settings, kv_cache_bytes=None), text


def give_back_share(settings: Settings, need: Need, _floors: Floors) -> Step:
    """Give vLLM's share back some of what an earlier step took: no cache was left.

    Up to what the node has room for by projection, never above what was asked; half-way to that where nothing
    is projected.
    """
    before, asked = settings.gpu_memory_utilization, need.ceiling_share
    if need.total_bytes <= 0 or settings.kv_cache_bytes is not None:
        return None
    share = need.share_bytes
    most = (before + asked) / 2 if share is None else min(asked, share / need.total_bytes)
    after = _floor_share(min(before + need.free_bytes / need.total_bytes, most))
    if after <= before:
        return None
    return replace(settings, gpu_memory_utilization=after), f"utilisation {before:g} -> {after:g}, given back"


def _floor_share(value: float) -> float:
    return math.floor(value * SHARE_DIGITS + 1e-6) / SHARE_DIGITS


def lower_batched_tokens(settings: Settings, _need: Need, floors: Floors) -> Step:
    """Halve the tokens of one step: the activation peak of profiling; costs prefill speed.

    A step holds a token of each of its requests (vLLM refuses fewer, `config/scheduler.py`): they go down
    together, to the floor that is reached first.
    """
    before = settings.max_num_batched_tokens or DEFAULT_BATCHED_TOKENS
    requests = settings.max_num_seqs or DEFAULT_SEQS
    after = max(before // 2, floors.max_num_batched_tokens, min(requests, floors.max_num_seqs))
    if after >= before:
        return None
    lowered, said = replace(settings, max_num_batched_tokens=after), f"batched tokens {before} -> {after}"
    if requests <= after:
        return lowered, said
    return replace(lowered, max_num_seqs=after), f"{said}, requests of a step {requests} -> {after}"


def halve_above_default(settings: Settings, need: Need, floors: Floors) -> Step:
    """Halve the tokens of a step while they are above vLLM's own default: below it little is left to free."""
    if (settings.max_num_batched_tokens or 0) <= DEFAULT_BATCHED_TOKENS:
        return None
    return lower_batched_tokens(settings, need, floors)


def lower_graphs(settings: Settings, _need: Need, floors: Floors) -> Step:
    """Capture fewer CUDA graphs: costs latency per token."""
    order = list(CudaGraph)
    index = order.index(settings.cudagraph) + 1
    if index >= len(order) or (order[index] is CudaGraph.NONE and not floors.eager_allowed):
        return None
    return replace(settings, cudagraph=order[index]), f"CUDA graphs {settings.cudagraph} -> {order[index]}"


def fewer_graphs(settings: Settings, need: Need, floors: Floors) -> Step:
    """Capture fewer CUDA graphs, but some: eager mode is nobody's second choice."""
    step = lower_graphs(settings, need, floors)
    return None if step is None or step[0].cudagraph is CudaGraph.NONE else step


def to_piecewise(settings: Settings, need: Need, floors: Floors) -> Step:
    """Full graphs to piecewise ones: the mildest step of the graphs."""
    return lower_graphs(settings, need, floors) if settings.cudagraph is CudaGraph.FULL else None


def lazy_load(settings: Settings, _need: Need, _floors: Floors) -> Step:
    """Read weights without filling the page cache ahead: costs load time at most."""
    if settings.load_format is LoadFormat.LAZY:
        return None
    return replace(settings, load_format=LoadFormat.LAZY), "weights are read lazily"


def fit_context(settings: Settings, tokens: float, floors: Floors) -> Step:
    """Ask for no longer context than *tokens*: longer requests are refused."""
    fits = int(tokens) // TOKENS_STEP * TOKENS_STEP
    before = settings.max_model_len
    if fits < floors.max_model_len or (before is not None and fits >= before):
        return None
    return replace(
        settings, max_model_len=fits
    ), f"longest context {before or 'of the model'} -> {fits} tokens"
