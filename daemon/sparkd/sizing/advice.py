"""The settings that fit, found by taking the least harmful step for what fails first, until nothing does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import floor

from sparkd.sizing import declared
from sparkd.sizing.model import Request
from sparkd.sizing.verdict import Failure, Judged, Outcome, free_at_start, gib, judge
from sparkd.sizing.weights import Weights
from sparkd.words import CudaGraph, Phase, Settings

STEPS_MAX = 24
SHARES = 1000
"""vLLM's share is advised in thousandths."""
LEAST_REQUESTS = 64
"""Fewer requests in a step than these free next to nothing of the sampler's peak."""
_PAYS = "the KV cache pays one for one"
_DIVIDE = "choose engine.tensor_parallel so that the ranks divide the heads, with as many GPUs"
_ORDER = list(Phase)
_EARLY = (Phase.FORMING, Phase.INIT_DISTRIBUTED, Phase.LOADING_WEIGHTS)


@dataclass(frozen=True, slots=True)
class Change:
    """One setting that was changed, and why, in one sentence."""

    setting: str
    before: str
    after: str
    why: str


@dataclass(frozen=True, slots=True)
class Advice:
    """What was judged, and what fits instead.

    Attributes:
        asked: the plan as it was asked for.
        fitting: the settings that fit; None where none do, nothing is known, or the asked ones fit.
        changes: from the asked to the fitting settings.
        only_you: what no setting can mend, in one sentence; empty where the settings can.
    """

    asked: Judged
    fitting: Judged | None = None
    changes: tuple[Change, ...] = ()
    only_you: str = ""


_Draft = tuple[Settings, Change]


def plan_for(request: Request, weights: Weights | None = None) -> Advice:
    """Judge a plan before its launch; where it would fail, say which settings fit.

    Args:
        request: what is asked; its floors bound what is advised.
        weights: as for `sizes_of`.
    """
    asked = judge(request, weights)
    if not asked.failures or asked.failures[0].cause == "bad_configuration":
        return Advice(asked, only_you=_DIVIDE if asked.failures else "")
    now, changes = asked, list[Change]()
    for _ in range(STEPS_MAX):
        if not now.failures:
            fitting = now if now.outcome is Outcome.FITS else None
            only_you = f"only a start with smaller settings can tell: {now.unknown}" if now.unknown else ""
            return Advice(asked, fitting, _merged(changes, asked, now), only_you)
        step = _step(now, request)
        if step is None:
            break
        changes.append(step[0])
        now = step[1]
    return Advice(asked, only_you=_only_you(now.failures[0], now))


def _step(now: Judged, request: Request) -> tuple[Change, Judged] | None:
    """Return the first step that brings the plan nearer to one that fits, or frees for the next one."""
    failure = now.failures[0]
    for step in _steps(failure):
        draft = step(now, request, failure)
        if draft is None:
            continue
        after = judge(replace(request, settings=draft[0]), now.sizes.weights)
        if step in _PREPARING or _distance(after) < _distance(now) or _beside(after) < _beside(now):
            return draft[1], after
    return None


def _beside(judged: Judged) -> int:
    """What a step and the graphs take: where vLLM sizes the cache, less of it only makes the cache larger."""
    return (judged.sizes.step_bytes or 0) + judged.sizes.graphs_bytes


def _distance(judged: Judged) -> tuple[int, int]:
    """How far a plan is from one that fits: its first failure, the later and the smaller the nearer."""
    if not judged.failures:
        return (-len(_ORDER), 0)
    return (-_ORDER.index(judged.failures[0].phase), judged.failures[0].over_bytes)


_Step = Callable[[Judged, Request, Failure], _Draft | None]


def _steps(failure: Failure) -> tuple[_Step, ...]:
    if failure.cause == "startup_free_memory_too_low":
        return (_share_to_free,)
    if failure.cause == "kv_cache_too_small":
        return (_fewer_requests, _fewer_tokens, _fewer_graphs, _shorter)
    if failure.phase in _EARLY:
        return ()
    if failure.phase is Phase.PROFILING:
        return (_fewer_requests, _fewer_tokens)
    return (_less_cache, _fewer_tokens, _fewer_graphs, _shorter_for_less, _no_graphs)


def _changed(now: Judged, why: str, **values: object) -> _Draft:
    (name, value), *_ = values.items()
    before = getattr(now.settings, name)
    settings = replace(now.settings, **values)  # type: ignore[arg-type]
    return settings, Change(name, _said(before), _said(value), why)


