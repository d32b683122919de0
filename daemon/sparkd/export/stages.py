"""How long the stages of one recovery took. Pure."""

from __future__ import annotations

from collections.abc import Mapping

STAGES = ("fence_ordered", "emptied", "decided", "fenced", "launched", "serving")


def stages_of(times: Mapping[str, float | None]) -> tuple[tuple[str, float], ...]:
    """Return (stage, seconds) in the order of time: from the stage before it, detection first.

    Args:
        times: the fields of `core.records.Times`, monotonic seconds; None = not reached, left out here.
    """
    last = times.get("detected_s")
    if last is None:
        return ()
    reached = [(at_s, name) for name in STAGES if (at_s := times.get(f"{name}_s")) is not None]
    # A launch before the detection is that of the failed generation.
    reached = [stage for stage in reached if stage[0] >= last]
    spent: list[tuple[str, float]] = []
    # Sorting is stable: stages of one instant keep the order in which they belong.
    for at_s, name in sorted(reached, key=lambda stage: stage[0]):
        spent.append((name, at_s - last))
        last = at_s
    return tuple(spent)


def recovery_s(times: Mapping[str, float | None]) -> float | None:
    """Return seconds from the first evidence to serving, None where one of them is not there."""
    detected, serving = times.get("detected_s"), times.get("serving_s")
    return None if detected is None or serving is None else serving - detected
