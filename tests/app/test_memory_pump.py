"""The memory is read now and then, and at once where somebody waits for it."""

from __future__ import annotations

import asyncio

from sparkd.core.events import Event, MemoryObserved
from sparkd.loop import pumps
from sparkd.loop.pumps import pump_memory
from sparkd.signals.model import MemorySample

SAMPLE = MemorySample(at_s=1.0, available_bytes=1, total_bytes=2)


class Given:
    def read(self) -> MemorySample:
        return SAMPLE


def test_a_fence_does_not_wait_for_the_period(monkeypatch) -> None:
    """What an end of a unit asks for comes although the period is an hour."""
    monkeypatch.setattr(pumps, "MEMORY_EVERY_S", 3600.0)

    async def scenario() -> None:
        told: asyncio.Queue[Event] = asyncio.Queue()
        asked = asyncio.Event()
        pump = asyncio.create_task(pump_memory(Given(), told.put_nowait, asked))
        try:
            async with asyncio.timeout(10):
                assert await told.get() == MemoryObserved(sample=SAMPLE)
                asked.set()
                assert await told.get() == MemoryObserved(sample=SAMPLE)
        finally:
            pump.cancel()

    asyncio.run(scenario())
