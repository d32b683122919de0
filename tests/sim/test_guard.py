"""A guard that is lost while serving: nothing that serves is ended, and nothing starts unwatched."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from sim.world import ENFORCING, OBSERVING, UNSEEN, World, serving
from sparkd.core import commands as co
from sparkd.core import events as ev
from sparkd.core.launch import MONITOR_AGAIN, MONITOR_OFF
from sparkd.core.need import RAISED_THRESHOLD
from sparkd.core.records import Judged, MemberRan, Remedied, SettingsAdopted
from sparkd.core.state import AT_ONCE
from sparkd.signals.model import Proof, Quantity, Signal
from sparkd.words import GIB, Phase, Settings, UnitName


@pytest.fixture
def world() -> World:
    """Return a cluster that serves with Ray's monitor off, since every guard enforced."""
    world = World(guarded=True)
    world.run_until(serving(world))
    world.signal("spark-a", "ray_oom_kill", used_bytes=int(114.5 * GIB), threshold_bytes=int(113.7 * GIB))
    world.run_until(lambda: world.phase is not Phase.SERVING)
    world.run_until(serving(world))
    assert world.head.state.coordinator.settings.ray_memory_threshold is None
    return world


def lose_a_guard(world: World) -> None:
    world.set_guard("spark-b", OBSERVING)
    world.run_for(1.0)


def test_what_serves_goes_on_without_the_guard(world: World) -> None:
    lose_a_guard(world)

    world.run_for(300.0)

    assert world.phase is Phase.SERVING
    assert world.generation == 2


def test_the_next_launch_has_the_monitor_on_again(world: World) -> None:
    lose_a_guard(world)
    world.kill("spark-a", UnitName.SERVE)
    world.run_until(lambda: world.phase is not Phase.SERVING)
    world.run_until(serving(world))

    assert world.head.procs[UnitName.SERVE].settings.ray_memory_threshold == RAISED_THRESHOLD
    assert world.records(SettingsAdopted)[-1].reason == MONITOR_AGAIN


def test_settings_that_failed_with_the_monitor_on_are_not_tried_again(world: World) -> None:
    lead = world.head.state.coordinator
    failed = replace(lead.settings, ray_memory_threshold=RAISED_THRESHOLD)
    known = replace(lead, failed=(*lead.failed, failed))
    world.head.state = replace(world.head.state, coordinator=known, wakes=AT_ONCE)  # no event brought it
    lose_a_guard(world)
    world.kill("spark-a", UnitName.SERVE)
    world.run_until(lambda: world.phase is not Phase.SERVING)
    world.run_until(serving(world))

    started = world.head.procs[UnitName.SERVE].settings
    assert started.ray_memory_threshold == RAISED_THRESHOLD
    assert started != failed


OFF = {"settings": Settings(ray_memory_threshold=RAISED_THRESHOLD), "ray_monitor_off_asked": True}
"""What `ray_memory_threshold = "off"` comes to, the default on unified memory."""


def started(world: World) -> Settings:
    world.run_until(serving(world))
    return world.head.procs[UnitName.SERVE].settings


def test_with_every_guard_enforcing_the_monitor_is_off_from_the_first_generation_on() -> None:
    world = World(guarded=True, **OFF)
    assert started(world).ray_memory_threshold is None
    assert world.generation == 1
    assert [r.reason for r in world.records(SettingsAdopted)] == [MONITOR_OFF]


@pytest.mark.parametrize("guard", [OBSERVING, UNSEEN])
def test_one_guard_that_does_not_enforce_is_enough_to_have_it_on(guard) -> None:
    world = World(guarded=True, **OFF)
    world.guards["spark-b"] = guard
    assert started(world).ray_memory_threshold == RAISED_THRESHOLD
    assert world.records(SettingsAdopted) == []


def test_who_asks_for_a_threshold_gets_it_beside_the_guards() -> None:
    assert started(World(guarded=True)).ray_memory_threshold == 0.95


