"""Whom the guard finds and kills: control groups and trees, with real processes."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from guard.rig import Engine, environment, lives, until
from sparkd.guard.cgroups import GroupScope, path_of
from sparkd.guard.clerk import Clerk
from sparkd.guard.members import Member, in_order, role_of
from sparkd.guard.settings import Settings
from sparkd.guard.tree import TreeScope, read_mark

PLACES = (Path("/sys/fs/cgroup/unified"), Path("/sys/fs/cgroup"))
UNIFIED = next((place for place in PLACES if (place / "cgroup.procs").exists()), None)


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("sparkd-engine.slice", "/sparkd.slice/sparkd-engine.slice"),
        ("a.slice", "/a.slice"),
        ("a-b-c.slice", "/a.slice/a-b.slice/a-b-c.slice"),
        ("/docker/x", "/docker/x"),
    ],
)
def test_a_slices_place_is_in_its_name(name, path) -> None:
    assert path_of(name) == path


def test_the_order_is_by_role_and_never_by_size() -> None:
    names = [b"raylet", b"vllm", b"python3", b"VLLM::EngineCor", b"ray::RayWorkerP", b"VLLM::Worker_TP"]
    members = [Member(pid, -1, name, "") for pid, name in enumerate(names, 10)]
    assert [member.role for member in in_order(members)] == [
        "worker",
        "worker",
        "other",
        "engine_core",
        "api_server",
        "ray",
    ]
    assert role_of(b"") == "other"


@pytest.fixture
def engine(tmp_path):
    made = Engine(tmp_path / "systemd" / "engine")
    yield made
    made.end()


def scope_of(tmp_path, **keys) -> GroupScope:
    found = GroupScope(Settings({"slice": "/engine", "cgroup_root": str(tmp_path)} | keys))
    found.refresh()
    return found


def test_everybody_in_the_group_and_below_it_is_killed_at_once(tmp_path, engine) -> None:
    below = Engine(tmp_path / "systemd" / "engine" / "container" / "deep")
    inside, deep, outside = engine.add(), below.add(), subprocess.Popen(["sleep", "1000"])
    try:
        struck = scope_of(tmp_path).strike(signal.SIGKILL)
        assert {member.pid for member in struck} == {inside.pid, deep.pid}
        assert [inside.wait(10), deep.wait(10)] == [-9, -9]
        assert outside.poll() is None
    finally:
        outside.kill()
        outside.wait()
        below.end()


def test_who_left_the_group_since_is_spared_and_who_came_is_not(tmp_path, engine) -> None:
    first = engine.add()
    scope = scope_of(tmp_path)
    assert list(scope.held.members) == [first.pid]
    engine.processes.clear()
    second = engine.add()
    try:
        assert [member.pid for member in scope.strike(signal.SIGKILL)] == [second.pid]
        assert second.wait(10) == -9
        assert first.poll() is None
    finally:
        first.kill()
        first.wait()


def test_a_pid_that_another_process_has_by_now_is_no_target(tmp_path, engine, monkeypatch) -> None:
    """It was listed, then opened, and is not listed any more: whoever was opened is somebody else."""
    victim = engine.add()
    scope = GroupScope(Settings({"slice": "/engine", "cgroup_root": str(tmp_path)}))
    scope.refresh()
    scope.held.keep_only([])
    listings = [{victim.pid: "x"}, {}]
    monkeypatch.setattr(scope, "_pids", lambda: listings.pop(0))
    assert scope.strike(signal.SIGKILL) == []
    assert victim.poll() is None


def test_the_guard_never_kills_itself(tmp_path) -> None:
    (tmp_path / "systemd" / "engine").mkdir(parents=True)
    (tmp_path / "systemd" / "engine" / "cgroup.procs").write_text(f"1\n0\n{os.getpid()}\n")
    scope = scope_of(tmp_path)
    assert scope.strike(signal.SIGKILL) == []
    assert not scope.held.members


def test_the_dead_are_let_go_and_descriptors_with_them(tmp_path, engine) -> None:
    scope = scope_of(tmp_path)
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(5):
        victim = engine.add()
        scope.refresh()
        assert victim.pid in scope.held.members
        victim.kill()
        victim.wait()
        engine.tell()
    scope.refresh()
    assert not scope.held.members
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_group_that_is_not_there_is_nobody(tmp_path) -> None:
    scope = scope_of(tmp_path)
    assert not scope.there
    assert scope.strike(signal.SIGKILL) == []
    assert scope.left() == []


def make_group() -> Path | None:
    if UNIFIED is None:
        return None
    path = UNIFIED / f"sparkd-test-{uuid.uuid4().hex[:8]}"
    try:
        path.mkdir()
    except OSError:
        return None
    return path


@pytest.fixture
def group():
    path = make_group()
    if path is None or not (path / "cgroup.kill").exists():
        pytest.skip("needs root and a writable cgroup v2 with cgroup.kill")
    yield path
    (path / "cgroup.kill").write_text("1")
    until(lambda: not (path / "cgroup.procs").read_text(), "the group is empty")
    with contextlib.suppress(OSError):
        path.rmdir()


FORKS = """
import os, sys
open(sys.argv[1] + "/cgroup.procs", "w").write(str(os.getpid()))
os.write(1, b"in\\n")
while True:
    if os.fork() == 0:
        if os.fork():
            os._exit(0)
        try:
            os.read(os.open("/dev/zero", os.O_RDONLY), 1 << 20)
        finally:
            os._exit(0)
    os.wait()
