"""Each first recovery, by real daemons and real signals, on the stand-in engine."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from typing import Any

import pytest

from cluster import Event, stamped_processes
from standin_cluster import HEAD, Standin

pytestmark = [pytest.mark.process, pytest.mark.timeout(180)]

WORKER = "127.0.0.3"


async def kill_and_recover(standin: Standin, node: str, word: str, number: int = signal.SIGKILL) -> Event:
    """Wait for serving, send a signal to a process of the engine, wait for the recovery."""
    await standin.cluster.phase("serving", 60)
    start = len(standin.cluster.head.events)
    (pid, *_) = standin.pids(node, word)
    os.kill(pid, number)
    judged, closed = await standin.recovered(start)
    assert closed["outcome"] == "recovered", closed
    assert closed["relaunches"] == 1
    return judged


@pytest.mark.parametrize(
    ("node", "word", "cause", "guilty"),
    [
        ("spark-b", "RayWorkerProc", "worker_process_died", "spark-b"),
        ("spark-b", "raylet", "ray_node_died", "spark-b"),
        ("spark-a", "vllm serve", "killed_unspecified", "spark-a"),
        ("spark-a", "gcs_server", "ray_gcs_unreachable", "spark-a"),
    ],
)
def test_a_killed_process_is_named_and_the_group_is_relaunched(
    live: Callable[..., Standin], node: str, word: str, cause: str, guilty: str
) -> None:
    async def story(standin: Standin) -> None:
        judged = await kill_and_recover(standin, node, word)
        assert (judged["cause"], judged["node"]) == (cause, guilty)
        assert judged["settings_changed"] == {}

    live(story)


def test_a_hang_under_health_200_is_found_and_recovered(live: Callable[..., Standin]) -> None:
    async def story(standin: Standin) -> None:
        await standin.cluster.phase("serving", 60)
        start = len(standin.cluster.head.events)
        for pid in standin.pids("spark-b", "RayWorkerProc"):
            os.kill(pid, signal.SIGSTOP)
        judged, closed = await standin.recovered(start)
        assert judged["cause"] == "engine_hang"
        assert closed["outcome"] == "recovered"

    live(story, timeouts="no_progress_s = 10.0\ncanary_idle_s = 1.0\nverify_deadline_s = 5.0")


def fault(kind: str, phase: str, **more: Any) -> dict[str, Any]:
    return {"kind": kind, "phase": phase, "times": 1, **more}


@pytest.mark.parametrize(
    ("armed", "cause", "changed"),
    [
        (fault("cuda_oom", "capturing_graphs", node=HEAD), "cuda_oom", True),
        (fault("cuda_oom", "loading_weights", node=WORKER), "cuda_oom", True),
        (fault("nccl_init_failure", "init_distributed", node=WORKER), "nccl_init_failure", False),
        (fault("gloo_connect_failure", "init_distributed", node=WORKER), "gloo_connect_failure", False),
    ],
    ids=lambda value: value["kind"] if isinstance(value, dict) else str(value),
)
def test_a_failed_start_is_diagnosed_and_tried_anew(
    live: Callable[..., Standin], armed: dict[str, Any], cause: str, changed: bool
) -> None:
    async def story(standin: Standin) -> None:
        judged, closed = await standin.recovered(0)
        assert judged["cause"] == cause
        assert bool(judged["settings_changed"]) is changed
        assert closed["outcome"] == "recovered"

    live(story, faults=(armed,))


@pytest.mark.parametrize(
    ("armed", "cause"),
    [
        ({"kind": "weights_corrupt", "phase": "loading_weights"}, "weights_missing_or_corrupt"),
        ({"kind": "model_unsupported", "phase": "resolving_config"}, "model_unsupported"),
    ],
    ids=lambda value: value["kind"] if isinstance(value, dict) else str(value),
)
def test_what_a_restart_cannot_fix_is_escalated_at_once(
    live: Callable[..., Standin], armed: dict[str, Any], cause: str
) -> None:
    async def story(standin: Standin) -> None:
        judged, closed = await standin.recovered(0)
        assert (judged["cause"], judged["action"]) == (cause, "escalate")
        assert closed["outcome"] == "escalated"
        assert closed["needs"]
        status = await standin.cluster.head.status()
        assert status["generation"] == 1
        await _gone(standin)

    live(story, faults=(armed,))


def test_the_mp_backend_recovers_from_the_death_of_its_remote_worker(live: Callable[..., Standin]) -> None:
    async def story(standin: Standin) -> None:
        await standin.cluster.phase("serving", 60)
        start = len(standin.cluster.head.events)
        (pid, *_) = standin.pids("spark-b", "Worker")
        os.kill(pid, signal.SIGKILL)
        judged, closed = await standin.recovered(start)
        assert (judged["cause"], judged["node"]) == ("worker_process_died", "spark-b")
        assert closed["outcome"] == "recovered"

    live(story, backend="mp")


def test_a_head_daemon_that_stands_still_leaves_serving_alone(live: Callable[..., Standin]) -> None:
    async def story(standin: Standin) -> None:
        head = standin.cluster.head
        await standin.cluster.phase("serving", 60)
        before = stamped_processes(standin.name)
        worker = standin.cluster.daemons["spark-b"]
        start = len(worker.events)
        head.kill(signal.SIGSTOP)
        # The embedded broker stands still with its daemon: the worker notices and does nothing about it.
        await worker.wait(lambda e: "broker" in e["event"] or "broker" in str(e.get("reason", "")), 40, start)
        head.kill(signal.SIGCONT)
        await head.wait(lambda e: e["event"] == "loop stalled", 20)
        status = await head.status()
        assert (status["phase"], status["generation"]) == ("serving", 1)
        assert stamped_processes(standin.name).keys() >= before.keys()

    live(story)


def test_leftovers_of_a_killed_daemon_are_found_and_fenced(live: Callable[..., Standin]) -> None:
    async def story(standin: Standin) -> None:
        head = standin.cluster.head
        await standin.cluster.phase("serving", 60)
        orphans = stamped_processes(standin.name, "spark-a")
        head.kill(signal.SIGKILL)
        await head.wait(lambda e: e["event"] == "process_ended", 10)
        assert stamped_processes(standin.name, "spark-a").keys() == orphans.keys()  # it serves on
        start = len(head.events)
        await head.start()
        moved = await standin.cluster.phase("serving", 60, start)
        assert moved["generation"] == 2
        assert not stamped_processes(standin.name, "spark-a").keys() & orphans.keys()

    live(story)


def test_sigterm_takes_the_whole_engine_down_in_order(live: Callable[..., Standin]) -> None:
    async def story(standin: Standin) -> None:
        await standin.cluster.phase("serving", 60)
        assert await standin.cluster.head.stop() == 0
        await asyncio.wait_for(_gone(standin), 20)

    live(story)


async def _gone(standin: Standin) -> None:
    for daemon in standin.cluster.daemons.values():
        await daemon.wait(lambda e: e["event"] == "unit_changed" and e["state"] == "gone", 20)
    assert not stamped_processes(standin.name)
