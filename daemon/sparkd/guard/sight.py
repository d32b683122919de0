"""What one look sees: every pool against its floor, how it has been falling, and the last minute of it."""

from __future__ import annotations

from sparkd.guard import decide, report
from sparkd.guard.curve import UNKNOWN, Curve
from sparkd.guard.decide import KILL, TERM, Below, Floors, Level, Trend, Verdict, floors_of
from sparkd.guard.pools import HOST, Pools

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from sparkd.guard.settings import Settings

    Grave = tuple[Verdict, Level, Floors]

LOADING = "loading_weights"


class Sight:
    """The pools, their trends, and what was seen of them last."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.pools, self.curve = Pools(settings), Curve()
        self.seen: list[tuple[Level, Floors]] = []
        self.stalled = False
        self._trends: dict[str, Trend] = {}
        self._below: dict[str, Below] = {}

    def look(self, now: float, floor: int) -> tuple[Grave | None, float] | None:
        """Return the gravest verdict that asks for action (None = none does) and how long may be slept.

        None where the kernel says nothing of the memory. *floor* is what the phase asks for, in bytes.
        """
        levels = self.pools.read(floor)
        self.seen.clear()
        if not levels:
            return None
        worst: Grave | None = None
        pause = self.settings.poll_most_s
        for level in levels:
            floors = floors_of(floor, level.total, self.settings)
            self.seen.append((level, floors))
            verdict = self._judge(level, floors, now)
            if verdict.act == KILL or (verdict.act == TERM and worst is None):
                worst = (verdict, level, floors)
            pause = min(pause, decide.pause_s(level, floors, self._trends[level.name], self.settings))
        self._keep_curve(levels, now)
        return worst, pause

    def _judge(self, level: Level, floors: Floors, now: float) -> Verdict:
        trend = self._trends.setdefault(level.name, Trend())
        trend.add(now, level.available)
        below = self._below.setdefault(level.name, Below())
        verdict = decide.judge(level, floors, trend, below, now, self.settings.term_s)
        if self.stalled and level.name == HOST and verdict.act not in (TERM, KILL):
            return decide.STALLED
        return verdict

    def _keep_curve(self, levels: list[Level], now: float) -> None:
        host, node = self.pools.host, levels[0]
        other = levels[1].available if len(levels) > 1 else UNKNOWN
        free = UNKNOWN if node.free is None else node.free
        swap = UNKNOWN if host.swap_used is None else host.swap_used
        full = UNKNOWN if host.full_us is None else host.full_us
        self.curve.add(now, node.available, free, swap, full, other)

    def of(self, name: str) -> Level | None:
        """Return the level of that pool as it was seen last, None where it was not."""
        return next((level for level, _ in self.seen if level.name == name), None)

    def fall(self, name: str) -> float:
        """Return how fast that pool falls, in bytes a second."""
        return self._trends[name].settled()

    def to_floor_s(self) -> float:
        """Return in how many seconds the nearest floor is reached at the present fall."""
        nearest = float("inf")
        for level, floors in self.seen:
            fall = self._trends[level.name].falling()
            if fall > 0:
                nearest = min(nearest, (level.available - floors.floor) / fall)
        return nearest

    def weigh_stall(self, now: float, phase: str) -> None:
        """Find out whether everything has stood still for memory, over the window."""
        host, then, node = self.pools.host, self.curve.since(now - self.settings.stall_s), self.of(HOST)
        if then is None or host.full_us is None or node is None or then[1] == UNKNOWN:
            self.stalled = False
            return
        share = (host.full_us - then[1]) / 1e6 / max(now - then[0], 0.001)
        grew = None if not host.swap_total else (host.swap_used or 0) > then[2]
        self.stalled = decide.stalled(node.free, share, grew, phase == LOADING, self.settings)

    def pools_now(self) -> list[dict[str, Any]]:
        """Return every pool as status and record show it."""
        return [report.pool_object(level, floors, self.fall(level.name)) for level, floors in self.seen]
