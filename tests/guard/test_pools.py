"""The memory that is watched: the node, and control groups with a limit of their own, v1 and v2."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkd.guard.pools import HOST, KeptFile, Pools
from sparkd.guard.settings import Settings

GIB = 1 << 30
TOTAL = 120 * GIB
SCOPE = "/sparkd.slice/sparkd-engine.slice"
ZONES = (
    "Node 0, zone   Normal\n        high     25600\n        managed  5000000\n        protection: (0, 0)\n"
)


def write(root: Path, **files: object) -> Pools:
    """Pools over a tree of these files (`__` in a name stands for a folder, `_dot_` for a dot)."""
    given_ = {"proc__meminfo": meminfo()} | files
    for name, content in given_.items():
        path = root / name.replace("__", "/").replace("_dot_", ".").replace("ENGINE", SCOPE[1:])
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else str(content).encode())
    pools = Pools(Settings({"proc_root": str(root / "proc"), "cgroup_root": str(root / "cgroup")}))
    pools.refresh(SCOPE)
    return pools


def meminfo(available: int = 40 * GIB, free: int = 2 * GIB, more: str = "") -> str:
    rows = {
        "MemTotal": TOTAL,
        "MemFree": free,
        "MemAvailable": available,
        "SwapTotal": 16 * GIB,
        "SwapFree": 15 * GIB,
    }
    return "".join(f"{name}: {value >> 10} kB\n" for name, value in rows.items()) + more


def levels(pools: Pools, near: int = 2 * GIB) -> dict[str, tuple[int, int, int | None]]:
    return {each.name: (each.total, each.available, each.free) for each in pools.read(near)}


def test_the_node_with_all_that_is_known_of_it(tmp_path) -> None:
    psi = "some avg10=0.00 total=70\nfull avg10=0.00 total=7\n"
    pools = write(tmp_path, proc__pressure__memory=psi, proc__zoneinfo=ZONES)
    pools.host.weigh_reserve()
    reserve = 25600 * 4096
    assert levels(pools) == {HOST: (TOTAL, 40 * GIB, 2 * GIB - reserve)}
    host = pools.host
    assert (host.swap_used, host.swap_total, host.some_us, host.full_us) == (GIB, 16 * GIB, 70, 7)
    assert (host.cma_total, host.cma_note()) == (None, "")


def test_what_the_kernel_does_not_say_is_unknown(tmp_path) -> None:
    pools = write(tmp_path, proc__meminfo=f"MemTotal: {TOTAL >> 10} kB\nMemAvailable: 1024 kB\n")
    assert levels(pools) == {HOST: (TOTAL, 1 << 20, None)}
    host = pools.host
    assert (host.swap_used, host.full_us, host.raw_free) == (None, None, None)


def test_cma_that_cannot_be_true_is_told(tmp_path) -> None:
    pools = write(tmp_path, proc__meminfo=meminfo(more="CmaTotal: 0 kB\nCmaFree: 8388608 kB\n"))
    pools.read(GIB)
    assert "CmaFree 8192 MiB is above CmaTotal 0 MiB" in pools.host.cma_note()
    assert "kho=off" in pools.host.cma_note()


V2 = {"memory_dot_max": 32 * GIB, "memory_dot_current": 31 * GIB}
STAT = f"anon {20 * GIB}\ninactive_file {8 * GIB}\nactive_file {2 * GIB}\n"


def group(prefix: str, files: dict[str, object]) -> dict[str, object]:
    return {f"cgroup__{prefix}{name}": content for name, content in files.items()}


def test_a_limit_of_the_slice_in_v2(tmp_path) -> None:
    pools = write(tmp_path, **group("ENGINE__", V2 | {"memory_dot_stat": STAT}))
    assert levels(pools)[SCOPE] == (32 * GIB, 11 * GIB, GIB)


def test_a_limit_above_the_slice_counts_and_one_beside_it_does_not(tmp_path) -> None:
    files = group("sparkd_dot_slice__", V2 | {"memory_dot_stat": STAT})
    files |= group("user_dot_slice__", V2 | {"memory_dot_stat": STAT})
    assert set(levels(write(tmp_path, **files))) == {HOST, "/sparkd.slice"}


def test_a_containers_own_limit_in_v1(tmp_path) -> None:
    files = {"memory_dot_limit_in_bytes": 32 * GIB, "memory_dot_usage_in_bytes": 31 * GIB}
    files |= {"memory_dot_stat": f"cache 1\ntotal_inactive_file {GIB}\ntotal_active_file {GIB}\n"}
    assert levels(write(tmp_path, **group("memory__", files)))["container"] == (32 * GIB, 3 * GIB, GIB)


def test_far_from_the_limit_the_cache_is_not_looked_up(tmp_path) -> None:
    """And counts as used: never too little."""
    files = V2 | {"memory_dot_current": 10 * GIB, "memory_dot_stat": "garbage"}
    assert levels(write(tmp_path, **group("ENGINE__", files)))[SCOPE] == (32 * GIB, 22 * GIB, 22 * GIB)


@pytest.mark.parametrize(
    "files",
    [
        {"memory_dot_max": "max\n", "memory_dot_stat": STAT},
        {"memory_dot_max": 500 * GIB, "memory_dot_stat": STAT},
        {"memory_dot_max": "", "memory_dot_stat": STAT},
        {"memory_dot_current": "many", "memory_dot_stat": STAT},
        {"memory_dot_stat": "anon 1\n"},
        {"memory_dot_stat": STAT.replace("inactive_file ", "inactive_file -")},
    ],
)
def test_no_limit_and_a_limit_without_its_use_are_no_pool(tmp_path, files) -> None:
    assert set(levels(write(tmp_path, **group("ENGINE__", V2 | files)))) == {HOST}


def test_a_limit_that_is_set_later_is_found_at_the_next_refresh(tmp_path) -> None:
    pools = write(tmp_path, **group("ENGINE__", V2 | {"memory_dot_max": "max", "memory_dot_stat": STAT}))
    assert set(levels(pools)) == {HOST}
    (tmp_path / "cgroup" / SCOPE[1:] / "memory.max").write_text(str(32 * GIB))
    pools.refresh(SCOPE)
    assert set(levels(pools)) == {HOST, SCOPE}


def test_a_file_that_comes_and_goes(tmp_path) -> None:
    file = KeptFile(str(tmp_path / "late"))
    assert (file.there, file.read()) == (False, 0)
    (tmp_path / "late").write_bytes(b"5\n")
    file.open()
    assert (file.there, file.read()) == (True, 2)
    file.close()
    assert file.read() == 0


@given(st.binary(max_size=200), st.binary(max_size=60))
def test_any_bytes_are_a_level_that_makes_sense_or_none(tmp_path_factory, one, two) -> None:
    root = tmp_path_factory.mktemp("tree")
    files = {"memory_dot_max": two, "memory_dot_current": one, "memory_dot_stat": one}
    pools = write(root, proc__meminfo=one, proc__pressure__memory=two, **group("ENGINE__", files))
    for level in pools.read(GIB):
        assert 0 <= level.available <= level.total
        assert level.free is None or level.free >= 0
