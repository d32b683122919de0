"""Starts the real two-node engine as a person would, without sparkd: the reference of the benchmarks.

    PYTHONPATH=tests python3 -m lab.by_hand [--env DIR] [--model DIR] [--logs DIR] [--times N]

Prints one JSON line for each start: `raw_start_s` is from the first command to the first completion that came
back right. Everything started is stopped again, also when a step fails.
"""

import argparse
import contextlib
import dataclasses
import json
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator

from lab import netns
from lab.engine_env import REPOSITORY, engine_env

SHM = pathlib.Path("/dev/shm")  # noqa: S108
RAY_PORT = 6379
API_PORT = 8000
SERVED = "lab"
TOKENS = 8
# Lines that tell how far a start is, in the order in which they come.
MARKS = (
    ("api_server_imported", "non-default args"),
    ("config_resolved", "Resolved architecture"),
    ("engine_core_up", "Initializing a V1 LLM engine"),
    ("ray_connected", "Connected to Ray cluster"),
    ("distributed", "world_size=2 rank=0"),
    ("loading", "Starting to load model"),
    ("loaded", "Loading weights took"),
    ("kv_cache", "KV cache size:"),
    ("engine_ready", "init engine (profile"),
    ("api_up", "Application startup complete"),
)


class StartError(Exception):
    """The engine did not come up; the text quotes its log."""


@dataclasses.dataclass(frozen=True)
class Site:
    """What one start needs to know."""

    env: pathlib.Path
    model: pathlib.Path
    work: pathlib.Path
    head: netns.Node
    worker: netns.Node

    def environment(self, node: netns.Node, unit: str) -> dict[str, str]:
        """Everything that a unit gets; nothing is inherited."""
        home = self.work / node.name[-1]
        return {
            "PATH": f"{self.env}/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": str(home),
            "TMPDIR": str(home),
            "LANG": "C.UTF-8",
            "SPARKD_STAMP": f"lab/{node.name}/1/{unit}",
            "SPT_NOENV": "1",
            "SPARKD_CPU_RAY": "1",
            "SPARKD_CPU_RAY_FORK": "1",
            # Without it vLLM starts a Ray of its own beside a cluster whose temp-dir is not the usual one.
            "RAY_ADDRESS": f"{self.head.fabric_address}:{RAY_PORT}",
            "RAY_AUTH_MODE": "disabled",
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_DEDUP_LOGS": "0",
            "RAY_memory_monitor_refresh_ms": "0",
            "RAY_health_check_initial_delay_ms": "1000",
            "RAY_health_check_period_ms": "1000",
            "RAY_health_check_timeout_ms": "2000",
            "RAY_health_check_failure_threshold": "3",
            "VLLM_HOST_IP": node.fabric_address,
            "GLOO_SOCKET_IFNAME": netns.FABRIC,
            "NCCL_SOCKET_IFNAME": netns.FABRIC,
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "OMP_NUM_THREADS": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
            # Kept from start to start, as on a real machine: what vLLM knows of the model's class (12 s).
            "VLLM_CACHE_ROOT": str(REPOSITORY / "build/lab-vllm-cache"),
            # Even with --enforce-eager the first request compiles a piece of the embedding (40 s here).
            "TORCHDYNAMO_DISABLE": "1",
            "PYTHONUNBUFFERED": "1",
        }

    def ray_start(self, node: netns.Node) -> list[str]:
        """`ray start` in the foreground, as a service manager runs it."""
        address = f"{self.head.fabric_address}:{RAY_PORT}"
        place = ["--head", f"--port={RAY_PORT}"] if node is self.head else [f"--address={address}"]
        head_only = ["--include-dashboard=false", "--no-monitor"] if node is self.head else []
        return [
            f"{self.env}/bin/ray",
            "start",
            *place,
            f"--node-ip-address={node.fabric_address}",
            f"--temp-dir={self.work / node.name[-1]}",
            "--num-cpus=1",
            "--num-gpus=1",
            f"--object-store-memory={80 << 20}",
            *head_only,
            "--disable-usage-stats",
            "--block",
        ]

    def serve(self) -> list[str]:
        """`vllm serve` on the head."""
        return [
            f"{self.env}/bin/vllm",
            "serve",
            str(self.model),
            f"--served-model-name={SERVED}",
            f"--host={self.head.fabric_address}",
            f"--port={API_PORT}",
            "--tensor-parallel-size=2",
            "--distributed-executor-backend=ray",
            "--enforce-eager",
            "--dtype=bfloat16",
            "--max-model-len=512",
            "--max-num-seqs=4",
            "--max-num-batched-tokens=512",
            f"--kv-cache-memory-bytes={64 << 20}",
        ]


