"""One daemon a state directory."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from sparkd.store.lock import StateLock, StateLockedError


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
