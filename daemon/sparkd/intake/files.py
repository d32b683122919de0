"""Logs as operators have them → chunks of bytes: files, standard input, folders, archives, packed or not.

What cannot be used is told in one sentence that says what to do. In a folder what is no log is left out in
silence; a file that was named must be one.
"""

from __future__ import annotations

import codecs
import io
import itertools
import os
import stat
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO

from sparkd.intake.lines import HEAD_BYTES
from sparkd.intake.opening import (
    STDIN,
    STDIN_NAME,
    NoLogError,
    Unread,
    UnusableError,
    begun,
    is_stream,
    opened,
)
from sparkd.intake.unpacking import DamagedError, unpacked

__all__ = ["STDIN", "LogFile", "NoLogError", "Tell", "Unread", "UnusableError", "expand"]

CHUNK_BYTES = 4 << 20
FILES_MAX = 2000
DEPTH_MAX = 8
# A stream may have no end; a file may be of any size, and so may what stands in it.
STREAM_BYTES_MAX = 16 << 30
# A log that was truncated while its program held it open begins with a hole of zeros; a stream has none.
HOLE_BYTES_MAX = 1 << 30
_ARCHIVES = (".tar", ".tgz", ".tar.gz", ".tar.xz", ".tar.bz2", ".zip")
_ZIP = b"PK\x03\x04"
_REFUSED = {
    b"\x28\xb5\x2f\xfd": "it is packed with zstd: zstd -dc {0} | sparkctl diagnose -",
    _ZIP: "it is an archive that was not named itself: unpack it, or name its file",
    b"LPKSHHRH": "it is a binary journal: journalctl --file {0} | sparkctl diagnose -",
}
_BOMS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))
_BLANK = b"\0 \t\r\n"
_EMPTY = "it is empty: there is nothing to diagnose in it"
_HOLLOW = f"its first {HOLE_BYTES_MAX >> 30} GiB are nothing but zeros and blanks"
_NO_END = "it has no end"
_CUT_IT = "give a part of it (head -c 1G), or the file itself"
_PLAIN = bytes({*range(0x20, 0x7F), *b"\t\n\r\x1b\b\f"})


Tell = Callable[[Unread], None]


class _NoTextError(Exception):
    """Bytes are no text; the text says what they are."""


class _ArchiveError(_NoTextError):
    """Bytes are an archive: what is in it may matter, so it is not passed over."""


@dataclass(slots=True)
class LogFile:
    """One log.

    Attributes:
        path: where it is, STDIN for standard input.
        name: what it is called in quotes.
        named: whether somebody asked for this very file (else it was found in a folder).
        once: whether it can be read only once: standard input, a pipe.
        unread: why it could not be read to its end; what stands before the damage counts.
    """

    path: Path
    name: str
    named: bool = True
    once: bool = False
    unread: Unread | None = None
    _begun: tuple[bytes, Iterator[bytes]] | None = field(default=None, repr=False)

    def head(self) -> bytes:
        """Return the first bytes. Raises NoLogError where the file is no log."""
        chunks = self._read(CHUNK_BYTES if self.once else HEAD_BYTES)
        head = next(chunks, b"")
        if self.once:
            self._begun = (head, chunks)
        return head

    def tail(self) -> bytes:
        """Return the last bytes of a file that has a head; what is packed is read whole. Raises OSError."""
        head = self.head()
        with self._opened() as stream:
            if stream.read(HEAD_BYTES) == head:
                stream.seek(-min(HEAD_BYTES, stream.seek(0, os.SEEK_END)), os.SEEK_END)
                return stream.read()
        last = before = b""
        for chunk in self._read(CHUNK_BYTES):
            before, last = last, chunk
        return (before + last)[-HEAD_BYTES:]

    def chunks(self, piece_bytes: int = CHUNK_BYTES) -> Iterator[bytes]:
        """Return the log's bytes, unpacked and as UTF-8. Raises NoLogError, at the latest at the first.

        Args:
            piece_bytes: so much of a file is read at once; a stream has begun with pieces of its own.
        """
        if self._begun is not None:
            head, rest = self._begun
            return itertools.chain([head], rest)
        return self._read(piece_bytes)

    def refuse(self, why: str) -> NoLogError:
        """Return that it is no log, and why."""
        return NoLogError(Unread(self.name, why))

    def _read(self, piece_bytes: int) -> Iterator[bytes]:
        try:
            yield from _decoded(self._bytes(piece_bytes), HOLE_BYTES_MAX if self.once else sys.maxsize)
        except _NoTextError as error:
            if isinstance(error, _ArchiveError):
                self.unread = self.unread or Unread(self.name, str(error))
            raise (self.refuse(str(error)) if self.unread is None else NoLogError(self.unread)) from None

    def _opened(self) -> IO[bytes]:
        name = str(self.path)
        return opened(f"./{STDIN}" if name == STDIN and not self.once else name)

    def _bytes(self, piece_bytes: int) -> Iterator[bytes]:
        """Yield the unpacked bytes as far as they go; what stands against the rest is in `unread`."""
        read = 0
        try:
            with self._opened() as stream:
                for chunk in unpacked(self._checked(_read_on(stream, piece_bytes, once=self.once))):
                    yield chunk
                    read += len(chunk)
                    if self.once and read > STREAM_BYTES_MAX:
                        self.unread = Unread(self.name, f"{_NO_END}: {_CUT_IT}", read)
                        return
        except (OSError, DamagedError) as error:
            self.unread = Unread(self.name, getattr(error, "strerror", None) or str(error), read)
        except KeyboardInterrupt:
            if not (self.once and read):
                raise
            self.unread = Unread(self.name, "Ctrl-C", read)  # `journalctl -f | sparkctl diagnose`

    def _checked(self, chunks: Iterator[bytes]) -> Iterator[bytes]:
        """Yield *chunks*. Raises NoLogError where they begin as something that is not read here."""
        for chunk in chunks:
            for magic, told in _REFUSED.items():
                if chunk.startswith(magic):
                    self.unread = Unread(self.name, told.format(self.name))
                    raise NoLogError(self.unread)
            yield chunk
            break
        yield from chunks


