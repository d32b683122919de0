"""A two-node cluster of real daemons on the loopback with the stand-in engine, as demo and tests use it."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster import Cluster, NodeSetup, free_port

ROOT = Path(__file__).parents[1]
HEAD = "127.0.0.2"
NODES = {"spark-a": HEAD, "spark-b": "127.0.0.3"}
SHARDS = 39
LONG_AGO_S = 3600
RAY_DIR_BYTES_MAX = 43

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
env = {{ SPARKD_STANDIN_FAULTS = "{faults}", SPARKD_STANDIN_PYTHON = "{python}" }}

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

    def forget(self) -> None:
        """Remove what had to stand elsewhere."""
        for path in self.ray_dirs:
            if not path.is_relative_to(self.directory):
                shutil.rmtree(path.parent, ignore_errors=True)


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
) -> Standin:
    """Write everything that the cluster needs below *directory*; nothing is started."""
    directory.mkdir(parents=True)
    (directory / "home").mkdir()
    write_faults(directory, faults)
    ports = {part: free_port(HEAD) for part in ("ray", "api", "master", "broker", "peer")}
    text = CONFIG.format(
        cluster=name,
        model=make_model(directory / "model"),
        backend=backend,
        bin=ROOT / "tests" / "standin" / "bin",
        home=directory / "home",
        faults=directory / "faults.json",
        python=sys.executable,
        timeouts=timeouts,
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
    return Standin(Cluster(setups, config, {}), directory, name, ports, ray_dirs)


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
