"""What the numbers mean: pure decisions, with literals."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkd.guard import decide
from sparkd.guard.decide import KILL, LOOK_AGAIN, TERM, Below, Floors, Level, Trend, floors_of, judge, pause_s
from sparkd.guard.settings import Settings

GIB = 1 << 30
TOTAL = 120 * GIB
FLOORS = Floors(2 * GIB, GIB)
SETTINGS = Settings({})


def looks(*seen: tuple[float, float, float | None], floors: Floors = FLOORS, term_s: float = 3.0) -> list:
    """Judge a row of looks (at_s, available GiB, free GiB); return the verdicts' codes."""
    trend, below, codes = Trend(), Below(), []
    for at_s, available, free in seen:
        level = Level("node", TOTAL, int(available * GIB), None if free is None else int(free * GIB))
        trend.add(at_s, level.available)
        codes.append(judge(level, floors, trend, below, at_s, term_s).code)
    return codes


def test_above_the_floor_is_clear_whatever_is_free() -> None:
    assert looks((0, 2.1, 0.1), (0.1, 2.1, 0.0), (0.2, 2.01, 0.0)) == ["above_floor"] * 3


def test_below_the_floor_it_looks_again_and_then_kills_what_falls_fast() -> None:
    assert looks((0, 2.2, 2.1), (0.01, 1.9, 1.8), (0.02, 1.6, 1.5)) == [
        "above_floor",
        "first_look_below_floor",
        "below_floor_fast",
    ]


def test_what_falls_slowly_is_asked_first_where_the_hard_floor_is_far() -> None:
    fall = [(n / 10, 2.025 - 0.01 * n, 2.0 - 0.01 * n) for n in range(6)]
    assert looks(*fall)[-1] == "below_floor_slowly"
    assert looks(*fall, term_s=0)[-1] == "below_floor_fast"
    assert looks(*fall, term_s=10)[-1] == "below_floor_fast", "the grace does not fit before the hard floor"


def test_at_the_hard_floor_nobody_is_asked_even_while_it_rises() -> None:
    assert looks((0, 0.9, 0.8), (0.01, 0.95, 0.9)) == ["first_look_below_floor", "below_hard_floor"]


def test_what_rises_again_is_left_alone() -> None:
    codes = looks((0, 2.1, 2.0), (0.01, 1.95, 1.9), (0.02, 1.99, 1.9), (0.03, 2.3, 2.2))
    assert codes == ["above_floor", "first_look_below_floor", "recovering", "above_floor"]


def test_a_rise_that_stops_is_no_excuse() -> None:
    codes = looks((0, 1.8, 1.7), (0.01, 1.9, 1.8), (0.02, 1.5, 1.4))
    assert codes[-1] == "below_floor_fast"


def test_hovering_below_the_floor_is_given_a_second_and_no_more() -> None:
    codes = looks(*[(n / 10, 1.99, 1.9) for n in range(14)])
    assert codes[1:10] == ["creeping"] * 9
    assert codes[11] == "below_floor_slowly"


def test_one_number_alone_kills_nobody_at_once() -> None:
    """MemAvailable is never below MemFree less the reserve: one of the two is wrong."""
    codes = looks((0, 1.5, 50), (0.005, 1.4, 50), (0.01, 1.3, 50), (0.015, 1.2, 50), (0.02, 1.1, 50))
    assert codes == ["numbers_disagree"] * 5
    blip = looks((0, 40, 50), (0.01, 0.1, 50), (0.02, 0.1, 50), (0.03, 40, 50), (0.04, 0.1, 50))
    assert blip[-1] == "numbers_disagree"


@pytest.mark.parametrize("free", [50, None])
def test_a_number_that_stays_low_is_believed_in_the_end(free) -> None:
    codes = looks(*[(n / 100, 1.5 - n / 100, free) for n in range(6)])
    assert codes[-1] == "below_floor_and_numbers_disagree"


def test_floors_are_bounded_by_the_pool() -> None:
    floors = floors_of(8 * GIB, 24 * GIB, SETTINGS)
    assert (floors.floor, floors.hard) == (int(2.4 * GIB), int(2.4 * GIB * 0.5))
    assert floors_of(3 * GIB, TOTAL, SETTINGS).floor == 3 * GIB


