"""Whole stories of the cluster, told to the real cores in virtual time."""

from __future__ import annotations

import pytest

from sim.world import TOTAL_BYTES, World, serving
from sparkd.core import events as ev
from sparkd.core.records import (
    IncidentClosed,
    MessageDropped,
    PhaseChanged,
    Remedied,
    SettingsAdopted,
    StampAdvanced,
    Verified,
)
from sparkd.signals.model import MemorySample
from sparkd.words import GIB, Backend, Phase, Settings, UnitName

RAY, SERVE = UnitName.RAY, UnitName.SERVE


def started(**policy) -> World:
    world = World(**policy)
    world.run_until(serving(world))
    return world


def in_phase(world: World, *phases: Phase):
    return lambda: world.phase in phases


def test_a_first_start_walks_through_the_phases_and_verifies() -> None:
    world = started()

    names = [record.after for record in world.records(PhaseChanged)]

    assert names.index(Phase.FENCING) < names.index(Phase.FORMING) < names.index(Phase.VERIFYING)
    assert names[-1] is Phase.SERVING
    assert [verified.generation for verified in world.records(Verified)] == [1]
    assert world.generation == 1
    assert world.nodes["spark-b"].procs.keys() == {RAY}


def test_the_mp_backend_starts_every_rank_at_once_without_ray() -> None:
    world = started(backend=Backend.MP)

    assert world.nodes["spark-b"].procs.keys() == {SERVE}
    assert world.head.procs.keys() == {SERVE}


def test_the_case_that_started_it_comes_right_with_one_relaunch() -> None:
    """113.78 of 119.70 GiB at graph capture: monitor raised, KV cache 49.1 -> 44.6 GiB, graphs kept."""
    world = World()

    def kill_at_capture(_node, proc, phase) -> None:
        if phase is Phase.CAPTURING_GRAPHS and proc.settings.ray_memory_threshold < 0.97:
            quantities = {"used_bytes": 113.78 * GIB, "total_bytes": 119.7 * GIB}
            world.signal(
                "spark-a", "ray_oom_kill", fatal=False, threshold_bytes=0.95 * 119.7 * GIB, **quantities
            )
            world.kill("spark-a", SERVE, code=1, signal=None)

    world.on_serve = kill_at_capture
    world.run_until(serving(world))

    (remedied,) = world.records(Remedied)
    assert remedied.diagnosis.cause == "ray_oom_kill"
    assert remedied.diagnosis.phase is Phase.CAPTURING_GRAPHS
    after = remedied.settings_after
    assert after.ray_memory_threshold == 0.98
    assert 43.0 < after.kv_cache_bytes / GIB < 49.0  # lower, and more than eager mode at 0.85 would keep
    assert after.cudagraph == remedied.settings_before.cudagraph
    (closed,) = world.records(IncidentClosed)
    assert (closed.outcome, closed.relaunches, closed.generation) == ("recovered", 1, 2)
    assert world.records(SettingsAdopted)


def test_both_nodes_are_fenced_at_once_and_the_decision_waits_for_the_evidence() -> None:
    world = started()
    generation = world.generation

    world.kill("spark-a", SERVE)
    assert world.phase is Phase.FAILING
    took = world.run_until(lambda: bool(world.records(Remedied)))

    assert took < 2.0
    for node in world.nodes.values():
        assert not [p for p in node.procs.values() if p.alive and p.stamp.generation == generation]
    times = world.records(Remedied)[0].times
    assert times.fence_ordered_s == times.detected_s
    assert times.emptied_s is not None


def test_an_exit_of_the_workers_unit_ends_the_generation() -> None:
    world = started()

    world.kill("spark-b", RAY)
    world.run_until(in_phase(world, Phase.FAILING))
    world.run_until(serving(world))

    assert world.generation == 2


def test_an_exit_with_code_zero_that_nobody_ordered_is_a_failure() -> None:
    world = started()

    world.kill("spark-a", SERVE, code=0, signal=None)

    assert world.phase is Phase.FAILING


