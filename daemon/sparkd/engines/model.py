"""What the engines package speaks in: what is to be served, where, and what is to be executed."""

from __future__ import annotations

from dataclasses import dataclass

from sparkd.words import Backend, Phase, Role, Stamp, UnitName


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """One configured node.

    Attributes:
        name: its name in the cluster.
        role: head or worker.
        rank: 0 for the head, then in the order of configuration.
        address: its address on the fabric: what Ray, vLLM, NCCL and gloo must use.
        interface: the network interface that carries that address (may differ per node).
        env: this node's own additions to the engine's environment.
    """

    name: str
    role: Role
    rank: int
    address: str
    interface: str
    env: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """What is served and with which programs; the same on every node but for the paths.

    Attributes:
        model: directory of the weights on this node.
        served_name: the name under which the API offers the model.
        backend: the executor over the nodes.
        tensor_parallel, pipeline_parallel: sizes; their product is the number of ranks.
        gpus_per_node: ranks that one node carries.
        api_host, api_port: where the API server listens (on the head).
        ray_port: GCS port on the head.
        master_port: rendezvous port of the mp backend.
        ray_program, vllm_program: absolute paths, or names looked up in the engine's PATH.
        path: PATH of the engine's environment.
        ray_temp_dir: directory of Ray's sessions on this node; short, since socket paths are
            limited to 107 bytes.
        ray_object_store_bytes: size of Ray's object store; vLLM needs little.
        ray_num_gpus: GPUs to declare to Ray; None = Ray detects them.
        ray_auth_token_path: file with Ray's token; None = token mode disabled, said so explicitly.
        health_period_ms, health_timeout_ms, health_failures: Ray's health check of its nodes.
        execute_timeout_s: VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS.
        extra_args: further arguments of `vllm serve`, last on its command line.
        ray_extra_args: further arguments of `ray start`.
        env: further environment of the engine, on every node.
    """

    model: str
    served_name: str
    backend: Backend
    tensor_parallel: int
    pipeline_parallel: int
    gpus_per_node: int
    api_host: str
    api_port: int
    ray_port: int
    master_port: int
    ray_program: str
    vllm_program: str
    path: str
    home: str
    ray_temp_dir: str
    ray_object_store_bytes: int = 1 << 30
    ray_num_gpus: int | None = None
    ray_auth_token_path: str | None = None
    health_period_ms: int = 1000
    health_timeout_ms: int = 2000
    health_failures: int = 3
    execute_timeout_s: int = 300
    extra_args: tuple[str, ...] = ()
    ray_extra_args: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Rendered:
    """One unit, ready to be executed: the whole argv and the whole environment, nothing inherited."""

    unit: UnitName
    stamp: Stamp
    argv: tuple[str, ...]
    env: tuple[tuple[str, str], ...]
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LineFact:
    """What one line of the engine's output means for the phase; only what it says, None elsewhere.

    Attributes:
        phase: the phase that the line shows to have begun.
        done, total: progress within the phase (shards, captured sizes).
        kv_cache_bytes: "Available KV cache memory" of one rank.
        rate_tok_s: generation throughput that the engine reports.
        port_ready: the API server says that it is up.
    """

    phase: Phase | None = None
    done: int | None = None
    total: int | None = None
    kv_cache_bytes: int | None = None
    rate_tok_s: float | None = None
    port_ready: bool = False
