"""Looking at this machine for what `init` and `join` need: addresses, names, the engine, models."""

from __future__ import annotations

import ipaddress
import os
import re
import shutil
import socket
import tempfile
from collections.abc import Iterable
from pathlib import Path

import psutil

from sparkd.config import ConfigError
from sparkd.config.load import load
from sparkd.setup.head import Programs
from sparkd.setup.host import Node
from sparkd.setup.network import Link, Network

SYS, PROC = Path("/sys"), Path("/proc")
ATF_COM = 0x2  # linux/if_arp.h: the neighbour's hardware address is known
# Where people keep weights; only looked at when --model is not given.
MODEL_FOLDERS = ("/srv/models", "/models")
ENGINE_FOLDERS = ("/opt/vllm/bin", "/usr/local/bin", "/usr/bin")


def network(names: Iterable[str] = (), sys: Path = SYS, proc: Path = PROC) -> Network:
    """Return this machine's links and neighbours, and what the *names* of other machines resolve to."""
    rdma = {path.name for path in sys.glob("class/infiniband/*/device/net/*")}
    gateways = _gateways(proc)
    links = tuple(
        Link(
            name,
            entry.address,
            ipaddress.IPv4Network(f"{entry.address}/{entry.netmask or '255.255.255.255'}", strict=False),
            name in rdma,
            name in gateways,
        )
        for name, entries in psutil.net_if_addrs().items()
        for entry in entries
        if entry.family is socket.AF_INET
    )
    return Network(links, _neighbours(proc), {name: _resolved(name) for name in names})


def _gateways(proc: Path) -> set[str]:
    """Return the interfaces with a default route (/proc/net/route: interface, destination, ...)."""
    return {row[0] for row in _table(proc / "net/route") if row[1:2] == ["00000000"]}


def _neighbours(proc: Path) -> dict[str, tuple[str, ...]]:
    """Return interface -> addresses heard (/proc/net/arp: address, type, flags, hardware, mask, device)."""
    found: dict[str, tuple[str, ...]] = {}
    for row in _table(proc / "net/arp"):
        if len(row) >= 6 and int(row[2], 16) & ATF_COM:
            found[row[5]] = (*found.get(row[5], ()), row[0])
    return found


def _table(path: Path) -> list[list[str]]:
    return [line.split() for line in path.read_text().splitlines()[1:]] if path.exists() else []


def _resolved(name: str) -> tuple[str, ...]:
    """Return the IPv4 addresses of a name, as it is and as mDNS has it."""
    for full in (name, f"{name}.local"):
        try:
            found = socket.getaddrinfo(full, None, socket.AF_INET, socket.SOCK_STREAM)
        except OSError:
            continue
        return tuple(dict.fromkeys(str(entry[4][0]) for entry in found))
    return ()


def programs(folder: str | None = None) -> Programs:
    """Return where vllm is: in *folder*, or on the PATH and where it usually is."""
    where = folder or os.pathsep.join([os.environ.get("PATH", ""), *ENGINE_FOLDERS])
    found = shutil.which("vllm", path=where)
    has_mosquitto = shutil.which("mosquitto_passwd") is not None
    if found is None:
        return Programs(folder or "", has_mosquitto=has_mosquitto)
    place, home = Path(found).parent, Path(found).parent.parent
    has_ray = (place / "ray").exists()
    return Programs(str(place), has_ray, _version(home, "vllm"), _version(home, "ray"), has_mosquitto)


def _version(environment: Path, name: str) -> str:
    """Return the version of a package by the name of its dist-info folder; empty = not known."""
    pattern = re.compile(rf"{name}-(\d+(?:\.\d+)*)[^/]*\.dist-info")
    for path in sorted(environment.glob(f"lib/python3*/*-packages/{name}-*.dist-info")):
        found = pattern.fullmatch(path.name)
        if found:
            return found[1]
    return ""


def models(folders: Iterable[str] = MODEL_FOLDERS) -> tuple[str, ...]:
    """Return the folders with weights below *folders*, one or two levels down."""
    found = {
        str(path.parent)
        for folder in folders
        for depth in ("*", "*/*")
        for path in Path(folder).glob(f"{depth}/config.json")
        if any(path.parent.glob("*.safetensors"))
    }
    return tuple(sorted(found))


def tried(text: str, node: str, secrets: dict[str, str]) -> Node | tuple[str, ...]:
    """Return the configuration as the daemon's own loader reads it, or what is wrong with it, a line each."""
    with tempfile.TemporaryDirectory(prefix="sparkd-") as name:
        folder = Path(name)
        config = folder / "sparkd.toml"
        config.write_text(text, encoding="utf-8")
        for secret, content in secrets.items():
            path = folder / secret
            path.touch(mode=0o600)
            path.write_text(content, encoding="utf-8")
        read = read_node(str(config), node, name)
    if isinstance(read, Node):
        return read
    return tuple(line.removeprefix(f"{config}: ") for line in read)


def read_node(path: str, node: str | None, credentials_dir: str) -> Node | tuple[str, ...]:
    """Return what a configuration says of this node, or what is wrong with it, a line each."""
    try:
        loaded = load(path, node, {}, credentials_dir)
    except ConfigError as error:
        return error.lines
    broker = (loaded.broker.host, loaded.broker.port)
    role = loaded.node.role.value
    return Node(loaded.cluster, loaded.node.name, role, loaded.engine.model, broker, loaded.broker.embedded)
