"""sparkd under systemd on two nodes: what serves does not notice that a daemon ends."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest

from lab import load, netns, systemd_pair

pytestmark = [
    pytest.mark.nodes,
    pytest.mark.process,
    pytest.mark.skipif(bool(systemd_pair.missing()), reason=systemd_pair.missing() or "-"),
    pytest.mark.timeout(400),
]


@pytest.fixture(scope="module")
def pair() -> Iterator[systemd_pair.Pair]:
    with systemd_pair.pair() as made:
        made.start()
        made.until_serving(120.0)
        yield made


def replaced(machine: systemd_pair.Machine, before: str) -> bool:
    """Whether another daemon is up."""
    now = machine.shown("sparkd.service", "MainPID")
    return now not in {"0", before} and machine.shown("sparkd.service", "ActiveState") == "active"


@pytest.mark.parametrize("node", ["head", "worker"])
@pytest.mark.parametrize("how", ["restart", "SIGKILL"])
def test_clients_do_not_notice_that_a_daemon_is_replaced(pair, node, how) -> None:
    machine = getattr(pair, node)
    said = pair.until_serving(60.0)
    engines = [other.engine() for other in pair.machines]
    before = machine.shown("sparkd.service", "MainPID")
    target = load.Target(pair.head.network, "192.168.200.12", max_tokens=8)

    with load.load(target, streams=2, max_requests=100_000, max_s=100.0) as report:
        if how == "restart":
            machine.systemctl("restart", "sparkd")
        else:
            machine.systemctl("kill", "-s", "KILL", "--kill-who=main", "sparkd")
        assert netns.wait_until(lambda: replaced(machine, before), 60.0), pair.told()
        newer = said["epoch"] + (node == "head")
        after = pair.until(lambda now: now["serving"] and now["epoch"] >= newer, 60.0)
        done = report.completed
        assert netns.wait_until(lambda: report.completed > done, 20.0), "nobody is served any more"

    assert (report.errors, report.first_errors) == (0, [])
    assert after["generation"] == said["generation"]
    assert [other.engine() for other in pair.machines] == engines
    assert [other.stamps() for other in pair.machines] == [{str(said["generation"])}] * 2


def test_the_daemon_says_what_it_does(pair) -> None:
    pair.until_serving(60.0)
    for machine in pair.machines:
        said = partial(machine.shown, "sparkd.service", "StatusText")
        assert netns.wait_until(lambda said=said: said().startswith("serving · "), 20.0), said()
        assert machine.shown("sparkd.service", "User") == "sparkd"
        assert machine.shown("sparkd.target", "ActiveState") == "active"
        assert machine.shown("sparkd-guard.service", "ActiveState") == "active"
    said = pair.until(lambda status: status["guard_enforcing"], 20.0)
    assert [node["guard"] for node in said["nodes"]] == ["enforcing", "enforcing"]
    assert said["settings"]["in_force"]["ray_memory_threshold"] is None, "every guard watches: Ray's need not"
    assert said["settings"]["changed"] == []


def test_a_unit_that_a_person_stops_stays_stopped(pair) -> None:
    """As its own user the daemon still learns whose order it was, also of a unit that ends with 0."""
    said = pair.until_serving(60.0)
    pair.head.systemctl("stop", "sparkd-serve")
    pair.until(lambda now: now["phase"] == "paused", 30.0)
    assert pair.head.status()["incident"] is None
    pair.head.box.run("/opt/sparkd/bin/sparkctl", "resume")
    assert pair.until_serving(90.0)["generation"] > said["generation"]


@pytest.mark.parametrize(("node", "unit"), [("head", "sparkd-serve"), ("worker", "sparkd-ray")])
def test_a_unit_that_a_person_stops_while_its_daemon_is_away_stays_stopped(pair, node, unit) -> None:
    """The daemon reads it off the unit's own notes when it is back, and takes it for a pause."""
    said = pair.until_serving(60.0)
    machine = getattr(pair, node)
    machine.systemctl("stop", "sparkd")
    machine.systemctl("stop", unit)
    machine.systemctl("start", "sparkd")
    paused = pair.until(lambda now: now["phase"] == "paused", 60.0)
    assert paused["incident"] is None
    pair.head.box.run("/opt/sparkd/bin/sparkctl", "resume")
    assert pair.until_serving(90.0)["generation"] > said["generation"]