def expand(name: str, scratch: Callable[[], Path], tell: Tell) -> list[LogFile]:
    """Return the logs that *name* stands for. Raises NoLogError, and UnusableError for wrong usage.

    Args:
        name: a file, a folder, an archive, or STDIN.
        scratch: gives a folder to unpack archives into.
        tell: is told what could not be read.
    """
    if not name:
        raise UnusableError("an empty name: name a log, or - for standard input")
    if name == STDIN:
        is_stream(STDIN)
        if not _begins_as_archive(begun(STDIN)):
            return [LogFile(Path(STDIN), STDIN_NAME, once=True)]
        from sparkd.intake.archives import spooled
        from sparkd.intake.archives import unpacked as unpacked_archive

        return unpacked_archive(spooled(opened(STDIN), scratch() / STDIN_NAME), scratch(), tell)
    path = Path(name)
    try:
        if path.is_dir():
            return _folder(path, name, tell)
        once = is_stream(name)
    except FileNotFoundError:
        raise NoLogError(Unread(name, "it does not exist: check the path")) from None
    except (OSError, ValueError) as error:
        raise NoLogError(Unread(name, getattr(error, "strerror", None) or str(error))) from error
    if not once and (name.endswith(_ARCHIVES) or _is_archive(path)):
        from sparkd.intake.archives import unpacked as unpacked_archive

        return unpacked_archive(path, scratch(), tell)
    return [LogFile(path, name, once=once)]


def _is_archive(path: Path) -> bool:
    """Return whether a file begins as an archive does, whatever it is called."""
    try:
        with path.open("rb") as file:
            return _begins_as_archive(file.read(HEAD_BYTES))
    except OSError:
        return False  # told where it is read


def _begins_as_archive(head: bytes) -> bool:
    try:
        return head.startswith(_ZIP) or _is_tar(next(unpacked([head]), b""))
    except DamagedError:
        return False  # told where it is read


def _is_tar(head: bytes) -> bool:
    return head[257:262] == b"ustar"


def _folder(folder: Path, name: str, tell: Tell) -> list[LogFile]:
    told: list[Unread] = []
    found = list(_in_folder(folder, name, told.append))
    if not found and not told:
        raise NoLogError(Unread(name, "it has no files: name a folder with logs, or the logs"))
    if not found:
        raise NoLogError(replace(told[0], why=f"{told[0].why} (nothing else is in {name})"))
    for unread in told:
        tell(unread)
    return found


