"""The guard as a process: it kills in time, once, without a page fault, and leaves its record."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from guard.rig import DEADLINE_S, GIB, TOTAL, rig, until
from sparkd.adapters.clock import MonotonicClock
from sparkd.adapters.guard import Guard
from sparkd.guard.telling import RECORDS_KEPT
from sparkd.guard.watch import START_STEP_S
from sparkd.signals.catalogue import packaged_catalogue


@pytest.fixture
def node(tmp_path):
    with rig(tmp_path) as made:
        yield made


def test_a_trip_from_the_first_look_to_the_record(node) -> None:
    victims = [node.engine.add(), node.engine.add()]
    bystander = subprocess.Popen(["sleep", "1000"])
    try:
        node.start()
        assert node.status()["mode"] == "enforce"
        assert node.status()["trip"] is None
        node.memory(0.5)
        assert [victim.wait(20) for victim in victims] == [-9, -9]
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()
    record = until(node.records, "the record")[0]
    assert {victim["pid"] for victim in record["victim_list"]} == {victim.pid for victim in victims}
    assert (record["code"], record["pool"], record["enforced"]) == ("below_hard_floor", "node", True)
    assert (record["total_bytes"], record["available_bytes"]) == (TOTAL, GIB // 2)
    assert record["page_faults"] == 0
    assert record["left"] == []
    fields = record["curve"]["fields"]
    rows = [dict(zip(fields, row, strict=True)) for row in record["curve"]["rows"]]
    assert rows[0]["available_bytes"] == 60 * GIB
    assert rows[-1]["available_bytes"] == GIB // 2
    assert all(-60 <= row["at_s"] <= 1 for row in rows)
    trip = until(
        lambda: (node.status().get("trip") or {}).get("record") and node.status(), "the status has it"
    )
    assert (trip["trips"], trip["trip"]["id"]) == (1, record["id"])
    said = node.end()
    line = next(line for line in said.splitlines() if "trip:" in line)
    assert "killed 2 processes of the engine" in line
    signature = next(each for each in packaged_catalogue().signatures if each.id == "memory_guard_killed")
    assert re.search(signature.pattern, line), "the catalogue knows the guard's own line"


def test_when_it_says_that_it_is_up_its_status_shows_it_enforcing(node, tmp_path, monkeypatch) -> None:
    """The daemon starts at that moment, and what it observes first decides on Ray's own monitor."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(DEADLINE_S)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        node.begin()
        before = list(iter(lambda: systemd.recv(4096).decode(), "READY=1"))
        seen = Guard(
            MonotonicClock(),
            "spark-a",
            floors=node.lease,
            status=node.status_file,
            state=node.state,
        ).read()
        while systemd.recv(4096) != b"READY=1":
            pass  # said once it may be lost: it is said again
    assert (seen.alive, seen.enforcing, seen.reason) == (True, True, "")
    asked = before.count(f"EXTEND_TIMEOUT_USEC={START_STEP_S}000000")
    assert asked > 1, "step by step: a start that is slow is not one that hangs"


def test_one_trip_a_member_and_another_for_the_next_one(node) -> None:
    first = node.engine.add()
    node.start()
    node.memory(0.5)
    assert first.wait(20) == -9
    node.engine.tell()
    until(node.records, "the record")
    second = node.engine.add()
    assert second.wait(20) == -9, "memory is not back, and something of the engine runs again"
    until(lambda: len(node.records()) == 2, "its record")


def test_below_the_floor_with_nothing_of_the_engine_it_kills_nobody_and_says_so(node) -> None:
    node.start()
    node.memory(0.5)
    until(lambda: any("others hold it" in note for note in node.status().get("notes", [])), "it says so")
    assert node.status()["trips"] == 0


OBEYS = "import signal, sys; signal.signal(15, lambda *_: sys.exit(3)); print(flush=True); signal.pause()"
REFUSES = "trap '' TERM; exec sleep 1000"


@pytest.mark.parametrize(
    ("argv", "code"),
    [((sys.executable, "-c", OBEYS), 3), (("bash", "-c", REFUSES), -9)],
    ids=["obeys", "refuses"],
)
def test_a_slow_fall_is_asked_first_and_who_does_not_answer_is_killed(node, argv, code) -> None:
    victim = node.engine.add(*argv)
    node.start(term_s="0.5")
    for available in (2.01, 1.995):
        node.memory(available)
        node.looked()  # one status may be of before; with the second the fall is that of the last half second
        node.looked()
    assert victim.wait(20) == code
    record = until(node.records, "the record")[0]
    assert (record["code"], record["first_signal"]) == ("below_floor_slowly", "SIGTERM")


def test_observing_it_kills_nobody_and_records_what_it_would_have_done(node) -> None:
    victim = node.engine.add()
    node.start(mode="observe")
    node.memory(0.5)
    record = until(node.records, "the record")[0]
    assert (record["enforced"], record["first_signal"], record["victims"]) == (False, "none", 1)
    assert "would have killed" in record["says"]
    assert victim.poll() is None
    assert node.status()["mode"] == "observe"


