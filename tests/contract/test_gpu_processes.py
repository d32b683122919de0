"""GPU processes by recorded answers of nvidia-smi, and a driver that hangs."""

from __future__ import annotations

import sys

import pytest

from sparkd.adapters.gpu_processes import GpuProcess, GpuProcesses, GpuSeen, parsed
from sparkd.adapters.unit_memory import use_by_unit

ORDINARY = "30852, 71234, VLLM::Worker_TP0\n30853, 71230, VLLM::Worker_TP1\n"
GB10 = "9635, [Not Supported], ray::RayWorkerProc.run\n2110, [N/A], /usr/lib/xorg/Xorg\n"
NONE = "No running processes found\n"


def test_an_ordinary_gpu_says_what_each_process_holds() -> None:
    first, second = parsed(ORDINARY).processes
    assert first == GpuProcess(30852, "VLLM::Worker_TP0", 71234 << 20)
    assert second.pid == 30853


def test_what_gb10_does_not_say_is_unknown_and_not_zero() -> None:
    seen = parsed(GB10)
    assert [process.used_bytes for process in seen.processes] == [None, None]
    assert [process.name for process in seen.processes] == ["ray::RayWorkerProc.run", "/usr/lib/xorg/Xorg"]


@pytest.mark.parametrize("said", [NONE, "", "pid, used_gpu_memory, name\n", "a line for people\n"])
def test_no_process_is_none_and_no_failure(said) -> None:
    assert parsed(said) == GpuSeen()


def test_a_name_may_hold_a_comma() -> None:
    assert parsed("7, 12, python -c a,b\n").processes == (GpuProcess(7, "python -c a,b", 12 << 20),)


def answering(code: str, deadline_s: float = 20.0) -> GpuProcesses:
    return GpuProcesses((sys.executable, "-S", "-c", code), deadline_s)


@pytest.mark.process
def test_the_child_is_asked_and_its_failure_told() -> None:
    assert answering(f"print({ORDINARY!r})").read() == parsed(ORDINARY)
    failed = answering(
        "import sys; print('Failed to initialize NVML: Driver/library version mismatch'); sys.exit(18)"
    )
    assert failed.read().why.endswith("Failed to initialize NVML: Driver/library version mismatch")
    assert GpuProcesses(("no-such-program",)).read().why == "no-such-program: No such file or directory"


@pytest.mark.process
def test_a_driver_that_hangs_is_left_alone(tmp_path) -> None:
    """It is asked once; while that child lives no other is started."""
    asked = tmp_path / "asked"
    asks = answering(f"open({str(asked)!r}, 'a').write('x'); import signal; signal.pause()", 1.0)

    assert asks.read().why.endswith("did not answer within 1 s")
    hung = asks._hung
    assert hung is not None
    assert hung.wait(10) == -9, "it was ended, not waited for"
    hung.poll = lambda: None  # as in D state
    before = asked.read_text() if asked.exists() else ""
    assert "hangs (pid" in asks.read().why
    assert (asked.read_text() if asked.exists() else "") == before


@pytest.mark.parametrize(
    ("current", "file"),
    [("memory.current", "inactive_file"), ("memory.usage_in_bytes", "total_inactive_file")],
)
def test_each_unit_holds_what_its_group_says_without_page_cache(tmp_path, current, file) -> None:
    for name, used in (("sparkd-serve@7.service", 5000), ("sparkd-ray@7.service", 900)):
        group = tmp_path / "sparkd.slice" / "sparkd-engine.slice" / name
        group.mkdir(parents=True)
        (group / current).write_text(f"{used}\n")
        (group / "memory.stat").write_text(f"anon 1\n{file} 400\n")
    (tmp_path / "sparkd.slice" / "sparkd-engine.slice" / "gone.service").mkdir()

    assert use_by_unit([tmp_path]) == (("sparkd-ray@7.service", 500), ("sparkd-serve@7.service", 4600))
    assert use_by_unit([tmp_path / "nowhere"]) == ()
