"""What must not be possible, each from a concrete scenario that once was."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sim.world import TOTAL_BYTES, World, make_policy, serving
from sparkd.core import events as ev
from sparkd.core.beginning import Remembered, initial
from sparkd.core.messages import UnitState, UnitStatus
from sparkd.core.publish import status_of
from sparkd.core.records import IncidentClosed, IncidentOpened, Remedied
from sparkd.core.step import step
from sparkd.signals.model import MemorySample
from sparkd.words import GIB, Phase, Stamp, UnitName

RAY, SERVE = UnitName.RAY, UnitName.SERVE
NCCL_LATE_S = 1560.0


def started(**policy) -> World:
    world = World(**policy)
    world.run_until(serving(world))
    return world


@pytest.mark.parametrize("retained", [True, False])
def test_a_stamp_from_an_old_message_does_not_end_what_serves(retained: bool) -> None:
    world = started()
    status = world.head.state.peer("spark-b").status
    old = replace(status, instance="spark-b#0", heard=(), seen=Stamp(1, 57), units=())

    world.tell(world.head, ev.StatusReceived(old, ev.Path.MQTT, retained))
    world.run_for(120)
    assert (world.phase, world.generation) == (Phase.SERVING, 57)  # the number is used up, the engine serves
    assert world.head.state.coordinator.generation == 1

    world.kill("spark-a", SERVE)
    world.run_until(serving(world))
    assert world.head.state.coordinator.generation == 58


def test_an_old_intent_at_a_worker_does_not_end_what_serves() -> None:
    world = started()
    intent = world.head.state.coordinator.intent
    old = replace(intent, stamp=Stamp(1, 57), coordinator="x", addressees=())

    world.tell(world.nodes["spark-b"], ev.IntentReceived(old, retained=True))
    world.run_for(120)

    assert world.phase is Phase.SERVING
    assert world.head.state.coordinator.generation == 1


def test_a_long_pause_of_a_healthy_engine_ends_nothing() -> None:
    world = started()
    world.tell(world.head, ev.OperatorAsked(ev.Verb.PAUSE))
    world.run_for(300)

    world.tell(world.head, ev.OperatorAsked(ev.Verb.RESUME))
    world.run_for(120)

    assert (world.phase, world.generation) == (Phase.SERVING, 1)


def test_a_daemon_that_never_started_anything_can_be_ended() -> None:
    world = World(autostart=False)
    world.run_for(10)

    world.tell(world.head, ev.OperatorAsked(ev.Verb.SHUTDOWN))
    world.run_until(lambda: not world.head.up, limit_s=60)


def slowly(world: World, spent_s: float):
    def stop(node, command) -> None:
        proc = node.procs.get(command.unit)

        def end() -> None:
            if proc:
                proc.alive = False
            world.tell(node, ev.UnitExited(command.unit, command.generation, None, 9))
            world.tell(node, ev.UnitEmptied(command.unit, command.generation))

        world.at(spent_s, end)

    return stop


def test_an_ordered_stop_takes_everything_down_however_slow_each_unit_is() -> None:
    world = started()
    world._do_StopUnit = slowly(world, 14.0)

    world.tell(world.head, ev.OperatorAsked(ev.Verb.STOP))
    world.run_until(lambda: world.phase is Phase.STOPPED)
    world.run_for(60)

    assert not any(p.alive for node in world.nodes.values() for p in node.procs.values())


def test_a_stop_with_an_unkillable_unit_ends_and_says_what_to_do() -> None:
    world = started()

    def stop(node, command) -> None:
        if command.unit is SERVE:
            world.later(node, 1.0, ev.UnitUnkillable(SERVE, command.generation, (4711,)))
        else:
            World._do_StopUnit(world, node, command)

    world._do_StopUnit = stop
    world.tell(world.head, ev.OperatorAsked(ev.Verb.STOP))
    world.run_until(lambda: world.phase is Phase.STOPPED)

    assert world.head.state.coordinator.needs.startswith("reboot spark-a")
    assert not any(p.alive for p in world.nodes["spark-b"].procs.values())


def test_a_stop_that_could_not_be_carried_out_is_ordered_again() -> None:
    world = started()
    failed = []

    def stop(node, command) -> None:
        if not failed:
            failed.append(command)
            world.later(node, 0.1, ev.CommandFailed("StopUnit", "OSError: too many open files"))
        else:
            World._do_StopUnit(world, node, command)

    world._do_StopUnit = stop
    world.kill("spark-a", SERVE)
    world.run_until(serving(world))

    assert [record.outcome for record in world.records(IncidentClosed)] == ["recovered"]


def test_a_good_answer_that_waits_is_read_before_a_deadline_is_judged() -> None:
    world = started()
    node, generation = world.head, world.generation
    good = node.state.coordinator.watch.membership
    now = world.now + node.policy.membership_silence_s + 0.1
    sample = ev.MemoryObserved(MemorySample(now, TOTAL_BYTES, TOTAL_BYTES))

    result = step(node.state, (sample, replace(good, generation=generation)), now, node.policy)

    assert result.state.coordinator.phase is Phase.SERVING


def test_evidence_read_after_the_failure_counts_however_much_was_read_before() -> None:
    world = started()
    for number in range(100):
        world.signal("spark-a", f"noise_{number}", fatal=False)
    world.run_for(900)

    world.kill("spark-a", SERVE, code=1, signal=None)
    world.signal("spark-a", "ray_oom_kill", fatal=False, used_bytes=114 * GIB, total_bytes=119.7 * GIB)
    world.run_until(lambda: bool(world.records(Remedied)))

    assert world.records(Remedied)[0].diagnosis.cause == "ray_oom_kill"


def test_a_start_that_fails_late_every_time_is_given_up_all_the_same() -> None:
    world = World()

    def late(node, proc, phase) -> None:
        if phase is Phase.LOADING_WEIGHTS:
            world.at(500.0, lambda: proc.alive and world.signal(node.name, "nccl_timeout"))
            proc.ready = False

    world.on_serve = late
    world._walk = lambda node, proc: world.at(1.0, lambda: world._show(node, proc, Phase.LOADING_WEIGHTS))
    world.run_until(lambda: world.phase is Phase.ESCALATED, limit_s=8 * 3600)

    assert world.generation <= 5


def test_an_api_that_answers_is_verified_although_its_line_was_never_read() -> None:
    world = World()
    shown = world._show

    def show(node, proc, phase) -> None:
        if phase is Phase.STARTING_API:
            proc.ready = True
        elif proc.alive:
            shown(node, proc, phase)

    world._show = show
    world.run_until(serving(world), limit_s=120)


def test_a_full_queue_is_no_failure_while_tokens_flow() -> None:
    """Canaries wait behind 300 requests and miss their deadline; the engine works."""
    world = started()
    generation, tokens = world.generation, [0.0]
    world.hung = True

    def observe() -> None:
        quiet = world.now % 200 < 20
        tokens[0] += 0 if quiet else 5
        seen = ev.EngineObserved(generation, True, True, running=64, waiting=300, tokens_total=tokens[0])
        world.tell(world.head, seen)
        world.at(1.0, observe)

    world._do_ProbeEngine = lambda node, command: None
    observe()
    world.run_for(1500)

    assert (world.phase, world.generation) == (Phase.SERVING, 1)


def test_a_failing_publish_does_not_multiply_canaries() -> None:
    world = started()
    world.hung, sent = True, []
    plain = World._do_SendCanary

    def canary(node, command) -> None:
        sent.append(world.now)
        plain(world, node, command)

    def again() -> None:
        world.tell(world.head, ev.CommandFailed("PublishReport", "x"))
        world.at(5.0, again)

    world._do_SendCanary = canary
    again()
    world.run_until(lambda: world.phase is Phase.FAILING)

    assert len(sent) == 1


def test_a_sweep_that_fails_is_tried_again_in_peace() -> None:
    world, sweeps = World(), []

    def sweep(node, _command) -> None:
        sweeps.append(world.now)
        world.later(node, 0.0, ev.CommandFailed("SweepLeftovers", "OSError"))

    world._do_SweepLeftovers = sweep
    world.run_for(20.0)

    assert len(sweeps) <= 2 * 11


def test_generations_of_leftovers_are_never_named_again() -> None:
    policy = make_policy("spark-a")
    state = initial(policy, "i", Remembered(), 0.0)

    result = step(state, (ev.LeftoversSwept((7,)),), 1.0, policy)

    assert result.state.seen.generation == 7


def test_an_end_that_is_told_too_late_brings_no_unit_back() -> None:
    world = started()
    world.kill("spark-a", SERVE)
    world.run_for(0.6)

    world.tell(world.head, ev.UnitUnkillable(SERVE, 1, (1,)))
    world.run_until(serving(world))


def test_a_raylet_that_never_came_up_is_no_evidence_of_its_death() -> None:
    world = World()
    world.run_until(lambda: world.phase is Phase.FORMING)
    world.run_for(0.3)
    world.tell(world.head, ev.UnitSurveyed(RAY, 1, ()))

    assert world.phase is Phase.FORMING
    assert not world.head.state.coordinator.recent


def test_nothing_is_called_stopped_before_leftovers_were_looked_for() -> None:
    world = World()
    swept = world._do_SweepLeftovers
    world._do_SweepLeftovers = lambda node, command: world.at(3.0, lambda: swept(node, command))
    world.run_for(0.2)

    for node in world.nodes.values():
        world.tell(node, ev.OperatorAsked(ev.Verb.SHUTDOWN))
    world.run_for(2.0)
    assert all(node.up for node in world.nodes.values())

    world.run_until(lambda: not any(node.up for node in world.nodes.values()), limit_s=60)


def test_what_processes_say_of_our_own_fence_decides_nothing() -> None:
    world = started()
    world.kill("spark-a", SERVE, code=1, signal=None)
    world.run_for(0.05)
    world.signal("spark-b", "ray_node_died")
    world.run_until(lambda: bool(world.records(Remedied)))

    assert world.records(Remedied)[0].diagnosis.cause == "unknown"


def test_requests_that_were_counted_a_while_ago_are_no_hang_while_the_counters_are_unknown() -> None:
    world = started(no_progress_s=68.0, canary_idle_s=60.0)
    counted = [3]

    def counters(node, command) -> None:
        running = counted[0]
        seen = ev.EngineObserved(command.generation, running is not None, True, running, 0, 7.0)
        world.later(node, 0.02, seen)

    world._do_ProbeEngine = counters
    world.run_for(30)
    counted[0] = None
    world.run_for(600)

    assert (world.phase, world.generation) == (Phase.SERVING, 1)


@pytest.mark.parametrize("said", ["unkillable", "leaking"])
def test_what_a_node_said_before_its_reboot_is_waited_out(said: str) -> None:
    """It is being rebooted as told; the head's daemon starts anew and reads its retained status."""
    unit = UnitStatus(RAY, 3, UnitState.UNKILLABLE)
    world = World()
    last = status_of(world.nodes["spark-b"].state, "shared", "digest-spark-b", "")
    last = replace(last, **({"units": (unit,)} if said == "unkillable" else {"leaking": True}))
    world.nodes["spark-b"].up = False
    world.retained["status", "spark-b"] = replace(last, instance="spark-b#0", swept=True, ready=True)
    world.restart_daemon("spark-a")
    world.run_for(15.0)
    assert world.phase is Phase.WAITING

    world.restart_daemon("spark-b")
    world.run_until(serving(world))
    assert not world.records(IncidentOpened)


def test_late_words_of_a_daemon_that_died_start_nothing_with_it() -> None:
    """The head's broker stood still: what came through at last was said before that daemon's end."""
    world = World()
    world.model_ready["spark-a"] = False
    world.run_for(12.0)
    worker = world.nodes["spark-b"]
    status = status_of(worker.state, "shared", "digest-spark-b", "")
    worker.up = False
    world.run_for(30.0)

    world.model_ready["spark-a"] = True
    late = ev.StatusReceived(status, ev.Path.MQTT), ev.WillReceived("spark-b", worker.state.instance)
    node = world.head
    node.state = step(node.state, late, world.now, node.policy).state
    world._arm(node)
    world.run_for(8.0)
    assert world.phase is Phase.WAITING
    assert "its session with the broker broke" in world.head.state.coordinator.waiting[0]

    world.restart_daemon("spark-b")
    world.run_until(serving(world))
    assert world.generation == 1
