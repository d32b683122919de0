"""GPU processes by answers of nvidia-smi, and a driver that hangs.

`data_gpu_h200.json` holds what a real driver said (an H200, driver 580; `recorded_gpu.py` made it). The
answers of GB10 are written from reports.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from contract import recorded_gpu
from sparkd.adapters.gpu_processes import ASK, USED, GpuProcess, GpuProcesses, GpuSeen, parsed, unnamed
from sparkd.adapters.unit_memory import use_by_unit

ORDINARY = "30852, 71234, VLLM::Worker_TP0\n30853, 71230, VLLM::Worker_TP1\n"
GB10 = "9635, [Not Supported], ray::RayWorkerProc.run\n2110, [N/A], /usr/lib/xorg/Xorg\n"
NONE = "No running processes found\n"
H200: dict[str, Any] = json.loads(Path(__file__).with_name("data_gpu_h200.json").read_text(encoding="utf-8"))
MIB = 1 << 20
SILENT = {"stdout": "", "status": 0}


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


@pytest.mark.parametrize("who", ["held", "held_unprivileged"])
def test_a_real_driver_names_the_process_and_what_it_holds_to_anybody(who) -> None:
    """As NVML does in bytes; a process of another user is named in full, too."""
    said = H200[who]["apps"]
    assert tuple(said["argv"]) == ASK
    (named,) = H200[who]["nvml"]["compute"]["processes"]
    seen = parsed(said["stdout"])
    assert seen.processes == (GpuProcess(named["pid"], "python3", named["used"]),)
    assert named["pid"] == H200["holder"]["pid"]
    long = H200[who]["xml"]["stdout"]
    assert re.findall(r"<used_memory>(\d+) MiB", long) == [str(named["used"] // MIB)]


def test_a_recording_says_nothing_of_where_it_was_made() -> None:
    said = f"450, 1542, {sys.executable}\n451, 7, {Path(sys.executable).resolve()}\n"
    assert [Path(process.name).name for process in parsed(said).processes] == [
        process.name for process in parsed(recorded_gpu.clean(said)).processes
    ]
    names = [process.name for who in ("held", "held_unprivileged") for process in named_by(who)]
    assert names == [Path(name).name for name in names]
    assert re.findall(r"<process_name>(.*?)</process_name>", H200["held"]["xml"]["stdout"]) == names[:1]


def named_by(who: str) -> tuple[GpuProcess, ...]:
    return parsed(H200[who]["apps"]["stdout"]).processes


@pytest.mark.parametrize("when", ["idle", "freed"])
def test_a_real_driver_with_nothing_on_the_device_answers_with_nothing(when) -> None:
    assert H200[when]["apps"] | {"took_s": 0} == {"argv": [*ASK], "status": 0, "took_s": 0, "stdout": ""}
    used = H200[when]["gpu"]["stdout"].split(", ")[3]
    assert unnamed(f"{used}\n") == ""


def test_the_devices_memory_is_counted_in_two_ways() -> None:
    """The older call counts what the driver reserves as used; CUDA does not count it at all."""
    for when, used in (("idle", 0), ("held", 1551)):
        old, new = (H200[when]["nvml"]["memory"][version] for version in ("v1", "v2"))
        assert (old["code"], new["code"]) == (0, 0)
        assert old["used"] == new["used"] + new["reserved"]
        assert old["free"] == new["free"] and old["total"] == new["total"]
        asked = H200[when]["gpu"]["stdout"].split(", ")
        assert [int(asked[at]) for at in (2, 3)] == [-(-old["total"] // MIB), used]
    assert H200["holder"]["total"] == old["total"] - new["reserved"]
    assert H200["holder"]["free"] == old["free"]


@pytest.mark.process
def test_a_full_device_whose_processes_are_in_another_container_is_not_an_idle_one() -> None:
    """The same question, asked from another PID namespace, is answered with nothing and status 0."""
    apart = H200["held_other_pid_namespace"]
    assert (tuple(apart["argv"][-3:]), apart["status"], apart["stdout"]) == (ASK, 0, "")
    used = H200["held"]["gpu"]["stdout"].split(", ")[3]
    asks = GpuProcesses(saying(apart), 20.0, used=saying({"stdout": f"{used}\n", "status": 0}))
    assert asks.read().processes == ()
    assert "1551 MiB are in use by processes that the driver does not name here" in asks.read().why
    assert set(ASK[2:]) <= set(USED)


@pytest.mark.process
@pytest.mark.parametrize("said", ["[Not Supported]\n", "[N/A]\n", "0\n[N/A]\n", "", "a line for people\n"])
def test_a_device_that_tells_neither_processes_nor_use_is_not_an_idle_one(said) -> None:
    """As GB10 in a container."""
    asks = GpuProcesses(saying(SILENT), 20.0, used=saying({"stdout": said, "status": 0}))
    assert asks.read().processes == ()
    assert asks.read().why.startswith("the driver names no process here and does not say what is in use")


@pytest.mark.process
def test_a_second_question_that_is_not_answered_is_told() -> None:
    idle = GpuProcesses(saying(SILENT), 20.0, used=saying({"stdout": "0\n0\n", "status": 0}))
    assert idle.read() == GpuSeen()
    broken = GpuProcesses(saying(SILENT), 20.0, used=saying({"stdout": "GPU is lost\n", "status": 9}))
    assert broken.read().why.endswith(": GPU is lost")
    mute = GpuProcesses(saying(SILENT), 20.0, used=saying({"stdout": "", "status": 9}))
    assert mute.read().why.endswith(": failed")


@pytest.mark.process
def test_a_second_question_that_hangs_is_told() -> None:
    """The first is answered whatever the machine's load: its program needs no interpreter."""
    hangs = GpuProcesses(("true",), 5.0, used=(sys.executable, "-S", "-c", "import signal; signal.pause()"))
    assert hangs.read().why.endswith("did not answer within 5 s")
    assert hangs._hung is not None
    assert hangs._hung.wait(10) == -9


@pytest.mark.process
@pytest.mark.parametrize(
    ("question", "why"),
    [
        ("no_such_gpu", "No devices were found"),
        ("no_such_field", 'Field "used_memory_of_nobody" is not a valid field to query.'),
    ],
)
def test_a_real_refusal_is_told_in_its_own_words(question, why) -> None:
    assert H200["held"][question]["status"]
    assert GpuProcesses(saying(H200["held"][question]), 20.0).read().why.endswith(f": {why}")


def saying(answer: dict[str, Any]) -> tuple[str, ...]:
    """Return a program that answers as it was recorded."""
    code = f"import sys; sys.stdout.write({answer['stdout']!r}); sys.exit({answer['status']})"
    return (sys.executable, "-S", "-c", code)


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
