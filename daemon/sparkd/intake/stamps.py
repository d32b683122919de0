"""Printed times → seconds on one scale.

Most of what is printed has no year (vLLM) and no zone (all but containers). The scale counts from the first
of January of a leap year and leaves years out, so that the forms of one source agree. A zone is honoured
where one is printed; which source needs which shift is for who knows several of them (`clock`).
"""

from __future__ import annotations

import re
from functools import lru_cache

DAY_S = 86400.0
YEAR_S = 366 * DAY_S
_BEFORE = (0, 31, 60, 91, 121, 152, 182, 213, 244, 274, 305, 335)
_DAYS = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_HOURS = 24
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_CLOCK = r"(?P<h>\d\d):(?P<m>\d\d):(?P<s>\d\d(?:[.,]\d+)?)"
_NUMBERS = re.compile(
    rf"(?:\d{{4}}-)?(?P<month>\d\d)-?(?P<day>\d\d)[T ]{_CLOCK}(?: ?(?P<zone>Z|[+-]\d\d:?\d\d))?"
)
_NAMED = re.compile(rf"(?P<month>[A-Z][a-z]{{2}}) (?P<day>[ \d]\d) {_CLOCK}")
_OFFSET = re.compile(r"\d+\.\d+")


@lru_cache(maxsize=4096)
def seconds(printed: str) -> float | None:
    """Return the time that *printed* says, None where it says none."""
    found = _NUMBERS.match(printed) or _NAMED.match(printed)
    if found is None:
        return float(printed) if _OFFSET.fullmatch(printed) else None
    month, day, hour, minute, second = found.group("month", "day", "h", "m", "s")
    number = int(month) if month.isdigit() else _MONTHS.index(month) + 1 if month in _MONTHS else 0
    if not (1 <= number <= len(_BEFORE) and 1 <= int(day) <= _DAYS[number - 1] and int(hour) < _HOURS):
        return None  # digits that look like a date order nothing
    days = _BEFORE[number - 1] + int(day) - 1
    at_s = days * DAY_S + int(hour) * 3600 + int(minute) * 60 + float(second.replace(",", "."))
    zone = found.groupdict().get("zone")
    return at_s - _zone_s(zone) if zone else at_s


def is_offset(printed: str) -> bool:
    """Return whether *printed* is seconds since a start."""
    return _OFFSET.fullmatch(printed) is not None


def _zone_s(zone: str) -> float:
    if zone == "Z":
        return 0.0
    sign = -1 if zone[0] == "-" else 1
    return sign * (int(zone[1:3]) * 3600 + int(zone[-2:]) * 60)
