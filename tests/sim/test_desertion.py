"""A head whose host is gone, or wedged: what its worker does, and what both say of it."""

from __future__ import annotations

import pytest

from sim.world import World, serving
from sparkd.core import events as ev
from sparkd.core.messages import UnitState
from sparkd.core.records import PeerChanged, Remedied
from sparkd.words import Phase, UnitName

HEAD, WORKER, RAY = "spark-a", "spark-b", UnitName.RAY


def started() -> World:
    world = World()
    world.run_until(serving(world))
    world.run_for(2 * world.head.policy.telemetry_every_s)  # the worker has heard of it
    return world


def lose_head(world: World, host: ev.Host) -> None:
    """Nobody hears the head's daemon any more; what its host answers is another matter."""
    world.hosts[HEAD] = host
    world.head.up = False
    world.broker = False
    for node in world.nodes.values():
        world.tell(node, ev.BrokerChanged(False, "no route to host"))


def lives(world: World) -> bool:
    return world.nodes[WORKER].procs[RAY].alive


def test_a_worker_ends_its_part_when_the_heads_host_is_gone_on_every_path() -> None:
    world = started()
    lose_head(world, ev.Host.SILENT)
    policy = world.nodes[WORKER].policy

    world.run_for(policy.no_progress_s)
    assert lives(world)

    spent_s = world.run_until(lambda: not lives(world), limit_s=60)
    assert spent_s <= policy.peer_silence_s + 3 * 2.0 + 1.0
    (unit,) = world.nodes[WORKER].state.member.units
    assert (unit.generation, unit.state) == (1, UnitState.STOPPING)


def test_an_engine_that_starts_is_quiet_for_as_long_as_its_whole_start_may_take() -> None:
    world = World()
    world.run_until(lambda: world.phase is Phase.LOADING_WEIGHTS)
    world.run_for(2 * world.head.policy.telemetry_every_s)
    lose_head(world, ev.Host.SILENT)
    policy = world.nodes[WORKER].policy
    start_s = policy.no_progress_s + sum(
        s for phase, s in policy.phase_budget_s if phase is not Phase.VERIFYING
    )

    world.run_for(start_s)
    assert lives(world)

    world.run_until(lambda: not lives(world), limit_s=60)


@pytest.mark.parametrize("host", [ev.Host.REFUSES, ev.Host.PINGS, ev.Host.UNKNOWN])
def test_a_head_of_which_anything_answers_or_that_nobody_could_ask_is_waited_for(host: ev.Host) -> None:
    world = started()
    lose_head(world, host)

    world.run_for(1800.0)

    assert lives(world)


@pytest.mark.parametrize("unknown", [False, True])
def test_an_engine_that_still_receives_or_of_which_nobody_knows_is_left_alone(unknown: bool) -> None:
    world = started()
    lose_head(world, ev.Host.SILENT)
    world.received_bytes = None if unknown else 0

    def receive() -> None:
        if world.received_bytes is not None:
            world.received_bytes += 1 << 20
        world.at(1.0, receive)

    receive()
    world.run_for(1800.0)

    assert lives(world)


def test_a_break_in_the_silence_begins_it_anew() -> None:
    world = started()
    lose_head(world, ev.Host.SILENT)
    limit_s = world.nodes[WORKER].policy.no_progress_s
    for _ in range(20):
        world.run_for(limit_s * 0.7)
        world.hosts[HEAD] = ev.Host.PINGS
        world.run_for(5.0)
        world.hosts[HEAD] = ev.Host.SILENT

    assert lives(world)


def test_a_head_that_comes_back_hears_why_and_recovers() -> None:
    """Its network was cut, not its power: the daemon that comes back is the one that went."""
    world = started()
    lose_head(world, ev.Host.SILENT)
    world.run_until(lambda: not lives(world))
    world.run_for(5.0)

    world.head.up = True
    world.set_broker(up=True)
    world.run_until(lambda: bool(world.records(Remedied)))
    told = world.records(Remedied)[0].diagnosis
    world.run_until(serving(world))

    assert (told.cause, world.generation) == ("peer_lost", 2)
    assert "was silent on every path" in str(told)


def test_a_host_that_answers_ping_and_nothing_else_is_called_wedged() -> None:
    world = started()
    world.hosts[WORKER] = ev.Host.PINGS
    world.nodes[WORKER].up = False
    world.kill(HEAD, UnitName.SERVE)
    world.run_until(lambda: world.phase is Phase.WAITING or world.phase is Phase.FENCING)
    world.run_for(30.0)

    wedged = (
        "wedged: its host answers ping, and neither its sparkd nor its sshd does; it may need a power cycle"
    )
    assert any(wedged in reason for reason in world.head.state.coordinator.waiting)
    assert [r.reason for r in world.records(PeerChanged)][-1] == wedged

    world.hosts.clear()
    world.restart_daemon(WORKER, remember=False)
    world.run_until(serving(world))
    assert world.records(PeerChanged)[-1].present
