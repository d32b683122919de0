"""Who stops an engine that something killed answers the kill; who stops one that works wants it stopped."""

from __future__ import annotations

import pytest

from sparkd.cli.reading import Diagnoser
from sparkd.signals.catalogue import packaged_catalogue

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
