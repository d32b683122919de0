"""The history: every record worth keeping, in SQLite, and the incidents seen through it.

A write is one transaction. Batches with a durable record are committed with `synchronous = FULL`, others
without waiting for the disk. What cannot be written (full disk) waits in a bounded queue and goes with the
next write; what is on disk already is not touched by that.
"""

from __future__ import annotations

import json
import sqlite3
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from sparkd.core.records import (
    DURABLE,
    IncidentClosed,
    IncidentOpened,
    Kept,
    KeptChanged,
    MemberRan,
    MemberRested,
    MessageDropped,
    Record,
    Remedied,
    SettingsAdopted,
    StampAdvanced,
)
from sparkd.store.codec import body_of, kept_from, kind_of, settings_body, settings_from
from sparkd.store.database import damaged, open_database
from sparkd.words import NO_STAMP, Settings, Stamp

NAME = "history.sqlite"
"""The file in the state directory."""
_MILESTONES = (IncidentOpened, Remedied, IncidentClosed)


@dataclass(frozen=True, slots=True)
class Retention:
    """How much is kept: rows of milestones (three or so an incident), other rows, rows waiting."""

    milestones: int = 5_000
    others: int = 20_000
    queued: int = 2_000
    trim_every: int = 500


@dataclass(frozen=True, slots=True)
class Row:
    """One record as it is kept. `facts`: (name, JSON) that change with it."""

    wall_s: float
    kind: str
    incident: int | None
    milestone: bool
    durable: bool
    body: str
    facts: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Recalled:
    """What the history knows at start. `note`: what was wrong with the file, else empty."""

    incidents: int = 0
    settings: Settings | None = None
    asked: Settings | None = None
    kept: Kept = field(default_factory=Kept)
    unclean_generation: int = 0
    unrested: bool = False
    ran_at_s: float | None = None
    returned: tuple[int, ...] = ()
    highest: Stamp = NO_STAMP
    note: str = ""


@dataclass(slots=True)
class _Queue:
    rows: deque[Row] = field(default_factory=deque)
    lost: int = 0


