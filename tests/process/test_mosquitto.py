"""The cluster on a real mosquitto: started with it, served without it, recovered when it came back."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiomqtt
import pytest

from cluster import Event, stamped_processes
from ports import free_port
from standin_cluster import HEAD, Standin, is_event, until
from wire.brokers import LOOPBACK, MOSQUITTO, Mosquitto

pytestmark = [
    pytest.mark.process,
    pytest.mark.timeout(180),
    pytest.mark.skipif(MOSQUITTO is None, reason="mosquitto is not installed"),
]
SERVING_S = 60.0
WITHOUT_S = 12.0


@asynccontextmanager
async def mosquitto(standin: Standin, folder: Path) -> AsyncIterator[Mosquitto]:
    """Run mosquitto on the head's address, longer than the daemons: they end in order with it.

    It listens on the loopback's own address, too: there `Mosquitto` asks whether it runs.
    """
    port = standin.ports["broker"]
    listeners = "".join(f"listener {port} {address}\n" for address in (HEAD, LOOPBACK))
    broker = Mosquitto(folder, f"{listeners}allow_anonymous true\n", port)
    await broker.start()
    try:
        yield broker
    finally:
        await standin.cluster.stop()
        await broker.stop()


async def kill(broker: Mosquitto) -> None:
    """End it without a word: what it had retained is lost."""
    broker._process.kill()
    await broker.stop()


async def everywhere(standin: Standin, fits: Callable[[Event], bool], starts: dict[str, int]) -> None:
    """Wait until every daemon has logged what fits."""
    daemons = standin.cluster.daemons.items()
    await asyncio.gather(*(daemon.wait(fits, 30, starts[name]) for name, daemon in daemons))


def marks(standin: Standin) -> dict[str, int]:
    return {name: len(daemon.events) for name, daemon in standin.cluster.daemons.items()}


async def statuses(standin: Standin) -> list[dict[str, Any]]:
    return [await daemon.status() for daemon in standin.cluster.daemons.values()]


def all_serve(found: list[dict[str, Any]]) -> bool:
    return all((status["phase"], status["generation"]) == ("serving", 1) for status in found)


def only_by_http(found: list[dict[str, Any]]) -> bool:
    """Return whether every daemon hears its peer, and not through the broker."""
    peers = [node for status in found for node in status["nodes"] if not node["self"]]
    return all(peer["http"] and not peer["mqtt"] and peer["heard_s"] < 3 for peer in peers)


def test_serving_outlives_the_broker_and_a_failure_waits_for_it(
    live: Callable[..., Standin], tmp_path: Path
) -> None:
    async def story(standin: Standin) -> None:
        head = standin.cluster.head
        async with mosquitto(standin, tmp_path) as broker:
            await standin.leave_garbage()
            await standin.cluster.start()
            await standin.cluster.phase("serving", SERVING_S)
            await until(lambda: statuses(standin), all_serve, 10)
            for node in standin.cluster.daemons:
                _, metrics = await standin.get(node, "/metrics")
                assert 'sparkd_messages_dropped_total{kind="intent",reason="not_signed"} 1.0' in metrics
            before = stamped_processes(standin.name)
            starts, lost_s = marks(standin), time.monotonic()
            await kill(broker)
            await everywhere(standin, is_event("broker_lost"), starts)
            await everywhere(standin, lambda e: is_event("peer_changed")(e) and not e["present"], starts)
            found = await until(
                lambda: statuses(standin),
                lambda found: only_by_http(found) and time.monotonic() - lost_s >= WITHOUT_S,
                30,
            )
            assert all_serve(found)
            assert found[0]["incident"] is None
            assert stamped_processes(standin.name) == before

            start = len(head.events)
            os.kill(standin.pids("spark-b", "RayWorkerProc")[0], signal.SIGKILL)
            waiting = await head.wait(is_event("waiting_for"), 30, start)
            assert "the broker is not connected" in waiting["reasons"]
            await until(lambda: pids_of(standin, "spark-a"), lambda pids: not pids, 20)
            assert (await head.status())["generation"] == 1

            await broker.start()
            judged, closed = await standin.recovered(start)
            assert (judged["cause"], judged["node"]) == ("worker_process_died", "spark-b")
            assert (closed["outcome"], closed["relaunches"]) == ("recovered", 1)

    live(story, start=False, broker=(HEAD, free_port(HEAD)))


async def pids_of(standin: Standin, node: str) -> list[int]:
    return standin.pids(node, "")


def test_a_restarted_broker_is_no_event_for_the_engine(live: Callable[..., Standin], tmp_path: Path) -> None:
    async def story(standin: Standin) -> None:
        async with mosquitto(standin, tmp_path) as broker:
            await standin.cluster.start()
            await standin.cluster.phase("serving", SERVING_S)
            before, starts = stamped_processes(standin.name), marks(standin)
            await kill(broker)
            await everywhere(standin, is_event("broker_lost"), starts)
            await broker.start()
            await everywhere(standin, is_event("broker_connected"), starts)
            # It had forgotten everything: the head says its intent anew, who comes now hears it.
            async with aiomqtt.Client(HEAD, broker.port, identifier="listener") as listener:
                await listener.subscribe(f"sparkd/{standin.name}/intent")
                message = await asyncio.wait_for(anext(aiter(listener.messages)), 10)
                assert b'"kind":"intent"' in message.payload
            status = await standin.cluster.head.status()
            assert (status["phase"], status["generation"], status["incident"]) == ("serving", 1, None)
            assert stamped_processes(standin.name) == before

    live(story, start=False, broker=(HEAD, free_port(HEAD)))
