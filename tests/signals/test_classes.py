"""Every class of failure is named from its own lines: alone, in noise, under the cascade, in any order."""

from __future__ import annotations

import random

import pytest

from signals.cases import CASCADE, CASES, HEALTHY, NOISE, SURVIVOR, Case
from sparkd.engines.lines import read_line
from sparkd.intake.sieve import Sieve
from sparkd.intake.whole import Origin, WholeLog
from sparkd.signals.assess import Assessment, assess
from sparkd.signals.catalogue import packaged_catalogue
from sparkd.signals.causes import BY_TRACE, CAUSES

CATALOGUE = packaged_catalogue()
SIEVE = Sieve(CATALOGUE)
# They say of themselves that something else explains them; the cascade names them as well.
SURFACE = {"engine_dead_unspecified", "peer_lost", "nccl_remote_error", "killed_unspecified"}
ALL = pytest.mark.parametrize("case", [*CASES, *HEALTHY], ids=lambda case: case.name)
ROOTS = pytest.mark.parametrize(
    "case", [case for case in CASES if case.cause not in SURFACE], ids=lambda case: case.name
)


def assessed(*lines: str) -> Assessment:
    log = WholeLog(Origin("serve.log", "spark-a"), SIEVE)
    text = "\n".join((*lines, "")).encode()
    return assess(log.records([text]), CATALOGUE, read_line=read_line)


def check(case: Case, found: Assessment) -> None:
    diagnosis = found.diagnosis
    assert diagnosis.cause == case.cause, (diagnosis, [(w.signal.id, w.verdict) for w in found.weighed])
    assert (diagnosis.confidence >= 0.5) == (case.cause != "unknown")
    assert diagnosis.explanation
    assert diagnosis.evidence or case.cause in {"none", "unknown"}


def test_every_cause_has_a_case() -> None:
    observed_only = {"host_memory_pressure", *BY_TRACE}
    assert {case.cause for case in (*CASES, *HEALTHY)} | observed_only == set(CAUSES)


@ALL
def test_alone(case: Case) -> None:
    check(case, assessed(*case.lines))


@ALL
def test_in_noise(case: Case) -> None:
    check(case, assessed(*NOISE, *case.lines, *NOISE[2:6]))


@ROOTS
def test_under_the_cascade(case: Case) -> None:
    check(case, assessed(*NOISE, *case.lines, *CASCADE))


@ROOTS
def test_after_a_survivors_error(case: Case) -> None:
    """The loudest error is rarely the first, and a collector may put the effect before the cause."""
    check(case, assessed(*NOISE, *SURVIVOR, *CASCADE[:2], *case.lines))


@ROOTS
def test_interleaved(case: Case) -> None:
    """Blocks stay together, their order does not."""
    draw = random.Random(case.name)
    for _ in range(3):
        blocks = [case.lines, *((line,) for line in (*NOISE[:6], *CASCADE))]
        draw.shuffle(blocks)
        check(case, assessed(*(line for block in blocks for line in block)))


def test_the_noise_is_harmless() -> None:
    found = assessed(*NOISE)
    assert found.diagnosis.cause == "none"
    assert found.noise_count >= 3


def test_the_verdicts_tell_why() -> None:
    case = next(case for case in CASES if case.cause == "cuda_oom")
    found = assessed(*case.lines, *CASCADE, *SURVIVOR)
    verdicts = {w.signal.id: w.verdict for w in found.weighed}
    assert verdicts["cuda_oom"] == "root"
    assert verdicts["gloo_peer_closed"] == verdicts["engine_dead"] == "cascade"
    assert all(w.why for w in found.weighed)
    assert [q.role for q in found.diagnosis.evidence][:1] == ["root"]
    assert found.diagnosis.phase == "profiling"
