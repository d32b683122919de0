"""The daemon and `sparkctl diagnose` judge by the same rules: the same lines, the same cause, phase, node."""

from __future__ import annotations

from dataclasses import replace

import pytest

from core.given import HEAD, NOW, SERVE, head_state, turn_of
from signals.cases import CASES, VARIANTS, Case
from signals.replay import CATALOGUE, TWO_NODES
from sparkd.core.evidence import evidence_of
from sparkd.core.records import Times
from sparkd.core.state import Failure
from sparkd.engines.lines import read_line
from sparkd.intake.pump import Intake
from sparkd.intake.records import Reader
from sparkd.signals import prefix
from sparkd.signals.assess import Assessor
from sparkd.signals.judge import judge
from sparkd.signals.model import Diagnosis, Evidence, UnitExit
from sparkd.words import Phase

EVERY_S = 0.3
SOURCE = "serve log"
Timed = list[tuple[float, str]]


def timed(case: Case) -> Timed:
    return [(NOW + number * EVERY_S, line) for number, line in enumerate(case.lines)]


def from_file(lines: Timed) -> Diagnosis:
    reader = Reader(SOURCE, HEAD, 7)
    assessor = Assessor(CATALOGUE, TWO_NODES, read_line)
    for at_s, line in lines:
        for record in (*reader.tick(at_s), *reader.line(prefix.split(line), at_s)):
            assessor.add(record)
    for record in reader.flush():
        assessor.add(record)
    return assessor.finish().diagnosis


def as_it_runs(lines: Timed, code: int | None = None, **watch: object) -> Evidence:
    """Return what the coordinator would judge of an engine that prints *lines* and ends with *code*."""
    intake = Intake(HEAD, CATALOGUE, read_line, TWO_NODES)
    batches = [intake.tick(0.0)]
    for at_s, line in lines:
        batches += [intake.tick(at_s), intake.feed(SOURCE, SERVE, 7, line.encode() + b"\n", at_s)]
    batches.append(intake.end_all(7, lines[-1][0]))
    signals = tuple(signal for batch in batches for signal in batch.signals)
    ended_s = lines[-1][0] + EVERY_S
    exits = () if code is None else (UnitExit(HEAD, SERVE, 7, ended_s, code=code),)
    failure = Failure(7, Phase.SERVING, Times(ended_s), signals, exits)
    return evidence_of(turn_of(head_state(watch=watch)), failure)


CONFIG = "INFO 11-30 04:00:00 [model.py:1] Resolved architecture: Qwen3ForCausalLM"
DEAD = "(EngineCore pid=7) RuntimeError: Engine core initialization failed. See root cause above."
READY = "INFO:     Application startup complete."
RATE = "Engine 000: Avg generation throughput: 21.0 tokens/s, Running: 1 reqs"
WAIT = "No available shared memory broadcast block found in 60 seconds."
DOWN, UP = (f"mlx5_core 0000:01:00.0 enp1s0f0np0: Link {word}" for word in ("down", "up"))
DRIVER = (
    "NVRM: nvCheckOkFailedNoLog: Check failed: Out of memory [NV_ERR_NO_MEMORY] (0x00000051) returned from x"
)
ALL = pytest.mark.parametrize("case", [*CASES, *VARIANTS], ids=lambda case: case.name)


def told(found: Diagnosis) -> tuple[str, Phase | None, str | None]:
    return found.cause, found.phase, found.node


@ALL
def test_what_ends_an_engine_is_the_same_live_and_in_a_file(case: Case) -> None:
    file = from_file(timed(case))
    live = replace(as_it_runs(timed(case)), phase=file.phase)
    if any(signal.fatal for signal in live.signals):  # a live engine is judged once something failed
        assert told(judge(live)) == told(file)


@ALL
def test_so_is_what_was_said_before_an_end_without_a_word(case: Case) -> None:
    lines = timed(replace(case, lines=[CONFIG, *case.lines, DEAD]))
    file = from_file(lines)
    assert told(judge(replace(as_it_runs(lines, code=1), phase=file.phase))) == told(file)


@pytest.mark.parametrize(
    ("said", "cause"),
    [
        ([(0.0, READY), (80.0, WAIT), (198.0, RATE), (200.0, DEAD)], "engine_dead_unspecified"),
        ([(0.0, READY), (80.0, WAIT), (140.0, WAIT), (142.0, DEAD)], "engine_hang"),
        ([(0.0, READY), (150.0, DOWN), (152.0, UP), (200.0, DEAD)], "engine_dead_unspecified"),
        ([(0.0, READY), (150.0, DOWN), (200.0, DEAD)], "ib_roce_error"),
        ([(0.0, READY), (150.0, DOWN), (152.0, UP), (154.0, DOWN), (200.0, DEAD)], "ib_roce_error"),
        ([(0.0, READY), *((190.0 + n, DRIVER) for n in range(5)), (200.0, DEAD)], "uma_host_exhaustion"),
        ([(0.0, READY), (190.0, DRIVER), (200.0, DEAD)], "engine_dead_unspecified"),
        ([(0.0, READY), (199.0, "KeyError: 'layers.3.mlp'"), (200.0, DEAD)], "unknown"),
    ],
)
def test_what_is_over_and_what_is_said_again_count_alike(said: Timed, cause: str) -> None:
    lines = [(NOW + at_s, line) for at_s, line in said]
    worked_s = max((at_s for at_s, line in lines if line == RATE), default=NOW)
    live = judge(as_it_runs(lines, code=1, worked_at_s=worked_s))
    assert (from_file(lines).cause, live.cause) == (cause, cause)
