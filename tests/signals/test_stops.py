"""Who stops an engine that something killed answers the kill; who stops one that works wants it stopped."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparkd.cli.reading import Diagnoser, NamedLog
from sparkd.intake.files import LogFile
from sparkd.signals.catalogue import packaged_catalogue
from sparkd.words import Phase

DIAGNOSER = Diagnoser(packaged_catalogue())
LINE = "Nov 30 04:{0:02}:{1:02} spark-a {2}: {3}"
RATE = "INFO 11-30 04:10:00 [loggers.py:1] Avg generation throughput: 21.0 tokens/s, Running: 1 reqs"
SERVING = [
    LINE.format(0, 0, "vllm[100]", "INFO 11-30 04:00:00 [x.py:1] Resolved architecture: Qwen3ForCausalLM"),
    LINE.format(5, 0, "vllm[100]", "INFO:     Application startup complete."),
    LINE.format(10, 0, "vllm[100]", RATE),
]
MEMORY = "Memory on the node (IP: 10.0.0.2, ID: aa10) was 113.66GB / 119.57GB (0.950580)"
KILLS = {
    "kernel": (
        "kernel_oom",
        "kernel",
        "Out of memory: Killed process 9635 (VLLM::Worker_TP) total-vm:52428800kB, anon-rss:1509949kB",
    ),
    "limit": ("cgroup_oom", "kernel", "Memory cgroup out of memory: Killed process 9635 (VLLM::Worker)"),
    "device": (
        "gpu_xid",
        "kernel",
        "NVRM: Xid (PCI:000f:01:00): 31, pid=9635, name=VLLM::Worker, Ch 00000008, MMU Fault",
    ),
    "ray": (
        "ray_oom_kill",
        "ray[90]",
        f"Killing worker with task (actor ID: 5fa1) with pid 2214 due to memory pressure: {MEMORY}",
    ),
    "ray's summary": (
        "ray_oom_kill",
        "ray[90]",
        "1 Workers (tasks / actors) killed due to memory pressure (OOM), 0 Workers crashed",
    ),
}
STOPS = {
    "asked": ("vllm[100]", "[shutdown] API server: shutdown triggered"),
    "systemd": ("systemd[1]", "Stopping vllm.service - the engine..."),
    "raylet": ("ray[90]", "Raylet received SIGTERM. Existing local drain request = None"),
}


def cause(*lines: str) -> str:
    return DIAGNOSER.lines(list(lines)).diagnosis.cause


@pytest.mark.parametrize("stop", STOPS)
@pytest.mark.parametrize("kill", KILLS)
@pytest.mark.parametrize("after_min", [1, 20])
def test_a_stop_after_a_kill_answers_it(kill: str, stop: str, after_min: int) -> None:
    name, writer, text = KILLS[kill]
    killed = LINE.format(11, 0, writer, text)
    assert cause(*SERVING, killed, LINE.format(11 + after_min, 0, *STOPS[stop])) == name


@pytest.mark.parametrize("kill", KILLS)
def test_a_kill_after_a_stop_is_of_the_stop(kill: str) -> None:
    _, writer, text = KILLS[kill]
    stopped = LINE.format(11, 0, *STOPS["asked"])
    assert cause(*SERVING, stopped, LINE.format(11, 20, writer, text)) == "clean_shutdown"


@pytest.mark.parametrize("kill", KILLS)
def test_a_kill_that_the_engine_worked_on_after_does_not_hide_the_stop(kill: str) -> None:
    _, writer, text = KILLS[kill]
    worked = [LINE.format(minute, 0, "vllm[100]", RATE) for minute in (12, 13, 14)]
    stopped = LINE.format(15, 0, *STOPS["asked"])
    dead = LINE.format(
        15, 1, "vllm[100]", "Worker proc VllmWorker-1 died unexpectedly, shutting down executor."
    )
    assert cause(*SERVING, LINE.format(11, 0, writer, text), *worked, stopped) == "clean_shutdown"
    assert cause(*SERVING, LINE.format(11, 0, writer, text), *worked, stopped, dead) == "clean_shutdown"


STARTS = {
    "bad_cli_argument": "vllm: error: unrecognized arguments: --no-such-flag 3",
    "permission_denied": "bash: /opt/vllm/bin/vllm: Permission denied",
    "missing_python_dependency": "bash: line 1: vllm: command not found",
    "disk_full": "OSError: [Errno 28] No space left on device: '/var/cache/vllm/x'",
    "broken_install": "Illegal instruction (core dumped)",
    "no_cuda_device": 'docker: could not select device driver "" with capabilities: [[gpu]].',
    "port_in_use": "OSError: [Errno 98] Address already in use",
}


@pytest.mark.parametrize("minute", [11, 12, 59])
@pytest.mark.parametrize("stop", STOPS)
@pytest.mark.parametrize("name", STARTS)
def test_a_start_that_fails_after_a_stop_is_what_is_wrong(name: str, stop: str, minute: int) -> None:
    stopped = LINE.format(11, 0, *STOPS[stop])
    assert cause(*SERVING, stopped, LINE.format(minute, 30, "vllm[200]", STARTS[name])) == name


def test_what_fails_without_a_word_long_after_a_stop_is_not_the_stop() -> None:
    stopped = LINE.format(11, 0, *STOPS["systemd"])
    for said in (
        "vllm.service: Main process exited, code=exited, status=2/INVALIDARGUMENT",
        "vllm.service: Main process exited, code=killed, status=9/KILL",
    ):
        assert cause(*SERVING, stopped, LINE.format(40, 0, "systemd[1]", said)) != "clean_shutdown"
    stopped = LINE.format(11, 0, *STOPS["asked"])
    slow = LINE.format(12, 31, "systemd[1]", "vllm.service: Main process exited, code=killed, status=9/KILL")
    assert cause(*SERVING, stopped, slow) == "clean_shutdown"


def test_a_start_that_failed_in_one_log_is_not_hidden_by_a_stop_in_another(tmp_path: Path) -> None:
    failed = [SERVING[0].replace("04:00", "03:00"), LINE.format(1, 0, "vllm[100]", STARTS["port_in_use"])]
    (tmp_path / "failed.log").write_text("\n".join([failed[0], failed[1].replace("04:01", "03:01")]))
    (tmp_path / "stopped.log").write_text("\n".join([*SERVING, LINE.format(11, 0, *STOPS["asked"])]))
    logs = [NamedLog(LogFile(tmp_path / name, name)) for name in ("failed.log", "stopped.log")]
    assert DIAGNOSER.files(logs).diagnosis.cause == "port_in_use"


WAIT = "INFO 11-30 04:{0:02}:00 [x.py:1] No available shared memory broadcast block found in 60 seconds."


@pytest.mark.parametrize("stop", STOPS)
@pytest.mark.parametrize("minutes", [2, 7, 8, 12, 30])
def test_who_stops_an_engine_that_stands_still_answers_that(minutes: int, stop: str) -> None:
    waits = [LINE.format(11 + at, 0, "vllm[100]", WAIT.format(11 + at)) for at in range(minutes)]
    stopped = LINE.format(11 + minutes, 0, *STOPS[stop])
    found = DIAGNOSER.lines([*SERVING, *waits, stopped]).diagnosis
    assert (found.cause, found.quantity("waited_s")) == ("engine_hang", 60.0 * minutes)


def test_one_long_step_and_waits_that_work_has_ended_hide_no_stop() -> None:
    waits = [LINE.format(11 + at, 0, "vllm[100]", WAIT.format(11 + at)) for at in range(4)]
    worked = LINE.format(15, 30, "vllm[100]", RATE)
    assert cause(*SERVING, waits[0], LINE.format(12, 0, *STOPS["asked"])) == "clean_shutdown"
    assert cause(*SERVING, *waits, worked, LINE.format(16, 0, *STOPS["asked"])) == "clean_shutdown"


LOADING = LINE.format(
    0, 5, "vllm[100]", "INFO 11-30 04:00:05 [gpu_model_runner.py:1] Starting to load model /m..."
)
ENDED = [
    LINE.format(10, 1, "systemd[1]", "vllm.service: Main process exited, code=killed, status=15/TERM"),
    LINE.format(10, 1, "systemd[1]", "vllm.service: Failed with result 'timeout'."),
]


@pytest.mark.parametrize("cut", [0, 1])
@pytest.mark.parametrize(
    "told", ["start operation timed out. Terminating.", "State 'start-post' timed out. Terminating."]
)
def test_a_start_that_took_too_long_is_no_stop_of_anybody(told: str, cut: int) -> None:
    timed_out = LINE.format(10, 0, "systemd[1]", f"vllm.service: {told}")
    found = DIAGNOSER.lines([SERVING[0], LOADING, *[timed_out, *ENDED][cut:]]).diagnosis
    assert (found.cause, found.phase) == ("engine_dead_unspecified", Phase.LOADING_WEIGHTS)


def test_a_stop_that_took_too_long_is_a_stop() -> None:
    asked = LINE.format(8, 31, *STOPS["systemd"])
    assert cause(*SERVING[:2], asked, *ENDED) == "clean_shutdown"


WATCHDOG = (
    "[rank{0}]:[E1130 04:20:00.{0}85814210 ProcessGroupNCCL.cpp:689] [Rank {0}] Watchdog caught collective "
    "operation timeout: WorkNCCL(SeqNum=1901719, OpType=_ALLGATHER_BASE, NumelIn=8, NumelOut=16, "
    "Timeout(ms)=600000) ran for 600001 milliseconds before timing out."
)


def test_a_stop_does_not_explain_a_collective_that_the_head_waited_out_after_it() -> None:
    stop = ["INFO:     Application shutdown complete.", "INFO:     Finished server process [182240]"]
    assert cause(*stop, WATCHDOG.format(0), WATCHDOG.format(1)) == "nccl_timeout"
    asked = LINE.format(19, 50, *STOPS["asked"])
    assert cause(*SERVING, asked, LINE.format(20, 0, "vllm[100]", WATCHDOG.format(1))) == "clean_shutdown"
