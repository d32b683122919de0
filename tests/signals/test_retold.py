"""What is told once more by one who knows less is not the cause."""

# ruff: noqa: E501
from __future__ import annotations

import pytest

from sparkd.cli.reading import Diagnoser
from sparkd.signals.catalogue import packaged_catalogue

DIAGNOSER = Diagnoser(packaged_catalogue())
RESULT = "systemd[1]: {}: Failed with result 'oom-kill'."
OOMD = "systemd[1]: {}: systemd-oomd killed {} process(es) in this unit."
GONE = "spark-a:110:697 [0] misc/socket.cc:50 NCCL WARN socketProgress: Connection closed by remote peer 10.77.0.2<55912>"
REPORT = "[rank0] Exception (either an error or timeout) detected by watchdog at work: 89, last enqueued NCCL work: 90, last completed NCCL work: 88."
TIMEOUT = "[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=89, OpType=BROADCAST, NumelIn=8, NumelOut=8, Timeout(ms)=150000) ran for 150001 milliseconds before timing out."
RAISED = "TypeError: Object of type <class 'torch.dtype'> is not serializable"
SHUTS = "(EngineCore pid=970) INFO 11-30 04:10:00 [core.py:1201] Shutdown initiated (timeout=0)"
SHUT = "(EngineCore pid=970) INFO 11-30 04:10:00 [core.py:1224] Shutdown complete"
DIED = "ERROR 11-30 04:10:01 [core_client.py:704] Engine core proc EngineCore died unexpectedly, shutting down client."
DONE = "Processed prompts: 100%|##########| 1/1 [00:03<00:00,  3.40s/it, est. speed input: 2.35 toks/s, output: 37.65 toks/s]"
WAIT = "No available shared memory broadcast block found in 60 seconds."


def cause_of(*lines: str) -> str:
    return DIAGNOSER.lines(list(lines)).diagnosis.cause


@pytest.mark.parametrize("unit", ["session-2.scope", "user@1000.service", "vllm.service"])
@pytest.mark.parametrize("count", ["some", "291"])
def test_what_systemds_guard_killed_systemd_counts_as_an_oom_kill(unit: str, count: str) -> None:
    assert cause_of(OOMD.format(unit, count), RESULT.format(unit)) == "memory_guard_kill"
    assert cause_of(RESULT.format(unit)) == "kernel_oom"


def test_a_watchdog_that_reports_a_rank_that_went_away_waited_for_nothing() -> None:
    assert cause_of(GONE, REPORT) in {"nccl_remote_error", "peer_lost"}
    assert cause_of(REPORT) == "nccl_timeout"
    assert cause_of(GONE, TIMEOUT) == "nccl_timeout"


def test_a_collective_that_waited_for_a_rank_that_raised() -> None:
    assert cause_of(RAISED, TIMEOUT) == "unknown"
    assert cause_of(TIMEOUT, RAISED) == "nccl_timeout"


def test_an_engine_that_shut_itself_down_did_not_die() -> None:
    assert cause_of(SHUTS, SHUT, DIED) == "clean_shutdown"
    assert cause_of(DIED) == "worker_process_died"
    assert cause_of(DIED, SHUTS.replace("04:10:00", "04:10:02")) == "worker_process_died"
    killed = "(EngineCore pid=970) ERROR 11-30 04:09:59 [x.py:1] Worker proc VllmWorker-1 died unexpectedly (exit code: -9), shutting down executor."
    assert cause_of(killed, SHUTS, SHUT, DIED) == "worker_process_died"


def test_what_ends_after_a_run_without_a_server_has_done_its_work() -> None:
    assert cause_of(DONE, DIED) != "worker_process_died"
    assert cause_of(DIED, DONE) == "worker_process_died"
    crashed = "Fatal Python error: Segmentation fault"
    assert cause_of(DONE, crashed, DIED) == "worker_process_died"


@pytest.mark.parametrize(
    "line", [f"rsyslogd: message repeated 5 times: [ {WAIT}]", f"it then repeatedly reported: {WAIT}"]
)
def test_a_wait_that_was_said_again_and_again_is_a_hang(line: str) -> None:
    assert cause_of(line) == "engine_hang"
    assert cause_of(WAIT) == "unknown"


@pytest.mark.parametrize(
    "words", ["host memory OOM killed the worker", "OOM-killed worker 2", "OOM 杀 worker"]
)
def test_a_note_of_rays_kill_explains_the_worker_that_died(words: str) -> None:
    died = "RayWorkerProc rank=[1] died unexpectedly, shutting down executor."
    assert cause_of(f"{died}; raylet: {words}") == "ray_oom_kill"
    assert cause_of(died, f"raylet reported: {words}") == "ray_oom_kill"
    assert cause_of(died, "raylet: OOM killer is off") == "worker_process_died"
