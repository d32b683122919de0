"""The engine as a control group and all below it: systemd's slice, and containers with that parent.

The guard lists it itself. On v2 one write to `cgroup.kill` ends everything in it at once; elsewhere each
process is held by pidfd, the group is read once more, and who is still in it is killed.
"""

from __future__ import annotations

import os
import signal

from sparkd.guard.members import Held, Member, in_order, send

TYPE_CHECKING = False
if TYPE_CHECKING:
    from sparkd.guard.settings import Settings

_BUFFER_BYTES = 1 << 16
GROUPS_MOST = 256
DEPTH_MOST = 8


def path_of(name: str) -> str:
    """Return a slice's path in its hierarchy: each dash of its name is a level (systemd.slice(5))."""
    if name.startswith("/"):
        return name
    parts = name[: -len(".slice")].split("-")
    return "".join(f"/{'-'.join(parts[: count + 1])}.slice" for count in range(len(parts)))


class Group:
    """One control group whose list of processes is held open."""

    __slots__ = ("fd", "path")

    def __init__(self, path: str, fd: int) -> None:
        self.path, self.fd = path, fd


class GroupScope:
    """The processes of one control group and all below it, in every hierarchy that has it."""

    def __init__(self, settings: Settings) -> None:
        self.held = Held(settings.proc_root)
        self.path = path_of(settings.slice)
        root = settings.cgroup_root
        self._bases = [root, f"{root}/unified", f"{root}/systemd", f"{root}/memory"]
        self._groups: dict[str, Group] = {}
        self._kills: dict[str, int] = {}
        self._text = bytearray(_BUFFER_BYTES)
        self._into = [self._text]
        self._own = os.getpid()

    @property
    def there(self) -> bool:
        """Whether the group exists."""
        return bool(self._groups)

    @property
    def how(self) -> str:
        """How it would be killed."""
        return "cgroup.kill" if self._kills else "pidfd"

    def refresh(self) -> None:
        """List groups and processes anew; hold the new ones, let go of the dead and of those that left."""
        self.seek()
        self.recount()

    def seek(self) -> None:
        """List the groups anew."""
        found: list[str] = []
        for base in self._bases:
            _walk(base + self.path, found, DEPTH_MOST)
        for path in [path for path in self._groups if path not in found]:
            os.close(self._groups.pop(path).fd)
        for path in found:
            self._open(path)
        self._open_kills()

    def recount(self) -> None:
        """List the processes of the known groups anew: cheaper, and often enough."""
        self.held.drop_dead()
        pids = self._pids()
        for pid, place in pids.items():
            self.held.hold(pid, place)
        self.held.keep_only(pids)
        self.held.rename_some(1)

    def _open(self, path: str) -> None:
        if path not in self._groups:
            try:
                self._groups[path] = Group(path, os.open(f"{path}/cgroup.procs", os.O_RDONLY | os.O_CLOEXEC))
            except OSError:
                return

    def _open_kills(self) -> None:
        for base in self._bases:
            top = base + self.path
            if top in self._groups and top not in self._kills:
                try:
                    self._kills[top] = os.open(f"{top}/cgroup.kill", os.O_WRONLY | os.O_CLOEXEC)
                except OSError:  # v1, or a kernel before 5.14
                    continue
            elif top not in self._groups and top in self._kills:
                os.close(self._kills.pop(top))

    def _pids(self) -> dict[int, str]:
        """Return who is in it now, this process left out, and where."""
        found: dict[int, str] = {}
        for group in self._groups.values():
            for pid in self._list(group.fd):
                if pid > 1 and pid != self._own:
                    found[pid] = group.path
        return found

    def _list(self, fd: int) -> list[int]:
        offset = 0
        pids: list[int] = []
        rest = b""
        while True:
            try:
                size = os.preadv(fd, self._into, offset)
            except OSError:  # the group is gone, or holds threads only
                return pids
            if not size:
                return pids
            offset += size
            *lines, rest = (rest + self._text[:size]).split(b"\n")
            pids += [int(line) for line in lines if line.isdigit()]

    def strike(self, number: int) -> list[Member]:
        """Send *number* to everybody in it; return whom. Opens nothing but who is new."""
        self.held.drop_dead()
        pids = self._pids()
        if not pids:  # it may have begun since the groups were listed
            self.seek()
            pids = self._pids()
        fresh = [pid for pid in pids if pid not in self.held.members]
        found = [self.held.hold(pid, place, named=False) for pid, place in pids.items()]
        if fresh:  # whoever was held just now may have been another's successor: look again
            pids = self._pids()
        members = in_order([member for member in found if member is not None and member.pid in pids])
        if not (members and number == signal.SIGKILL and self._kill_whole()):
            send(members, number)
        return members

    def _kill_whole(self) -> bool:
        """End the whole group by the kernel's own means, where it has them and this process is not in it."""
        if not self._kills or any(self._own in self._list(group.fd) for group in self._groups.values()):
            return False
        done = True
        for fd in self._kills.values():
            try:
                os.pwrite(fd, b"1", 0)
            except OSError:
                done = False
        return done

    def left(self) -> list[Member]:
        """Return who is still in it. Groups that were made meanwhile are looked for, too."""
        self.refresh()
        return list(self.held.members.values())


def _walk(path: str, found: list[str], depth: int) -> None:
    """Append *path* and the groups below it, where it is one."""
    if len(found) >= GROUPS_MOST:
        return
    try:
        with os.scandir(path) as entries:
            below = [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return
    found.append(path)
    if depth:
        for each in below:
            _walk(each, found, depth - 1)
