"""The local log sources of units, followed by reading files.

- **Polled, ten times a second, and not by inotify**: a few `stat` calls cost less than 0.1 % of a core, work
  on every file system, and see late files, rotation and a replaced `session_latest` link alike.
- **What was there before is not new.** `open` comes before the unit's start and remembers how long every
  further file is then; only what is written after it is handed on. The open file keeps its inode from reuse.
- **Bounded.** A turn reads at most `TURN_BYTES` in a thread and is followed by a rest as long as it took. Who
  lags more than the limit skips forward; the skipped bytes are counted. Consumed output is given back to the
  disk by punching holes, the offset goes on.
- A gap (skip, truncation, next file) is handed on as a line end, so that two halves never make one line.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import glob
import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import structlog

from sparkd.words import UnitName

log = structlog.get_logger(__name__)

Feed = Callable[[str, UnitName, int, bytes], None]

EVERY_S = 0.1
DISCOVER_EVERY_S = 1.0
TURN_BYTES = 256 * 1024
# One unit's files at most, patterns included: Ray writes one worker file a process.
FILES_MAX = 64
# After skipping forward this much of the newest output is still read.
RESUME_BYTES = 1 << 20
# Holes are punched in steps of this size, to call the kernel rarely.
_HOLE_BYTES = 1 << 20
_PUNCH_KEEPING_SIZE = 0x02 | 0x01  # FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, linux/falloc.h


class _File:
    """One followed path: the file open now, how far it was read, how much is left."""

    def __init__(self, name: str, unit: UnitName, generation: int, path: Path, *, owned: bool) -> None:
        self.name, self.unit, self.generation, self.path = name, unit, generation, path
        self.owned = owned
        self.sealed = self.failed = False
        self.lag_bytes = 0
        self.dropped_bytes = 0
        self._fd = -1
        self._offset = 0
        self._freed = 0
        self._gap = False
        self._handed = False

    def skip_existing(self) -> None:
        """Take what stands in the file now as older than the generation."""
        if self._open():
            self._offset = os.fstat(self._fd).st_size

    def read(self, limit: int, lag_limit: int) -> bytes:
        """Return the next bytes, at most *limit*; empty at the end of all there is."""
        chunk = self._next(limit, lag_limit)
        if not chunk and self._switch():
            chunk = self._next(limit, lag_limit)
        gap, self._gap = self._gap and bool(chunk), self._gap and not chunk
        self._handed = self._handed or bool(chunk)
        return b"\n" + chunk if gap else chunk

    def free(self, keep_bytes: int) -> None:
        """Give consumed output before the last *keep_bytes* back to the disk, where the file is ours."""
        end = (self._offset - keep_bytes) // _HOLE_BYTES * _HOLE_BYTES
        if self.owned and end > self._freed and _punch(self._fd, self._freed, end - self._freed):
            self._freed = end

    def close(self) -> None:
        """Stop following; what was not read counts as dropped."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _open(self) -> bool:
        if self._fd < 0:
            flags = os.O_RDWR if self.owned else os.O_RDONLY
            with contextlib.suppress(OSError):
                self._fd = os.open(self.path, flags | os.O_CLOEXEC | os.O_NONBLOCK)
        return self._fd >= 0

    def _next(self, limit: int, lag_limit: int) -> bytes:
        if not self._open():
            return b""
        size = os.fstat(self._fd).st_size
        if size < self._offset:
            self._offset, self._freed, self._gap = 0, 0, self._handed
        if size - self._offset > lag_limit:
            skipped = size - self._offset - min(RESUME_BYTES, lag_limit)
            self.dropped_bytes += skipped
            self._offset, self._gap = self._offset + skipped, True
        chunk = os.pread(self._fd, min(limit, size - self._offset), self._offset)
        self._offset += len(chunk)
        self.lag_bytes = size - self._offset
        return chunk

    def _switch(self) -> bool:
        """Go to the path's new file where it has been replaced; the old one has been read to its end."""
        if self._fd < 0 or self.sealed:
            return False
        try:
            new, old = self.path.stat(), os.fstat(self._fd)
        except OSError:
            return False
        if (new.st_dev, new.st_ino) == (old.st_dev, old.st_ino):
            return False
        self.close()
        self._gap = self._handed
        self._offset = self._freed = 0
        return self._open()


