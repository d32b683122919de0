"""The history as people read it: asked for by the operator socket and the status page, never by the core."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any, TypeVar

from sparkd.store.history import History
from sparkd.store.incidents import incident_list, incident_show

_Read = TypeVar("_Read")


class HistoryUnreadableError(Exception):
    """The history cannot be read now; the text says why."""


class HistoryView:
    """Reads of the history, each in the store's own thread (so never beside a write)."""

    def __init__(self, history: History, thread: Executor) -> None:
        """Share the store's history and its one thread."""
        self._history = history
        self._thread = thread

    async def incidents(self, limit: int = 50) -> list[dict[str, Any]]:
        """Return summaries of the newest incidents, newest first. Raises HistoryUnreadableError."""
        return await self._read(lambda: incident_list(self._history, limit))

    async def incident(self, number: int) -> dict[str, Any] | None:
        """Return one incident in full, None where there is none. Raises HistoryUnreadableError."""
        return await self._read(lambda: incident_show(self._history, number))

    async def last_closed(self) -> dict[str, Any] | None:
        """Return the newest incident that is over, None = none. Raises HistoryUnreadableError."""
        newest = await self.incidents(5)
        return next((incident for incident in newest if incident["outcome"] is not None), None)

    async def learned(self) -> dict[str, Any] | None:
        """Return what was learned (settings, asked, reason, wall_s), None where nothing was.

        Raises HistoryUnreadableError.
        """
        rows = await self._read(lambda: self._history.select("SELECT body FROM fact WHERE name = 'learned'"))
        return dict(json.loads(rows[0][0])) if rows else None

    async def _read(self, read: Callable[[], _Read]) -> _Read:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, read)
        except (OSError, sqlite3.Error, ValueError) as error:
            raise HistoryUnreadableError(f"the history cannot be read now: {error}") from error
