"""One daemon a state directory: an flock, which the kernel releases however the daemon ends."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path


class StateLockedError(Exception):
    """Another daemon holds the state directory; the text is for the operator (exit code 78)."""


class StateLock:
    """Exclusive hold of a state directory, until `release` or the end of the process."""

    def __init__(self, directory: Path) -> None:
        """Take the lock at once.

        Args:
            directory: the state directory; it exists.

        Raises:
            StateLockedError: another process holds it.
        """
        self._path = directory / "lock"
        # Not inherited by children: an engine that outlives its daemon must not keep the lock.
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(self._fd, 32, 0).decode("ascii", "replace").strip() or "unknown"
            self.release()
            raise StateLockedError(
                f"another sparkd (pid {holder}) uses the state directory {directory}: "
                "one daemon a node; stop that one, or give this one its own state directory"
            ) from None
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        """Let go. The file stays: removing it would let two daemons lock two different files."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
