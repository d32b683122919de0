"""Who is in a control group, in every hierarchy in which systemd keeps its units.

On a unified system that is the one cgroup v2 mount; on a hybrid or legacy one the v1 hierarchy `name=systemd`
too, or alone. A group that does not exist is empty; a group that cannot be read is not.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable
from pathlib import Path

_ESCAPED = re.compile(r"\\([0-7]{3})")


class NoHierarchyError(OSError):
    """No hierarchy of systemd is mounted: nothing can be said of any group."""


def hierarchies(mountinfo: str) -> tuple[Path, ...]:
    """Return the mount points of the hierarchies that hold units, of the text of /proc/PID/mountinfo."""
    found = []
    for line in mountinfo.splitlines():
        mount, _, kind = line.partition(" - ")
        words, kinds = mount.split(), kind.split()
        if len(words) < 5 or len(kinds) < 3:
            continue
        if kinds[0] == "cgroup2" or (kinds[0] == "cgroup" and "name=systemd" in kinds[2].split(",")):
            found.append(Path(_ESCAPED.sub(lambda match: chr(int(match[1], 8)), words[4])))
    return tuple(dict.fromkeys(found))


def group_of(slice_name: str, unit: str) -> str:
    """Return the group of a unit by the names alone: `a-b.slice` lies in `a.slice` (systemd.slice(5))."""
    parts = slice_name.removesuffix(".slice").split("-")
    slices = [f"{'-'.join(parts[: n + 1])}.slice" for n in range(len(parts))] if parts != [""] else []
    return "/".join(["", *slices, unit])


class Groups:
    """The groups of one machine, or of one container as it is seen from outside."""

    def __init__(self, roots: Iterable[Path]) -> None:
        """Take the mount points of the hierarchies."""
        self._roots = tuple(roots)

    @classmethod
    def of_this_machine(cls) -> Groups:
        """Return the groups as this process sees them. Raises OSError where /proc cannot be read."""
        return cls(hierarchies(Path("/proc/self/mountinfo").read_text(encoding="utf-8")))

    def pids(self, group: str) -> tuple[int, ...]:
        """Return the processes in *group* and below it, sorted. Raises OSError where nobody can say."""
        if not self._roots:
            raise NoHierarchyError("no control group hierarchy of systemd is mounted")
        found: set[int] = set()
        for root in self._roots:
            top = root / group.lstrip("/")
            for directory, _, _ in os.walk(top, onerror=_unless_gone):
                found |= _procs(Path(directory) / "cgroup.procs")
        return tuple(sorted(found))


def _unless_gone(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error


def _procs(path: Path) -> set[int]:
    try:
        # 0 stands for a process of another pid namespace: it is there, whoever it is.
        return {int(word) for word in path.read_text(encoding="ascii").split()}
    except FileNotFoundError:
        return set()
    except OSError as error:
        if error.errno == errno.ENODEV:  # the group was removed between opening and reading
            return set()
        raise
