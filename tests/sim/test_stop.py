"""A stop ends what an earlier coordinator has left on nodes that are not heard yet."""

from __future__ import annotations

from collections.abc import Callable

from sim.world import World, serving
from sparkd.core import events as ev
from sparkd.core.messages import UnitState
from sparkd.core.records import PhaseChanged
from sparkd.words import Phase

SPAN_S = 200.0


def headless() -> World:
    """Return a cluster whose worker serves on, unheard, while a new head's daemon has begun."""
    world = World()
    world.run_until(serving(world))
    world.nodes["spark-b"].up = False
    world.head.procs.clear()
    world.restart_daemon("spark-a")
    world.run_until(lambda: world.head.state.member.swept)
    world.run_for(20.0)
    return world


def lives(world: World) -> bool:
    return any(unit.state is not UnitState.GONE for unit in world.nodes["spark-b"].state.member.units)


def is_over(world: World) -> Callable[[], bool]:
    return lambda: not lives(world)


def comes_back(world: World) -> None:
    worker = world.nodes["spark-b"]
    worker.up = True
    world.tell(worker, ev.TimerFired())


def test_it_is_not_stopped_while_a_node_says_that_it_serves() -> None:
    world = headless()
    world.tell(world.head, ev.OperatorAsked(ev.Verb.STOP))
    assert (world.phase, lives(world)) == (Phase.STOPPING, True)

    comes_back(world)
    world.run_until(lambda: world.phase is Phase.STOPPED)

    assert not lives(world)


def test_what_is_heard_long_after_the_stop_ends_then() -> None:
    world = headless()
    world.tell(world.head, ev.OperatorAsked(ev.Verb.STOP))
    world.run_until(lambda: world.phase is Phase.STOPPED)
    assert lives(world)

    comes_back(world)

    world.run_until(is_over(world), SPAN_S)


def test_a_daemon_that_remembers_the_stop_ends_what_it_finds() -> None:
    world = headless()
    world.tell(world.head, ev.OperatorAsked(ev.Verb.STOP))
    world.run_for(1.0)
    world.restart_daemon("spark-a")
    comes_back(world)

    world.run_until(is_over(world), SPAN_S)

    assert world.phase is Phase.IDLE
    assert [move.after for move in world.records(PhaseChanged)][-1] is Phase.STOPPING
