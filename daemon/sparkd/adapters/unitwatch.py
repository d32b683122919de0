"""One start of a unit of systemd, followed to its end: what its root returned, and that nobody is left."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field, replace
from pathlib import Path

import structlog

from sparkd.adapters.launch import read_exit, remove_launch
from sparkd.adapters.services import EMPTY_EVERY_S, Services, group_in, soon
from sparkd.adapters.unitfacts import Ending, ending_of
from sparkd.core.events import UnitEmptied, UnitExited, UnitStoppedByHand
from sparkd.ports import Emit
from sparkd.words import Stamp, UnitName

log = structlog.get_logger(__name__)

# Should a signal of the bus be lost, the next look comes after so long.
LOOK_EVERY_S = 2.0
# Without the bus only the unit's own note tells how it ended: it gets this long to be written.
NOTE_S = 1.0


@dataclass(slots=True)
class Watch:
    """One start of a unit as it is followed; `exited` and `emptied` are told once.

    `group` is where it runs from when it is followed (`task`); before, where it was expected to.
    """

    unit: UnitName
    stamp: Stamp
    group: str
    invocation: str = ""
    pid: int = 0
    by_job: bool = False
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    exited: asyncio.Event = field(default_factory=asyncio.Event)
    emptied: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None

    async def news(self, within_s: float) -> None:
        """Wait for news, at most *within_s* seconds."""
        await soon(self.changed, within_s)
        self.changed.clear()


class Follower:
    """Tells the ends of units.

    Args:
        services: the services.
        run_dir: where orders and notes of ends stand.
        emit: takes the events.
        kill_deadline_s: SIGKILL to "unkillable".
    """

    def __init__(self, services: Services, run_dir: Path, emit: Emit, kill_deadline_s: float) -> None:
        self._services, self._run_dir, self._emit = services, run_dir, emit
        self._kill_deadline_s = kill_deadline_s

    async def follow(self, watch: Watch) -> None:
        """Tell the root's end, and then that nobody is left."""
        while (ending := await self._ending(watch)) is None:
            await watch.news(LOOK_EVERY_S)
        unit, generation = watch.unit, watch.stamp.generation
        log.info(
            "unit_exited", unit=unit.value, generation=generation, code=ending.code, signal=ending.signal
        )
        if ending.by_job and not await self._left():
            log.warning("unit_stopped_by_hand", unit=unit.value, generation=generation)
            self._emit(UnitStoppedByHand(unit, generation))
        self._emit(UnitExited(unit, generation, code=ending.code, signal=ending.signal))
        watch.exited.set()
        while not await self._services.empty_within(watch.unit, watch.group, LOOK_EVERY_S):
            await watch.news(EMPTY_EVERY_S)
        remove_launch(self._run_dir, unit)
        watch.emptied.set()
        self._emit(UnitEmptied(unit, generation))

    async def _ending(self, watch: Watch) -> Ending | None:
        """Return how the root ended, None while it runs or nobody can say."""
        try:
            facts = await self._services.facts(watch.unit)
        except OSError:
            facts = None
        if facts and facts.invocation == watch.invocation:
            watch.by_job = watch.by_job or facts.stopping
            return ending_of(facts)
        empty = await self._services.empty_within(watch.unit, watch.group, 0.0)
        if empty and facts is None:
            await asyncio.sleep(NOTE_S)
        noted = read_exit(self._run_dir, watch.unit, watch.invocation)
        if noted is None:
            return Ending() if empty or facts else None
        return replace(noted, by_job=watch.by_job or noted.by_job)

    async def _left(self) -> bool:
        try:
            return await self._services.leaving()
        except OSError:
            return False

    async def abandon(self, watch: Watch) -> None:
        """Take the order back, without which the unit refuses to run, and end what may run already.

        Where nobody answers nothing is claimed: the stop that follows asks again.
        """
        remove_launch(self._run_dir, watch.unit)
        watch.exited.set()
        with contextlib.suppress(OSError):
            watch.group = group_in(await self._services.facts(watch.unit), watch.unit)
            if not await self._services.end(watch.unit, watch.group, 0.0, self._kill_deadline_s):
                watch.emptied.set()
