"""What the file's tables amount to for the engine: who serves what, where. Standard library only.

One way for two: the daemon hands in the tables that its schema has validated and completed; `sparkd exec`
hands in those of the file as they stand. It runs nothing but what has the digest that the daemon has ordered,
so whether they are right is the daemon's to say, and the engine need not wait for the schema's library.
"""

from __future__ import annotations

import socket
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparkd.config.forms import check_absolute, check_address, check_listen, env_value, parse_bytes
from sparkd.config.values import Paths
from sparkd.engines.model import Device, EngineSpec, NodeSpec
from sparkd.words import Backend, Role

Table = Mapping[str, Any]

PREFIX = "SPARKD_"
OWN_NAME = "SPARKD_NODE"
CREDENTIALS = "CREDENTIALS_DIRECTORY"


@dataclass(frozen=True, slots=True)
class Served:
    """What a process of the engine must know: the cluster's name, the engine, all nodes and this one.

    `run_dir` is where its order stands.
    """

    cluster: str
    engine: EngineSpec
    nodes: tuple[NodeSpec, ...]
    node: NodeSpec
    run_dir: str


# Field of EngineSpec: (table below [engine], "" = [engine] itself; key).
ENGINE_KEYS: Mapping[str, tuple[str, str]] = {
    "model": ("", "model"),
    "served_name": ("", "served_name"),
    "backend": ("", "backend"),
    "tensor_parallel": ("", "tensor_parallel"),
    "pipeline_parallel": ("", "pipeline_parallel"),
    "gpus_per_node": ("", "gpus_per_node"),
    "path": ("", "path"),
    "home": ("", "home"),
    "env": ("", "env"),
    "device": ("", "device"),
    "ray_program": ("ray", "program"),
    "ray_version": ("ray", "version"),
    "ray_port": ("ray", "port"),
    "ray_temp_dir": ("ray", "temp_dir"),
    "ray_object_store_bytes": ("ray", "object_store_bytes"),
    "ray_num_gpus": ("ray", "num_gpus"),
    "ray_auth_token_path": ("ray", "auth_token_path"),
    "ray_extra_args": ("ray", "extra_args"),
    "health_period_ms": ("ray", "health_period_ms"),
    "health_timeout_ms": ("ray", "health_timeout_ms"),
    "health_failures": ("ray", "health_failures"),
    "vllm_program": ("vllm", "program"),
    "vllm_version": ("vllm", "version"),
    "api_host": ("vllm", "api_host"),
    "api_port": ("vllm", "api_port"),
    "master_port": ("vllm", "master_port"),
    "execute_timeout_s": ("vllm", "execute_timeout_s"),
    "extra_args": ("vllm", "extra_args"),
}


def _environment(table: Mapping[str, object]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((name, str(env_value(value))) for name, value in table.items()))


# The canonical form of a value, where that is not the value itself.
_FORMS: Mapping[str, Callable[[Any], object]] = {
    "model": check_absolute,
    "home": check_absolute,
    "ray_temp_dir": check_absolute,
    "ray_auth_token_path": check_absolute,
    "ray_object_store_bytes": parse_bytes,
    "backend": Backend,
    "device": Device,
    "api_host": check_listen,
    "env": _environment,
    "extra_args": tuple,
    "ray_extra_args": tuple,
}


def engine_of(engine: Table, ray_token_path: str | None = None) -> EngineSpec:
    """Return what is served and with which programs; what is absent or None is EngineSpec's own default.

    Args:
        engine: the table [engine].
        ray_token_path: the credential with Ray's token, for where the table names none.

    Raises:
        KeyError, ValueError, TypeError, AttributeError: tables that the schema would refuse.
    """
    values: dict[str, Any] = {"ray_auth_token_path": ray_token_path}
    for name, (section, key) in ENGINE_KEYS.items():
        value = (engine.get(section, {}) if section else engine).get(key)
        if value is not None:
            values[name] = _FORMS[name](value) if name in _FORMS else value
    values.setdefault("served_name", values["model"].rpartition("/")[2])
    return EngineSpec(**values)


def nodes_of(tables: Iterable[Table]) -> tuple[NodeSpec, ...]:
    """Return the nodes, head first, then in the file's order; that is the rank. Raises as `engine_of`."""
    ordered = sorted(tables, key=lambda table: Role(table["role"]) is not Role.HEAD)
    return tuple(_node(table, rank) for rank, table in enumerate(ordered))


def _node(table: Table, rank: int) -> NodeSpec:
    second = table.get("management_address")
    return NodeSpec(
        name=table["name"],
        role=Role(table["role"]),
        rank=rank,
        address=check_address(table["address"]),
        interface=table["interface"],
        env=_environment(table.get("env", {})),
        management_address=None if second is None else check_address(second),
    )


def this_node(nodes: Iterable[NodeSpec], given: str | None) -> NodeSpec | None:
    """Return the node of that name, without one that of this machine: its full name or its first label."""
    hostname = socket.gethostname()
    wanted = (given,) if given else (hostname, hostname.partition(".")[0])
    return next((node for node in nodes if node.name in wanted), None)


def read_served(path: str, node: str | None, environ: Mapping[str, str]) -> Served | None:
    """Return what the file says, unchecked; None where only `load` can tell.

    That is where variables or credentials have their part in it, and where the file cannot be right.
    """
    if any(name.startswith(PREFIX) and name != OWN_NAME for name in environ) or CREDENTIALS in environ:
        return None
    try:
        file = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        nodes = nodes_of(file["node"])
        this = this_node(nodes, node or environ.get(OWN_NAME))
        if this is None:
            return None
        run_dir = file.get("paths", {}).get("run_dir", Paths().run_dir)
        return Served(
            file["cluster"]["name"], engine_of(file["engine"]), nodes, this, check_absolute(run_dir)
        )
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None
