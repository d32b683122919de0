"""The journal of this node as a log source: the output of the engine's units, and the kernel's records.

- **Nothing is lost to a restart of the daemon.** How far the journal was read is on disk (its cursor). What a
  unit said in between is held until it is known whether it runs on (`resume`) or is started anew (`open`).
- **The kernel's records begin with the daemon**: what happened before it says nothing about now.
- **A unit's entries belong to the generation that was opened last.** Nothing of a unit is started before the
  older generation is dead and read to its end.
- **Bounded.** A turn hands on about `TURN_BYTES` and is followed by a rest; what is held is cut at its front.
- journald breaks lines of more than 48 KiB (`LineMax=`) and says so; their parts are put together again.

Needs systemd-python; without it, or without the right to read, nothing is known, and that is said.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import structlog

from sparkd.files import replace_whole
from sparkd.words import UnitName

log = structlog.get_logger(__name__)

Feed = Callable[[str, UnitName | None, int, bytes], None]
Connect = Callable[[], Any]

KERNEL = "kernel"
TURN_BYTES = 256 * 1024
TURN_ENTRIES = 500
REST_S = 0.01
LOOK_EVERY_S = 1.0
"""The journal's own notice may be late (a rotated file, a file system without inotify)."""
SAVE_EVERY_S = 1.0
HELD_MAX_BYTES = 4 << 20
QUIET_S = 0.1
"""journald takes what a dead process has written within milliseconds; so long without more is the end."""


def local_journal() -> Any:
    """Open this machine's journal of this boot. Raises OSError, ImportError where it cannot be read."""
    from systemd import journal

    reader = journal.Reader(journal.LOCAL_ONLY | journal.SYSTEM_ONLY)
    reader.this_boot()
    return reader


class Cursor:
    """How far was read, kept on disk. Lost, it costs a few lines; so a full disk is no reason to stop."""

    def __init__(self, path: Path) -> None:
        self.at = ""
        self._path, self._saved = path, ""
        self._saving: asyncio.TimerHandle | None = None

    def load(self) -> str:
        """Return what an earlier daemon kept, empty where there is nothing that can be understood."""
        with contextlib.suppress(OSError, UnicodeDecodeError):
            self.at = self._path.read_text(encoding="ascii").strip()
        return self.at

    def save_later(self) -> None:
        """Keep it within `SAVE_EVERY_S`."""
        if self._saving is None:
            self._saving = asyncio.get_running_loop().call_later(SAVE_EVERY_S, self._save)

    def close(self) -> None:
        """Keep it now."""
        if self._saving is not None:
            self._saving.cancel()
        self._save()

    def _save(self) -> None:
        self._saving = None
        if self.at == self._saved:
            return
        try:
            replace_whole(self._path, self.at.encode("ascii"), 0o640)
        except OSError as error:
            log.warning("journal_cursor_not_kept", path=str(self._path), reason=str(error))
        self._saved = self.at


class Tape:
    """The entries of some units, and of the kernel, one after another from where the last daemon stopped.

    Args: as of `Journal`.
    """

    def __init__(self, names: Iterable[str], cursor_path: Path, *, kernel: bool, connect: Connect) -> None:
        self.cursor = Cursor(cursor_path)
        self._names, self._kernel, self._connect = tuple(names), kernel, connect
        self._open: Any = None

    @property
    def is_open(self) -> bool:
        """Whether it is read."""
        return self._open is not None

    def open(self, noticed: Callable[[], None]) -> None:
        """Begin, and call *noticed* when there is more. Raises OSError, ImportError, ValueError."""
        reader = self._connect()
        self._seek(reader)
        self._match(reader)
        asyncio.get_running_loop().add_reader(reader.fileno(), noticed)
        self._open = reader

    def take_notice(self) -> None:
        """Let the library see that the journal has grown or was rotated."""
        self._open.process()

    def entries(self) -> Iterator[dict[str, Any]]:
        """Yield what comes next, at most about `TURN_BYTES`. Raises OSError where it cannot be read."""
        size = 0
        for _ in range(TURN_ENTRIES):
            entry = self._open.get_next()
            if not entry:
                return
            self.cursor.at = entry["__CURSOR"]
            yield entry
            size += len(entry.get("MESSAGE", ""))
            if size >= TURN_BYTES:
                return

    def close(self) -> None:
        """Stop; how far was read is kept."""
        self.cursor.close()
        if self._open is not None:
            asyncio.get_running_loop().remove_reader(self._open.fileno())
            self._open.close()
            self._open = None

    def _match(self, reader: Any) -> None:
        for name in self._names:
            reader.add_match(_SYSTEMD_UNIT=name)
        if self._kernel:
            reader.add_disjunction()
            reader.add_match(_TRANSPORT=KERNEL)

    def _seek(self, reader: Any) -> None:
        """Go behind what the last daemon has read; where nobody has read, behind all there is.

        Before the matches: from a tail before which nothing matches, the reader skips what comes next.
        """
        if cursor := self.cursor.load():
            with contextlib.suppress(OSError, ValueError):
                reader.seek_cursor(cursor)
                if (at := reader.get_next()) and at["__CURSOR"] == cursor:
                    return
            log.warning("journal_cursor_lost", note="what the engine said before this start is not read")
        reader.seek_tail()
        reader.get_previous()