class LogFiles:
    """The port `Sources` over files.

    Args:
        log_dir: holds `<generation>/<unit>.log`, the units' own output; None = that is read elsewhere.
        feed: takes (source, unit, generation, bytes) on the loop's thread.
        further: for each unit, paths or patterns of files that belong to it and may appear later.
        keep_bytes: consumed output of a unit kept on disk.
        lag_limit_bytes: unread output of one file beyond which it is skipped forward.
        drain_s: longest time of one drain; the core decides 2 s after a failure at the latest.
        keep_generations: directories of generations kept, the newest.
    """

    def __init__(
        self,
        log_dir: Path | None,
        feed: Feed,
        *,
        further: Mapping[UnitName, Sequence[str]] | None = None,
        keep_bytes: int = 64 << 20,
        lag_limit_bytes: int = 64 << 20,
        drain_s: float = 1.5,
        keep_generations: int = 5,
    ) -> None:
        self._log_dir, self._feed = log_dir, feed
        self._further = dict(further or {})
        self._keep_bytes, self._lag_limit_bytes = keep_bytes, lag_limit_bytes
        self._drain_s, self._keep_generations = drain_s, keep_generations
        self._files: list[_File] = []
        self._open: set[tuple[UnitName, int]] = set()
        self._dropped_bytes = 0
        self._turns = asyncio.Lock()
        self._pump: asyncio.Task[None] | None = None
        self._closed = False

    @property
    def lag_bytes(self) -> int:
        """Bytes written and not read yet, as of the last turn."""
        return sum(file.lag_bytes for file in self._files)

    @property
    def dropped_bytes(self) -> int:
        """Bytes that were skipped since this daemon's start."""
        return self._dropped_bytes + sum(file.dropped_bytes for file in self._files)

    def open(self, unit: UnitName, generation: int) -> None:
        """Follow the unit's own output and its further files; call it before the unit is started."""
        if (unit, generation) in self._open:
            return
        self._open.add((unit, generation))
        for file in self._files:
            # A path may lead to the newer generation's file from now on.
            file.sealed = file.sealed or (file.unit is unit and file.generation < generation)
        if self._log_dir is not None:
            own = self._log_dir / str(generation) / f"{unit.value}.log"
            self._files.append(_File(f"{unit.value} log", unit, generation, own, owned=True))
        for file in self._follow(unit, generation, _expand(self._further.get(unit, ()))):
            file.skip_existing()
        self._start()

    def resume(self, unit: UnitName, generation: int) -> None:
        """Follow the files of a unit that runs already; what stands in them now has been read or is lost."""
        self.open(unit, generation)
        for file in self._files:
            if (file.unit, file.generation) == (unit, generation):
                file.skip_existing()

    async def drain(self, generation: int) -> None:
        """Read every source of the generation to its end, hand all of it on, and forget it."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self._drain_s
        await self._discover()
        while await self._turn(generation) and loop.time() < until:
            pass
        async with self._turns:
            ended = [file for file in self._files if file.generation == generation]
            left = sum(file.lag_bytes for file in ended)
            self._dropped_bytes += left + sum(file.dropped_bytes for file in ended)
            self._files = [file for file in self._files if file.generation != generation]
            self._open = {opened for opened in self._open if opened[1] != generation}
            for file in ended:
                file.close()
        if left:
            log.warning("drain_cut_short", generation=generation, dropped_bytes=left, after_s=self._drain_s)

    async def close(self) -> None:
        """Stop following."""
        self._closed = True
        if self._pump and not self._pump.done():
            self._pump.cancel()
            await asyncio.gather(self._pump, return_exceptions=True)
        async with self._turns:
            for file in self._files:
                file.close()
            self._files.clear()

    def _start(self) -> None:
        if not self._closed and (self._pump is None or self._pump.done()):
            self._pump = asyncio.get_running_loop().create_task(self._run(), name="log-files")
            self._pump.add_done_callback(self._ended)

    def _ended(self, pump: asyncio.Task[None]) -> None:
        """Go on after a defect in what was handed the bytes: a daemon that reads nothing sees nothing."""
        if not pump.cancelled() and (error := pump.exception()):
            log.error("log_pump_failed", exc_info=error)
            asyncio.get_running_loop().call_later(1.0, self._start)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        pruned = discovered = 0.0
        while True:
            newest = max((file.generation for file in self._files), default=0)
            if newest > pruned and self._log_dir is not None:
                pruned = newest
                await asyncio.to_thread(_prune, self._log_dir, newest, self._keep_generations)
            begin = loop.time()
            if begin - discovered >= DISCOVER_EVERY_S:
                discovered = begin
                await self._discover()
            more = await self._turn()
            await asyncio.sleep(min(loop.time() - begin, EVERY_S) if more else EVERY_S)

    async def _discover(self) -> None:
        """Look for further files that have appeared since."""
        for unit, generation in dict.fromkeys((f.unit, f.generation) for f in self._files if not f.sealed):
            patterns = self._further.get(unit, ())
            if any(glob.has_magic(pattern) for pattern in patterns):
                paths = await asyncio.to_thread(_expand, patterns)
                if any(f.unit is unit and f.generation == generation for f in self._files):
                    self._follow(unit, generation, paths)

    async def _turn(self, generation: int | None = None) -> int:
        """Read once from the sources (of one generation), hand it on; return the number of bytes.

        Shielded: a caller that is cancelled must neither lose the bytes nor leave a thread reading.
        """
        return await asyncio.shield(asyncio.ensure_future(self._whole_turn(generation)))

    async def _whole_turn(self, generation: int | None) -> int:
        async with self._turns:
            files = [file for file in self._files if generation in {None, file.generation}]
            chunks = await asyncio.to_thread(self._read, files)
            for file, chunk in chunks:
                self._feed(file.name, file.unit, file.generation, chunk)
            return sum(len(chunk) for _, chunk in chunks)

    def _read(self, files: Iterable[_File]) -> list[tuple[_File, bytes]]:
        """Read a turn's bytes, those with least to say first, so that a flood takes only what is left."""
        waiting = sorted(files, key=lambda file: file.lag_bytes)
        budget, chunks = TURN_BYTES, []
        while waiting:
            share = max(budget // len(waiting), 4096)
            file = waiting.pop(0)
            before = file.dropped_bytes
            try:
                chunk = file.read(share, self._lag_limit_bytes)
                file.free(self._keep_bytes)
            except OSError as error:
                if not file.failed:
                    log.warning("log_unreadable", source=file.name, path=str(file.path), reason=str(error))
                file.failed = True
                file.close()
                continue
            if file.dropped_bytes > before:
                log.warning("log_skipped", source=file.name, dropped_bytes=file.dropped_bytes - before)
            if chunk:
                budget -= len(chunk)
                chunks.append((file, chunk))
        return chunks

    def _follow(self, unit: UnitName, generation: int, paths: Iterable[Path]) -> list[_File]:
        """Follow those of *paths* that the unit's generation does not follow yet; return them."""
        known = {f.path for f in self._files if f.unit is unit and f.generation == generation}
        new = [path for path in paths if path not in known][: max(FILES_MAX - len(known), 0)]
        files = [_File(path.name, unit, generation, path, owned=False) for path in new]
        self._files.extend(files)
        return files


def _expand(patterns: Sequence[str]) -> list[Path]:
    """Return the paths that the patterns name; a plain path also while nothing is there."""
    paths: list[Path] = []
    for pattern in patterns:
        # Not `Path.glob`: patterns are absolute, and a link on their way may lead elsewhere tomorrow.
        found = sorted(glob.glob(pattern)) if glob.has_magic(pattern) else [pattern]  # noqa: PTH207
        paths.extend(Path(path) for path in found)
    return paths


def _prune(log_dir: Path, newest: int, keep: int) -> None:
    """Delete the directories of all generations but the newest *keep*."""
    try:
        names = [entry.name for entry in os.scandir(log_dir) if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return
    generations = sorted(int(name) for name in names if name.isascii() and name.isdecimal())
    for number in [g for g in generations if g <= newest][: -keep or None]:
        log.info("old_logs_deleted", generation=number)
        shutil.rmtree(log_dir / str(number), ignore_errors=True)


def _punch(fd: int, start: int, length: int) -> bool:
    """Free a range of the file without changing its size; False where that is not possible."""
    libc = ctypes.CDLL(None, use_errno=True)
    kinds = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    libc.fallocate.argtypes = kinds
    return bool(libc.fallocate(fd, _PUNCH_KEEPING_SIZE, start, length) == 0)
