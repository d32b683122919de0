"""A two-node cluster of real daemons on the loopback with the stand-in engine, as demo and tests use it."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import aiohttp
import aiomqtt

from cluster import Cluster, DeadlineError, Event, NodeSetup, stamped_processes
from ports import free_port

T = TypeVar("T")

ROOT = Path(__file__).parents[1]
PROGRAMS = ROOT / "tests" / "standin" / "bin"
HEAD = "127.0.0.2"
NODES = {"spark-a": HEAD, "spark-b": "127.0.0.3"}
SHARDS = 39
LONG_AGO_S = 3600
RAY_DIR_BYTES_MAX = 43

WATCHED = {"SPARKD_SETTINGS__RAY_MEMORY_THRESHOLD": "0.95"}
"""Ray's monitor as Ray has it: there is something to loosen."""

CONFIG = """
[cluster]
name = "{cluster}"
key = "a key for this machine only, not a secret"

[[node]]
name = "spark-a"
role = "head"
address = "127.0.0.2"
interface = "lo"

[[node]]
name = "spark-b"
role = "worker"
address = "127.0.0.3"
interface = "lo"

[engine]
model = "{model}"
served_name = "qwen-demo"
backend = "{backend}"
path = "{bin}:/usr/bin:/bin"
home = "{home}"
env = {{ SPARKD_STANDIN_FAULTS = "{faults}", SPARKD_STANDIN_PYTHON = "{python}"{env} }}

[engine.ray]
version = "2.60.0"
port = {ray}
num_gpus = 1

[engine.vllm]
version = "0.32.0"
api_host = "127.0.0.2"
api_port = {api}
master_port = {master}

[broker]
host = "{broker_host}"
port = {broker}

[recovery]
backoff_base_s = 0.2

[timeouts]
membership_every_s = 0.25
engine_every_s = 0.25
{timeouts}
"""


@dataclass(frozen=True)
class Standin:
    """The cluster, where it lives, and the ports that it uses."""

    cluster: Cluster
    directory: Path
    name: str
    ports: dict[str, int]
    ray_dirs: tuple[Path, ...]

    def arm(self, *faults: dict[str, Any]) -> None:
        """Arm faults of the engine; it reads them again at every point."""
        write_faults(self.directory, faults)

    def serve_log(self, generation: int) -> str:
        """Return what the engine of a generation has written on the head."""
        path = self.directory / "spark-a" / "log" / str(generation) / "serve.log"
        return path.read_text(encoding="utf-8", errors="replace").replace("\r", "\n")

    def page_port(self, node: str) -> int:
        """Return the port of the node's page."""
        return int(self.cluster.daemons[node].setup.env["SPARKD_API__PORT"])

    async def get(self, node: str, path: str) -> tuple[int, str]:
        """Return (status, text) of what the node's page answers."""
        timeout = aiohttp.ClientTimeout(total=10)
        url = f"http://127.0.0.1:{self.page_port(node)}{path}"
        async with aiohttp.ClientSession(timeout=timeout) as session, session.get(url) as answer:
            return answer.status, await answer.text()

    def pids(self, node: str, word: str) -> list[int]:
        """Return the pids of the node's engine whose command line has the word."""
        found = []
        for pid in stamped_processes(self.name, node):
            try:
                line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
            except OSError:
                continue
            if word.encode() in line:
                found.append(pid)
        return sorted(found)

    async def recovered(self, start: int, deadline_s: float = 60.0) -> tuple[Event, Event]:
        """Return (remedied, incident_closed) after index *start* of the head's events."""
        head = self.cluster.head
        judged = await head.wait(lambda e: e["event"] == "remedied", deadline_s, start)
        closed = await head.wait(lambda e: e["event"] == "incident_closed", deadline_s, start)
        return judged, closed

    async def leave_garbage(self) -> None:
        """Leave retained garbage on every topic that daemons are going to hear."""
        async with aiomqtt.Client(HEAD, self.ports["broker"], identifier="mallory") as mallory:
            for topic in ("intent", "node/spark-a/status", "node/spark-b/status", "node/spark-b/will"):
                await mallory.publish(f"sparkd/{self.name}/{topic}", os.urandom(99), qos=1, retain=True)

    def forget(self) -> None:
        """Remove what had to stand elsewhere."""
        for path in self.ray_dirs:
            if not path.is_relative_to(self.directory):
                shutil.rmtree(path.parent, ignore_errors=True)


def is_event(name: str) -> Callable[[Event], bool]:
    """Return what tells the events of that name."""
    return lambda event: bool(event["event"] == name)


