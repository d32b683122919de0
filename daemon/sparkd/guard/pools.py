"""The memory that the guard watches, read from files that stay open, into memory that is taken once.

The node is a pool; each control group with a limit of its own that the engine or this guard lives in is
another: v2 (`memory.max`) or v1 (`memory.limit_in_bytes`). What is used beside the file cache is computed
as Ray's monitor does: usage less inactive and active file pages.
"""

from __future__ import annotations

import os

from sparkd.guard.decide import Level
from sparkd.guard.numbers import kept_back_pages, number_after, only_number, stall_us

TYPE_CHECKING = False
if TYPE_CHECKING:
    from sparkd.guard.settings import Settings

_KIB = 1024
_BUFFER_BYTES = 8192
_ZONES_MAX_BYTES = 1 << 18
# A limit of a control group beyond this is none (v1 writes 2^63 less a page).
_NO_LIMIT = 1 << 60
HOST = "node"


class KeptFile:
    """A file that stays open and is read from its start into one buffer. Absent: every read has no bytes."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.text = bytearray(_BUFFER_BYTES)
        self._into = [self.text]
        self._fd = -1
        self.open()

    @property
    def there(self) -> bool:
        """Whether the file could be opened."""
        return self._fd >= 0

    def open(self) -> None:
        """Open it, where it is not open and is there."""
        if self._fd < 0:
            try:
                self._fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                self._fd = -1

    def read(self) -> int:
        """Read it anew into `text`; return how many bytes are valid, 0 where it is gone."""
        if self._fd < 0:
            return 0
        try:
            return os.preadv(self._fd, self._into, 0)
        except OSError:
            self.close()
            return 0

    def close(self) -> None:
        """Close it."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class Host:
    """MemAvailable, MemFree, swap, CMA and PSI of the node. None = the kernel does not say."""

    def __init__(self, settings: Settings) -> None:
        self._zones = f"{settings.proc_root}/zoneinfo"
        self._meminfo = KeptFile(f"{settings.proc_root}/meminfo")
        self._pressure = KeptFile(f"{settings.proc_root}/pressure/memory")
        self.kept_back: int = 0
        self.raw_free: int | None = None
        self.swap_used: int | None = None
        self.swap_total: int | None = None
        self.cma_total: int | None = None
        self.cma_free: int | None = None
        self.some_us: int | None = None
        self.full_us: int | None = None

    def weigh_reserve(self) -> None:
        """Read what the kernel keeps back; it changes only with its settings. Slow: not near the floor."""
        try:
            fd = os.open(self._zones, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return
        parts, left = [], _ZONES_MAX_BYTES
        try:
            while left > 0 and (part := os.read(fd, _BUFFER_BYTES)):
                parts.append(part)
                left -= len(part)
        except OSError:
            return
        finally:
            os.close(fd)
        self.kept_back = kept_back_pages(b"".join(parts)) * os.sysconf("SC_PAGE_SIZE")

    def read(self) -> Level | None:
        """Return the node's level, None where the kernel does not say or contradicts itself."""
        size, text = self._meminfo.read(), self._meminfo.text
        total = number_after(text, b"MemTotal:", size)
        available = number_after(text, b"\nMemAvailable:", size)
        free = number_after(text, b"\nMemFree:", size)
        self._swap_and_cma(size)
        size = self._pressure.read()
        self.some_us = stall_us(self._pressure.text, b"some", size)
        self.full_us = stall_us(self._pressure.text, b"full", size)
        self.raw_free = None if free is None else free * _KIB
        if not total or available is None or available > total:
            return None
        usable = None if self.raw_free is None else max(self.raw_free - self.kept_back, 0)
        return Level(HOST, total * _KIB, available * _KIB, usable)

    def _swap_and_cma(self, size: int) -> None:
        text = self._meminfo.text
        total, free = number_after(text, b"\nSwapTotal:", size), number_after(text, b"\nSwapFree:", size)
        self.swap_total = None if total is None else total * _KIB
        self.swap_used = None if total is None or free is None or free > total else (total - free) * _KIB
        total, free = number_after(text, b"\nCmaTotal:", size), number_after(text, b"\nCmaFree:", size)
        self.cma_total = None if total is None else total * _KIB
        self.cma_free = None if free is None else free * _KIB

    def cma_note(self) -> str:
        """Return what is wrong with the CMA counters, empty where nothing is."""
        if self.cma_free is None or self.cma_free <= (self.cma_total or 0):
            return ""
        return (
            f"CmaFree {self.cma_free >> 20} MiB is above CmaTotal {(self.cma_total or 0) >> 20} MiB: a fault "
            "of some kernels (Kernel Handover), which lose that memory; boot with kho=off, or another kernel"
        )

    def reopen(self) -> None:
        """Open what was not there."""
        self._meminfo.open()
        self._pressure.open()


class Group:
    """The limit and the use of one control group, v2 or v1."""

    def __init__(self, path: str, name: str, v2: bool) -> None:
        files = ("max", "current", "stat") if v2 else ("limit_in_bytes", "usage_in_bytes", "stat")
        self.name, self.path = name, path
        self.limit: int | None = None
        self._limit, self._usage, self._stat = (KeptFile(f"{path}/memory.{file}") for file in files)
        self._keys = (
            (b"\ninactive_file ", b"\nactive_file ")
            if v2
            else (b"\ntotal_inactive_file ", b"\ntotal_active_file ")
        )

    @property
    def there(self) -> bool:
        """Whether its files are open."""
        return self._limit.there and self._usage.there and self._stat.there

    def weigh_limit(self) -> None:
        """Read its limit anew: that changes rarely, and most groups have none."""
        found = only_number(self._limit.text, self._limit.read())
        self.limit = None if found is None or found >= _NO_LIMIT else found

    def read(self, near: int) -> Level | None:
        """Return its level; None where it has no limit or does not say.

        *near*: the file cache is only looked up (which is slow) with less than twice this many bytes to the
        limit; above, all that is used counts, which is never too little.
        """
        limit = self.limit
        if not limit:
            return None
        usage = only_number(self._usage.text, self._usage.read())
        if usage is None:
            return None
        free = max(limit - usage, 0)
        if free > 2 * near:
            return Level(self.name, limit, free, free)
        size = self._stat.read()
        inactive = number_after(self._stat.text, self._keys[0], size)
        active = number_after(self._stat.text, self._keys[1], size)
        if inactive is None or active is None:
            return None
        return Level(self.name, limit, min(max(limit - usage + inactive + active, 0), limit), free)

    def close(self) -> None:
        """Close its files."""
        for file in (self._limit, self._usage, self._stat):
            file.close()


def group_at(root: str, path: str, name: str) -> Group | None:
    """Return the memory control group *path* (from its hierarchy's root), None where there is none."""
    for base, v2 in ((root, True), (f"{root}/unified", True), (f"{root}/memory", False)):
        where = base + path
        if os.path.exists(f"{where}/memory.max" if v2 else f"{where}/memory.limit_in_bytes"):
            group = Group(where, name, v2)
            if group.there:
                return group
            group.close()
    return None


class Pools:
    """The node, and every control group with a limit that bounds the engine."""

    def __init__(self, settings: Settings) -> None:
        self.host = Host(settings)
        self._root = settings.cgroup_root
        self._groups: dict[str, Group] = {}
        self.levels: list[Level] = []

    def refresh(self, scope: str) -> None:
        """Find the groups anew: this machine's own (in a container), the engine's, and those above that."""
        wanted = ["", *(scope[:at] for at in _ends(scope))]
        for path in [path for path in self._groups if path not in wanted or not self._groups[path].there]:
            self._groups.pop(path).close()
        for path in wanted:
            if path not in self._groups:
                found = group_at(self._root, path, path or "container")
                if found is not None:
                    self._groups[path] = found
        for group in self._groups.values():
            group.weigh_limit()
        self.host.reopen()

    def read(self, near: int) -> list[Level]:
        """Return the level of every pool that says one; the node's is first where it is known."""
        self.levels.clear()
        node = self.host.read()
        if node is not None:
            self.levels.append(node)
        for group in self._groups.values():
            level = group.read(near)
            if level is not None and (node is None or level.total < node.total):
                self.levels.append(level)
        return self.levels


def _ends(path: str) -> list[int]:
    """Return where each prefix of the path ends, the whole included."""
    return [at for at in range(1, len(path) + 1) if at == len(path) or path[at] == "/"] if path else []
