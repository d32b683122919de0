"""Archives of logs: unpacked to a folder of ours, within bounds."""

from __future__ import annotations

import itertools
import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from sparkd.intake.files import FILES_MAX, LogFile, UnusableError

ARCHIVE_BYTES_MAX = 8 << 30
_DAMAGED = (EOFError, zlib.error, OSError)


def unpacked(archive: Path, scratch: Path) -> list[LogFile]:
    """Return the plain files of *archive*, unpacked under names of our own: its names are never paths."""
    try:
        return list(_unpack(archive, scratch))
    except (*_DAMAGED, tarfile.TarError, zipfile.BadZipFile) as error:
        raise UnusableError(f"cannot read {archive}: {getattr(error, 'strerror', None) or error}") from error


def _unpack(archive: Path, scratch: Path) -> Iterator[LogFile]:
    left = ARCHIVE_BYTES_MAX
    for number, (name, size, stream) in enumerate(itertools.islice(_members(archive), FILES_MAX)):
        left -= size
        if left < 0:
            raise UnusableError(
                f"{archive} unpacks to more than {ARCHIVE_BYTES_MAX >> 30} GiB: unpack it yourself"
            )
        path = scratch / f"{archive.name}-{number}"
        with stream, path.open("wb") as target:
            shutil.copyfileobj(stream, target)
        yield LogFile(path, name, named=False)


def _members(archive: Path) -> Iterator[tuple[str, int, IO[bytes]]]:
    if archive.suffix != ".zip":
        with tarfile.open(archive) as tar:
            for member in tar:
                stream = tar.extractfile(member) if member.isfile() and member.size else None
                if stream is not None:
                    yield member.name, member.size, stream
        return
    with zipfile.ZipFile(archive) as packed:
        for info in packed.infolist():
            if not info.is_dir() and info.file_size:
                yield info.filename, info.file_size, packed.open(info)
