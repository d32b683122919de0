"""Budgets and waits."""

from __future__ import annotations

from dataclasses import replace

from sim.world import make_policy
from sparkd.core import restart

POLICY = replace(make_policy("spark-a"), backoff_base_s=10.0, backoff_max_s=300.0, budget_window_s=3600.0)


def test_the_wait_doubles_up_to_the_maximum() -> None:
    waits = [restart.backoff(n, POLICY) for n in (1, 2, 3, 5, 6, 100)]

    assert waits == [10.0, 20.0, 40.0, 160.0, 300.0, 300.0]


def test_budgets_are_per_cause_and_only_within_the_window() -> None:
    spent = restart.spend("engine_hang", (), POLICY, 0.0)
    spent = restart.spend("engine_hang", spent, POLICY, 3000.0)
    spent = restart.spend("ray_node_died", spent, POLICY, 3000.0)

    assert restart.spent_on("engine_hang", spent, POLICY, 3500.0) == 2
    assert restart.spent_on("engine_hang", spent, POLICY, 3700.0) == 1
    assert restart.spent_on("ray_node_died", spent, POLICY, 3700.0) == 1


def test_what_is_older_than_the_window_is_forgotten() -> None:
    spent = restart.spend("engine_hang", (), POLICY, 0.0)

    assert restart.spend("x", spent, POLICY, 4000.0) == (("x", 4000.0),)