def test_evidence_of_the_other_node_decides_the_cause() -> None:
    world = started()

    world.signal("spark-b", "ray_oom_kill", fatal=False, used_bytes=118 * GIB, total_bytes=119.7 * GIB)
    world.run_for(0.1)
    world.kill("spark-a", SERVE, code=0, signal=None)
    world.run_until(lambda: bool(world.records(Remedied)))

    diagnosis = world.records(Remedied)[0].diagnosis
    assert (diagnosis.cause, diagnosis.node) == ("ray_oom_kill", "spark-b")


def test_a_permanent_cause_is_not_retried_and_an_operator_can_start_again() -> None:
    world = World()

    def corrupt(_node, _proc, phase) -> None:
        if phase is Phase.LOADING_WEIGHTS and not world.records(IncidentClosed):
            world.signal("spark-a", "weights_missing_or_corrupt", fatal=False)
            world.kill("spark-a", SERVE, code=1, signal=None)

    world.on_serve = corrupt
    world.run_until(in_phase(world, Phase.ESCALATED))
    world.run_for(1800)

    assert (world.phase, world.generation) == (Phase.ESCALATED, 1)
    assert world.head.state.coordinator.needs
    assert not any(p.alive for node in world.nodes.values() for p in node.procs.values())

    world.tell(world.head, ev.OperatorAsked(ev.Verb.START))
    world.run_until(serving(world))
    assert world.generation == 2


def test_transient_causes_have_a_budget_within_the_window() -> None:
    world = started(transient_budget=3)

    for _ in range(3):
        world.signal("spark-a", "ray_node_died")
        world.run_until(serving(world))
    world.signal("spark-a", "ray_node_died")
    world.run_until(in_phase(world, Phase.ESCALATED))

    assert world.generation == 4
    assert [closed.outcome for closed in world.records(IncidentClosed)] == ["recovered"] * 3 + ["escalated"]


def test_an_unknown_cause_gets_two_unchanged_relaunches_then_one_memory_step_then_a_person() -> None:
    world = started()

    for _ in range(4):
        world.signal("spark-a", "unknown")
        world.run_until(in_phase(world, Phase.FAILING))
        world.run_until(in_phase(world, Phase.SERVING, Phase.ESCALATED))

    changed = [r.settings_before != r.settings_after for r in world.records(Remedied)]
    assert changed == [False, False, True, False]
    assert world.phase is Phase.ESCALATED


def test_the_second_nccl_failure_within_the_window_takes_one_memory_step() -> None:
    world = started()

    for _ in range(2):
        world.signal("spark-b", "nccl_init_failure")
        world.run_until(in_phase(world, Phase.FAILING))
        world.run_until(serving(world))

    changed = [r.settings_before != r.settings_after for r in world.records(Remedied)]
    assert changed == [False, True]


def test_the_wait_before_a_relaunch_doubles_within_an_incident() -> None:
    world = World(backoff_base_s=10.0, backoff_max_s=300.0)
    world.on_serve = lambda node, _proc, phase: (
        world.signal(node.name, "nccl_timeout") if phase is Phase.LOADING_WEIGHTS else None
    )

    world.run_until(in_phase(world, Phase.ESCALATED), limit_s=3600)

    waits = [r.backoff_s for r in world.records(Remedied) if r.action == "relaunch"]
    assert [round(wait_s / 10) for wait_s in waits] == [1, 2, 4]
    assert all(base <= wait_s <= 1.1 * base for base, wait_s in zip((10, 20, 40), waits, strict=True))


def test_a_broker_that_goes_away_leaves_a_serving_engine_alone() -> None:
    world = started()

    world.set_broker(up=False)
    world.run_for(900)
    assert (world.phase, world.generation) == (Phase.SERVING, 1)

    world.set_broker(up=True)
    world.run_for(60)
    assert (world.phase, world.generation) == (Phase.SERVING, 1)


