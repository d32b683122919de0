"""A day of a node in virtual time: loads that fill the page cache, captures with spikes, serving.

The real `Sight` looks at curves instead of files, as often as it asks for. 24 hours without a kill; and each
kind of curve once more with a hog in it, which must be found.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from sparkd.guard.decide import Level
from sparkd.guard.settings import Settings
from sparkd.guard.sight import Sight

GIB = 1 << 30
TOTAL = 120 * GIB
RECORDED = Path(__file__).parent / "data_curve.txt"
Curve = Callable[[float], tuple[float, float, float, float]]
"""Seconds → available, free, swap used (GiB), and the share of time in which everything stands still."""


class Pools:
    """Stands in for the files: the curve at the moment of the look."""

    def __init__(self, curve: Curve, total: int, swap: bool) -> None:
        self.curve, self.total, self.host = curve, total, self
        self.raw_free = self.swap_used = self.full_us = 0
        self.swap_total = 16 * GIB if swap else 0
        self.now = self.stood_s = 0.0

    def read(self, _near: int) -> list[Level]:
        available, free, swap, _ = self.curve(self.now)
        self.swap_used, self.full_us = int(swap * GIB), int(self.stood_s * 1e6)
        return [Level("node", self.total, max(int(available * GIB), 0), max(int(free * GIB), 0))]


def watch(
    curve: Curve, hours: float, phase: str = "", swap: bool = False, total: int = TOTAL
) -> tuple[str, float] | None:
    """Look at a curve as the guard does; return the first verdict that acts and when, None = none did."""
    sight = Sight(Settings({}))
    pools = sight.pools = Pools(curve, total, swap)
    weighed = 0.0
    while pools.now < hours * 3600:
        found = sight.look(pools.now, 2 * GIB)
        assert found is not None
        worst, pause = found
        if worst is not None:
            return worst[0].code, pools.now
        pools.stood_s += pause * curve(pools.now)[3]
        pools.now += pause
        if pools.now - weighed >= 1.0:
            weighed = pools.now
            sight.weigh_stall(pools.now, phase)
    return None


def idle(rng: random.Random) -> Curve:
    base = rng.uniform(100, 117)
    return lambda t: (base + math.sin(t / 600), base / 2, 0.0, 0.0)


def load(rng: random.Random) -> Curve:
    """Weights stream in for ten minutes: MemFree at next to nothing all the while, stalls for reclaim."""
    span, low, stand = 600.0, rng.uniform(7, 20), rng.uniform(0.0, 0.5)
    free = [rng.uniform(0.3, 4.4) for _ in range(64)]

    def at(t: float) -> tuple[float, float, float, float]:
        done = min(t % span / span * 1.1, 1.0)
        return 112 - (112 - low) * done, free[int(t) % 64], 0.0, stand

    return at


def capture(rng: random.Random) -> Curve:
    """Graphs are captured: each size a spike of up to some GiB within milliseconds, which recovers."""
    base, every = rng.uniform(7, 12), rng.uniform(0.8, 3.0)
    spikes = [(rng.uniform(0.1, base - 2.15), rng.uniform(0.02, 0.4)) for _ in range(64)]

    def at(t: float) -> tuple[float, float, float, float]:
        depth, width = spikes[int(t / every) % 64]
        into = t % every
        dip = depth * max(0.0, 1 - abs(into - width) / width)
        return base - dip, max(base - dip - 3, 0.2), 0.0, 0.0

    return at


def touching(rng: random.Random) -> Curve:
    """Spikes whose tips go below the floor for less time than two looks take."""
    base = rng.uniform(5, 9)

    def at(t: float) -> tuple[float, float, float, float]:
        dip = (base - 1.98) * max(0.0, 1 - abs(t % 2.0 - 0.5) / 0.4)
        return base - dip, base - dip - 0.5, 0.0, 0.0

    return at


def serve(rng: random.Random) -> Curve:
    """Requests come and go, long prefills take a few GiB for some seconds."""
    base, free = rng.uniform(9, 14), rng.uniform(0.7, 3)

    def at(t: float) -> tuple[float, float, float, float]:
        prefill = 4 * max(0.0, math.sin(t / 40)) ** 8
        return base + 0.3 * math.sin(t / 7) - prefill, free, 0.0, 0.02

    return at


def swapping(rng: random.Random) -> Curve:
    """What is idle is swapped out for hours, with plenty available and short stalls."""
    base = rng.uniform(12, 20)
    return lambda t: (base + math.sin(t / 30), 0.4, min(t / 3600, 8.0), 0.3)


DAY = [
    (idle, 9.0, "", 1),
    (load, 4.0, "loading_weights", 3),
    (capture, 0.5, "capturing_graphs", 4),
    (touching, 0.25, "capturing_graphs", 2),
    (serve, 4.0, "serving", 2),
    (swapping, 2.0, "serving", 1),
]
"""Curve, hours each, phase, how many of them."""


def test_the_day_has_24_hours_and_more() -> None:
    assert sum(hours * times for _, hours, _, times in DAY) >= 24


@pytest.mark.parametrize(("make", "hours", "phase", "times"), DAY, ids=[day[0].__name__ for day in DAY])
def test_a_day_without_a_false_kill(make, hours, phase, times) -> None:
    for seed in range(times):
        kill = watch(make(random.Random(seed)), hours, phase, swap=make is swapping)
        assert kill is None, f"seed {seed}"


def hogged(curve: Curve, at_s: float, rate: float) -> Curve:
    """The curve with something that takes *rate* GiB/s from *at_s* on."""

    def at(t: float) -> tuple[float, float, float, float]:
        available, free, swap, stand = curve(t)
        taken = max(0.0, t - at_s) * rate
        return available - taken, max(free - taken, 0.0), swap, stand

    return at


@pytest.mark.parametrize("rate", [0.1, 1, 10, 40])
@pytest.mark.parametrize("make", [idle, load, capture, serve, swapping], ids=lambda make: make.__name__)
def test_a_hog_in_any_of_them_is_found_before_the_memory_ends(make, rate) -> None:
    for seed in range(3):
        curve = hogged(make(random.Random(seed)), 5.0, rate)
        found = watch(curve, 2.0)
        assert found is not None
        assert curve(found[1])[0] > 0.2, f"seed {seed}"


@pytest.mark.parametrize(
    ("phase", "stand", "kills"), [("serving", 0.8, True), ("loading_weights", 0.8, False)]
)
def test_a_node_that_stands_still_is_ended_though_memavailable_says_there_is_some(
    phase, stand, kills
) -> None:
    found = watch(lambda t: (22.0, 0.3, t / 100, stand if t > 60 else 0.0), 0.1, phase, swap=True)
    assert (found is not None) is kills
    if found is not None:
        assert found[0] == "stalled_for_memory"
        assert 60 < found[1] < 75


def recorded() -> tuple[Curve, float, int]:
    """A real node (24 GiB) reading files larger than its memory, with spikes of 1, 2 and 3 GiB after it."""
    rows = [
        [float(word) for word in line.split()] for line in RECORDED.read_text().splitlines() if line[0] != "#"
    ]
    times = [row[0] for row in rows]

    def at(t: float) -> tuple[float, float, float, float]:
        index = min(range(len(times)), key=lambda i: abs(times[i] - t % times[-1]))
        _, available, free, swap, full = rows[index]
        before = rows[max(index - 1, 0)]
        stand = max(full - before[4], 0) / 1e6 / max(rows[index][0] - before[0], 0.01)
        return available * 1024 / GIB, free * 1024 / GIB, swap * 1024 / GIB, min(stand, 1.0)

    return at, times[-1] / 3600, 24683656 * 1024


def test_a_recorded_node_with_a_full_page_cache_is_left_alone() -> None:
    curve, hours, total = recorded()
    assert min(curve(t / 10)[1] for t in range(int(hours * 36000))) < 0.6, "it was full"
    assert watch(curve, hours, total=total) is None


@pytest.mark.parametrize("rate", [0.3, 2, 10])
def test_a_hog_on_the_recorded_node_is_found(rate) -> None:
    curve, hours, total = recorded()
    assert watch(hogged(curve, 5.0, rate), hours * 20, total=total) is not None
