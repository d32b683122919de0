"""What is done to the real engine, and what has to come of it."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime as dt
import signal
import time
from collections.abc import Awaitable, Callable
from typing import Any

from cluster import Event, stamped_processes
from lab import faults, load
from lab.site import API_PORT, CLUSTER, HOG_AVAILABLE_SHARE, SERVED, Site

START_S = 300.0
"""Longest that a start of the real engine may take here (two cores, three sequential imports)."""
STOOD_STILL_S = 120.0


@dataclasses.dataclass
class Result:
    """One row of the table; times in seconds, None = does not apply.

    `lost_requests`: of clients that asked again and again meanwhile. `dead_processes`: what was left of a
    generation that is not the present one, found by control group and by mark after the scenario.
    """

    scenario: str
    ok: bool = False
    engine: str = "ray"
    expected_cause: str | None = None
    cause: str | None = None
    detect_s: float | None = None
    fence_s: float | None = None
    decide_s: float | None = None
    serving_s: float | None = None
    raw_start_s: float | None = None
    settings_before: dict[str, Any] | None = None
    settings_after: dict[str, Any] | None = None
    lost_requests: int | None = None
    dead_processes: list[str] | None = None
    note: str = ""


Scenario = Callable[[Site, Result], Awaitable[None]]


class Watcher:
    """The head's events from now on, with the time of an injection."""

    def __init__(self, site: Site) -> None:
        self.head = site.cluster.head
        self.start = len(self.head.events)
        self.injected_s = time.monotonic()

    async def event(self, name: str, deadline_s: float) -> Event:
        """Return the first event of that name since the injection."""
        return await self.head.wait(lambda e: e["event"] == name, deadline_s, self.start)

    async def outcome(self, result: Result, deadline_s: float = START_S) -> Event:
        """Fill in the row from the incident that follows."""
        opened = await self.event("incident_opened", deadline_s)
        judged = await self.event("remedied", 30)
        result.cause = judged["cause"]
        result.detect_s = round(opened["at_s"] - self.injected_s, 2)
        result.settings_after = (await self.head.status())["settings"]["in_force"]
        closed = await self.event("incident_closed", START_S)
        result.fence_s = closed.get("emptied_after_s")
        result.decide_s = closed.get("decided_after_s")
        if closed["outcome"] == "recovered":
            result.serving_s = closed["recovery_s"]
        return closed


async def recovers(
    site: Site, result: Result, inject: Callable[[], None], deadline_s: float = START_S
) -> Event:
    """Inject, and expect the expected cause and a recovery with one relaunch."""
    result.settings_before = (await site.cluster.head.status())["settings"]["in_force"]
    watcher = Watcher(site)
    await asyncio.to_thread(inject)
    closed = await watcher.outcome(result, deadline_s)
    right = closed["outcome"] == "recovered" and closed["relaunches"] == 1
    result.ok = right and result.cause == result.expected_cause
    result.note = "" if result.ok else f"outcome {closed['outcome']}, {closed['relaunches']} relaunches"
    return closed


def one(processes: list[faults.Process]) -> faults.Process:
    """Return the process, which has to be there."""
    if not processes:
        raise LookupError("the process to injure is not there")
    return processes[0]


async def first_start(site: Site, result: Result) -> None:
    """Two daemons are started; the cluster serves, verified."""
    watcher = Watcher(site)
    await site.cluster.start()
    verified = await watcher.event("verified", START_S)
    result.serving_s = round(verified["at_s"] - watcher.injected_s, 1)
    status = await site.cluster.head.status()
    result.settings_before = result.settings_after = status["settings"]["in_force"]
    result.cause = "none"
    result.ok = status["phase"] == "serving" and verified["generation"] == 1


async def ray_oom_kill(site: Site, result: Result) -> None:
    """Real memory pressure from outside Ray: its monitor kills the workers at the asked threshold."""
    result.settings_before = (await site.cluster.head.status())["settings"]["in_force"]
    watcher = Watcher(site)
    with faults.memory_hog(HOG_AVAILABLE_SHARE, hold_s=120) as hog:
        held = await watcher.event("incident_opened", 90)
        hog.stop()
        watcher.injected_s = held["at_s"]  # when pressure became a kill is Ray's to say, not ours
    closed = await watcher.outcome(result)
    result.detect_s = await asyncio.to_thread(_since_kill, site, held)
    after, before = result.settings_after or {}, result.settings_before
    lowered = after["kv_cache_bytes"] < before["kv_cache_bytes"]
    raised = after["ray_memory_threshold"] > before["ray_memory_threshold"]
    judged = await watcher.event("remedied", 1)
    counted = judged.get("used_bytes", 0) > judged.get("threshold_bytes", 1) > 0
    result.ok = (
        closed["outcome"] == "recovered" and result.cause == "ray_oom_kill" and lowered and raised and counted
    )
    result.note = (
        "" if result.ok else f"{closed['outcome']} lowered={lowered} raised={raised} counted={counted}"
    )


