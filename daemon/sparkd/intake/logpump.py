"""From log sources to the loop: a port `Sources` around those that read."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from sparkd.core.events import SignalSeen
from sparkd.intake.pump import Batch, Intake
from sparkd.ports import Clock, Emit, Sources
from sparkd.words import UnitName

TICK_EVERY_S = 0.25
"""Period in which reports that fell silent are closed."""
HOST = 0
"""The generation of sources that belong to the host and not to one start of the engine (kernel log)."""


class LogPump:
    """Takes chunks of log sources through the intake to the loop; a port `Sources` around others."""

    def __init__(self, intake: Intake, clock: Clock, emit: Emit) -> None:
        self.repeated = 0
        self.dropped = 0
        self.sources: tuple[Sources, ...] = ()
        self.drain_host: Callable[[], Awaitable[None]] | None = None
        self._opened = 0
        self._intake = intake
        self._clock = clock
        self._emit = emit

    def feed(self, source: str, unit: UnitName | None, generation: int, chunk: bytes) -> None:
        """Take a chunk of one source; `unit` None = a source of the host."""
        self._tell(self._intake.feed(source, unit, generation, chunk, self._clock.now()))

    def open(self, unit: UnitName, generation: int) -> None:
        """Follow the unit's sources.

        What the host said again of an end before this start (a kernel's kill, mostly) explains none after it;
        the core forgets at a launch what it was told (`core.launch`).
        """
        if generation > self._opened:
            self._opened = generation
            self._intake.drop_held(HOST)
        for source in self.sources:
            source.open(unit, generation)

    def resume(self, unit: UnitName, generation: int) -> None:
        """Follow the sources of a unit that runs already."""
        for source in self.sources:
            source.resume(unit, generation)

    async def drain(self, generation: int) -> None:
        """Read every source of the generation to its end, with what was unfinished in it."""
        await asyncio.gather(*(source.drain(generation) for source in self.sources))
        if self.drain_host is not None:
            await self.drain_host()
        self._tell(self._intake.end_all(generation, self._clock.now()))
        # What the host told of this generation may be told again of the next: there it is news.
        self._tell(self._intake.end_all(HOST, self._clock.now()))

    async def close(self) -> None:
        """Stop following."""
        for source in self.sources:
            await source.close()

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
