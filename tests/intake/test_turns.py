"""Which of several logs are of which run, by when they speak."""

from __future__ import annotations

import pytest

from sparkd.intake.turns import Span, span_of, turns_of
from sparkd.signals.model import Record

START = "(APIServer pid=1) INFO 11-30 {} [model.py:7] Resolved architecture: Qwen3ForCausalLM"


def runs(*spans: Span) -> list[int]:
    return [turns_of(spans).of(Record(span.source, "", "")) for span in spans]


@pytest.mark.parametrize(
    ("later", "numbers"),
    [
        (Span("b", 110.0, 200.0), [0, 1]),
        (Span("b", 90.0, 200.0), [0, 0]),
        (Span("b", 100.5, 200.0), [0, 0]),
        (Span("b", 110.0, 200.0, serves=False), [0, 0]),
        (Span("b", 170.0, 200.0, serves=False), [0, 1]),
        (Span("b", 170.0, 200.0, begins=False), [0, 0]),
    ],
    ids=["after", "beside", "within a second", "a rank soon after", "a rank long after", "begins with none"],
)
def test_what_begins_after_all_others_ended_is_of_another_run(later: Span, numbers: list[int]) -> None:
    first = Span("a", 0.0, 100.0)
    assert runs(first, later) == numbers
    assert runs(later, first) == numbers[::-1], "in whatever order they are given"


def test_one_log_that_goes_on_holds_a_run_together() -> None:
    assert runs(Span("a", 0.0, 300.0), Span("b", 1.0, 50.0), Span("c", 200.0, 250.0)) == [0, 0, 0]


def test_of_other_logs_each_run_has_what_was_said_in_its_time() -> None:
    turns = turns_of([Span("a", 0.0, 100.0), Span("b", 500.0, 600.0)])
    assert [turns.of(Record("kernel", "", "", at_s)) for at_s in (50.0, 130.0, 490.0, 900.0)] == [0, 0, 1, 1]
    assert turns.of(Record("a spark-vllm", "", "", 700.0)) == 0, "a unit of a collector's log"


def test_a_span_is_of_an_engine_and_has_times() -> None:
    head, tail = [START.format("02:00:00")], ["INFO 11-30 02:10:00 [a.py:1] end", "no time"]
    span = span_of("a", head, tail)
    assert span is not None
    assert (span.last_s - span.first_s, span.begins, span.serves) == (600.0, True, True)
    assert span_of("a", ["INFO 11-30 02:00:00 [a.py:1] Hello"], tail) is None
    assert span_of("a", ["Resolved architecture: Qwen3ForCausalLM"], tail) is None
    assert span_of("a", head, ["no time"]) is None
    rank = span_of("a", [*head, "INFO 11-30 02:00:01 [a.py:1] Launching vLLM headless engine"], tail)
    assert rank is not None
    assert not rank.serves
