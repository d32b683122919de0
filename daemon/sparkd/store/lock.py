"""One daemon a state directory: an flock, which the kernel releases however the daemon ends."""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path

KEPT = 8
"""How many daemons the file names: a broker can have kept the word of one some restarts ago."""
READ_BYTES = 1024


class StateLockedError(Exception):
    """Another daemon holds the state directory; the text is for the operator (exit code 78)."""


class StateLock:
    """Exclusive hold of a state directory, until `release` or the end of the process.

    Attributes:
        predecessors: the last daemons that held it since this boot. They are dead: whoever lives holds the
            lock. Of an earlier boot nothing is said, since a disk can be copied and run twice.
    """

    def __init__(self, directory: Path, *, instance: str = "", boot: str = "") -> None:
        """Take the lock at once.

        Args:
            directory: the state directory; it exists.
            instance: the daemon that takes it.
            boot: this boot of the node; empty = not known, and nobody is a predecessor.

        Raises:
            StateLockedError: another process holds it.
        """
        self._path = directory / "lock"
        # Not inherited by children: an engine that outlives its daemon must not keep the lock.
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = (self._words() or ["unknown"])[0]
            self.release()
            raise StateLockedError(
                f"another sparkd (pid {holder}) uses the state directory {directory}: "
                "one daemon a node; stop that one, or give this one its own state directory"
            ) from None
        _, before, *instances = [*self._words(), "", ""]
        known = list(filter(None, instances)) if boot and before == boot else []
        self.predecessors = frozenset(known)
        self._write([str(os.getpid()), boot, *known[-KEPT + 1 :], instance])

    def release(self) -> None:
        """Let go. The file stays: removing it would let two daemons lock two different files."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _words(self) -> list[str]:
        return os.pread(self._fd, READ_BYTES, 0).decode("ascii", "replace").split()

    def _write(self, words: list[str]) -> None:
        text = "\n".join(filter(None, words)).encode() + b"\n"
        with contextlib.suppress(OSError):  # a full disk: it is held all the same, and the next one listens
            os.pwrite(self._fd, text, 0)
            os.ftruncate(self._fd, len(text))
