"""The host runs out of memory: what the kernel of a node tells leads to less memory, on every node."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sim.world import TOTAL_BYTES, World, serving
from sparkd.core import events as ev
from sparkd.core.records import IncidentClosed, Remedied, WaitingFor
from sparkd.signals.model import MemorySample, Proof, Signal
from sparkd.words import GIB, Phase, UnitName

SERVE = UnitName.SERVE


def started() -> World:
    world = World()
    world.run_until(serving(world))
    return world


def judged(world: World) -> Remedied:
    world.run_until(lambda: bool(world.records(Remedied)))
    return world.records(Remedied)[0]


@pytest.mark.parametrize("cause", ["kernel_oom", "cgroup_oom"])
def test_the_kernels_kill_on_the_worker_lowers_memory_although_serve_ended_with_code_zero(cause) -> None:
    world = started()

    world.signal("spark-b", cause, victim_bytes=40 * GIB)
    world.kill("spark-a", SERVE, code=0, signal=None)
    remedied = judged(world)
    world.run_until(serving(world))

    assert (remedied.diagnosis.cause, remedied.diagnosis.node) == (cause, "spark-b")
    before, after = remedied.settings_before, remedied.settings_after
    assert after.kv_cache_bytes < 49.12 * GIB
    assert after.gpu_memory_utilization < before.gpu_memory_utilization
    assert (after.cudagraph, after.ray_memory_threshold) == (before.cudagraph, before.ray_memory_threshold)
    (closed,) = world.records(IncidentClosed)
    assert (closed.outcome, closed.relaunches) == ("recovered", 1)
    assert world.nodes["spark-a"].procs[SERVE].settings == after


def test_a_record_of_the_host_counts_for_the_generation_that_runs() -> None:
    """The kernel knows no generations; its kill ends the one that runs, before any process is seen to end."""
    world = started()
    node = world.nodes["spark-b"]
    quote = "Out of memory: Killed process 1234 (VLLM::Worker_TP)"
    signal = Signal(
        "kernel_oom_engine", "kernel_oom", Proof.PROVES, "spark-b", "kernel", quote, world.now, 0, fatal=True
    )

    world.tell(node, ev.SignalSeen(signal))
    world.run_until(lambda: world.phase is Phase.FAILING, limit_s=1.0)
    remedied = judged(world)

    assert (remedied.generation, remedied.diagnosis.cause) == (1, "kernel_oom")
    assert remedied.settings_after != remedied.settings_before

    world.run_until(serving(world))
    world.tell(world.head, ev.SignalSeen(replace(signal, node="spark-a", fatal=False)))
    assert world.phase is Phase.SERVING


def nearly_full(world: World) -> None:
    """Both nodes serve with half a gibibyte free, and their telemetry has said so."""
    for node in world.nodes.values():
        node.available_bytes = GIB // 2
        world.tell(node, ev.MemoryObserved(MemorySample(world.now, GIB // 2, TOTAL_BYTES)))
    world.run_for(3.0)


def held(world: World) -> list[str]:
    return [why for record in world.records(WaitingFor) for why in record.reasons if "end what holds" in why]


@pytest.mark.parametrize("back_after_s", [0.0, 2.0])
def test_what_the_engine_held_is_not_said_to_be_held_when_it_is_started_anew(back_after_s) -> None:
    """While the fence waits for memory it is coming back; that it is tells the status, before telemetry."""
    world = started()
    nearly_full(world)
    world.tell(world.head, ev.OperatorAsked(ev.Verb.STOP))

    def give_back() -> None:
        for node in world.nodes.values():
            node.available_bytes = TOTAL_BYTES - 5 * GIB
            if back_after_s:
                sample = MemorySample(world.now, node.available_bytes, TOTAL_BYTES)
                world.tell(node, ev.MemoryObserved(sample))

    world.at(back_after_s, give_back)
    world.run_until(lambda: world.phase is Phase.STOPPED)
    world.tell(world.head, ev.OperatorAsked(ev.Verb.START))
    world.run_until(serving(world))

    assert held(world) == []


def test_what_does_not_come_back_is_waited_for_and_its_return_is_acted_upon() -> None:
    world = started()
    nearly_full(world)
    world.tell(world.head, ev.OperatorAsked(ev.Verb.STOP))
    world.run_until(lambda: world.phase is Phase.STOPPED)
    world.tell(world.head, ev.OperatorAsked(ev.Verb.START))
    world.run_for(60.0)
    assert world.phase is Phase.WAITING
    assert {why.split(":")[0] for why in held(world)} == {"spark-a", "spark-b"}

    for node in world.nodes.values():
        world.tell(node, ev.MemoryObserved(MemorySample(world.now, TOTAL_BYTES // 2, TOTAL_BYTES)))
    assert world.run_until(lambda: world.phase is not Phase.WAITING, limit_s=3.0) <= 1.5