def test_without_the_broker_a_failure_is_fenced_here_and_waits_for_the_others_answer() -> None:
    world = started()
    world.set_broker(up=False)
    world.run_for(30)

    world.kill("spark-a", SERVE)
    world.run_until(in_phase(world, Phase.WAITING))
    world.run_for(600)

    assert world.phase is Phase.WAITING
    assert "the broker is not connected" in world.head.state.coordinator.waiting
    assert not any(p.alive for p in world.head.procs.values())
    assert world.nodes["spark-b"].procs[RAY].alive  # nobody could order it

    world.set_broker(up=True)
    world.run_until(serving(world))
    assert world.generation == 2


def test_a_silent_worker_daemon_never_stops_a_serving_engine() -> None:
    world = started()
    world.nodes["spark-b"].up = False

    world.run_for(1800)

    assert (world.phase, world.generation) == (Phase.SERVING, 1)


def test_a_worker_daemon_that_comes_back_without_its_children_costs_a_generation() -> None:
    world = started()

    world.restart_daemon("spark-b")
    world.run_until(in_phase(world, Phase.FAILING))
    world.run_until(serving(world))

    assert world.records(Remedied)[0].diagnosis.cause == "peer_lost"
    assert world.generation == 2


def test_our_own_stall_is_not_anybody_elses_silence() -> None:
    """The head's daemon stood still for two minutes: nothing may happen to serving."""
    world = started()
    world.run_for(50)
    world.now += 120.0
    world.tell(world.head, ev.LoopStalled(120.0))
    world.run_for(300)

    assert (world.phase, world.generation) == (Phase.SERVING, 1)


def test_a_hang_is_found_by_a_canary_although_health_answers() -> None:
    world = started()
    world.run_for(30)
    world.hung = True

    took = world.run_until(in_phase(world, Phase.FAILING))

    assert took <= 60 + 120 + 1
    world.hung = False
    world.run_until(serving(world))
    assert world.records(Remedied)[0].diagnosis.cause == "engine_hang"


def test_requests_without_tokens_are_a_hang_after_the_configured_time() -> None:
    world = started(no_progress_s=120.0)
    generation = world.generation
    world.hung = True

    def observe() -> None:
        seen = ev.EngineObserved(generation, True, True, running=3, waiting=1, tokens_total=17.0)
        world.tell(world.head, seen)
        if world.phase is Phase.SERVING:
            world.at(1.0, observe)

    world._do_ProbeEngine = lambda node, command: None
    observe()
    took = world.run_until(in_phase(world, Phase.FAILING))

    assert took == pytest.approx(120.0, abs=2.0)


def test_a_load_that_stands_still_is_noticed() -> None:
    world = World(stall_s=60.0)
    world.on_serve = lambda node, proc, phase: (
        setattr(proc, "alive", False)
        or world.tell(node, ev.PhaseSeen(proc.stamp.generation, phase, done=16, total=39))
        if phase is Phase.LOADING_WEIGHTS
        else None
    )

    world.run_until(in_phase(world, Phase.FAILING))
    world.run_until(lambda: bool(world.records(Remedied)))

    assert "16 of 39" in world.records(Remedied)[0].diagnosis.evidence[0].text


def test_a_node_that_registers_a_strange_address_is_named() -> None:
    world = World()
    world.ray_addresses["spark-b"] = "10.10.0.13"

    world.run_until(in_phase(world, Phase.FAILING))
    world.run_until(lambda: bool(world.records(Remedied)))

    diagnosis = world.records(Remedied)[0].diagnosis
    assert diagnosis.cause == "wrong_interface"
    assert "10.10.0.13" in diagnosis.evidence[0].text


def test_a_node_that_does_not_join_is_named_after_the_deadline() -> None:
    world = World()
    world.never_joins.add("spark-b")

    took = world.run_until(in_phase(world, Phase.FAILING))
    world.run_until(lambda: bool(world.records(Remedied)))

    assert took > 100
    assert "spark-b (192.168.200.13)" in world.records(Remedied)[0].diagnosis.evidence[0].text


def test_a_ray_node_that_is_lost_while_serving_ends_the_generation() -> None:
    world = started()

    world.never_joins.add("spark-b")
    took = world.run_until(in_phase(world, Phase.FAILING))
    world.never_joins.clear()
    world.run_until(serving(world))

    assert took < 3
    assert world.records(Remedied)[0].diagnosis.cause == "ray_node_died"
    assert world.records(Remedied)[0].diagnosis.node == "spark-b"


