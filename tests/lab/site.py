"""Where the lab's two real daemons run: namespaces, the real engine's environment, their configuration."""

from __future__ import annotations

import dataclasses
import pathlib
import shutil
import sys
import tempfile

from cluster import Cluster, NodeSetup
from lab import netns
from lab.engine_env import REPOSITORY
from lab.model import corrupt

CLUSTER = "lab"
SERVED = "lab"
API_PORT = 8000
RAY_PORT = 6379
ASKED_THRESHOLD = 0.70
"""Ray's threshold that the lab asks for: the hog goes above it, the raised one stays above the hog."""
HOG_AVAILABLE_SHARE = 0.22

CONFIG = """
[cluster]
name = "lab"
key = "a key for the lab's own namespaces"

[[node]]
name = "spark-a"
role = "head"
address = "192.168.200.12"
interface = "fab0"
management_address = "10.10.0.12"

[[node]]
name = "spark-b"
role = "worker"
address = "192.168.200.13"
interface = "fab0"
management_address = "10.10.0.13"

[engine]
model = "{model}"
served_name = "lab"
backend = "{backend}"
device = "cpu"
path = "{env}/bin:/usr/sbin:/usr/bin:/sbin:/bin"
home = "{home}"

[engine.env]
SPARKD_CPU_RAY = "1"
SPARKD_CPU_RAY_FORK = "1"
VLLM_CPU_OMP_THREADS_BIND = "nobind"
OMP_NUM_THREADS = "1"
HF_HUB_OFFLINE = "1"
TORCHDYNAMO_DISABLE = "1"
PYTHONUNBUFFERED = "1"
VLLM_CACHE_ROOT = "{vllm_cache}"
TMPDIR = "{home}"

[engine.ray]
version = "2.60.0"
num_gpus = 1
object_store_bytes = "80MiB"
extra_args = ["--num-cpus=1"]

[engine.vllm]
version = "0.32.0"
api_host = "192.168.200.12"
extra_args = ["--dtype=bfloat16"]

[settings]
ray_memory_threshold = {threshold}
gpu_memory_utilization = 0.4
kv_cache_bytes = "128MiB"
max_num_batched_tokens = 512
max_num_seqs = 4
max_model_len = 512
cudagraph = "none"

[floors]
gpu_memory_utilization = 0.1
kv_cache_bytes = "32MiB"
max_num_seqs = 1
max_num_batched_tokens = 128
max_model_len = 128

[recovery]
backoff_base_s = 0

[timeouts]
no_progress_s = 20
canary_idle_s = 10
verify_deadline_s = 15
"""


@dataclasses.dataclass(frozen=True)
class Site:
    """One cluster of the lab: its directory, its namespaces, its daemons."""

    work: pathlib.Path
    model: pathlib.Path
    head: netns.Node
    worker: netns.Node
    cluster: Cluster

    def damage(self) -> None:
        """Overwrite the header of a shard, as a bad disk leaves it."""
        broken = self.work / "broken"
        shutil.rmtree(broken, ignore_errors=True)
        corrupt(self.model, broken)
        for file in broken.iterdir():
            shutil.copyfile(file, self.model / file.name)


def make(
    env: pathlib.Path, model: pathlib.Path, head: netns.Node, worker: netns.Node, *, backend: str = "ray"
) -> Site:
    """Write the cluster's files. Ray's sockets need a short path, hence /tmp."""
    work = pathlib.Path(tempfile.mkdtemp(prefix="sl-", dir="/tmp"))
    own_model = work / "model"
    shutil.copytree(model, own_model)  # with its times: files that have just changed count as being copied
    (work / "home").mkdir()
    text = CONFIG.format(
        model=own_model,
        backend=backend,
        env=env,
        home=work / "home",
        vllm_cache=REPOSITORY / "build" / "lab-vllm-cache",
        threshold=ASKED_THRESHOLD,
    )
    config = work / "sparkd.toml"
    config.write_text(text, encoding="utf-8")
    setups = [
        NodeSetup(
            node.name,
            work / node.name,
            prefix=tuple(node.enter()),
            env={"SPARKD_ENGINE__RAY__TEMP_DIR": str(work / node.name[-1])},
        )
        for node in (head, worker)
    ]
    return Site(work, own_model, head, worker, Cluster(setups, config, {"PYTHONPATH": ":".join(sys.path)}))


def keep_logs(site: Site, directory: pathlib.Path) -> None:
    """Keep what daemons and engine wrote, and remove the working directory."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    for source in (*site.work.glob("spark-*/sparkd.log"), *site.work.glob("spark-*/log/*/*.log")):
        target = directory / source.relative_to(site.work)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
    for source in site.work.glob("?/session_2*/logs/*"):
        if source.is_file() and source.stat().st_size:
            target = directory / "ray" / source.relative_to(site.work)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
    shutil.rmtree(site.work, ignore_errors=True)