def _since_kill(site: Site, opened: Event) -> float | None:
    """Seconds from Ray's own line of the kill to the incident, by the wall clock of this one machine."""
    logs = [path.read_text(errors="replace") for path in site.work.glob("?/session_2*/logs/raylet.out")]
    lines = [
        line for log in logs for line in log.splitlines() if "Killing" in line and "kill details" in line
    ]
    if not lines:
        return None
    killed = dt.datetime.fromisoformat(min(line[1:24] for line in lines).replace(",", ".")).astimezone()
    seen = dt.datetime.fromisoformat(opened["timestamp"])
    return round((seen - killed).total_seconds(), 2)


async def worker_sigkill(site: Site, result: Result) -> None:
    """SIGKILL of the vLLM worker on spark-b."""
    await recovers(site, result, lambda: faults.kill(one(faults.on_node(site.worker, faults.Role.WORKER))))


async def raylet_sigkill(site: Site, result: Result) -> None:
    """SIGKILL of spark-b's raylet."""
    await recovers(site, result, lambda: faults.kill(one(faults.on_node(site.worker, faults.Role.RAYLET))))


async def serve_sigkill(site: Site, result: Result) -> None:
    """SIGKILL of the API server; the real one leaves EngineCore and workers behind."""
    await recovers(site, result, lambda: faults.kill(one(faults.on_node(site.head, faults.Role.API_SERVER))))


async def hang(site: Site, result: Result) -> None:
    """SIGSTOP of a worker under load: /health says 200 all the time."""
    target = load.Target(site.head, site.head.fabric_address, API_PORT, SERVED)
    worker = one(faults.on_node(site.worker, faults.Role.WORKER))
    with load.load(target, streams=2, max_requests=100, max_s=60):
        await recovers(site, result, lambda: faults.send(worker, signal.SIGSTOP), 120)


async def head_daemon_stopped(site: Site, result: Result) -> None:
    """The head's sparkd stands still for two minutes under load: nothing may happen to serving."""
    head = site.cluster.head
    generation = (await head.status())["generation"]
    before = set(stamped_processes(CLUSTER))
    target = load.Target(site.head, site.head.fabric_address, API_PORT, SERVED)
    head.kill(signal.SIGSTOP)
    try:
        with load.load(target, streams=1, max_requests=2000, max_s=STOOD_STILL_S + 30) as report:
            await asyncio.sleep(STOOD_STILL_S)
    finally:
        head.kill(signal.SIGCONT)
    watcher = Watcher(site)
    await watcher.event("loop stalled", 30)
    await asyncio.sleep(15)  # long enough for every silence deadline that had not begun anew
    status = await head.status()
    same = status["phase"] == "serving" and status["generation"] == generation
    alive = before <= set(stamped_processes(CLUSTER))
    result.ok = same and alive and report.errors == 0 and report.tokens > 0
    result.cause = "none"
    result.note = f"{report.tokens} tokens, {report.errors} errors meanwhile, phase {status['phase']}"


async def corrupt_weights(site: Site, result: Result) -> None:
    """A shard is damaged while the model is down: the start must be escalated, not repeated."""
    head = site.cluster.head
    await head.ask("POST", "/verb", {"verb": "stop", "by": "lab"})
    await site.cluster.phase("stopped", 60, len(head.events) - 1)
    await asyncio.to_thread(site.damage)
    generation = (await head.status())["generation"]
    result.settings_before = (await head.status())["settings"]["in_force"]
    watcher = Watcher(site)
    await head.ask("POST", "/verb", {"verb": "start", "by": "lab"})
    closed = await watcher.outcome(result)
    status = await head.status()
    once = status["generation"] == generation + 1
    clean = not stamped_processes(CLUSTER)
    result.ok = closed["outcome"] == "escalated" and result.cause == result.expected_cause and once and clean
    result.note = f"{closed['outcome']}, needs: {closed['needs']}"


ORDER: tuple[tuple[Scenario, str | None], ...] = (
    (first_start, "none"),
    (worker_sigkill, "worker_process_died"),
    (raylet_sigkill, "ray_node_died"),
    (serve_sigkill, "killed_unspecified"),
    (hang, "engine_hang"),
    (ray_oom_kill, "ray_oom_kill"),
    (head_daemon_stopped, "none"),
    (corrupt_weights, "weights_missing_or_corrupt"),
)
