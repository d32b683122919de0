"""Sources of events that run on their own: memory, log chunks. Each pump is bounded and restarts on error."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from sparkd.core.events import MemoryObserved, SignalSeen
from sparkd.intake.pump import Batch, Intake
from sparkd.ports import Clock, Emit, Memory, Sources
from sparkd.words import UnitName

log = structlog.get_logger()

MEMORY_EVERY_S = 0.5
"""Period of the memory readings: a fence waits for the reading after the last process is gone."""
TICK_EVERY_S = 0.25
"""Period in which reports that fell silent are closed (`intake`)."""
AGAIN_S = 1.0
"""Pause of a pump that broke."""


async def keep_up(name: str, pump: Callable[[], Awaitable[None]], failed: Callable[[str], None]) -> None:
    """Run a pump for ever: an error of its source is logged and counted, and it starts again."""
    while True:
        try:
            await pump()
        except Exception as error:  # noqa: BLE001 - the boundary of source pumps
            failed(name)
            log.warning("pump broke", pump=name, reason=f"{type(error).__name__}: {error}"[:300])
        await asyncio.sleep(AGAIN_S)


async def pump_memory(memory: Memory, emit: Emit) -> None:
    """Read this node's memory periodically; where the system does not say, nothing is told."""
    while True:
        sample = memory.read()
        if sample is not None:
            emit(MemoryObserved(sample=sample))
        await asyncio.sleep(MEMORY_EVERY_S)


class LogPump:
    """Takes chunks of log sources through the intake to the loop; a port `Sources` around the files'."""

    def __init__(self, intake: Intake, clock: Clock, emit: Emit) -> None:
        self.repeated = 0
        self.dropped = 0
        self.files: Sources | None = None
        self._intake = intake
        self._clock = clock
        self._emit = emit

    def feed(self, source: str, unit: UnitName, generation: int, chunk: bytes) -> None:
        """Take a chunk of one source."""
        self._tell(self._intake.feed(source, unit, generation, chunk, self._clock.now()))

    def open(self, unit: UnitName, generation: int) -> None:
        """Follow the unit's sources."""
        if self.files is not None:
            self.files.open(unit, generation)

    async def drain(self, generation: int) -> None:
        """Read every source of the generation to its end, with what was unfinished in it."""
        if self.files is not None:
            await self.files.drain(generation)
        self._tell(self._intake.end_all(generation, self._clock.now()))

    async def close(self) -> None:
        """Stop following."""
        if self.files is not None:
            await self.files.close()

    async def tick(self) -> None:
        """Close reports that have fallen silent, for ever."""
        while True:
            await asyncio.sleep(TICK_EVERY_S)
            self._tell(self._intake.tick(self._clock.now()))

    def _tell(self, batch: Batch) -> None:
        # Signals first: a phase that the same chunk shows must not be told past its failure.
        for signal in batch.signals:
            self._emit(SignalSeen(signal=signal))
        for seen in batch.phases:
            self._emit(seen)
        self.repeated += batch.repeated
        self.dropped += batch.dropped