"""


@pytest.mark.parametrize("whole", [True, False])
def test_a_real_group_that_forks_all_the_time_ends(group, whole) -> None:
    process = subprocess.Popen([sys.executable, "-c", FORKS, str(group)], stdout=subprocess.PIPE)
    assert process.stdout is not None and process.stdout.readline() == b"in\n"
    scope = GroupScope(Settings({"slice": "/" + group.name, "cgroup_root": str(group.parent)}))
    scope.refresh()
    assert scope.how == "cgroup.kill"
    if not whole:
        scope._kills.clear()

    def struck() -> bool:
        scope.strike(signal.SIGKILL)
        return not scope.left()

    until(struck, "nobody is left")
    assert process.wait(10) == -9
    process.stdout.close()


# -- trees ---------------------------------------------------------------------------------------------------

CHILDREN = "sleep 1000 & setsid sleep 1000 & echo ready; wait"


@pytest.fixture
def tree():
    started: list[subprocess.Popen[bytes]] = []

    def start(stamp: str, command: str = CHILDREN) -> subprocess.Popen[bytes]:
        env = environment(**({"SPARKD_STAMP": stamp} if stamp else {}))
        process = subprocess.Popen(
            ["bash", "-c", command], env=env, stdout=subprocess.PIPE, start_new_session=True
        )
        started.append(process)
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        return process

    yield start
    for process in started:
        for pid in [process.pid, *children(process.pid)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()


def children(pid: int) -> list[int]:
    text = ""
    with contextlib.suppress(OSError):
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(word) for word in text.split()]


def both_children(pid: int) -> list[int]:
    """The two that `CHILDREN` makes: the kernel's list may miss one while they begin."""
    return until(lambda: len(children(pid)) == 2 and children(pid), "both are there")


def tree_scope(mark: str) -> TreeScope:
    clerk = Clerk()
    scope = TreeScope(Settings({"tree": mark}), clerk)
    for _ in range(12):  # environments are read in turns of some tens
        scope.refresh()
        clerk.do_all()
    scope.refresh()
    return scope


def test_the_marked_tree_is_killed_and_nothing_else(tree) -> None:
    cluster = uuid.uuid4().hex
    marked, other, none = tree(f"{cluster}/a/3/serve"), tree(f"{cluster}/b/3/serve"), tree("")
    theirs = both_children(marked.pid)
    scope = tree_scope(f"{cluster}/a")
    assert set(scope.held.members) == {marked.pid, *theirs}
    struck = scope.strike(signal.SIGKILL)
    assert {member.pid for member in struck} == {marked.pid, *theirs}
    until(lambda: not any(lives(pid) for pid in [marked.pid, *theirs]), "the tree is dead")
    until(lambda: not scope.left(), "nobody is left")
    assert all(lives(pid) for pid in [other.pid, none.pid, *children(other.pid)])


def test_what_the_tree_makes_after_the_last_look_dies_too(tree) -> None:
    cluster = uuid.uuid4().hex
    marked = tree(f"{cluster}/a/3/serve")
    scope = TreeScope(Settings({"tree": f"{cluster}/a"}), Clerk())
    scope.held.hold(marked.pid, "tree")
    theirs = set(both_children(marked.pid))
    assert {member.pid for member in scope.strike(signal.SIGKILL)} == {marked.pid} | theirs
    until(lambda: not any(lives(pid) for pid in theirs), "they are dead")


def test_the_environment_is_not_read_on_the_way_to_a_kill(tree, monkeypatch) -> None:
    cluster = uuid.uuid4().hex
    tree(f"{cluster}/a/3/serve")
    scope = tree_scope(f"{cluster}/a")
    opened: list[str] = []
    real = os.open
    monkeypatch.setattr(os, "open", lambda path, *rest: (opened.append(str(path)), real(path, *rest))[1])
    assert scope.strike(signal.SIGKILL)
    assert not [path for path in opened if path.rpartition("/")[2] in {"environ", "cmdline", "smaps", "maps"}]


def test_a_mark_is_read_of_the_initial_environment_only() -> None:
    process = subprocess.Popen(["sleep", "1000"], env={"A": "SPARKD_STAMP=no", "SPARKD_STAMP": "c/n/1/serve"})
    try:
        until(lambda: read_mark("/proc", process.pid) == b"c/n/1/serve", "the mark is there")
        assert read_mark("/proc", 0) == b""
    finally:
        process.kill()
        process.wait()
