"""The stamp file: the highest stamp that this node has ever seen, in 8 KiB that never grow.

Two slots of one page each, written in turn, in place, followed by fdatasync:

- no block is allocated after the file was made, so a full disk cannot stop a write;
- the slot that holds the newest stamp is never the one being written, so a torn write loses at most the
  stamp that was not yet acknowledged;
- a slot is one line of text of fixed length that ends with its own CRC, so a person can read it with `cat`.

The file appears with two valid slots (made beside it, then renamed), so a file without any is damaged.
"""

from __future__ import annotations

import os
import re
import zlib
from dataclasses import dataclass
from pathlib import Path

from sparkd.files import replace_whole, write_all
from sparkd.store.aside import move_aside
from sparkd.words import NO_STAMP, Stamp

SLOT_BYTES = 4096
SLOTS = 2
_LINE = re.compile(rb"sparkd-stamp 1 (\d{20}) (\d{20}) ([0-9a-f]{8})\n")


@dataclass(frozen=True, slots=True)
class Loaded:
    """What the file said. `damaged`: neither slot was valid; `note`: what was done about it, else empty."""

    stamp: Stamp = NO_STAMP
    damaged: bool = False
    note: str = ""


def encode(stamp: Stamp) -> bytes:
    """Return one slot: a line with its CRC, filled with spaces to `SLOT_BYTES`."""
    head = f"sparkd-stamp 1 {stamp.epoch:020d} {stamp.generation:020d} ".encode()
    line = head + f"{zlib.crc32(head):08x}\n".encode()
    return line.ljust(SLOT_BYTES, b" ")


def decode(slot: bytes) -> Stamp | None:
    """Return the slot's stamp, None where it is not exactly what `encode` writes."""
    found = _LINE.match(slot)
    if found is None:
        return None
    stamp = Stamp(int(found[1]), int(found[2]))
    return stamp if encode(stamp) == slot else None


class StampFile:
    """The file and its two slots. Not thread-safe: one writer, as everywhere."""

    def __init__(self, path: Path) -> None:
        """Open nothing yet: `load` does.

        Args:
            path: the file; its directory exists.
        """
        self._path = path
        self._fd = -1
        self._stamp = NO_STAMP
        self._next = 0

    def load(self) -> Loaded:
        """Return the highest valid stamp; a damaged file is moved aside and a new one made.

        Raises:
            OSError: the directory cannot be read or written (a full disk, for one).
        """
        self.close()
        loaded = self._read()
        if loaded.damaged or not self._path.exists():
            self._make(loaded.stamp)
        return loaded

    def write(self, stamp: Stamp) -> None:
        """Make *stamp* durable, if it is higher than what the file holds: it never goes back.

        Raises:
            OSError: the device failed; the older stamp is still there and the same slot is tried next.
        """
        if self._fd < 0 and not self._path.exists():
            self._make(self._stamp)
        if stamp <= self._stamp:
            return
        self._put(self._next, stamp)
        os.fdatasync(self._open())
        self._stamp = stamp
        self._next = (self._next + 1) % SLOTS

    def close(self) -> None:
        """Close the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _read(self) -> Loaded:
        try:
            content = self._path.read_bytes()
        except FileNotFoundError:
            return Loaded()
        slots = [decode(content[i * SLOT_BYTES : (i + 1) * SLOT_BYTES]) for i in range(SLOTS)]
        valid = [(stamp, index) for index, stamp in enumerate(slots) if stamp is not None]
        if not valid:
            return Loaded(damaged=True, note=move_aside(self._path))
        self._stamp, newest = max(valid)
        self._next = (newest + 1) % SLOTS
        return Loaded(self._stamp)

    def _make(self, stamp: Stamp) -> None:
        replace_whole(self._path, encode(stamp) * SLOTS, 0o640, durable=True)

    def _open(self) -> int:
        if self._fd < 0:
            self._fd = os.open(self._path, os.O_WRONLY)
        return self._fd

    def _put(self, slot: int, stamp: Stamp) -> None:
        write_all(self._open(), encode(stamp), slot * SLOT_BYTES)
