"""Sources of events that run on their own. A pump that breaks is logged, counted, and starts again."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import structlog

from sparkd.core.events import GuardObserved, MemoryObserved, SignalSeen
from sparkd.core.messages import GuardSeen
from sparkd.ports import Emit, Memory, MemoryGuard

log = structlog.get_logger()

MEMORY_EVERY_S = 0.5
"""Period of the memory readings."""
GUARD_EVERY_S = 1.0
"""Period of looking for the memory guard, which says once a second that it lives."""
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


async def pump_memory(memory: Memory, emit: Emit, asked: asyncio.Event) -> None:
    """Read this node's memory periodically, and at once where it is *asked*; unknown is not told.

    A fence waits for the reading after the last process is gone (`core.release.lacks_reading`).
    """
    while True:
        sample = memory.read()
        if sample is not None:
            emit(MemoryObserved(sample=sample))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(MEMORY_EVERY_S):
                await asked.wait()
        asked.clear()


async def pump_guard(guard: MemoryGuard, emit: Emit) -> None:
    """Look for the memory guard periodically; its changes are told, and its trips at once."""
    seen: GuardSeen | None = None
    while True:
        now = guard.read()
        if seen is None or now.trips != seen.trips:
            tell_trips(guard, emit)
        if now != seen:
            emit(GuardObserved(guard=now))
        seen = now
        await asyncio.sleep(GUARD_EVERY_S)


def tell_trips(guard: MemoryGuard, emit: Emit) -> None:
    """Tell the trips that were not told yet; whose one before this daemon was, the core knows."""
    for trip in guard.trips():
        emit(SignalSeen(signal=trip))
        if not trip.fatal:
            log.warning("guard tripped before this daemon", quote=trip.quote)
