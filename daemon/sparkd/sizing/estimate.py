"""What each phase of a start holds, from the checkpoint, the settings and what is typical or was measured."""

from __future__ import annotations

from dataclasses import dataclass, replace

from sparkd.releases import Accounting
from sparkd.sizing import declared
from sparkd.sizing.accounting import accounting_of, requested_bytes
from sparkd.sizing.cache import Cache, cache_of
from sparkd.sizing.layers import Layers, layers_of
from sparkd.sizing.model import Learned, Part, Request, Source
from sparkd.sizing.platforms import platform_of, tries_a_step
from sparkd.sizing.weights import Weights, weights_of
from sparkd.words import GIB, Backend, LoadFormat, Phase

COUNTED, DECLARED = Source.COUNTED, Source.DECLARED
FULL_SHARE = 0.25
"""An idle system holds less of its memory than this."""


@dataclass(frozen=True, slots=True)
class Need:
    """What one phase holds at its highest.

    Attributes:
        phase: which.
        parts: what it is made of.
        page_cache_bytes: what reading the weights leaves in the page cache beside them: the kernel can take
            it back, where it is given the time.
    """

    phase: Phase
    parts: tuple[Part, ...]
    page_cache_bytes: int = 0

    @property
    def bytes(self) -> int:
        """All parts together; the page cache is not held."""
        return sum(part.bytes for part in self.parts)


@dataclass(frozen=True, slots=True)
class Sizes:
    """What was worked out before any phase.

    Attributes:
        weights: of the fullest rank.
        layers, cache: what is kept of requests, and how it is laid out.
        kv_cache_bytes: the cache of one rank, pinned or as vLLM will size it; None = unknown.
        requested_bytes: vLLM's share of the device.
        step_bytes: a step's activation peak; None = unknown.
        graphs_bytes: CUDA graphs.
        max_model_len: the longest request; None = unknown.
        accounting: how this vLLM accounts.
        warnings: what makes the estimate less sure.
    """

    weights: Weights
    layers: Layers
    cache: Cache
    kv_cache_bytes: int | None
    requested_bytes: int
    step_bytes: int | None
    graphs_bytes: int
    max_model_len: int | None
    accounting: Accounting
    warnings: tuple[str, ...] = ()


def sizes_of(request: Request, weights: Weights | None = None) -> Sizes:
    """Work out what does not depend on the phase.

    Args:
        request: what is asked.
        weights: those of this checkpoint and layout, where they were worked out before: settings do not
            change them, and a large model has a hundred thousand tensors.
    """
    checkpoint, settings, layout = request.checkpoint, request.settings, request.layout
    platform = platform_of(request)
    accounting, warning = accounting_of(layout.vllm_version, request.options)
    layers = layers_of(checkpoint, layout, request.options)
    tokens = settings.max_num_batched_tokens or declared.DEFAULT_BATCHED_TOKENS
    in_flight = tokens * max(accounting.batches, layout.pipeline_parallel)
    requests = settings.max_num_seqs or declared.DEFAULT_SEQS
    weights = weights or weights_of(checkpoint, layout, request.options)
    sizes = Sizes(
        weights=weights,
        layers=layers,
        cache=cache_of(layers, request.options.block_size, in_flight),
        kv_cache_bytes=settings.kv_cache_bytes,
        requested_bytes=requested_bytes(request.node.total_bytes, settings.gpu_memory_utilization),
        step_bytes=declared.step_bytes(
            checkpoint,
            tokens,
            requests,
            layout.tensor_parallel,
            floor=platform.step_floor_bytes,
            halves=platform.halves,
        ),
        graphs_bytes=platform.graphs_bytes[settings.cudagraph],
        max_model_len=settings.max_model_len or checkpoint.number("max_position_embeddings"),
        accounting=accounting,
        warnings=(*_warnings(request, warning), *_cache_warnings(request, weights)),
    )
    return (
        sizes
        if settings.kv_cache_bytes is not None
        else replace(sizes, kv_cache_bytes=_sized(sizes, request))
    )


def _warnings(request: Request, version: str) -> tuple[str, ...]:
    found = [version] if version else []
    if request.options.unknown:
        found.append(f"not worked out, and they change the memory: {', '.join(request.options.unknown)}")
    if request.node.available_bytes is None:
        held = declared.SYSTEM_BYTES if request.node.unified else declared.DEVICE_USED_BYTES
        found.append(f"what is free on the node was not given: {held / GIB:.1f} GiB are taken to be in use")
    elif before_bytes(request)[0] > request.node.total_bytes * FULL_SHARE:
        held = before_bytes(request)[0]
        found.append(
            f"{held / GIB:.1f} GiB are in use: if that is the engine, plan again while it is stopped"
        )
    return tuple(found)


def _cache_warnings(request: Request, weights: Weights) -> tuple[str, ...]:
    """Reclaimable is not free: Ray's monitor killed on GB10 while shards were read.

    Reported: MiaAI-Lab/GLM-5.3-Flash-NVFP4-Dual-DGX-Spark#2.
    """
    threshold, total = request.settings.ray_memory_threshold, request.node.total_bytes
    watched = request.layout.backend is Backend.RAY and threshold is not None
    passing = _page_cache(request)
    if not watched or before_bytes(request)[0] + weights.bytes + passing <= total * (threshold or 0):
        return ()
    told = (
        f"{passing / GIB:.1f} GiB pass through the page cache while loading: on GB10 Ray's monitor is "
        "reported to count them (it is turned off where the guard enforces)"
    )
    return (told,)


