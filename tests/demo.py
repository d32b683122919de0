"""`make demo`: two nodes on this machine are brought to serving, lose it to a memory kill, and recover.

Nothing is scripted on sparkd's side: two real daemons, the embedded broker, an engine that fails once while
its settings are as bad as they were. Every line that is printed was verified in another way than by the
line itself: processes are looked up, the API is asked for a generation, Ray's table is read.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from cluster import DeadlineError, Event, stamped_processes
from sparkd.adapters.ray_table import GcsTable
from standin_cluster import HEAD, NODES, Standin, make

ROOT = Path(__file__).parents[1]
HOME = ROOT / "build" / "demo"
CLUSTER = "demo"
PAGE_PORT = 9760

KILL = {
    "kind": "ray_oom_kill",
    "phase": "capturing_graphs",
    "node": HEAD,
    "when": {"ray_memory_threshold_below": 0.97},
}


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


def prepare() -> Standin:
    """Make the demo's own directory anew."""
    shutil.rmtree(HOME, ignore_errors=True)
    return make(HOME, CLUSTER, faults=(KILL,), page_port=PAGE_PORT if is_free(PAGE_PORT) else None)


def is_free(port: int) -> bool:
    """Return whether the port is free on the loopback."""
    import socket

    with socket.socket() as listening:
        try:
            listening.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


class Demo:
    """The story, step by step."""

    def __init__(self, standin: Standin) -> None:
        self.standin = standin
        self.cluster = standin.cluster
        self.story = Story()
        self.recovered_s: float | None = None
        self.relaunches: int | None = None

    async def tell(self) -> None:
        """Live through it."""
        told = self.story.tell
        told("nodes", f"spark-a (head) {HEAD}, spark-b 127.0.0.3 · embedded broker · stand-in engine")
        await self.cluster.start()
        await self._form()
        failed = await self._lose()
        await self._recover(failed)

    async def _form(self) -> None:
        moved = await self.cluster.phase("resolving_config", 30)
        alive = await self._ray_addresses()
        text = f"Ray: {len(alive)} of 2 nodes, addresses as configured"
        self.story.tell("forming", text, at_s=moved["at_s"], ok=alive == sorted(NODES.values()))
        status = await self.cluster.head.status()
        asked = status["settings"]["in_force"]["gpu_memory_utilization"]
        self.story.tell(
            "launching", f"generation {status['generation']} · utilisation {asked:.2f}", ok=asked == 0.9
        )
        profiled = await self.cluster.head.wait(after_loading, 30)
        done, total = await self._shards()
        self.story.tell("loading", f"{done} of {total} shards", at_s=profiled["at_s"], ok=done == total == 39)

    async def _ray_addresses(self) -> list[str]:
        table = GcsTable(f"{HEAD}:{self.standin.ports['ray']}")
        observed = await table.observe(0)
        await table.close()
        return sorted(node.address for node in observed.nodes or () if node.alive)

    async def _shards(self) -> tuple[int, int]:
        """Read the engine's own log: the last shard line counts."""
        from sparkd.engines.lines import read_line

        text = self.standin.serve_log(1)
        facts = [read_line(line) for line in text.splitlines() if "safetensors" in line]
        shards = [(f.done, f.total) for f in facts if f is not None and f.done is not None and f.total]
        return shards[-1] if shards else (0, 0)

    async def _lose(self) -> Event:
        failed = await self.cluster.phase("failing", 30)
        logs = [path.read_text() for path in self.standin.ray_dirs[0].glob("session_2*/logs/raylet.out")]
        killed = any("Ray killed 1 worker(s)" in log for log in logs)
        self.story.tell(
            "FAILURE", f"the engine lost a worker ({failed['reason']})", at_s=failed["at_s"], ok=killed
        )
        judged = await self.cluster.head.wait(lambda e: e["event"] == "remedied", 10)
        right = (judged["cause"], judged["phase"], judged["node"]) == (
            "ray_oom_kill",
            "capturing_graphs",
            "spark-a",
        )
        self.story.tell(
            "diagnosis", judged["why"], at_s=judged["at_s"], ok=right and "113.78" in judged["why"]
        )
        changed = judged["settings_changed"]
        self.story.tell(
            "remedy",
            judged["remedy"],
            at_s=judged["at_s"],
            ok={"ray_memory_threshold", "kv_cache_bytes"} <= set(changed),
        )
        return failed

    async def _recover(self, failed: Event) -> None:
        formed = await self.cluster.phase("forming", 30, start=self._index(failed))
        left = [stamp for stamp in stamped_processes(CLUSTER).values() if stamp.split("/")[2] == "1"]
        self.story.tell("fenced", "both nodes clean, memory back", at_s=formed["at_s"], ok=not left)
        closed = await self.cluster.head.wait(lambda e: e["event"] == "incident_closed", 60)
        self.recovered_s = round(closed["at_s"] - failed["at_s"], 2)
        self.relaunches = closed["relaunches"]
        latency_s = await self._generate()
        status = await self.cluster.head.status()
        text = (
            f"generation {status['generation']}, verified in {latency_s:.1f} s · "
            f"recovered in {self.recovered_s} s with {self.relaunches} relaunch, nobody touched anything"
        )
        ok = closed["outcome"] == "recovered" and self.relaunches == 1 and status["phase"] == "serving"
        self.story.tell("SERVING", text, at_s=closed["at_s"], ok=ok)

    def _index(self, event: Event) -> int:
        return self.cluster.head.events.index(event)

    async def _generate(self) -> float:
        """Ask the API for a real generation, as a client would."""
        begun = time.monotonic()
        body = {"model": "qwen-demo", "prompt": "hello", "max_tokens": 4}
        url = f"http://{HEAD}:{self.standin.ports['api']}/v1/completions"
        async with aiohttp.ClientSession() as session, session.post(url, json=body) as answer:
            answered = await answer.json()
        if not answered["choices"][0]["text"]:
            raise DeadlineError(f"the API did not generate: {answered}")
        return time.monotonic() - begun

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


async def run(*, check: bool, engine: str) -> int:
    """Tell the story; without *check* keep running until interrupted. Returns the exit code."""
    standin = prepare()
    cluster = standin.cluster
    demo = Demo(standin)
    interrupted = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, interrupted.set)
    try:
        await until(demo.tell(), interrupted)
        if not check and not interrupted.is_set():
            page = cluster.head.setup.env["SPARKD_API__PORT"]
            print(
                f"       page http://127.0.0.1:{page}   metrics /metrics   try: sparkctl --demo status"
                "      Ctrl-C stops everything",
                flush=True,
            )
            await interrupted.wait()
    except DeadlineError as error:
        print(f"the story broke off: {error}", file=sys.stderr)
    finally:
        codes = await cluster.stop()
        standin.forget()
    summary = demo.summary()
    left = stamped_processes(CLUSTER)
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
    return asyncio.run(run(check=options.check, engine=options.engine))


if __name__ == "__main__":
    sys.exit(main())
