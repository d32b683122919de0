"""What a configuration asks of the engine, without who this node is: for questions that need no key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from pydantic import ValidationError

from sparkd.config.checks import operator_socket
from sparkd.config.errors import schema_lines
from sparkd.config.load import floors_of, settings_of
from sparkd.config.model import File
from sparkd.config.refusal import ConfigError
from sparkd.config.served import engine_of, nodes_of
from sparkd.config.sources import merged, read_environment, read_file
from sparkd.engines.model import Device, EngineSpec, NodeSpec
from sparkd.sizing.model import Layout, Options
from sparkd.sizing.options import options_of
from sparkd.words import Floors, Settings


@dataclass(frozen=True, slots=True)
class Asked:
    """The engine, the settings with their floors, the kind of memory, the nodes, the daemon's own places."""

    engine: EngineSpec
    settings: Settings
    floors: Floors
    unified_memory: bool
    nodes: tuple[NodeSpec, ...]
    state_dir: str
    socket: str


_NODES = [
    {"name": "spark-a", "role": "head", "address": "192.0.2.1", "interface": "none"},
    {"name": "spark-b", "role": "worker", "address": "192.0.2.2", "interface": "none"},
]
_DEFAULTS: Mapping[str, Any] = {"cluster": {"name": "sparks"}, "node": _NODES, "engine": {"model": "/"}}


def read_asked(path: str | None, environ: Mapping[str, str]) -> Asked:
    """Return what the file asks for, None = every key's default; the environment's overrides count.

    Raises:
        ConfigError: with one line for each error.
    """
    document = dict(_DEFAULTS) if path is None else read_file(path)
    overrides, from_env, lines = read_environment(environ)
    given = {name: value for name, value in document.items() if not name.startswith("_")}
    try:
        file = File(**merged(given, overrides))
    except ValidationError as error:
        raise ConfigError([*lines, *schema_lines(error, path or "defaults", from_env)]) from None
    if lines:
        raise ConfigError(lines)
    return Asked(
        engine=engine_of(file.engine.model_dump()),
        settings=settings_of(file),
        floors=floors_of(file),
        unified_memory=file.recovery.unified_memory,
        nodes=nodes_of(node.model_dump() for node in file.node),
        state_dir=file.paths.state_dir,
        socket=operator_socket(file),
    )


def on_cpu(engine: EngineSpec) -> bool:
    """Return whether the engine is the CPU build: as configured, or as its version names itself."""
    return engine.device is Device.CPU or engine.vllm_version.endswith("+cpu")


def layout_of(engine: EngineSpec) -> Layout:
    """Return how the engine's ranks are spread, as sizing asks it."""
    return Layout(
        tensor_parallel=engine.tensor_parallel,
        pipeline_parallel=engine.pipeline_parallel,
        backend=engine.backend,
        vllm_version=engine.vllm_version,
        cpu=on_cpu(engine),
    )


def sizing_options(engine: EngineSpec, *, unified_memory: bool) -> Options:
    """Return what is asked beside the settings, with the keys of its own that are not worked out."""
    options = options_of(engine.extra_args, dict(engine.env))
    more = []
    pooled = unified_memory or on_cpu(engine)
    if pooled and engine.gpus_per_node > 1:
        more.append(f"engine.gpus_per_node = {engine.gpus_per_node}")
    return replace(options, unknown=(*options.unknown, *more))
