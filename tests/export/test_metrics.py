"""Metrics say what the state says; unknown is NaN, never zero."""

from __future__ import annotations

import math
from dataclasses import replace

from prometheus_client.parser import text_string_to_metric_families

from export import states
from sparkd.core.records import InvariantBroken, MessageDropped, Verified
from sparkd.export.metrics import Metrics
from store.lives import closed, life, remedied


def samples(state=None, records=(), policy=states.POLICY, metrics=None):
    metrics = metrics or Metrics("0.1.0", "spark-a", causes=("ray_oom_kill", "cuda_oom"))
    if state is not None:
        metrics.update(state, policy, states.NOW)
    metrics.records(records)
    return {
        (sample.name.removeprefix("sparkd_"), *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(metrics.text().decode())
        for sample in family.samples
    }


def test_exactly_one_phase_is_set():
    found = samples(states.serving())

    assert [key[1] for key, value in found.items() if key[0] == "phase" and value] == ["serving"]


def test_a_worker_that_was_told_nothing_does_not_know_the_phase():
    found = samples(states.worker())

    assert [key[1] for key, value in found.items() if key[0] == "phase" and value] == ["unknown"]
    assert math.isnan(found["engine_verified",])
    assert found["coordinator",] == 0


def test_nothing_unknown_is_zero():
    found = samples(states.worker())

    known = {key[0] for key, value in found.items() if not math.isnan(value)}
    gauges_of_the_world = {
        "memory_available_bytes",
        "memory_size_bytes",
        "memory_pressure_ratio",
        "ray_nodes_alive",
        "engine_healthy",
        "engine_running_requests",
        "engine_throughput_tokens_per_second",
        "canary_ok",
        "needs_operator",
        "peer_reachable",
        "progress_done_items",
        "recovery_last_seconds",
        "loop_lag_seconds",
        "store_writable",
    }
    assert not known & gauges_of_the_world
    assert ("engine_tokens_total",) not in found


def test_a_serving_head_says_its_numbers():
    found = samples(states.serving())

    assert found["generation",] == 14
    assert found["engine_verified",] == 1
    assert found["engine_throughput_tokens_per_second",] == 27.1
    assert found["engine_tokens_total",] == 5000
    assert found["ray_nodes_alive",] == 2
    assert found["canary_latency_seconds",] == 0.412
    assert found["phase_seconds",] == 22_320
    assert found["settings_changed",] == 2


def test_settings_are_told_as_asked_and_in_force():
    found = samples(states.serving())

    assert math.isnan(found["setting_kv_cache_bytes", "asked"])
    assert found["setting_kv_cache_bytes", "in_force"] == 47_889_884_774
    assert found["setting_ray_memory_threshold_ratio", "asked"] == 0.95
    assert found["setting_ray_memory_threshold_ratio", "in_force"] == math.inf
    assert found["setting_cudagraph_level", "in_force"] == 3


def test_memory_of_a_silent_peer_is_unknown():
    silent = replace(states.PEER, heard_at_s=0.0, mqtt_at_s=0.0)
    found = samples(replace(states.serving(), peers=(silent,)))

    assert math.isnan(found["memory_available_bytes", "spark-b"])
    assert found["memory_available_bytes", "spark-a"] > 0


def test_without_a_broker_nothing_is_said_of_a_peer_by_mqtt():
    lost = replace(states.PEER, mqtt_at_s=0.0, http_at_s=states.NOW - 1)
    found = samples(replace(states.serving(), peers=(lost,), broker=False))

    assert math.isnan(found["peer_reachable", "mqtt", "spark-b"])
    assert found["peer_reachable", "http", "spark-b"] == 1


def test_a_peer_whose_view_was_asked_in_vain_is_not_reachable():
    lost = replace(states.PEER, mqtt_at_s=0.0, probe_reason="timed out")
    found = samples(replace(states.serving(), peers=(lost,)))

    assert found["peer_reachable", "mqtt", "spark-b"] == 0
    assert found["peer_reachable", "http", "spark-b"] == 0


def test_counters_of_known_causes_start_at_zero():
    found = samples()

    assert found["relaunches_total", "cuda_oom"] == 0
    assert found["incidents_total", "cuda_oom", "recovered"] == 0


def test_a_recovery_is_counted_and_timed_by_stage():
    found = samples(records=[record for step in life() for record in step])

    assert found["incidents_total", "ray_oom_kill", "recovered"] == 1
    assert found["relaunches_total", "ray_oom_kill"] == 1
    assert found["recovery_last_seconds",] == 871
    assert found["recovery_seconds_count",] == 1
    assert found["verified_starts_total",] == 1
    assert found["start_last_seconds",] == 855
    stages = {key[1]: round(value, 3) for key, value in found.items() if key[0] == "recovery_stage_seconds"}
    assert stages == {
        "fence_ordered": 0,
        "decided": 1.9,
        "emptied": 2.1,
        "fenced": 2.0,
        "launched": 10.0,
        "serving": 855.0,
    }


def test_a_recovery_with_two_failures_counts_from_the_first():
    second = remedied()
    first = replace(second, times=replace(second.times, detected_s=10.0))

    found = samples(records=[first, second, closed()])

    assert found["recovery_last_seconds",] == 961
    assert found["relaunches_total", "ray_oom_kill"] == 2


def test_an_escalation_is_no_recovery():
    found = samples(records=[remedied(), closed(outcome="escalated")])

    assert found["incidents_total", "escalated", "ray_oom_kill"] == 1
    assert found["recovery_seconds_count",] == 0
    assert math.isnan(found["recovery_last_seconds",])


def test_drops_and_defects_are_counted():
    found = samples(records=[MessageDropped("status", "replay"), InvariantBroken("one_writer")])

    assert found["messages_dropped_total", "replay", "status"] == 1
    assert found["invariants_broken_total", "one_writer"] == 1


def test_the_daemon_tells_of_itself():
    metrics = Metrics("0.1.0", "spark-a")
    metrics.stepped(0.002, 0.5)
    metrics.store(troubled=True, queued=12)
    metrics.handler_failed("/status")

    found = samples(metrics=metrics, records=[Verified(1, 0.4, 30.0)])

    assert found["loop_step_seconds_count",] == 1
    assert found["loop_lag_seconds",] == 0.5
    assert found["store_writable",] == 0
    assert found["store_queued_records",] == 12
    assert found["http_handler_errors_total", "/status"] == 1
    assert found["build_info", "0.1.0", "spark-a"] == 1
