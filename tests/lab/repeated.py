"""What came of scenarios that were lived through many times: for `make lab-long`."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from lab.scenarios import Result

TIMES = ("detect_s", "fence_s", "decide_s", "serving_s", "raw_start_s")


def rows(results: Sequence[Result]) -> list[dict[str, Any]]:
    """Return one row for each scenario, in the order of their first runs: the lab's form, over all runs.

    A time is {"p50", "worst"} of the runs that have it; `ok` is that of all, `failed` tells how many are not.
    """
    names = list(dict.fromkeys(result.scenario for result in results))
    return [_row([result for result in results if result.scenario == name]) for name in names]


def _row(runs: Sequence[Result]) -> dict[str, Any]:
    lost = [run.lost_requests for run in runs if run.lost_requests is not None]
    return {
        "scenario": runs[0].scenario,
        "engine": runs[0].engine,
        "runs": len(runs),
        "ok": all(run.ok for run in runs),
        "failed": sum(not run.ok for run in runs),
        "expected_cause": runs[0].expected_cause,
        "cause": sorted({str(run.cause) for run in runs}),
        **{name: _times([getattr(run, name) for run in runs]) for name in TIMES},
        "lost_requests": sum(lost) if lost else None,
        "dead_processes": [process for run in runs for process in run.dead_processes or []],
        "note": [run.note for run in runs if run.note],
    }


def _times(values: Sequence[float | None]) -> dict[str, float] | None:
    known = [value for value in values if value is not None]
    return {"p50": round(statistics.median(known), 2), "worst": max(known)} if known else None
