"""Columns, times of day and safe text for a terminal."""

from __future__ import annotations

import time
from collections.abc import Sequence

Cells = Sequence[str]


def columns(rows: Sequence[Cells], gap: int = 2) -> list[str]:
    """Return rows as lines whose columns stand under each other."""
    widths = [max(len(row[index]) for row in rows) for index in range(len(rows[0]))]
    lines = [
        (" " * gap).join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows
    ]
    return [line.rstrip() for line in lines]


def clock_text(wall_s: float, now_s: float) -> str:
    """Return a time of day as people here say it; with the date where it is not today's.

    Args:
        wall_s: the time, seconds since the epoch.
        now_s: the present, likewise.
    """
    then, now = time.localtime(wall_s), time.localtime(now_s)
    same_day = then[:3] == now[:3]
    return time.strftime("%H:%M" if same_day else "%d %b %H:%M", then)


def seconds_text(wall_s: float | None) -> str:
    """Return a time of day with seconds, `unknown` where there is none."""
    return "unknown" if wall_s is None else time.strftime("%H:%M:%S", time.localtime(wall_s))


def safe(text: str) -> str:
    """Return text without control characters: evidence quotes what programs printed, escapes included."""
    return "".join(
        char if char.isprintable() or char == "\n" else "\N{REPLACEMENT CHARACTER}" for char in text
    )
