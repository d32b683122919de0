"""The tests that decide about a mutant, the quick ones first: a plugin of pytest for `make mutants`.

Most mutants die of a test of some milliseconds, but one that survives has to face all of them: what takes
longer than `QUICK_S` decides nothing here. The random worlds and the long stories still stand in `make test`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sim import world

QUICK_S = 0.04
"""Processor time: a busy machine does not change which tests decide."""

HANDED_OVER = "tests/core/test_remedy.py::test_what_the_daemon_hands_over_is_known"
LEFT_OUT = ("tests/core/test_bench_policy.py", "tests/sim/test_chaos", HANDED_OVER)
"""Slow before their first test; and one that reads the source, in which it would see every mutant."""

COSTS = Path(__file__).parents[2] / "costs.json"
costs: dict[str, float] = json.loads(COSTS.read_text()) if COSTS.exists() else {}


def pytest_configure() -> None:
    """Compare fewer steps with ones that leave nothing out: that is half of the time of a story."""
    world.CHECKED_STEPS = 0


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the slow ones out and run the quick ones first."""
    decide = [item for item in items if not _is_slow(item.nodeid)]
    config.hook.pytest_deselected(items=[item for item in items if item not in decide])
    items[:] = sorted(decide, key=lambda item: costs.get(item.nodeid, 0.0))


def _is_slow(nodeid: str) -> bool:
    return nodeid.startswith(LEFT_OUT) or costs.get(nodeid, 0.0) > QUICK_S


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Measure what is not known yet."""
    before_s = time.process_time()
    yield
    costs.setdefault(item.nodeid, time.process_time() - before_s)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Keep what was measured; only before the first mutant."""
    if not COSTS.exists() and len(session.items) > 1:
        COSTS.write_text(json.dumps(costs))
