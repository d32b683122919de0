"""No engine is ended by a line that only a start can end of, even in a start; what ends it is the cause."""

from __future__ import annotations

import pytest

from sim.world import World, serving
from sparkd.core import events as ev
from sparkd.core.records import IncidentClosed, Remedied
from sparkd.words import Phase, UnitName

OF_A_START = [
    "permission_denied",
    "os_resource_limit",
    "broken_install",
    "missing_python_dependency",
    "bad_cli_argument",
    "port_in_use",
    "weights_missing_or_corrupt",
]


def causes(world: World) -> list[str]:
    return [record.diagnosis.cause for record in world.head.records if isinstance(record, Remedied)]


def started() -> World:
    world = World()
    world.run_until(serving(world))
    return world


@pytest.mark.parametrize("cause", OF_A_START)
def test_a_request_that_fails_or_another_program_does_not_end_it(cause: str) -> None:
    world = started()
    world.signal("spark-a", cause)
    world.run_for(30)
    assert (world.phase, causes(world)) == (Phase.SERVING, [])


@pytest.mark.parametrize("cause", OF_A_START)
def test_a_loose_line_in_a_start_does_not_end_it(cause: str) -> None:
    world = World()
    world.run_until(lambda: world.phase is Phase.LOADING_WEIGHTS)
    world.signal("spark-a", cause)
    world.run_until(serving(world))
    assert (world.generation, causes(world)) == (1, [])


@pytest.mark.parametrize("cause", OF_A_START)
def test_a_start_that_ends_of_it_is_told_so(cause: str) -> None:
    world = World()
    world.run_until(lambda: world.phase is Phase.LOADING_WEIGHTS)
    world.signal("spark-a", cause)
    world.kill("spark-a", UnitName.SERVE, code=1, signal=None)
    world.run_for(30)
    assert causes(world)[0] == cause


def test_what_it_lived_through_does_not_explain_its_end() -> None:
    world = started()
    world.signal("spark-a", "port_in_use")
    world.run_for(600)
    assert world.phase is Phase.SERVING
    world.kill("spark-a", UnitName.SERVE)
    world.run_for(30)
    assert causes(world)[0] == "killed_unspecified"


def test_where_the_engine_then_ends_it_is_the_cause() -> None:
    world = started()
    world.signal("spark-a", "weights_missing_or_corrupt")
    world.kill("spark-a", UnitName.SERVE, code=1, signal=None)
    world.run_for(30)
    assert causes(world) == ["weights_missing_or_corrupt"]


@pytest.mark.parametrize("cause", ["cuda_oom", "worker_process_died", "ray_node_died"])
def test_what_ends_an_engine_ends_it_at_once(cause: str) -> None:
    world = started()
    world.signal("spark-a", cause)
    assert world.phase is not Phase.SERVING


def test_who_asked_an_engine_to_stop_is_known_with_its_end() -> None:
    """A person's stop: the engine says so before the unit's end tells whose order it was."""
    world = World()
    world.run_until(serving(world))
    world.signal("spark-a", "clean_shutdown")
    world.run_for(1.0)
    assert world.phase is Phase.SERVING
    world.tell(world.head, ev.UnitStoppedByHand(UnitName.SERVE, 1))
    world.kill("spark-a", UnitName.SERVE, code=0, signal=None)
    world.run_for(30.0)
    assert (world.phase, world.generation) == (Phase.PAUSED, 1)
    assert world.records(IncidentClosed) == [] or world.records(IncidentClosed)[-1].outcome == "stopped"