def test_an_end_while_the_heads_daemon_is_away_is_an_incident_all_the_same(pair) -> None:
    said = pair.until_serving(60.0)
    pair.head.systemctl("stop", "sparkd")
    pair.head.systemctl("kill", "-s", "KILL", "sparkd-serve")
    assert netns.wait_until(lambda: pair.head.shown("sparkd-serve", "ActiveState") == "failed", 20.0)
    pair.head.systemctl("start", "sparkd")
    pair.until(lambda now: now["serving"] and now["generation"] > said["generation"], 90.0)
    number = (said["last_incident"] or {"incident": 0})["incident"] + 1
    after = pair.until(lambda now: (now["last_incident"] or {}).get("incident") == number, 10.0)
    assert after["last_incident"]["outcome"] == "recovered"


def test_a_daemon_that_stands_still_is_replaced_by_the_watchdog(pair) -> None:
    """Shortened from 30 s; the engine does not notice."""
    said = pair.until_serving(60.0)
    path = "/run/systemd/system/sparkd.service.d/watchdog.conf"
    pair.worker.box.write(path, "[Service]\nWatchdogSec=5\n")
    pair.worker.systemctl("daemon-reload")
    pair.worker.systemctl("restart", "sparkd")
    before, engine = pair.worker.shown("sparkd.service", "MainPID"), pair.worker.engine()
    pair.worker.systemctl("kill", "-s", "STOP", "--kill-who=main", "sparkd")
    assert netns.wait_until(lambda: replaced(pair.worker, before), 90.0), pair.told()
    assert pair.until_serving(60.0)["generation"] == said["generation"]
    assert pair.worker.engine() == engine


def test_a_node_that_leaves_while_its_daemon_has_crashed_orphans_nothing(pair) -> None:
    """Systemd ends what the daemon would have ended: nothing is left there, and the head ends its part."""
    pair.until_serving(60.0)
    path = "/run/systemd/system/sparkd.service.d/crashed.conf"
    pair.worker.box.write(path, "[Service]\nRestart=no\n")
    pair.worker.systemctl("daemon-reload")
    pair.worker.systemctl("kill", "-s", "KILL", "--kill-who=main", "sparkd")
    assert netns.wait_until(lambda: pair.worker.shown("sparkd.service", "ActiveState") == "failed", 20.0)
    assert pair.worker.engine(), "what serves does not notice"
    pair.worker.systemctl("stop", "sparkd.target")
    assert netns.wait_until(lambda: [m.engine() for m in pair.machines] == [(), ()], 60.0), pair.told()
    assert [machine.stamps() for machine in pair.machines] == [set(), set()]
    assert not pair.head.status()["serving"]
    pair.worker.box.path(path).unlink()
    pair.worker.systemctl("daemon-reload")
    pair.worker.systemctl("start", "sparkd", "sparkd.target")
    if pair.until(lambda now: now["serving"] or now["phase"] == "paused", 120.0)["phase"] == "paused":
        pair.head.box.run("/opt/sparkd/bin/sparkctl", "resume")
    pair.until_serving(120.0)


def test_a_node_that_leaves_takes_the_engine_down_in_order(pair) -> None:
    """The last of this module: nothing is left on either node, and leaving is no incident."""
    pair.until_serving(60.0)
    before = pair.head.status()["last_incident"]
    pair.worker.systemctl("stop", "--no-block", "sparkd.target")
    said = pair.until(lambda now: now["phase"] == "waiting", 60.0)
    assert (said["incident"], said["last_incident"]) == (None, before)
    gone = ("sparkd.service", "sparkd-ray.service")
    for unit in gone:
        assert netns.wait_until(lambda unit=unit: pair.worker.shown(unit, "MainPID") == "0", 60.0), unit
    assert netns.wait_until(lambda: [m.engine() for m in pair.machines] == [(), ()], 60.0)
    assert [machine.stamps() for machine in pair.machines] == [set(), set()]
