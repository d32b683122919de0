"""Carries out commands: each in a task of its own with a name and a deadline; outcomes come back as events.

Nothing is decided here. What an adapter raises becomes `CommandFailed`, is logged and counted; the core
treats it like a probe that did not answer.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import structlog

from sparkd.core import commands as co
from sparkd.core import events as ev
from sparkd.engines.model import Rendered
from sparkd.loop.pumps import tell_trips
from sparkd.ports import (
    Api,
    Bus,
    Emit,
    MemoryGuard,
    ModelFiles,
    PeerUnreachableError,
    PeerView,
    RayTable,
    Sources,
    Units,
)
from sparkd.words import Settings, Stamp, UnitName

log = structlog.get_logger()

Render = Callable[[UnitName, Stamp, Settings], Rendered]

DEADLINE_S = 30.0
"""For a command whose adapter has no deadline of its own."""


@dataclass(frozen=True, slots=True)
class World:
    """Everything outside, as the executor uses it."""

    units: Units
    sources: Sources
    bus: Bus
    peers: PeerView
    ray: RayTable
    api: Api
    model: ModelFiles
    guard: MemoryGuard
    render: Render
    end: Callable[[], None]


class Executor:
    """Turns commands into calls of adapters."""

    def __init__(self, world: World, emit: Emit) -> None:
        self.failed = 0
        self._world = world
        self._emit = emit
        self._tasks: set[asyncio.Task[None]] = set()
        self._handlers: dict[type, Callable[[Any], Awaitable[None]]] = {
            co.SweepLeftovers: self._sweep,
            co.StartUnit: self._start,
            co.StopUnit: self._stop,
            co.DrainSources: self._drain,
            co.CheckModel: self._check_model,
            co.EvictPages: lambda _: world.model.evict(),
            co.ProbeMembership: self._membership,
            co.ProbeEngine: self._engine,
            co.SendCanary: self._canary,
            co.ProbePeer: self._probe_peer,
            co.PublishStatus: lambda c: world.bus.publish(c.status),
            co.PublishIntent: lambda c: world.bus.publish(c.intent),
            co.PublishReport: lambda c: world.bus.publish(c.report),
            co.PublishTelemetry: lambda c: world.bus.publish(c.telemetry),
            co.PublishIncident: lambda c: world.bus.publish(c.notice),
            co.LeaseFloor: self._lease,
            co.EndDaemon: self._end,
        }

    def __call__(self, command: co.Command) -> None:
        """Start carrying out *command*."""
        task = asyncio.get_running_loop().create_task(self._guarded(command), name=type(command).__name__)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Cancel what is still under way."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _guarded(self, command: co.Command) -> None:
        name = type(command).__name__
        try:
            async with asyncio.timeout(_deadline(command)):
                await self._handlers[type(command)](command)
        except Exception as error:  # noqa: BLE001 - the boundary of executor tasks
            self.failed += 1
            reason = f"{type(error).__name__}: {error}"[:300]
            log.warning("command failed", command=name, reason=reason)
            self._emit(_failed(command, reason))

    async def _sweep(self, _command: co.SweepLeftovers) -> None:
        swept = await self._world.units.sweep()
        self._emit(swept)
        # After the event: what they say is of a unit that the core knows.
        found_units: list[ev.RunningUnit | ev.EndedUnit] = [*swept.running, *swept.ended]
        for found in found_units:
            self._world.sources.resume(found.unit, found.stamp.generation)

    async def _start(self, command: co.StartUnit) -> None:
        generation = command.stamp.generation
        self._world.sources.open(command.unit, generation)
        try:
            rendered = self._world.render(command.unit, command.stamp, command.settings)
            await self._world.units.start(rendered)
        except (OSError, ValueError) as error:
            failed = ev.UnitStartFailed(unit=command.unit, generation=generation, reason=str(error)[:300])
            self._emit(failed)

    async def _stop(self, command: co.StopUnit) -> None:
        """Look again before the irreversible: what is dead already was not killed by us."""
        with contextlib.suppress(OSError, TimeoutError):  # a mere look must never prevent the end
            names = await self._world.units.names(command.unit, command.generation)
            self._emit(ev.UnitSurveyed(unit=command.unit, generation=command.generation, names=names))
        await self._world.units.stop(command.unit, command.generation, command.grace_s)

    async def _drain(self, command: co.DrainSources) -> None:
        await self._world.sources.drain(command.generation)
        tell_trips(self._world.guard, self._emit)
        self._emit(ev.SourcesDrained(generation=command.generation))

    async def _check_model(self, _command: co.CheckModel) -> None:
        self._emit(await self._world.model.check())

    async def _membership(self, command: co.ProbeMembership) -> None:
        self._emit(await self._world.ray.observe(command.generation))

    async def _engine(self, command: co.ProbeEngine) -> None:
        self._emit(await self._world.api.observe(command.generation))

    async def _canary(self, command: co.SendCanary) -> None:
        self._emit(await self._world.api.canary(command.generation, command.deadline_s))

    async def _probe_peer(self, command: co.ProbePeer) -> None:
        try:
            status = await self._world.peers.status(command.node)
            self._emit(ev.StatusReceived(status=status, path=ev.Path.HTTP))
            if command.reports_from is not None:
                report = await self._world.peers.reports(command.node, command.reports_from)
                if report is not None:
                    self._emit(ev.ReportReceived(report=report, path=ev.Path.HTTP))
            self._emit(ev.PeerProbed(node=command.node, reached=True))
        except PeerUnreachableError as error:
            said, received = str(error)[:300], self._world.peers.received_bytes()
            self._emit(ev.PeerProbed(command.node, False, said, host=error.host, received_bytes=received))

    async def _lease(self, command: co.LeaseFloor) -> None:
        self._world.guard.lease(command.phase, command.floor_bytes)

    async def _end(self, _command: co.EndDaemon) -> None:
        self._world.end()


def _failed(command: co.Command, reason: str) -> ev.CommandFailed:
    name = type(command).__name__
    if isinstance(command, co.StartUnit):
        return ev.CommandFailed(name, reason, command.unit, command.stamp.generation)
    return ev.CommandFailed(name, reason)


def _deadline(command: co.Command) -> float:
    """Return the longest that carrying out *command* may take, seconds."""
    if isinstance(command, co.SendCanary):
        return command.deadline_s + 5.0
    if isinstance(command, co.StopUnit):
        return command.grace_s + DEADLINE_S
    return DEADLINE_S
