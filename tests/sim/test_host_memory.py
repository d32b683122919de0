"""The host runs out of memory: what the kernel of a node tells leads to less memory, on every node."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sim.world import World, serving
from sparkd.core import events as ev
from sparkd.core.records import IncidentClosed, Remedied
from sparkd.signals.model import Proof, Signal
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
