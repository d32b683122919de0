"""The engine's environment: whole and clean, nothing inherited from the daemon.

Rules of this file:
- Three layers, later ones win: what sparkd proposes, what the operator says (for all nodes, then for this
  node), what is pinned because a key of its own decides it (`PINNED`).
- Every node uses its own interface. With the Ray backend vLLM's driver copies its environment to the
  workers of all nodes: the newer executor only fills in what a worker lacks (ray_executor_v2.py,
  `setdefault`), the older one overwrites VLLM_*, NCCL_*, HF_* (ray_env.py). Workers inherit the
  environment of their node's raylet. So what differs between nodes is given to `ray start` only, and
  the driver is never told: there is nothing to copy.
- No secret is here: Ray's token is named by its path.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from sparkd.engines.executed import STAMP_NAME
from sparkd.engines.model import EngineSpec, NodeSpec
from sparkd.words import Stamp, UnitName

Env = tuple[tuple[str, str], ...]

# Name -> the key of the configuration that decides it instead.
PINNED: Mapping[str, str] = {
    STAMP_NAME: "nothing: sparkd finds its own processes by it",
    "SPT_NOENV": "nothing: titles of processes must not overwrite the stamp",
    "PATH": "engine.path",
    "HOME": "engine.home",
    "VLLM_HOST_IP": "address of the [[node]]",
    "RAY_ADDRESS": "address of the head's [[node]] and engine.ray.port",
    "RAY_AUTH_MODE": "engine.ray.auth_token_path",
    "RAY_AUTH_TOKEN": "engine.ray.auth_token_path",
    "RAY_AUTH_TOKEN_PATH": "engine.ray.auth_token_path",
    "RAY_memory_usage_threshold": "settings.ray_memory_threshold",
    "RAY_memory_monitor_refresh_ms": "settings.ray_memory_threshold",
    "RAY_health_check_initial_delay_ms": "engine.ray.health_period_ms",
    "RAY_health_check_period_ms": "engine.ray.health_period_ms",
    "RAY_health_check_timeout_ms": "engine.ray.health_timeout_ms",
    "RAY_health_check_failure_threshold": "engine.ray.health_failures",
    "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": "engine.vllm.execute_timeout_s",
    "VLLM_CPU_KVCACHE_SPACE": "settings.kv_cache_bytes",
}
# Of one node each: these stand in the environment of a [[node]], not in that of all.
PER_NODE: Mapping[str, str] = {
    "NCCL_SOCKET_IFNAME": "interface of the [[node]], or its env",
    "GLOO_SOCKET_IFNAME": "interface of the [[node]], or its env",
}


def stamp_value(cluster: str, node: str, stamp: Stamp, unit: UnitName) -> str:
    """Return what marks every process of a unit: <cluster>/<node>/<generation>/<unit>."""
    return f"{cluster}/{node}/{stamp.generation}/{unit}"


def compose(*layers: Iterable[tuple[str, str]]) -> Env:
    """Return the layers as one environment, sorted by name; later layers win."""
    merged: dict[str, str] = {}
    for layer in layers:
        merged.update(layer)
    return tuple(sorted(merged.items()))


def proposed() -> Env:
    """Return what is good for every unit and may be changed by the operator."""
    return (
        ("LANG", "C.UTF-8"),
        # Ray holds repeated lines back for seconds otherwise; phases are read from them.
        ("RAY_DEDUP_LOGS", "0"),
        # Ray 2.60 drains for up to 30 s after SIGTERM; sparkd has taken serve down before it ends Ray.
        ("RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S", "0"),
        ("VLLM_LOGGING_COLOR", "0"),
        ("VLLM_NO_USAGE_STATS", "1"),
    )


def interfaces(node: NodeSpec) -> Env:
    """Return the interface names of one node."""
    return (("GLOO_SOCKET_IFNAME", node.interface), ("NCCL_SOCKET_IFNAME", node.interface))


def pinned(spec: EngineSpec, cluster: str, node: NodeSpec, stamp: Stamp, unit: UnitName) -> Env:
    """Return what no operator's environment may change, for any unit."""
    return (
        ("PATH", spec.path),
        ("HOME", spec.home),
        ("SPT_NOENV", "1"),
        (STAMP_NAME, stamp_value(cluster, node.name, stamp, unit)),
        ("VLLM_HOST_IP", node.address),
    )


def ray_auth(spec: EngineSpec) -> Env:
    """Return Ray's authentication, said outright: unset, a token file in HOME turns it on by itself."""
    if spec.ray_auth_token_path is None:
        return (("RAY_AUTH_MODE", "disabled"),)
    return (("RAY_AUTH_MODE", "token"), ("RAY_AUTH_TOKEN_PATH", spec.ray_auth_token_path))


def common_env(nodes: Iterable[NodeSpec]) -> Env:
    """Return what the environments of all nodes agree on, name and value."""
    environments = [dict(node.env) for node in nodes]
    first = environments[0] if environments else {}
    return tuple(
        (name, value)
        for name, value in sorted(first.items())
        if all(other.get(name) == value for other in environments)
    )
