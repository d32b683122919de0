"""Memory read from recorded trees: the right number, or none."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkd.adapters.clock import MonotonicClock
from sparkd.adapters.meminfo import MemInfo
from sparkd.signals.model import MemorySample

HERE = Path(__file__).parent
RECORDED = (HERE / "data_meminfo.txt").read_text()
V1_STAT = (HERE / "data_meminfo_cgroup_v1_stat.txt").read_text()
PSI = "some avg10=12.34 avg60=1.00 avg300=0.10 total=7\nfull avg10=99.00 avg60=0.00 avg300=0.00 total=7\n"
GIB = 1 << 30
HOST = MemorySample(5.0, 18820620 * 1024, 24683656 * 1024, 512 * 1024)


class Still:
    def now(self) -> float:
        return 5.0


def read(tmp_path: Path, **files: str | bytes) -> MemorySample | None:
    """Read from a tree with these files (`__` in a name stands for a folder, `_dot_` for a dot)."""
    given_files = {"proc__meminfo": RECORDED} | files
    for name, content in given_files.items():
        path = tmp_path / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return MemInfo(Still(), proc_root=tmp_path / "proc", cgroup_root=tmp_path / "cgroup").read()


def v2(limit: str = f"{8 * GIB}\n", current: str = f"{5 * GIB}\n", stat: str = "") -> dict[str, str]:
    stat = stat or f"anon 1\ninactive_file {GIB}\nactive_file {GIB // 2}\n"
    return {
        "cgroup__memory_dot_max": limit,
        "cgroup__memory_dot_current": current,
        "cgroup__memory_dot_stat": stat,
    }


def v1(limit: str, usage: str, stat: str = V1_STAT) -> dict[str, str]:
    return {
        "cgroup__memory__memory_dot_limit_in_bytes": limit,
        "cgroup__memory__memory_dot_usage_in_bytes": usage,
        "cgroup__memory__memory_dot_stat": stat,
    }


def test_the_nodes_own_numbers(tmp_path) -> None:
    assert read(tmp_path) == HOST


@pytest.mark.parametrize(
    ("psi", "percent"),
    [
        (PSI, 12.34),
        ("full avg10=9.00\n", None),
        ("some avg10=x\n", None),
        ("some avg10=101\n", None),
        ("some avg10=nan", None),
        ("some", None),
        ("", None),
    ],
)
def test_pressure_is_some_avg10_or_unknown(tmp_path, psi, percent) -> None:
    sample = read(tmp_path, proc__pressure__memory=psi)
    assert sample is not None and sample.pressure_percent == percent


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (RECORDED, ""),
        (RECORDED, "\0\xff garbage"),
        ("MemAvailable:", "MemOther:"),
        ("MemTotal:", "MemOther:"),
        ("MemTotal:       24683656 kB", "MemTotal:       24683656 MB"),
        ("MemTotal:       24683656 kB", "MemTotal:       24683656"),
        ("MemTotal:       24683656 kB", "MemTotal:       -1 kB"),
        ("MemTotal:       24683656 kB", "MemTotal:       0 kB"),
        ("MemTotal:       24683656 kB", "MemTotal:       1000 kB"),
        ("MemTotal:       24683656 kB", "MemTotal:       ²4683656 kB"),
        ("SwapFree:        8388092 kB", "SwapFree:        9388092 kB"),
    ],
)
def test_garbage_is_unknown(tmp_path, before, after) -> None:
    assert before in RECORDED
    assert read(tmp_path, proc__meminfo=RECORDED.replace(before, after)) is None


def test_a_missing_file_is_unknown(tmp_path) -> None:
    assert MemInfo(Still(), proc_root=tmp_path, cgroup_root=tmp_path).read() is None


def test_a_smaller_limit_of_cgroup_v2_is_the_total(tmp_path) -> None:
    sample = read(tmp_path, **v2(), proc__pressure__memory=PSI)
    assert sample == MemorySample(5.0, 8 * GIB - 5 * GIB + 3 * GIB // 2, 8 * GIB, 512 * 1024, 12.34)


def test_a_smaller_limit_of_cgroup_v1_is_the_total(tmp_path) -> None:
    sample = read(tmp_path, **v1(f"{10 * GIB}\n", f"{9 * GIB}\n"))
    used = 9 * GIB - 591388672 - 1290240000
    assert sample is not None
    assert (sample.available_bytes, sample.total_bytes) == (10 * GIB - used, 10 * GIB)


@pytest.mark.parametrize(
    "files", [v2(limit="max\n"), v2(limit=f"{64 * GIB}\n"), v1("9223372036854771712\n", "1\n")]
)
def test_no_smaller_limit_leaves_the_nodes_numbers(tmp_path, files) -> None:
    assert read(tmp_path, **files) == HOST


@pytest.mark.parametrize(
    "files",
    [
        v2(limit=""),
        v2(limit="-1\n"),
        v1("\xff", "1\n"),
        v2(current="many\n"),
        v2(stat="anon 1\n"),
        v2(stat=f"inactive_file {GIB}\n"),
        v2(stat=f"inactive_file {GIB}\nactive_file -5\n"),
        v1(f"{GIB}\n", ""),
        v1(f"{GIB}\n", "1\n", "cache 5\n"),
        {"cgroup__memory_dot_max": f"{GIB}\n"},
    ],
)
def test_a_limit_without_its_usage_is_unknown_and_not_the_nodes_numbers(tmp_path, files) -> None:
    assert read(tmp_path, **files) is None


def test_usage_over_the_limit_leaves_nothing_and_less_than_the_cache_everything(tmp_path) -> None:
    over = read(tmp_path, **v2(current=f"{20 * GIB}\n"))
    assert over is not None and over.available_bytes == 0
    under = read(tmp_path, **v2(current="4096\n"))
    assert under is not None and under.available_bytes == 8 * GIB


@given(st.binary(max_size=300), st.binary(max_size=100))
def test_any_bytes_are_read_without_error(tmp_path_factory, one, two) -> None:
    root = tmp_path_factory.mktemp("tree")
    files = v2() | {"proc__meminfo": one, "proc__pressure__memory": two, "cgroup__memory_dot_stat": two}
    sample = read(root, **files)
    assert sample is None or 0 <= sample.available_bytes <= sample.total_bytes


def test_the_real_node() -> None:
    clock = MonotonicClock()
    before = clock.now()
    sample = MemInfo(clock).read()
    assert sample is not None
    assert before <= sample.at_s <= clock.now()
    assert 0 < sample.available_bytes <= sample.total_bytes
