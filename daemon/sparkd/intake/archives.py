"""Archives of logs: unpacked to a folder of ours, within bounds, as far as they can be."""

from __future__ import annotations

import io
import lzma
import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING

from sparkd.intake.files import FILES_MAX, LogFile, NoLogError, Tell, Unread
from sparkd.intake.unpacking import DamagedError
from sparkd.intake.unpacking import unpacked as unpacked_bytes

if TYPE_CHECKING:
    from typing_extensions import Buffer

ARCHIVE_BYTES_MAX = 8 << 30
# An encrypted member raises RuntimeError, an unknown way of packing NotImplementedError, which is one.
_DAMAGED = (
    DamagedError,
    EOFError,
    zlib.error,
    lzma.LZMAError,
    OSError,
    RuntimeError,
    ValueError,
    tarfile.TarError,
    zipfile.BadZipFile,
)
_Member = tuple[str, int, Callable[[], IO[bytes] | None]]


def unpacked(archive: Path, scratch: Path, tell: Tell) -> list[LogFile]:
    """Return the plain files of *archive*, unpacked under names of our own: its names are never paths."""
    troubles: list[Unread] = []
    found: list[LogFile] = []
    try:
        found.extend(_unpack(archive, scratch, troubles.append))
    except _DAMAGED as error:
        troubles.append(Unread(str(archive), _why(error)))
    if not found:
        first = f"{troubles[0].name}: {troubles[0].why}" if troubles else "it has no files"
        raise NoLogError(Unread(str(archive), first))
    for unread in troubles:
        tell(unread)
    return found


def spooled(stream: IO[bytes], path: Path) -> Path:
    """Write what comes of *stream* to *path*, and return that: an archive's list may stand at its end."""
    with path.open("wb") as target:
        left = ARCHIVE_BYTES_MAX
        while left > 0 and (piece := stream.read(min(left, 1 << 20))):
            left -= target.write(piece)
    return path


def _why(error: BaseException) -> str:
    return getattr(error, "strerror", None) or str(error) or "it ends too early"


def _unpack(archive: Path, scratch: Path, tell: Tell) -> Iterator[LogFile]:
    left = ARCHIVE_BYTES_MAX
    for number, (name, size, member) in enumerate(_members(archive)):
        if number >= FILES_MAX:
            tell(Unread(str(archive), f"it has more than {FILES_MAX} files; the first {FILES_MAX} are read"))
            return
        left -= size
        if left < 0:
            why = f"from {name} on it is left out: it unpacks to more than {ARCHIVE_BYTES_MAX >> 30} GiB"
            tell(Unread(str(archive), why))
            return
        path = scratch / f"{archive.name}-{number}"
        try:
            _copy(member, path)
        except _DAMAGED as error:
            read = path.stat().st_size if path.exists() else 0
            tell(Unread(name, _why(error), read))
            if not read:
                continue
        yield LogFile(path, name, named=False)


def _copy(member: Callable[[], IO[bytes] | None], path: Path) -> None:
    stream = member()
    if stream is None:
        raise EOFError
    with stream, path.open("wb") as target:
        shutil.copyfileobj(stream, target, 1 << 12)  # what one step cannot give is lost


def _members(archive: Path) -> Iterator[_Member]:
    if archive.suffix != ".zip" and not zipfile.is_zipfile(archive):
        yield from _of_tar(archive)
        return
    with zipfile.ZipFile(archive) as packed:
        for info in packed.infolist():
            if not info.is_dir() and info.file_size:
                yield info.filename, info.file_size, partial(packed.open, info)


def _of_tar(archive: Path) -> Iterator[_Member]:
    with archive.open("rb") as packed:
        stream = _Unpacked(packed)
        with tarfile.open(fileobj=io.BufferedReader(stream), mode="r|") as tar:
            for member in tar:
                if member.isfile() and member.size:
                    yield member.name, member.size, partial(tar.extractfile, member)
        if stream.damage is not None:
            raise stream.damage


class _Unpacked(io.RawIOBase):
    """A packed file's bytes; it ends where it is damaged."""

    def __init__(self, packed: IO[bytes]) -> None:
        super().__init__()
        self._chunks = unpacked_bytes(iter(lambda: packed.read(1 << 20), b""))
        self._held = memoryview(b"")
        self.damage: DamagedError | None = None

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Buffer, /) -> int:
        """Fill *buffer* and return how much is in it; 0 at the end."""
        if not self._held:
            try:
                self._held = memoryview(next(filter(None, self._chunks), b""))
            except DamagedError as error:
                self.damage = error
        target = memoryview(buffer)
        size = min(len(target), len(self._held))
        target[:size] = self._held[:size]
        self._held = self._held[size:]
        return size
