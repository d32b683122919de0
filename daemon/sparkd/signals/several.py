"""Several runs with logs of their own: the last failure is the answer, an earlier one is told beside it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from sparkd.signals.assess import Assessment
from sparkd.signals.model import Diagnosis
from sparkd.signals.runs import NO_FAILURE

WHY = "about another run"


def together(found: Sequence[Assessment]) -> Assessment:
    """Return what runs, the oldest first, say together.

    A run that shows no failure hides none: logs of a good one may have been given for comparison.
    """
    failed = [number for number, one in enumerate(found) if one.diagnosis.cause not in NO_FAILURE]
    number = failed[-1] if failed else len(found) - 1
    last = found[number]
    diagnosis = last.diagnosis
    if failed[:-1]:
        diagnosis = _told(diagnosis, found[failed[-2]].diagnosis)
    others = (one for place, one in enumerate(found) if place != number)
    aside = (replace(w, verdict="set aside", why=WHY) for one in others for w in one.weighed)
    noise: Counter[str] = Counter()
    for one in found:
        noise.update(dict(one.noise))
    return replace(
        last,
        diagnosis=diagnosis,
        weighed=(*last.weighed, *aside),
        noise=tuple(noise.most_common()),
        noise_count=noise.total(),
        signals_dropped=sum(one.signals_dropped for one in found),
    )


def _told(last: Diagnosis, failed: Diagnosis) -> Diagnosis:
    source = f" ({failed.evidence[0].source.rpartition('/')[2]})" if failed.evidence else ""
    return replace(
        last,
        explanation=f"{last.explanation}; an earlier run{source} failed: {failed.explanation}",
    )
