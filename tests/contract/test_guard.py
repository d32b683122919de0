"""The daemon's side of the guard, against a real guard whose memory the test writes."""

from __future__ import annotations

import json
import os
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from guard.rig import GIB, TOTAL, rig, until
from sparkd.adapters.clock import MonotonicClock
from sparkd.adapters.guard import LEASE_S, SEEN_WITHIN_S, Guard, floor_of
from sparkd.core.messages import GuardSeen
from sparkd.guard.lease import parse
from sparkd.guard.settings import Settings as GuardSettings
from sparkd.signals.causes import CAUSES
from sparkd.signals.judge import judge
from sparkd.signals.model import Evidence, Proof
from sparkd.words import Phase

BOOT = "0f0f0f0f-boot"
NOWHERE = {"status": Path("/nonexistent/status"), "state": Path("/nonexistent")}


@pytest.fixture
def node(tmp_path):
    with rig(tmp_path) as made:
        folder = made.proc / "sys" / "kernel" / "random"
        folder.mkdir(parents=True)
        (folder / "boot_id").write_text(BOOT + "\n")
        yield made


def side(node, clock=None, boot: str = BOOT) -> Guard:
    places = {"floors": node.lease, "status": node.status_file, "state": node.state}
    return Guard(clock or MonotonicClock(), "spark-a", boot=boot, **places)


class Still:
    def __init__(self, at_s: float) -> None:
        self.at_s = at_s

    def now(self) -> float:
        return self.at_s


def test_the_guard_takes_the_floor_that_the_daemon_gives_and_tells_it_back(node) -> None:
    node.start()
    guard = side(node)
    assert replace(guard.read(), notes=()) == GuardSeen(alive=True, enforcing=True, floor_bytes=2 * GIB)
    guard.lease(Phase.SERVING, 5 * GIB)
    seen = until(lambda: guard.read().leased and guard.read(), "the lease holds")
    assert (seen.floor_bytes, seen.enforcing) == (5 * GIB, True)
    guard.lease(Phase.CAPTURING_GRAPHS, 6 * GIB)
    until(lambda: guard.read().floor_bytes == 4 * GIB, "the floor of the capture")
    assert node.status()["phase"] == "capturing_graphs"


@pytest.mark.parametrize("phase", list(Phase))
def test_every_phase_can_be_leased_and_none_is_above_the_floor_that_was_asked(phase, tmp_path) -> None:
    guard = Guard(
        Still(100.0), "spark-a", floors=tmp_path / "new" / "floors", status=tmp_path, state=tmp_path
    )
    guard.lease(phase, 3 * GIB)
    lease = parse((tmp_path / "new" / "floors").read_text(), 100.0, GuardSettings({}))
    assert (lease.phase, lease.floor, lease.note) == (phase.value, floor_of(phase, 3 * GIB), "")
    assert 2 * GIB <= lease.floor <= 3 * GIB
    assert lease.until_s == 100.0 + LEASE_S


def test_the_floors_are_open_to_a_guard_without_rights_over_files(tmp_path) -> None:
    before = os.umask(0o077)
    try:
        Guard(
            Still(1.0), "spark-a", floors=tmp_path / "guard" / "floors", status=tmp_path, state=tmp_path
        ).lease(Phase.SERVING, 3 * GIB)
    finally:
        os.umask(before)
    modes = [path.stat().st_mode & 0o777 for path in (tmp_path / "guard", tmp_path / "guard" / "floors")]
    assert modes == [0o755, 0o644]


def test_floors_that_cannot_be_written_are_said_once(tmp_path) -> None:
    (tmp_path / "file").write_text("")
    guard = Guard(Still(1.0), "spark-a", floors=tmp_path / "file" / "floors", **NOWHERE)
    with capture_logs() as lines:
        guard.lease(Phase.SERVING, GIB)
        guard.lease(Phase.SERVING, GIB)
    assert [line["event"] for line in lines] == ["guard_floors_not_written"]


