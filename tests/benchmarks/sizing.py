"""What sizing predicts of a start's memory, against the real vLLM (its CPU build), launched and measured.

Run: make bench-sizing. Needs root and a memory controller of cgroup v1. Each launch is `vllm serve` in a
control group of its own, limited to `NODE_BYTES`: that is the node. What is in use is read 20 times a
second from the group (anonymous and shared memory: what a node's MemAvailable loses to it), with the phase
that the daemon's own reading of the log says.

Each plan is launched twice: predicted before anything was launched, and again with what the first launch
taught (`sizing.estimate.learn`); `other` is a third launch with another KV cache and other steps, predicted
from the same first one. The last line is JSON, `errors` as shares: `first` of the measured peak, `learned`
and `other` of the node's memory.

The load fills a step: prompts of nearly the longest length, several at once, none like another. The plan
knows that it sizes the CPU build (`engine.device = "cpu"`): what is typical of a GPU's engine is not measured
by this; what is counted (weights, KV cache), a step's activations and what learning makes of them are.
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
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from sparkd.adapters.model_headers import read_checkpoint
from sparkd.engines.lines import read_line
from sparkd.sizing.estimate import Observed, learn, needs_of, sizes_of
from sparkd.sizing.model import Layout, Learned, Node, Options, Request
from sparkd.words import GIB, Backend, CudaGraph, Phase, Settings

MIB = 1 << 20
Ask = Callable[[], None]
NODE_BYTES = 8 * GIB
START_S = 400.0
EVERY_S = 0.05
GROUPS = Path("/sys/fs/cgroup/memory")
SETTINGS = Settings(
    gpu_memory_utilization=0.3,
    kv_cache_bytes=256 * MIB,
    max_num_seqs=16,
    cudagraph=CudaGraph.NONE,
)
MODELS = ((8, 4, 2048), (12, 24, 512))
"""Shards, MiB of each, and tokens of a step and of the longest request: the second is slow."""


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
            url = f"http://127.0.0.1:{port}"
            one = partial(ask, url, str(model), settings.max_model_len or 0)
            return watch(engine, group, told, [partial(one, number) for number in range(filling(settings))])
        finally:
            engine.kill()
            engine.wait()


def watch(engine: subprocess.Popen[bytes], group: Path, told: Path, asks: Sequence[Ask]) -> Seen:
    """Follow it until it has answered all that is asked, at once."""
    seen, phase, read = Seen(), Phase.INIT_DISTRIBUTED, 0
    deadline, order = time.monotonic() + START_S, list(Phase)
    with ThreadPoolExecutor(len(asks)) as pool:
        asked: list[Future[None]] = []
        while not asked or not all(answer.done() for answer in asked):
            if engine.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"the engine did not serve, see {told}:\n{told.read_text()[-3000:]}")
            text = told.read_bytes()
            for line in text[read:].decode(errors="replace").splitlines():
                fact = read_line(line)
                later = fact is not None and fact.phase is not None
                if fact is not None and later and order.index(fact.phase or phase) > order.index(phase):
                    phase = fact.phase or phase
            read = len(text)
            seen.by_phase[phase] = max(seen.by_phase.get(phase, 0), used(group))
            if not asked and b"Application startup complete" in text:
                phase, deadline = Phase.SERVING, time.monotonic() + START_S
                asked = [pool.submit(each) for each in asks]
            time.sleep(EVERY_S)
        for answer in asked:
            answer.result()
    seen.pss = pss(group)
    seen.max_usage = int((group / "memory.max_usage_in_bytes").read_text())
    return seen


def ask(url: str, model: str, tokens: int, number: int) -> None:
    """Ask for a token after a prompt of nearly the longest length; no two begin alike: nothing is reused."""
    prompt = f"{number} " + "the quick brown fox " * (tokens // 4 - 16)
    body = json.dumps({"model": model, "prompt": prompt, "max_tokens": 1}).encode()
    head = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{url}/v1/completions", body, head)  # noqa: S310 - our own
    urllib.request.urlopen(request, timeout=START_S).read()  # noqa: S310


def filling(settings: Settings) -> int:
    """Return how many such requests at once fill a step, and begin another."""
    return 2 + (settings.max_num_batched_tokens or 0) // (settings.max_model_len or 1)


def request_for(model: Path, settings: Settings, learned: Learned | None = None) -> Request:
    return Request(
        checkpoint=read_checkpoint(model),
        node=Node(NODE_BYTES, NODE_BYTES),
        settings=settings,
        layout=Layout(1, 1, Backend.MP, "0.32.0", cpu=True),
        options=Options(block_size=128),
        learned=learned,
    )


def predicted(request: Request) -> dict[Phase, int]:
    """Return what each phase is predicted to hold."""
    return {need.phase: need.bytes for need in needs_of(request, sizes_of(request))}


def of_model(env: Path, model: Path, tokens: int, logs: Path) -> dict[str, object]:
    name = model.name
    asked = replace(SETTINGS, max_num_batched_tokens=tokens, max_model_len=tokens)
    changed = replace(asked, kv_cache_bytes=GIB, max_num_batched_tokens=2 * tokens)
    first = launch(env, model, asked, f"{name}-1", logs)
    request = request_for(model, asked)
    taught = learn(request, Observed(tuple(first.by_phase.items()), asked.kv_cache_bytes))
    again = launch(env, model, asked, f"{name}-2", logs)
    other = launch(env, model, changed, f"{name}-3", logs)
    plain = max(predicted(request).values())
    learned = max(predicted(request_for(model, asked, taught)).values())
    further = max(predicted(request_for(model, changed, taught)).values())
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
            "learned": round((learned - again.peak) / NODE_BYTES, 4),
            "other": round((further - other.peak) / NODE_BYTES, 4),
        },
    }


def main() -> int:
    env = Path(os.environ["SPARKD_ENGINE_ENV"])
    logs = Path("build/bench-sizing")
    logs.mkdir(parents=True, exist_ok=True)
    found = []
    for shards, mib, tokens in MODELS[: int(sys.argv[1]) if len(sys.argv) > 1 else None]:
        script = Path(__file__).resolve().parents[1] / "lab" / "model.py"
        made = [f"{env}/bin/python", str(script), "--shards", str(shards), "--shard-mib", str(mib)]
        model = Path(subprocess.run(made, check=True, capture_output=True, text=True).stdout.split()[-1])
        found.append(of_model(env, model, tokens, logs))
        print(json.dumps(found[-1]), file=sys.stderr, flush=True)
    print(json.dumps({"node_mib": NODE_BYTES // MIB, "models": found}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
