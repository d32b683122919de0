"""Packed streams → their bytes, up to the very place where they are damaged: a crash cuts logs short."""

from __future__ import annotations

import zlib
from collections.abc import Generator, Iterable, Iterator
from typing import Protocol

OUT_BYTES = 1 << 16
# An unpacker that finds damage gives nothing of that step: steps this small lose next to nothing.
STEP_BYTES = 64
STEP_OUT_BYTES = 1024
CUT = "it ends too early"
# bzip2 packs by blocks of up to 900 kB, of which none can be unpacked before its end is there.
CUT_BLOCK = f"{CUT}, and its last block (up to 900 kB of text) is lost"
_MAGICS = (b"\x1f\x8b", b"\xfd7zXZ\x00", b"BZh")
_GZIP_BITS = 31
# Yields what one packed stream gives and returns what stands after it.
_Member = Generator[bytes, None, bytes]


class DamagedError(Exception):
    """A packed stream is damaged or ends too early; the text says how."""


class _Stepwise(Protocol):
    @property
    def eof(self) -> bool: ...
    @property
    def needs_input(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int = -1) -> bytes: ...


def unpacked(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the bytes of a stream, unpacked where its beginning says that it is packed.

    Raises:
        DamagedError: after everything before the damage was yielded.
    """
    rest = iter(chunks)
    head = b""
    for chunk in rest:
        head += chunk
        if len(head) >= max(map(len, _MAGICS)):
            break
    if head.startswith(_MAGICS):
        yield from _joined(_members(_chained(head, rest)))
    else:
        yield from _chained(head, rest)


def _chained(head: bytes, rest: Iterator[bytes]) -> Iterator[bytes]:
    if head:
        yield head
    yield from rest


def _joined(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield small pieces joined to larger ones; what is held is yielded before damage is raised."""
    held = bytearray()
    damage: DamagedError | None = None
    try:
        for piece in pieces:
            held += piece
            if len(held) >= OUT_BYTES:
                yield bytes(held)
                held.clear()
    except DamagedError as error:
        damage = error
    if held:
        yield bytes(held)
    if damage is not None:
        raise damage


def _members(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Yield what the packed streams that stand one after the other give."""
    data = next(chunks, b"")
    while data:
        if not data.startswith(_MAGICS):
            raise DamagedError("something else follows after its packed part")
        data = yield from (_gzip if data.startswith(b"\x1f\x8b") else _stepwise)(data, chunks)
        data = data.lstrip(b"\0")
        while len(data) < max(map(len, _MAGICS)):
            more = next(chunks, b"")
            if not more:
                break
            data = (data + more).lstrip(b"\0")


def _gzip(data: bytes, chunks: Iterator[bytes]) -> _Member:
    unpacker = zlib.decompressobj(_GZIP_BITS)
    while not unpacker.eof:
        for begin in range(0, len(data), OUT_BYTES):
            step = data[begin : begin + OUT_BYTES]
            before = unpacker.copy()
            try:
                while step and not unpacker.eof:
                    yield unpacker.decompress(step, OUT_BYTES * 16)
                    step = unpacker.unconsumed_tail
                    before = unpacker.copy() if step else before
            except zlib.error as error:
                yield from _bytewise(before, step)
                raise DamagedError(str(error)) from error
            if unpacker.eof:
                return unpacker.unused_data + data[begin + OUT_BYTES :]
        data = next(chunks, b"")
        if not data:
            yield unpacker.flush()
            raise DamagedError(CUT)
    return unpacker.unused_data


def _bytewise(unpacker: zlib._Decompress, data: bytes) -> Iterator[bytes]:
    """Yield what *data* gives before its damage."""
    for place in range(len(data)):
        try:
            yield unpacker.decompress(data[place : place + 1])
        except zlib.error:
            return


def _stepwise(data: bytes, chunks: Iterator[bytes]) -> _Member:
    unpacker, damages, cut = _unpacker(data)
    while True:
        for begin in range(0, len(data), STEP_BYTES):
            step = data[begin : begin + STEP_BYTES]
            try:
                yield unpacker.decompress(step, STEP_OUT_BYTES)
                while not unpacker.eof and not unpacker.needs_input:
                    yield unpacker.decompress(b"", STEP_OUT_BYTES)
            except damages as error:
                raise DamagedError(str(error)) from error
            if unpacker.eof:
                return unpacker.unused_data + data[begin + STEP_BYTES :]
        data = next(chunks, b"")
        if not data:
            raise DamagedError(cut)


def _unpacker(data: bytes) -> tuple[_Stepwise, tuple[type[Exception], ...], str]:
    """Return an unpacker, what it raises at damage, and what is told where its stream ends too early."""
    if data.startswith(b"BZh"):
        import bz2

        return bz2.BZ2Decompressor(), (OSError, ValueError), CUT_BLOCK
    import lzma

    return lzma.LZMADecompressor(), (lzma.LZMAError,), CUT