@dataclasses.dataclass(frozen=True)
class Unit:
    """A started program and where it writes."""

    process: subprocess.Popen[bytes]
    log: pathlib.Path

    def text(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")

    def stop(self, grace_s: float = 10.0) -> int:
        """SIGTERM, a grace, SIGKILL; its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.process.wait(grace_s)
        self.process.kill()
        return self.process.wait()


@dataclasses.dataclass
class Engine:
    """The units of one start, in the order of their starting, with what was measured."""

    site: Site
    units: dict[str, Unit] = dataclasses.field(default_factory=dict)
    seconds: dict[str, float] = dataclasses.field(default_factory=dict)
    began: float = dataclasses.field(default_factory=time.monotonic)
    began_at: float = dataclasses.field(default_factory=time.time)

    def mark(self, name: str) -> None:
        self.seconds.setdefault(name, round(time.monotonic() - self.began, 1))

    def launch(self, name: str, node: netns.Node, unit: str, argv: list[str]) -> Unit:
        log = self.site.work / f"{name}.log"
        (self.site.work / node.name[-1]).mkdir(exist_ok=True)
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*node.enter(), *argv],
                env=self.site.environment(node, unit),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.units[name] = Unit(process, log)
        return self.units[name]

    def wait_for_text(self, name: str, text: str, deadline_s: float) -> None:
        """Until a unit has written that; an exit before it is an error."""
        unit = self.units[name]
        netns.wait_until(lambda: text in unit.text() or unit.process.poll() is not None, deadline_s)
        if text not in unit.text():
            ended = unit.process.poll()
            tail = "\n".join(unit.text().splitlines()[-20:])
            raise StartError(f"{name} never wrote {text!r} (exit {ended}):\n{tail}")

    def start_ray(self) -> None:
        """Head, then worker."""
        self.launch("ray-a", self.site.head, "ray", self.site.ray_start(self.site.head))
        self.wait_for_text("ray-a", "Ray runtime started", 60)
        self.mark("ray_head_up")
        self.launch("ray-b", self.site.worker, "ray", self.site.ray_start(self.site.worker))
        self.wait_for_text("ray-b", "Ray runtime started", 60)
        self.mark("ray_worker_up")

    def start_serving(self, deadline_s: float = 300.0) -> None:
        """Bring vLLM up to its first right completion."""
        self.launch("serve", self.site.head, "serve", self.site.serve())
        self.mark("serve_launched")
        for name, text in MARKS:
            self.wait_for_text("serve", text, deadline_s)
            self.mark(name)
        complete(self.site.head)
        self.mark("raw_start_s")

    def stop(self) -> None:
        """Serving first, then Ray, worker first."""
        began = time.monotonic()
        for name in ("serve", "ray-b", "ray-a"):
            if name in self.units:
                self.units[name].stop()
        self.seconds["stop_s"] = round(time.monotonic() - began, 1)


def complete(node: netns.Node, deadline_s: float = 30.0) -> str:
    """One completion, checked: as many tokens as asked for came back."""
    body = {"model": SERVED, "prompt": "hello world, the quick", "max_tokens": TOKENS, "ignore_eos": True}
    url = f"http://{node.fabric_address}:{API_PORT}/v1/completions"
    headers = {"Content-Type": "application/json"}
    answer = node.http("POST", url, json.dumps(body).encode(), headers, deadline_s)
    content = json.loads(answer.body)
    if answer.status != 200 or content["usage"]["completion_tokens"] != TOKENS:
        raise StartError(f"completion answered {answer.status}: {answer.body[:500]!r}")
    return str(content["choices"][0]["text"])


@contextlib.contextmanager
def engine(env: pathlib.Path, model: pathlib.Path, logs: pathlib.Path | None = None) -> Iterator[Engine]:
    """A served engine for as long as the block runs. Ray's sockets need a short path, hence /tmp."""
    with (
        netns.pair() as (head, worker),
        tempfile.TemporaryDirectory(prefix="sl-", dir="/tmp", ignore_cleanup_errors=True) as work,
    ):
        running = Engine(Site(env, model, pathlib.Path(work), head, worker))
        try:
            running.start_ray()
            running.start_serving()
            yield running
        finally:
            running.stop()
            netns.kill_inside(head.namespace, 10.0)
            netns.kill_inside(worker.namespace, 10.0)
            running.seconds["leftover_shm"] = len(remove_leftover_shm(running.began_at))
            if logs:
                save_logs(running.site.work, logs)


def remove_leftover_shm(since: float) -> list[str]:
    """Remove the shared memory that vLLM leaves at nearly every stop, if nobody has it mapped any more."""
    named = [*SHM.glob("psm_*"), *SHM.glob("sem.mp-*")]
    made = [entry for entry in named if entry.stat().st_ctime >= since]
    mapped = "".join(process_maps() if made else [])
    leftovers = [entry for entry in made if str(entry) not in mapped]
    for entry in leftovers:
        entry.unlink(missing_ok=True)
    return [entry.name for entry in leftovers]


def process_maps() -> Iterator[str]:
    """What every process has mapped."""
    for maps in pathlib.Path("/proc").glob("[0-9]*/maps"):
        with contextlib.suppress(OSError):
            yield maps.read_text(errors="replace")


def save_logs(work: pathlib.Path, logs: pathlib.Path) -> None:
    """Keep what the units wrote, Ray's own files included."""
    logs.mkdir(parents=True, exist_ok=True)
    for source in (*work.glob("*.log"), *work.glob("?/session_2*/logs/*")):
        if source.is_file():
            flat = re.sub(r"[/:]", "_", str(source.relative_to(work)))
            (logs / flat).write_bytes(source.read_bytes())


def make_model(env: pathlib.Path) -> pathlib.Path:
    """The lab's model, made by the engine's own Python."""
    maker = [str(env / "bin/python"), str(REPOSITORY / "tests/lab/model.py")]
    made = subprocess.run(maker, stdout=subprocess.PIPE, text=True, check=True).stdout
    return pathlib.Path(made.strip().splitlines()[-1])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--env", type=pathlib.Path, help="the engine's environment (default: as engine_env.py finds it)"
    )
    parser.add_argument("--model", type=pathlib.Path)
    parser.add_argument("--logs", type=pathlib.Path, help="keep the logs there")
    parser.add_argument("--times", type=int, default=1)
    options = parser.parse_args()
    env = options.env or engine_env()
    model = options.model or make_model(env)
    for _ in range(options.times):
        with engine(env, model, options.logs) as running:
            pass
        print(json.dumps(running.seconds), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
