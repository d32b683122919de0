"""What sizing predicts of a start's memory, against the real vLLM (its CPU build), launched and measured.

Run: make bench-sizing. Needs root and a memory controller of cgroup v1. Each launch is `vllm serve` in a
control group of its own, limited to `NODE_BYTES`: that is the node. What is in use is read ten times a second
from the group (anonymous and shared memory: what a node's MemAvailable loses to it), with the phase that the
daemon's own reading of the log says.

Each plan is launched twice: predicted before anything was launched, and again with what the first launch
taught (`sizing.estimate.learn`); `other` is a third launch with another KV cache and other steps, predicted
from the same first one. The last line is JSON, `errors` as shares: `first` of the measured peak, `learned`
and `other` of the node's memory.

The CPU build has no CUDA (no context, no NCCL, no graphs), and its processes are lighter: typical amounts of
a GPU's engine, in GiB, cannot be right beside a model of MiB. `without_cuda` is the first error with CUDA's
parts taken out; `of_spark` is the whole first error as a share of a DGX Spark's memory, where the amounts
that are declared are of the same size and those that are counted are what fills it.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from sparkd.adapters.model_headers import read_checkpoint
from sparkd.engines.lines import read_line
from sparkd.sizing.estimate import Observed, learn, needs_of, sizes_of
from sparkd.sizing.model import Layout, Learned, Node, Options, Request
from sparkd.words import GIB, Backend, CudaGraph, Phase, Settings

MIB = 1 << 20
NODE_BYTES = 8 * GIB
SPARK_BYTES = int(119.7 * GIB)
START_S = 400.0
EVERY_S = 0.1
GROUPS = Path("/sys/fs/cgroup/memory")
CUDA_PARTS = ("CUDA and NCCL", "CUDA graphs")
SETTINGS = Settings(
    gpu_memory_utilization=0.3,
    kv_cache_bytes=256 * MIB,
    max_num_batched_tokens=2048,
    max_num_seqs=16,
    cudagraph=CudaGraph.NONE,
    max_model_len=2048,
)
OTHER = replace(SETTINGS, kv_cache_bytes=GIB, max_num_batched_tokens=4096)
MODELS = ((8, 4), (12, 24))
"""Shards, and MiB of each."""


@dataclass
class Seen:
    """The most that was in use by phase; `max_usage`: the kernel's own peak, page cache and all."""

    by_phase: dict[Phase, int] = field(default_factory=dict)
    max_usage: int = 0
    pss: int = 0

    @property
    def peak(self) -> int:
        return max(self.by_phase.values())


@contextmanager
def node(name: str) -> Iterator[Path]:
    """A control group that is as large as the node; what is left in it is ended with it."""
    group = GROUPS / f"sparkd-sizing-{os.getpid()}-{name}"
    group.mkdir()
    try:
        (group / "memory.limit_in_bytes").write_text(str(NODE_BYTES))
        yield group
    finally:
        deadline = time.monotonic() + 30
        while pids := (group / "cgroup.procs").read_text().split():
            for pid in pids:
                os.kill(int(pid), signal.SIGKILL)
            if time.monotonic() > deadline:
                raise SystemExit(f"processes do not end: {pids}")
            time.sleep(0.1)
        group.rmdir()


def used(group: Path) -> int:
    """Return anonymous and shared memory of the group and below; the page cache can be taken back."""
    stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    return int(stat["total_rss"]) + int(stat.get("total_shmem", 0))


def pss(group: Path) -> int:
    """Return the proportional set size of all that runs in the group."""
    total = 0
    for pid in (group / "cgroup.procs").read_text().split():
        try:
            text = Path(f"/proc/{pid}/smaps_rollup").read_text()
        except OSError:
            continue
        total += next(int(line.split()[1]) << 10 for line in text.splitlines() if line.startswith("Pss:"))
    return total


def command(env: Path, model: Path, settings: Settings, port: int) -> list[str]:
    return [
        f"{env}/bin/vllm", "serve", str(model), "--host", "127.0.0.1", "--port", str(port),
        "--enforce-eager", "--dtype", "bfloat16", "--block-size", "128",
        "--gpu-memory-utilization", str(settings.gpu_memory_utilization),
        "--kv-cache-memory-bytes", str(settings.kv_cache_bytes),
        "--max-num-batched-tokens", str(settings.max_num_batched_tokens),
        "--max-num-seqs", str(settings.max_num_seqs),
        "--max-model-len", str(settings.max_model_len),
    ]  # fmt: skip


