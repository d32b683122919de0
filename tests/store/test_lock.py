"""One daemon a state directory."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from sparkd.store.lock import KEPT, StateLock, StateLockedError


def test_a_second_daemon_is_told_who_is_there(tmp_path):
    first = StateLock(tmp_path)

    with pytest.raises(StateLockedError, match=rf"pid {os.getpid()}\).*{tmp_path}.*one daemon a node"):
        StateLock(tmp_path)

    first.release()
    StateLock(tmp_path).release()


def test_the_lock_ends_with_its_process_and_children_do_not_keep_it(tmp_path):
    # The holder leaves a child behind (as a daemon leaves an engine) and is killed.
    script = (
        "import pathlib, subprocess, sys\n"
        "from sparkd.store.lock import StateLock\n"
        "lock = StateLock(pathlib.Path(sys.argv[1]))\n"
        "child = subprocess.Popen(['cat'], stdin=0, stdout=subprocess.DEVNULL, close_fds=False)\n"
        "print('held', flush=True)\n"
        "child.wait()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    ) as holder:
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(StateLockedError):
            StateLock(tmp_path)
        holder.kill()
        holder.wait(10)
        StateLock(tmp_path).release()


def _held(directory, instance, boot):
    lock = StateLock(directory, instance=instance, boot=boot)
    lock.release()
    return lock.predecessors


def test_who_held_it_since_the_boot_is_known_to_be_dead(tmp_path):
    assert _held(tmp_path, "one", "boot-1") == frozenset()
    assert _held(tmp_path, "two", "boot-1") == {"one"}
    assert _held(tmp_path, "three", "boot-1") == {"one", "two"}
    # a disk can be copied and run twice: another boot proves nothing
    assert _held(tmp_path, "four", "boot-2") == frozenset()
    assert _held(tmp_path, "five", "boot-2") == {"four"}


def test_only_the_last_few_are_kept(tmp_path):
    for number in range(3 * KEPT):
        _held(tmp_path, f"d{number}", "boot")
    assert _held(tmp_path, "now", "boot") == {f"d{number}" for number in range(2 * KEPT, 3 * KEPT)}


@pytest.mark.parametrize("was", [b"", b"4711\n", b"\xff\xfe\x00" * 700, b"4711\nboot"])
def test_an_odd_file_names_nobody(tmp_path, was):
    (tmp_path / "lock").write_bytes(was)
    assert _held(tmp_path, "one", "boot") == frozenset()
    assert _held(tmp_path, "two", "boot") == {"one"}


def test_a_full_disk_keeps_nobody_from_holding_it(tmp_path):
    (tmp_path / "lock").symlink_to("/dev/full")
    assert _held(tmp_path, "one", "boot") == frozenset()
