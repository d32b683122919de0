r"""The kernel's records of this node, followed from now on: `/dev/kmsg`, or what stands in for it.

- **Not readable is unknown.** No permission, no such file (containers): it is said once, and nothing else
  suffers. What the kernel did is then unknown here, never "nothing".
- **One read is one record** of `/dev/kmsg`: `prio,seq,usec,flags;text`, with ` KEY=value` lines below it
  (Linux, Documentation/ABI/testing/dev-kmsg). The text alone is handed on, with its `\xNN` decoded.
- **A FIFO or a plain file may stand in**: lines of that form, or any others, which are handed on as they are.
  A FIFO is also held open for writing, so that it never ends; a plain file is looked at now and then, and
  followed without rotation.
- **Bounded.** A turn reads at most `TURN_BYTES`, then rests. Meanwhile the kernel overwrites its oldest
  records and tells so with EPIPE: that is counted, and reading goes on with the oldest that is left.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import stat
from collections.abc import Callable, Iterable
from pathlib import Path

import structlog

from sparkd.words import UnitName

log = structlog.get_logger(__name__)

Feed = Callable[[str, UnitName | None, int, bytes], None]

SOURCE = "kernel"
# The dump of one OOM kill is up to 100 KiB; 64 KiB occupy the loop for some 10 ms.
TURN_BYTES = 64 * 1024
REST_S = 0.05
# Period of looking at a plain file, which cannot wake anybody.
LOOK_EVERY_S = 0.5
# A drain reads as much as a large ring holds (1 MiB); what is written meanwhile may be as much again.
_DRAIN_TURNS = 32
# The kernel refuses (EINVAL) a buffer that is smaller than the record; it formats 8 KiB at most.
_READ_BYTES = 16 * 1024
# A read without bytes (an overrun) counts as a short record, so that a turn ends.
_LEAST_BYTES = 64
_OVERRUN_EVERY_S = 60.0
_HEADER = re.compile(rb"\d+,\d+,\d+,[^;]*;")
_ESCAPED = re.compile(rb"\\x([0-9a-fA-F]{2})")


class KernelLog:
    """Follows the kernel's records.

    Args:
        path: `/dev/kmsg`, or a FIFO or file that stands in for it; empty = off.
        feed: takes (source, unit, generation, bytes) on the loop's thread; of the host: unit None,
            generation 0.
    """

    def __init__(self, path: str, feed: Feed) -> None:
        self.overruns = 0
        self._path, self._feed = path, feed
        self._fd = -1
        self._held = b""
        self._looks = False
        self._next: asyncio.TimerHandle | None = None
        self._told_overrun_at_s = float("-inf")

    @property
    def readable(self) -> bool:
        """Whether it is read; where it is not, what the kernel did is unknown."""
        return self._fd >= 0

    def start(self) -> None:
        """Follow it from now on, on the running loop; where that cannot be, say so."""
        if not self._path or self.readable:
            return
        try:
            self._fd = _open(self._path)
        except OSError as error:
            self._unknown(error)
        else:
            self._watch()

    async def drain(self) -> None:
        """Hand on everything that is there now."""
        for _ in range(_DRAIN_TURNS):
            if not self._read_turn():
                return
            await asyncio.sleep(0)

    async def close(self) -> None:
        """Stop following."""
        self._stop()

    def _watch(self) -> None:
        try:
            asyncio.get_running_loop().add_reader(self._fd, self._turn)
        except PermissionError:  # epoll takes no plain files
            self._looks = True
            self._later(LOOK_EVERY_S, self._turn)

    def _turn(self) -> None:
        """Read once; after a full turn rest, so that a flood leaves the loop time for everything else."""
        full = self._read_turn()
        if not self.readable or not (full or self._looks):
            return
        asyncio.get_running_loop().remove_reader(self._fd)
        self._later(REST_S if full else LOOK_EVERY_S, self._turn if self._looks else self._watch)

    def _later(self, delay_s: float, what: Callable[[], None]) -> None:
        self._next = asyncio.get_running_loop().call_later(delay_s, what)

    def _read_turn(self) -> bool:
        """Hand on at most `TURN_BYTES`; return whether there may be more."""
        records, left = [], TURN_BYTES
        while left > 0 and (record := self._read()) is not None:
            records.append(record)
            left -= max(len(record), _LEAST_BYTES)
        *lines, self._held = (self._held + b"".join(records)).split(b"\n")
        if len(self._held) > _READ_BYTES:  # a stand-in without line ends
            lines, self._held = [*lines, self._held], b""
        if text := _text(lines):
            self._feed(SOURCE, None, 0, text)
        return left <= 0

    def _read(self) -> bytes | None:
        """Return a record, empty where some were overwritten, None where there is none now."""
        if not self.readable:
            return None
        try:
            return os.read(self._fd, _READ_BYTES) or None
        except BlockingIOError:
            return None
        except BrokenPipeError:
            self._overrun()
            return b""
        except OSError as error:
            self._unknown(error)
            return None

    def _overrun(self) -> None:
        self.overruns += 1
        now = asyncio.get_running_loop().time()
        if now - self._told_overrun_at_s >= _OVERRUN_EVERY_S:
            self._told_overrun_at_s = now
            log.warning("kernel_log_overwritten", path=self._path, overruns=self.overruns)

    def _unknown(self, error: OSError) -> None:
        self._stop()
        log.warning(
            "kernel_log_unknown",
            path=self._path,
            reason=error.strerror or str(error),
            note="OOM kills and driver errors that only the kernel tells are not seen on this node",
        )

    def _stop(self) -> None:
        if self._next is not None:
            self._next.cancel()
        if self.readable:
            asyncio.get_running_loop().remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1


def _open(path: str) -> int:
    """Open it for reading without waiting, behind all that is there; raises OSError."""
    fifo = stat.S_ISFIFO(Path(path).stat().st_mode)
    fd = os.open(path, (os.O_RDWR if fifo else os.O_RDONLY) | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    with contextlib.suppress(OSError):  # a FIFO has no end to go to
        os.lseek(fd, 0, os.SEEK_END)
    return fd


def _text(lines: Iterable[bytes]) -> bytes:
    """Return the texts of the records' lines, one a line."""
    texts = (_decoded(line) for line in lines if not line.startswith(b" "))
    return b"".join(text + b"\n" for text in texts if text)


def _decoded(line: bytes) -> bytes:
    header = _HEADER.match(line)
    if header is None:
        return line
    return _ESCAPED.sub(lambda found: bytes.fromhex(found[1].decode()), line[header.end() :])
