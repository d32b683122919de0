"""The measured memory as evidence: an end without a word on a node that had nothing left."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sparkd.signals.judge import judge
from sparkd.signals.memory import EXHAUSTED_ID, exhausted
from sparkd.signals.model import Curve, Diagnosis, Evidence, Proof, Signal, UnitExit
from sparkd.words import GIB, Phase, UnitName

TOTAL, FLOOR = 100 * GIB, 3 * GIB
END_S = 100.0
KILLED = UnitExit("b", UnitName.SERVE, 1, END_S, signal=9)
FAILED = replace(KILLED, signal=None, code=1)
EMPTY = Curve("b", TOTAL, FLOOR, ((98.0, 5 * GIB), (99.0, GIB), (103.0, 90 * GIB)), GIB)
FULL = Curve("a", TOTAL, FLOOR, ((99.0, 30 * GIB),), 20 * GIB)


def judged(*curves: Curve, end: UnitExit = KILLED, signals: tuple[Signal, ...] = ()) -> Diagnosis:
    evidence = Evidence(signals, (end,), Phase.CAPTURING_GRAPHS, ("a", "b"), "a", memory=curves)
    return judge(evidence)


def said(cause: str, at_s: float = 99.5, proof: Proof = Proof.SUGGESTS, **more: object) -> Signal:
    return Signal(f"seen_{cause}", cause, proof, "b", "serve log", cause, at_s, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("end", [KILLED, FAILED])
def test_an_end_without_a_word_on_an_exhausted_node_is_one_of_memory(end: UnitExit) -> None:
    found = judged(FULL, EMPTY, end=end)

    assert (found.cause, found.node, found.phase) == ("uma_host_exhaustion", "b", Phase.CAPTURING_GRAPHS)
    assert (found.quantity("available_bytes"), found.quantity("total_bytes")) == (GIB, TOTAL)
    assert 0.5 <= found.confidence < 0.9
    assert "1.00 GiB of 100.00 GiB were left" in found.explanation
    assert found.evidence[0].text == "1.00 of 100.00 GiB were left on b at the end"


@pytest.mark.parametrize(("end", "cause"), [(KILLED, "killed_unspecified"), (FAILED, "unknown")])
def test_a_node_with_memory_left_says_nothing(end: UnitExit, cause: str) -> None:
    assert judged(FULL, replace(FULL, node="b"), end=end).cause == cause


@pytest.mark.parametrize(
    ("curve", "counts"),
    [
        (replace(EMPTY, samples=((99.0, 4 * GIB - 1),)), True),
        (replace(EMPTY, samples=((99.0, 4 * GIB),)), False),
        (replace(EMPTY, samples=((99.0, 0),)), True),
        (replace(EMPTY, samples=((90.0, GIB),)), True),
        (replace(EMPTY, samples=((89.9, GIB), (99.0, 50 * GIB))), False),
        (replace(EMPTY, samples=((99.0, 50 * GIB), (101.0, GIB))), True),
        (replace(EMPTY, samples=((99.0, 50 * GIB), (101.1, GIB))), False),
        (replace(EMPTY, samples=()), True),
        (replace(EMPTY, samples=(), lowest_bytes=None), False),
        (replace(EMPTY, total_bytes=None), False),
        (replace(EMPTY, total_bytes=0), False),
    ],
)
def test_what_counts_is_what_was_left_near_the_end(curve: Curve, *, counts: bool) -> None:
    found = exhausted(Evidence(exits=(KILLED,), memory=(curve,)))
    assert [s.id for s in found] == [EXHAUSTED_ID] * counts


def test_while_nothing_ended_it_says_nothing() -> None:
    assert exhausted(Evidence(memory=(EMPTY,))) == ()
    assert exhausted(Evidence(exits=(replace(KILLED, ordered=True),), memory=(EMPTY,))) == ()
    hang = replace(said("engine_hang", fatal=True), source="sparkd")
    seen = Evidence(signals=(hang,), fence_at_s=END_S, memory=(EMPTY,))
    assert exhausted(seen) == (), "what sparkd ended for what it saw itself was no kill"


@pytest.mark.parametrize("cause", ["ray_oom_kill", "cuda_oom", "kernel_oom", "disk_full"])
def test_a_word_in_a_log_decides_before_it(cause: str) -> None:
    assert judged(EMPTY, signals=(said(cause, proof=Proof.PROVES, fatal=True),)).cause == cause


def test_with_a_second_witness_it_proves() -> None:
    driver = replace(said("uma_host_exhaustion"), id="uma_driver_no_memory")
    assert judged(EMPTY, signals=(driver,)).confidence > 0.9