def trend_of(*seen: tuple[float, float]) -> Trend:
    trend = Trend()
    for at_s, available in seen:
        trend.add(at_s, int(available * GIB))
    return trend


@pytest.mark.parametrize(
    ("seen", "falling", "settled"),
    [
        ([], 0, 0),
        ([(0, 10)], 0, 0),
        ([(0, 10), (1, 9)], 1, 1),
        ([(0, 10), (1, 11)], 0, 0),
        ([(0, 10), (0.1, 9.9), (0.2, 9.8), (0.3, 8.8)], 10, 4),
        ([(0, 20), (0.01, 9), (0.02, 10)], 500, 500),
        ([(5, 10), (5, 9)], 0, 0),
    ],
)
def test_the_fall_is_the_fastest_of_the_near_past(seen, falling, settled) -> None:
    trend = trend_of(*seen)
    assert trend.falling() == pytest.approx(falling * GIB, rel=1e-6)
    assert trend.settled() == pytest.approx(settled * GIB, rel=1e-6)


def pause_at(available: float, *before: tuple[float, float]) -> float:
    trend = trend_of(*before, (before[-1][0] + 0.1 if before else 0.0, available))
    return pause_s(Level("node", TOTAL, int(available * GIB), None), FLOORS, trend, SETTINGS)


def test_far_from_the_floor_it_looks_once_a_second_and_near_it_a_hundred_times() -> None:
    assert pause_at(100) == 1.0
    assert pause_at(2.1) == 0.01
    assert 0.05 < pause_at(8) < 0.2


def test_a_fall_is_looked_at_eight_times_on_its_way() -> None:
    assert pause_at(10, (0.0, 11.0)) == pytest.approx(8 / 10 / 8, rel=0.01)


def test_below_the_floor_it_looks_again_the_sooner_the_faster_it_falls() -> None:
    assert pause_at(1.9) == 0.01
    assert pause_at(1.5, (0.0, 5.5)) == pytest.approx(0.5 / 40 / 8, rel=0.01)
    assert pause_at(0.5, (0.0, 5.5)) == decide.LOOK_AGAIN_LEAST_S


@given(
    rate=st.floats(0.1e9, 60e9),
    start=st.floats(0.1, 110),
    phase=st.floats(0, 1),
)
def test_no_fall_that_the_machine_can_do_gets_far_below_the_floor_unseen(rate, start, phase) -> None:
    """From any height, at any rate up to the assumed one, from any moment between two looks."""
    available = FLOORS.floor + start * GIB
    trend, below = Trend(), Below()
    now, begun = 0.0, None
    level = Level("node", TOTAL, int(available), int(available))
    for _ in range(3):
        trend.add(now, level.available)
        pause = pause_s(level, FLOORS, trend, SETTINGS)
        begun = now + pause * phase
        now += pause
    for _ in range(20_000):
        left = available - rate * max(0.0, now - begun)
        level = Level("node", TOTAL, max(int(left), 0), max(int(left), 0))
        trend.add(now, level.available)
        verdict = judge(level, FLOORS, trend, below, now, 3.0)
        if verdict.act in (TERM, KILL):
            break
        assert verdict.act == LOOK_AGAIN or level.available > FLOORS.floor
        now += pause_s(level, FLOORS, trend, SETTINGS)
    crossed_at = begun + (available - FLOORS.floor) / rate
    late_s = now - crossed_at
    assert late_s <= 2 * SETTINGS.poll_least_s + 0.001


FULL = 0.8


@pytest.mark.parametrize(
    ("free", "share", "grew", "loading", "stalled"),
    [
        (0.2, FULL, True, False, True),
        (0.2, FULL, None, False, True),
        (0.2, FULL, False, False, False),
        (0.2, FULL, True, True, False),
        (0.2, 0.95, True, True, True),
        (0.2, 0.5, True, False, False),
        (1.0, 1.0, True, False, False),
        (None, 1.0, True, False, False),
        (0.2, None, True, False, False),
    ],
)
def test_the_second_rule_needs_all_of_its_numbers(free, share, grew, loading, stalled) -> None:
    said = None if free is None else int(free * GIB)
    assert decide.stalled(said, share, grew, loading, Settings({"free_floor": GIB // 2})) is stalled
    assert not decide.stalled(said, share, grew, loading, Settings({"free_floor": 0}))
