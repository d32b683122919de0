"""The real outputs of real runs, given to `sparkctl diagnose` as an operator gives them."""

from __future__ import annotations

import pytest

from signals.replay import DATA
from signals.test_truth import HEALTHY, SINGLE
from sparkd.cli.reading import Diagnoser, NamedLog
from sparkd.intake.files import LogFile
from sparkd.signals.catalogue import packaged_catalogue
from sparkd.signals.model import Diagnosis
from sparkd.words import Phase

DIAGNOSER = Diagnoser(packaged_catalogue())
# Where nobody gives the other node's logs, it is called by the address that this one's tell.
ADDRESS = {"spark-b": "10.77.0.2"}
# These were ended with SIGTERM by who made them.
STOPPED = {
    "vllm-healthy-22-shards-eager.log",
    "vllm-healthy-mp-tp1-warm-compile-cache.log",
    "vllm-ray-tp1.log",
}


def diagnosed(*logs: tuple[str, str | None]) -> Diagnosis:
    named = [NamedLog(LogFile(DATA / f"{file}.gz", f"{file}.gz"), node) for file, node in logs]
    found = DIAGNOSER.files(named).diagnosis
    assert [log.file.unread for log in named if log.file.unread] == []
    return found


@pytest.mark.parametrize(("file", "cause", "phase", "node"), SINGLE, ids=[row[0] for row in SINGLE])
def test_one_log(file: str, cause: str, phase: Phase | None, node: str | None) -> None:
    found = diagnosed((file, "spark-a"))
    assert found.cause == cause
    assert phase is None or found.phase is phase
    assert node is None or found.node == ADDRESS.get(node, node)
    assert found.confidence >= 0.5
    assert found.evidence
    assert found.explanation


@pytest.mark.parametrize("file", [row[0] for row in SINGLE])
def test_whose_log_it_is_changes_no_cause(file: str) -> None:
    assert diagnosed((file, None)).cause == diagnosed((file, "spark-a")).cause


@pytest.mark.parametrize("file", HEALTHY)
def test_a_healthy_log(file: str) -> None:
    assert diagnosed((file, "spark-a")).cause == ("clean_shutdown" if file in STOPPED else "none")


@pytest.mark.parametrize(
    ("logs", "cause", "phase", "node"),
    [
        (
            [
                ("vllm-fail-ray-oom-kill.log", "spark-a"),
                ("ray-oom-raylet-out-vllm-worker-nodeA.log", "spark-a"),
                ("ray-oom-raylet-out-vllm-worker-nodeB.log", "spark-b"),
            ],
            "ray_oom_kill",
            Phase.SERVING,
            "spark-a",
        ),
        (
            [
                ("vllm-fail-mp-nnodes2-remote-worker-sigkill-rank0.log", "spark-a"),
                ("vllm-fail-mp-nnodes2-remote-worker-sigkill-rank1.log", "spark-b"),
            ],
            "worker_process_died",
            Phase.SERVING,
            "spark-b",
        ),
        ([("s03b_oom_kv_alloc.serve.log", "spark-a")], "cuda_oom", Phase.ALLOCATING_KV_CACHE, "spark-a"),
        (
            [("s04_free_mem_less.serve.log", "spark-a")],
            "startup_free_memory_too_low",
            Phase.INIT_DISTRIBUTED,
            "spark-a",
        ),
        (
            [("s06_ray_oom_kill_v2.serve.log", "spark-a"), ("s06_ray_oom_kill_v2.raylet.out", "spark-a")],
            "ray_oom_kill",
            Phase.SERVING,
            "spark-a",
        ),
        ([("s07_kill_worker_v2.serve.log", "spark-a")], "worker_process_died", Phase.SERVING, "spark-a"),
    ],
    ids=lambda value: value[0][0] if isinstance(value, list) else None,
)
def test_logs_of_one_failure(logs: list[tuple[str, str | None]], cause: str, phase: Phase, node: str) -> None:
    for given in (logs, logs[::-1]):
        found = diagnosed(*given)
        assert (found.cause, found.phase, found.node) == (cause, phase, node)


def test_a_stop_that_the_engine_outlived_is_no_cause() -> None:
    """The worker was let go on after a minute, and the engine served."""
    assert diagnosed(("s08_sigstop_worker_v2.serve.log", "spark-a")).cause == "none"
