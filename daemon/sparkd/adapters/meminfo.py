"""This node's memory, read from /proc and from the cgroup that bounds it.

Every number is either right or absent: what is missing, malformed or contradicts itself makes the whole
reading None, since a wrong number would be acted upon.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from sparkd.ports import Clock
from sparkd.signals.model import MemorySample

_KIB = 1024
_READ_MAX_BYTES = 1 << 16


class MemInfo:
    """MemAvailable, swap and PSI; where a cgroup's limit is below MemTotal, that cgroup's own numbers.

    Args:
        clock: dates the samples.
        proc_root: the proc file system.
        cgroup_root: where the cgroup file systems are mounted (v2 itself, or the parent of v1's `memory`);
            in a container with its own cgroup namespace this is the container's cgroup, as Ray assumes.
    """

    def __init__(
        self, clock: Clock, *, proc_root: Path = Path("/proc"), cgroup_root: Path = Path("/sys/fs/cgroup")
    ) -> None:
        self._clock = clock
        self._proc = proc_root
        self._cgroup = cgroup_root

    def read(self) -> MemorySample | None:
        """Return one reading, None where the system does not say."""
        table = _table(_text(self._proc / "meminfo"), _KIB)
        total, available = table.get("MemTotal", 0), table.get("MemAvailable", -1)
        swap = table.get("SwapTotal", 0) - table.get("SwapFree", 0)
        if not 0 <= available <= total or total == 0 or swap < 0:
            return None
        limit = _limit(self._cgroup, total)
        if limit is None:
            return None
        if limit < total:
            used = _used(self._cgroup)
            if used is None:
                return None
            total, available = limit, max(limit - used, 0)
        return MemorySample(
            at_s=self._clock.now(),
            available_bytes=available,
            total_bytes=total,
            swap_used_bytes=swap,
            pressure_percent=_pressure(_text(self._proc / "pressure" / "memory")),
        )


def _text(path: Path) -> str:
    """Return the file's text, empty where it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(_READ_MAX_BYTES).decode("ascii", "replace")
    except OSError:
        return ""


def _table(text: str, unit: int) -> dict[str, int]:
    """Return `name value [kB]` lines as bytes; lines of any other form are left out."""
    table = {}
    for line in text.splitlines():
        name, *rest = line.replace(":", " ", 1).split() or [""]
        wanted = ["kB"] if unit == _KIB else []
        if rest and rest[0].isascii() and rest[0].isdecimal() and rest[1:] == wanted:
            table[name] = int(rest[0]) * unit
    return table


def _number(path: Path) -> int | None:
    """Return a file's only word as a number of bytes, None where it is anything else."""
    word = _text(path).strip()
    return int(word) if word.isascii() and word.isdecimal() else None


def _limit(root: Path, total: int) -> int | None:
    """Return the cgroup's limit in bytes, v2 before v1; *total* where none is set, None = not readable."""
    for path in (root / "memory.max", root / "memory" / "memory.limit_in_bytes"):
        if path.exists():
            return total if _text(path).strip() == "max" else _number(path)
    return total


def _used(root: Path) -> int | None:
    """Return what the cgroup uses beside its file cache, in bytes, as Ray's memory monitor computes it.

    used = usage - inactive_file - active_file (ray: memory_monitor_utils.cc); the three are read one after
    another, so a slightly negative result means zero, there as here.
    """
    if (root / "memory.max").exists():
        usage, keys = _number(root / "memory.current"), ("inactive_file", "active_file")
        stat = _table(_text(root / "memory.stat"), 1)
    else:
        usage, keys = (
            _number(root / "memory/memory.usage_in_bytes"),
            ("total_inactive_file", "total_active_file"),
        )
        stat = _table(_text(root / "memory/memory.stat"), 1)
    if usage is None or any(key not in stat for key in keys):
        return None
    return max(usage - sum(stat[key] for key in keys), 0)


def _pressure(text: str) -> float | None:
    """Return PSI's `some avg10` in percent, None where the kernel has no PSI or says something else."""
    for line in text.splitlines():
        words = line.split()
        if words[:1] != ["some"]:
            continue
        for word in words[1:]:
            name, _, value = word.partition("=")
            with contextlib.suppress(ValueError):
                if name == "avg10" and 0.0 <= float(value) <= 100.0:
                    return float(value)
    return None
