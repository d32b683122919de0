"""`DiskStore`: the `Store` port on a state directory. Failing disks are logged once, and never raised."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import structlog

from sparkd.core.beginning import Remembered
from sparkd.core.records import Record, StampAdvanced
from sparkd.store.history import NAME, History, Recalled, Retention, Row
from sparkd.store.stamp import StampFile
from sparkd.store.view import HistoryView
from sparkd.words import NO_STAMP, Settings, Stamp

_FAILURES = (OSError, sqlite3.Error)


class DiskStore:
    """Stamp file and history of one state directory: each in a thread after `load`.

    Attributes:
        view: the history as people read it.
    """

    def __init__(
        self,
        directory: Path,
        *,
        asked: Settings,
        wall: Callable[[], float],
        boot: str = "",
        retention: Retention | None = None,
        retry_s: float = 10.0,
    ) -> None:
        """Open nothing yet.

        Args:
            directory: the state directory; it exists and is locked (`StateLock`).
            asked: the settings that the operator asks for: kept beside what is learned.
            wall: the wall clock in seconds, for people; nothing decides on it.
            boot: id of the machine's boot.
            retention: bounds of the history.
            retry_s: period of trying again what a failing disk refused.
        """
        self._stamps = StampFile(directory / "stamp")
        self._history = History(directory / NAME, retention, boot)
        self._asked = asked
        self._wall = wall
        self._retry_s = retry_s
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="store")
        self._stamp_thread = ThreadPoolExecutor(1, thread_name_prefix="stamp")
        self.view = HistoryView(self._history, self._thread)
        self._log = structlog.get_logger("sparkd.store")
        self._owed = NO_STAMP
        self._trouble: dict[str, str] = {}
        self._retrying: asyncio.Task[None] | None = None

    @property
    def trouble(self) -> str:
        """What does not work now (a full disk, for one), for status and metrics; empty where all does."""
        return "; ".join(list(self._trouble.values()))

    @property
    def queued(self) -> int:
        """Records that wait in memory for the disk."""
        return self._history.queued

    def load(self) -> Remembered:
        """Return what an earlier daemon remembered; damaged files are moved aside and noted."""
        recalled = self._recall()
        seen = self._load_stamp(recalled)
        return Remembered(
            seen=seen,
            incidents=recalled.incidents,
            settings=recalled.settings,
            asked=recalled.asked,
            kept=recalled.kept,
            unclean_generation=recalled.unclean_generation,
            returned=recalled.returned,
            unrested=recalled.unrested,
            ran_at_s=recalled.ran_at_s,
        )

    async def append(self, records: Sequence[Record]) -> None:
        """Make records durable. Returns only when they are on disk; a full disk is logged, not raised."""
        if not records:
            return
        rows = self._history.rows(records, self._wall(), self._asked)
        seen = max((record.seen for record in records if isinstance(record, StampAdvanced)), default=NO_STAMP)
        await self._write(seen, rows)
        if self._trouble and self._retrying is None:
            self._retrying = asyncio.create_task(self._retry(), name="store retry")

    async def close(self) -> None:
        """Write what waits, if that works now, and close the files."""
        if self._retrying is not None:
            self._retrying.cancel()
        if self._trouble:
            await self._write(NO_STAMP, [])
        self._stamp_thread.shutdown()
        self._stamps.close()
        self._history.close()
        self._thread.shutdown()

    def _recall(self) -> Recalled:
        try:
            recalled = self._history.load()
        except _FAILURES as error:
            self._failed("history", error)
            return Recalled()
        if recalled.note:
            self._log.warning("history_damaged", note=recalled.note)
        return recalled

    def _load_stamp(self, recalled: Recalled) -> Stamp:
        try:
            loaded = self._stamps.load()
        except OSError as error:
            self._failed("stamp", error)
            return recalled.highest
        if loaded.damaged:
            self._log.warning("stamp_damaged", note=loaded.note, highest_in_history=str(recalled.highest))
        return max(loaded.stamp, recalled.highest)

    async def _write(self, seen: Stamp, rows: Sequence[Row]) -> None:
        """Return when both are on disk, whichever is first: what is read back is the higher of the two."""
        self._owed = max(self._owed, seen)
        run, stamp = asyncio.get_running_loop().run_in_executor, partial(self._stamps.write, self._owed)
        await asyncio.gather(
            run(self._stamp_thread, self._attempt, "stamp", stamp),
            run(self._thread, self._write_history, rows),
        )

    def _write_history(self, rows: Sequence[Row]) -> None:
        self._attempt("history", partial(self._history.write, rows))
        note = self._history.take_note()
        if note:
            self._log.warning("history_damaged", note=note)

    def _attempt(self, what: str, write: Callable[[], None]) -> None:
        try:
            write()
        except _FAILURES as error:
            self._failed(what, error)
        else:
            if self._trouble.pop(what, None) is not None:
                self._log.info("store_works_again", file=what, lost=self._history.lost)

    def _failed(self, what: str, error: Exception) -> None:
        if what not in self._trouble:
            self._log.error("store_failed", file=what, error=str(error), kept="in memory, tried again")
        self._trouble[what] = f"{what} cannot be written: {error}"

    async def _retry(self) -> None:
        while self._trouble:
            await asyncio.sleep(self._retry_s)
            await self._write(NO_STAMP, [])
        self._retrying = None
