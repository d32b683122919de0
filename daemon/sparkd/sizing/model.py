"""What sizing speaks in: a checkpoint as its headers tell it, and the memory that was found.

Every amount says where it comes from; what nothing tells is None, with the reason beside it, and never zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from math import prod
from typing import Any, NamedTuple

from sparkd.words import Backend, Floors, Phase, Settings

ITEM_BYTES: Mapping[str, float] = {
    "F64": 8, "I64": 8, "U64": 8, "F32": 4, "I32": 4, "U32": 4, "F16": 2, "BF16": 2, "I16": 2, "U16": 2,
    "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1, "I8": 1, "U8": 1, "BOOL": 1, "F4": 0.5,
}  # fmt: skip
"""Bytes of one item by the names that safetensors uses."""


class Tensor(NamedTuple):
    """One tensor of a checkpoint: its name, its type as safetensors names it, its extents."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def bytes(self) -> int:
        """Its size. Raises KeyError for a type that is not in `ITEM_BYTES`."""
        return int(prod(self.shape) * ITEM_BYTES[self.dtype])


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A model directory as its configuration and the headers of its weight files describe it.

    Attributes:
        config: config.json.
        tensors: all tensors, of all files.
        file_bytes: size of each weight file.
        quantization: the separate file of some quantisation tools (hf_quant_config.json), else empty.
    """

    config: Mapping[str, Any]
    tensors: tuple[Tensor, ...]
    file_bytes: tuple[int, ...] = ()
    quantization: Mapping[str, Any] = field(default_factory=dict)

    @property
    def text(self) -> Mapping[str, Any]:
        """The language model's part of the configuration: multimodal models keep it apart."""
        inner = self.config.get("text_config")
        return inner if isinstance(inner, dict) else self.config

    @property
    def architecture(self) -> str:
        """The class that vLLM will look up, empty where the configuration names none."""
        named = self.config.get("architectures")
        return str(named[0]) if isinstance(named, list) and named else ""

    @property
    def scheme(self) -> Mapping[str, Any]:
        """How the weights are quantised; empty where nothing says that they are."""
        for holder in (self.config, self.text):
            inside = holder.get("quantization_config")
            if isinstance(inside, dict):
                return inside
        return self.quantization

    @property
    def tensor_bytes(self) -> int:
        """All weights together, as they are on the disk."""
        return sum(tensor.bytes for tensor in self.tensors)

    def number(self, *names: str) -> int | None:
        """Return the first of these numbers that the language model's configuration has."""
        for name in names:
            value = self.text.get(name)
            if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
                return value
        return None


class Source(StrEnum):
    """Where an amount comes from."""

    COUNTED = "counted"  # from the headers and the configuration, exactly
    DECLARED = "declared"  # typical, with a published source; see `sizing.declared`
    MEASURED = "measured"  # seen on this node with this model


@dataclass(frozen=True, slots=True)
class Part:
    """One share of a phase's memory; `why` says how it was found."""

    name: str
    bytes: int
    source: Source
    why: str


@dataclass(frozen=True, slots=True)
class Node:
    """The memory of one node before the launch.

    Attributes:
        total_bytes: the pool: the node's memory where it is unified, else one device's.
        available_bytes: what is free of it; None = not known, a typical idle system is assumed.
        unified: GPU and host share one pool (DGX Spark).
        guard_floor_bytes: what the memory guard keeps free; None = no guard enforces.
    """

    total_bytes: int
    available_bytes: int | None = None
    unified: bool = True
    guard_floor_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Layout:
    """How the ranks are spread, and by what. One rank a pool: a Spark, or a discrete device.

    Attributes:
        tensor_parallel, pipeline_parallel: sizes; their product is the number of ranks.
        backend: the executor over the nodes.
        vllm_version: as installed; empty = not known.
        cpu: the engine is the CPU build: it has no device, and its memory is the node's.
    """

    tensor_parallel: int = 2
    pipeline_parallel: int = 1
    backend: Backend = Backend.RAY
    vllm_version: str = ""
    cpu: bool = False


@dataclass(frozen=True, slots=True)
class Options:
    """What further options of `vllm serve` change about memory, with vLLM's own defaults.

    Attributes:
        kv_cache_dtype: type of the KV cache; "auto" = the model's, or what its quantisation says.
        expert_parallel: whole experts on each rank instead of a slice of each.
        block_size: tokens of a block of the KV cache.
        load_strategy: how safetensors are read: "auto", "lazy", "eager", "prefetch".
        estimate_graphs: vLLM sets memory for graphs aside; None = as the version does by itself.
        speculative: layers that predict several tokens are loaded, too.
        unknown: options that change the memory in a way that is not worked out here.
    """

    kv_cache_dtype: str = "auto"
    expert_parallel: bool = False
    block_size: int = 16
    load_strategy: str = "auto"
    estimate_graphs: bool | None = None
    speculative: bool = False
    unknown: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Learned:
    """What one observed launch of this model on this node taught: measured less estimated, in bytes.

    Attributes:
        kv_cache_bytes: of the KV cache that vLLM sized by itself.
        by_phase: of the highest use in each phase that was observed.
        step_bytes, graphs_bytes: what was estimated at that launch for a step and for CUDA graphs: what was
            measured of them grows as the estimate does; 0 = not known, or nothing.
    """

    kv_cache_bytes: int = 0
    by_phase: tuple[tuple[Phase, int], ...] = ()
    step_bytes: int = 0
    graphs_bytes: int = 0

    def of(self, phase: Phase) -> int:
        """Return the correction of a phase, that of the nearest earlier one where it was not seen."""
        found = 0
        order = list(Phase)
        for seen, correction in self.by_phase:
            if order.index(seen) <= order.index(phase):
                found = correction
        return found


@dataclass(frozen=True, slots=True)
class Request:
    """All that an estimate is made from; `floors`: how far the settings that are advised may go down."""

    checkpoint: Checkpoint
    node: Node
    settings: Settings = field(default_factory=Settings)
    layout: Layout = field(default_factory=Layout)
    options: Options = field(default_factory=Options)
    learned: Learned | None = None
    floors: Floors = field(default_factory=Floors)