def test_missing_model_files_are_waited_for_and_cost_no_budget() -> None:
    world = World()
    world.model_ready["spark-b"] = False
    world.run_for(900)

    assert world.phase is Phase.WAITING
    assert world.head.state.coordinator.waiting == ("spark-b: model files incomplete",)

    world.model_ready["spark-b"] = True
    world.run_until(serving(world))
    assert not world.records(IncidentClosed)


def test_a_differing_configuration_is_waited_for_with_the_nodes_name() -> None:
    world = World()
    other = world.nodes["spark-b"]
    other.policy = type(other.policy)(
        **{
            **{name: getattr(other.policy, name) for name in other.policy.__slots__},
            "shared_digest": "another",
        }
    )
    world.run_for(60)

    assert world.phase is Phase.WAITING
    assert "spark-b: its configuration differs" in world.head.state.coordinator.waiting[0]


def test_an_ordered_stop_takes_serve_down_before_ray_and_start_brings_it_back() -> None:
    world = started()

    world.tell(world.head, ev.OperatorAsked(ev.Verb.STOP))
    world.run_until(in_phase(world, Phase.STOPPED))
    assert not any(p.alive for node in world.nodes.values() for p in node.procs.values())
    assert not world.records(IncidentClosed)

    world.tell(world.head, ev.OperatorAsked(ev.Verb.START))
    world.run_until(serving(world))
    assert world.generation == 2


def test_a_leaving_worker_is_no_incident() -> None:
    world = started()

    world.tell(world.nodes["spark-b"], ev.OperatorAsked(ev.Verb.SHUTDOWN))
    world.run_until(in_phase(world, Phase.WAITING))

    assert not world.records(Remedied)
    world.run_until(lambda: not world.nodes["spark-b"].up)
    assert not any(p.alive for node in world.nodes.values() for p in node.procs.values())


def test_the_head_takes_the_engine_along_when_it_is_shut_down() -> None:
    world = started()

    world.tell(world.head, ev.OperatorAsked(ev.Verb.SHUTDOWN))
    world.run_until(lambda: not world.head.up)

    assert not any(p.alive for node in world.nodes.values() for p in node.procs.values())


def test_paused_means_that_nothing_is_changed() -> None:
    world = started()
    world.tell(world.head, ev.OperatorAsked(ev.Verb.PAUSE))
    assert world.phase is Phase.PAUSED

    world.kill("spark-a", SERVE)
    world.run_for(600)
    assert (world.phase, world.generation) == (Phase.PAUSED, 1)

    world.tell(world.head, ev.OperatorAsked(ev.Verb.RESUME))
    world.run_until(serving(world))
    assert world.generation == 2


def test_a_wiped_head_takes_an_epoch_above_everything_that_anybody_saw() -> None:
    world = started()
    before = world.head.state.seen

    world.restart_daemon("spark-a", remember=False)
    world.run_until(serving(world))

    assert world.head.state.seen.epoch > before.epoch
    assert world.generation > before.generation


def test_a_retained_intent_informs_and_never_orders() -> None:
    world = started()
    worker = world.nodes["spark-b"]
    intent = worker.state.member.intent

    world.restart_daemon("spark-b")
    worker = world.nodes["spark-b"]

    assert worker.state.member.intent is None
    assert worker.state.seen >= intent.stamp


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"addressees": (("spark-a", "spark-a#1"), ("spark-b", "spark-b#0"))}, "other_instance"),
        ({"node": "spark-b"}, "not_the_coordinator"),
        ({"seq": 1}, "replay"),
        ({"shared_digest": "another"}, "plan_differs"),
        ({"node_digests": (("spark-b", "another"),)}, "rendering_changed"),
    ],
)
def test_an_order_that_does_not_count_is_dropped_with_its_reason(change, reason) -> None:
    from dataclasses import replace

    world = started()
    worker = world.nodes["spark-b"]
    intent = worker.state.member.intent
    forged = replace(intent, **{"seq": intent.seq + 1, **change})

    world.tell(worker, ev.IntentReceived(forged))

    assert worker.state.member.intent == intent
    assert [r.reason for r in worker.records if isinstance(r, MessageDropped)] == [reason]


