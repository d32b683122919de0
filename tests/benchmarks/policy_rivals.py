"""Who plays against sparkd in `make bench-policy`: two habits of people, and one who knows the truth.

A policy gets a failed generation and returns the next settings, or None when it gives up.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from benchmarks.policy_world import GIB, Outcome, Run, Truth, noise_of, run
from sparkd.words import CudaGraph, LoadFormat, Settings

UTILISATION_STEP = 0.05
GRAPH_HARM = {CudaGraph.FULL: 0.0, CudaGraph.PIECEWISE: 0.08, CudaGraph.REDUCED: 0.15, CudaGraph.NONE: 0.35}
HALVING_HARM, CONTEXT_HARM, LAZY_HARM = 0.06, 0.6, 0.01
"""What the oracle counts a setting's harm as, where losing the whole KV cache is 1."""
HIGHEST_THRESHOLD = 0.98


class SameSettings:
    """What `Restart=on-failure` does."""

    def __init__(self, truth: Truth) -> None:
        self.truth = truth

    def next(self, settings: Settings, _outcome: Outcome) -> Settings | None:
        return settings


class FixedLadder:
    """Utilisation 0.05 less a try down to the floor, then eager mode."""

    def __init__(self, truth: Truth) -> None:
        self.floors = truth.floors

    def next(self, settings: Settings, _outcome: Outcome) -> Settings | None:
        lower = round(settings.gpu_memory_utilization - UTILISATION_STEP, 2)
        if lower >= self.floors.gpu_memory_utilization:
            return replace(settings, gpu_memory_utilization=lower)
        if settings.cudagraph is not CudaGraph.NONE and self.floors.eager_allowed:
            return replace(settings, cudagraph=CudaGraph.NONE)
        return None


@dataclass
class Oracle:
    """Knows the machine, the model and the noise of the next start: the least harmful sufficient settings."""

    truth: Truth

    def next(self, _settings: Settings, _outcome: Outcome) -> Settings | None:
        best = best_settings(self.truth)
        return best[0] if best else None


def best_settings(truth: Truth) -> tuple[Settings, float] | None:
    """Return the least harmful settings that serve at the second start, and their KV cache in GiB."""
    asked = truth.asked
    unchanged = run(truth, asked, 1)
    if unchanged.serves:
        return asked, unchanged.kv or 0.0
    full = max(_sized(truth, asked), 0.5)
    best: tuple[float, Settings, float] | None = None
    for candidate, harm in _candidates(truth):
        if best is not None and harm >= best[0]:
            continue
        kv = _most_kv(truth, candidate)
        if kv is None:
            continue
        total = harm + max(0.0, 1 - kv / full)
        if best is None or total < best[0]:
            best = (total, _with_kv(truth, candidate, kv), kv)
    return (best[1], best[2]) if best else None


def _candidates(truth: Truth) -> Iterator[tuple[Settings, float]]:
    """All that is not the KV cache, with its harm; the monitor is loosened as far as sparkd may."""
    asked = replace(truth.asked, ray_memory_threshold=_loosest(truth))
    for load in dict.fromkeys((asked.load_format, LoadFormat.LAZY)):
        for graphs in _graphs(truth):
            for halvings, batched in _batched(truth):
                for length, harm in _lengths(truth):
                    settings = replace(
                        asked,
                        load_format=load,
                        cudagraph=graphs,
                        max_num_batched_tokens=batched,
                        max_model_len=length,
                    )
                    others = GRAPH_HARM[graphs] - GRAPH_HARM[asked.cudagraph] + halvings * HALVING_HARM
                    yield settings, harm + others + (LAZY_HARM if load is not asked.load_format else 0.0)


def _loosest(truth: Truth) -> float | None:
    before = truth.asked.ray_memory_threshold
    if before is None or truth.guard:
        return None
    return max(before, HIGHEST_THRESHOLD)


def _graphs(truth: Truth) -> list[CudaGraph]:
    order = list(CudaGraph)
    below = order[order.index(truth.asked.cudagraph) :]
    return [
        g
        for g in below
        if g is truth.asked.cudagraph or g is not CudaGraph.NONE or truth.floors.eager_allowed
    ]


def _batched(truth: Truth) -> Iterator[tuple[int, int | None]]:
    yield 0, truth.asked.max_num_batched_tokens
    tokens, halvings = truth.batched(truth.asked) // 2, 1
    while tokens >= truth.floors.max_num_batched_tokens:
        yield halvings, tokens
        tokens, halvings = tokens // 2, halvings + 1


def _lengths(truth: Truth) -> Iterator[tuple[int | None, float]]:
    yield truth.asked.max_model_len, 0.0
    whole = truth.length(truth.asked)
    length = whole * 3 // 4
    while length >= truth.floors.max_model_len:
        yield length, CONTEXT_HARM * (1 - length / whole)
        length = length * 3 // 4


def _sized(truth: Truth, settings: Settings) -> float:
    return Run(truth, settings, noise_of(truth, 1), 1).sized_kv()


def _with_kv(truth: Truth, settings: Settings, kv: float) -> Settings:
    """The pin, and a share low enough for the check at the start."""
    return replace(
        settings,
        kv_cache_bytes=int(kv * GIB),
        gpu_memory_utilization=min(settings.gpu_memory_utilization, truth.floors.gpu_memory_utilization),
    )


def _most_kv(truth: Truth, settings: Settings) -> float | None:
    """Return the largest KV cache that serves, at most what the asked share gives; None where none does."""
    low = max(truth.needed_kv(settings), truth.floors.kv_cache_bytes / GIB) + 0.02
    high = _sized(truth, settings)
    if high < low or not run(truth, _with_kv(truth, settings, low), 1).serves:
        return None
    for _ in range(12):
        middle = (low + high) / 2
        if run(truth, _with_kv(truth, settings, middle), 1).serves:
            low = middle
        else:
            high = middle
    return low