def _sized(sizes: Sizes, request: Request) -> int | None:
    """Return the cache as vLLM sizes it: its share less all that it finds in use and sets aside."""
    if sizes.step_bytes is None or not sizes.weights.exact:
        return None
    platform = platform_of(request)
    aside = sizes.graphs_bytes if sizes.accounting.estimates_graphs else 0
    step = sizes.step_bytes if platform.keeps_step else 0
    own = sizes.weights.bytes + platform.aside_bytes + step + aside
    learned = request.learned.kv_cache_bytes if request.learned else 0
    return max(0, sizes.requested_bytes - own + learned)


def before_bytes(request: Request) -> tuple[int, Source]:
    """Return what the pool holds before the launch."""
    node = request.node
    if node.available_bytes is not None:
        return max(0, node.total_bytes - node.available_bytes), Source.MEASURED
    return declared.SYSTEM_BYTES if node.unified else declared.DEVICE_USED_BYTES, DECLARED


def needs_of(request: Request, sizes: Sizes) -> tuple[Need, ...]:
    """Return what each phase holds, in their order; phases after one that is unknown are left out."""
    base, platform = _base(request), platform_of(request)
    weights = Part("weights", sizes.weights.bytes, COUNTED, _weights_why(sizes.weights))
    beside = Part("CUDA and NCCL", platform.beside_bytes, DECLARED, "context, communication, workspaces")
    started = (*base, beside) if platform.beside_bytes else base
    forming = tuple(part for part in base if part.name != "vLLM's processes")
    needs = [
        Need(Phase.FORMING, forming),
        Need(Phase.INIT_DISTRIBUTED, started),
        Need(Phase.LOADING_WEIGHTS, (*started, weights, *_reading(request, sizes)), _page_cache(request)),
    ]
    if sizes.step_bytes is not None:
        needs += _with_steps((*started, weights), request, sizes)
    return _corrected(needs, request, sizes)


def _with_steps(loaded: tuple[Part, ...], request: Request, sizes: Sizes) -> list[Need]:
    """From the first step on: where the engine keeps what a step took it stays, else it comes again."""
    step = Part("a step", sizes.step_bytes or 0, DECLARED, "activations of the widest moment, or the sampler")
    kept = (step,) if platform_of(request).keeps_step else ()
    tried = [Need(Phase.PROFILING, (*loaded, step))] if tries_a_step(request) else []
    return [*tried, *_after_sizing((*loaded, *kept), request, sizes, () if kept else (step,))]


def _base(request: Request) -> tuple[Part, ...]:
    held, source = before_bytes(request)
    parts = [Part("before the launch", held, source, "system and other programs")]
    platform = platform_of(request)
    if platform.ray_bytes and request.layout.backend is Backend.RAY:
        parts.append(Part("Ray's processes", platform.ray_bytes, DECLARED, "on the head; a worker has less"))
    if platform.engine_bytes:
        parts.append(
            Part("vLLM's processes", platform.engine_bytes, DECLARED, "on the head; a worker has less")
        )
    return tuple(parts)


def _weights_why(weights: Weights) -> str:
    if not weights.exact:
        return f"at most: {len(weights.unplaced)} tensors or layers are not known to be split"
    return f"{weights.split_bytes / GIB:.1f} GiB of it split over the ranks, the rest on every rank"


def _reading(request: Request, sizes: Sizes) -> tuple[Part, ...]:
    """What reading holds for a moment: whole files with `eager`, one layer while it is packed for the GPU."""
    parts = []
    if request.checkpoint.scheme and sizes.weights.layer_bytes:
        why = "quantised weights are packed anew for the GPU, layer by layer"
        parts.append(Part("one layer twice", sizes.weights.layer_bytes, COUNTED, why))
    eager = request.options.load_strategy == "eager" and request.settings.load_format is LoadFormat.AUTO
    if eager and request.node.unified and request.checkpoint.file_bytes:
        largest = max(request.checkpoint.file_bytes)
        parts.append(Part("one file", largest, COUNTED, "the strategy `eager` reads each file whole"))
    return tuple(parts)


def _page_cache(request: Request) -> int:
    """Every rank reads all files, whatever it keeps of them; nothing makes the kernel drop them meanwhile."""
    return sum(request.checkpoint.file_bytes) if request.node.unified else 0


