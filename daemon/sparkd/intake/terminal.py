"""A long text that was taken from a screen → its lines: a terminal breaks them at its width.

`signals.pasted` reads a short text without its breaks; a longer one (tmux's history, a serial console's log)
is put together here. It is one where no line is longer than a width, and where lines that have a head and are
just that long go on, mostly, in lines that have none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

from sparkd.signals.pasted import LINES_MAX

WIDTH_MIN, WIDTH_MAX = 40, 400
# So many lines that have a head must be broken, and such a share of those that are as long as the width.
BROKEN_MIN = 4
BROKEN_SHARE = 0.7
JOINED_CHARS_MAX = 1 << 16
IsHeaded = Callable[[str], bool]


def width_of(lines: Sequence[str], is_headed: IsHeaded) -> int | None:
    """Return the width at which a screen broke *lines*, None where it seems that none did."""
    if len(lines) <= LINES_MAX:
        return None
    width = max(len(line.rstrip()) for line in lines)
    if not WIDTH_MIN <= width <= WIDTH_MAX:
        return None
    after = [
        following for line, following in pairwise(lines) if len(line.rstrip()) == width and is_headed(line)
    ]
    broken = sum(not is_headed(line) for line in after)
    return width if broken >= BROKEN_MIN and broken >= BROKEN_SHARE * len(after) else None


class Screen:
    """Puts the lines of a screen of *width* columns together; holds one."""

    def __init__(self, width: int, is_headed: IsHeaded) -> None:
        self._width = width
        self._is_headed = is_headed
        self._held = ""

    def take(self, line: str) -> Iterator[str]:
        """Take a line and yield what it completes."""
        line = line.rstrip()
        if self._held and (self._is_headed(line) or len(self._held) > JOINED_CHARS_MAX):
            yield from self.flush()
        missing = self._width - len(line)  # of a line that was broken at a blank the blank is missing
        self._held += line + " " * (missing == 1)
        if missing > 1:
            yield from self.flush()

    def flush(self) -> Iterator[str]:
        """Yield the line that is held: what comes does not belong to it."""
        if self._held:
            yield self._held.rstrip()
        self._held = ""
