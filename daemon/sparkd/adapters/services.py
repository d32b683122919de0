"""The engine's two services as systemd has them: what is asked of the bus, what is read of their groups."""

from __future__ import annotations

import asyncio
import contextlib
import errno
from collections.abc import Callable
from signal import Signals

import structlog
from dbus_fast import Message

from sparkd.adapters.cgroups import Groups, group_of
from sparkd.adapters.dbus import (
    MANAGER,
    MANAGER_PATH,
    PROPERTIES,
    SERVICE,
    RefusedError,
    SystemBus,
    fetched,
    unit_path,
)
from sparkd.adapters.unitfacts import Facts, facts_of
from sparkd.words import UnitName

log = structlog.get_logger(__name__)

SLICE = "sparkd-engine.slice"
TARGET = "sparkd.target"
# Nobody tells that a group has become empty; systemd tells when it has seen that, and then it is looked at
# once more. Should its word be lost, so often.
EMPTY_EVERY_S = 0.05
# After SIGKILL a process ends within milliseconds unless the kernel holds it (D state).
KILL_DEADLINE_S = 5.0
# SIGKILL is repeated: who forks while being killed is caught only so.
KILL_EVERY_S = 0.25
# systemd's answers that say that there is no unit to start, and what is to be done.
_CORRECT = "cannot be used: look with systemctl cat {0}, correct its drop-in (sudo systemctl edit {0})"
NOT_LOADED = {
    f"{SERVICE}.NoSuchUnit": "is not there: type sudo sparkctl install",
    f"{SERVICE}.UnitMasked": "is masked: type sudo systemctl unmask {0}",
    f"{SERVICE}.LoadFailed": _CORRECT,
    f"{SERVICE}.BadUnitSetting": _CORRECT,
}
# systemd's answers that say that there was nobody to kill.
NOBODY = frozenset({f"{SERVICE}.NoSuchUnit", f"{SERVICE}.NoSuchProcess"})


def service(unit: UnitName) -> str:
    """Return the name of the systemd unit."""
    return f"sparkd-{unit}.service"


def group_in(facts: Facts, unit: UnitName) -> str:
    """Return the unit's control group by what systemd says, also of one that it holds for ended."""
    return facts.group or group_of(facts.slice or SLICE, service(unit))


def _rules() -> tuple[str, ...]:
    """Signals of the two units, and of jobs that are done."""
    of = f"type='signal',sender='{SERVICE}'"
    changed = f"{of},interface='{PROPERTIES}',member='PropertiesChanged'"
    jobs = f"{of},interface='{MANAGER}',member='JobRemoved',path='{MANAGER_PATH}'"
    return (*(f"{changed},path='{unit_path(service(unit))}'" for unit in UnitName), jobs)


