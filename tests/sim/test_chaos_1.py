"""A quarter of the fixed random worlds: no rule is broken in any (see `sim.chaos`)."""

from __future__ import annotations

import pytest

from sim.chaos.batch import broken, slices


@pytest.mark.parametrize("first", slices(0))
def test_no_rule_is_broken(first: int) -> None:
    assert broken(first) == []
