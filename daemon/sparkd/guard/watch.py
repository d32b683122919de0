"""The loop: look, decide, act, keep house, sleep. One thread; whatever may block is the clerk's."""

from __future__ import annotations

import os
import signal
import time

from sparkd.guard import locked, report
from sparkd.guard.cgroups import GroupScope
from sparkd.guard.clerk import Clerk
from sparkd.guard.decide import STALLED, Floors, Level
from sparkd.guard.lease import LeaseFile
from sparkd.guard.members import rehearse
from sparkd.guard.rivals import Rivals
from sparkd.guard.shm import SharedMemory
from sparkd.guard.sight import Sight
from sparkd.guard.telling import Notes, Records, StatusFile, Systemd, read_line
from sparkd.guard.tree import TreeScope
from sparkd.guard.trip import Trip
from sparkd.guard.trips import Desk, Trips

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from sparkd.guard.settings import Settings

BLIND_PAUSE_S = 0.05
# Longest step of a start before systemd takes it for hung: its own time-out (DefaultTimeoutStartSec=).
START_STEP_S = 90
# Housekeeping waits while the floor is nearer than this, but not for ever; one thing a look near the floor.
URGENT_S, OVERDUE_S, CALM_PAUSE_S = 0.2, 2.0, 0.05


class Chore:
    """Something to be done once in a while."""

    __slots__ = ("at_s", "every_s", "what")

    def __init__(self, every_s: float, what: Callable[[float], None]) -> None:
        self.every_s, self.what, self.at_s = every_s, what, float("-inf")


