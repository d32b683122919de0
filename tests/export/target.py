"""A daemon's /metrics, and vLLM's, that live one more step of a life at every scrape."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from pathlib import Path

from aiohttp import web

from export.states import NOW, POLICY, whole_life
from sparkd.export.metrics import CONTENT_TYPE, Metrics

VLLM = Path(__file__).parents[1] / "standin" / "data" / "metrics.txt"


class LivingTarget:
    """Serves on a free loopback port from a thread of its own until `stop`."""

    def __init__(self):
        self.metrics = Metrics("0.1.0", "spark-a", causes=("ray_oom_kill", "cuda_oom"))
        self.metrics.store(troubled=False, queued=0)
        self._life = iter(whole_life())
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._ready = threading.Event()
        self.address = ""
        self.lived = threading.Event()
        self._scrapes_after = 0
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._serve(),))

    def start(self):
        self._thread.start()
        assert self._ready.wait(10)

    def stop(self):
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)
        self._loop.close()

    async def _serve(self):
        app = web.Application()
        app.add_routes([web.get("/metrics", self._sparkd), web.get("/vllm", self._vllm)])
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.address = f"127.0.0.1:{runner.addresses[0][1]}"
        self._ready.set()
        await self._stop.wait()
        await runner.cleanup()

    async def _sparkd(self, _):
        with contextlib.suppress(StopIteration):
            state, records = next(self._life)
            self.metrics.update(state, POLICY, NOW)
            self.metrics.records(records)
            self.metrics.stepped(0.002, 0.0)
            return web.Response(body=self.metrics.text(), headers={"Content-Type": CONTENT_TYPE})
        self._scrapes_after += 1
        if self._scrapes_after >= 3:
            self.lived.set()
        return web.Response(body=self.metrics.text(), headers={"Content-Type": CONTENT_TYPE})

    async def _vllm(self, _):
        return web.Response(text=VLLM.read_text().replace("@MODEL", "demo"))