def test_a_trip_is_a_signal_once_with_its_numbers(node) -> None:
    victim = node.engine.add()
    node.start()
    guard = side(node)
    assert guard.trips() == []
    guard.lease(Phase.CAPTURING_GRAPHS, 3 * GIB)
    until(lambda: guard.read().leased, "the lease holds")
    node.memory(0.5)
    assert victim.wait(20) == -9
    [found] = until(guard.trips, "the signal")
    assert (found.cause, found.proof, found.fatal, found.node) == (
        "memory_guard_kill",
        Proof.PROVES,
        True,
        "spark-a",
    )
    assert found.phase is Phase.CAPTURING_GRAPHS
    assert found.quantity("total_bytes") == TOTAL
    assert found.quantity("used_bytes") == TOTAL - GIB // 2
    assert found.quantity("victims_count") == 1
    assert 0 <= time.monotonic() - found.at_s < 30
    assert found.cause in CAUSES
    until(node.records, "the record")
    assert guard.trips() == [], "status and record are one trip"
    diagnosis = judge(Evidence(signals=(found,), nodes=("spark-a",), head="spark-a"))
    assert (diagnosis.cause, diagnosis.phase) == ("memory_guard_kill", Phase.CAPTURING_GRAPHS)
    assert diagnosis.quantity("used_bytes") == TOTAL - GIB // 2


def test_a_daemon_that_starts_later_learns_of_it_and_it_is_not_fatal_to_what_runs_now(node) -> None:
    victim = node.engine.add()
    node.start()
    node.memory(0.5)
    assert victim.wait(20) == -9
    until(node.records, "the record")
    node.end()
    [late] = side(node).trips()
    assert not late.fatal
    [other_boot] = side(node, boot="another").trips()
    assert (other_boot.fatal, other_boot.cause, other_boot.at_s) == (False, "memory_guard_kill", 0.0)
    assert late.at_s > 0.0


def test_only_observing_is_alive_and_not_enforcing_and_its_trips_are_no_kills(node) -> None:
    node.engine.add()
    node.start(mode="observe")
    guard = side(node)
    seen = guard.read()
    assert (seen.alive, seen.enforcing, seen.reason) == (True, False, "it only observes")
    node.memory(0.5)
    until(node.records, "the record")
    assert guard.trips() == []


def test_a_guard_that_cannot_read_the_memory_does_not_enforce(node) -> None:
    node.start()
    (node.proc / "meminfo").write_text("")
    guard = side(node)
    seen = until(lambda: not guard.read().enforcing and guard.read(), "it is told")
    assert (seen.alive, seen.reason) == (True, "it cannot read this node's memory")
    assert any("memory is unknown" in note for note in seen.notes)


def test_a_guard_that_is_stopped_or_dead_is_not_alive(node) -> None:
    guard = side(node)
    assert not guard.read().alive
    assert guard.read().reason.endswith("/status is missing or torn (docs/guard.md)")
    node.start()
    assert guard.read().enforcing
    last = node.status()["look_s"]
    assert side(node, Still(last + SEEN_WITHIN_S - 0.1)).read().alive
    late = side(node, Still(last + SEEN_WITHIN_S + 60)).read()
    assert (late.alive, late.enforcing, late.floor_bytes) == (False, False, None)
    assert "dead or stands still" in late.reason
    later = side(node, Still(last + SEEN_WITHIN_S + 61)).read()
    assert later == late, "a dead guard is news once"
    assert node.process is not None
    node.process.send_signal(signal.SIGKILL)
    until(lambda: not guard.read().alive, "its last look is too old")


def test_rivals_are_told_with_who_acts_first(tmp_path) -> None:
    status = {"seq": 1, "seq_end": 1, "look_s": 9.0, "mode": "enforce", "floor_bytes": 5, "pools": [{}]}
    rival = {"name": "earlyoom", "says": "earlyoom ends the largest process", "first": "earlyoom"}
    (tmp_path / "status").write_text(json.dumps(status | {"rivals": [rival, "x"]}))
    places = {"floors": tmp_path / "floors", "status": tmp_path / "status", "state": tmp_path}
    seen = Guard(Still(10.0), "spark-a", **places).read()
    assert seen.rivals == ("earlyoom ends the largest process; first to act: earlyoom",)


@given(
    st.binary(max_size=200),
    st.dictionaries(st.sampled_from(["seq", "look_s", "mode", "trip", "pools"]), st.text()),
)
def test_any_file_is_read_without_error_and_never_as_an_enforcing_guard(tmp_path_factory, raw, said) -> None:
    folder: Path = tmp_path_factory.mktemp("guard")
    (folder / "trip-1.json").write_bytes(raw)
    places = {"floors": folder / "floors", "status": folder / "status", "state": folder}
    for content in (raw, json.dumps(said).encode(), json.dumps(said | {"trip": {"enforced": True}}).encode()):
        (folder / "status").write_bytes(content)
        guard = Guard(Still(10.0), "spark-a", **places)
        assert not guard.read().enforcing
        assert all(replace(each, fatal=False) == each for each in guard.trips())
