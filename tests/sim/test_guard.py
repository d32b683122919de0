"""A guard that is lost while serving: nothing that serves is ended, and nothing starts unwatched."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sim.world import World, serving
from sparkd.core.launch import MONITOR_AGAIN
from sparkd.core.need import RAISED_THRESHOLD
from sparkd.core.records import SettingsAdopted
from sparkd.words import GIB, Phase, UnitName


@pytest.fixture
def world() -> World:
    """Return a cluster that serves with Ray's monitor off, since every guard enforced."""
    world = World(guard_enforcing=True)
    world.run_until(serving(world))
    world.signal("spark-a", "ray_oom_kill", used_bytes=int(114.5 * GIB), threshold_bytes=int(113.7 * GIB))
    world.run_until(lambda: world.phase is not Phase.SERVING)
    world.run_until(serving(world))
    assert world.head.state.coordinator.settings.ray_memory_threshold is None
    return world


def lose_a_guard(world: World) -> None:
    for node in world.nodes.values():
        node.policy = replace(node.policy, guard_enforcing=False)


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
    world.head.state = replace(world.head.state, coordinator=replace(lead, failed=(*lead.failed, failed)))
    lose_a_guard(world)
    world.kill("spark-a", UnitName.SERVE)
    world.run_until(lambda: world.phase is not Phase.SERVING)
    world.run_until(serving(world))

    started = world.head.procs[UnitName.SERVE].settings
    assert started.ray_memory_threshold == RAISED_THRESHOLD
    assert started != failed
