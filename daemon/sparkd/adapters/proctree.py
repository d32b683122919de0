"""Who belongs to a unit's tree, and the system calls on its processes: plain functions, no state.

A process belongs to a unit by the mark in its initial environment (SPARKD_STAMP), by descent, or by a
session that the tree made: `setsid` is the only way to another session, so nothing else can be in it. The
mark alone would miss a process that wrote over its environment (setproctitle does), descent alone one whose
parents are dead, the session alone one that called `setsid`.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import os
import signal
import subprocess
import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from signal import Signals
from typing import TypeVar

import structlog

log = structlog.get_logger(__name__)
_T = TypeVar("_T")

PROCESS_GROUP = 1 << 2  # PIDFD_SIGNAL_PROCESS_GROUP, linux/pidfd.h, since 6.9
_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
VARIABLE = "SPARKD_STAMP"
_ENTRY = b"\0" + VARIABLE.encode() + b"="
_ENVIRON_MAX_BYTES = 1 << 20

Identity = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Mark:
    """What SPARKD_STAMP says: the unit, its generation, its node and its cluster."""

    cluster: str
    node: str
    generation: int
    unit: str

    def __str__(self) -> str:
        """Return it as the variable's value."""
        return f"{self.cluster}/{self.node}/{self.generation}/{self.unit}"


@dataclass(frozen=True, slots=True)
class Process:
    """One process as /proc shows it; `start_ticks` since boot makes its pid an identity."""

    pid: int
    parent: int
    group: int
    session: int
    start_ticks: int
    state: str
    threads: int = 1
    mark: Mark | None = None

    @property
    def identity(self) -> Identity:
        """Pid and start time: never the same for two processes of one boot."""
        return (self.pid, self.start_ticks)

    @property
    def alive(self) -> bool:
        """Whether it can still run: a leader that has ended counts as long as other threads live."""
        return self.state not in {"Z", "X"} or self.threads > 1


def read_name(proc_root: Path, pid: int) -> str:
    """Return a process's name (comm, at most 15 bytes), empty where it is gone."""
    try:
        return (proc_root / str(pid) / "comm").read_text("utf-8", "replace").strip()
    except OSError:
        return ""


def parse_mark(text: str) -> Mark | None:
    """Return the mark that *text* spells, None where it spells none."""
    parts = text.split("/")
    if len(parts) != 4 or not all(parts) or not (parts[2].isascii() and parts[2].isdecimal()):
        return None
    return Mark(parts[0], parts[1], int(parts[2][:18]), parts[3])


BLIND = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""We could not look, which says nothing of who is there."""


def _read(path: str, limit_bytes: int) -> bytes:
    """Return the start of a proc file, empty where it cannot be read (gone, forbidden).

    Raises OSError where this process is out of descriptors or memory: not to see is not to be gone.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in BLIND:
            raise
        return b""
    try:
        parts, left = [], limit_bytes
        while left > 0 and (part := os.read(fd, left)):
            parts.append(part)
            left -= len(part)
        return b"".join(parts)
    except OSError:
        return b""
    finally:
        os.close(fd)


def read_process(proc_root: Path, pid: int) -> Process | None:
    """Return the process without its mark, None where there is none."""
    text = _read(f"{proc_root}/{pid}/stat", 4096)
    # The name stands in parentheses and may hold any byte, blanks and parentheses too.
    fields = text[text.rfind(b")") + 1 :].split()
    try:
        parent, group, session = int(fields[1]), int(fields[2]), int(fields[3])
        threads, start = int(fields[17]), int(fields[19])
    except (IndexError, ValueError):
        return None
    return Process(pid, parent, group, session, start, fields[0].decode("ascii", "replace"), threads)


def read_mark(proc_root: Path, pid: int) -> Mark | None:
    """Return the mark in the process's initial environment.

    Reading `environ` takes the process's memory lock and can hang on a wedged process: never on the loop.
    """
    text = b"\0" + _read(f"{proc_root}/{pid}/environ", _ENVIRON_MAX_BYTES)
    _, entry, rest = text.partition(_ENTRY)
    return parse_mark(rest.partition(b"\0")[0].decode("utf-8", "replace")) if entry else None


def snapshot(
    proc_root: Path, marks: Mapping[Identity, Mark], *, read_marks: bool = True
) -> dict[int, Process]:
    """Return every process by pid. *marks* are known already and not read again. Raises OSError (`BLIND`)."""
    try:
        names = [entry.name for entry in os.scandir(proc_root)]
    except OSError as error:
        if error.errno in BLIND:
            raise
        names = []
    processes = {}
    for pid in sorted(int(name) for name in names if name.isascii() and name.isdecimal()):
        process = read_process(proc_root, pid)
        if process is None:
            continue
        mark = marks.get(process.identity)
        if mark is None and read_marks:
            mark = read_mark(proc_root, pid)
        processes[pid] = replace(process, mark=mark)
    return processes


def catch_up(proc_root: Path, processes: dict[int, Process], daemon: int, *, read_marks: bool) -> None:
    """Add the children of *daemon* that came while the others were read, and whose parents have ended.

    Who forks and ends faster than /proc is read is missed by any scan. But the last of such a row has come
    back to the daemon, its subreaper, or its parent has and waits to be reaped: there is always one to see.
    """
    gone: set[int] = set()
    while fresh := _children(proc_root, daemon) - processes.keys() - gone:
        for pid in sorted(fresh):
            process = read_process(proc_root, pid)
            if process is None:
                gone.add(pid)
            else:
                mark = read_mark(proc_root, pid) if read_marks else None
                processes[pid] = replace(process, mark=mark)


