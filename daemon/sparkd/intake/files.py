"""Logs as operators have them → chunks of bytes: files, standard input, folders, archives, packed or not.

What cannot be used is told in one sentence that says what to do. In a folder what is no log is left out in
silence; a file that was named must be one.
"""

from __future__ import annotations

import codecs
import importlib
import itertools
import lzma
import os
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

CHUNK_BYTES = 4 << 20
HEAD_BYTES = 1 << 16
FILES_MAX = 2000
DEPTH_MAX = 8
STDIN = "-"
# How packed files begin -> the module that reads them, imported when one comes.
_PACKED = {b"\x1f\x8b": "gzip", b"\xfd7zXZ\x00": "lzma", b"BZh": "bz2"}
_ARCHIVES = (".tar", ".tgz", ".tar.gz", ".tar.xz", ".tar.bz2", ".zip")
_REFUSED = {
    b"\x28\xb5\x2f\xfd": "is packed with zstd: zstd -dc {0} | sparkctl diagnose -",
    b"LPKSHHRH": "is a binary journal: journalctl --file {0} | sparkctl diagnose -",
}
_BOMS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))
_BLANK = b"\0 \t\r\n"
_DAMAGED = (EOFError, zlib.error, lzma.LZMAError, OSError)
_PLAIN = bytes({*range(0x20, 0x7F), *b"\t\n\r\x1b\b\f"})


class UnusableError(Exception):
    """A log cannot be read; the text names it and says what to do."""


@dataclass(slots=True)
class LogFile:
    """One log.

    Attributes:
        path: where it is, STDIN for standard input.
        name: what it is called in quotes.
        named: whether somebody asked for this very file (else it was found in a folder).
        trouble: why it could not be read to its end; what stands before the damage counts.
    """

    path: Path
    name: str
    named: bool = True
    trouble: str = ""
    _begun: tuple[bytes, Iterator[bytes]] | None = field(default=None, repr=False)

    def head(self) -> bytes:
        """Return the first bytes. Raises UnusableError where the file is no log."""
        chunks = self._read()
        head = next(chunks, b"")
        if str(self.path) == STDIN:
            self._begun = (head, chunks)  # it can be read only once
        return head

    def chunks(self) -> Iterator[bytes]:
        """Return the log's bytes, unpacked and as UTF-8. Raises UnusableError, at the latest at the first."""
        if self._begun is not None:
            head, rest = self._begun
            return itertools.chain([head], rest)
        return self._read()

    def _read(self) -> Iterator[bytes]:
        begun = False
        try:
            with self._open() as stream:
                for chunk in _decoded(stream, self.name):
                    yield chunk
                    begun = True
        except _DAMAGED as error:
            why = getattr(error, "strerror", None) or str(error) or "it ends too early"
            self.trouble = f"{self.name} is damaged, read as far as it goes: {why}"
            if not begun:
                raise UnusableError(f"cannot read {self.name}: {why}") from error

    def _open(self) -> IO[bytes]:
        if str(self.path) == STDIN:
            return sys.stdin.buffer
        with self.path.open("rb") as stream:
            head = stream.read(8)
        for magic, told in _REFUSED.items():
            if head.startswith(magic):
                raise UnusableError(f"{self.name} {told.format(self.name)}")
        for magic, module in _PACKED.items():
            if head.startswith(magic):
                packed: IO[bytes] = importlib.import_module(module).open(self.path, "rb")
                return packed
        return self.path.open("rb")


def expand(name: str, scratch: Callable[[], Path]) -> list[LogFile]:
    """Return the logs that *name* stands for. Raises UnusableError.

    Args:
        name: a file, a folder, an archive, or STDIN.
        scratch: gives a folder to unpack archives into.
    """
    if name == STDIN:
        return [LogFile(Path(STDIN), "standard input")]
    path = Path(name)
    try:
        if path.is_dir():
            found = list(_in_folder(path, name))
            if not found:
                raise UnusableError(f"{name} has no files: name a folder with logs, or the logs")
            return found
        if not path.exists():
            raise UnusableError(f"{name} does not exist: check the path")
    except OSError as error:
        raise UnusableError(f"cannot read {name}: {error.strerror}") from error
    if name.endswith(_ARCHIVES):
        from sparkd.intake.archives import unpacked

        return unpacked(path, scratch())
    return [LogFile(path, name)]


def _in_folder(folder: Path, name: str) -> Iterator[LogFile]:
    """Yield the files below *folder*, each once, in the order of their names."""
    seen: set[tuple[int, int]] = set()
    found = 0
    for where, folders, files in os.walk(folder):
        deep = len(Path(where).relative_to(folder).parts) >= DEPTH_MAX
        folders[:] = [] if deep else sorted(f for f in folders if not f.startswith("."))
        for file in sorted(files):
            path = Path(where, file)
            if not path.is_file() or path.stat().st_size == 0:
                continue
            identity = (path.stat().st_dev, path.stat().st_ino)
            if identity in seen:
                continue
            seen.add(identity)
            found += 1
            if found > FILES_MAX:
                raise UnusableError(f"{name} has more than {FILES_MAX} files: name a smaller folder")
            yield LogFile(path, str(path.relative_to(folder)), named=False)


def _decoded(stream: IO[bytes], name: str) -> Iterator[bytes]:
    """Yield a stream's bytes as UTF-8. Raises UnusableError where it is no text."""
    head = stream.read(HEAD_BYTES)
    if not head.strip(_BLANK):  # rotation by truncation leaves a hole of zeros
        head = next((chunk for chunk in _read_on(stream) if chunk.strip(_BLANK)), b"")
    if not head:
        raise UnusableError(f"{name} is empty: there is nothing to diagnose in it")
    chunks = itertools.chain([head], _read_on(stream))
    encoding, start = _encoding(head)
    if encoding == "utf-8":
        if _is_binary(head):
            raise UnusableError(f"{name} is binary: it is no log; give what the program printed")
        yield head[start:]
        yield from itertools.islice(chunks, 1, None)
        return
    yield from _recoded(chunks, encoding, start)


def _read_on(stream: IO[bytes]) -> Iterator[bytes]:
    return iter(lambda: stream.read(CHUNK_BYTES), b"")


def _recoded(chunks: Iterable[bytes], encoding: str, start: int) -> Iterator[bytes]:
    decoder = codecs.getincrementaldecoder(encoding)("replace")
    for chunk in chunks:
        yield decoder.decode(chunk[start:]).encode("utf-8", "replace")
        start = 0


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