def _said(value: object) -> str:
    if value is None:
        return "vLLM's own"
    if isinstance(value, int) and value >= 1 << 28:
        return gib(value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def _share_to_free(now: Judged, request: Request, failure: Failure) -> _Draft | None:
    """Lower vLLM's share below what will be free when it looks."""
    share = floor((free_at_start(request) - declared.NOISE_BYTES) / request.node.total_bytes * 100) / 100
    if share < request.floors.gpu_memory_utilization or share >= now.settings.gpu_memory_utilization:
        return None
    return _changed(
        now, f"{gib(failure.over_bytes)} less are free at the start", gpu_memory_utilization=share
    )


def _to_free(judged: Judged) -> int:
    """What the worst phase is over; what a cache lacks is not to be freed."""
    return max((f.over_bytes for f in judged.failures if f.cause != "kv_cache_too_small"), default=0)


def _less_cache(now: Judged, request: Request, failure: Failure) -> _Draft | None:
    """The cache pays one for one, as long as it still holds the longest request."""
    del failure  # the worst of all counts: one change shall do
    over = _to_free(now)
    cached, tokens = now.sizes.kv_cache_bytes or 0, now.sizes.max_model_len
    one = now.sizes.cache.request_bytes(tokens) if tokens and not now.sizes.layers.unknown else 0
    share = floor((now.sizes.requested_bytes - over) / request.node.total_bytes * SHARES) / SHARES
    pinned = now.settings.kv_cache_bytes is not None
    left = cached - over - (0 if pinned else request.node.total_bytes // SHARES)
    if not over or left < max(one, request.floors.kv_cache_bytes):
        return None
    if share < request.floors.gpu_memory_utilization and not pinned:
        return None
    if pinned:
        return _changed(now, _PAYS, kv_cache_bytes=left)
    return _changed(now, _PAYS, gpu_memory_utilization=share)


def _fewer_requests(now: Judged, request: Request, failure: Failure) -> _Draft | None:
    """The sampler's peak grows with the requests of a step."""
    del failure
    asked = now.settings.max_num_seqs or declared.DEFAULT_SEQS
    if asked <= LEAST_REQUESTS or asked // 2 < request.floors.max_num_seqs:
        return None
    why = "the sampler's memory grows with the requests of a step"
    return _changed(now, why, max_num_seqs=asked // 2)


def _fewer_tokens(now: Judged, request: Request, failure: Failure) -> _Draft | None:
    """A step's peak grows with its tokens."""
    asked = now.settings.max_num_batched_tokens or declared.DEFAULT_BATCHED_TOKENS
    least = 0 if failure.phase is Phase.PROFILING else declared.DEFAULT_BATCHED_TOKENS
    if asked // 2 < max(least, request.floors.max_num_batched_tokens):
        return None
    return _changed(now, "a step's memory grows with its tokens", max_num_batched_tokens=asked // 2)


def _fewer_graphs(now: Judged, request: Request, failure: Failure) -> _Draft | None:
    del request, failure
    if now.settings.cudagraph is not CudaGraph.FULL:
        return None
    return _changed(now, "one set of CUDA graphs instead of two", cudagraph=CudaGraph.PIECEWISE)


def _no_graphs(now: Judged, request: Request, failure: Failure) -> _Draft | None:
    del failure
    if now.settings.cudagraph is CudaGraph.NONE or not request.floors.eager_allowed:
        return None
    return _changed(now, "no CUDA graphs: the last resort, it decodes slower", cudagraph=CudaGraph.NONE)


def _shorter(now: Judged, request: Request, failure: Failure) -> _Draft | None:
    """Only as long a request as the cache can hold."""
    del failure
    most, cached = now.sizes.max_model_len, now.sizes.kv_cache_bytes
    if most is None or not cached:
        return None
    length = now.sizes.cache.longest(cached, most) // 256 * 256
    if length < request.floors.max_model_len or length >= most:
        return None
    why = f"the longest request that {gib(cached)} of KV cache hold"
    return _changed(now, why, max_model_len=length)


def _shorter_for_less(now: Judged, request: Request, failure: Failure) -> _Draft | None:
    """Make room for a smaller cache: only as long a request as it will hold."""
    del failure
    most, cached = now.sizes.max_model_len, now.sizes.kv_cache_bytes or 0
    over = _to_free(now)
    left = cached - over - request.node.total_bytes // SHARES
    if most is None or left <= 0 or now.sizes.layers.unknown:
        return None
    length = now.sizes.cache.longest(left, most) // 256 * 256
    if length < request.floors.max_model_len or length >= most:
        return None
    return _changed(
        now, f"the KV cache has to become {gib(left)}, which hold no longer one", max_model_len=length
    )


_PREPARING = (_shorter_for_less,)
"""Steps that free nothing by themselves, and allow the next one to."""


def _merged(changes: list[Change], asked: Judged, fitting: Judged) -> tuple[Change, ...]:
    """Several steps of one setting are one change: from the asked value to the last."""
    merged: dict[str, list[Change]] = {}
    for change in changes:
        merged.setdefault(change.setting, []).append(change)
    caches = [gib(judged.sizes.kv_cache_bytes or 0) for judged in (asked, fitting)]
    pays = f"{_PAYS}: {caches[0]} becomes {caches[1]}"
    return tuple(
        replace(
            steps[-1],
            before=steps[0].before,
            why="; ".join(pays if why == _PAYS else why for why in dict.fromkeys(step.why for step in steps)),
        )
        for steps in merged.values()
    )


def _only_you(failure: Failure, now: Judged) -> str:
    if failure.phase in _EARLY and failure.cause != "startup_free_memory_too_low":
        weights = gib(now.sizes.weights.bytes)
        return (
            f"no setting makes room while loading ({weights} of weights a rank): end other programs, use a "
            "smaller quantisation, or more nodes"
        )
    if failure.cause == "startup_free_memory_too_low":
        return "almost nothing is free: end other programs, or reboot a node whose memory did not come back"
    return f"no settings fit: {gib(failure.over_bytes)} are missing; a smaller quantisation, or more nodes"