def launch(env: Path, model: Path, settings: Settings, name: str, logs: Path) -> Seen:
    """Start the engine, let it answer under load, end it; return what it held."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    told = logs / f"{name}.log"
    environment = os.environ | {
        "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "OMP_NUM_THREADS": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    }  # fmt: skip
    with node(name) as group, told.open("wb") as log:
        start = f'echo $$ > {group}/cgroup.procs; exec "$@"'
        engine = subprocess.Popen(
            ["sh", "-c", start, "engine", *command(env, model, settings, port)],
            stdout=log, stderr=subprocess.STDOUT, env=environment, start_new_session=True,
        )  # fmt: skip
        try:
            return watch(engine, group, told, f"http://127.0.0.1:{port}", str(model))
        finally:
            engine.kill()
            engine.wait()


def watch(engine: subprocess.Popen[bytes], group: Path, told: Path, url: str, model: str) -> Seen:
    """Follow it to its first answers, and a little further."""
    seen, phase, read = Seen(), Phase.INIT_DISTRIBUTED, 0
    deadline, ends = time.monotonic() + START_S, float("inf")
    order = list(Phase)
    while time.monotonic() < ends:
        if engine.poll() is not None or time.monotonic() > deadline:
            raise SystemExit(f"the engine did not serve, see {told}:\n{told.read_text()[-3000:]}")
        text = told.read_bytes()
        for line in text[read:].decode(errors="replace").splitlines():
            fact = read_line(line)
            if fact is not None and fact.phase is not None and order.index(fact.phase) > order.index(phase):
                phase = fact.phase
        read = len(text)
        seen.by_phase[phase] = max(seen.by_phase.get(phase, 0), used(group))
        if ends == float("inf") and b"Application startup complete" in text:
            ask(url, model)
            phase, ends = Phase.SERVING, time.monotonic() + 5
        time.sleep(EVERY_S)
    seen.pss = pss(group)
    seen.max_usage = int((group / "memory.max_usage_in_bytes").read_text())
    return seen


def ask(url: str, model: str) -> None:
    """Some requests at once, each of a long prompt."""
    body = json.dumps({"model": model, "prompt": "the quick brown fox " * 100, "max_tokens": 8}).encode()
    for _ in range(4):
        head = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{url}/v1/completions", body, head)  # noqa: S310 - our own
        urllib.request.urlopen(request, timeout=START_S).read()  # noqa: S310


def request_for(model: Path, settings: Settings, learned: Learned | None = None) -> Request:
    return Request(
        checkpoint=read_checkpoint(model),
        node=Node(NODE_BYTES, NODE_BYTES),
        settings=settings,
        layout=Layout(1, 1, Backend.MP, "0.32.0"),
        options=Options(block_size=128),
        learned=learned,
    )


def predicted(request: Request, without: tuple[str, ...] = ()) -> dict[Phase, int]:
    """Return what each phase is predicted to hold."""
    needs = needs_of(request, sizes_of(request))
    return {n.phase: sum(part.bytes for part in n.parts if part.name not in without) for n in needs}


def of_model(env: Path, model: Path, logs: Path) -> dict[str, object]:
    name = model.name
    first = launch(env, model, SETTINGS, f"{name}-1", logs)
    request = request_for(model, SETTINGS)
    taught = learn(request, Observed(tuple(first.by_phase.items()), SETTINGS.kv_cache_bytes))
    again = launch(env, model, SETTINGS, f"{name}-2", logs)
    other = launch(env, model, OTHER, f"{name}-3", logs)
    plain = max(predicted(request).values())
    learned = max(predicted(request_for(model, SETTINGS, taught)).values())
    further = max(predicted(request_for(model, OTHER, taught)).values())
    rest = max(predicted(request, CUDA_PARTS).values())
    return {
        "model": name,
        "weights_mib": sizes_of(request).weights.bytes // MIB,
        "measured_mib": [seen.peak // MIB for seen in (first, again, other)],
        "pss_mib": [seen.pss // MIB for seen in (first, again, other)],
        "max_usage_mib": [seen.max_usage // MIB for seen in (first, again, other)],
        "predicted_mib": [plain // MIB, learned // MIB, further // MIB],
        "by_phase_mib": {phase.value: amount // MIB for phase, amount in first.by_phase.items()},
        "errors": {
            "first": round((plain - first.peak) / first.peak, 4),
            "of_spark": round((plain - first.peak) / SPARK_BYTES, 4),
            "without_cuda": round((rest - first.peak) / first.peak, 4),
            "learned": round((learned - again.peak) / NODE_BYTES, 4),
            "other": round((further - other.peak) / NODE_BYTES, 4),
        },
    }


def main() -> int:
    env = Path(os.environ["SPARKD_ENGINE_ENV"])
    logs = Path("build/bench-sizing")
    logs.mkdir(parents=True, exist_ok=True)
    found = []
    for shards, mib in MODELS[: int(sys.argv[1]) if len(sys.argv) > 1 else None]:
        script = Path(__file__).resolve().parents[1] / "lab" / "model.py"
        made = [f"{env}/bin/python", str(script), "--shards", str(shards), "--shard-mib", str(mib)]
        model = Path(subprocess.run(made, check=True, capture_output=True, text=True).stdout.split()[-1])
        found.append(of_model(env, model, logs))
        print(json.dumps(found[-1]), file=sys.stderr, flush=True)
    print(json.dumps({"node_mib": NODE_BYTES // MIB, "models": found}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
