"""`make demo`: two nodes on this machine are brought to serving, lose it to a memory kill, and recover.

Nothing is scripted on sparkd's side: two real daemons, the embedded broker, an engine that fails once while
its settings are as bad as they were. Every line that is printed was verified in another way than by the
line itself: processes are looked up, the API is asked for a generation, Ray's table is read.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import shutil
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import aiohttp

from cluster import Cluster, DeadlineError, Event, stamped_processes
from sparkd.adapters.clock import MonotonicClock
from sparkd.adapters.meminfo import MemInfo
from sparkd.adapters.ray_table import GcsTable
from standin_cluster import HEAD, NODES, SHARDS, make

ROOT = Path(__file__).parents[1]
HOME = ROOT / "build" / "demo"
PAGE_PORT = 9760

KILL: dict[str, Any] = {"kind": "ray_oom_kill", "phase": "capturing_graphs_half", "node": HEAD}
GIB = 1 << 30
SEEN_GIB = 119.70
"""Of the node whose failure is told, and so are the sizes: taken to this machine, that all numbers agree."""
SIZES_GIB = {
    "MEMORY_TOTAL": SEEN_GIB,
    "GPU_TOTAL": SEEN_GIB,
    "MEMORY_USED": 6.0,
    "WEIGHTS": 55.0,
    "ACTIVATION": 3.0,
    "GRAPHS": 1.25,
}
LEAST_GIB = 16.0
"""A smaller machine has no room for the steps of the ladder; there the sizes stay those that were seen."""
USED_GIB = 113.78
"""The stand-in's monitor kills where Ray's would: above its threshold."""
KILLED = "Ray killed "


@dataclass
class Step:
    """One line of the story, verified."""

    name: str
    ok: bool
    t_s: float


class Story:
    """Prints the story with its times and keeps what was verified."""

    def __init__(self) -> None:
        self.begun_s = time.monotonic()
        self.steps: list[Step] = []

    def tell(self, name: str, text: str, *, at_s: float | None = None, ok: bool = True) -> None:
        """Print one line; a step that was not verified is said so."""
        spent_s = (at_s if at_s is not None else time.monotonic()) - self.begun_s
        self.steps.append(Step(name, ok, round(spent_s, 2)))
        print(f"{spent_s:5.1f}  {name:<11} {text}{'' if ok else '   NOT VERIFIED'}", flush=True)


def scaled(share: float) -> tuple[dict[str, str], dict[str, Any]]:
    """Return (the stand-in's variables, the fault) for a node of so much of the size that was seen."""
    env = {f"SPARKD_STANDIN_{name}_BYTES": str(round(gib * share * GIB)) for name, gib in SIZES_GIB.items()}
    return env, KILL | {"params": {"used_bytes": round(USED_GIB * share * GIB)}}


def is_free(port: int) -> bool:
    """Return whether the port is free on the loopback."""
    import socket

    with socket.socket() as listening:
        try:
            listening.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


class Stage(Protocol):
    """Where the story is told: with the stand-in engine or with the real one.

    Attributes:
        name: the cluster's. title: its first line. addresses: what Ray has to list, sorted.
        deadline_s: longest that a step of the engine may take. shards: what has to be loaded.
        phase: in which the kill comes. hint: what to try afterwards.
    """

    name: str
    title: str
    cluster: Cluster
    addresses: list[str]
    deadline_s: float
    shards: int
    phase: str
    hint: str

    def serve_log(self, generation: int) -> str:
        """Return what the engine of a generation has written on the head."""

    def ray_logs(self) -> list[str]:
        """Return what every raylet has written."""

    async def ray_addresses(self) -> list[str]:
        """Return the addresses that Ray's own table lists as alive, sorted."""

    async def injure(self) -> None:
        """Bring the memory kill about, where it does not come by itself."""

    async def generate(self) -> str:
        """Ask the API for a real generation, as a client would; return its text."""

    def close(self) -> None:
        """Remove what had to stand elsewhere."""


class StandinStage:
    """Two addresses of the loopback, the stand-in engine, a fault that fires while the settings are bad."""

    # Another checkout's demo on this machine is another cluster: daemons sweep what carries their names.
    name = f"demo-{hashlib.sha256(str(ROOT).encode()).hexdigest()[:6]}"
    title = f"spark-a (head) {HEAD}, spark-b 127.0.0.3 · embedded broker · stand-in engine"
    addresses = sorted(NODES.values())
    deadline_s = 30.0
    shards = SHARDS
    phase = "capturing_graphs"

    def __init__(self) -> None:
        """Make the demo's own directory anew."""
        shutil.rmtree(HOME, ignore_errors=True)
        port = PAGE_PORT if is_free(PAGE_PORT) else None
        sample = MemInfo(MonotonicClock()).read()
        here_gib = 0.0 if sample is None else sample.total_bytes / GIB
        env, kill = scaled(here_gib / SEEN_GIB if LEAST_GIB <= here_gib < SEEN_GIB else 1.0)
        self._standin = make(HOME, self.name, faults=(kill,), page_port=port, env=env)
        self.cluster = self._standin.cluster
        page = self.cluster.head.setup.env["SPARKD_API__PORT"]
        self.hint = f"page http://127.0.0.1:{page}   metrics /metrics   try: .venv/bin/sparkctl --demo status"
        self.serve_log = self._standin.serve_log
        self.close = self._standin.forget

    def ray_logs(self) -> list[str]:
        """Return what the head's raylets have written."""
        return [path.read_text() for path in self._standin.ray_dirs[0].glob("session_2*/logs/raylet.out")]

    async def ray_addresses(self) -> list[str]:
        """Ask the GCS."""
        table = GcsTable(f"{HEAD}:{self._standin.ports['ray']}")
        observed = await table.observe(0)
        await table.close()
        return sorted(node.address for node in observed.nodes or () if node.alive)

    async def injure(self) -> None:
        """Nothing to do: the fault is armed."""

    async def generate(self) -> str:
        """Ask over HTTP."""
        body = {"model": "qwen-demo", "prompt": "hello", "max_tokens": 4}
        url = f"http://{HEAD}:{self._standin.ports['api']}/v1/completions"
        async with aiohttp.ClientSession() as session, session.post(url, json=body) as answer:
            return str((await answer.json())["choices"][0]["text"])


class Demo:
    """The story, step by step."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.cluster = stage.cluster
        self.story = Story()
        self.recovered_s: float | None = None
        self.relaunches: int | None = None

    async def tell(self) -> None:
        """Live through it."""
        self.story.tell("nodes", self.stage.title)
        await self.cluster.start()
        await self._form()
        failed = await self._lose()
        await self._recover(failed)

    async def _form(self) -> None:
        moved = await self.cluster.phase("resolving_config", self.stage.deadline_s)
        alive = await self.stage.ray_addresses()
        text = f"Ray: {len(alive)} of 2 nodes, addresses as configured"
        self.story.tell("forming", text, at_s=moved["at_s"], ok=alive == self.stage.addresses)
        status = await self.cluster.head.status()
        settings = status["settings"]
        share = settings["in_force"]["gpu_memory_utilization"]
        asked = settings["in_force"] == settings["asked"]
        self.story.tell("launching", f"generation {status['generation']} · utilisation {share:.2f}", ok=asked)
        profiled = await self.cluster.head.wait(after_loading, self.stage.deadline_s)
        done, total = self._shards()
        right = done == total == self.stage.shards
        self.story.tell("loading", f"{done} of {total} shards", at_s=profiled["at_s"], ok=right)

    def _shards(self) -> tuple[int, int]:
        """Read the engine's own log: the last shard line counts."""
        from sparkd.engines.lines import read_line

        lines = self.stage.serve_log(1).splitlines()
        facts = [read_line(line) for line in lines if "safetensors" in line]
        shards = [(f.done, f.total) for f in facts if f is not None and f.done is not None and f.total]
        return shards[-1] if shards else (0, 0)

    async def _lose(self) -> Event:
        await self.stage.injure()
        failed = await self.cluster.phase("failing", self.stage.deadline_s)
        killed = any(KILLED in log for log in self.stage.ray_logs())
        text = f"the engine lost a worker ({failed['reason']})"
        self.story.tell("FAILURE", text, at_s=failed["at_s"], ok=killed)
        judged = await self.cluster.head.wait(lambda e: e["event"] == "remedied", 10)
        measured = f"{judged.get('used_bytes', 0) / (1 << 30):.2f}"
        named = judged["cause"] == "ray_oom_kill" and judged["phase"] == self.stage.phase
        right = named and measured in judged["why"] and any(measured in log for log in self.stage.ray_logs())
        self.story.tell("diagnosis", judged["why"], at_s=judged["at_s"], ok=right)
        both = {"ray_memory_threshold", "kv_cache_bytes"} <= set(judged["settings_changed"])
        self.story.tell("remedy", judged["remedy"], at_s=judged["at_s"], ok=both)
        return failed

    async def _recover(self, failed: Event) -> None:
        start = self.cluster.head.events.index(failed)
        formed = await self.cluster.phase("forming", self.stage.deadline_s, start)
        left = [s for s in stamped_processes(self.stage.name).values() if s.split("/")[2] == "1"]
        self.story.tell("fenced", "both nodes clean, memory back", at_s=formed["at_s"], ok=not left)
        closed = await self.cluster.head.wait(
            lambda e: e["event"] == "incident_closed", self.stage.deadline_s
        )
        self.recovered_s = round(closed["at_s"] - failed["at_s"], 2)
        self.relaunches = closed["relaunches"]
        begun = time.monotonic()
        generated = await self.stage.generate()
        latency_s = time.monotonic() - begun
        status = await self.cluster.head.status()
        text = (
            f"generation {status['generation']}, verified in {latency_s:.1f} s · "
            f"recovered in {self.recovered_s} s with {self.relaunches} relaunch, nobody touched anything"
        )
        ok = closed["outcome"] == "recovered" and self.relaunches == 1 and status["phase"] == "serving"
        self.story.tell("SERVING", text, at_s=closed["at_s"], ok=ok and bool(generated))

    def summary(self) -> dict[str, Any]:
        """Return the machine-readable end of the story."""
        steps = [{"name": step.name, "ok": step.ok, "t_s": step.t_s} for step in self.story.steps]
        complete = len(steps) == 9 and all(step["ok"] for step in steps)
        return {
            "ok": complete,
            "steps": steps,
            "recovered_s": self.recovered_s,
            "relaunches": self.relaunches,
        }


def after_loading(event: Event) -> bool:
    """Return whether the engine has gone on past its load."""
    return event["event"] == "phase_changed" and event["before"] == "loading_weights"


async def run(stage: Stage, *, check: bool) -> int:
    """Tell the story; without *check* keep running until interrupted. Returns the exit code."""
    demo = Demo(stage)
    interrupted = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, interrupted.set)
    try:
        await until(demo.tell(), interrupted)
        if not check and not interrupted.is_set():
            print(f"       {stage.hint}      Ctrl-C stops everything", flush=True)
            await interrupted.wait()
    except DeadlineError as error:
        print(f"the story broke off: {error}", file=sys.stderr)
    finally:
        codes = await stage.cluster.stop()
        stage.close()
    summary = demo.summary()
    left = stamped_processes(stage.name)
    summary["ok"] = summary["ok"] and not left and set(codes.values()) == {0}
    if check:
        print(json.dumps(summary))
    return 0 if summary["ok"] or (interrupted.is_set() and not check) else 1


async def until(story: Any, interrupted: asyncio.Event) -> None:
    """Await the story, or the interruption, whichever comes first."""
    telling = asyncio.ensure_future(story)
    waiting = asyncio.ensure_future(interrupted.wait())
    await asyncio.wait({telling, waiting}, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    if not telling.done():
        telling.cancel()
        await asyncio.gather(telling, return_exceptions=True)
        return
    await telling


def main() -> int:
    """Run the demo from the command line."""
    parser = argparse.ArgumentParser(prog="make demo")
    parser.add_argument("--check", action="store_true", help="end by itself; the last line is JSON")
    parser.add_argument("--engine", choices=["standin", "vllm"], default="standin")
    options = parser.parse_args()
    if options.engine == "vllm":
        from lab.stage import real_stage

        with real_stage() as stage:
            return asyncio.run(run(stage, check=options.check))
    return asyncio.run(run(StandinStage(), check=options.check))


if __name__ == "__main__":
    sys.exit(main())
