"""Paths → open streams, without ever waiting for nobody: pipes are read once, devices are refused."""

from __future__ import annotations

import io
import os
import re
import resource
import stat
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import IO

STDIN = "-"
STDIN_NAME = "standard input"
_DEVICE = "it is a device or a socket, no log: name a file, or pipe a log in"
# So long a FIFO waits for somebody who writes to it.
WRITER_WAIT_S = 10.0
_POLL_S = 0.01
# What else a program has open: its own streams, modules, a folder that is listed.
_SPARE_FILES = 64
_OWN = re.compile(r"/dev/stdin|/(?:dev|proc/self)/fd/\d+")


@dataclass(frozen=True, slots=True)
class Unread:
    """What could not be read, or not to its end.

    Attributes:
        name: what it is called in quotes.
        why: what stood against it.
        read_bytes: how many bytes of it (unpacked) were read nevertheless.
    """

    name: str
    why: str
    read_bytes: int = 0

    def __str__(self) -> str:
        """Return it as a person reads it."""
        name = " ".join(self.name.splitlines())  # a file may be called so that it looks like a line of ours
        if not self.read_bytes:
            return f"cannot read {name}: {self.why}"
        return f"{name} is read only in part, its first {_size_text(self.read_bytes)}: {self.why}"


class UnusableError(Exception):
    """What was asked for cannot be done; the text says what to do."""


class NoLogError(UnusableError):
    """A log cannot be used; the text names it and says what to do."""

    def __init__(self, unread: Unread) -> None:
        """Keep what is told of the log."""
        super().__init__(str(unread))
        self.unread = unread


def is_stream(name: str) -> bool:
    """Return whether *name* can be read only once. Raises NoLogError for devices and OSError."""
    number = _descriptor(name)
    if number is not None:
        if _is_endless(number):
            raise NoLogError(Unread(STDIN_NAME if name == STDIN else name, _DEVICE))
        return True
    if name == STDIN:
        return True
    mode = os.stat(name).st_mode  # noqa: PTH116 - a Path would change "/dev/fd/63" on some systems
    if stat.S_ISREG(mode) or stat.S_ISDIR(mode):
        return False
    if not stat.S_ISFIFO(mode):
        raise NoLogError(Unread(name, _DEVICE))
    return True


def _descriptor(name: str) -> int | None:
    """Return which open file of ours *name* means, None where it is a path (or no real standard input)."""
    if name == STDIN:
        try:
            return sys.stdin.fileno()
        except (AttributeError, OSError, ValueError):
            return None
    if _OWN.fullmatch(name) is None:
        return None
    return 0 if name == "/dev/stdin" else int(name.rpartition("/")[2])


def _is_endless(number: int) -> bool:
    """Return whether it is a device that never ends: a terminal does (Ctrl-D), and /dev/null at once."""
    state = os.fstat(number)
    if stat.S_ISCHR(state.st_mode):
        return not os.isatty(number) and state.st_rdev != Path(os.devnull).stat().st_rdev
    return stat.S_ISBLK(state.st_mode)


def opened(name: str) -> IO[bytes]:
    """Open a file or a stream. Raises NoLogError or OSError."""
    is_file = not is_stream(name)
    if name == STDIN:
        if sys.stdin is None:
            raise NoLogError(Unread(STDIN_NAME, "it is closed: name the logs, or pipe one in"))
        return sys.stdin.buffer
    if is_file:
        return Path(name).open("rb")
    number = _descriptor(name)
    if number is not None:
        return os.fdopen(os.dup(number), "rb")
    return _fifo(name)


def begun(name: str) -> bytes:
    """Return what a stream begins with, as far as it has come, and leave it there. Raises as `opened`."""
    stream = opened(name)
    if isinstance(stream, io.BufferedReader):
        return stream.peek()
    place = stream.tell()
    head = stream.read(io.DEFAULT_BUFFER_SIZE)
    stream.seek(place)
    return head


def allow(count: int) -> None:
    """Let *count* files be open at once, as far as the system lets its users raise the limit themselves."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + _SPARE_FILES
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    raised = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))


def _fifo(name: str) -> IO[bytes]:
    """Open a FIFO as soon as somebody writes to it. Raises NoLogError where nobody does."""
    found: list[int | OSError] = []

    def wait() -> None:
        try:
            found.append(os.open(name, os.O_RDONLY | os.O_CLOEXEC))
        except OSError as error:
            found.append(error)

    Thread(target=wait, daemon=True).start()
    until_s = time.monotonic() + WRITER_WAIT_S
    while not found and time.monotonic() < until_s:
        time.sleep(_POLL_S)
    if not found:
        raise NoLogError(Unread(name, "it is a pipe that nobody writes to: start its writer first"))
    if isinstance(found[0], OSError):
        raise found[0]
    return os.fdopen(found[0], "rb")


def _size_text(count: int) -> str:
    return (
        f"{count} bytes"
        if count < 10_000
        else f"{count / 1e6:.1f} MB"
        if count >= 1e6
        else f"{count // 1000} kB"
    )
