"""Reading /proc and choosing a tree, on made-up process tables."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkd.adapters.proctree import (
    Mark,
    Process,
    grow,
    lineage,
    parse_mark,
    read_mark,
    read_process,
    snapshot,
    strays,
)

MARK = Mark("lab", "one", 7, "serve")


def entry(
    root: Path, pid: int, name: str = "x", *, tail: str = "", environ: bytes = b"", parent: int = 1
) -> None:
    folder = root / str(pid)
    folder.mkdir()
    fields = f"S {parent} {pid} {pid} 0 -1 0 0 0 0 0 1 2 3 4 20 0 5 0 {pid}00 1 2"
    (folder / "stat").write_text(f"{pid} ({name}) {tail or fields}\n")
    (folder / "environ").write_bytes(environ)


def process(pid: int, parent: int = 1, session: int | None = None, **more: object) -> Process:
    return Process(pid, parent, pid, pid if session is None else session, pid * 100, "S", **more)


def table(*processes: Process) -> dict[int, Process]:
    return {p.pid: p for p in processes}


def pids(found: tuple[Process, ...]) -> list[int]:
    return [p.pid for p in found]


@pytest.mark.parametrize("name", ["python3", "VLLM::Worker", "a) S 1 (b", "x\ny", ")", ""])
def test_any_process_name_is_read_past(tmp_path, name) -> None:
    entry(tmp_path, 42, name, parent=7)
    assert read_process(tmp_path, 42) == Process(42, 7, 42, 42, 4200, "S", 5)


def test_what_is_no_process_is_left_out(tmp_path) -> None:
    entry(tmp_path, 1)
    entry(tmp_path, 2, tail="S 1 2")
    entry(tmp_path, 3, tail="S one 3 3 0 -1 0 0 0 0 0 1 2 3 4 20 0 5 0 300")
    (tmp_path / "4").mkdir()
    (tmp_path / "self").mkdir()
    (tmp_path / "²").mkdir()
    assert list(snapshot(tmp_path, {})) == [1]
    assert snapshot(tmp_path / "none", {}) == {}


@pytest.mark.parametrize(
    ("environ", "mark"),
    [
        (b"SPARKD_STAMP=lab/one/7/serve\0A=b\0", MARK),
        (b"A=b\0SPARKD_STAMP=lab/one/7/serve", MARK),
        (b"A=\xff\0SPARKD_STAMP=lab/one/7/serve\0SPARKD_STAMP=lab/two/7/serve\0", MARK),
        (b"XSPARKD_STAMP=lab/one/7/serve\0", None),
        (b"A=SPARKD_STAMP=lab/one/7/serve\0", None),
        (b"SPARKD_STAMP=lab/one/seven/serve\0", None),
        (b"SPARKD_STAMP=lab/one/7\0", None),
        (b"SPARKD_STAMP=\xff\xfe\0", None),
        (b"", None),
    ],
)
def test_a_mark_is_one_whole_variable(tmp_path, environ, mark) -> None:
    entry(tmp_path, 9, environ=environ)
    assert read_mark(tmp_path, 9) == mark
    assert snapshot(tmp_path, {})[9].mark == mark


def test_a_known_mark_is_not_read_again(tmp_path) -> None:
    entry(tmp_path, 9)
    assert snapshot(tmp_path, {(9, 900): MARK})[9].mark == MARK
    assert snapshot(tmp_path, {(9, 901): MARK})[9].mark is None, "another process under the same pid"


@given(st.text())
def test_parsing_a_mark_never_raises(text) -> None:
    mark = parse_mark(text)
    assert mark is None or mark.generation >= 0


@given(st.binary(max_size=200))
def test_reading_garbage_never_raises(tmp_path_factory, data) -> None:
    root = tmp_path_factory.mktemp("proc")
    (root / "5").mkdir()
    (root / "5" / "stat").write_bytes(data)
    (root / "5" / "environ").write_bytes(data)
    snapshot(root, {})


def test_marks_spell_what_they_parse() -> None:
    assert parse_mark(str(MARK)) == MARK


def test_a_tree_is_descent_and_sessions_that_it_made() -> None:
    processes = table(
        process(10, 5),
        process(11, 10, 10),
        process(12, 11),  # its own session
        process(13, 1, 12),  # an orphan in it
        process(14, 1, 10),  # an orphan in the root's
        process(20, 1),
        process(21, 1, 20),
    )
    assert pids(grow(processes, [10], lambda _: True, [5])) == [10, 11, 12, 13, 14]


def test_a_session_whose_leader_has_ended_counts_and_a_living_strangers_does_not() -> None:
    processes = table(
        process(11, 1, 10),
        process(12, 1, 10),
        process(30, 1),
        process(31, 30, 30),
        process(32, 30, 30),
    )
    assert pids(grow(processes, [11, 31], lambda _: True, [])) == [11, 12, 31]


def test_other_nodes_and_the_daemons_own_line_and_session_are_spared() -> None:
    processes = table(
        process(1, 0, 0),
        process(4, 1),  # a shell
        process(5, 4, 4),  # the daemon
        process(6, 5, 4),  # what the daemon runs for itself
        process(10, 5),
        process(11, 10, 10, mark=Mark("lab", "two", 7, "serve")),
        process(12, 11, 10),
        process(13, 1, 4, mark=MARK),  # marked, but in the daemon's session
    )
    line = lineage(processes, 5)
    assert line == {0, 1, 4, 5}
    found = grow(processes, [10, 13, 4, 1], lambda mark: mark.node == "one", line)
    assert pids(found) == [10, 12, 13], "12 is in the root's session, 6 is not the unit's"


def test_the_dead_do_not_count_but_a_leader_whose_threads_live_does() -> None:
    dead = Process(10, 5, 10, 10, 1, "Z")
    half = Process(11, 5, 11, 11, 1, "Z", threads=3)
    assert pids(grow(table(dead, half), [10, 11], lambda _: True, [])) == [11]


def test_a_loop_of_parents_ends() -> None:
    processes = table(process(10, 11), process(11, 10))
    assert lineage(processes, 10) == {0, 1, 10, 11}
    assert pids(grow(processes, [10], lambda _: True, [])) == [10, 11]


def test_strays_are_the_daemons_children_in_other_sessions() -> None:
    processes = table(process(5, 1), process(6, 5, 5), process(7, 5), process(8, 5), process(9, 8))
    assert strays(processes, 5, {8}) == {7}
    assert strays(processes, 99, set()) == frozenset()


def test_the_real_proc_shows_this_process() -> None:
    own = snapshot(Path("/proc"), {})[os.getpid()]
    assert own.alive and own.parent == os.getppid() and own.session == os.getsid(0)
