"""What is not told at once and may be what ended the engine is told at the end of the generation."""

from __future__ import annotations

from sparkd.engines.lines import read_line
from sparkd.intake.pump import Batch, Intake
from sparkd.signals.catalogue import packaged_catalogue
from sparkd.signals.precedence import BURST, UNEXPLAINED_ID, UNKNOWN_EXCEPTION
from sparkd.words import UnitName

CATALOGUE = packaged_catalogue()
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {}.00 GiB."
ERROR = "ERROR 11-30 04:00:0{} [usage_lib.py:1] a thing of which nobody knows happened {}"
DRIVER = "NVRM: nvCheckOkFailedNoLog: Check failed: Out of memory [NV_ERR_NO_MEMORY] (0x00000051) returned"


def said(batch: Batch) -> list[tuple[str, float]]:
    return [(signal.id, signal.at_s) for signal in batch.signals]


def feed(intake: Intake, text: str, at_s: float) -> list[tuple[str, float]]:
    fed = intake.feed("serve log", UnitName.SERVE, 1, text.encode() + b"\n", at_s)
    return said(fed) + said(intake.tick(at_s + 1.0))


def test_the_newest_repeat_is_told_at_the_end() -> None:
    intake = Intake("a", CATALOGUE, read_line)
    assert feed(intake, OOM.format(1), 1.0) == [("cuda_oom", 1.0)]
    assert [feed(intake, OOM.format(size), at_s) for size, at_s in ((2, 5.0), (3, 9.0))] == [[], []]

    end = intake.end_all(1, 12.0)

    assert said(end) == [("cuda_oom", 9.0)]
    assert "3.00 GiB" in end.signals[0].quote
    assert said(intake.end_all(1, 13.0)) == []


def test_what_was_told_since_is_not_told_again() -> None:
    intake = Intake("a", CATALOGUE, read_line)
    assert [bool(feed(intake, OOM.format(1), at_s)) for at_s in (1.0, 5.0, 40.0)] == [True, False, True]
    assert said(intake.end_all(1, 50.0)) == []


def test_of_errors_that_nobody_knows_the_last_is_told_and_only_at_the_end() -> None:
    intake = Intake("a", CATALOGUE, read_line)
    assert [feed(intake, ERROR.format(n, n), float(n)) for n in (1, 2, 3)] == [[], [], []]

    end = intake.end_all(1, 12.0)

    assert said(end) == [(UNEXPLAINED_ID, 3.0)]
    assert end.signals[0].quote.endswith("happened 3")
    assert end.repeated == 0


def test_an_exception_that_nobody_knows_is_told_at_once() -> None:
    assert feed(Intake("a", CATALOGUE, read_line), "KeyError: 'layers.3.mlp'", 1.0) == [
        (UNKNOWN_EXCEPTION, 1.0)
    ]


def test_of_what_counts_by_its_number_a_burst_is_told() -> None:
    intake = Intake("a", CATALOGUE, read_line)
    told = [feed(intake, DRIVER, float(number)) for number in range(2 * BURST)]
    assert [len(one) for one in told] == [1] * BURST + [0] * BURST
