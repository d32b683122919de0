"""The kernel's texts as numbers. What is missing or malformed is None, never zero: unknown is a value."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    Buffer = bytes | bytearray

_DIGITS = b"0123456789"


def number_at(text: Buffer, at: int, end: int) -> int | None:
    """Return the whole number at text[at:end], after any blanks; None where there is none."""
    while at < end and text[at] == 0x20:
        at += 1
    last = at
    while last < end and text[last] in _DIGITS:
        last += 1
    return int(text[at:last]) if last > at else None


def number_after(text: Buffer, name: bytes, end: int) -> int | None:
    """Return the whole number that follows *name* in text[:end], None where there is none.

    A *name* that may end another one begins with the line end before it.
    """
    at = text.find(name, 0, end)
    return None if at < 0 else number_at(text, at + len(name), end)


def only_number(text: Buffer, end: int) -> int | None:
    """Return a file's only number, None where it says anything else (`max`, garbage)."""
    word = bytes(text[:end]).strip()
    return int(word) if word.isdigit() and word.isascii() else None


def stall_us(text: Buffer, kind: bytes, end: int) -> int | None:
    """Return PSI's `total=` of the line that begins with *kind* (b"some", b"full"), in microseconds."""
    at = text.find(kind, 0, end)
    line = text.find(b"\n", at, end) if at >= 0 else -1
    at = text.find(b"total=", at, line if line >= 0 else end) if at >= 0 else -1
    return None if at < 0 else number_at(text, at + 6, end)


def kept_back_pages(zoneinfo: bytes) -> int:
    """Return the pages that ordinary allocations never get: what MemFree counts and MemAvailable does not.

    Per zone the high watermark and the largest protection against other zones, at most what it manages
    (Linux, calculate_totalreserve_pages).
    """
    total = 0
    high = managed = protection = 0
    for line in [*zoneinfo.split(b"\n"), b"Node"]:
        words = line.split()
        if words[:1] == [b"Node"]:
            total += min(managed, high + protection)
            high = managed = protection = 0
        elif len(words) == 2 and words[0] == b"high" and words[1].isdigit():
            high = high or int(words[1])
        elif len(words) == 2 and words[0] == b"managed" and words[1].isdigit():
            managed = int(words[1])
        elif words[:1] == [b"protection:"]:
            found = line.replace(b"(", b" ").replace(b")", b" ").replace(b",", b" ").split()[1:]
            protection = max((int(word) for word in found if word.isdigit()), default=0)
    return total
