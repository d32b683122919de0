"""The benchmark of the ladder: one seed, one set of figures; sparkd beats the habits of people."""

from __future__ import annotations

import pytest

from benchmarks.policy import bench
from benchmarks.policy_rivals import best_settings
from benchmarks.policy_world import make_case, run

CASES = 60


@pytest.fixture(scope="module")
def figures() -> dict:
    return bench("test", CASES, lambda _line: None)


def test_the_same_seed_gives_the_same_cases() -> None:
    first, again = (make_case("test:7") for _ in range(2))

    assert first == again
    assert run(first, first.asked, 0) == run(again, again.asked, 0)
    assert not run(first, first.asked, 0).serves


def test_the_oracles_settings_serve_at_the_next_start() -> None:
    for number in range(12):
        truth = make_case(f"test:{number}")
        best = best_settings(truth)
        if best is not None:
            assert run(truth, best[0], 1).serves


def test_sparkd_ends_most_failures_with_one_relaunch_and_beats_the_habits_of_people(figures) -> None:
    sparkd, fixed, same = (figures[name] for name in ("sparkd", "fixed_ladder", "same_settings"))

    assert sparkd["one_relaunch_share"] > 0.85
    assert sparkd["kv_kept"] > 0.8
    assert sparkd["relaunches_mean"] < 1.4 < fixed["relaunches_mean"] < same["relaunches_mean"]
    assert figures["oracle"]["one_relaunch_share"] == 1.0