def _in_folder(folder: Path, name: str, tell: Tell) -> Iterator[LogFile]:
    """Yield the files below *folder*, each once, in the order of their names."""
    seen: set[tuple[int, int]] = set()

    def refuse(error: OSError) -> None:
        tell(Unread(str(error.filename or name), error.strerror or str(error)))

    for where, folders, files in os.walk(folder, onerror=refuse):
        deep = len(Path(where).relative_to(folder).parts) >= DEPTH_MAX
        folders[:] = [] if deep else sorted(f for f in folders if not f.startswith("."))
        for file in sorted(files):
            path = Path(where, file)
            try:
                state = path.stat()
            except FileNotFoundError:
                continue  # a link to nothing, or rotated away meanwhile
            except OSError as error:
                refuse(error)
                continue
            identity = (state.st_dev, state.st_ino)
            if not stat.S_ISREG(state.st_mode) or state.st_size == 0 or identity in seen:
                continue
            seen.add(identity)
            if len(seen) > FILES_MAX:
                tell(Unread(name, f"it has more than {FILES_MAX} files: the first {FILES_MAX} are read"))
                return
            yield LogFile(path, str(path.relative_to(folder)), named=False)


def _decoded(chunks: Iterator[bytes], hole_bytes_max: int) -> Iterator[bytes]:
    """Yield a log's bytes as UTF-8, its head first. Raises _NoTextError where it is no text."""
    begun, hole = bytearray(), 0
    for chunk in chunks:
        if begun or not _is_blank(chunk):
            begun += chunk
        else:
            hole += len(chunk)
        if len(begun) >= HEAD_BYTES or hole > hole_bytes_max:
            break
    if not begun:
        raise _NoTextError(_HOLLOW if hole > hole_bytes_max else _EMPTY)
    head = bytes(begun[:HEAD_BYTES])
    if _is_tar(head):
        raise _ArchiveError(_REFUSED[_ZIP])
    encoding, start = _encoding(head)
    if encoding == "utf-8" and _is_binary(head):
        raise _NoTextError("it is binary: it is no log; give what the program printed")
    rest = itertools.chain([bytes(begun[HEAD_BYTES:])], chunks)
    if encoding != "utf-8":
        yield from _head_whole(_recoded(itertools.chain([head], rest), encoding, start))
        return
    yield head[start:]
    yield from filter(None, rest)


def _is_blank(chunk: bytes) -> bool:
    return chunk.count(0) == len(chunk) or not chunk.strip(_BLANK)


def _read_on(stream: IO[bytes], piece_bytes: int, *, once: bool) -> Iterator[bytes]:
    """Yield pieces of that size; of a stream that is interrupted (Ctrl-C) what has come is not lost."""
    if not once or not isinstance(stream, (io.BufferedReader, io.BytesIO)):
        yield from iter(lambda: stream.read(piece_bytes), b"")
        return
    held = bytearray()
    try:
        while piece := stream.read1(piece_bytes):
            held += piece
            if len(held) >= piece_bytes:
                yield bytes(held)
                held.clear()
    except KeyboardInterrupt:
        yield bytes(held)
        raise
    yield bytes(held)


def _recoded(chunks: Iterable[bytes], encoding: str, start: int) -> Iterator[bytes]:
    decoder = codecs.getincrementaldecoder(encoding)("replace")
    for chunk in chunks:
        yield decoder.decode(chunk[start:]).encode("utf-8", "replace")
        start = 0


def _head_whole(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Yield *chunks*, the first one of at least `HEAD_BYTES` where there are so many."""
    begun = b""
    for chunk in chunks:
        begun += chunk
        if len(begun) >= HEAD_BYTES:
            break
    yield begun
    yield from chunks


def _encoding(head: bytes) -> tuple[str, int]:
    """Return the encoding and the length of its mark; UTF-16 without a mark shows by its zeros."""
    for mark, encoding in _BOMS:
        if head.startswith(mark):
            return encoding, len(mark)
    even, odd = head[::2].count(0), head[1::2].count(0)
    if odd > len(head) * 0.35 and even < len(head) * 0.05:
        return "utf-16-le", 0
    if even > len(head) * 0.35 and odd < len(head) * 0.05:
        return "utf-16-be", 0
    return "utf-8", 0


def _is_binary(head: bytes) -> bool:
    """Return whether a file that begins so is no text: zeros are left by rotation, other controls are not."""
    text = head.replace(b"\0", b"")
    controls = text.translate(None, _PLAIN + bytes(range(0x80, 0x100)))
    broken = text.decode("utf-8", "replace").count("\ufffd")
    return len(controls) > 0.05 * len(text) or broken > 0.25 * len(text)
