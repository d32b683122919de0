"""What the numbers mean: how fast memory falls, when to look again, when to act. Pure; time is an argument.

Two numbers of a pool speak of the same thing: *available* (MemAvailable; in a control group the limit
less what is used beside its file cache) and *free* (MemFree less what the kernel keeps back; the limit
less all that is used). The kernel computes the first from the second plus what it can reclaim, so free is
never above available: where it is, one of them is wrong, and the verdict waits for more looks. A full
page cache lowers free alone and is no reason to act; only together with tasks that stand still for memory
is it one.
"""

from __future__ import annotations

from array import array

TYPE_CHECKING = False
if TYPE_CHECKING:
    from sparkd.guard.settings import Settings

CLEAR, LOOK_AGAIN, TERM, KILL = "clear", "look_again", "term", "kill"
_LOOKS = 16
# Looks below the floor in a row before anything is done: the second is the look again; where the numbers
# contradict each other, more, and over some time.
LOOKS_AGREED, LOOKS_DOUBTED, DOUBT_S = 2, 4, 0.03
# MemAvailable and MemFree are summed one after the other; each CPU keeps up to 125 pages to itself.
SLACK_SHARE = 1 / 128
# Rising by so much of the pool between two looks below the floor counts as recovering.
RISE_SHARE = 1 / 4096
LOOK_AGAIN_LEAST_S = 0.001
# Where the hard floor is a minute away, a second's patience costs nothing and spares what recovers by itself.
CREEP_S, DWELL_S = 60.0, 1.0
# Looks on the way to the floor, where it is reached at the present rate.
LOOKS_TO_FLOOR = 8


class Level:
    """One reading of one pool, in bytes. `free` None = not known."""

    __slots__ = ("available", "free", "name", "total")

    def __init__(self, name: str, total: int, available: int, free: int | None) -> None:
        self.name, self.total, self.available, self.free = name, total, available, free


class Floors:
    """Where to act, for one pool: ask (`floor`), force (`hard`)."""

    __slots__ = ("floor", "hard")

    def __init__(self, floor: int, hard: int) -> None:
        self.floor, self.hard = floor, hard


def floors_of(asked: int, total: int, settings: Settings) -> Floors:
    """Return the floors of a pool of *total* bytes: at most the share that the settings allow."""
    floor = min(asked, int(total * settings.floor_share_most))
    return Floors(floor, int(floor * settings.kill_share))


class Trend:
    """How fast a pool falls, in bytes a second, over its last looks. Allocates nothing that lasts."""

    def __init__(self) -> None:
        self._at = array("d", [0.0] * _LOOKS)
        self._bytes = array("d", [0.0] * _LOOKS)
        self._count = 0

    def add(self, at_s: float, available: int) -> None:
        """Take a look's reading."""
        self._at[self._count % _LOOKS] = at_s
        self._bytes[self._count % _LOOKS] = available
        self._count += 1

    def last_rise(self) -> float:
        """Return by how much the last look rose against the one before it, 0 where there was none."""
        if self._count < 2:
            return 0.0
        return self._bytes[(self._count - 1) % _LOOKS] - self._bytes[(self._count - 2) % _LOOKS]

    def falling(self) -> float:
        """Return the fastest fall that ends with the last look and began at most 0.5 s ago; at least 0.

        The fastest, since to look or act too early costs little and too late a node.
        """
        if self._count < 2:
            return 0.0
        newest = (self._count - 1) % _LOOKS
        fastest = 0.0
        for back in range(1, min(self._count, _LOOKS)):
            at = (self._count - 1 - back) % _LOOKS
            span_s = self._at[newest] - self._at[at]
            if span_s > 0 and (back == 1 or span_s <= 0.5):
                fastest = max(fastest, (self._bytes[at] - self._bytes[newest]) / max(span_s, 0.001))
        return fastest

    def settled(self) -> float:
        """Return the fall over the longest known span of at most half a second, or of the last look."""
        if self._count < 2:
            return 0.0
        newest, rate = (self._count - 1) % _LOOKS, 0.0
        for back in range(1, min(self._count, _LOOKS)):
            at = (self._count - 1 - back) % _LOOKS
            span_s = self._at[newest] - self._at[at]
            if span_s <= 0 or (back > 1 and span_s > 0.5):
                continue
            rate = (self._bytes[at] - self._bytes[newest]) / max(span_s, 0.001)
        return max(rate, 0.0)


