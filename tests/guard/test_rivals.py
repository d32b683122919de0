"""Other guardians: found, read, and who would act first."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparkd.guard import rivals as module
from sparkd.guard.rivals import Rivals, docker_restarts, earlyoom, nohang, ray

GIB = 1 << 30
TOTAL = 120 * GIB


@pytest.mark.parametrize(
    ("arguments", "gib"),
    [
        ([], 12.0),
        (["-r", "3600"], 12.0),
        (["-m", "2", "-s", "80"], 2.4),
        (["-m", "5,2"], 6.0),
        (["-m5"], 6.0),
        (["-M", "524288,102400"], 0.5),
        (["-m", "many"], 12.0),
    ],
)
def test_where_earlyoom_acts(arguments, gib) -> None:
    assert earlyoom(["/usr/bin/earlyoom", *arguments, ""], TOTAL)[0] == pytest.approx(gib * GIB, rel=1e-6)


def test_earlyoom_needs_swap_to_be_short_as_well() -> None:
    assert "80 % of swap free" in earlyoom(["-m", "2", "-s", "80"], TOTAL)[1]


@pytest.mark.parametrize(
    ("conf", "gib"),
    [
        ("", 6.0),
        ("soft_threshold_min_mem = 8 %", 9.6),
        ("soft_threshold_min_mem=1024 M\n", 1.0),
        ("soft_threshold_min_mem =\n# soft_threshold_min_mem = 50 %", 6.0),
    ],
)
def test_where_nohang_acts(conf, gib) -> None:
    assert nohang(conf, TOTAL)[0] == pytest.approx(gib * GIB, rel=1e-6)


def test_rays_monitor_by_the_raylets_environment() -> None:
    assert ray({"RAY_memory_monitor_refresh_ms": "0"}, TOTAL) is None
    at, says = ray({}, TOTAL)
    assert at == pytest.approx(6 * GIB, rel=1e-6)
    assert "threshold 0.95" in says
    assert ray({"RAY_memory_usage_threshold": "0.98"}, TOTAL)[0] == pytest.approx(2.4 * GIB, rel=1e-6)


def test_containers_that_docker_starts_again(tmp_path) -> None:
    for name, policy in {"aaaa": "unless-stopped", "bbbb": "no", "cccc": ""}.items():
        folder = tmp_path / "containers" / name
        folder.mkdir(parents=True)
        (folder / "hostconfig.json").write_text(
            f'{{"RestartPolicy":{{"Name":"{policy}","MaximumRetryCount":0}}}}'
        )
    (tmp_path / "containers" / "dddd").mkdir()
    assert [text for text in docker_restarts(str(tmp_path))] == [  # noqa: C416 - it is a generator
        "Docker starts container aaaa again after a kill (restart policy unless-stopped)"
    ]
    assert not list(docker_restarts(str(tmp_path / "absent")))


def process(proc: Path, pid: int, comm: str, **files: str) -> None:
    folder = proc / str(pid)
    folder.mkdir(parents=True)
    (folder / "comm").write_text(comm + "\n")
    for name, text in files.items():
        (folder / name).write_text(text.replace(" ", "\0"))


def test_the_survey_names_each_with_who_acts_first(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(module, "NOHANG_CONF", str(tmp_path / "absent"))
    process(tmp_path, 10, "earlyoom", cmdline="earlyoom -m 1 -s 100 ")
    process(tmp_path, 11, "raylet", environ="A=1 RAY_memory_usage_threshold=0.9 ")
    process(tmp_path, 12, "systemd-oomd")
    process(tmp_path, 13, "nohang", cmdline="python3 nohang --monitor ")
    process(tmp_path, 14, "bash", cmdline="earlyoom ")
    (tmp_path / "self").mkdir()
    found = Rivals(str(tmp_path), str(tmp_path / "docker"))
    found.survey(TOTAL)
    told = [rival.as_dict(3 * GIB) for rival in found.found]
    assert [(each["name"], each["first"]) for each in told] == [
        ("ray", "ray"),
        ("nohang", "nohang"),
        ("earlyoom", "sparkd-guard"),
        ("systemd-oomd", "unknown"),
    ]


def test_a_node_without_any_and_the_real_one() -> None:
    found = Rivals("/proc", "/var/lib/docker")
    found.survey(TOTAL)
    assert all(rival.says for rival in found.found)
