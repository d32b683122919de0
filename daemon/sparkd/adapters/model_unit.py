"""The model's files where the daemon's sandbox hides them: sparkd-files.service looks, as the engine's user.

The daemon looks by itself first. Only where it sees nothing (a home, a folder that only the engine may enter)
is the unit started; who waits for files that are nowhere starts it a few times a minute and no more.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import structlog
from dbus_fast import Message

from sparkd.adapters.dbus import MANAGER, MANAGER_PATH, SERVICE, SystemBus, unit_path
from sparkd.adapters.files_note import Asked, Found, read_found, write_asked
from sparkd.adapters.unitfacts import facts_of
from sparkd.core.events import ModelChecked
from sparkd.ports import ModelFiles
from sparkd.sizing.sized import Sized

log = structlog.get_logger(__name__)

UNIT = "sparkd-files.service"
# What a sandbox makes of what it hides: the first words of a check's reason.
HIDDEN = ("model_missing:", "model_unreadable:", "program_missing:")
# A check has 30 s (loop.executor); the unit's own limit is longer, and ends it.
DEADLINE_S = 20.0
# As long as the files are not ready the last answer stands for so long.
AGAIN_S = 15.0
LOOK_EVERY_S = 2.0
JOBS = f"type='signal',sender='{SERVICE}',interface='{MANAGER}',member='JobRemoved',path='{MANAGER_PATH}'"


class ModelByUnit:
    """The port `ModelFiles`: the daemon's own eyes, and where they see nothing, the unit's.

    Args:
        own: what the daemon sees.
        run_dir: where question and answer stand.
        sized: makes of an answer what a daemon keeps of a model.
        bus_address: of the system bus; None = the system's own.
        deadline_s: longest wait for the unit.
    """

    def __init__(
        self,
        own: ModelFiles,
        run_dir: Path,
        sized: Callable[[Found], Sized | None],
        *,
        bus_address: str | None = None,
        deadline_s: float = DEADLINE_S,
    ) -> None:
        self._own, self._run_dir, self._sized = own, run_dir, sized
        self._deadline_s = deadline_s
        self._over = asyncio.Event()
        self._one = asyncio.Lock()
        self._bus = SystemBus((JOBS,), self._heard, self._over.set, address=bus_address)
        self._answered: tuple[float, ModelChecked] | None = None

    async def check(self) -> ModelChecked:
        """Return whether the programs and every file of the model are there and not growing."""
        seen = await self._own.check()
        if seen.ready or not seen.reason.startswith(HIDDEN):
            self._answered = None
            return seen
        now = asyncio.get_running_loop().time()
        if self._answered and not self._answered[1].ready and now < self._answered[0] + AGAIN_S:
            return self._answered[1]
        try:
            found = await self._ask(evict=False)
        except (OSError, ValueError) as error:
            log.warning("files_not_looked_at", unit=UNIT, reason=str(error))
            return ModelChecked(
                ready=False, reason=f"{seen.reason} ({UNIT} does not tell more: {error})"[:500]
            )
        checked = ModelChecked(found.ready, found.reason, self._sized(found))
        self._answered = (now, checked)
        return checked

    async def evict(self) -> None:
        """Have the pages of the model's files dropped, by whoever sees them. Raises OSError."""
        if self._answered is None:
            await self._own.evict()
            return
        try:
            await self._ask(evict=True)
        except ValueError as error:
            raise OSError(str(error)) from error

    async def close(self) -> None:
        """Let the bus go."""
        await self._bus.close()

    async def _ask(self, *, evict: bool) -> Found:
        """Start the unit, once at a time, and return its answer. Raises OSError, ValueError."""
        async with self._one:
            return await self._answer(evict=evict)

    async def _answer(self, *, evict: bool) -> Found:
        asked = Asked(os.urandom(8).hex(), evict)
        write_asked(self._run_dir, asked)
        await self._bus.manager("StartUnit", "ss", UNIT, "replace")
        try:
            async with asyncio.timeout(self._deadline_s):
                await self._until_over()
        except TimeoutError:
            raise TimeoutError(f"no answer in {self._deadline_s:g} s") from None
        found = read_found(self._run_dir)
        if found.number != asked.number:
            raise ValueError("it ended without an answer: journalctl -u sparkd-files")
        return found

    async def _until_over(self) -> None:
        while facts_of(await self._bus.properties(unit_path(UNIT))).job_id:
            self._over.clear()
            try:
                async with asyncio.timeout(LOOK_EVERY_S):
                    await self._over.wait()
            except TimeoutError:
                continue

    def _heard(self, message: Message) -> None:
        if UNIT in message.body:
            self._over.set()
