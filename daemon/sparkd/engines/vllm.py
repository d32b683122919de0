"""The serve unit: `vllm serve`, on the head over Ray, on every node in vLLM's own multi-node mode."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from sparkd.engines.environment import Env, common_env, compose, interfaces, pinned, proposed, ray_auth
from sparkd.engines.model import Device, EngineSpec, NodeSpec, Rendered
from sparkd.engines.versions import vllm_options
from sparkd.releases import VllmOptions
from sparkd.words import GIB, Backend, CudaGraph, LoadFormat, Role, Settings, Stamp, UnitName

# The smallest batches keep their graphs: they are what one or two people chatting use.
REDUCED_SIZES = (1, 2, 4, 8, 16)
# Option -> the key of the configuration that decides it instead.
OWN_OPTIONS: Mapping[str, str] = {
    "--model": "engine.model",
    "--served-model-name": "engine.served_name",
    "--host": "engine.vllm.api_host",
    "--port": "engine.vllm.api_port",
    "--tensor-parallel-size": "engine.tensor_parallel",
    "-tp": "engine.tensor_parallel",
    "--pipeline-parallel-size": "engine.pipeline_parallel",
    "-pp": "engine.pipeline_parallel",
    "--distributed-executor-backend": "engine.backend",
    "--nnodes": "[[node]]",
    "-n": "[[node]]",
    "--node-rank": "[[node]]",
    "-r": "[[node]]",
    "--master-addr": "address of the head's [[node]]",
    "--master-port": "engine.vllm.master_port",
    "--headless": "role of the [[node]]",
    "--gpu-memory-utilization": "settings.gpu_memory_utilization",
    "--device-memory-utilization": "settings.gpu_memory_utilization",
    "--kv-cache-memory-bytes": "settings.kv_cache_bytes",
    "--max-num-batched-tokens": "settings.max_num_batched_tokens",
    "--max-num-seqs": "settings.max_num_seqs",
    "--max-model-len": "settings.max_model_len",
    "--enforce-eager": "settings.cudagraph",
    "--cudagraph-capture-sizes": "settings.cudagraph",
    "--safetensors-load-strategy": "settings.load_format",
    "--api-key": "VLLM_API_KEY in engine.env: command lines are visible to every user",
}


def render_serve(
    spec: EngineSpec,
    cluster: str,
    node: NodeSpec,
    nodes: Sequence[NodeSpec],
    *,
    settings: Settings,
    stamp: Stamp,
) -> Rendered:
    """Return the serve unit of *node*: its whole argv and environment.

    Args:
        spec: what is served.
        cluster: the cluster's name.
        node: the node on which the unit runs; with the Ray backend the head.
        nodes: all nodes, head first.
        settings: the memory settings of the generation.
        stamp: (epoch, generation).
    """
    options, warnings = vllm_options(spec.vllm_version)
    fixed = (
        *pinned(spec, cluster, node, stamp, UnitName.SERVE),
        *_cpu_space(spec, settings, options),
    )
    return Rendered(
        unit=UnitName.SERVE,
        stamp=stamp,
        argv=(
            spec.vllm_program,
            "serve",
            spec.model,
            *_place(spec, node, nodes),
            *_graphs(spec, settings, options),
            *_limits(settings, options),
            *spec.extra_args,
        ),
        env=_environment(spec, node, nodes, fixed),
        warnings=(*warnings, *_warnings(spec, settings, options)),
        settings=settings,
    )


def _place(spec: EngineSpec, node: NodeSpec, nodes: Sequence[NodeSpec]) -> tuple[str, ...]:
    """Who serves where: the part that is the same in every generation."""
    sizes = (
        f"--served-model-name={spec.served_name}",
        f"--tensor-parallel-size={spec.tensor_parallel}",
        f"--pipeline-parallel-size={spec.pipeline_parallel}",
        f"--distributed-executor-backend={spec.backend}",
    )
    api = (f"--host={spec.api_host}", f"--port={spec.api_port}")
    if spec.backend is Backend.RAY:
        return (*sizes, *api)
    gang = (
        f"--nnodes={len(nodes)}",
        f"--node-rank={node.rank}",
        f"--master-addr={nodes[0].address}",
        f"--master-port={spec.master_port}",
    )
    return (*sizes, *gang, *(api if node.role is Role.HEAD else ("--headless",)))


def _graphs(spec: EngineSpec, settings: Settings, options: VllmOptions) -> tuple[str, ...]:
    if settings.cudagraph is CudaGraph.NONE:
        return ("--enforce-eager",)
    # The CPU build has no graphs: it would take the options and ignore them.
    if settings.cudagraph is CudaGraph.FULL or spec.device is Device.CPU:
        return ()
    sizes = REDUCED_SIZES if settings.cudagraph is CudaGraph.REDUCED else ()
    if not options.short_compilation:
        config: dict[str, object] = {"cudagraph_mode": "PIECEWISE"}
        if sizes:
            config["cudagraph_capture_sizes"] = list(sizes)
        return (f"--compilation-config={json.dumps(config, separators=(',', ':'))}",)
    capture = ("--cudagraph-capture-sizes", *map(str, sizes)) if sizes else ()
    return ("-cc.cudagraph_mode=PIECEWISE", *capture)


def _limits(settings: Settings, options: VllmOptions) -> tuple[str, ...]:
    numbers = (
        ("--kv-cache-memory-bytes", settings.kv_cache_bytes),
        ("--max-num-batched-tokens", settings.max_num_batched_tokens),
        ("--max-num-seqs", settings.max_num_seqs),
        ("--max-model-len", settings.max_model_len),
    )
    lazy = settings.load_format is LoadFormat.LAZY and options.load_strategy
    return (
        f"--gpu-memory-utilization={settings.gpu_memory_utilization:g}",
        *(f"{name}={value}" for name, value in numbers if value is not None),
        *(("--safetensors-load-strategy=lazy",) if lazy else ()),
    )


def _environment(
    spec: EngineSpec,
    node: NodeSpec,
    nodes: Sequence[NodeSpec],
    fixed: Env,
) -> Env:
    own = ("VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS", str(spec.execute_timeout_s))
    if spec.backend is Backend.MP:
        return compose(proposed(), interfaces(node), spec.env, node.env, fixed, (own,))
    address = ("RAY_ADDRESS", f"{nodes[0].address}:{spec.ray_port}")
    return compose(proposed(), spec.env, common_env(nodes), fixed, ray_auth(spec), (own, address))


def _cpu_space(spec: EngineSpec, settings: Settings, options: VllmOptions) -> Env:
    """Whole GiB, at least one: `int()` reads it (platforms/cpu.py), and it overrides the option in bytes."""
    if spec.device is Device.GPU or settings.kv_cache_bytes is None or options.cpu_kv_bytes:
        return ()
    return (("VLLM_CPU_KVCACHE_SPACE", str(max(1, settings.kv_cache_bytes // GIB))),)


def _warnings(spec: EngineSpec, settings: Settings, options: VllmOptions) -> tuple[str, ...]:
    warnings = []
    if settings.load_format is LoadFormat.LAZY and not options.load_strategy:
        warnings.append("settings.load_format lazy: not known to exist in this vLLM, left out")
    if _cpu_space(spec, settings, options) and (settings.kv_cache_bytes or 0) % GIB:
        warnings.append("settings.kv_cache_bytes: this CPU build takes whole GiB only, rounded down")
    partial = settings.cudagraph in {CudaGraph.PIECEWISE, CudaGraph.REDUCED}
    if partial and spec.device is Device.CPU:
        warnings.append(f"settings.cudagraph {settings.cudagraph}: the CPU build has no CUDA graphs")
    if partial and any(arg.startswith(("--compilation-config", "-cc", "-O")) for arg in spec.extra_args):
        warnings.append("engine.vllm.extra_args sets the compilation: it may undo settings.cudagraph")
    return tuple(warnings)
