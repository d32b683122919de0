"""What a killed member leaves in /dev/shm: found while it lives, removed when it is surely nobody's.

Python's shared memory, NCCL, torch and semaphores leave files there when their processes are killed, and
these hold memory until a reboot. A file is removed when all of this is true: it was seen open or mapped
in a process of the engine while that lived; all those processes are dead; it is the same file still
(device and inode); its name is of a known kind; its owner is one of theirs; no living process has it open
or mapped. Whatever cannot be looked at counts as in use. It runs on the clerk's thread: reading maps may
hang on a wedged process.
"""

from __future__ import annotations

import os
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

KINDS = ("psm_", "nccl-", "torch_", "sem.mp-", "sem.loky-", "VLLM_", "vllm_", "mp-", "loky-")
FILES_MOST = 4096
LOOKS_AT_FOREIGN = 3
# Between two processes whose maps are read: the clerk has the loop's priority and must not keep a core.
REST_S = 0.001
_MAPS_MAX_BYTES, _PART_BYTES = 64 << 20, 16 << 10

Identity = tuple[int, int]


class Shared:
    """One file there, and the processes of the engine that were seen to use it."""

    __slots__ = ("bytes", "identity", "name", "owner", "uids", "users")

    def __init__(self, name: str, identity: Identity, owner: int, size: int) -> None:
        self.name, self.identity, self.owner, self.bytes = name, identity, owner, size
        self.users: set[int] = set()
        self.uids: set[int] = set()


def listing(root: str) -> dict[str, Shared]:
    """Return the files of known kinds by name."""
    found: dict[str, Shared] = {}
    try:
        with os.scandir(root) as entries:
            for entry in entries:
                if entry.name.startswith(KINDS) and len(found) < FILES_MOST:
                    about = entry.stat(follow_symlinks=False)
                    if about.st_mode & 0o170000 == 0o100000:
                        identity = (about.st_dev, about.st_ino)
                        found[entry.name] = Shared(entry.name, identity, about.st_uid, about.st_blocks * 512)
    except OSError:
        return found
    return found


def used_by(proc_root: str, pid: int, root: str) -> set[Identity] | None:
    """Return the files below *root* that a process has open or mapped, None where that cannot be seen."""
    mapped = _mapped(proc_root, pid, root)
    opened = _opened(proc_root, pid, root)
    return None if mapped is None or opened is None else mapped | opened


def _mapped(proc_root: str, pid: int, root: str) -> set[Identity] | None:
    try:
        fd = os.open(f"{proc_root}/{pid}/maps", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return set()
    except OSError:
        return None
    found: set[Identity] = set()
    prefix, rest, left = f" {root}/".encode(), b"", _MAPS_MAX_BYTES
    try:
        while left > 0 and (part := os.read(fd, _PART_BYTES)):
            left -= len(part)
            *lines, rest = (rest + part).split(b"\n")
            found.update(_identity(line) for line in lines if prefix in line)
    except ProcessLookupError:
        return found
    except OSError:
        return None
    finally:
        os.close(fd)
    return found


def _identity(line: bytes) -> Identity:
    """Return device and inode of a line of maps."""
    words = line.split()
    major, _, minor = words[3].partition(b":")
    return os.makedev(int(major, 16), int(minor, 16)), int(words[4])


def _opened(proc_root: str, pid: int, root: str) -> set[Identity] | None:
    found: set[Identity] = set()
    folder = f"{proc_root}/{pid}/fd"
    try:
        for name in os.listdir(folder):
            try:
                if os.readlink(f"{folder}/{name}").startswith(root + "/"):
                    about = os.stat(f"{folder}/{name}")
                    found.add((about.st_dev, about.st_ino))
            except FileNotFoundError:  # closed meanwhile
                continue
    except (FileNotFoundError, ProcessLookupError):
        return set()
    except OSError:
        return None
    return found


class SharedMemory:
    """Keeps book of the engine's files in /dev/shm, and removes those of the dead."""

    def __init__(self, root: str, proc_root: str) -> None:
        self._root, self._proc = root, proc_root
        self._known: dict[Identity, Shared] = {}
        # Files of nobody here, and how often that was found.
        self._foreign: dict[Identity, int] = {}

    def observe(self, pids: Iterable[int]) -> None:
        """Note which files the living members use. Their maps are read only where there are new files."""
        files = {each.identity: each for each in listing(self._root).values()}
        for book in (self._known, self._foreign):
            for identity in [identity for identity in book if identity not in files]:
                del book[identity]
        new = {i for i in files if i not in self._known and self._foreign.get(i, 0) < LOOKS_AT_FOREIGN}
        if not new:
            return
        for pid in pids:
            for identity in (used_by(self._proc, pid, self._root) or set()) & new:
                shared = self._known.setdefault(identity, files[identity])
                shared.users.add(pid)
                shared.uids.add(_uid(self._proc, pid))
        for identity in new - self._known.keys():
            self._foreign[identity] = self._foreign.get(identity, 0) + 1

    def remove_of(self, victims: Iterable[int]) -> tuple[list[Shared], list[str]]:
        """Remove what the *victims* left, all being dead; return it, and why something was not."""
        dead, removed, kept = set(victims), [], []
        theirs = [each for each in self._known.values() if each.users & dead]
        if not theirs:
            return [], []
        in_use, blind = self._in_use()
        now = listing(self._root)
        for shared in theirs:
            file = now.get(shared.name)
            if file is None or file.identity != shared.identity:
                continue
            if blind:
                kept.append(f"{shared.name}: what process {blind} uses cannot be seen")
            elif shared.identity in in_use:
                kept.append(f"{shared.name}: another process uses it")
            elif file.owner not in shared.uids:
                kept.append(f"{shared.name}: its owner is not the engine's")
            elif self._unlink(shared):
                removed.append(file)
                del self._known[shared.identity]
        return removed, kept

    def _in_use(self) -> tuple[set[Identity], int]:
        """Return all that living processes use, and the pid of one that could not be looked at (0 = none)."""
        found: set[Identity] = set()
        for name in os.listdir(self._proc):
            if name.isdigit() and name != "1":  # init may be closed to everybody, and uses none of this
                time.sleep(REST_S)
                used = used_by(self._proc, int(name), self._root)
                if used is None:
                    return found, int(name)
                found |= used
        return found, 0

    def _unlink(self, shared: Shared) -> bool:
        path = f"{self._root}/{shared.name}"
        try:
            about = os.stat(path, follow_symlinks=False)
            if (about.st_dev, about.st_ino) != shared.identity:
                return False
            os.unlink(path)
        except OSError:
            return False
        return True


def _uid(proc_root: str, pid: int) -> int:
    try:
        return os.stat(f"{proc_root}/{pid}").st_uid
    except OSError:
        return -1