class History:
    """The SQLite file. Not thread-safe: the store calls it from one thread."""

    def __init__(self, path: Path, retention: Retention | None = None, boot: str = "") -> None:
        """Open nothing yet: `load` or the first write does.

        Args:
            path: the database file; its directory exists.
            retention: bounds, see there.
            boot: id of the machine's boot: what ran in an earlier one did not end by our hand.
        """
        self._path = path
        self._boot = boot
        self._keep = retention or Retention()
        self._connection: sqlite3.Connection | None = None
        self._waiting = _Queue()
        self._written = 0
        self._incident: int | None = None
        self._note = ""

    @property
    def queued(self) -> int:
        """Rows that wait in memory for the disk."""
        return len(self._waiting.rows)

    @property
    def lost(self) -> int:
        """Rows given up because the queue was full, since the start."""
        return self._waiting.lost

    def load(self) -> Recalled:
        """Return what is remembered. A damaged file is moved aside and a new one made.

        Raises:
            sqlite3.Error, OSError: the file can be neither read nor made now.
        """
        connection = self._open()
        facts = dict(connection.execute("SELECT name, body FROM fact").fetchall())
        learned = _parsed(facts.get("learned"))
        stamp = _parsed(facts.get("seen"))
        return Recalled(
            incidents=int(_parsed(facts.get("incidents")).get("number", 0)),
            settings=settings_from(learned.get("settings")),
            asked=settings_from(learned.get("asked")),
            kept=_kept(_parsed(facts.get("kept")), self._boot),
            unclean_generation=_unclean(_parsed(facts.get("ran")), self._boot),
            unrested=_unrested(_parsed(facts.get("ran")), self._boot),
            ran_at_s=_ran_at_s(_parsed(facts.get("ran")), self._boot),
            returned=_returned(_parsed(facts.get("ran")), self._boot),
            highest=Stamp(int(stamp.get("epoch", 0)), int(stamp.get("generation", 0))),
            note=self.take_note(),
        )

    def rows(self, records: Sequence[Record], wall_s: float, asked: Settings) -> list[Row]:
        """Return *records* as rows; each belongs to its own incident or to the one that is open.

        Args:
            records: of one step; dropped messages are not kept (their rate is the sender's).
            wall_s: wall clock, for people.
            asked: the settings that the operator asks for, kept beside those that are learned.
        """
        return [
            self._row(record, wall_s, asked) for record in records if not isinstance(record, MessageDropped)
        ]

    def write(self, rows: Sequence[Row]) -> None:
        """Write *rows* after those that wait. Once this returns, the durable ones are on disk.

        Raises:
            sqlite3.Error, OSError: nothing of it was written; all of it waits in memory for the next call.
        """
        for row in rows:
            self._enqueue(row)
        batch = list(self._waiting.rows)
        if batch:
            self._commit(batch)
            self._waiting.rows.clear()

    def take_note(self) -> str:
        """Return what had to be done to the file since the last call, else an empty text."""
        note, self._note = self._note, ""
        return note

    def select(self, query: str, parameters: tuple[object, ...] = ()) -> list[tuple[Any, ...]]:
        """Return the rows of a reading query.

        Raises:
            sqlite3.Error, OSError: the file cannot be read now.
        """
        return self._open().execute(query, parameters).fetchall()

    def close(self) -> None:
        """Close the file."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            opened = open_database(self._path)
            self._connection = opened.connection
            self._note = opened.note or self._note
        return self._connection

    def _row(self, record: Record, wall_s: float, asked: Settings) -> Row:
        if isinstance(record, IncidentOpened):
            self._incident = record.incident
        incident = getattr(record, "incident", self._incident)
        if isinstance(record, IncidentClosed):
            self._incident = None
        return Row(
            wall_s=wall_s,
            kind=kind_of(record),
            incident=incident,
            milestone=isinstance(record, _MILESTONES),
            durable=isinstance(record, DURABLE) and not isinstance(record, StampAdvanced),
            body=body_of(record),
            facts=_facts(record, wall_s, asked, self._boot),
        )

    def _enqueue(self, row: Row) -> None:
        rows = self._waiting.rows
        if len(rows) >= self._keep.queued:
            # What tells an incident goes last.
            victim = next((index for index, old in enumerate(rows) if not old.milestone), 0)
            del rows[victim]
            self._waiting.lost += 1
        rows.append(row)

    def _commit(self, batch: list[Row]) -> None:
        try:
            self._transaction(batch)
        except sqlite3.Error as error:
            if not damaged(error):
                raise
            self.close()
            self._transaction(batch)

    def _transaction(self, batch: list[Row]) -> None:
        connection = self._open()
        mode = "FULL" if any(row.durable for row in batch) else "NORMAL"
        connection.execute(f"PRAGMA synchronous = {mode}")
        connection.execute("BEGIN IMMEDIATE")
        try:
            _insert(connection, batch)
            self._trim(connection, len(batch))
            connection.execute("COMMIT")
        except sqlite3.Error:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise

    def _trim(self, connection: sqlite3.Connection, added: int) -> None:
        self._written += added
        if self._written < self._keep.trim_every:
            return
        self._written = 0
        for milestone, kept in ((1, self._keep.milestones), (0, self._keep.others)):
            connection.execute(
                "DELETE FROM record WHERE milestone = :m AND id <= "
                "(SELECT id FROM record WHERE milestone = :m ORDER BY id DESC LIMIT 1 OFFSET :kept)",
                {"m": milestone, "kept": kept},
            )


def _kept(body: dict[str, Any], boot: str) -> Kept:
    """Return what was kept; a reboot is what a person can do: what was escalated before it is tried once."""
    kept = kept_from(body)
    return kept if body.get("boot") == boot else replace(kept, needs="", may_pass=False, config="")


def _unclean(ran: dict[str, Any], boot: str) -> int:
    """Return the generation that ran when another boot ended, 0 = none."""
    over = ran.get("resting", True) or ran.get("boot") == boot
    return 0 if over else int(ran.get("generation", 0))


def _unrested(ran: dict[str, Any], boot: str) -> bool:
    """Return whether something ran in this boot that was not noted as resting."""
    return not ran.get("resting", True) and ran.get("boot") == boot


def _ran_at_s(ran: dict[str, Any], boot: str) -> float | None:
    """Return since when it ran: of another boot, or of a daemon that did not note it, nobody knows."""
    at_s = ran.get("at_s")
    return float(at_s) if isinstance(at_s, int | float) and _unrested(ran, boot) else None


def _returned(ran: dict[str, Any], boot: str) -> tuple[int, ...]:
    """A boot begins with all of the memory."""
    return tuple(map(int, ran.get("returned", ()))) if ran.get("boot") == boot else ()


def _insert(connection: sqlite3.Connection, batch: list[Row]) -> None:
    connection.executemany(
        "INSERT INTO record (wall_s, kind, incident, milestone, body) VALUES (?, ?, ?, ?, ?)",
        [(row.wall_s, row.kind, row.incident, int(row.milestone), row.body) for row in batch],
    )
    connection.executemany(
        "INSERT INTO fact (name, body) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET body = excluded.body",
        [fact for row in batch for fact in row.facts],
    )


def _facts(record: Record, wall_s: float, asked: Settings, boot: str) -> tuple[tuple[str, str], ...]:
    match record:
        case IncidentOpened(incident=number):
            return (("incidents", json.dumps({"number": number})),)
        case StampAdvanced(seen=seen):
            return (("seen", json.dumps({"epoch": seen.epoch, "generation": seen.generation})),)
        case SettingsAdopted(settings=settings, reason=reason):
            learned = {
                "settings": settings_body(settings),
                "asked": settings_body(asked),
                "reason": reason,
                "wall_s": wall_s,
            }
            return (("learned", json.dumps(learned)),)
        case KeptChanged(kept=kept):
            return (("kept", json.dumps({**asdict(kept), "boot": boot})),)
        case MemberRan(generation=generation, returned=returned, at_s=at_s):
            ran = {"generation": generation, "boot": boot, "resting": False, "returned": returned}
            ran["at_s"] = at_s
            return (("ran", json.dumps(ran)),)
        case MemberRested(generation=generation, returned=returned):
            ran = {"generation": generation, "boot": boot, "resting": True, "returned": returned}
            return (("ran", json.dumps(ran)),)
    return ()


def _parsed(body: str | None) -> dict[str, Any]:
    try:
        value = json.loads(body or "{}")
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
