"""Control groups on recorded trees: unified, hybrid, gone, unreadable."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparkd.adapters.cgroups import Groups, NoHierarchyError, group_of, hierarchies

UNIFIED = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"
HYBRID = (
    "30 23 0:26 / /sys/fs/cgroup ro,nosuid shared:9 - tmpfs tmpfs ro,mode=755\n"
    "31 30 0:27 / /sys/fs/cgroup/unified rw,nosuid shared:10 - cgroup2 cgroup2 rw\n"
    "32 30 0:28 / /sys/fs/cgroup/systemd rw,nosuid shared:11 - cgroup cgroup rw,xattr,name=systemd\n"
    "33 30 0:29 / /sys/fs/cgroup/memory rw,nosuid shared:12 - cgroup cgroup rw,memory\n"
)
GROUP = "/sparkd.slice/sparkd-engine.slice/sparkd-serve.service"


def group(root: Path, name: str, *pids: int) -> None:
    folder = root / name.lstrip("/")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cgroup.procs").write_text("".join(f"{pid}\n" for pid in pids), encoding="ascii")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (UNIFIED, ["/sys/fs/cgroup"]),
        (HYBRID, ["/sys/fs/cgroup/unified", "/sys/fs/cgroup/systemd"]),
        (
            HYBRID.replace("/sys/fs/cgroup/systemd", r"/odd\040place"),
            ["/sys/fs/cgroup/unified", "/odd place"],
        ),
        ("nonsense\n 1 2 - \n", []),
    ],
    ids=["unified", "hybrid", "escaped", "nonsense"],
)
def test_the_hierarchies_that_hold_units(text, found) -> None:
    assert [str(path) for path in hierarchies(text)] == found


@pytest.mark.parametrize(
    ("slice_name", "expected"),
    [
        ("sparkd-engine.slice", "/sparkd.slice/sparkd-engine.slice/x.service"),
        ("system.slice", "/system.slice/x.service"),
        ("a-b-c.slice", "/a.slice/a-b.slice/a-b-c.slice/x.service"),
        ("", "/x.service"),
    ],
)
def test_a_units_group_by_its_names(slice_name, expected) -> None:
    assert group_of(slice_name, "x.service") == expected


def test_a_process_counts_in_any_hierarchy_and_in_any_group_below(tmp_path) -> None:
    one, two = tmp_path / "unified", tmp_path / "systemd"
    group(one, GROUP, 30, 7)
    group(one, f"{GROUP}/ray/workers", 99)
    group(two, GROUP, 7, 8)
    group(one, "/sparkd.slice/sparkd-engine.slice/sparkd-ray.service", 1000)
    assert Groups([one, two]).pids(GROUP) == (7, 8, 30, 99)


def test_a_group_that_is_gone_is_empty(tmp_path) -> None:
    group(tmp_path, "/other")
    assert Groups([tmp_path]).pids(GROUP) == ()
    assert Groups([tmp_path]).pids("/other") == ()


def test_what_cannot_be_read_is_not_empty(tmp_path) -> None:
    with pytest.raises(NoHierarchyError):
        Groups([]).pids(GROUP)
    (tmp_path / GROUP.lstrip("/")).mkdir(parents=True)
    (tmp_path / GROUP.lstrip("/") / "cgroup.procs").mkdir()
    with pytest.raises(IsADirectoryError):
        Groups([tmp_path]).pids(GROUP)