class Journal:
    """The port `Sources` over the journal.

    Args:
        feed: takes (source, unit, generation, bytes) on the loop's thread.
        units: the system's name of each unit.
        cursor_path: where it is kept how far was read.
        kernel: whether the kernel's records are taken from here, too.
        connect: opens the journal.
        drain_s: longest time of one drain; the core decides 2 s after a failure at the latest.
    """

    def __init__(
        self,
        feed: Feed,
        units: Mapping[UnitName, str],
        cursor_path: Path,
        *,
        kernel: bool = True,
        connect: Connect = local_journal,
        drain_s: float = 1.5,
    ) -> None:
        self._feed, self._drain_s = feed, drain_s
        self._names = {name: unit for unit, name in units.items()}
        self._tape = Tape(self._names, cursor_path, kernel=kernel, connect=connect)
        self._begun_s = time.monotonic()
        self._generations: dict[UnitName, int] = {}
        self._held: dict[UnitName, bytearray] = {}
        self._next: asyncio.TimerHandle | None = None

    @property
    def readable(self) -> bool:
        """Whether it is read; where it is not, what the units say is unknown."""
        return self._tape.is_open

    def start(self) -> None:
        """Read from where the last daemon stopped, on the running loop; where that cannot be, say so."""
        try:
            self._tape.open(self._look)
        except (OSError, ImportError, ValueError) as error:
            self._unknown(error)
        else:
            self._turn()

    def open(self, unit: UnitName, generation: int) -> None:
        """Follow a unit that is going to be started: what it said before is not of this generation."""
        self._read_turn()
        self._held.pop(unit, None)
        self._generations[unit] = generation

    def resume(self, unit: UnitName, generation: int) -> None:
        """Follow a unit that runs already, from where an earlier daemon stopped reading."""
        self._generations[unit] = generation
        if held := self._held.pop(unit, None):
            self._feed(f"{unit.value} log", unit, generation, bytes(held))

    async def drain(self, generation: int) -> None:
        """Read on until nothing more comes, hand all of it on, and forget the generation."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self._drain_s
        quiet_at = loop.time() + QUIET_S
        while self.readable and loop.time() < min(until, quiet_at):
            if self._read_turn():
                quiet_at = loop.time() + QUIET_S
            await asyncio.sleep(REST_S)
        self._generations = {unit: g for unit, g in self._generations.items() if g != generation}

    async def close(self) -> None:
        """Stop following; how far was read is kept."""
        if self._next is not None:
            self._next.cancel()
        self._tape.close()

    def _turn(self) -> None:
        """Read once and rest, so that a flood leaves the loop time for everything else."""
        if self._next is not None:
            self._next.cancel()
        more = self._read_turn()
        if self.readable:
            self._next = asyncio.get_running_loop().call_later(REST_S if more else LOOK_EVERY_S, self._look)

    def _look(self) -> None:
        if self.readable:
            self._tape.take_notice()
            self._turn()

    def _read_turn(self) -> int:
        """Hand on at most a turn's entries; return how many."""
        if not self.readable:
            return 0
        try:
            return self._hand_on(self._tape.entries())
        except OSError as error:
            self._unknown(error)
            return 0

    def _hand_on(self, entries: Iterator[dict[str, Any]]) -> int:
        """Hand on what follows each other of one source together; return the number of entries."""
        count = 0
        chunk, before = bytearray(), None
        for entry in entries:
            count += 1
            source = self._source_of(entry)
            if source != before:
                self._tell(before, chunk)
                chunk, before = bytearray(), source
            chunk += _text(entry)
        self._tell(before, chunk)
        if count:
            self._tape.cursor.save_later()
        return count

    def _source_of(self, entry: dict[str, Any]) -> UnitName | str | None:
        if entry.get("_TRANSPORT") == KERNEL:
            said_s = entry["__MONOTONIC_TIMESTAMP"].timestamp.total_seconds()
            return KERNEL if said_s >= self._begun_s else None
        return self._names.get(entry.get("_SYSTEMD_UNIT", ""))

    def _tell(self, source: UnitName | str | None, chunk: bytearray) -> None:
        if source is None or not chunk:
            return
        if not isinstance(source, UnitName):
            self._feed(KERNEL, None, 0, bytes(chunk))
        elif source in self._generations:
            self._feed(f"{source.value} log", source, self._generations[source], bytes(chunk))
        else:
            held = self._held.setdefault(source, bytearray())
            held += chunk
            del held[: max(0, len(held) - HELD_MAX_BYTES)]

    def _unknown(self, error: Exception) -> None:
        self._tape.close()
        log.warning(
            "journal_unknown",
            reason=str(error),
            note="what the engine says is not seen on this node: the daemon's user must be in the group "
            "systemd-journal, and systemd-python must be installed",
        )


def _text(entry: dict[str, Any]) -> bytes:
    """Return an entry's text as the bytes that were written, with its line end where it had one."""
    message = entry.get("MESSAGE", "")
    parts = message if isinstance(message, list) else [message]
    text = b"\n".join(part if isinstance(part, bytes) else str(part).encode() for part in parts)
    return text if entry.get("_LINE_BREAK") == "line-max" else text + b"\n"
