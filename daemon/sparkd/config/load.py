"""From the sources to frozen values: read, validate, check, build."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from pydantic import SecretStr, ValidationError

from sparkd.config.checks import notes, operator_socket, problems
from sparkd.config.errors import schema_lines
from sparkd.config.model import OFF, File, Section
from sparkd.config.refusal import ConfigError
from sparkd.config.served import CREDENTIALS, OWN_NAME, Served, engine_of, nodes_of, this_node
from sparkd.config.sources import (
    KEY_MIN_BYTES,
    Credentials,
    merged,
    read_credentials,
    read_environment,
    read_file,
)
from sparkd.config.values import Api, Broker, Loaded, Paths
from sparkd.core.need import RAISED_THRESHOLD
from sparkd.core.policy import PHASE_BUDGETS, Policy
from sparkd.engines.member import digests
from sparkd.engines.model import EngineSpec, NodeSpec
from sparkd.words import Floors, Settings


def load(
    path: str,
    node: str | None = None,
    environ: Mapping[str, str] | None = None,
    credentials_dir: str | None = None,
    *,
    secrets: bool = True,
) -> Loaded:
    """Return the configuration as one node uses it. `policy.version` is left to the caller.

    Args:
        path: the TOML file.
        node: this node's name; None = $SPARKD_NODE, else the machine's hostname.
        environ: the variables to read; None = the process's own.
        credentials_dir: directory of cluster_key, broker_password, ray_token; None =
            $CREDENTIALS_DIRECTORY.
        secrets: False for the engine's own process, which has no part in them: none has to be there.

    Raises:
        ConfigError: with one line for each error.
    """
    environ = os.environ if environ is None else environ
    document = read_file(path)
    overrides, from_env, lines = read_environment(environ)
    credentials, more = read_credentials(credentials_dir or environ.get(CREDENTIALS))
    lines += more
    # A name with an underscore first would be an option of pydantic-settings, not a key.
    lines += [f"{path}: {name}: unknown key" for name in document if name.startswith("_")]
    given = {name: value for name, value in document.items() if not name.startswith("_")}
    try:
        file = File(**merged(given, overrides))
    except ValidationError as error:
        raise ConfigError([*lines, *schema_lines(error, path, from_env)]) from None
    lines += [f"{path}: {line}" for line in problems(file)]
    nodes = nodes_of(node.model_dump() for node in file.node)
    this = _this_node(nodes, node or environ.get(OWN_NAME), path, lines)
    wanting = lines if secrets else []
    key = _key(file, credentials, path, wanting)
    broker = _broker(file, nodes, credentials, path, wanting)
    token = _page_token(file, credentials, path, wanting)
    if lines or this is None:
        raise ConfigError(lines)
    engine = engine_of(file.engine.model_dump(), credentials.ray_token_path)
    loaded = _loaded(file, nodes, this, key, broker, engine)
    return replace(loaded, api=replace(loaded.api, token=token))


def load_served(path: str, node: str | None, environ: Mapping[str, str]) -> Served:
    """Return what a process of the engine must know, of a file that is validated. Raises ConfigError."""
    loaded = load(path, node, environ, secrets=False)
    return Served(loaded.cluster, loaded.engine, loaded.nodes, loaded.node, loaded.paths.run_dir)


def _loaded(  # noqa: PLR0917 - the parts of one value
    file: File, nodes: tuple[NodeSpec, ...], this: NodeSpec, key: bytes, broker: Broker, engine: EngineSpec
) -> Loaded:
    return Loaded(
        cluster=file.cluster.name,
        policy=_policy(file, nodes, this, engine),
        engine=engine,
        nodes=nodes,
        node=this,
        broker=broker,
        api=_api(file, this),
        paths=Paths(**dict(file.paths)),
        key=key,
        units=file.units.backend,
        notes=notes(file),
    )


def _this_node(
    nodes: tuple[NodeSpec, ...], given: str | None, path: str, lines: list[str]
) -> NodeSpec | None:
    found = this_node(nodes, given)
    if found is None:
        hostname = socket.gethostname()
        who = f"--node {given}" if given else f"without --node, this machine's hostname {hostname}"
        names = ", ".join(node.name for node in nodes)
        lines.append(f"{path}: node: {who} is none of the configured nodes ({names})")
    return found


def _key(file: File, credentials: Credentials, path: str, lines: list[str]) -> bytes:
    inline = file.cluster.key.get_secret_value().encode() if file.cluster.key is not None else None
    key = inline if credentials.cluster_key is None else credentials.cluster_key
    if key is None:
        lines.append(
            f"{path}: cluster.key: is missing; give it here or as the credential cluster_key "
            "(openssl rand -hex 32 makes one)"
        )
    elif len(key) < KEY_MIN_BYTES:
        lines.append(f"{path}: cluster.key: has {len(key)} bytes; at least {KEY_MIN_BYTES} are needed")
    if inline is not None and credentials.cluster_key not in {None, inline}:
        lines.append(f"{path}: cluster.key: differs from the credential cluster_key; give only one")
    return key or b""


def _page_token(file: File, credentials: Credentials, path: str, lines: list[str]) -> str | None:
    inline = file.api.token.get_secret_value() if file.api.token is not None else None
    token = credentials.api_token or inline
    local = file.api.address == "localhost" or file.api.address.startswith("127.")
    if token is None and not local and file.api.address != "::1":
        lines.append(
            f"{path}: api.address = {file.api.address!r}: others could read the page; give api.token, or the "
            "credential api_token, or listen on 127.0.0.1"
        )
    return token


def settings_of(file: File) -> Settings:
    """Return the memory settings that are asked for."""
    asked = dict(file.settings)
    if _monitor_off_asked(file):
        asked["ray_memory_threshold"] = RAISED_THRESHOLD
    elif asked["ray_memory_threshold"] is None:
        del asked["ray_memory_threshold"]
    return Settings(**asked)


def _monitor_off_asked(file: File) -> bool:
    """On unified memory it counts the page cache of a load, too: off unless the operator says otherwise."""
    given = file.settings.ray_memory_threshold
    return given == OFF or (given is None and file.recovery.unified_memory)


def floors_of(file: File) -> Floors:
    """Return how far the settings may be lowered."""
    return Floors(**dict(file.floors))


def _policy(file: File, nodes: tuple[NodeSpec, ...], this: NodeSpec, engine: EngineSpec) -> Policy:
    shared, own = digests(engine, file.cluster.name, this, nodes)
    return Policy(
        node=this.name,
        head=nodes[0].name,
        nodes=tuple((node.name, node.address) for node in nodes),
        backend=engine.backend,
        gpus=engine.gpus_per_node,
        settings=settings_of(file),
        floors=floors_of(file),
        shared_digest=shared,
        node_digest=own,
        ray_monitor_off_asked=_monitor_off_asked(file),
        autostart=file.engine.autostart,
        phase_budget_s=tuple(
            (phase, getattr(file.timeouts.phase_budget_s, phase.value)) for phase, _ in PHASE_BUDGETS
        ),
        **_of_policy(file.timeouts),
        **_of_policy(file.recovery),
    )


def _of_policy(section: Section) -> dict[str, Any]:
    """The keys of a section that are the policy's fields, plain numbers all."""
    names = {field.name for field in fields(Policy)} - {"phase_budget_s"}
    return {name: value for name, value in section if name in names}


def _broker(
    file: File, nodes: tuple[NodeSpec, ...], credentials: Credentials, path: str, lines: list[str]
) -> Broker:
    section = file.broker
    inline = _plain(section.password)
    if inline is not None and credentials.broker_password not in {None, inline}:
        lines.append(f"{path}: broker.password: differs from the credential broker_password; give only one")
    values = dict(section)
    values["password"] = credentials.broker_password or inline
    values["embedded"] = not section.host
    values["host"] = section.host or (nodes[0].address if nodes else "")
    return Broker(**values)


def _plain(secret: SecretStr | None) -> str | None:
    return None if secret is None else secret.get_secret_value()


def _api(file: File, this: NodeSpec) -> Api:
    addresses = (this.address, this.management_address)
    return Api(
        address=file.api.address,
        port=file.api.port,
        peer_port=file.api.peer_port,
        socket=operator_socket(file),
        peer_addresses=tuple(address for address in addresses if address is not None),
    )