class Watch:
    """All that one guard knows, and its loop."""

    def __init__(
        self, settings: Settings, status: StatusFile | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.settings, self.clock, self._status = settings, clock, status
        self.systemd = Systemd(os.environ.get("NOTIFY_SOCKET", ""))
        self.notes, self.clerk = Notes(), Clerk()
        self.scope = TreeScope(settings, self.clerk) if settings.tree else GroupScope(settings)
        self.sight, self.lease = Sight(settings), LeaseFile(settings)
        self.records = Records(settings.state_dir)
        self.shm = SharedMemory(settings.shm_root, settings.proc_root)
        self.rivals = Rivals(settings.proc_root, settings.docker_root)
        desk = Desk(self.scope, self.sight, self.lease, self.clerk)
        tellers = (self.records, self.shm, self.rivals, self.notes)
        self.trips = Trips(settings, desk, tellers, clock, self.tell)
        self.started_at_s = self.look_at_s = clock()
        self._boot = read_line(f"{settings.proc_root}/sys/kernel/random/boot_id")
        self.looks = 0
        self.pause_s = settings.poll_most_s
        self.stopping = False
        self._chores = self._all_chores()

    def _all_chores(self) -> list[Chore]:
        return [
            Chore(1.0, self.lease.refresh),
            Chore(2.0, lambda _now: self.scope.recount()),
            Chore(5.0, lambda _now: self.scope.seek()),
            Chore(2.0, lambda now: self.sight.weigh_stall(now, self.lease.lease.phase)),
            Chore(1.0, self.tell),
            Chore(5.0, lambda _now: self.sight.pools.refresh(self.scope.path)),
            Chore(10.0, self._ask_for_shm),
            Chore(60.0, self._ask_for_survey),
        ]

    def prepare(self) -> list[bytes]:
        """Take memory, lock it, look around, rehearse; return what has to be kept for the heap to stay."""
        settings = self.settings
        self._goes_on()
        locked.settle_malloc()
        self.notes.note("priority", locked.go_first(settings.realtime))
        self.clerk.start()  # with the same priority: it may hold the interpreter when the loop wants it
        self.records.prepare()
        self._goes_on()
        self.sight.pools.host.weigh_reserve()
        self.notes.note("oom", locked.go_last())
        self.notes.note("files", locked.hold_many())
        kept = locked.take_ahead()
        self._goes_on()
        self._rehearse()
        self._goes_on()
        self.notes.note("lock", locked.lock())
        locked.freeze()
        self.tell(self.clock())  # who waits for it to be up finds it enforcing
        return kept

    def _goes_on(self) -> None:
        """Have systemd wait for the next step of a start that may be slow, but never for one that hangs."""
        self.systemd.tell(f"EXTEND_TIMEOUT_USEC={START_STEP_S * 1_000_000}")

    def _rehearse(self) -> None:
        """Go the whole way to a kill once, with signal 0, so that its pages are here and its code is warm."""
        self.scope.refresh()
        self.keep_house(self.clock())
        for _ in range(3):
            self.look(self.clock())
        level = Level("rehearsal", 1, 1, 1)
        trip = Trip(STALLED, level, Floors(0, 0), self.clock())
        for _ in range(3):
            trip.strike(self.scope, 0, self.clock)
        rehearse(self.clock)
        report.trip_says(trip, "", self.trips.enforce)

    def run(self) -> None:
        """Guard until told to stop."""
        while not self.stopping:
            now = self.clock()
            self.pause_s = self.look(now)
            self.keep_house(now)
            spent_s = self.clock() - now
            if self.pause_s > spent_s:
                time.sleep(self.pause_s - spent_s)

    def look(self, now: float) -> float:
        """Look once, act where that is due; return how long may be slept."""
        self.looks += 1
        self.look_at_s = now
        found = self.sight.look(now, self.lease.lease.floor)
        if found is None:
            self.notes.note(
                "memory", "memory is unknown: MemAvailable cannot be read here; nothing is guarded"
            )
            return BLIND_PAUSE_S
        worst, pause_s = found
        if self.trips.now is not None:
            self.trips.go_on(self.trips.now, now)
        elif worst is None:
            return pause_s
        elif not self.trips.act(*worst, now):
            return BLIND_PAUSE_S  # nobody to kill: to strike at the air a hundred times a second helps nobody
        return self.settings.poll_least_s

    def keep_house(self, now: float) -> None:
        """Do what is due: all in calm, one thing a look near the floor, nothing on the last yards to it."""
        urgent = self.trips.now is not None or self.sight.to_floor_s() < URGENT_S
        for chore in self._chores:
            late_s = now - chore.at_s - chore.every_s
            if late_s >= 0 and (not urgent or late_s > OVERDUE_S):
                chore.at_s = now
                chore.what(now)
                if self.pause_s < CALM_PAUSE_S:
                    return

    def _ask_for_shm(self, _now: float) -> None:
        if self.settings.shm and self.scope.held.members:
            self.clerk.ask("shm", self.shm.observe, list(self.scope.held.members))

    def _ask_for_survey(self, _now: float) -> None:
        total = self.sight.seen[0][0].total if self.sight.seen else 0
        self.clerk.ask("survey", self.rivals.survey, total)
        self.clerk.ask("reserve", self.sight.pools.host.weigh_reserve)

    def status(self, now: float) -> dict[str, Any]:
        """Return the status as it is written."""
        lease = self.lease.lease
        self.notes.note("cma", self.sight.pools.host.cma_note())
        self.notes.note("records", self.records.note)
        return {
            "boot": self._boot,
            "pid": os.getpid(),
            "mode": self.settings.mode,
            "started_s": self.started_at_s,
            "look_s": self.look_at_s,
            "told_s": now,
            "looks": self.looks,
            "pause_s": self.pause_s,
            "phase": lease.phase,
            "floor_bytes": lease.floor,
            "floor_from": "default" if lease.note else "daemon",
            "floor_note": lease.note,
            "lease_until_s": lease.until_s or None,
            "pools": self.sight.pools_now(),
            "signals": report.signals_object(self.sight.pools.host),
            "scope": {
                "path": self.scope.path or f"tree of {self.settings.tree}",
                "there": self.scope.there,
                "members": len(self.scope.held.members),
                "kills_by": self.scope.how,
            },
            "clerk_busy": self.clerk.busy,
            "notes": self.notes.texts(),
            "rivals": [rival.as_dict(lease.floor) for rival in self.rivals.found],
            "trips": self.trips.count,
            "trip": self.trips.last,
        }

    def tell(self, now: float) -> None:
        """Write the status, and tell systemd that the loop goes round."""
        if self._status is not None:
            fits = self._status.write(self.status(now))
            self.notes.note(
                "status", "" if fits else "the status could not be written: too long, or its file is gone"
            )
        self.systemd.tell("WATCHDOG=1")

    def is_up(self) -> None:
        """Tell systemd that the start is over, again and again: a busy one loses what it is sent."""
        said = Chore(1.0, lambda _now: self.systemd.tell("READY=1"))
        said.what(self.clock())
        self._chores.append(said)

    def stop(self, *_: object) -> None:
        """End after the look that is under way; takes what a signal handler is given."""
        self.stopping = True

    def listen(self) -> None:
        """End in order on SIGTERM and SIGINT."""
        signal.signal(signal.SIGTERM, self.stop)
        signal.signal(signal.SIGINT, self.stop)
