"""The history's SQLite file: opening, checking, schema, and which of its errors mean what."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from pathlib import Path

from sparkd.store.aside import move_aside

SCHEMA = 1
_TABLES = """
CREATE TABLE record (
    id INTEGER PRIMARY KEY,
    wall_s REAL NOT NULL,          -- wall clock, for people only
    kind TEXT NOT NULL,
    incident INTEGER,              -- the incident that it belongs to, or during which it happened
    milestone INTEGER NOT NULL,    -- 1: opened, remedied, closed: kept longest
    body TEXT NOT NULL
);
CREATE INDEX record_incident ON record (incident, id) WHERE incident IS NOT NULL;
CREATE INDEX record_milestone ON record (milestone, id);
CREATE TABLE fact (name TEXT PRIMARY KEY, body TEXT NOT NULL);
"""
_DAMAGE = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


class DatabaseUnusableError(Exception):
    """The file is not a history that this version can use; the text says why."""


@dataclass(frozen=True, slots=True)
class Opened:
    """An open database and what had to be done to get it (`note`, else empty)."""

    connection: sqlite3.Connection
    note: str = ""


def damaged(error: sqlite3.Error) -> bool:
    """Return whether *error* says that the file itself is broken (not that the disk is full or busy)."""
    code = getattr(error, "sqlite_errorcode", None)
    return code is not None and code & 0xFF in _DAMAGE


def open_database(path: Path) -> Opened:
    """Open the database, checked; one that cannot be used is moved aside and a new one made.

    Raises:
        sqlite3.Error, OSError: it cannot be opened or made now (a full disk, for one).
    """
    try:
        return Opened(_open(path))
    except DatabaseUnusableError as error:
        note = f"{move_aside(path, '-wal', '-shm')}: {error}"
    return Opened(_open(path), note)


def _open(path: Path) -> sqlite3.Connection:
    # The store's one worker thread and, before it starts, the main thread use it; never two at once.
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=1.0)
    try:
        # The state directory is locked for this daemon alone. Without shared memory there is one file less
        # to make, so that a history can be read when the disk is full.
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        connection.execute("PRAGMA journal_mode = WAL")
        _check(connection)
    except sqlite3.Error as error:
        connection.close()
        if damaged(error):
            raise DatabaseUnusableError(str(error)) from error
        raise
    except DatabaseUnusableError:
        connection.close()
        raise
    return connection


def _check(connection: sqlite3.Connection) -> None:
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    tables = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]
    if version == 0 and tables == 0:
        connection.executescript(f"BEGIN;{_TABLES}PRAGMA user_version = {SCHEMA};COMMIT;")
        return
    if version != SCHEMA:
        raise DatabaseUnusableError(f"its schema is {version}, this version knows {SCHEMA}")
    verdict = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
    if verdict != "ok":
        raise DatabaseUnusableError(str(verdict))
