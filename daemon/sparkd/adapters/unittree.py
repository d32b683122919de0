"""One unit's processes as they are watched and ended, each by its pidfd."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from signal import Signals

from sparkd.adapters.proctree import PROCESS_GROUP, Identity, Mark, Process, kill, open_pidfd

# Most pidfds of one tree: the usual limit of open files is 1024. The rest follows when these are gone.
WATCHED_MAX = 512
# Pause before another look where nobody found could be watched (just gone, or no file descriptor is left).
UNWATCHED_RETRY_S = 0.05


@dataclass(slots=True)
class Watched:
    """One living process of a tree, by its pidfd; `sent` is the last order that it was killed with."""

    process: Process
    fd: int
    sent: Signals | None = None


class Tree:
    """The processes of one unit: who is known, who is watched, what was ordered."""

    def __init__(self, wants: Callable[[Mark], bool], root: Process | None = None, root_fd: int = -1) -> None:
        self.wants = wants
        self.root = root
        self.root_fd = root_fd
        self.known: set[Identity] = {root.identity} if root else set()
        self.sessions: set[int] = {root.pid} if root else set()
        self.members: dict[Identity, Watched] = {}
        self.groups: frozenset[int] = frozenset()
        self.signal: Signals | None = None
        self.exited, self.emptied, self.changed = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.watcher: asyncio.Task[None] | None = None
        if root is None:
            self.exited.set()

    def seeds(self, processes: Iterable[Process]) -> set[int]:
        """Return the pids that are this tree's by mark, by earlier knowledge or by session."""
        since = self.root.start_ticks if self.root else 0
        return {
            p.pid
            for p in processes
            if p.identity in self.known
            or (p.session in self.sessions and p.start_ticks >= since)
            or (p.mark is not None and self.wants(p.mark))
        }

    def learn(self, found: Iterable[Process]) -> None:
        """Remember who belongs to the tree now; sessions count when their leader does."""
        found = tuple(found)
        self.known = {p.identity for p in found}
        led = {p.pid for p in found if p.session == p.pid}
        self.sessions = {p.session for p in found if p.session in led or p.session in self.sessions}
        if self.root:
            self.known.add(self.root.identity)

    def adopt(self, found: Iterable[Process], proc_root: Path) -> bool:
        """Watch those not watched yet; return whether there were any."""
        before = len(self.members)
        for process in found:
            if process.identity in self.members or len(self.members) >= WATCHED_MAX:
                continue
            fd = open_pidfd(process, proc_root)
            if fd is not None:
                self.members[process.identity] = Watched(process, fd)
                asyncio.get_running_loop().add_reader(fd, self._gone, process.identity)
        return len(self.members) > before

    def order(self, number: Signals) -> None:
        """Kill all members with *number*, now and as they are found; never falls back from SIGKILL."""
        if self.signal is not Signals.SIGKILL:
            self.signal = number
        self.apply()
        self.changed.set()

    def apply(self) -> None:
        """Carry out what was ordered on those that it was not yet.

        SIGKILL goes to whole process groups first, in one go: who forks faster than /proc is read is caught
        only so. A group's number is safe in the pidfd of its leader, even of one that has ended.
        """
        fresh = [m for m in self.members.values() if self.signal and m.sent is not self.signal]
        if fresh and self.signal is Signals.SIGKILL:
            if self.root and self.root_fd >= 0 and self.root.pid in self.groups:
                kill(self.root_fd, Signals.SIGKILL, PROCESS_GROUP)
            for member in fresh:
                if member.process.pid in self.groups:
                    kill(member.fd, Signals.SIGKILL, PROCESS_GROUP)
        for member in fresh:
            member.sent = self.signal
            kill(member.fd, self.signal or Signals.SIGTERM)

    async def emptied_within(self, timeout_s: float) -> bool:
        """Wait for the tree's end; return whether it came."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self.emptied.wait()
        return self.emptied.is_set()

    async def wait_blind(self) -> None:
        """What was ordered reaches at least the root, whose pidfd is held; then look again."""
        if self.signal and self.root_fd >= 0:
            kill(self.root_fd, self.signal)
        if not self.root:
            await asyncio.sleep(UNWATCHED_RETRY_S)
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(UNWATCHED_RETRY_S):
                await self.exited.wait()

    def close(self) -> None:
        """Stop watching; ends nobody."""
        if self.watcher:
            self.watcher.cancel()
        for identity in tuple(self.members):
            self._gone(identity)
        self.close_root()

    def close_root(self) -> None:
        """Forget the root's pidfd, of no use once the tree is empty."""
        if self.root_fd >= 0:
            asyncio.get_running_loop().remove_reader(self.root_fd)
            os.close(self.root_fd)
            self.root_fd = -1

    def _gone(self, identity: Identity) -> None:
        fd = self.members.pop(identity).fd
        asyncio.get_running_loop().remove_reader(fd)
        os.close(fd)
        if not self.members:
            self.changed.set()