class Below:
    """How long a pool has been below its floor."""

    __slots__ = ("looks", "since_s")

    def __init__(self) -> None:
        self.looks, self.since_s = 0, 0.0


class Verdict:
    """What to do about a pool, why, and by which numbers."""

    __slots__ = ("act", "code", "used")

    def __init__(self, act: str, code: str, used: tuple[str, ...]) -> None:
        self.act, self.code, self.used = act, code, used


_CLEAR = Verdict(CLEAR, "above_floor", ("available",))
_DOUBTED = Verdict(LOOK_AGAIN, "numbers_disagree", ("available", "free"))
_AGAIN = Verdict(LOOK_AGAIN, "first_look_below_floor", ("available", "free"))
_RISING = Verdict(LOOK_AGAIN, "recovering", ("available", "free", "trend"))
_CREEPING = Verdict(LOOK_AGAIN, "creeping", ("available", "free", "trend"))
_SLOW = Verdict(TERM, "below_floor_slowly", ("available", "free", "trend"))
_FAST = Verdict(KILL, "below_floor_fast", ("available", "free", "trend"))
_HARD = Verdict(KILL, "below_hard_floor", ("available", "free"))
_LASTING = Verdict(KILL, "below_floor_and_numbers_disagree", ("available", "looks", "trend"))
STALLED = Verdict(KILL, "stalled_for_memory", ("free", "psi_full", "swap"))


def judge(level: Level, floors: Floors, trend: Trend, below: Below, now: float, term_s: float) -> Verdict:
    """Return what to do about a pool, by its level and the looks before (`trend` has this one already)."""
    if level.available > floors.floor:
        below.looks = 0
        return _CLEAR
    if below.looks == 0:
        below.since_s = now
    below.looks += 1
    agreed = level.free is not None and level.free <= floors.floor + level.total * SLACK_SHARE
    if not agreed:
        return _doubted(below, now)
    if below.looks < LOOKS_AGREED:
        return _AGAIN
    if level.available <= floors.hard:
        return _HARD
    if trend.last_rise() > level.total * RISE_SHARE:
        return _RISING
    rate, left = trend.settled(), level.available - floors.hard
    if left >= rate * CREEP_S and now - below.since_s < DWELL_S:
        return _CREEPING
    return _SLOW if term_s > 0 and left >= rate * term_s else _FAST


def _doubted(below: Below, now: float) -> Verdict:
    if below.looks < LOOKS_DOUBTED or now - below.since_s < DOUBT_S:
        return _DOUBTED
    return _LASTING


def pause_s(level: Level, floors: Floors, trend: Trend, settings: Settings) -> float:
    """Return how long this pool may go unseen.

    So that the fastest fall that the machine is capable of (`rate_most`) cannot reach the floor unseen, and
    the present fall is looked at `LOOKS_TO_FLOOR` times on its way; below it, by how far the hard floor is.
    """
    falling = trend.falling()
    if level.available <= floors.floor:
        left = max(level.available - floors.hard, 0)
        ahead = left / falling / LOOKS_TO_FLOOR if falling > 0 else settings.poll_least_s
        return min(max(ahead, LOOK_AGAIN_LEAST_S), settings.poll_least_s)
    left = level.available - floors.floor
    ahead = left / settings.rate_most
    if falling > 0:
        ahead = min(ahead, left / falling / LOOKS_TO_FLOOR)
    return min(max(ahead, settings.poll_least_s), settings.poll_most_s)


def stalled(
    free: int | None, full_share: float | None, swap_grew: bool | None, loading: bool, settings: Settings
) -> bool:
    """Whether nobody advances for want of memory, though MemAvailable says that there is some.

    Args:
        free: the node's free memory in bytes.
        full_share: share of the last `stall_s` in which every task stood still for memory (PSI full); None =
            not known.
        swap_grew: whether more was swapped out meanwhile; None = the node has no swap.
        loading: whether weights are being loaded: the page cache is full then, and 90 % is asked for.
        settings: the thresholds.
    """
    if settings.free_floor <= 0 or free is None or full_share is None or free > settings.free_floor:
        return False
    enough = settings.stall_percent / 100
    if loading:
        enough = max(enough, 0.9)
    return full_share >= enough and swap_grew is not False
