"""What sparkd would do is what the runbook says that it does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sparkd.cli.would import GOES_ON, would
from sparkd.signals.causes import CAUSES
from sparkd.signals.model import Diagnosis, Quantity
from sparkd.words import Phase

RUNBOOK = (Path(__file__).parents[2] / "docs" / "runbook.md").read_text(encoding="utf-8")
DOES = dict(
    re.findall(
        r"^## `(\w+)`$.+?^- \*\*What sparkd does\.\*\* (.+?)$", RUNBOOK, flags=re.MULTILINE | re.DOTALL
    )
)
PASSES = "{0} {1}: relaunch with unchanged settings"
# The beginning of what the runbook says -> what sparkd would do, where nothing but the cause is known.
MEANS = {
    "Stops and asks at once": "",
    "Relaunches the whole group with unchanged settings": PASSES,
    "Relaunches unchanged; if it comes again, one memory step": PASSES,
    "Two unchanged relaunches": "no evidence decides the cause: unchanged relaunch 1 of 2",
    "Fences every node, lowers the memory setting": "batched tokens 2048 -> 1024",
    "Shortens the context to what fits": "batched tokens 2048 -> 1024",
    "Turns Ray's monitor off where every node's guard enforces": "Ray's monitor 0.95 -> 0.98",
    "Nothing": "",
    "Where it was not sparkd's own stop": "",
}


def test_rays_threshold_is_the_one_that_the_evidence_states() -> None:
    numbers = (Quantity("threshold_bytes", 40.0), Quantity("total_bytes", 100.0))
    sparkd, _ = would(Diagnosis("ray_oom_kill", None, None, None, 0.9, "why", quantities=numbers))
    assert sparkd.startswith("Ray's monitor 0.40 -> 0.98")


# The setting that its evidence would name is the share; without numbers nothing can be named.
UNKNOWN_WITHOUT_NUMBERS = {"startup_free_memory_too_low"}


@pytest.mark.parametrize("cause", sorted(set(CAUSES) - UNKNOWN_WITHOUT_NUMBERS))
def test_the_runbook_says_what_sparkd_would_do(cause: str) -> None:
    (meant,) = [text for begin, text in MEANS.items() if DOES[cause].startswith(begin)]
    sparkd, person = would(Diagnosis(cause, None, None, None, 0.9, "why"))
    passes = "rarely passes by itself" if CAUSES[cause].transient is False else "can pass"
    assert sparkd.startswith(meant.format(cause, passes))
    assert bool(sparkd) == bool(meant)
    assert sparkd or person or cause in {"none", "clean_shutdown"}
    assert DOES[cause].startswith("Stops and asks at once") <= CAUSES[cause].permanent


def test_of_a_request_that_a_serving_engine_refuses_nothing_follows() -> None:
    told = Diagnosis("tokenizer_or_template_error", Phase.SERVING, None, False, 0.6, "why", advice="template")
    assert would(told) == (GOES_ON, "template")
    started = Diagnosis("tokenizer_or_template_error", Phase.RESOLVING_CONFIG, None, False, 0.95, "why")
    assert would(started)[0] == ""
