"""One log's time: which of its stamps count, and what brings them to the scale of other logs.

A collector's stamp is on every line and tells of the receipt: where the head of a log has them, they count,
and the programs' own do not. A shift is taken from a line that has both: it turns seconds since a start
into times of day, and a container's UTC into the local time that the engine prints.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sparkd.intake import stamps
from sparkd.signals import prefix, wrapping

HEAD_LINES = 400
_QUARTER_S = 900.0


@dataclass(frozen=True, slots=True)
class LogClock:
    """Reads the stamps of one log.

    Attributes:
        collected: whether the collector's stamps count, else the programs' own.
        shift_s: added to them; first_s: the first one, so that a turn of the year is seen.
    """

    collected: bool = False
    shift_s: float = 0.0
    first_s: float | None = None

    def at(self, collected: str | None, own: str | None) -> float | None:
        """Return a line's time, None where it has none that counts."""
        printed = collected if self.collected else own
        at_s = None if printed is None else stamps.seconds(printed)
        if at_s is None:
            return None
        at_s += self.shift_s
        turned = self.first_s is not None and at_s < self.first_s - stamps.YEAR_S / 2
        return at_s + stamps.YEAR_S if turned else at_s


def clock_of(lines: Iterable[str]) -> LogClock:
    """Return the clock of a log that begins with *lines*."""
    pairs = []
    for line in lines:
        unwrapped = wrapping.unwrap(line)
        pairs.append((unwrapped.time, prefix.split(unwrapped.body).printed))
    collected = 2 * sum(outer is not None for outer, _ in pairs) > len(pairs)
    shift_s = _shift_s(pairs) if collected else 0.0
    unset = LogClock(collected, shift_s)
    first = next((at_s for outer, own in pairs if (at_s := unset.at(outer, own)) is not None), None)
    return LogClock(collected, shift_s, first)


def _shift_s(pairs: Iterable[tuple[str | None, str | None]]) -> float:
    for outer, own in pairs:
        outer_s = None if outer is None else stamps.seconds(outer)
        own_s = None if own is None else stamps.seconds(own)
        if outer is not None and outer_s is not None and own_s is not None:
            difference_s = own_s - outer_s
            exact = stamps.is_offset(outer)
            return difference_s if exact else round(difference_s / _QUARTER_S) * _QUARTER_S
    return 0.0