def test_the_daemons_floor_holds_while_its_lease_does(node) -> None:
    victim = node.engine.add()

    def lease(seconds: float) -> None:
        fresh = node.folder / "fresh_floors"
        until_s = time.monotonic() + seconds
        fresh.write_text(f"sparkd-floors 1\nphase=serving\nfloor_bytes={6 * GIB}\nuntil_s={until_s}\nend\n")
        fresh.replace(node.lease)

    node.start()
    node.memory(2.5)
    lease(0.3)
    until(lambda: "expired" in node.status().get("floor_note", ""), "it has expired")
    lease(50)
    assert victim.wait(20) == -9
    record = until(node.records, "the record")[0]
    assert (record["phase"], record["floor_bytes"]) == ("serving", 6 * GIB)


def test_the_limit_of_a_control_group_is_a_pool_of_its_own(node) -> None:
    """v1: usage beside the file cache against the limit; a full cache is no reason to kill."""
    group = node.folder / "cgroup" / "memory" / "engine"
    group.mkdir(parents=True)
    (group / "memory.limit_in_bytes").write_text(f"{32 * GIB}\n")
    (group / "memory.usage_in_bytes").write_text(f"{32 * GIB}\n")
    (group / "memory.stat").write_text(f"cache 1\ntotal_inactive_file {9 * GIB}\ntotal_active_file {GIB}\n")
    victim = node.engine.add()
    node.start()
    pools = until(
        lambda: len(node.status().get("pools", [])) == 2 and node.status()["pools"], "the second pool"
    )
    assert (pools[1]["available_bytes"], pools[1]["free_bytes"]) == (10 * GIB, 0)
    assert victim.poll() is None
    (group / "memory.stat").write_text("cache 1\ntotal_inactive_file 4096\ntotal_active_file 0\n")
    assert victim.wait(20) == -9
    record = until(node.records, "the record")[0]
    assert (record["pool"], record["total_bytes"]) == ("/engine", 32 * GIB)


@pytest.mark.parametrize(
    "meminfo", ["", "garbage", "MemTotal: 5 kB\n", "MemTotal: 5 kB\nMemAvailable: 9 kB\n"]
)
def test_an_unknown_memory_kills_nobody_and_is_said(node, meminfo) -> None:
    victim = node.engine.add()
    node.start()
    (node.proc / "meminfo").write_text(meminfo)
    until(lambda: any("memory is unknown" in note for note in node.status().get("notes", [])), "it says so")
    assert victim.poll() is None
    node.memory(0.5)
    assert victim.wait(20) == -9, "and it looks on"


def test_a_second_guard_is_refused_and_the_place_is_free_after_the_first(node) -> None:
    node.start()
    config = ["--config", str(node.folder / "guard.conf")]
    again = subprocess.run([*node.argv(), *config], capture_output=True, text=True, timeout=60, check=False)
    assert again.returncode == 78
    assert "another guard holds" in again.stderr
    assert node.process is not None
    node.process.kill()
    node.process.communicate()
    node.start()


def test_a_state_directory_that_cannot_be_written_does_not_stop_a_kill(node) -> None:
    victim = node.engine.add()
    node.state.write_text("a file")
    node.start()
    assert any("records of trips cannot be written" in note for note in node.status()["notes"])
    node.memory(0.5)
    assert victim.wait(20) == -9
    until(lambda: node.status().get("trips") == 1, "the status has the trip")


def test_records_are_bounded(node) -> None:
    node.state.mkdir()
    for number in range(RECORDS_KEPT + 5):
        (node.state / f"trip-{number:015d}.json").write_text("{}")
    victim = node.engine.add()
    node.start()
    node.memory(0.5)
    assert victim.wait(20) == -9
    until(lambda: len(list(node.state.glob("trip-*.json"))) == RECORDS_KEPT, "the old ones are gone")
    assert not (node.state / "trip-000000000000000.json").exists()


def test_it_is_small_and_locked_and_imports_little(node) -> None:
    node.start()
    assert node.process is not None
    rollup = Path(f"/proc/{node.process.pid}/smaps_rollup").read_text()
    sizes = {line.split(":")[0]: int(line.split()[1]) for line in rollup.splitlines()[1:]}
    assert sizes["Pss"] <= 16 * 1024
    if not any("memory is not locked" in note for note in node.status()["notes"]):
        assert sizes["Locked"] >= sizes["Pss"] * 0.95


def test_it_goes_on_where_its_standard_error_is_closed(node) -> None:
    victim = node.engine.add()
    node.start()
    assert node.process is not None and node.process.stderr is not None
    node.process.stderr.close()
    node.memory(0.5)
    assert victim.wait(20) == -9
    until(node.records, "the record")
    node.process.terminate()
    assert node.process.wait(20) == 0
    node.process = None


def test_a_stopped_guard_shows_in_the_age_of_its_last_look(node) -> None:
    node.start()
    assert node.process is not None
    os.kill(node.process.pid, signal.SIGSTOP)
    until(lambda: time.monotonic() - node.status()["look_s"] > 1.5, "the last look grows old")
    os.kill(node.process.pid, signal.SIGCONT)
    until(lambda: time.monotonic() - node.status()["look_s"] < 1.2, "it looks again")
