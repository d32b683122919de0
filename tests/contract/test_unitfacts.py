"""What systemd's properties mean: running, ended, and by whose order."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sparkd.adapters.unitfacts import Ending, Facts, ending_of, facts_of

RUNS = Facts(loaded=True, active_state="active", main_pid=7, exec_pid=7, active_enter_us=100)
# Stopped by a job: active is left at 200, the root ends at 201.
STOPPED = replace(RUNS, main_pid=0, main_code=2, main_status=15, active_exit_us=200, main_exit_us=201)


def test_who_runs_has_no_ending() -> None:
    assert ending_of(RUNS) is None
    assert ending_of(replace(RUNS, active_state="deactivating", active_exit_us=200)) is None
    assert ending_of(Facts()) is None
    assert not RUNS.stopping
    assert replace(RUNS, active_state="deactivating").stopping
    assert not replace(STOPPED, active_state="deactivating").stopping


@pytest.mark.parametrize(
    ("facts", "ending"),
    [
        (STOPPED, Ending(signal=15, by_job=True)),
        (replace(STOPPED, main_code=1, main_status=3), Ending(code=3, by_job=True)),
        (replace(STOPPED, active_exit_us=201), Ending(signal=15)),
        (replace(STOPPED, active_exit_us=250), Ending(signal=15)),
        (replace(STOPPED, result="oom-kill"), Ending(signal=15)),
        (replace(STOPPED, result="timeout"), Ending(signal=15)),
        (replace(STOPPED, active_exit_us=90), Ending(signal=15)),
        (replace(STOPPED, active_exit_us=0, active_enter_us=0), Ending(signal=15)),
        (replace(STOPPED, main_code=3, main_status=11, active_exit_us=300), Ending(signal=11)),
    ],
    ids=[
        "stop",
        "stop, exit 3",
        "at once",
        "by itself",
        "oom",
        "timeout",
        "of an earlier start",
        "never",
        "dump",
    ],
)
def test_the_two_times_tell_whose_order_it_was(facts, ending) -> None:
    assert ending_of(facts) == ending


def test_properties_of_a_unit_that_systemd_does_not_know() -> None:
    assert facts_of({}) == Facts()
    assert facts_of({"LoadState": "not-found", "Job": (0, "/")}) == Facts()


def test_properties_are_read() -> None:
    read = facts_of({"LoadState": "loaded", "InvocationID": b"\x01\xff", "Job": (9, "/x"), "MainPID": 7})
    assert (read.loaded, read.invocation, read.job_id, read.main_pid) == (True, "01ff", 9, 7)