def _after_sizing(
    held: tuple[Part, ...], request: Request, sizes: Sizes, served: tuple[Part, ...]
) -> list[Need]:
    if sizes.kv_cache_bytes is None:
        return []
    pinned = request.settings.kv_cache_bytes is not None
    why = "pinned" if pinned else f"what vLLM's share of {sizes.requested_bytes / GIB:.1f} GiB leaves"
    source = COUNTED if pinned else DECLARED
    cached = (*held, Part("KV cache", sizes.kv_cache_bytes, source, why))
    needs = [Need(Phase.ALLOCATING_KV_CACHE, cached)]
    if sizes.graphs_bytes:
        beyond = int(declared.GRAPHS_BEYOND * sizes.graphs_bytes)
        graphs = Part(
            "CUDA graphs", sizes.graphs_bytes + beyond, DECLARED, "with what comes above the estimate"
        )
        cached = (*cached, graphs)
        needs.append(Need(Phase.CAPTURING_GRAPHS, cached))
    return [*needs, Need(Phase.SERVING, (*cached, _late(request), *served))]


def _late(request: Request) -> Part:
    late = platform_of(request).late_bytes
    if request.node.unified or request.layout.cpu:
        return Part("growth", late, DECLARED, "of the host's processes while it starts to serve")
    return Part("warm-up", late, DECLARED, "of the sampler, before it serves")


def _corrected(needs: list[Need], request: Request, sizes: Sizes) -> tuple[Need, ...]:
    """Add what was measured beyond the estimate, as far as it holds for these settings."""
    if request.learned is None:
        return tuple(needs)
    learned = _for_these(request.learned, request, sizes)
    found = []
    for need in needs:
        amount = learned.of(need.phase)
        part = Part("as measured before", amount, Source.MEASURED, "this model's own peak on this node")
        found.append(replace(need, parts=(*need.parts, part)) if amount else need)
    return tuple(found)


def _for_these(learned: Learned, request: Request, sizes: Sizes) -> Learned:
    """Take what was learned apart: of a step and of the graphs it grows with them, the rest stays.

    What was measured more from one phase to the next belongs to what is new in it. A step that the engine
    gives back teaches nothing of the phases after it.
    """
    scales, passing = _scales(learned, request, sizes)
    before, grown, found = 0, 0, list[tuple[Phase, int]]()
    for phase, seen in learned.by_phase:
        amount = grown + round((seen - before) * scales.get(phase, 1.0))
        found.append((phase, amount))
        if phase in passing:
            found.append((Phase.ALLOCATING_KV_CACHE, grown))
        else:
            before, grown = seen, amount
    return replace(learned, by_phase=tuple(found))


def _scales(learned: Learned, request: Request, sizes: Sizes) -> tuple[dict[Phase, float], frozenset[Phase]]:
    """Return how much larger what is new in a phase is now than when it was measured; what does not stay."""
    seen, keeps = {phase for phase, _ in learned.by_phase}, platform_of(request).keeps_step
    scales = {}
    if learned.step_bytes and sizes.step_bytes is not None:
        where = Phase.PROFILING if keeps or Phase.PROFILING in seen else Phase.SERVING
        scales[where] = sizes.step_bytes / learned.step_bytes
    if learned.graphs_bytes and seen & {Phase.PROFILING, Phase.ALLOCATING_KV_CACHE}:
        scales[Phase.CAPTURING_GRAPHS] = sizes.graphs_bytes / learned.graphs_bytes
    return scales, frozenset() if keeps else frozenset({Phase.PROFILING})


@dataclass(frozen=True, slots=True)
class Observed:
    """What one launch of this model on this node showed: highest use by phase, and the cache, in bytes."""

    used_bytes: tuple[tuple[Phase, int], ...]
    kv_cache_bytes: int | None = None


def learn(request: Request, observed: Observed, weights: Weights | None = None) -> Learned:
    """Return the corrections that an observed launch teaches the next estimate.

    Args:
        request: what was asked at that launch, with what was free before it; its own corrections are not
            used, so that the same observation always teaches the same.
        observed: what it showed.
        weights: as for `sizes_of`.
    """
    plain = replace(request, learned=None)
    sizes = sizes_of(plain, weights)
    cached = observed.kv_cache_bytes
    pinned = request.settings.kv_cache_bytes is not None
    shift = 0 if pinned or cached is None or sizes.kv_cache_bytes is None else cached - sizes.kv_cache_bytes
    plain = replace(plain, learned=Learned(shift))
    estimated = {need.phase: need.bytes for need in needs_of(plain, sizes_of(plain, sizes.weights))}
    deltas = _deltas(estimated, dict(observed.used_bytes))
    return Learned(shift, deltas, sizes.step_bytes or 0, sizes.graphs_bytes)


def _deltas(estimated: dict[Phase, int], used: dict[Phase, int]) -> tuple[tuple[Phase, int], ...]:
    """Return measured less estimated; a phase too short to be seen held no more than the next that was.

    Phases that are not sized for themselves (compiling, the API's start) are a part of the next that is: what
    grew until the engine was verified is measured, though it has not served long yet.
    """
    order, found, before, since = list(Phase), list[tuple[Phase, int]](), 0, 0
    for phase, amount in estimated.items():
        until = order.index(phase) + 1
        seen = [used[part] for part in order[since:until] if part in used]
        since = until
        if seen:
            before = max(seen) - amount
            found.append((phase, before))
            continue
        later = next((used[after] for after in order[until:] if after in used), None)
        if later is not None and later - amount < before:
            found.append((phase, later - amount))
    return tuple(found)
