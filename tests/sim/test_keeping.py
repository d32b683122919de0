"""What outlasts a failure, a restart and a boot: budgets, known good settings, paces, leaks, unclean ends."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sim.world import GIB, TOTAL_BYTES, Proc, Sim, World, serving
from sparkd.core import events as ev
from sparkd.core.beginning import Remembered, initial
from sparkd.core.context import context_to_keep
from sparkd.core.messages import UnitState
from sparkd.core.policy import Floors
from sparkd.core.records import (
    IncidentClosed,
    IncidentOpened,
    Judged,
    Kept,
    KeptChanged,
    MemberRested,
    PhaseChanged,
    Remedied,
    SettingsAdopted,
)
from sparkd.core.remedy import NCCL_STEP, Action
from sparkd.signals.model import MemorySample
from sparkd.words import CudaGraph, Phase, Settings, UnitName

SERVE = UnitName.SERVE
HOUR_S = 3600.0
# For hours in which nothing is to happen.
CALM = {"telemetry_every_s": 60.0, "status_every_s": 60.0, "peer_silence_s": 200.0, "model_check_s": 60.0}


def started(**policy: object) -> World:
    world = World(**policy)
    world.run_until(serving(world))
    return world


def in_phase(world: World, phase: Phase):
    return lambda: world.phase is phase


def lose(world: World, cause: str = "nccl_timeout", **quantities: float) -> None:
    """The running generation fails for *cause*."""
    world.signal("spark-b", cause, **quantities)
    world.run_until(lambda: world.phase is not Phase.SERVING)


def ask(world: World, verb: ev.Verb) -> None:
    world.tell(world.head, ev.OperatorAsked(verb))


def failing_at_load(world: World, cause: str = "nccl_timeout") -> None:
    """Every start says *cause* while it loads, and its API server ends."""

    def fail(node: Sim, _proc: Proc, phase: Phase) -> None:
        if phase is Phase.LOADING_WEIGHTS:
            world.signal(node.name, cause)
            world.kill(node.name, SERVE, code=1, signal=None)

    world.on_serve = fail


# -- budgets and waits ---------------------------------------------------------------------------


def test_the_budget_of_a_cause_outlives_the_daemon() -> None:
    world = started(cooldown_s=1e6)
    for _ in range(3):
        lose(world)
        world.run_until(serving(world))
    kept = world.head.state.coordinator.kept.spent
    assert sorted(kept) == [NCCL_STEP, *("nccl_timeout",) * 3]

    world.restart_daemon("spark-a")
    world.run_until(serving(world))
    lose(world)

    world.run_until(in_phase(world, Phase.ESCALATED))


def test_the_operator_gives_a_new_budget_that_the_disk_knows_of() -> None:
    world = started()
    lose(world)
    world.run_until(serving(world))
    assert world.head.state.coordinator.kept.spent

    ask(world, ev.Verb.RESUME)

    assert world.records(KeptChanged)[-1].kept.spent == ()


def test_failures_soon_after_a_recovery_wait_longer_and_longer() -> None:
    world = started(backoff_base_s=10.0, jitter_share=0.0, transient_budget=10)
    for _ in range(3):
        lose(world)
        world.run_until(serving(world))
    assert [r.backoff_s for r in world.records(Remedied)] == [10.0, 20.0, 40.0]

    world.run_for(world.head.policy.cooldown_s + 1)
    lose(world)
    world.run_until(serving(world))

    assert world.records(Remedied)[-1].backoff_s == 10.0


def test_the_wait_is_spread_by_the_generation_and_the_same_every_time() -> None:
    def waits() -> list[float]:
        world = started(backoff_base_s=10.0, transient_budget=10, cooldown_s=1.0)
        for _ in range(4):
            lose(world)
            world.run_until(serving(world))
            world.run_for(5)
        return [r.backoff_s for r in world.records(Remedied)]

    first = waits()
    assert first == waits()
    assert len(set(first)) == 4
    assert all(10.0 <= wait_s <= 11.0 for wait_s in first)


# -- escalation that time may end ----------------------------------------------------------------


def test_what_may_pass_is_tried_again_every_hour_once() -> None:
    world = World(transient_budget=0, **CALM)
    failing_at_load(world)
    world.run_until(in_phase(world, Phase.ESCALATED))
    first = world.generation

    world.run_for(HOUR_S + 60)
    assert (world.generation, world.phase) == (first + 1, Phase.ESCALATED)

    world.on_serve = None
    world.run_for(HOUR_S + 60)
    assert (world.generation, world.phase) == (first + 2, Phase.SERVING)
    assert [r.outcome for r in world.records(IncidentClosed)] == ["escalated", "escalated"]


def test_a_slow_retry_that_lasts_is_a_recovery_with_a_new_budget_to_come() -> None:
    world = World(transient_budget=1, budget_window_s=60.0)
    failing_at_load(world)
    world.run_until(in_phase(world, Phase.ESCALATED), limit_s=2000)
    world.on_serve = None
    world.run_until(serving(world), limit_s=2 * HOUR_S)
    assert world.head.state.coordinator.retrying

    world.run_for(world.head.policy.cooldown_s + 1)
    lose(world)
    world.run_until(serving(world))

    assert not world.head.state.coordinator.retrying


@pytest.mark.parametrize("cause", ["weights_missing_or_corrupt", "cuda_oom"])
def test_what_time_does_not_end_waits_for_a_person(cause: str) -> None:
    world = World(settings=Settings(gpu_memory_utilization=0.5), **CALM)
    failing_at_load(world, cause)
    world.run_until(in_phase(world, Phase.ESCALATED), limit_s=2 * HOUR_S)
    generation = world.generation

    world.run_for(5 * HOUR_S)

    assert (world.generation, world.phase) == (generation, Phase.ESCALATED)


def test_the_slow_retry_can_be_switched_off() -> None:
    world = World(transient_budget=0, escalated_retry_s=0.0, **CALM)
    failing_at_load(world)
    world.run_until(in_phase(world, Phase.ESCALATED))
    generation = world.generation
    world.run_for(5 * HOUR_S)
    assert world.generation == generation


# -- known good settings -------------------------------------------------------------------------

LOWER = replace(Settings(), gpu_memory_utilization=0.8)


def degraded(**policy: object) -> World:
    """A cluster that serves with settings that are lower than asked and proven."""
    world = started()
    kept = Kept(proven=LOWER, context="")
    world.restart_daemon("spark-a", settings=LOWER, asked=Settings(), kept=kept)
    world.nodes["spark-a"].policy = replace(world.head.policy, **policy)
    world.run_until(serving(world))
    assert world.head.state.coordinator.settings == LOWER
    return world


def test_settings_are_proven_when_they_have_served_for_the_cooldown() -> None:
    world = started()
    world.run_for(world.head.policy.cooldown_s - 60)
    assert world.head.state.coordinator.kept.proven is None
    world.run_for(120)
    assert world.records(KeptChanged)[-1].kept.proven == Settings()


def test_the_asked_settings_are_tried_once_at_the_operators_own_restart() -> None:
    world = degraded()
    ask(world, ev.Verb.STOP)
    world.run_until(in_phase(world, Phase.STOPPED))
    ask(world, ev.Verb.START)
    world.run_until(serving(world))

    assert world.head.state.coordinator.settings == Settings()
    assert "tried once" in world.records(SettingsAdopted)[-1].reason


def test_a_person_gets_out_of_settings_that_went_astray() -> None:
    world = World(settings=Settings(gpu_memory_utilization=0.9))
    world.run_until(serving(world))
    astray = replace(Settings(), gpu_memory_utilization=0.5)
    world.restart_daemon("spark-a", settings=astray, asked=Settings())
    failing_at_load(world, "weights_missing_or_corrupt")
    world.run_until(in_phase(world, Phase.ESCALATED), limit_s=2 * HOUR_S)

    world.on_serve = None
    ask(world, ev.Verb.START)
    world.run_until(serving(world))

    assert world.head.state.coordinator.settings == Settings()


def test_a_trial_that_fails_for_memory_goes_straight_back_to_what_worked() -> None:
    world = degraded()
    ask(world, ev.Verb.STOP)
    world.run_until(in_phase(world, Phase.STOPPED))

    def too_much(node, proc, phase) -> None:
        if phase is Phase.CAPTURING_GRAPHS and proc.settings.gpu_memory_utilization > 0.8:
            world.signal(node.name, "cuda_oom", requested_bytes=2 * GIB, free_bytes=GIB)

    world.on_serve = too_much
    ask(world, ev.Verb.START)
    world.run_until(serving(world))

    remedied = world.records(Remedied)[-1]
    assert (remedied.settings_before, remedied.settings_after) == (Settings(), LOWER)
    assert world.head.state.coordinator.settings == LOWER
    assert not world.head.state.coordinator.trial


def test_climbing_back_by_itself_is_an_option_for_quiet_moments() -> None:
    world = degraded(climb_after_s=HOUR_S, climb_idle_s=600.0)
    before = world.generation
    world.run_for(HOUR_S - 60)
    assert world.generation == before

    world.run_for(600)

    assert world.generation == before + 1
    assert world.head.state.coordinator.settings == Settings()
    assert world.phase is Phase.SERVING
    assert not world.records(IncidentOpened)


def test_nobody_climbs_back_while_somebody_asks() -> None:
    world = degraded(climb_after_s=HOUR_S, climb_idle_s=600.0)
    before, tokens = world.generation, [0.0]

    def busy(node, command) -> None:
        tokens[0] += 50.0
        seen = ev.EngineObserved(command.generation, True, True, 1, 0, tokens[0])
        world.later(node, 0.02, seen)

    world._do_ProbeEngine = busy
    world.run_for(3 * HOUR_S)

    assert (world.generation, world.phase) == (before, Phase.SERVING)


# -- paces ---------------------------------------------------------------------------------------


def loading(world: World, every_s: float, shards: int = 20) -> None:
    """Shards of a load appear at this pace; the rest of the start waits for them."""

    def show(node, proc, phase) -> None:
        if phase is Phase.LOADING_WEIGHTS:
            for number in range(1, shards + 1):
                seen = ev.PhaseSeen(proc.stamp.generation, phase, number, shards)
                world.at(number * every_s, lambda seen=seen: world.tell(node, seen))

    world.on_serve = show


def test_a_load_is_judged_by_this_models_own_pace() -> None:
    world = World(stall_s=180.0)
    loading(world, 1.0)
    world.run_until(serving(world))
    assert 0.9 < dict(world.head.state.coordinator.silences)[Phase.LOADING_WEIGHTS] < 11
    lose(world)

    def stuck(node, proc, phase) -> None:
        if phase is Phase.LOADING_WEIGHTS:
            world.tell(node, ev.PhaseSeen(proc.stamp.generation, phase, 8, 20))
            world.hung_since = world.now
            proc.alive = False  # it says nothing any more

    world.on_serve = stuck
    world.run_until(lambda: world.phase is Phase.LOADING_WEIGHTS)
    took_s = world.run_until(in_phase(world, Phase.FAILING))

    assert 59 <= took_s <= 62


def test_a_pace_is_kept_over_a_restart_and_void_elsewhere() -> None:
    world = World()
    loading(world, 1.0)
    world.run_until(serving(world))
    silences = world.head.state.coordinator.silences
    assert silences

    world.restart_daemon("spark-a")
    assert world.head.state.coordinator.silences == silences

    world.nodes["spark-a"].policy = replace(world.head.policy, context="another driver")
    world.restart_daemon("spark-a")
    assert world.head.state.coordinator.silences == ()


# -- unclean ends --------------------------------------------------------------------------------


def rebooted(world: World, name: str) -> None:
    """The node comes back after an unclean end of the running generation."""
    generation = world.generation
    world.nodes[name].procs.clear()
    world.restart_daemon(name, unclean_generation=generation)


@pytest.mark.parametrize("name", ["spark-a", "spark-b"])
def test_a_boot_after_an_unclean_end_counts_against_the_settings(name: str) -> None:
    world = started()
    rebooted(world, name)
    world.run_until(lambda: world.phase is Phase.SERVING and world.generation > 1, limit_s=1200)

    lowered = [r for r in world.records(Remedied) if r.diagnosis.cause == "unknown"]
    assert len(lowered) == 1
    assert name in lowered[0].diagnosis.explanation
    assert lowered[0].settings_after != lowered[0].settings_before
    assert lowered[0].action == Action.RELAUNCH
    assert world.head.state.coordinator.kept.forgiven == 1


def test_settings_at_the_floor_that_took_the_node_down_are_not_launched_again() -> None:
    floors = Floors(gpu_memory_utilization=0.9, max_num_batched_tokens=2048, eager_allowed=False)
    world = started(floors=floors, settings=Settings(cudagraph=CudaGraph.REDUCED))
    rebooted(world, "spark-a")
    world.run_for(60)

    assert world.phase is Phase.ESCALATED
    assert not world.nodes["spark-a"].procs
    assert "every memory setting is at its floor" in world.records(PhaseChanged)[-1].reason
    assert world.head.state.coordinator.needs.startswith("Lower the floors")


def test_the_same_unclean_end_is_counted_once() -> None:
    world = started()
    rebooted(world, "spark-a")
    world.run_until(lambda: world.phase is Phase.SERVING and world.generation > 1, limit_s=1200)
    settings = world.head.state.coordinator.settings

    world.restart_daemon("spark-a", unclean_generation=1)
    world.run_until(lambda: world.phase is Phase.SERVING and world.generation > 2, limit_s=1200)

    assert world.head.state.coordinator.settings == settings


def test_three_unclean_ends_in_a_row_and_nothing_is_started_any_more() -> None:
    world = started(**CALM)
    for _ in range(2):
        before = world.generation
        rebooted(world, "spark-a")
        world.run_until(lambda before=before: world.phase is Phase.SERVING and world.generation > before)
    rebooted(world, "spark-a")
    world.run_until(in_phase(world, Phase.ESCALATED))
    generation = world.generation
    world.run_for(5 * HOUR_S)
    assert (world.phase, world.generation) == (Phase.ESCALATED, generation)
    assert "3 times in a row" in world.head.state.coordinator.needs

    ask(world, ev.Verb.START)
    world.run_until(serving(world))


# -- leaks ---------------------------------------------------------------------------------------


def test_memory_that_is_lost_with_every_start_ends_the_starting() -> None:
    world = started(transient_budget=20, cooldown_s=1.0, memory_tolerance_bytes=GIB)
    world.nodes["spark-b"].available_bytes = TOTAL_BYTES - 5 * GIB
    for _ in range(6):
        world.nodes["spark-b"].available_bytes -= GIB // 2
        lose(world)
        world.run_until(lambda: world.phase in {Phase.SERVING, Phase.ESCALATED})
        if world.phase is Phase.ESCALATED:
            break
        world.run_for(5)

    assert world.phase is Phase.ESCALATED
    assert world.head.state.coordinator.needs == "reboot spark-b; it goes on by itself then"
    assert world.nodes["spark-b"].state.member.leaking


def test_memory_that_only_wavers_is_no_leak() -> None:
    world = started(transient_budget=20, cooldown_s=1.0)
    for cycle in range(8):
        world.nodes["spark-b"].available_bytes -= (GIB // 2) * (1 if cycle % 3 else -2)
        lose(world)
        world.run_until(serving(world))
        world.run_for(5)
    assert not world.nodes["spark-b"].state.member.leaking


# -- people at work ------------------------------------------------------------------------------


def test_a_unit_that_a_person_stops_is_a_pause_and_no_incident() -> None:
    world = started()
    world.tell(world.head, ev.UnitStoppedByHand(SERVE, 1))
    world.kill("spark-a", SERVE, code=0, signal=None)
    world.run_for(600)
    assert (world.phase, world.generation) == (Phase.PAUSED, 1)
    assert not world.records(IncidentOpened)

    ask(world, ev.Verb.RESUME)
    world.run_until(serving(world))
    assert world.generation == 2


def test_a_unit_that_a_person_stops_on_a_worker_is_a_pause_too() -> None:
    world = started()
    worker = world.nodes["spark-b"]
    world.tell(worker, ev.UnitStoppedByHand(UnitName.RAY, 1))
    world.kill("spark-b", UnitName.RAY, code=0, signal=None)
    world.run_for(5)
    assert world.phase is Phase.PAUSED
    assert not world.records(IncidentOpened)


def test_what_ends_with_a_unit_that_a_person_stops_on_a_worker_is_his_doing_too() -> None:
    """The head's own serve dies of it before the worker's word has come."""
    world = started()
    worker = world.nodes["spark-b"]
    world.kill("spark-a", SERVE, code=1, signal=None)
    assert world.phase is Phase.FAILING
    world.tell(worker, ev.UnitStoppedByHand(UnitName.RAY, 1))
    world.kill("spark-b", UnitName.RAY, code=0, signal=None)
    world.run_for(600)
    assert (world.phase, world.generation) == (Phase.PAUSED, 1)
    assert [closed.outcome for closed in world.records(IncidentClosed)] == ["stopped"]

    ask(world, ev.Verb.RESUME)
    world.run_until(serving(world))
    assert world.generation == 2


def test_a_start_that_a_person_breaks_off_rests_fenced() -> None:
    world = World()
    world.run_until(in_phase(world, Phase.LOADING_WEIGHTS))
    world.tell(world.head, ev.UnitStoppedByHand(SERVE, 1))
    world.kill("spark-a", SERVE, code=0, signal=None)
    world.run_until(in_phase(world, Phase.PAUSED))
    world.run_for(60)
    assert all(
        unit.state is UnitState.GONE for node in world.nodes.values() for unit in node.state.member.units
    )
    world.run_for(600)
    assert world.generation == 1


def test_observe_only_starts_and_ends_nothing() -> None:
    world = World(observe_only=True)
    world.run_for(600)
    ask(world, ev.Verb.START)
    ask(world, ev.Verb.RESUME)
    world.run_for(600)
    assert world.phase is Phase.PAUSED
    assert not any(node.procs or node.state.member.swept for node in world.nodes.values())


def test_a_worker_that_only_observes_takes_no_orders() -> None:
    world = World()
    world.nodes["spark-b"].policy = replace(world.nodes["spark-b"].policy, observe_only=True)
    world.run_for(600)
    assert world.phase is Phase.WAITING
    assert not world.nodes["spark-b"].procs


def test_a_stop_and_a_pause_are_kept_by_the_head() -> None:
    world = started()
    ask(world, ev.Verb.STOP)
    world.run_until(in_phase(world, Phase.STOPPED))
    world.restart_daemon("spark-a")
    world.run_for(300)
    assert world.phase is Phase.STOPPED or not world.head.procs

    ask(world, ev.Verb.START)
    world.run_until(serving(world))
    ask(world, ev.Verb.PAUSE)
    world.restart_daemon("spark-a")
    generation = world.generation
    world.run_for(300)
    assert (world.phase, world.generation) == (Phase.PAUSED, generation)


def test_a_unit_stopped_by_hand_during_a_pause_is_started_anew_by_the_resume() -> None:
    world = started()
    ask(world, ev.Verb.PAUSE)
    world.tell(world.nodes["spark-b"], ev.UnitStoppedByHand(UnitName.RAY, 1))
    world.kill("spark-b", UnitName.RAY, code=0, signal=None)
    world.run_for(30)

    ask(world, ev.Verb.RESUME)
    world.run_until(serving(world))

    assert world.generation == 2


def test_one_request_to_start_is_one_try_where_nothing_may_start() -> None:
    world = World()

    def sweep(node, _command) -> None:
        survivors = (4711,) if node.name == "spark-b" else ()
        world.later(node, 0.1, ev.LeftoversSwept((1,), survivors))

    world._do_SweepLeftovers = sweep
    world.run_until(in_phase(world, Phase.ESCALATED))
    before = len(world.records(PhaseChanged))
    ask(world, ev.Verb.START)
    world.run_for(10)
    moves = [r.after for r in world.records(PhaseChanged)[before:]]
    assert moves.count(Phase.ESCALATED) == 1, moves


def test_a_stop_starts_nothing_on_a_worker_that_came_back_meanwhile() -> None:
    world = started()
    ask(world, ev.Verb.STOP)
    world.nodes["spark-b"].procs.clear()
    world.restart_daemon("spark-b")
    world.run_until(in_phase(world, Phase.STOPPED))
    assert not world.nodes["spark-b"].procs


def test_a_head_that_gives_up_at_once_still_ends_what_an_earlier_one_left() -> None:
    world = started(unclean_boots_max=1)
    world.nodes["spark-a"].procs.clear()
    world.restart_daemon("spark-a", unclean_generation=1)
    world.run_until(in_phase(world, Phase.ESCALATED))
    world.run_for(60)
    assert not any(p.alive for node in world.nodes.values() for p in node.procs.values())


def test_one_program_that_takes_memory_is_no_leak() -> None:
    world = started(transient_budget=20, cooldown_s=1.0)
    for amount in (60, 0.3, 0.3, 0.3, 0.3):
        world.nodes["spark-b"].available_bytes -= int(amount * GIB)
        lose(world)
        world.run_until(serving(world))
        world.run_for(5)
    assert not world.nodes["spark-b"].state.member.leaking


# -- what a strict reading found -----------------------------------------------------------------


def test_a_pause_survives_an_orderly_restart_of_the_daemon() -> None:
    world = started()
    ask(world, ev.Verb.PAUSE)
    ask(world, ev.Verb.SHUTDOWN)
    world.run_until(lambda: not world.head.up)

    world.restart_daemon("spark-a")
    world.run_for(120)

    assert world.phase is Phase.PAUSED


def test_nobody_climbs_back_while_nobody_knows_whether_it_is_quiet() -> None:
    world = degraded(climb_after_s=600.0, climb_idle_s=60.0)
    before = world.generation

    def dumb(node, command) -> None:
        world.later(node, 0.02, ev.EngineObserved(command.generation, True, True))

    world._do_ProbeEngine = dumb
    world.run_for(HOUR_S)

    assert (world.generation, world.phase) == (before, Phase.SERVING)


def test_a_climb_that_failed_is_not_tried_again_before_a_person_says_so() -> None:
    world = degraded(climb_after_s=1200.0, climb_idle_s=60.0)

    def too_much(node, proc, phase) -> None:
        if phase is Phase.CAPTURING_GRAPHS and proc.settings.gpu_memory_utilization > 0.8:
            world.signal(node.name, "cuda_oom", requested_bytes=2 * GIB, free_bytes=GIB)

    world.on_serve = too_much
    world.run_for(400)
    before = world.generation
    world.run_for(1400)
    assert (world.generation, world.head.state.coordinator.settings) == (before + 2, LOWER)

    world.run_for(3 * HOUR_S)  # long past the cooldown, which ends other accounts
    world.restart_daemon("spark-a", settings=LOWER, asked=Settings())
    world.run_until(serving(world))
    world.run_for(HOUR_S)
    assert world.generation == before + 3


def test_a_trial_is_not_forgotten_for_a_failure_of_another_kind() -> None:
    world = degraded()
    ask(world, ev.Verb.STOP)
    world.run_until(in_phase(world, Phase.STOPPED))
    first = world.generation + 1

    def trouble(node, proc, phase) -> None:
        if proc.settings.gpu_memory_utilization <= 0.8:
            return
        if phase is Phase.LOADING_WEIGHTS and proc.stamp.generation == first:
            world.signal(node.name, "nccl_timeout")
        elif phase is Phase.CAPTURING_GRAPHS:
            world.signal(node.name, "cuda_oom", requested_bytes=2 * GIB, free_bytes=GIB)

    world.on_serve = trouble
    ask(world, ev.Verb.START)
    world.run_until(serving(world))

    assert world.head.state.coordinator.settings == LOWER
    assert [r.diagnosis.cause for r in world.records(Remedied)][-2:] == ["nccl_timeout", "cuda_oom"]


def test_a_person_may_try_once_more_where_memory_leaks() -> None:
    world = started()
    member = world.nodes["spark-b"].state.member
    world.nodes["spark-b"].state = replace(
        world.nodes["spark-b"].state, member=replace(member, leaking=True, returned=(4 * GIB, 3 * GIB, GIB))
    )
    lose(world)
    world.run_until(in_phase(world, Phase.ESCALATED))

    ask(world, ev.Verb.START)
    world.run_until(serving(world))


def test_a_leak_is_known_again_after_a_restart_of_the_daemon() -> None:
    world = started()
    falling = tuple(int(gib * GIB) for gib in (40, 39, 38, 37))
    world.restart_daemon("spark-b", returned=falling)
    assert world.nodes["spark-b"].state.member.leaking


def test_what_ran_before_a_crash_of_the_daemon_is_noted_when_it_rests() -> None:
    world = started()
    world.restart_daemon("spark-b", unrested=True)
    world.run_until(lambda: world.phase is Phase.SERVING and world.generation == 2)
    assert any(isinstance(r, MemberRested) for r in world.nodes["spark-b"].records)


def test_the_guilty_nodes_memory_decides_not_the_heads() -> None:
    world = started()
    empty = MemorySample(world.now, GIB, TOTAL_BYTES)
    world.tell(world.nodes["spark-b"], ev.MemoryObserved(empty))
    world.run_for(10)
    world.kill("spark-b", UnitName.RAY)
    world.run_until(lambda: bool(world.records(Remedied)))
    case = world.records(Judged)[-1].case
    memories = {memory.node: memory.lowest_available_bytes for memory in case.facts.nodes}
    assert memories["spark-b"] == GIB
    assert memories["spark-a"] > 50 * GIB


def test_an_unknown_driver_is_not_another_driver() -> None:
    policy = replace(World().head.policy, context="engine/driver")
    kept = Kept(context="engine/driver", proven=LOWER)
    remembered = Remembered(settings=LOWER, asked=policy.settings, kept=kept)
    for context, learned in (("engine/?", True), ("engine/other", False), ("other/driver", False)):
        lead = initial(replace(policy, context=context), "i", remembered, 0.0).coordinator
        assert (lead.settings == LOWER) is learned
    assert context_to_keep("engine/driver", "engine/?") == "engine/driver"
    assert context_to_keep("engine/driver", "engine/new") == "engine/new"


def test_a_model_that_comes_back_starts_with_what_worked_for_it() -> None:
    """Model A learns; model B is served, its daemon restarted once; model A comes back."""
    world = started(context="model-a/driver")
    lose(world, "cuda_oom", requested_bytes=2 * GIB, free_bytes=GIB)
    world.run_until(serving(world))
    learned = world.head.state.coordinator.settings
    assert learned != Settings()
    for context, settings in (("model-b", Settings()), ("model-b", Settings()), ("model-a", learned)):
        for node in world.nodes.values():
            node.policy = replace(node.policy, context=f"{context}/driver")
        world.restart_daemon("spark-a")
        world.run_until(serving(world))
        assert world.head.state.coordinator.settings == settings


def test_a_cable_that_flaps_costs_one_memory_step_across_incidents_and_a_restart() -> None:
    world = started()
    seen = []
    for cause in ("nccl_timeout", "ib_roce_error", "nccl_timeout"):
        before = world.head.state.coordinator.settings
        lose(world, cause)
        world.run_until(serving(world))
        seen.append(world.head.state.coordinator.settings != before)
        world.outlives = True
        world.restart_daemon("spark-a")
        world.run_until(serving(world))
    assert seen == [False, True, False]


def test_who_only_observes_is_named_as_the_reason() -> None:
    world = World()
    world.nodes["spark-b"].policy = replace(world.nodes["spark-b"].policy, observe_only=True)
    world.run_for(30)
    assert any("only observes" in reason for reason in world.head.state.coordinator.waiting)
