"""Whom the guard kills: the engine's processes, held by pidfd, in the order of their roles.

Never by size: on GB10 CUDA memory is in no process's RSS. A pidfd is taken when a process is first seen,
long before the floor, so that a kill opens nothing; it names that process for ever, and no other that
gets its pid.
"""

from __future__ import annotations

import os
import select
import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

HELD_MOST = 4096
# Names as the kernel keeps them (15 bytes). Workers hold the memory and go first; Ray's daemons, which would
# start others in their place or say that they died, go last.
ROLES: tuple[tuple[str, tuple[bytes, ...]], ...] = (
    ("worker", (b"VLLM::Worker", b"ray::RayWorker", b"ray::")),
    ("engine_core", (b"VLLM::EngineCor",)),
    ("api_server", (b"VLLM::APIServer", b"vllm")),
    ("ray", (b"raylet", b"gcs_server", b"ray", b"dashboard", b"monitor")),
)
OTHER = "other"
ORDER = {"worker": 0, OTHER: 1, "engine_core": 2, "api_server": 3, "ray": 4}


def role_of(comm: bytes) -> str:
    """Return the role that a process's name tells; `other` where it tells none."""
    for role, names in ROLES:
        if comm.startswith(names):
            return role
    return OTHER


class Member:
    """One process of the engine on this node."""

    __slots__ = ("comm", "fd", "pid", "place", "role")

    def __init__(self, pid: int, fd: int, comm: bytes, place: str) -> None:
        self.pid, self.fd, self.comm, self.place = pid, fd, comm, place
        self.role = role_of(comm)


def read_comm(proc_root: str, pid: int) -> bytes:
    """Return a process's name, empty where it is gone. Takes no lock of the process's memory."""
    try:
        fd = os.open(f"{proc_root}/{pid}/comm", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(fd, 64).strip()
    except OSError:
        return b""
    finally:
        os.close(fd)


class Held:
    """The members that are held, by pid. `pids()` of a scope says who should be."""

    def __init__(self, proc_root: str) -> None:
        self._proc = proc_root
        self._gone = select.poll()
        self._turn = 0
        self.members: dict[int, Member] = {}

    def hold(self, pid: int, place: str, named: bool = True) -> Member | None:
        """Return the member of that pid, held; None where it has ended. A kill does not ask for names."""
        member = self.members.get(pid)
        if member is not None or len(self.members) >= HELD_MOST:
            return member
        try:
            fd = os.pidfd_open(pid)
        except OSError:
            return None
        member = Member(pid, fd, read_comm(self._proc, pid) if named else b"", place)
        self.members[pid] = member
        self._gone.register(fd, select.POLLIN)
        return member

    def drop_dead(self) -> None:
        """Let go of those that have ended: their pidfds are readable."""
        ended = {fd for fd, _ in self._gone.poll(0)}
        if ended:
            for pid in [pid for pid, member in self.members.items() if member.fd in ended]:
                self.drop(pid)

    def drop(self, pid: int) -> None:
        """Let go of one."""
        member = self.members.pop(pid)
        self._gone.unregister(member.fd)
        os.close(member.fd)

    def keep_only(self, pids: Iterable[int]) -> None:
        """Let go of all others."""
        keep = set(pids)
        for pid in [pid for pid in self.members if pid not in keep]:
            self.drop(pid)

    def rename_some(self, count: int) -> None:
        """Read the names of a few again: a process takes its telling name some time after its start."""
        pids = list(self.members)
        for step in range(min(count, len(pids))):
            member = self.members[pids[(self._turn + step) % len(pids)]]
            comm = read_comm(self._proc, member.pid)
            if comm and comm != member.comm:
                member.comm, member.role = comm, role_of(comm)
        self._turn += count


def rehearse(clock: Callable[[], float]) -> None:
    """Do to this process itself, with signal 0, what a kill does to others, failures included."""
    held = Held("/proc")
    member = held.hold(os.getpid(), "rehearsal", named=False)
    if member is not None:
        send(in_order([member, member]), 0)
        held.drop_dead()
        clock()
        os.close(os.dup2(os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC), member.fd))
        send([member], 0)


def in_order(members: Iterable[Member]) -> list[Member]:
    """Return them in the order in which they are killed."""
    return sorted(members, key=_rank)


def _rank(member: Member) -> int:
    return ORDER[member.role]


def send(members: list[Member], number: int) -> int:
    """Send each of them *number*; return how many there were to get it."""
    sent = 0
    for member in members:
        try:
            signal.pidfd_send_signal(member.fd, number)
        except OSError:  # it has ended: what was wanted
            continue
        sent += 1
    return sent