async def until(asked: Callable[[], Awaitable[T]], holds: Callable[[T], object], deadline_s: float) -> T:
    """Ask again and again until the answer holds; return it. Who cannot answer yet is asked again."""
    answer: object = "nothing"
    try:
        async with asyncio.timeout(deadline_s):
            while True:
                try:
                    found = await asked()
                    answer = found
                    if holds(found):
                        return found
                except (OSError, aiohttp.ClientError) as error:
                    answer = error
                await asyncio.sleep(0.1)
    except TimeoutError:
        raise DeadlineError(f"not so within {deadline_s} s; the last answer: {answer!r}"[:4000]) from None


def write_faults(directory: Path, faults: Any) -> None:
    """Write the engine's faults in one piece."""
    new = directory / "faults.new"
    new.write_text(json.dumps({"faults": list(faults)}), encoding="utf-8")
    new.replace(directory / "faults.json")


def make(
    directory: Path,
    name: str,
    *,
    backend: str = "ray",
    faults: tuple[dict[str, Any], ...] = (),
    timeouts: str = "",
    page_port: int | None = None,
    programs: Path = PROGRAMS,
    env: dict[str, str] | None = None,
    broker: tuple[str, int] | None = None,
) -> Standin:
    """Write everything that the cluster needs below *directory*; nothing is started.

    Args:
        directory: is made; holds everything of the cluster.
        name: the cluster's.
        backend: the engine's.
        faults: the engine's.
        timeouts: further lines of [timeouts].
        page_port: of the head's page; any free one where it is not given.
        programs: the directory of `ray` and `vllm`.
        env: further variables of the engine.
        broker: (host, port) of another broker than the embedded one.
    """
    directory.mkdir(parents=True)
    (directory / "home").mkdir()
    write_faults(directory, faults)
    ports = {part: free_port(*NODES.values()) for part in ("ray", "api", "master", "broker", "peer")}
    host, ports["broker"] = broker or ("", ports["broker"])
    text = CONFIG.format(
        cluster=name,
        model=make_model(directory / "model"),
        backend=backend,
        bin=programs,
        env="".join(f", {name} = {json.dumps(value)}" for name, value in (env or {}).items()),
        home=directory / "home",
        faults=directory / "faults.json",
        python=sys.executable,
        timeouts=timeouts,
        broker_host=host,
        **ports,
    )
    config = directory / "sparkd.toml"
    config.write_text(text, encoding="utf-8")
    ray_dirs = tuple(_ray_dir(directory, index) for index in range(len(NODES)))
    pages = (page_port or free_port(), free_port())
    setups = [
        _setup(node, directory / node, pages[index], ports["peer"], ray_dirs[index])
        for index, node in enumerate(NODES)
    ]
    return Standin(Cluster(setups, config, WATCHED), directory, name, ports, ray_dirs)


def _ray_dir(directory: Path, index: int) -> Path:
    """Ray's socket paths are limited to 107 bytes: where the project lies deep, a short place is taken."""
    wanted = directory / f"ray{index}"
    if len(os.fsencode(wanted)) <= RAY_DIR_BYTES_MAX:
        return wanted
    return Path(tempfile.mkdtemp(prefix="sparkd-", dir="/tmp")) / "ray"


def _setup(name: str, directory: Path, page: int, peer: int, ray_dir: Path) -> NodeSetup:
    env = {
        "SPARKD_API__PORT": str(page),
        "SPARKD_API__PEER_PORT": str(peer),
        "SPARKD_ENGINE__RAY__TEMP_DIR": str(ray_dir),
    }
    return NodeSetup(name, directory, env=env)


def make_model(directory: Path) -> Path:
    """Make a directory that looks like a model: a config, and 39 small safetensors files with their index."""
    directory.mkdir(parents=True)
    config = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"}
    (directory / "config.json").write_text(json.dumps(config), encoding="utf-8")
    names = [f"model-{number:05d}-of-{SHARDS:05d}.safetensors" for number in range(1, SHARDS + 1)]
    weights = {f"w{number}": name for number, name in enumerate(names)}
    index = json.dumps({"metadata": {"total_size": 8 * SHARDS}, "weight_map": weights})
    (directory / "model.safetensors.index.json").write_text(index, encoding="utf-8")
    for weight, name in weights.items():
        header = json.dumps({weight: {"dtype": "BF16", "shape": [4], "data_offsets": [0, 8]}}).encode()
        (directory / name).write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
    for file in directory.iterdir():
        # Files that have just changed count as still being copied.
        os.utime(file, (time.time() - LONG_AGO_S,) * 2)
    return directory
