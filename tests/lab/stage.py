"""The demo's story with the real Ray and the real vLLM, over two network namespaces."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Iterator

from lab import by_hand, faults, netns, site
from lab.engine_env import EngineEnvError, engine_env
from lab.model import shard_files
from sparkd.adapters.ray_table import GcsTable


class RealStage:
    """The lab's site as a stage. The memory kill is Ray's own, by real pressure from outside."""

    name = site.CLUSTER
    title = (
        "spark-a (head) 192.168.200.12, spark-b 192.168.200.13 · embedded broker · real Ray and vLLM (CPU)"
    )
    addresses = ["192.168.200.12", "192.168.200.13"]  # noqa: RUF012 - the protocol's attribute
    deadline_s = 400.0
    phase = "serving"

    def __init__(self, where: site.Site) -> None:
        self._where = where
        self.cluster = where.cluster
        self.shards = len(shard_files(where.model))
        self.hint = f"try: .venv/bin/sparkctl --socket {where.cluster.head.setup.socket} status"

    def serve_log(self, generation: int) -> str:
        """Return what the engine of a generation has written on the head."""
        path = self._where.work / "spark-a" / "log" / str(generation) / "serve.log"
        return path.read_text(encoding="utf-8", errors="replace").replace("\r", "\n")

    def ray_logs(self) -> list[str]:
        """Return what every raylet has written."""
        found = self._where.work.glob("?/session_2*/logs/raylet.out")
        return [path.read_text(errors="replace") for path in found]

    async def ray_addresses(self) -> list[str]:
        """Ask the GCS from inside the head's namespace."""
        return await asyncio.to_thread(self._where.head.call, _alive)

    async def injure(self) -> None:
        """Take memory until Ray's monitor kills."""
        await self.cluster.phase("serving", self.deadline_s)
        with faults.memory_hog(site.HOG_AVAILABLE_SHARE, hold_s=120):
            await self.cluster.phase("failing", 120)

    async def generate(self) -> str:
        """Ask the API from inside the head's namespace; random weights may well say nothing printable."""
        text = await asyncio.to_thread(by_hand.complete, self._where.head)
        return f"{by_hand.TOKENS} tokens: {text!r}"

    def close(self) -> None:
        """Remove the working directory, keep the logs."""
        site.keep_logs(self._where, site.REPOSITORY / "build" / "demo-vllm-logs")


def _alive() -> list[str]:
    async def ask() -> list[str]:
        table = GcsTable(f"{RealStage.addresses[0]}:{site.RAY_PORT}")
        observed = await table.observe(0)
        await table.close()
        return sorted(node.address for node in observed.nodes or () if node.alive)

    return asyncio.run(ask())


@contextlib.contextmanager
def real_stage() -> Iterator[RealStage]:
    """Build what is needed; exit with what to type where it cannot be had."""
    if (why := netns.why_not()) is not None:
        sys.exit(f"make demo ENGINE=vllm: {why}")
    try:
        env = engine_env()
    except EngineEnvError as error:
        sys.exit(f"make demo ENGINE=vllm: {error}")
    model = by_hand.make_model(env)
    netns.cleanup()
    with netns.pair() as (head, worker):
        yield RealStage(site.make(env, model, head, worker))
