"""Damaged files are moved aside, never deleted and never read again by sparkd."""

from __future__ import annotations

from pathlib import Path

ASIDE_MAX = 9


def move_aside(path: Path, *companions: str) -> str:
    """Move *path* to `<name>.damaged.<n>`; the last number is reused, so that they cannot fill the disk.

    Args:
        path: the damaged file.
        companions: suffixes of files that belong to it (`-wal`), moved with it where they exist.

    Returns:
        A note for people: what was moved where.
    """
    names = [path.with_name(f"{path.name}.damaged.{number}") for number in range(1, ASIDE_MAX + 1)]
    target = next((name for name in names if not name.exists()), names[-1])
    path.replace(target)
    for suffix in companions:
        companion = path.with_name(path.name + suffix)
        if companion.exists():
            companion.replace(target.with_name(target.name + suffix))
    return f"{path.name} was damaged and is now {target.name}"
