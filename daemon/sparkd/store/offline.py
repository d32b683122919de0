"""What the last daemon kept, for a question that is asked while none runs: no lock is taken, no file touched.

The history is copied first: SQLite would make files of its own beside it, which the daemon's user could then
not write, and where the last daemon was killed its newest words are still in the log beside the file.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
import tempfile
from contextlib import closing, suppress
from pathlib import Path

from sparkd.core.records import Kept
from sparkd.store.codec import kept_from
from sparkd.store.history import NAME
from sparkd.store.view import HistoryUnreadableError


def kept_at(directory: Path) -> Kept | None:
    """Return what was kept in a state directory, None where nothing was.

    Raises:
        HistoryUnreadableError: why, in one line.
    """
    try:
        with tempfile.TemporaryDirectory(prefix="sparkd-plan-") as folder:
            copy = Path(folder) / NAME
            for end in ("", "-wal"):
                with suppress(FileNotFoundError):
                    shutil.copyfile(directory / f"{NAME}{end}", f"{copy}{end}")
            return _kept(copy) if copy.exists() else None
    except (OSError, sqlite3.Error, ValueError) as error:
        told = error.strerror if isinstance(error, OSError) else error
        raise HistoryUnreadableError(f"{directory / NAME} cannot be read: {told}") from error


def _kept(path: Path) -> Kept | None:
    with closing(sqlite3.connect(path)) as connection:
        row = connection.execute("SELECT body FROM fact WHERE name = 'kept'").fetchone()
    return kept_from(dict(json.loads(row[0]))) if row else None