def test_an_order_of_an_older_epoch_is_dropped() -> None:
    from dataclasses import replace

    from sparkd.words import Stamp

    world = started()
    worker = world.nodes["spark-b"]
    intent = worker.state.member.intent
    old = replace(intent, stamp=Stamp(0, intent.stamp.generation), seq=intent.seq + 5)

    world.tell(worker, ev.IntentReceived(old))

    assert worker.state.member.intent == intent


def test_a_status_of_a_replaced_instance_never_counts_again() -> None:
    world = started()
    old = world.head.state.peer("spark-b").status
    world.restart_daemon("spark-b")
    world.run_for(1)

    world.tell(world.head, ev.StatusReceived(old, ev.Path.MQTT))

    assert world.head.state.peer("spark-b").status.instance == "spark-b#2"


def test_memory_that_does_not_come_back_is_waited_for_up_to_the_deadline() -> None:
    world = started(memory_release_s=20.0)
    world.nodes["spark-b"].available_bytes = TOTAL_BYTES // 10

    world.kill("spark-a", SERVE)
    world.run_until(in_phase(world, Phase.FORMING))
    failed_at = world.records(Remedied)[0].times.detected_s

    assert 20.0 <= world.now - failed_at < 25.0


def test_survivors_of_sigkill_are_escalated_and_nothing_is_started_beside_them() -> None:
    world = started()
    world._do_StopUnit = lambda node, command: world.later(
        node, 5.0, ev.UnitUnkillable(command.unit, command.generation, (4711,))
    )

    world.kill("spark-a", SERVE)
    world.run_until(in_phase(world, Phase.ESCALATED))

    assert world.head.state.coordinator.needs.startswith("reboot")
    assert world.generation == 1


def test_a_program_that_cannot_be_started_is_told_with_its_reason() -> None:
    world = World()
    world._do_StartUnit = lambda node, command: world.later(
        node, 0.0, ev.UnitStartFailed(command.unit, command.stamp.generation, "ray: no such file")
    )

    world.run_until(in_phase(world, Phase.ESCALATED))

    assert "no such file" in world.records(Remedied)[0].diagnosis.evidence[0].text


def failing_once(world: World, name: str, failed) -> list[tuple[str, UnitName, int]]:
    """The first start on a node ends with *failed(command)*; return the list of stops to come."""
    start, stop, stops = world._do_StartUnit, world._do_StopUnit, []

    def start_unit(node, command) -> None:
        if node.name != name or command.stamp.generation > 1:
            start(node, command)
        else:
            world.later(node, 0.1, failed(command))

    def stop_unit(node, command) -> None:
        stops.append((node.name, command.unit, command.generation))
        stop(node, command)

    world._do_StartUnit, world._do_StopUnit = start_unit, stop_unit
    return stops


@pytest.mark.parametrize("name", ["spark-a", "spark-b"])
def test_a_start_that_fails_for_a_reason_that_passes_is_tried_again(name: str) -> None:
    text = "[Errno 11] Resource temporarily unavailable"
    world = World()
    failing_once(world, name, lambda c: ev.UnitStartFailed(c.unit, c.stamp.generation, text))
    world.run_until(serving(world))

    (remedied,) = world.records(Remedied)
    assert (remedied.diagnosis.cause, remedied.diagnosis.node, remedied.action) == (
        "unknown",
        name,
        "relaunch",
    )
    assert text in remedied.diagnosis.evidence[0].text
    assert "could not be started" in remedied.diagnosis.explanation


