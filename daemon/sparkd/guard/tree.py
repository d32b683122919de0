"""The engine as the tree of a marked process, where there is no systemd.

A process belongs to it by SPARKD_STAMP in its initial environment, by descent from one that does, or by
the session that one made. The environment is read when a process is new, by the clerk, since reading it
can hang on a wedged process; on the way to a kill it is not read at all.
"""

from __future__ import annotations

import os

from sparkd.guard.members import Held, Member, in_order, send

TYPE_CHECKING = False
if TYPE_CHECKING:
    from sparkd.guard.clerk import Clerk
    from sparkd.guard.settings import Settings

ENTRY = b"\0SPARKD_STAMP="
_ENVIRON_MAX_BYTES, _READ_BYTES = 1 << 20, 16 << 10
# A process that was found between fork and exec has its parent's environment still: look more than once.
LOOKS_AT_MARK = 3
MARKS_A_TURN = 64


def read_mark(proc_root: str, pid: int) -> bytes:
    """Return SPARKD_STAMP of a process's initial environment, empty where none. May hang: clerk only."""
    try:
        fd = os.open(f"{proc_root}/{pid}/environ", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    parts, left = [b"\0"], _ENVIRON_MAX_BYTES
    try:
        while left > 0 and (part := os.read(fd, _READ_BYTES)):
            parts.append(part)
            left -= len(part)
    except OSError:
        return b""
    finally:
        os.close(fd)
    text = b"".join(parts)
    at = text.find(ENTRY)
    return text[at + len(ENTRY) :].partition(b"\0")[0] if at >= 0 else b""


class TreeScope:
    """The processes of the marked tree."""

    def __init__(self, settings: Settings, clerk: Clerk) -> None:
        self.held = Held(settings.proc_root)
        self.path = ""
        self.how = "pidfd"
        self._proc = settings.proc_root
        self._mark = settings.tree.encode() + b"/"
        self._clerk = clerk
        self._own = os.getpid()
        # Pid → how often its environment is still to be read; 0 = it is nobody of ours.
        self._others: dict[int, int] = {}
        self._marked: list[int] = []

    @property
    def there(self) -> bool:
        """Whether anything of it lives."""
        return bool(self.held.members)

    def seek(self) -> None:
        """Nothing to list beside the processes."""

    def recount(self) -> None:
        """List the processes anew."""
        self.refresh()

    def refresh(self) -> None:
        """List the processes; take in those of the tree, have the environments of new ones read."""
        self.held.drop_dead()
        while self._marked:
            self._take(self._marked.pop())
        self._grow(named=True)
        asked = [pid for pid, left in self._others.items() if left][:MARKS_A_TURN]
        if asked and self._clerk.ask("marks", self._read_marks, asked):
            for pid in asked:
                self._others[pid] -= 1
        self.held.rename_some(1)

    def _read_marks(self, pids: list[int]) -> None:
        """On the clerk's thread: note who carries the mark."""
        for pid in pids:
            if read_mark(self._proc, pid).startswith(self._mark):
                self._marked.append(pid)

    def _take(self, pid: int) -> None:
        if pid not in (self._own, 1) and self.held.hold(pid, "tree"):
            self._others.pop(pid, None)

    def _grow(self, named: bool) -> None:
        """Take in descendants and sessions of members, until there are no more."""
        listed = [int(name) for name in os.listdir(self._proc) if name.isdigit()]
        alive = set(listed)
        for pid in [pid for pid in self._others if pid not in alive]:
            del self._others[pid]
        members = self.held.members
        new = [pid for pid in listed if pid not in members and self._others.get(pid) != 0 and pid > 1]
        grown = True
        while grown and new:
            grown, rest = False, []
            for pid in new:
                parent, session = _relations(self._proc, pid)
                if pid != self._own and (parent in members or session in members):
                    grown = self.held.hold(pid, "tree", named) is not None or grown
                    self._others.pop(pid, None)
                else:
                    rest.append(pid)
            new = rest
        for pid in new:
            self._others.setdefault(pid, LOOKS_AT_MARK)

    def strike(self, number: int) -> list[Member]:
        """Send *number* to the whole tree; return whom.

        It is listed first: a child whose parent is dead already belongs to init, and one with a session of
        its own would be nobody's. What is made between list and kill shows by its mark, in the next round.
        """
        self._grow(named=False)
        struck = in_order(self.held.members.values())
        send(struck, number)
        known = set(self.held.members)
        self._grow(named=False)
        more = in_order([member for pid, member in self.held.members.items() if pid not in known])
        send(more, number)
        self.held.drop_dead()
        return struck + more

    def left(self) -> list[Member]:
        """Return who of it still lives, newly marked ones included."""
        self.refresh()
        return list(self.held.members.values())


def _relations(proc_root: str, pid: int) -> tuple[int, int]:
    """Return a process's parent and session, (0, 0) where it is gone."""
    try:
        fd = os.open(f"{proc_root}/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return 0, 0
    try:
        text = os.read(fd, 1024)
    except OSError:
        return 0, 0
    finally:
        os.close(fd)
    # The name stands in parentheses and may hold any byte, blanks and parentheses too.
    fields = text[text.rfind(b")") + 1 :].split()
    return (int(fields[1]), int(fields[3])) if len(fields) > 3 else (0, 0)
