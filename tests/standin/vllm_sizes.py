"""Settings of one `vllm serve` and the memory that they would need on the pretended machine."""

import argparse
import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from standin import knobs as machine
from standin.knobs import GIB, Knobs

DEFAULT_SIZES = [1, 2, 4, *range(8, 257, 8), *range(272, 513, 16)]
GRAPH_SETS = {"NONE": 0, "PIECEWISE": 1, "FULL": 1, "FULL_DECODE_ONLY": 1, "FULL_AND_PIECEWISE": 2}
BLOCK_TOKENS = 16


@dataclass(frozen=True)
class Settings:
    """What faults and sizes look at."""

    model: str
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    gpu_memory_utilization: float
    kv_cache_memory_bytes: int | None
    enforce_eager: bool
    cudagraph_mode: str
    capture_sizes: list[int]
    load_format: str
    safetensors_load_strategy: str | None
    tensor_parallel_size: int
    nnodes: int
    node_rank: int
    backend: str


@dataclass(frozen=True)
class Sizes:
    """Bytes on one rank, phase by phase."""

    total: int
    free: int
    requested: int
    weights: int
    activation: int
    graphs: int
    kv: int
    kv_tokens: int
    kv_needed: int
    concurrency: float

    def used_at(self, phase: str, outside: int) -> int:
        """Host memory in use in a phase, what other programs hold included."""
        order = ["init_distributed", "loading_weights", "compiling", "profiling", "allocating_kv_cache"]
        order += ["capturing_graphs", "serving"]
        reached = order.index(phase) if phase in order else 0
        used = outside + GIB
        if reached >= 1:
            used += self.weights
        if reached >= 3:
            used += self.activation
        if reached >= 4:
            used += max(self.kv, 0)
        if reached >= 5:
            used += self.graphs
        return used


def model_config(model: str, knobs: Knobs) -> dict[str, Any]:
    """The model's config.json; a model that is no directory is one the knobs describe."""
    path = str(Path(model, "config.json"))
    if Path(path).exists():
        with Path(path).open(encoding="utf-8") as file:
            return {"max_position_embeddings": knobs.model_max_len, **json.load(file)}
    return {"max_position_embeddings": knobs.model_max_len, "architectures": [knobs.architecture]}


def settings(args: argparse.Namespace, config: dict[str, Any], knobs: Knobs) -> Settings:
    """The options with vLLM's defaults filled in."""
    compilation = args.compilation_config or {}
    eager = bool(args.enforce_eager) or str(compilation.get("mode")).lower() in {"0", "none_"}
    mode = "NONE" if eager else str(compilation.get("cudagraph_mode", "FULL_AND_PIECEWISE")).upper()
    seqs = args.max_num_seqs or 256
    length = args.max_model_len
    return Settings(
        model=args.model_tag or args.model or "",
        max_model_len=config["max_position_embeddings"] if length in {None, -1} else length,
        max_num_seqs=seqs,
        max_num_batched_tokens=args.max_num_batched_tokens or 8192,
        gpu_memory_utilization=0.92 if args.gpu_memory_utilization is None else args.gpu_memory_utilization,
        kv_cache_memory_bytes=args.kv_cache_memory_bytes,
        enforce_eager=eager,
        cudagraph_mode=mode,
        capture_sizes=_capture_sizes(args, compilation, seqs) if mode != "NONE" else [],
        load_format=args.load_format or "auto",
        safetensors_load_strategy=args.safetensors_load_strategy,
        tensor_parallel_size=args.tensor_parallel_size or 1,
        nnodes=args.nnodes or 1,
        node_rank=args.node_rank or 0,
        backend=args.distributed_executor_backend or "mp",
    )


def _capture_sizes(args: argparse.Namespace, compilation: dict[str, Any], seqs: int) -> list[int]:
    given = args.cudagraph_capture_sizes or compilation.get("cudagraph_capture_sizes")
    if given:
        return sorted(given)
    most = (
        args.max_cudagraph_capture_size or compilation.get("max_cudagraph_capture_size") or min(2 * seqs, 512)
    )
    return [size for size in DEFAULT_SIZES if size <= most]


def sizes(chosen: Settings, knobs: Knobs) -> Sizes:
    """The arithmetic of vLLM's profiling, with the pretended numbers."""
    total = knobs.gpu_total_bytes
    requested = math.ceil(total * chosen.gpu_memory_utilization)
    weights = 2 * knobs.weights_bytes // max(chosen.tensor_parallel_size, 1)
    activation = knobs.activation_bytes * chosen.max_num_batched_tokens // 8192
    share = len(chosen.capture_sizes) / len(DEFAULT_SIZES) * GRAPH_SETS.get(chosen.cudagraph_mode, 2) / 2
    graphs = int(knobs.graphs_bytes * share)
    kv = chosen.kv_cache_memory_bytes
    if kv is None:
        kv = requested - weights - activation - graphs
    tokens = max(kv, 0) // knobs.kv_bytes_per_token // BLOCK_TOKENS * BLOCK_TOKENS
    return Sizes(
        total=total,
        free=total - knobs.memory_used_bytes,
        requested=requested,
        weights=weights,
        activation=activation,
        graphs=graphs,
        kv=kv,
        kv_tokens=tokens,
        kv_needed=knobs.kv_bytes_per_token * chosen.max_model_len,
        concurrency=tokens / chosen.max_model_len,
    )


def facts(chosen: Settings, size: Sizes) -> dict[str, Any]:
    """The names that a fault's `when` may use; Ray's settings come from the node's environment."""
    ray = {
        "ray_memory_usage_threshold": machine.ray_setting("memory_usage_threshold", 0.95),
        "ray_memory_monitor_refresh_ms": int(machine.ray_setting("memory_monitor_refresh_ms", 250)),
    }
    return {**asdict(chosen), **ray, "kv_bytes": size.kv, "graph_sizes": len(chosen.capture_sizes)}