@pytest.mark.parametrize("name", ["spark-a", "spark-b"])
def test_a_start_without_an_outcome_is_ended_before_anything_else_starts(name: str) -> None:
    """Its deadline passed: it may live, and the fence waits for the word that it does not."""
    world = World()
    stops = failing_once(
        world, name, lambda c: ev.CommandFailed("StartUnit", "TimeoutError: ", c.unit, c.stamp.generation)
    )
    world.run_until(serving(world))

    (remedied,) = world.records(Remedied)
    assert remedied.diagnosis.evidence[0].text == "ray could not be started: TimeoutError: "
    assert world.generation == 2
    assert (name, UnitName.RAY, 1) in stops


def test_the_stamp_is_durable_before_the_first_unit_starts() -> None:
    world = World()
    world.run_until(in_phase(world, Phase.FORMING))

    stamps = [r.seen for r in world.head.records if isinstance(r, StampAdvanced)]
    assert stamps[-1].generation == 1
    assert stamps[-1].epoch == 1


def test_learned_settings_hold_until_the_operator_asks_for_others() -> None:
    from dataclasses import replace

    from sim.world import make_policy
    from sparkd.core.beginning import Remembered, initial

    policy = make_policy("spark-a")
    learned = replace(policy.settings, kv_cache_bytes=40 * GIB)
    kept = Remembered(settings=learned, asked=policy.settings)
    other = replace(policy, settings=Settings(gpu_memory_utilization=0.8))

    assert initial(policy, "i", kept, 0.0).coordinator.settings == learned
    assert initial(other, "i", kept, 0.0).coordinator.settings == other.settings
    shorter = replace(policy, settings=replace(policy.settings, max_model_len=8192))
    expected = replace(learned, max_model_len=8192)
    assert initial(shorter, "i", kept, 0.0).coordinator.settings == expected
    elsewhere = replace(policy, context="another driver")
    assert initial(elsewhere, "i", kept, 0.0).coordinator.settings == policy.settings


def test_memory_readings_do_not_publish_a_status_each() -> None:
    world = started()
    before = len(world.heap)
    sent = []
    world._do_PublishStatus = lambda node, command: sent.append(command)
    for step in range(10):
        sample = MemorySample(world.now, TOTAL_BYTES - step, TOTAL_BYTES)
        world.tell(world.head, ev.MemoryObserved(sample))

    assert not sent
    assert len(world.heap) < before + 40


def test_evidence_that_is_no_longer_kept_is_not_waited_for_for_ever() -> None:
    world = started()
    world.set_broker(up=False)
    for number in range(200):
        world.signal("spark-b", f"cause_{number}", fatal=False)
    world.set_broker(up=True)
    world.run_for(10)

    peer = world.head.state.peer("spark-b")
    assert peer.received_seq == peer.status.report_seq == 200


def test_an_old_status_of_an_instance_that_was_never_heard_ends_nothing() -> None:
    """Recorded before this daemon started and said again: it cannot name this daemon's instance."""
    from dataclasses import replace

    world = started()
    status = world.head.state.peer("spark-b").status
    old = replace(status, instance="spark-b#0", heard=(("spark-a", "spark-a#0"),), units=())

    world.tell(world.head, ev.StatusReceived(old, ev.Path.MQTT))
    world.run_for(60)

    assert (world.phase, world.generation) == (Phase.SERVING, 1)
    assert [r.reason for r in world.records(MessageDropped)] == ["not_fresh"]


def test_what_a_launch_needs_is_looked_for_anew_after_each_end() -> None:
    world = started()
    world.model_ready["spark-b"] = False

    world.kill("spark-a", SERVE)
    world.run_until(in_phase(world, Phase.WAITING))
    world.run_for(60)

    assert world.phase is Phase.WAITING
    assert world.head.state.coordinator.waiting == ("spark-b: model files incomplete",)


def test_the_workers_last_words_are_waited_for_where_its_ray_began_after_the_heads() -> None:
    """While only the head had units the worker had said that of this generation all is read."""
    world = started()
    world.kill("spark-a", SERVE, code=1)
    world.run_until(in_phase(world, Phase.FAILING))
    worker = world.nodes["spark-b"]
    assert worker.state.member.drained_generation < world.generation

    world.run_until(lambda: bool(world.records(Remedied)))
    assert worker.state.member.drained_generation == 1
