"""Trips as they come: acted on, told, recorded; and what is said where there is nothing to kill."""

from __future__ import annotations

import signal
import time

from sparkd.guard import report
from sparkd.guard.decide import TERM
from sparkd.guard.telling import gib, read_line, say
from sparkd.guard.trip import UNKILLABLE_S, Trip

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from sparkd.guard.clerk import Clerk
    from sparkd.guard.decide import Floors, Level, Verdict
    from sparkd.guard.lease import LeaseFile
    from sparkd.guard.rivals import Rivals
    from sparkd.guard.settings import Settings
    from sparkd.guard.shm import SharedMemory
    from sparkd.guard.sight import Sight
    from sparkd.guard.telling import Notes, Records
    from sparkd.guard.trip import Scope

# A record is written when nothing of the member is left, at the latest after this: the decision waits 2 s.
RECORD_AFTER_S = 1.5
# What is not being killed is said so often, and not at all so soon after a trip, while memory comes back.
NOTHING_EVERY_S, QUIET_AFTER_TRIP_S = 60.0, 30.0


class Desk:
    """What a trip is made with and told by."""

    def __init__(self, scope: Scope, sight: Sight, lease: LeaseFile, clerk: Clerk) -> None:
        self.scope, self.sight, self.lease, self.clerk = scope, sight, lease, clerk


class Trips:
    """The trip that is under way, the last one, and how many there were.

    Args:
        settings: mode and grace.
        desk: scope, sight, floors, clerk.
        tellers: records, shared memory, rivals, notes: where it is told.
        clock: monotonic seconds.
        told: called when the first signal is out.
    """

    def __init__(
        self,
        settings: Settings,
        desk: Desk,
        tellers: tuple[Records, SharedMemory, Rivals, Notes],
        clock: Callable[[], float],
        told: Callable[[float], None],
    ) -> None:
        self._settings, self._desk, self._clock, self._told = settings, desk, clock, told
        self._records, self._shm, self._rivals, self._notes = tellers
        self.enforce = settings.mode == "enforce"
        self.now: Trip | None = None
        self.last: dict[str, Any] | None = None
        self.count = 0
        self._recorded = False
        self._quiet_until_s = 0.0
        self._stuck: set[int] = set()

    def act(self, verdict: Verdict, level: Level, floors: Floors, now: float) -> bool:
        """Begin a trip; where nothing (new) of the engine runs, say that. Returns whether one began."""
        trip = Trip(verdict, level, floors, now)
        trip.fall = self._desk.sight.fall(level.name)
        if self.enforce:
            number = signal.SIGTERM if verdict.act == TERM else signal.SIGKILL
            struck = trip.strike(self._desk.scope, number, self._clock)
        elif now >= self._quiet_until_s:
            trip.victims = self._desk.scope.left()
            struck = bool(trip.victims)
        else:
            return False
        if not struck or (trip.pids and trip.pids <= self._stuck):
            self._nothing_to_kill(level, floors, now)
            return False
        self._begin(trip, now)
        return True

    def _begin(self, trip: Trip, now: float) -> None:
        phase = self._desk.lease.lease.phase
        self._stuck = set()
        self._desk.sight.stalled = False
        self.now, self._recorded = trip, False
        self.count += 1
        self.last = report.trip_object(trip, phase, self.enforce, now)
        self._told(now)
        say(report.trip_says(trip, phase, self.enforce))
        if not self.enforce:
            self._finish(trip, now)

    def _nothing_to_kill(self, level: Level, floors: Floors, now: float) -> None:
        if now < self._quiet_until_s:
            return
        self._quiet_until_s = now + NOTHING_EVERY_S
        text = (
            f"{level.name} has {gib(level.available)} available, below the floor of "
            f"{gib(floors.floor)}, and nothing (new) of the engine runs here: others hold it; nothing is "
            "killed: look who uses it"
        )
        self._notes.note("nothing_to_kill", text)

    def go_on(self, trip: Trip, now: float) -> None:
        """Go on, round by round, until nobody is left."""
        sight, settings = self._desk.sight, self._settings
        level = sight.of(trip.level.name) or trip.level
        number = trip.due(now, level.available, sight.fall(trip.level.name), settings.term_s)
        if number:
            trip.strike(self._desk.scope, number, self._clock)
        if now < trip.next_at_s and not number:
            return
        empty = trip.after_round(self._desk.scope, self._clock())
        killed_for_s = 0.0 if trip.killed_at_s is None else now - trip.killed_at_s
        if empty or killed_for_s > UNKILLABLE_S:
            self._finish(trip, now)
        elif killed_for_s > RECORD_AFTER_S and not self._recorded:
            self._recorded = True
            self._record(trip, now)

    def _finish(self, trip: Trip, now: float) -> None:
        self.now = None
        self._stuck = {member.pid for member in trip.left}
        self._quiet_until_s = now + (QUIET_AFTER_TRIP_S if self.enforce else NOTHING_EVERY_S)
        pids = ", ".join(str(pid) for pid in sorted(self._stuck))
        self._notes.note("unkillable", f"processes {pids} survive SIGKILL: reboot this node" if pids else "")
        self._record(trip, now)

    def _record(self, trip: Trip, now: float) -> None:
        sight, lease = self._desk.sight, self._desk.lease.lease
        summary = report.trip_object(trip, lease.phase, self.enforce, now)
        wall_s = time.time() - (self._clock() - trip.at_s)
        self.last = summary | {"id": f"{int(wall_s * 1000):015d}"}
        record = {
            "version": 1,
            "boot": read_line(f"{self._settings.proc_root}/sys/kernel/random/boot_id"),
            "at_wall_s": wall_s,
            **self.last,
            "victim_list": report.victims(trip.victims),
            "signals": report.signals_object(sight.pools.host),
            "pools": sight.pools_now(),
            "notes": self._notes.texts(),
            "rivals": [rival.as_dict(lease.floor) for rival in self._rivals.found],
            "curve": report.curve_object(sight.curve.rows(trip.at_s)),
        }
        clean = self._settings.shm and self.enforce and not trip.left
        dead = sorted(trip.pids) if clean else []
        self._desk.clerk.ask(f"record {trip.emptied_at_s}", self._write_record, record, dead)

    def _write_record(self, record: dict[str, Any], dead: list[int]) -> None:
        """On the clerk's thread: the record first, then what the dead left, then the record with that."""
        path = self._records.write(record["id"], record)
        removed, kept = self._shm.remove_of(dead) if dead else ([], [])
        if removed or kept:
            left = [{"name": each.name, "bytes": each.bytes} for each in removed]
            path = self._records.write(record["id"], record | {"shm": {"removed": left, "kept": kept}})
            say(f"removed {len(removed)} files that the killed processes left in {self._settings.shm_root}")
        if self.last is not None:
            self.last = self.last | {"record": path}
