"""The project's words as types: the leaf that every other package may import.

One word an idea. `signals` and `engines` stand below `core` and still need to say *phase*, *unit* or
*settings*; these words therefore live under all three instead of inside one of them.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from enum import StrEnum


class Role(StrEnum):
    """What a node is in the cluster: rank 0 (coordinates, runs the API server) or any other rank."""

    HEAD = "head"
    WORKER = "worker"


class UnitName(StrEnum):
    """One supervised process tree of a member. Declared in the order in which they start."""

    RAY = "ray"
    SERVE = "serve"


class Backend(StrEnum):
    """vLLM's executor over the nodes: a Ray cluster, or vLLM's own multi-node mode."""

    RAY = "ray"
    MP = "mp"


class Phase(StrEnum):
    """Where a generation is. The legal moves stand in `core.phases`."""

    IDLE = "idle"
    WAITING = "waiting"
    FENCING = "fencing"
    FORMING = "forming"
    RESOLVING_CONFIG = "resolving_config"
    INIT_DISTRIBUTED = "init_distributed"
    LOADING_WEIGHTS = "loading_weights"
    COMPILING = "compiling"
    PROFILING = "profiling"
    ALLOCATING_KV_CACHE = "allocating_kv_cache"
    CAPTURING_GRAPHS = "capturing_graphs"
    STARTING_API = "starting_api"
    VERIFYING = "verifying"
    SERVING = "serving"
    FAILING = "failing"
    BACKING_OFF = "backing_off"
    STOPPING = "stopping"
    STOPPED = "stopped"
    PAUSED = "paused"
    ESCALATED = "escalated"


ENGINE: tuple[Phase, ...] = (
    Phase.RESOLVING_CONFIG,
    Phase.INIT_DISTRIBUTED,
    Phase.LOADING_WEIGHTS,
    Phase.COMPILING,
    Phase.PROFILING,
    Phase.ALLOCATING_KV_CACHE,
    Phase.CAPTURING_GRAPHS,
    Phase.STARTING_API,
)
"""The engine's own phases, in their usual order."""

LIVE: tuple[Phase, ...] = (Phase.FORMING, *ENGINE, Phase.VERIFYING, Phase.SERVING)
"""Phases in which a generation runs or is started, in order: an exit that nobody ordered is a failure."""


class CudaGraph(StrEnum):
    """How much CUDA graph capture the engine does, most first: each step down needs less memory."""

    FULL = "full"
    PIECEWISE = "piecewise"
    REDUCED = "reduced"
    NONE = "none"


class LoadFormat(StrEnum):
    """How weights are read: the engine's default, or without filling the page cache ahead."""

    AUTO = "auto"
    LAZY = "lazy"


@dataclass(frozen=True, slots=True, order=True)
class Stamp:
    """(epoch, generation), on every message, unit, probe and event. Orders by epoch first."""

    epoch: int
    generation: int


NO_STAMP = Stamp(0, 0)


@dataclass(frozen=True, slots=True)
class Settings:
    """The memory settings of a plan. `None` means: the engine's own default.

    Attributes:
        ray_memory_threshold: share of the node's memory above which Ray kills a worker; None turns the
            monitor off (allowed only while every node's guard enforces).
        gpu_memory_utilization: share of the device's memory that vLLM may use, 0 to 1.
        kv_cache_bytes: size of the KV cache of one rank; overrides the utilisation for that purpose.
        max_num_batched_tokens: most tokens of one engine step.
        max_num_seqs: most requests of one engine step.
        cudagraph: how much CUDA graph capture is done.
        max_model_len: longest context in tokens.
        load_format: how the weights are read.
    """

    ray_memory_threshold: float | None = 0.95
    gpu_memory_utilization: float = 0.90
    kv_cache_bytes: int | None = None
    max_num_batched_tokens: int | None = None
    max_num_seqs: int | None = None
    cudagraph: CudaGraph = CudaGraph.FULL
    max_model_len: int | None = None
    load_format: LoadFormat = LoadFormat.AUTO


def differing(one: Settings, other: Settings) -> tuple[str, ...]:
    """Return the names of the settings in which two differ, in their order."""
    return tuple(f.name for f in fields(Settings) if getattr(one, f.name) != getattr(other, f.name))


GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Floors:
    """How far the settings may be lowered: the operator's."""

    gpu_memory_utilization: float = 0.5
    kv_cache_bytes: int = GIB
    max_num_seqs: int = 8
    max_num_batched_tokens: int = 512
    max_model_len: int = 2048
    eager_allowed: bool = True


AMOUNTS = ("kv_cache_bytes", "max_num_batched_tokens", "max_num_seqs", "max_model_len")
"""The settings that are counted, each with a floor of its name; None = the engine's own."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """What the engine itself says of its memory, bytes of one rank; None = not said.

    Attributes:
        checkpoint_bytes: the files of the weights, of all ranks together.
        device_bytes: the memory that its share is of.
        start_free_bytes: what of it was free at its first snapshot.
        graphs_bytes: CUDA graphs as estimated before the KV cache was sized.
        graphs_counted: whether that estimate was left free beside the KV cache.
        captured_bytes: CUDA graphs as captured.
    """

    checkpoint_bytes: int | None = None
    device_bytes: int | None = None
    start_free_bytes: int | None = None
    graphs_bytes: int | None = None
    graphs_counted: bool | None = None
    captured_bytes: int | None = None

    def with_news(self, news: Sizes | None) -> Sizes:
        """Return what is known with what *news* says."""
        if news is None:
            return self
        said = {item.name: getattr(news, item.name) for item in fields(self)}
        return replace(self, **{name: value for name, value in said.items() if value is not None})


NO_SIZES = Sizes()


@dataclass(frozen=True, slots=True)
class EngineMemory:
    """What the engine of one generation has said of its memory so far, bytes of one rank; None = not said.

    Attributes:
        kv_cache_bytes: the KV cache as it was sized.
        weights_bytes: the weights.
        request_tokens, request_kv_bytes: the longest request, and the KV cache that it needs.
        sizes: what else.
    """

    kv_cache_bytes: int | None = None
    weights_bytes: int | None = None
    request_tokens: int | None = None
    request_kv_bytes: int | None = None
    sizes: Sizes = NO_SIZES


NOTHING_SAID = EngineMemory()