class Services:
    """The services, without any memory of what was started.

    Attributes:
        jobs: for each unit what is set when systemd's next job for it is over.

    Args:
        groups: the control groups.
        news: called with the units of which something may have changed.
        bus_address: of the system bus; None = the system's own.
    """

    def __init__(
        self, groups: Groups, news: Callable[[frozenset[UnitName]], None], bus_address: str | None
    ) -> None:
        self._groups, self._news = groups, news
        self._units = {unit_path(service(unit)): unit for unit in UnitName}
        self._bus = SystemBus(_rules(), self._heard, self._came_up, address=bus_address)
        self._holding: asyncio.Task[None] | None = None
        self._told = {unit: asyncio.Event() for unit in UnitName}
        self.jobs = {unit: asyncio.Event() for unit in UnitName}
        self._asked: dict[UnitName, asyncio.Task[Facts]] = {}
        self._seen: dict[UnitName, Facts] = {}

    async def facts(self, unit: UnitName) -> Facts:
        """Return what systemd says of the unit now. Raises OSError.

        Who asks while an answer is on its way shares it, unless something was told since it was asked for.
        """
        asked = self._asked.get(unit)
        if asked is None or asked.done():
            asked = self._asked[unit] = asyncio.create_task(_facts(self._bus, unit), name=f"facts-{unit}")
            asked.add_done_callback(fetched)
        facts = self._seen[unit] = await asyncio.shield(asked)
        return facts

    async def group_seen(self, unit: UnitName) -> str:
        """Return the control group as systemd said it last: all that was seen ran there. Raises OSError.

        What starts next may run in another (Slice= of a drop-in): by this one nobody is told as dead.
        """
        return group_in(self._seen.get(unit) or await self.facts(unit), unit)

    def pids(self, group: str) -> tuple[int, ...]:
        """Return the processes of a group. Raises OSError where nobody can say."""
        return self._groups.pids(group)

    async def enqueue_start(self, unit: UnitName) -> None:
        """Have systemd start the unit; refused where a job to stop it waits. Raises OSError."""
        try:
            await self._bus.manager("StartUnit", "ss", service(unit), "fail")
        except RefusedError as error:
            if error.name not in NOT_LOADED:
                raise
            todo = NOT_LOADED[error.name].format(service(unit))
            raise OSError(errno.ENOENT, f"{service(unit)} {todo} ({error.strerror})") from error

    async def end(
        self, unit: UnitName, group: str, grace_s: float, kill_deadline_s: float, *, told: bool = False
    ) -> tuple[int, ...]:
        """SIGTERM to all, after *grace_s* SIGKILL; return the pids that survive it.

        Args:
            unit: what is ended.
            group: its control group.
            grace_s: how long it may take before SIGKILL.
            kill_deadline_s: how long after that before it is unkillable.
            told: its root has ended: systemd has sent SIGTERM to the rest by itself (KillMode=).

        Raises:
            OSError: where no SIGKILL could be delivered, which proves nothing.
        """
        if not told:
            with contextlib.suppress(OSError):  # SIGKILL follows in any case, and tells what is wrong
                await self._kill(unit, Signals.SIGTERM)
        if await self.empty_within(unit, group, grace_s):
            return ()
        deadline_s = asyncio.get_running_loop().time() + kill_deadline_s
        delivered: OSError | None = TimeoutError("not killed yet")
        while asyncio.get_running_loop().time() < deadline_s or delivered:
            try:
                await self._kill(unit, Signals.SIGKILL)
                delivered = None
            except OSError as error:
                if asyncio.get_running_loop().time() >= deadline_s:
                    raise
                log.warning("unit_not_killed", unit=unit.value, reason=str(error))
            if await self.empty_within(unit, group, KILL_EVERY_S):
                return ()
        return self.pids(group)

    async def empty_within(self, unit: UnitName, group: str, within_s: float) -> bool:
        """Wait for the group to be empty; return whether it is. Not to see is not to be gone."""
        deadline_s = asyncio.get_running_loop().time() + within_s
        while True:
            told = self._told[unit]
            with contextlib.suppress(OSError):
                if not self.pids(group) and await self._settled(unit) and not self.pids(group):
                    return True
            left_s = deadline_s - asyncio.get_running_loop().time()
            if left_s <= 0:
                return False
            await soon(told, min(EMPTY_EVERY_S, left_s))

    async def _settled(self, unit: UnitName) -> bool:
        """Whether systemd puts nothing more into the group by itself (ExecStopPost=); proves nothing else."""
        if not self._bus.is_up:
            return True
        try:
            (listed,) = await self._bus.manager("ListUnitsByNames", "as", [service(unit)])
        except OSError:
            return True
        # Name, text, load, active, sub, followed, path, job, ...: a tenth of what all properties take.
        states = [(active, job) for _, _, _, active, _, _, _, job, *_ in listed]
        return all(active in {"inactive", "failed"} and not job for active, job in states)

    async def leaving(self) -> bool:
        """Whether the system is stopping, or sparkd.target was stopped. Raises OSError."""
        manager = await self._bus.properties(MANAGER_PATH)
        if manager.get("SystemState") == "stopping":
            return True
        target = facts_of(await self._bus.properties(unit_path(TARGET)))
        gone = target.loaded and target.active_state not in {"active", "activating"}
        return gone and target.active_exit_us > 0  # never started is not stopped

    async def close(self) -> None:
        """Let the bus go."""
        if self._holding:
            self._holding.cancel()
        await self._bus.close()

    async def _kill(self, unit: UnitName, number: Signals) -> None:
        """Kill every process of the unit; nobody there is not an error."""
        try:
            await self._bus.manager("KillUnit", "ssi", service(unit), "all", int(number))
        except RefusedError as error:
            if error.name not in NOBODY:
                raise

    async def _hold(self) -> None:
        """Keep systemd from forgetting the units as soon as they end (freed when this session ends)."""
        for unit in UnitName:
            try:
                await self._bus.manager("RefUnit", "s", service(unit))
            except OSError as error:
                log.info(
                    "unit_not_held", unit=unit.value, reason=str(error), note="its exit is read from its note"
                )

    def _came_up(self) -> None:
        self._seen.clear()
        self._holding = asyncio.create_task(self._hold(), name="hold-units")
        self._tell(frozenset(UnitName))

    def _heard(self, message: Message) -> None:
        if (unit := self._units.get(message.path or "")) is not None:
            self._tell(frozenset({unit}))
        elif message.member == "JobRemoved":  # number, job, unit, result
            for unit in UnitName:
                if service(unit) in message.body:
                    self.jobs[unit] = _rung(self.jobs[unit])
                    self._tell(frozenset({unit}))

    def _tell(self, units: frozenset[UnitName]) -> None:
        for unit in sorted(units):
            self._asked.pop(unit, None)
            self._told[unit] = _rung(self._told[unit])
        self._news(units)


async def _facts(bus: SystemBus, unit: UnitName) -> Facts:
    return facts_of(await bus.properties(unit_path(service(unit))))


def _rung(event: asyncio.Event) -> asyncio.Event:
    """Wake who waits for *event*; return the one for whoever waits next."""
    event.set()
    return asyncio.Event()


async def soon(event: asyncio.Event, within_s: float) -> None:
    """Wait for *event*, at most *within_s* seconds."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(within_s):
            await event.wait()
