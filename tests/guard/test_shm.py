"""What killed processes leave in /dev/shm: removed when it is surely theirs, and never otherwise."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sparkd.guard.shm import SharedMemory, listing, used_by

HOLDER = """
import mmap, os, sys
how, *paths = sys.argv[1:]
held = []
for path in paths:
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    os.ftruncate(fd, 8192)
    held.append(mmap.mmap(fd, 8192))
    if how == "mapped":
        os.close(fd)
os.write(1, b"ready\\n")
os.read(0, 1)
"""


@pytest.fixture
def hold():
    started: list[subprocess.Popen[bytes]] = []

    def start(*paths: Path, how: str = "mapped") -> subprocess.Popen[bytes]:
        argv = [sys.executable, "-S", "-c", HOLDER, how, *map(str, paths)]
        process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        started.append(process)
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def end(*processes: subprocess.Popen[bytes]) -> list[int]:
    for process in processes:
        process.kill()
        process.wait()
    return [process.pid for process in processes]


@pytest.mark.parametrize("how", ["mapped", "open"])
def test_what_only_the_dead_used_is_removed(tmp_path, hold, how) -> None:
    paths = [tmp_path / "psm_1a2b", tmp_path / "nccl-AbCd", tmp_path / "sem.mp-xyz"]
    member = hold(*paths, how=how)
    book = SharedMemory(str(tmp_path), "/proc")
    book.observe([member.pid])
    removed, kept = book.remove_of(end(member))
    assert sorted(each.name for each in removed) == sorted(path.name for path in paths)
    assert all(each.bytes >= 0 for each in removed)
    assert not kept
    assert not listing(str(tmp_path))


def test_what_another_process_uses_too_stays(tmp_path, hold) -> None:
    path = tmp_path / "psm_1a2b"
    member, other = hold(path), hold(path)
    book = SharedMemory(str(tmp_path), "/proc")
    book.observe([member.pid])
    removed, kept = book.remove_of(end(member))
    assert (removed, kept) == ([], ["psm_1a2b: another process uses it"])
    assert path.exists()
    assert other.poll() is None


def test_what_was_never_seen_in_the_engine_stays(tmp_path, hold) -> None:
    """Of the same kind, of the same owner, made while the engine ran."""
    mine, foreign = tmp_path / "psm_mine", tmp_path / "psm_foreign"
    member = hold(mine)
    foreign.write_bytes(b"x")
    book = SharedMemory(str(tmp_path), "/proc")
    book.observe([member.pid])
    book.remove_of(end(member))
    assert not mine.exists()
    assert foreign.exists()


def test_of_other_names_nothing_is_touched(tmp_path, hold) -> None:
    path = tmp_path / "postgres.12"
    member = hold(path)
    book = SharedMemory(str(tmp_path), "/proc")
    book.observe([member.pid])
    assert book.remove_of(end(member)) == ([], [])
    assert path.exists()


def test_another_file_of_the_same_name_stays(tmp_path, hold) -> None:
    path = tmp_path / "psm_1a2b"
    member = hold(path)
    book = SharedMemory(str(tmp_path), "/proc")
    book.observe([member.pid])
    dead = end(member)
    spare = tmp_path / "other"
    spare.write_bytes(b"x")
    spare.replace(path)
    assert book.remove_of(dead) == ([], [])
    assert path.exists()


def test_of_another_owner_stays(tmp_path, hold) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root to give a file away")
    path = tmp_path / "psm_1a2b"
    member = hold(path)
    book = SharedMemory(str(tmp_path), "/proc")
    book.observe([member.pid])
    os.chown(path, 12345, 12345)
    assert book.remove_of(end(member))[1] == ["psm_1a2b: its owner is not the engine's"]
    assert path.exists()


def test_what_cannot_be_looked_at_counts_as_in_use(tmp_path, hold, monkeypatch) -> None:
    path = tmp_path / "psm_1a2b"
    member = hold(path)
    book = SharedMemory(str(tmp_path), "/proc")
    book.observe([member.pid])
    dead = end(member)
    real = os.listdir

    def refused(folder: str) -> list[str]:
        if folder == f"/proc/{os.getpid()}/fd":
            raise PermissionError
        return real(folder)

    monkeypatch.setattr(os, "listdir", refused)
    assert "cannot be seen" in book.remove_of(dead)[1][0]
    assert path.exists()


def test_the_living_keep_theirs_when_another_member_dies(tmp_path, hold) -> None:
    path, mine = tmp_path / "psm_both", tmp_path / "psm_mine"
    one, two = hold(path, mine), hold(path)
    book = SharedMemory(str(tmp_path), "/proc")
    book.observe([one.pid, two.pid])
    removed, kept = book.remove_of(end(one))
    assert [each.name for each in removed] == ["psm_mine"]
    assert kept == ["psm_both: another process uses it"]


def test_maps_are_read_only_while_there_are_new_files(tmp_path, hold, monkeypatch) -> None:
    member = hold(tmp_path / "psm_mine")
    (tmp_path / "psm_foreign").write_bytes(b"x")
    read: list[int] = []
    monkeypatch.setattr(
        "sparkd.guard.shm.used_by", lambda *asked: (read.append(asked[1]), used_by(*asked))[1]
    )
    book = SharedMemory(str(tmp_path), "/proc")
    for _ in range(6):
        book.observe([member.pid])
    assert len(read) == 3, "a file of nobody here is looked for three times"
    (tmp_path / "psm_new").write_bytes(b"x")
    book.observe([member.pid])
    assert len(read) == 4


def test_a_process_that_is_gone_uses_nothing(tmp_path, hold) -> None:
    member = hold(tmp_path / "psm_mine")
    [pid] = end(member)
    assert used_by("/proc", pid, str(tmp_path)) == set()
    with contextlib.suppress(OSError):
        assert used_by("/proc", os.getpid(), str(tmp_path)) == set()
