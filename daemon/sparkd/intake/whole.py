"""One whole log of any origin → its records that matter, with times on the scale of `stamps`.

Bounded in memory whatever the log's size: a block, the open reports, one reader for each machine and unit
that a collector mixed into it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from sparkd.intake.clock import HEAD_LINES, LogClock, clock_of
from sparkd.intake.forms import Plain
from sparkd.intake.lines import HEAD_BYTES, Blocks, text_of
from sparkd.intake.records import Reader
from sparkd.intake.sieve import Finder, Sifter
from sparkd.signals import prefix, wrapping
from sparkd.signals.follow import BEGINS
from sparkd.signals.model import Record

READERS_MAX = 64
LINE_HELD_MAX = 1 << 20
# A line without a stamp has that of a line before it; so many lines back it is looked for.
STAMP_LINES = 200
STAMP_WITHIN = 300
_MAY_BE_STAMPED = re.compile(rb"\d:\d\d:\d\d|\[ *\d+\.\d+\]")


@dataclass(frozen=True, slots=True)
class Origin:
    """What a log is called, and whose it is.

    Attributes:
        source: its name in quotes.
        node: the node that wrote it, where somebody said so; else what its lines say.
        file: the file that it is, where the log is of several; empty = the log itself.
    """

    source: str
    node: str | None = None
    file: str = ""


class Fragment(Record):
    """What is left of a first line whose beginning was cut off: what it lacks may be what it meant."""


class WholeLog:
    """Reads one log; *cut* tells that its first line is only the rest of one.

    Attributes:
        headed: whether any line that matters has a head, as a log's lines have.
    """

    def __init__(self, origin: Origin, finder: Finder, *, cut: bool = False) -> None:
        self._origin = origin
        self._cut = cut
        self.headed = False
        self._sifter = Sifter(finder, self._waiting)
        self._clock = LogClock()
        self._readers: dict[tuple[str | None, str | None], Reader] = {}
        self._at_s = 0.0
        self._read_to = 0

    @property
    def harmless(self) -> Counter[str]:
        """How many lines were skipped that a signature knows to be harmless, by its id."""
        return self._sifter.harmless

    def records(self, chunks: Iterable[bytes]) -> Iterator[Record]:
        """Yield the records of a log that is given in *chunks* of bytes."""
        for number, block in enumerate(_blocks(chunks)):
            if number == 0:
                self._clock = clock_of(_head(block))
                self._at_s = self._clock.first_s or 0.0
            if self._cut and number == 0:
                rest, _, lines = block.partition(b"\n")
                yield Fragment(self._origin.source, self._origin.node or "", text_of(rest), self._at_s)
                yield from self._block(lines)
            else:
                yield from self._block(block)
        for reader in self._readers.values():
            yield from reader.flush()

    def _block(self, block: bytes) -> Iterator[Record]:
        self._read_to = 0
        for position, raw in self._sifter.lines(block):
            line = wrapping.unwrap(text_of(raw))
            parts = _parts(line.body)
            self.headed = self.headed or bool(line.time or parts.level)
            at_s = self._clock.at(line.time, parts.printed)
            if at_s is None and position != self._read_to:
                at_s = self._before(block, position)
            self._at_s = self._at_s if at_s is None else at_s
            self._read_to = position + len(raw) + 1
            if line.time is not None and parts.printed is None:
                parts = parts._replace(printed=line.time)
            reader = self._reader(line.machine, line.unit)
            if BEGINS in parts.body:
                yield from reader.flush()  # another start: what the one before was saying has its end
            yield from reader.line(parts, self._at_s)
        # The next block may begin with a line that has no stamp, however little of this one mattered.
        self._at_s = self._before(block, len(block)) or self._at_s

    def _waiting(self) -> bool:
        return any(reader.waiting for reader in self._readers.values())

    def _before(self, block: bytes, position: int) -> float | None:
        """Return the time of the nearest line before *position* that has one."""
        for _ in range(STAMP_LINES):
            if position <= self._read_to:
                return None
            begin = block.rfind(b"\n", self._read_to, position - 1) + 1 or self._read_to
            if _MAY_BE_STAMPED.search(block, begin, min(position - 1, begin + STAMP_WITHIN)):
                line = wrapping.unwrap(text_of(block[begin : position - 1]))
                at_s = self._clock.at(line.time, prefix.split(line.body).printed)
                if at_s is not None:
                    return at_s
            position = begin
        return None

    def _reader(self, machine: str | None, unit: str | None) -> Reader:
        key = (machine, unit)
        if key not in self._readers:
            if len(self._readers) >= READERS_MAX:
                key = next(iter(self._readers))  # a log of so many writers is told as one
            else:
                source = self._origin.source if unit is None else f"{self._origin.source} {unit}"
                self._readers[key] = Reader(source, self._origin.node or machine or "", 0)
        return self._readers[key]


def _parts(body: str) -> prefix.Prefix:
    """Return a line taken apart; a blank that a collector left before its head is no part of it."""
    if body[:1] in {" ", "\t"}:
        inner = prefix.split(body.lstrip())
        if inner.level or inner.process:
            return inner
    return prefix.split(body)


def _blocks(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield blocks of whole plain lines."""
    blocks, plain = Blocks(LINE_HELD_MAX), Plain()
    for chunk in _head_first(chunks):
        block = blocks.feed(chunk)
        lines = plain.lines(block) if block else b""
        if lines:
            yield lines
    rest = blocks.flush()
    rest = (plain.lines(rest) if rest else b"") + plain.flush()
    if rest:
        yield rest


def _head_first(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the chunks, the first ones joined to one that is large enough to judge the log by."""
    rest = iter(chunks)
    head = bytearray()
    for chunk in rest:
        head += chunk
        if len(head) >= HEAD_BYTES:
            break
    yield bytes(head)
    yield from rest


def _head(block: bytes) -> list[str]:
    return [text_of(line) for line in block[:HEAD_BYTES].split(b"\n", HEAD_LINES)[:HEAD_LINES] if line]
