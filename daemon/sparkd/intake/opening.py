"""Paths → open streams, without ever waiting for nobody: pipes are read once, devices are refused."""

from __future__ import annotations

import os
import re
import stat
import sys
import time
from pathlib import Path
from threading import Thread
from typing import IO

STDIN = "-"
# So long a FIFO waits for somebody who writes to it.
WRITER_WAIT_S = 10.0
_POLL_S = 0.01
_OWN = re.compile(r"/dev/stdin|/(?:dev|proc/self)/fd/\d+")


class UnusableError(Exception):
    """A log cannot be read; the text names it and says what to do."""


def is_stream(name: str) -> bool:
    """Return whether *name* can be read only once. Raises UnusableError for devices and OSError."""
    if name == STDIN:
        return True
    mode = os.stat(name).st_mode  # noqa: PTH116 - a Path would change "/dev/fd/63" on some systems
    if stat.S_ISREG(mode) or stat.S_ISDIR(mode):
        return False
    if not stat.S_ISFIFO(mode) and _OWN.fullmatch(name) is None:
        raise UnusableError(f"{name} is a device or a socket, no log: name a file, or - for standard input")
    return True


def opened(name: str) -> IO[bytes]:
    """Open a file or a stream. Raises UnusableError or OSError."""
    if name == STDIN:
        if sys.stdin is None:
            raise UnusableError("standard input is closed: name the logs, or pipe one in")
        return sys.stdin.buffer
    if not is_stream(name):
        return Path(name).open("rb")
    if _OWN.fullmatch(name):
        number = 0 if name == "/dev/stdin" else int(name.rpartition("/")[2])
        return os.fdopen(os.dup(number), "rb")
    return _fifo(name)


def _fifo(name: str) -> IO[bytes]:
    """Open a FIFO as soon as somebody writes to it. Raises UnusableError where nobody does."""
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
        raise UnusableError(f"{name} is a pipe that nobody writes to: start its writer first")
    if isinstance(found[0], OSError):
        raise found[0]
    return os.fdopen(found[0], "rb")