def _children(proc_root: Path, pid: int) -> set[int]:
    """Return the children of all threads of a process; none where the kernel does not list them."""
    try:
        threads = [entry.name for entry in os.scandir(proc_root / str(pid) / "task")]
    except OSError:
        return set()
    found = (_read(f"{proc_root}/{pid}/task/{thread}/children", 1 << 16) for thread in threads)
    return {int(word) for text in found for word in text.split()}


def lineage(processes: Mapping[int, Process], pid: int) -> frozenset[int]:
    """Return *pid* and all above it: what a daemon must never kill."""
    line: set[int] = set()
    while pid not in line:
        line.add(pid)
        pid = processes[pid].parent if pid in processes else 0
    return frozenset(line | {0, 1})


def strays(processes: Mapping[int, Process], daemon: int, roots: Collection[int]) -> frozenset[int]:
    """Return the children of *daemon* that only a unit can have left to it as their subreaper.

    What the daemon runs for itself stays in its own session; units never do.
    """
    own = processes[daemon].session if daemon in processes else None
    return frozenset(
        p.pid
        for p in processes.values()
        if p.parent == daemon and p.session != own and p.pid not in roots and p.pid != daemon
    )


def grow(
    processes: Mapping[int, Process],
    seeds: Iterable[int],
    here: Callable[[Mark], bool],
    spare: Collection[int],
) -> tuple[Process, ...]:
    """Return the living processes of the tree that the *seeds* show: they, their descendants, their sessions.

    A session counts when its leader is of the tree, or has ended. Processes marked for elsewhere (not
    *here*), the *spare* ones and the sessions of the spare ones are never part of it.
    """
    children, sessions = defaultdict(list), defaultdict(list)
    for process in processes.values():
        children[process.parent].append(process.pid)
        sessions[process.session].append(process.pid)
    closed = {processes[pid].session for pid in spare if pid in processes} | {0}
    taken: dict[int, Process] = {}
    queue = list(seeds)
    while queue:
        pid = queue.pop()
        found = processes.get(pid)
        foreign = found is not None and found.mark is not None and not here(found.mark)
        if found is None or foreign or pid in taken or pid in spare:
            continue
        taken[pid] = found
        queue += children[pid]
        leader = processes.get(found.session)
        if found.session not in closed and (leader is None or not leader.alive or leader.pid in taken):
            queue += sessions[found.session]
    return tuple(taken[pid] for pid in sorted(taken) if taken[pid].alive)


def spawn(argv: Sequence[str], env: Mapping[str, str], cwd: Path, path: Path) -> tuple[int, int]:
    """Start the root in its own session, its output appended to *path*; return its pid and pidfd.

    A file and not a pipe: a stopped daemon must never block the engine on a full pipe.
    """
    path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
    output = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)
    try:
        child = subprocess.Popen(
            argv,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd=cwd,
            close_fds=True,
            start_new_session=True,
        )
    finally:
        os.close(output)
    try:
        fd = os.pidfd_open(child.pid)
    except OSError:
        child.kill()
        child.wait()
        raise
    # The pidfd reaps from here on, or init where the daemon ends first: Popen must neither wait nor warn.
    child.returncode = 0
    return child.pid, fd


def reap(kind: int, number: int) -> tuple[int | None, int | None]:
    """Reap a child that has ended; return its (exit code, killing signal), both None where nobody knows."""
    try:
        status = os.waitid(kind, number, os.WEXITED | os.WNOHANG)
    except ChildProcessError:
        return None, None
    if status is None:
        return None, None
    if status.si_code == os.CLD_EXITED:
        return status.si_status, None
    return None, status.si_status


def open_pidfd(process: Process, proc_root: Path) -> int | None:
    """Return a pidfd that is surely *process*'s, None where it is gone or no file may be opened."""
    try:
        fd = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return None
    except OSError as error:
        log.warning("process_not_watched", pid=process.pid, reason=str(error))
        return None
    again = read_process(proc_root, process.pid)
    if again is None or again.start_ticks != process.start_ticks:
        os.close(fd)
        return None
    return fd


def kill(fd: int, number: Signals, flags: int = 0) -> None:
    """Kill whom the pidfd names with *number*; one who is gone already is not an error."""
    try:
        signal.pidfd_send_signal(fd, number, None, flags)
    except ProcessLookupError:
        return
    except OSError as error:
        if not flags:  # older kernels do not know groups
            log.warning("process_not_killed", reason=str(error))


def become_subreaper() -> None:
    """Have orphans of units come back to the daemon instead of to init, so that descent still tells."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        log.warning("no_subreaper", reason=os.strerror(ctypes.get_errno()))


async def off_loop(work: Callable[[], _T], timeout_s: float) -> _T:
    """Return the result of *work*, done in a thread that may hang for ever without holding up the exit.

    Raises what *work* raises of OSError, and TimeoutError.
    """
    loop = asyncio.get_running_loop()
    result: asyncio.Future[_T] = loop.create_future()

    def deliver(value: _T) -> None:
        if not result.done():
            result.set_result(value)

    def fail(error: OSError) -> None:
        if not result.done():
            result.set_exception(error)

    def run() -> None:
        with contextlib.suppress(RuntimeError):  # the loop has been closed meanwhile
            try:
                loop.call_soon_threadsafe(deliver, work())
            except OSError as error:
                loop.call_soon_threadsafe(fail, error)

    try:
        threading.Thread(target=run, name="proc-scan", daemon=True).start()
    except RuntimeError as error:  # no thread to be had: memory or pids are exhausted
        raise TimeoutError(str(error)) from error
    async with asyncio.timeout(timeout_s):
        return await result
