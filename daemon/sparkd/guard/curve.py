"""The last minute of looks, in memory that is taken once."""

from __future__ import annotations

from array import array

RECENT, MINUTE = 256, 128
SPAN_S, STEP_S = 60.0, 0.5
FIELDS = ("at_s", "available_bytes", "free_bytes", "swap_used_bytes", "full_us", "pool_available_bytes")
UNKNOWN = -1.0


class Curve:
    """Two rings: every look of late, and one each half second of the minute before."""

    def __init__(self) -> None:
        self._recent = array("d", [0.0] * (RECENT * len(FIELDS)))
        self._minute = array("d", [0.0] * (MINUTE * len(FIELDS)))
        self._recents = self._minutes = 0
        self._kept_at_s = float("-inf")

    def add(
        self, at_s: float, available: float, free: float, swap: float, full_us: float, pool: float
    ) -> None:
        """Take one look; `UNKNOWN` stands for what it did not see."""
        _put(self._recent, self._recents % RECENT, at_s, available, free, swap, full_us, pool)
        self._recents += 1
        if at_s - self._kept_at_s >= STEP_S:
            self._kept_at_s = at_s
            _put(self._minute, self._minutes % MINUTE, at_s, available, free, swap, full_us, pool)
            self._minutes += 1

    def rows(self, now: float) -> list[list[float | None]]:
        """Return the last minute's looks, oldest first, with times relative to *now*."""
        recent = _ordered(self._recent, RECENT, self._recents)
        first = recent[0][0] if recent else now
        older = [row for row in _ordered(self._minute, MINUTE, self._minutes) if row[0] < first]
        return [
            [round(row[0] - now, 4), *(None if value == UNKNOWN else int(value) for value in row[1:])]
            for row in older + recent
            if row[0] >= now - SPAN_S
        ]

    def since(self, at_s: float) -> tuple[float, float, float] | None:
        """Return (at_s, full_us, swap) of the newest kept look not after *at_s*, None where there is none."""
        width = len(FIELDS)
        for back in range(1, min(self._minutes, MINUTE) + 1):
            start = ((self._minutes - back) % MINUTE) * width
            if self._minute[start] <= at_s:
                return self._minute[start], self._minute[start + 4], self._minute[start + 3]
        return None


def _put(ring: array[float], slot: int, *row: float) -> None:
    start = slot * len(FIELDS)
    for index, value in enumerate(row):
        ring[start + index] = value


def _ordered(ring: array[float], size: int, count: int) -> list[list[float]]:
    width = len(FIELDS)
    slots = [(count - back) % size for back in range(min(count, size), 0, -1)]
    return [list(ring[slot * width : (slot + 1) * width]) for slot in slots]