def test_a_guard_that_comes_back_has_it_off_again_at_the_next_launch_and_ends_nothing_by_that() -> None:
    world = World(guarded=True, climb_after_s=700.0, climb_idle_s=60.0, cooldown_s=100.0, **OFF)
    world.guards["spark-b"] = OBSERVING
    started(world)
    world.set_guard("spark-b", ENFORCING)
    world.run_for(2000.0)
    assert (world.phase, world.generation) == (Phase.SERVING, 1)

    world.kill("spark-a", UnitName.SERVE)
    world.run_until(lambda: world.phase is not Phase.SERVING)
    assert started(world).ray_memory_threshold is None


def test_a_trip_is_a_memory_failure_with_its_reading() -> None:
    world = World(guarded=True, **OFF)
    started(world)
    floor = {"used_bytes": 116.8 * GIB, "total_bytes": 119.7 * GIB, "floor_bytes": 3.0 * GIB}
    world.signal("spark-b", "memory_guard_kill", **floor)
    world.run_until(lambda: world.phase is not Phase.SERVING)
    world.run_until(serving(world))

    remedied = world.records(Remedied)[-1]
    assert (remedied.diagnosis.cause, remedied.diagnosis.node) == ("memory_guard_kill", "spark-b")
    assert remedied.settings_after.kv_cache_bytes < 49 * GIB
    assert remedied.settings_after.ray_memory_threshold is None
    assert world.records(Judged)[-1].policy.guard_enforcing, "a replay decides with what was observed"


def test_the_guards_floor_follows_the_phase_on_every_node_and_is_asked_for_in_time() -> None:
    world = World()
    world.run_until(serving(world))
    world.run_for(60.0)

    for name in world.nodes:
        leases = [(at_s, phase) for at_s, node, phase, _ in world.leases if node == name]
        assert {Phase.LOADING_WEIGHTS, Phase.CAPTURING_GRAPHS, Phase.SERVING} <= {p for _, p in leases}
        assert max(b - a for (a, _), (b, _) in pairwise(leases)) <= 15.0
    assert {floor for _, _, _, floor in world.leases} == {world.head.policy.guard_floor_bytes}


class Away(World):
    """A world in which units outlive their daemons, and what ended meanwhile is found."""

    def __init__(self) -> None:
        super().__init__(guarded=True)
        self.outlives = True

    def _do_SweepLeftovers(self, node, _command: co.SweepLeftovers) -> None:  # noqa: N802
        living = tuple(ev.RunningUnit(p.unit, p.stamp, p.settings) for p in node.procs.values() if p.alive)
        over = (
            ev.EndedUnit(p.unit, p.stamp, p.settings, signal=9) for p in node.procs.values() if not p.alive
        )
        self.later(node, 0.1, ev.LeftoversSwept((1,), running=living, ended=tuple(over)))


@pytest.mark.parametrize(("name", "ago_s"), [("spark-a", 5.0), ("spark-b", 5.0), ("spark-a", 1e6)])
def test_what_the_guard_killed_while_no_daemon_was_there_lowers_memory(name: str, ago_s: float) -> None:
    """A trip of before what ran then says nothing of it."""
    world = Away()
    world.run_until(serving(world))
    world.run_for(60.0)
    (ran, *_) = [r for r in world.nodes[name].records if isinstance(r, MemberRan)]
    before = world.head.state.coordinator.settings
    world.nodes[name].up = False
    for proc in world.nodes[name].procs.values():
        proc.alive = False
    world.run_for(2.0)

    world.restart_daemon(name, unrested=True, ran_at_s=ran.at_s, returned=ran.returned)
    trip = Signal(
        "memory_guard_killed",
        "memory_guard_kill",
        Proof.PROVES,
        name,
        "sparkd-guard",
        "sparkd-guard: trip: killed 4 processes",
        max(0.0, world.now - ago_s),
        quantities=(Quantity("available_bytes", GIB), Quantity("used_bytes", 118 * GIB)),
    )
    world.tell(world.nodes[name], ev.SignalSeen(trip))
    world.run_until(lambda: bool(world.records(Remedied)))

    told = world.records(Remedied)[0]
    counts = ago_s < 100.0
    assert (told.diagnosis.cause == "memory_guard_kill", told.settings_after != before) == (counts, counts)
    world.run_until(serving(world))
