"""What is said of a trip and of the guard's state: sentences and the objects of status and record."""

from __future__ import annotations

import signal

from sparkd.guard.curve import FIELDS
from sparkd.guard.telling import gib, plain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from sparkd.guard.decide import Floors, Level
    from sparkd.guard.members import Member
    from sparkd.guard.pools import Host
    from sparkd.guard.trip import Trip

VICTIMS_TOLD = 512
REASONS = {
    "below_floor_slowly": "below the floor, slowly enough to ask first",
    "below_floor_fast": "below the floor and falling too fast to ask first",
    "below_hard_floor": "below the hard floor",
    "below_floor_and_numbers_disagree": "below the floor for several looks, though MemFree says otherwise",
    "stalled_for_memory": "every task stood still for memory while next to nothing was free",
}


def trip_says(trip: Trip, phase: str, enforce: bool) -> str:
    """Return the trip in one sentence; the catalogue of signatures knows its beginning."""
    counts: dict[str, int] = {}
    for member in trip.victims:
        counts[member.role] = counts.get(member.role, 0) + 1
    roles = ", ".join(f"{count} {role}" for role, count in counts.items()) or "none"
    level = trip.level
    free = "unknown" if level.free is None else gib(level.free)
    did = "killed" if enforce else "would have killed (observing)"
    asked = " after SIGTERM" if trip.termed_at_s is not None and trip.killed_at_s is not None else ""
    return (
        f"trip: {did} {len(trip.victims)} processes of the engine ({roles}){asked}: {level.name} had "
        f"{gib(level.available)} available of {gib(level.total)} (free {free}), floor "
        f"{gib(trip.floors.floor)}, falling {gib(max(trip.fall, 0))}/s: {REASONS[trip.code]}"
        + (f"; phase {phase}" if phase else "")
    )


def trip_object(trip: Trip, phase: str, enforce: bool, now: float) -> dict[str, Any]:
    """Return the trip's facts, for the status."""
    level = trip.level
    return {
        "code": trip.code,
        "says": trip_says(trip, phase, enforce),
        "used": list(trip.used),
        "enforced": enforce,
        "phase": phase,
        "at_s": trip.at_s,
        "pool": level.name,
        "total_bytes": level.total,
        "available_bytes": level.available,
        "free_bytes": level.free,
        "floor_bytes": trip.floors.floor,
        "hard_floor_bytes": trip.floors.hard,
        "fall_bytes_per_s": int(trip.fall),
        "first_signal": _first_signal(trip, enforce),
        "struck_after_s": trip.struck_s,
        "emptied_after_s": None if trip.emptied_at_s is None else trip.emptied_at_s - trip.at_s,
        "victims": len(trip.victims),
        "left": [member.pid for member in trip.left],
        "page_faults": trip.faults,
        "age_s": now - trip.at_s,
    }


def _first_signal(trip: Trip, enforce: bool) -> str:
    if not enforce:
        return "none"
    return signal.Signals(signal.SIGTERM if trip.termed_at_s is not None else signal.SIGKILL).name


def victims(members: list[Member]) -> list[dict[str, Any]]:
    """Return who was killed, in order."""
    return [
        {
            "pid": member.pid,
            "role": member.role,
            "name": plain(member.comm),
            "place": plain(member.place.encode()),
        }
        for member in members[:VICTIMS_TOLD]
    ]


def signals_object(host: Host) -> dict[str, Any]:
    """Return every number of the node beside the levels."""
    return {
        "mem_free_bytes": host.raw_free,
        "kept_back_bytes": host.kept_back,
        "swap_used_bytes": host.swap_used,
        "swap_total_bytes": host.swap_total,
        "cma_total_bytes": host.cma_total,
        "cma_free_bytes": host.cma_free,
        "psi_some_us": host.some_us,
        "psi_full_us": host.full_us,
    }


def pool_object(level: Level, floors: Floors, fall: float) -> dict[str, Any]:
    """Return one pool of the status."""
    left = level.available - floors.floor
    return {
        "name": level.name,
        "total_bytes": level.total,
        "available_bytes": level.available,
        "free_bytes": level.free,
        "floor_bytes": floors.floor,
        "hard_floor_bytes": floors.hard,
        "fall_bytes_per_s": int(fall),
        "to_floor_s": left / fall if fall > 0 and left > 0 else None,
    }


def curve_object(rows: list[list[float | None]]) -> dict[str, Any]:
    """Return the last minute, as columns' names and rows; `at_s` is relative to the trip."""
    return {"fields": list(FIELDS), "rows": rows}
