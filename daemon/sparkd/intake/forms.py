"""Forms in which one line of a program stands on many lines → a line each, as the short forms have it.

Known are journalctl's `-o export` (FIELD=value, entries apart by an empty line), `-o verbose` (a line with
the time, then fields) and `-o json-pretty`; its `-o short-unix`, whose time is told as others tell it; and
what was taken from a screen. Whatever else a log is stays as it is. Bounded: one entry is held.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

from sparkd.intake import jsonlines
from sparkd.intake.lines import HEAD_BYTES
from sparkd.intake.terminal import Screen, width_of
from sparkd.signals import prefix, wrapping

ENTRY_BYTES_MAX = 1 << 20
# What journalctl says before the first entry.
_NOTE = b"-- "
_EXPORT_TIME = b"__REALTIME_TIMESTAMP="
# Compiled where they are needed: most logs are of none of these forms, and a person waits for the start.
_STAMP = rb"[A-Z][a-z]{2} (\d{4}-\d\d-\d\d) (\d\d:\d\d:\d\d(?:\.\d+)?) ([A-Z]{2,5}) \[s=[0-9a-f]+;"
_UNIX = rb"(\d{9,11}\.\d{6}) (?=[\w.-]+ [^\s\[]+(?:\[\d+\])?: )"
_FIELD = rb"([A-Z_][A-Z0-9_]*)(?:=(.*))?\Z"
_SHORT_BINARY = 256
_Take = Callable[["Plain", bytes], Iterator[bytes]]


class Plain:
    """Turns one log's blocks into lines that `wrapping` and `prefix` can read."""

    def __init__(self) -> None:
        self._take: _Take | None = None
        self._begun = False
        self._entry: dict[str, Any] = {}
        self._field = ""
        self._binary = False
        self._raw = bytearray()
        self._screen: Screen | None = None

    def lines(self, block: bytes) -> bytes:
        """Return a block of whole lines with each entry on a line of its own."""
        if not self._begun:
            self._begun = True
            self._take = _form_of(block) or self._from_screen(block)
        if self._take is None:
            return jsonlines.plain(block)
        return b"".join(part for line in block.split(b"\n")[:-1] for part in self._take(self, line))

    def flush(self) -> bytes:
        """Return the entry that the log's end has closed."""
        rest = bytes(self._raw)
        self._raw.clear()
        held = self._screen.flush() if self._screen is not None else ()
        return rest + self._close() + b"".join(map(_encoded, held))

    def export(self, line: bytes) -> Iterator[bytes]:
        """Take a line of `-o export`."""
        if not line:
            yield self._close()
            return
        field = None if self._binary else re.match(_FIELD, line)
        if field is not None and field[2] is None:
            self._field, self._binary = field[1].decode(), True
            self._entry[self._field] = ""
        elif field is not None:
            self._set(field)
        else:
            self._continue(_without_size(line) if self._binary else line)
            self._binary = False

    def verbose(self, line: bytes) -> Iterator[bytes]:
        """Take a line of `-o verbose`."""
        stamp = re.match(_STAMP, line)
        if stamp is not None:
            yield self._close()
            day, clock, zone = (group.decode() for group in stamp.groups())
            self._entry["time"] = f"{day}T{clock}Z" if zone == "UTC" else f"{day} {clock}"
            return
        field = re.match(_FIELD, line.strip())
        if field is not None and field[2] is not None:
            self._set(field)
        else:
            self._continue(line.strip())

    def unix(self, line: bytes) -> Iterator[bytes]:
        """Take a line of `-o short-unix`."""
        found = re.match(_UNIX, line)
        if found is not None:
            line = f"{jsonlines.stamp_of(float(found[1]))} ".encode() + line[found.end() :]
        yield line + b"\n"

    def pretty(self, line: bytes) -> Iterator[bytes]:
        """Take a line of `-o json-pretty`; an object that is no entry stays as it is."""
        self._raw += line + b"\n"
        if line.rstrip() != b"}" and len(self._raw) < ENTRY_BYTES_MAX:
            return
        raw = bytes(self._raw)
        self._raw.clear()
        try:
            entry = json.loads(raw)
        except (ValueError, RecursionError):
            entry = None
        yield (jsonlines.of_entry(entry) if isinstance(entry, dict) else None) or raw

    def screen(self, line: bytes) -> Iterator[bytes]:
        """Take a line of a screen."""
        if self._screen is not None:
            yield from map(_encoded, self._screen.take(line.decode("utf-8", "replace")))

    def _from_screen(self, block: bytes) -> _Take | None:
        head = block[:HEAD_BYTES].decode("utf-8", "replace").split("\n")[:-1]
        width = width_of([line for line in head if line], is_headed)
        if width is None:
            return None
        self._screen = Screen(width, is_headed)
        return Plain.screen

    def _set(self, field: re.Match[bytes]) -> None:
        self._field = field[1].decode()
        self._entry[self._field] = field[2].decode("utf-8", "replace")

    def _continue(self, line: bytes) -> None:
        held = str(self._entry.get(self._field, ""))
        if len(held) < ENTRY_BYTES_MAX:
            self._entry[self._field] = f"{held}\n{line.decode('utf-8', 'replace')}".lstrip("\n")

    def _close(self) -> bytes:
        entry, self._entry, self._field = self._entry, {}, ""
        return jsonlines.of_entry(entry) or b""


def is_headed(line: str) -> bool:
    """Return whether a line says when, how loud, or by whom it was written."""
    outer = wrapping.unwrap(line)
    parts = prefix.split(outer.body)
    return bool(outer.time or outer.machine or parts.level or parts.printed or parts.process)


def _form_of(block: bytes) -> _Take | None:
    head = block[:HEAD_BYTES].lstrip(b"\n")
    while head.startswith(_NOTE):
        head = head.partition(b"\n")[2].lstrip(b"\n")
    line = head.partition(b"\n")[0]
    if line.rstrip() == b"{":
        return Plain.pretty
    if b" [s=" in line and re.match(_STAMP, line):
        return Plain.verbose
    if b"=" in line and _EXPORT_TIME in head.partition(b"\n\n")[0] and re.match(_FIELD, line):
        return Plain.export
    return Plain.unix if line[:1].isdigit() and re.match(_UNIX, line) else None


def _encoded(line: str) -> bytes:
    return f"{line}\n".encode("utf-8", "replace")


def _without_size(line: bytes) -> bytes:
    """Return a binary value without the size before it, of which the zeros were taken out."""
    return line[1:] if len(line) <= _SHORT_BINARY else line[2:]
