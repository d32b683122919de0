"""Units as systemd's own: sparkd-ray.service and sparkd-serve.service, over the system bus.

How the rules are kept:
- **Dead = group empty.** Only an empty control group, read from the file system, is told as empty; the unit's
  state is never asked for that (systemd starts a second process beside a left-over one, sparkd does not).
- **Levels, not edges.** A signal of the bus only says "look again"; what a look finds is compared by the
  invocation. So a lost signal, a lost bus and a new daemon all cost time and never truth.
- **sparkd ends units by killing, never by stop jobs.** A stop job is therefore always somebody else's
  (`UnitStoppedByHand`), and at a shutdown our own end of the engine does not wait in systemd's queue.
- **What systemd forgets** after an exit with 0 is kept by a reference on the unit, and by the note of its
  ExecStopPost= where the bus was gone.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Coroutine
from pathlib import Path

import structlog

from sparkd.adapters.cgroups import Groups
from sparkd.adapters.launch import (
    Launch,
    LaunchError,
    read_exit,
    read_launch,
    read_ran,
    remove_launch,
    write_launch,
)
from sparkd.adapters.proctree import read_name
from sparkd.adapters.services import KILL_DEADLINE_S, Services, group_in, service, soon
from sparkd.adapters.unitfacts import Ending, Facts, ending_of
from sparkd.adapters.unitwatch import LOOK_EVERY_S, Follower, Watch
from sparkd.core.events import (
    EndedUnit,
    LeftoversSwept,
    RunningUnit,
    UnitEmptied,
    UnitStarted,
    UnitUnkillable,
)
from sparkd.engines.digest import node_digest
from sparkd.engines.model import Rendered
from sparkd.ports import Emit
from sparkd.words import Stamp, UnitName

log = structlog.get_logger(__name__)

# What earlier daemons left gets this long to remove its shared memory before SIGKILL.
SWEEP_GRACE_S = 2.0
# systemd's exit status where it could not execute the program (systemd.exec(5)).
EXIT_EXEC = 203


class Systemd:
    """The port `Units` over systemd.

    Args:
        run_dir: where launch files and notes of exits stand.
        emit: takes the events, on the loop's thread.
        groups: the control groups; None = this machine's.
        bus_address: of the system bus; None = the system's own.
        proc_root: the proc file system, for names of processes.
        kill_deadline_s: SIGKILL to "unkillable".
    """

    def __init__(
        self,
        run_dir: Path,
        emit: Emit,
        *,
        groups: Groups | None = None,
        bus_address: str | None = None,
        proc_root: Path = Path("/proc"),
        kill_deadline_s: float = KILL_DEADLINE_S,
    ) -> None:
        self._run_dir, self._emit = run_dir, emit
        self._proc = proc_root
        self._kill_deadline_s = kill_deadline_s
        self._watches: dict[UnitName, Watch] = {}
        self._abandoned: set[asyncio.Task[None]] = set()
        self._services = Services(groups or Groups.of_this_machine(), self._news, bus_address)
        self._follower = Follower(self._services, run_dir, emit, kill_deadline_s)
        self.leaving = self._services.leaving

    async def start(self, rendered: Rendered) -> None:
        """Start the unit, once a generation. Raises OSError where it cannot be started at all."""
        unit, generation = rendered.unit, rendered.stamp.generation
        watch = self._watches.get(unit)
        if watch and watch.stamp.generation == generation:
            if watch.exited.is_set():
                raise OSError(errno.EEXIST, f"{unit} of generation {generation} has been started before")
            self._emit(UnitStarted(unit, generation, watch.pid))
            return
        watch = Watch(unit, rendered.stamp, await self._services.group_seen(unit))
        before = self._watches.get(unit)
        if self._services.pids(watch.group) or (before and not before.emptied.is_set()):
            raise OSError(errno.EBUSY, f"an earlier {unit} is not empty")
        write_launch(self._run_dir, Launch(unit, watch.stamp, rendered.settings, node_digest((rendered,))))
        self._watches[unit] = watch
        try:
            await self._bring_up(watch)
        except OSError:
            await self._follower.abandon(watch)
            raise
        except asyncio.CancelledError:
            self._aside(self._follower.abandon(watch))
            raise
        log.info("unit_started", unit=unit.value, generation=generation, pid=watch.pid)
        self._emit(UnitStarted(unit, generation, watch.pid))
        watch.task = asyncio.create_task(self._follower.follow(watch), name=f"follow-{unit}")

    async def stop(self, unit: UnitName, generation: int, grace_s: float) -> None:
        """End the unit's whole tree, a unit of an earlier daemon too; see `ports.Units.stop`."""
        if self._abandoned:  # it kills by the unit's name: nothing new may start beside it
            await asyncio.wait(self._abandoned)
        watch = self._watches.get(unit)
        if watch is None or watch.stamp.generation < generation:
            watch = Watch(unit, Stamp(0, generation), "")
        if watch.stamp.generation > generation or watch.emptied.is_set():
            self._emit(UnitEmptied(unit, generation))
            return
        remove_launch(self._run_dir, unit)  # what ends by our order is nobody's news to the next daemon
        if watch.task is None:  # nobody has seen yet where it runs
            watch.group = group_in(await self._services.facts(unit), unit)
        survivors = await self._services.end(
            unit, watch.group, grace_s, self._kill_deadline_s, told=watch.exited.is_set()
        )
        if survivors:
            log.error("unit_unkillable", unit=unit.value, generation=generation, pids=survivors)
            self._emit(UnitUnkillable(unit, generation, survivors))
        elif watch.task:
            await watch.emptied.wait()
        else:
            watch.exited.set()
            watch.emptied.set()
            self._emit(UnitEmptied(unit, generation))

    async def names(self, unit: UnitName, generation: int) -> tuple[str, ...]:
        """Return the names (comm) of the unit's living processes, sorted; none where it has none."""
        watch = self._watches.get(unit)
        if watch is None or watch.stamp.generation != generation or watch.emptied.is_set():
            return ()
        return tuple(sorted({read_name(self._proc, pid) for pid in self._services.pids(watch.group)} - {""}))

    async def sweep(self) -> LeftoversSwept:
        """Take over what runs by an order that can be trusted, kill the rest; see `ports.Units.sweep`."""
        generations: set[int] = set()
        survivors: list[int] = []
        running: list[RunningUnit] = []
        ended: list[EndedUnit] = []
        for unit in reversed(UnitName):
            watch = self._watches.get(unit)
            facts = await self._services.facts(unit)
            group = group_in(facts, unit)
            if watch and not watch.emptied.is_set():
                continue
            launch, lives = self._ordered(unit), bool(self._services.pids(group))
            runs = launch is not None and lives and ending_of(facts) is None
            if launch and not runs:
                ended.append(self._ended(launch, facts))
            if not lives:
                continue
            generations |= {launch.stamp.generation} if launch else set()
            if launch and runs:
                self._take_over(Watch(unit, launch.stamp, group, facts.invocation, facts.exec_pid))
                running.append(RunningUnit(unit, launch.stamp, launch.settings))
            else:
                survivors += await self._services.end(unit, group, SWEEP_GRACE_S, self._kill_deadline_s)
                log.warning("leftovers_swept", unit=unit.value, order=launch, survivors=survivors)
        return LeftoversSwept(
            tuple(sorted(generations)),
            tuple(sorted(survivors)),
            tuple(reversed(running)),
            tuple(reversed(ended)),
        )

    async def close(self) -> None:
        """Release resources. Does not end units."""
        tasks = [*self._abandoned, *(watch.task for watch in self._watches.values() if watch.task)]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._services.close()

    async def _bring_up(self, watch: Watch) -> None:
        """Have systemd start it, and wait until `sparkd exec` has become the engine or has refused."""
        over = self._services.jobs[watch.unit]
        await self._services.enqueue_start(watch.unit)
        await soon(over, LOOK_EVERY_S)  # systemd answers a question before it runs what is enqueued
        over = self._services.jobs[watch.unit]
        while (facts := await self._looked(watch)).job_id:
            await soon(over, LOOK_EVERY_S)
            over = self._services.jobs[watch.unit]
        ran, invocation = read_ran(self._run_dir, watch.unit)
        if ran != watch.stamp:
            why = facts.status_text or f"its start ended with {facts.result} ({facts.main_status})"
            number = errno.ENOEXEC if facts.main_status == EXIT_EXEC else errno.EIO
            raise OSError(number, f"{service(watch.unit)}: {why}")
        watch.invocation, watch.pid = invocation, facts.exec_pid

    async def _looked(self, watch: Watch) -> Facts:
        """Return what systemd says, and keep where the unit runs: also of a start that fails."""
        facts = await self._services.facts(watch.unit)
        watch.group = group_in(facts, watch.unit)
        return facts

    def _take_over(self, watch: Watch) -> None:
        """Follow what an earlier daemon started."""
        log.info("unit_taken_over", unit=watch.unit.value, generation=watch.stamp.generation, pid=watch.pid)
        self._watches[watch.unit] = watch
        watch.task = asyncio.create_task(self._follower.follow(watch), name=f"follow-{watch.unit}")

    def _ordered(self, unit: UnitName) -> Launch | None:
        """Return the order by which the unit runs, None where none can be trusted."""
        try:
            launch, (ran, _) = read_launch(self._run_dir, unit), read_ran(self._run_dir, unit)
        except LaunchError as error:
            log.warning("launch_unreadable", unit=unit.value, reason=str(error))
            return None
        return launch if launch and launch.stamp == ran else None

    def _ended(self, launch: Launch, facts: Facts) -> EndedUnit:
        """Tell how it ended, once, by systemd's word or, where that has forgotten, by the unit's own note."""
        remove_launch(self._run_dir, launch.unit)
        _, invocation = read_ran(self._run_dir, launch.unit)
        known = ending_of(facts) if facts.invocation == invocation else None
        ending = known or read_exit(self._run_dir, launch.unit, invocation) or Ending()
        log.info("unit_ended_meanwhile", unit=launch.unit.value, stamp=launch.stamp, ending=ending)
        return EndedUnit(
            launch.unit, launch.stamp, launch.settings, ending.code, ending.signal, by_hand=ending.by_job
        )

    def _aside(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._abandoned.add(task)
        task.add_done_callback(self._abandoned.discard)

    def _news(self, units: frozenset[UnitName]) -> None:
        for unit in units & self._watches.keys():
            self._watches[unit].changed.set()
