"""A file replaced as a whole: a reader, or a boot after a power cut, finds the old one or the new one."""

from __future__ import annotations

import os


def replace_whole(path: str | os.PathLike[str], data: bytes, mode: int, *, durable: bool = False) -> None:
    """Write *data* beside *path* and rename; *durable*: on the disk before this returns.

    Raises:
        OSError: where it cannot be written; *path* is as it was.
    """
    # Plain os, not pathlib: the engine's start waits for what is imported here.
    folder, name = os.path.split(os.fspath(path))
    beside = os.path.join(folder, f".{name}.new")  # noqa: PTH118
    fd = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
    try:
        write_all(fd, data, 0)
        os.fchmod(fd, mode)
        if durable:
            os.fsync(fd)
    finally:
        os.close(fd)
    os.replace(beside, path)  # noqa: PTH105
    if durable:
        _sync(folder or ".")


def write_all(fd: int, data: bytes, offset: int) -> None:
    """Write all of *data* at *offset*: one call may write a part."""
    view = memoryview(data)
    while view:
        written = os.pwrite(fd, view, offset)
        view, offset = view[written:], offset + written


def _sync(directory: str) -> None:
    """A rename is on the disk when its directory is."""
    fd = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
