"""Logs that a rotation cut into files are one log: `serve.log.1` is what stood in `serve.log` before.

A number counts back, a date forward; what is packed was put away. They are one only beside the file that is
still written, and where their times do not say otherwise: ranks number their logs, too.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from sparkd.intake.stamps import YEAR_S

_PACKED = re.compile(r"\.(?:gz|xz|bz2)$")
_ROTATED = re.compile(
    r"(?P<base>.+?)(?:\.(?P<count>\d{1,4})|[-.](?P<date>20\d{6}(?:[-_T.]?\d{2,10})?)|\.(?P<old>old))$"
)


@dataclass(frozen=True, slots=True)
class Part:
    """One file that may be part of a log.

    Attributes:
        path: what it is called; two files of one call have two.
        place: what parts of one log have in common beside the folder (its node, its archive).
        first_s: the time of its first line that has one, None where none has.
    """

    path: Path
    place: Hashable = None
    first_s: float | None = None


def logs_of(parts: Iterable[Part]) -> list[list[Part]]:
    """Return the logs that were cut into several of *parts*, each with its parts, the oldest first."""
    found: dict[tuple[Path, Hashable, str], list[tuple[tuple[int, str, int], Part]]] = {}
    for part in parts:
        base, age = _base_and_age(part.path.name)
        found.setdefault((part.path.parent, part.place, base), []).append((age, part))
    logs = [sorted(aged, key=lambda pair: pair[0]) for aged in found.values() if len(aged) > 1]
    return [[part for _, part in log] for log in logs if _is_one(log)]


def turned_s(before_s: float, first_s: float) -> float:
    """Return what is to be added to the times of a part that begins at *first_s*, after one of *before_s*.

    Hardly a stamp has a year: what comes after December is of the next.
    """
    return math.ceil((before_s - first_s) / YEAR_S - 0.5) * YEAR_S if first_s < before_s else 0.0


_WRITTEN = (2, "", 0)


def _base_and_age(name: str) -> tuple[str, tuple[int, str, int]]:
    """Return what a file was called when it was written, and its place among the others: the oldest first."""
    found = _ROTATED.fullmatch(_PACKED.sub("", name))
    if found is None:
        return name, _WRITTEN
    if found["date"]:
        return found["base"], (0, found["date"], 0)
    return found["base"], (1, "", -int(found["count"] or 0))


def _is_one(log: Sequence[tuple[tuple[int, str, int], Part]]) -> bool:
    """Return whether only the last part is still written, and the times that there are agree."""
    if log[-1][0] != _WRITTEN or log[-2][0] == _WRITTEN:
        return False
    known = [part.first_s for _, part in log if part.first_s is not None]
    return all(first_s <= then_s + turned_s(first_s, then_s) for first_s, then_s in itertools.pairwise(known))
