"""What each unit of the engine holds, by its control group: v2, or the memory controller of v1.

Without the page cache that the kernel can take back. CUDA's memory on a Spark is in no group.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

ROOTS = (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/memory"))
SLICE = "sparkd.slice/sparkd-engine.slice"


def use_by_unit(roots: Iterable[Path] = ROOTS, within: str = SLICE) -> tuple[tuple[str, int], ...]:
    """Return (unit, bytes) for all units that are there, by name; what cannot be read is left out."""
    found: dict[str, int] = {}
    for root in roots:
        for group in sorted((root / within).glob("*.*")):
            used = _used(group)
            if used is not None:
                found.setdefault(group.name, used)
    return tuple(sorted(found.items()))


def _used(group: Path) -> int | None:
    for current, keys in (
        ("memory.current", ("inactive_file", "active_file")),
        ("memory.usage_in_bytes", ("total_inactive_file", "total_active_file")),
    ):
        try:
            used = int((group / current).read_text(encoding="ascii"))
            stat = dict(
                line.split() for line in (group / "memory.stat").read_text(encoding="ascii").splitlines()
            )
            return max(0, used - sum(int(stat.get(key, 0)) for key in keys))
        except (OSError, ValueError):
            continue
    return None
