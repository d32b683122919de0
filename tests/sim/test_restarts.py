"""What a daemon's restart may not change: escalations, waits, pauses; and who only observes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sim.test_adoption import Systemd
from sim.world import Proc, Sim, World, serving
from sparkd.core import commands as co
from sparkd.core import events as ev
from sparkd.core.beginning import Remembered, initial
from sparkd.core.records import Kept, PhaseChanged, Verified
from sparkd.export.explain import explain
from sparkd.words import Phase, Settings, Stamp, UnitName

SERVE = UnitName.SERVE
HOUR_S = 3600.0
LOWER = replace(Settings(), gpu_memory_utilization=0.8)


def ask(world: World, verb: ev.Verb) -> None:
    world.tell(world.head, ev.OperatorAsked(verb))


def reached(world: World, phase: Phase):
    return lambda: world.phase is phase


def corrupt(world: World) -> None:
    """Every start ends of what only a person can mend."""

    def fail(node: Sim, _proc: Proc, phase: Phase) -> None:
        if phase is Phase.LOADING_WEIGHTS:
            world.signal(node.name, "weights_missing_or_corrupt")
            world.kill(node.name, SERVE, code=1, signal=None)

    world.on_serve = fail


def waits_for(world: World) -> list[str]:
    return list(explain(world.head.state, world.head.policy, world.now)["waits_for"])


# -- escalations ---------------------------------------------------------------------------------


def test_an_escalation_outlasts_the_daemon() -> None:
    world = World()
    corrupt(world)
    world.run_until(reached(world, Phase.ESCALATED))
    before, needs = world.generation, world.head.state.coordinator.needs

    world.restart_daemon("spark-a")
    world.run_for(2 * HOUR_S)

    assert (world.phase, world.generation) == (Phase.ESCALATED, before)
    assert world.head.state.coordinator.needs == needs
    assert "then: sparkctl start" in needs
    world.on_serve = None
    ask(world, ev.Verb.START)
    world.run_until(serving(world))


def test_a_person_who_edits_the_configuration_has_done_what_was_needed() -> None:
    world = World()
    corrupt(world)
    world.run_until(reached(world, Phase.ESCALATED))
    world.on_serve = None
    for node in world.nodes.values():
        node.policy = replace(node.policy, shared_digest="edited")
    for name in world.nodes:
        world.restart_daemon(name)
    world.run_until(serving(world))


def test_what_may_pass_is_tried_again_as_slowly_after_a_restart() -> None:
    world = World(transient_budget=0)
    world.on_serve = lambda node, _proc, phase: (
        world.signal(node.name, "nccl_timeout") if phase is Phase.LOADING_WEIGHTS else None
    )
    world.run_until(reached(world, Phase.ESCALATED))
    before = world.generation
    world.restart_daemon("spark-a")
    world.run_for(HOUR_S - 60)
    assert (world.phase, world.generation) == (Phase.ESCALATED, before)
    world.on_serve = None
    world.run_until(serving(world))


def test_three_unclean_boots_are_three_whatever_restarts() -> None:
    world = World()
    unclean = {"unclean_generation": 7, "seen": Stamp(3, 7)}
    world.restart_daemon("spark-a", **unclean, kept=Kept(unclean=2, forgiven=6, generation=7))
    world.run_until(reached(world, Phase.ESCALATED))
    kept = world.remembered(world.head).kept

    world.restart_daemon("spark-a", kept=replace(kept, needs="", config=""), **unclean)  # another boot
    world.run_for(HOUR_S)

    assert (world.phase, world.generation) == (Phase.ESCALATED, 7)
    ask(world, ev.Verb.START)
    world.run_until(serving(world))


def test_what_needed_a_reboot_goes_on_after_it() -> None:
    world = World()
    world.run_until(serving(world))
    stop = world._do_StopUnit

    def survives(node: Sim, command: co.StopUnit) -> None:
        if node.name == "spark-b":
            world.later(node, 0.3, ev.UnitUnkillable(command.unit, command.generation, (7,)))
        else:
            stop(node, command)

    world._do_StopUnit = survives
    world.kill("spark-a", SERVE)
    world.run_until(reached(world, Phase.ESCALATED))
    world.run_for(HOUR_S)
    assert world.phase is Phase.ESCALATED
    assert world.head.state.coordinator.needs == "reboot spark-b; it goes on by itself then"

    world._do_StopUnit = stop
    world.restart_daemon("spark-b")
    world.run_until(serving(world))


# -- waits ---------------------------------------------------------------------------------------


def waiting_in_the_next_daemon() -> World:
    """Return a cluster that waits for minutes after a failure, and whose head was started anew since."""
    world = World(backoff_base_s=300.0)
    world.run_until(serving(world))
    world.kill("spark-a", SERVE)
    world.run_until(reached(world, Phase.BACKING_OFF))
    world.restart_daemon("spark-a")
    return world


def test_the_wait_after_a_failure_goes_on_in_the_next_daemon() -> None:
    world = waiting_in_the_next_daemon()
    world.run_for(200)
    assert world.generation == 1
    assert waits_for(world) == ["the wait after the last failure (sparkctl start ends it)"]
    took_s = world.run_until(serving(world))
    assert 90 < took_s < 300
    assert world.head.state.coordinator.streak == 1


def test_a_person_ends_the_wait() -> None:
    world = waiting_in_the_next_daemon()
    world.run_for(10)
    ask(world, ev.Verb.START)
    world.run_for(20)
    assert world.generation == 2


def test_a_canary_that_cannot_be_sent_is_tried_again_after_a_pause() -> None:
    world = World()
    sent: list[float] = []

    def broken(node: Sim, _command: co.SendCanary) -> None:
        sent.append(world.now)
        world.later(node, 0.001, ev.CommandFailed("SendCanary", "OSError: x"))

    plain, world._do_SendCanary = world._do_SendCanary, broken
    world.run_until(reached(world, Phase.VERIFYING))
    world.run_for(20)
    assert 1 < len(sent) <= 21
    assert "OSError: x" in waits_for(world)[0]
    world._do_SendCanary = plain
    world.run_until(serving(world))


# -- pauses and stops ----------------------------------------------------------------------------


def paused_in(phase: Phase, *, hung: bool = False) -> Systemd:
    """Return a cluster whose head was asked to pause in *phase*, and started anew."""
    world = Systemd()
    world.hung = hung
    world.run_until(reached(world, phase))
    ask(world, ev.Verb.PAUSE)
    world.restart_daemon("spark-a")
    world.run_for(10)
    assert world.phase is Phase.PAUSED
    return world


def test_a_resumed_engine_is_verified_before_it_serves() -> None:
    world = paused_in(Phase.VERIFYING, hung=True)
    ask(world, ev.Verb.RESUME)
    world.run_for(5)
    assert world.phase is Phase.VERIFYING
    assert world.records(Verified) == []
    world.hung = False
    world.run_until(serving(world))
    assert (world.generation, world.stops) == (1, [])


def test_a_resumed_load_goes_on() -> None:
    world = paused_in(Phase.LOADING_WEIGHTS)
    ask(world, ev.Verb.RESUME)
    world.run_until(serving(world))
    assert (world.generation, world.stops) == (1, [])


def test_a_pause_of_an_idle_cluster_stops_nothing_and_ends() -> None:
    world = World(autostart=False)
    world.run_for(20)
    ask(world, ev.Verb.PAUSE)
    world.run_for(20)
    assert world.phase is Phase.PAUSED
    ask(world, ev.Verb.RESUME)
    world.run_for(20)
    assert world.phase is Phase.IDLE
    ask(world, ev.Verb.START)
    world.run_until(serving(world))


def test_a_stop_by_hand_in_a_relaunch_closes_the_incident() -> None:
    world = World()
    world.run_until(serving(world))
    world.kill("spark-a", SERVE)
    world.run_until(lambda: world.phase is Phase.LOADING_WEIGHTS and world.generation == 2)
    world.tell(world.head, ev.UnitStoppedByHand(SERVE, 2))
    world.kill("spark-a", SERVE, code=None, signal=15)
    world.run_for(30)
    lead = world.head.state.coordinator
    assert (world.phase, lead.incident, lead.waiting) == (Phase.PAUSED, None, ())


def test_a_stop_that_not_every_node_has_answered_says_so() -> None:
    world = Systemd()
    world.run_until(serving(world))
    world.set_broker(up=False)
    world.run_for(30)
    ask(world, ev.Verb.STOP)
    world.run_until(reached(world, Phase.STOPPED))
    world.run_for(1)
    moved = [r for r in world.records(PhaseChanged) if r.after is Phase.STOPPED]
    assert moved[-1].reason == "stopped, but not known of spark-b"
    assert waits_for(world) == [
        "sparkctl start",
        "spark-b: what runs there ends as soon as it is heard",
    ]
    world.set_broker(up=True)
    world.run_for(30)
    assert waits_for(world) == ["sparkctl start"]
    assert not any(proc.alive for proc in world.nodes["spark-b"].procs.values())


def test_a_start_after_a_stop_and_a_reboot_tries_the_asked_settings() -> None:
    world = World()
    world.run_until(serving(world))
    world.restart_daemon("spark-a", settings=LOWER, asked=Settings(), kept=Kept(proven=LOWER))
    world.run_until(serving(world))
    ask(world, ev.Verb.STOP)
    world.run_until(reached(world, Phase.STOPPED))
    world.restart_daemon("spark-a", settings=LOWER, asked=Settings())
    world.run_for(5)
    assert waits_for(world) == ["sparkctl start (a person stopped it)"]
    ask(world, ev.Verb.START)
    world.run_until(serving(world))
    assert world.head.state.coordinator.settings == Settings()


# -- observing -----------------------------------------------------------------------------------


@pytest.mark.parametrize("autostart", [True, False])
@pytest.mark.parametrize("verb", [None, *ev.Verb])
def test_a_head_that_only_observes_orders_nothing(autostart, verb) -> None:
    world = Systemd()
    orders: list[co.PublishIntent] = []
    world._do_PublishIntent = lambda _node, command: orders.append(command)
    head = world.nodes["spark-a"]
    policy = replace(head.policy, observe_only=True, autostart=autostart)
    head.policy, head.state = policy, initial(policy, "spark-a#1", Remembered(), 0.0)
    world.run_for(20)
    if verb is not None:
        ask(world, verb)
    world.run_for(300)
    assert (orders, world.starts, world.stops) == ([], [], [])
    if verb is ev.Verb.SHUTDOWN:
        assert world.phase is Phase.STOPPED
    else:
        assert world.phase is Phase.PAUSED


# -- a pace that was learned ---------------------------------------------------------------------


def test_a_load_that_has_become_slower_is_given_time_after_one_failure() -> None:
    world = World(stall_s=180.0)
    world.run_until(serving(world))
    lead = world.head.state.coordinator
    fast = ((Phase.LOADING_WEIGHTS, 1.0),)
    world.head.state = replace(world.head.state, coordinator=replace(lead, silences=fast))
    plain = world._show

    def slow(node: Sim, proc: Proc, phase: Phase) -> None:
        if phase is Phase.LOADING_WEIGHTS:
            for shard in range(1, 5):
                seen = ev.PhaseSeen(proc.stamp.generation, phase, done=shard, total=4)
                world.later(node, 80.0 * (shard - 1) + 0.1, seen)
        elif phase in (Phase.RESOLVING_CONFIG, Phase.INIT_DISTRIBUTED):
            plain(node, proc, phase)
        else:
            world.at(320.0, lambda: plain(node, proc, phase) if proc.alive else None)

    world._show = slow
    world.kill("spark-a", SERVE)
    world.run_until(lambda: world.generation == 3, limit_s=2 * HOUR_S)
    world.run_until(serving(world), limit_s=2 * HOUR_S)
    assert world.generation == 3


def test_who_cannot_ask_does_not_blame_rays_head() -> None:
    world = World()
    world.run_until(reached(world, Phase.CAPTURING_GRAPHS))
    broken = ev.CommandFailed("ProbeMembership", "OSError: too many open files")
    plain, world._do_ProbeMembership = (
        world._do_ProbeMembership,
        lambda node, _command: world.later(node, 0.01, broken),
    )
    world.on_serve = lambda *_: None
    world.run_for(3 * world.head.policy.membership_silence_s)
    world._do_ProbeMembership = plain
    world.run_until(serving(world))
    assert world.generation == 1


def test_what_failed_for_memory_is_not_returned_to_by_the_next_daemon() -> None:
    world = World()
    world.on_serve = lambda node, _proc, phase: (
        world.signal(node.name, "cuda_oom") if phase is Phase.CAPTURING_GRAPHS else None
    )
    world.run_until(lambda: world.generation == 2)
    world.on_serve = None
    failed = world.head.state.coordinator.failed
    assert failed == (world.head.policy.settings,)

    world.restart_daemon("spark-a")
    assert world.head.state.coordinator.failed == failed
    world.run_until(serving(world))
    assert world.head.state.coordinator.settings not in failed

    world.tell(world.head, ev.OperatorAsked(ev.Verb.STOP))
    world.run_until(reached(world, Phase.STOPPED))
    world.tell(world.head, ev.OperatorAsked(ev.Verb.START))
    assert world.head.state.coordinator.failed == ()
