"""The header of a safetensors file, read so that nothing of the weights comes into the page cache.

The format: 8 bytes little-endian length of the header, the header (JSON; `data_offsets` count from its end),
the data.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

HEADER_MAX_BYTES = 100_000_000
"""The format's own limit of a header (safetensors, MAX_HEADER_SIZE)."""
_LENGTH_BYTES = 8


@dataclass(frozen=True, slots=True)
class Header:
    """What the beginning of a file says.

    Attributes:
        missing: how many of the bytes of the length are missing; 0 = it is whole.
        length: of the header, as the file says it.
        text: the header; cut where the file ends, empty where `length` is above the format's limit.
    """

    missing: int
    length: int = 0
    text: bytes = b""


def read_header(path: Path) -> Header:
    """Read the header alone. Raises OSError.

    No access time is written, nothing is read ahead, and the pages of the header are given back.
    """
    fd = open_quietly(path)
    try:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
        head = os.pread(fd, _LENGTH_BYTES, 0)
        if len(head) < _LENGTH_BYTES:
            return Header(_LENGTH_BYTES - len(head))
        length = int.from_bytes(head, "little")
        if length > HEADER_MAX_BYTES:
            return Header(0, length)
        text = os.pread(fd, length, _LENGTH_BYTES)
        os.posix_fadvise(fd, 0, _LENGTH_BYTES + length, os.POSIX_FADV_DONTNEED)
        return Header(0, length, text)
    finally:
        os.close(fd)


def open_quietly(path: Path) -> int:
    """Open for reading without changing the access time, which only the file's owner may ask for."""
    flags = os.O_RDONLY | os.O_CLOEXEC
    try:
        return os.open(path, flags | os.O_NOATIME)
    except PermissionError:
        return os.open(path, flags)
