"""Many logs at once: their times decide what came first, never how many they are or what they are called."""

from __future__ import annotations

import re
import resource
from pathlib import Path

import pytest

from sparkd.cli.reading import Diagnoser, NamedLog
from sparkd.intake.files import expand
from sparkd.signals.catalogue import packaged_catalogue

DIAGNOSER = Diagnoser(packaged_catalogue())
SERVED = (
    "INFO 11-30 04:00:00 [x.py:1] Resolved architecture: Qwen3ForCausalLM\n"
    "INFO 11-30 04:05:00 [x.py:1] Application startup complete.\n"
    "INFO 11-30 04:10:00 [l.py:1] Engine 000: Avg generation throughput: 21.0 tokens/s, Running: 1 reqs\n"
)
ODD = "2026-11-30 04:{}:00,000\tERROR x.py:1 -- something odd\n"
WAIT = "INFO 11-30 04:{}:00 [s.py:1] No available shared memory broadcast block found in 60 seconds. This\n"
STOPPED = (
    "[2026-11-30 05:11:30,180 I 117 117] (raylet) main.cc:4: Raylet received SIGTERM. Existing local drain\n"
)
DULL = "2026-11-30 04:00:00,000\tINFO x.py:1 -- hello\n"


def diagnosed(folder: Path) -> str:
    def no_archive() -> Path:
        raise AssertionError

    logs = [NamedLog(file) for file in expand(str(folder), no_archive, pytest.fail)]
    found = DIAGNOSER.files(logs).diagnosis.cause
    assert [log.file.unread for log in logs if log.file.unread] == []
    return found


@pytest.mark.parametrize(
    ("other", "cause"),
    [
        (ODD.format("01"), "none"),
        (ODD.format("11"), "unknown"),
        (WAIT.format("06") + WAIT.format("07"), "none"),
        (WAIT.format("11") + WAIT.format("12"), "engine_hang"),
        (STOPPED, "clean_shutdown"),
    ],
    ids=["old error", "new error", "old wait", "new wait", "stop"],
)
@pytest.mark.parametrize("names", [("a.log", "z.log"), ("z.log", "a.log")])
@pytest.mark.parametrize("dull", [0, 14, 15, 40])
def test_the_cause_does_not_depend_on_dull_logs_and_names(tmp_path, other, cause, names, dull) -> None:
    served, told = names
    (tmp_path / served).write_text(SERVED)
    (tmp_path / told).write_text(other)
    for number in range(dull):
        (tmp_path / f"c{number:02}.log").write_text(DULL)
    assert diagnosed(tmp_path) == cause


RAY_KILL = (
    "(raylet) node_manager.cc:3199: Killing worker with task (actor ID: 5fa1) with pid 2214 due to memory "
    "pressure: Memory on the node (IP: 10.0.0.2, ID: aa10) was 113.66GB / 119.57GB (0.950580)\n"
)
DIED = "ERROR 11-30 04:11:00 [x.py:1] RayWorkerProc rank=[1] died unexpectedly, shutting down executor.\n"


@pytest.mark.parametrize("timed", [True, False])
@pytest.mark.parametrize("names", [("a.log", "z.log"), ("z.log", "a.log")])
def test_of_logs_without_times_the_order_of_causes_decides(tmp_path, names, timed) -> None:
    """A log without times says neither that it came before the others nor that they lived through it."""
    serve = SERVED + DIED
    serve = serve if timed else re.sub(r"11-30 04:\d\d:00 ", "", serve)
    (tmp_path / names[0]).write_text(serve)
    (tmp_path / names[1]).write_text(RAY_KILL)
    assert diagnosed(tmp_path) == "ray_oom_kill"


def test_more_logs_than_files_may_be_open_are_read(tmp_path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    (tmp_path / "a.log").write_text(ODD.format("01"))
    (tmp_path / "z.log").write_text(SERVED)
    for number in range(300):
        (tmp_path / f"c{number:03}.log").write_text(DULL)
    resource.setrlimit(resource.RLIMIT_NOFILE, (200, hard))
    try:
        assert diagnosed(tmp_path) == "none"
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
