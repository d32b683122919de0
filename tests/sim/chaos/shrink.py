"""A violation made small: faults are left out, halves first, as long as the same rule stays broken."""

from __future__ import annotations

from collections.abc import Callable

from sim.chaos.plan import Fault, Plan

RUNS_MAX = 120

Broken = Callable[[Plan], str | None]


def shrink(plan: Plan, rule: str, broken: Broken) -> Plan:
    """Return *plan* with as few faults as still break *rule*."""
    faults = list(plan.faults)
    size = max(1, len(faults) // 2)
    runs = 0
    while faults and runs < RUNS_MAX:
        fewer, tried = _pass(plan, faults, size, lambda p: broken(p) == rule)
        runs += tried
        if len(fewer) == len(faults) and size == 1:
            break
        size = size if len(fewer) < len(faults) else max(1, size // 2)
        faults = fewer
    return plan.without(tuple(faults))


def _pass(
    plan: Plan, faults: list[Fault], size: int, holds: Callable[[Plan], bool]
) -> tuple[list[Fault], int]:
    """Leave out each stretch of *size* faults in turn; return what is left and the number of runs."""
    start = tried = 0
    while start < len(faults):
        fewer = faults[:start] + faults[start + size :]
        tried += 1
        if holds(plan.without(tuple(fewer))):
            faults = fewer
        else:
            start += size
    return faults, tried
