"""A process that only vanished: what logs would say that nobody gave (of Ray, of the kernel) is not known."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from signals import replay
from signals.replay import ONE_HOST, Log
from sparkd.cli.reading import Diagnoser, NamedLog
from sparkd.intake.files import LogFile
from sparkd.signals.catalogue import packaged_catalogue
from sparkd.signals.model import Diagnosis

DIAGNOSER = Diagnoser(packaged_catalogue())
DATA = Path(__file__).parent / "data"
BY_RAY, BY_KERNEL = ("ray_oom_kill",), ("kernel_oom", "cgroup_oom")
ON_RAY, LOCAL = "vllm-fail-ray-oom-kill.log", "vllm-fail-worker-sigkill-mp.log"
DULL_RAYLET = "[2026-11-30 01:00:00,000 I 1 1] (raylet) main.cc:4: Starting\n"
DULL_KERNEL = "Nov 30 01:00:00 spark-a kernel: usb 1-1: new device\n"


def diagnosed(folder: Path, name: str, **others: str) -> Diagnosis:
    (folder / name).write_bytes(gzip.decompress((DATA / f"{name}.gz").read_bytes()))
    logs = [NamedLog(LogFile(folder / name, name))]
    for other, text in others.items():
        (folder / f"{other}.out").write_text(text)
        logs.append(NamedLog(LogFile(folder / f"{other}.out", f"{other}.out")))
    return DIAGNOSER.files(logs).diagnosis


@pytest.mark.parametrize(
    ("name", "others", "might_be"),
    [
        (ON_RAY, {}, BY_RAY + BY_KERNEL),
        (ON_RAY, {"raylet": DULL_RAYLET}, BY_KERNEL),
        (ON_RAY, {"kernel": DULL_KERNEL}, BY_RAY),
        (ON_RAY, {"raylet": DULL_RAYLET, "kernel": DULL_KERNEL}, ()),
        (LOCAL, {}, BY_KERNEL),
        (LOCAL, {"kernel": DULL_KERNEL}, ()),
    ],
)
def test_what_the_logs_that_were_not_given_might_say(tmp_path, name, others, might_be) -> None:
    found = diagnosed(tmp_path, name, **others)
    assert (found.cause, found.candidates) == ("worker_process_died", might_be)
    assert (found.confidence < 0.9) == bool(might_be)
    assert ("raylet.out" in found.advice) == ("ray_oom_kill" in might_be)
    assert ("kernel" in found.advice) == ("kernel_oom" in might_be)


def test_what_a_live_daemon_does_not_read_there_did_not_happen() -> None:
    found = replay.diagnose([Log(ON_RAY)], places=ONE_HOST)
    assert (found.cause, found.confidence, found.candidates) == ("worker_process_died", 0.95, ())


def test_a_process_that_crashed_was_not_ended_by_memory() -> None:
    line = "Worker proc VllmWorker-1 died unexpectedly (exit code: {}), shutting down executor."
    found = {code: DIAGNOSER.lines([line.format(code)]).diagnosis for code in (-9, -11)}
    assert found[-9].candidates == BY_KERNEL
    assert (found[-11].cause, found[-11].confidence) == ("worker_process_died", 0.95)
