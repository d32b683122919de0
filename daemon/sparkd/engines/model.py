"""What the engines package speaks in: what is to be served, where, and what is to be executed.

Environments are left out of every repr: an operator may have put a token there.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from sparkd.words import Backend, Phase, Role, Settings, Sizes, Stamp, UnitName


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
        management_address: a second address, for the peer's HTTP view only; None = there is none.
    """

    name: str
    role: Role
    rank: int
    address: str
    interface: str
    env: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    management_address: str | None = None


class Device(StrEnum):
    """What vLLM was built for. `cpu` is for test beds: it has no graphs and its own memory accounting."""

    GPU = "gpu"
    CPU = "cpu"


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
        home: HOME of the engine: caches of compiled code live below it.
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
        device: what vLLM was built for.
        vllm_version, ray_version: the installed versions ("0.32.0"); empty = not known, which means the
            portable options only.
    """

    model: str
    served_name: str
    backend: Backend = Backend.RAY
    tensor_parallel: int = 2
    pipeline_parallel: int = 1
    gpus_per_node: int = 1
    api_host: str = "0.0.0.0"  # noqa: S104 - the API is what the cluster offers, as vLLM itself does
    api_port: int = 8000
    ray_port: int = 6379
    master_port: int = 29501
    ray_program: str = "ray"
    vllm_program: str = "vllm"
    path: str = "/usr/local/bin:/usr/bin:/bin"
    home: str = "/var/lib/sparkd"
    ray_temp_dir: str = "/var/tmp/sparkd-ray"  # noqa: S108 - on disk: /run would take the model's memory
    ray_object_store_bytes: int = 1 << 30
    ray_num_gpus: int | None = None
    ray_auth_token_path: str | None = None
    health_period_ms: int = 1000
    health_timeout_ms: int = 2000
    health_failures: int = 3
    execute_timeout_s: int = 300
    extra_args: tuple[str, ...] = ()
    ray_extra_args: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    device: Device = Device.GPU
    vllm_version: str = ""
    ray_version: str = ""


@dataclass(frozen=True, slots=True)
class Rendered:
    """One unit, ready to be executed: the whole argv and the whole environment, nothing inherited.

    `settings` are those that it was rendered with.
    """

    unit: UnitName
    stamp: Stamp
    argv: tuple[str, ...]
    env: tuple[tuple[str, str], ...] = field(repr=False)
    warnings: tuple[str, ...] = ()
    settings: Settings = field(default_factory=Settings)


@dataclass(frozen=True, slots=True)
class LineFact:
    """What one line of the engine's output means for the phase; only what it says, None elsewhere.

    Attributes:
        phase: the phase that the line shows to have begun.
        done, total: progress within the phase (shards, captured sizes).
        kv_cache_bytes: "Available KV cache memory" of one rank; negative where nothing is left for it.
        weights_bytes: what the weights of one rank take.
        request_tokens, requests: length of the longest request, and how many of them the KV cache holds.
        rate_tok_s: generation throughput that the engine reports.
        port_ready: the API server says that it is up.
        sizes: what else it says of its memory.
    """

    phase: Phase | None = None
    done: int | None = None
    total: int | None = None
    kv_cache_bytes: int | None = None
    weights_bytes: int | None = None
    request_tokens: int | None = None
    requests: float | None = None
    rate_tok_s: float | None = None
    port_ready: bool = False
    sizes: Sizes | None = None
