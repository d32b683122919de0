"""The daemon's side of the memory guard: floors for it, its state and its trips from it.

The guard is another process and needs nothing of this. Floors are a small file that is replaced whole, good
until it says; the guard's status and its records are files of its own, read and never written here. Whatever
cannot be read, is of another boot or is old is a guard that is not seen, which is never an enforcing one.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import structlog

from sparkd.core.messages import GuardSeen
from sparkd.files import replace_whole
from sparkd.ports import Clock
from sparkd.signals.model import Proof, Quantity, Signal
from sparkd.words import Phase

log = structlog.get_logger(__name__)

# The guard looks at least once a second and says so once a second; three may be late on a starved node.
SEEN_WITHIN_S = 4.0
# Renewed well before its end, so that a loop that stood still for some seconds does not lose it.
LEASE_S = 30.0
SIGNAL = "memory_guard_killed"
"""The catalogue's name for a guard's kill, read in a log or here."""
# What is taken and given back within a moment is the nature of these phases: their spikes recover.
_SPIKES = frozenset({Phase.PROFILING, Phase.CAPTURING_GRAPHS})
_SPIKE_SHARE = 2 / 3
_FILE_MAX_BYTES = 1 << 20
_TEXTS_MAX, _TEXT_MAX = 16, 300  # what a status of the node carries of them
_QUOTE_MAX = 400
_READS = 3


def floor_of(phase: Phase, floor_bytes: int) -> int:
    """Return the floor of a phase, in bytes: *floor_bytes*, and two thirds of it where spikes recover."""
    return int(floor_bytes * _SPIKE_SHARE) if phase in _SPIKES else floor_bytes


class Guard:
    """Files between the daemon and the guard.

    Args:
        clock: monotonic seconds, the same as the guard's (CLOCK_MONOTONIC of this node).
        node: this node's name, for the signals.
        floors: the file that the guard reads the floors from.
        status: the guard's status.
        state: the directory of its records.
        boot: this boot's id; a trip of another boot is told with `at_s` of 0, before this one began, and is
            never fatal.
    """

    def __init__(
        self,
        clock: Clock,
        node: str,
        *,
        floors: Path,
        status: Path,
        state: Path,
        boot: str = "",
    ) -> None:
        self._clock, self._node, self._boot = clock, node, boot
        self._floors, self._status, self._state = floors, status, state
        self._begun_s = clock.now()
        self._told: set[tuple[str, float]] = set()
        self._complained = False

    def lease(self, phase: Phase, floor_bytes: int) -> None:
        """Ask for the phase's floor for the next `LEASE_S`; where that cannot be written, say so once."""
        text = (
            f"sparkd-floors 1\nphase={phase.value}\nfloor_bytes={floor_of(phase, floor_bytes)}\n"
            f"until_s={self._clock.now() + LEASE_S:.3f}\nend\n"
        )
        try:
            self._make_folder()
            replace_whole(self._floors, text.encode("ascii"), 0o644)
        except OSError as error:
            if not self._complained:
                log.warning(
                    "guard_floors_not_written",
                    path=str(self._floors),
                    reason=str(error),
                    note="the guard keeps its own lowest floor; make the directory writable for the daemon",
                )
            self._complained = True
            return
        self._complained = False

    def _make_folder(self) -> None:
        """Make it open to the guard, which is root without root's right to read everything."""
        if not self._floors.parent.is_dir():
            self._floors.parent.mkdir(parents=True)
            self._floors.parent.chmod(0o755)

    def read(self) -> GuardSeen:
        """Return what is known of the guard now."""
        status = self._read_status()
        if status is None:
            return GuardSeen(reason=f"{self._status} is missing or torn (docs/guard.md)"[:_TEXT_MAX])
        age_s = self._clock.now() - _number(status.get("look_s"), -math.inf)
        floor = status.get("floor_bytes")
        if not -SEEN_WITHIN_S <= age_s <= SEEN_WITHIN_S:
            # Without its age, which would be news every second.
            late = f"the guard has not looked for more than {SEEN_WITHIN_S:g} s"
            return GuardSeen(reason=f"{late}: it is dead or stands still")
        enforcing = status.get("mode") == "enforce"
        blind = not status.get("pools")
        reason = "it only observes" if not enforcing else "it cannot read this node's memory" if blind else ""
        return GuardSeen(
            alive=True,
            enforcing=enforcing and not blind,
            floor_bytes=floor if isinstance(floor, int) else None,
            leased=status.get("floor_from") == "daemon",
            trips=int(_number(status.get("trips"), 0)),
            notes=_texts(status.get("notes")),
            rivals=_rivals(status.get("rivals")),
            reason=reason,
        )

    def trips(self) -> list[Signal]:
        """Return a signal for each trip that was not returned before, oldest first.

        A trip shows in the status at once and in a record when it is over. The first call returns those of
        earlier daemons and boots as well: what the last boot died of may stand there. What is not whole is
        left for the next call.
        """
        found = {_key(each): each for each in self._all_trips() if each.get("enforced") is True}
        new = [found[key] for key in sorted(found) if key not in self._told]
        self._told = set(found)
        return [self._signal(each) for each in new]

    def _all_trips(self) -> Iterator[dict[str, Any]]:
        status = self._read_status()
        if status is not None and isinstance(status.get("trip"), dict):
            yield status["trip"] | {"boot": status.get("boot")}
        with contextlib.suppress(OSError):
            for path in self._state.glob("trip-*.json"):
                record = _read_json(path)
                if record is not None:
                    yield record

    def _signal(self, trip: dict[str, Any]) -> Signal:
        now = self._clock.now()
        same_boot = bool(self._boot) and trip.get("boot") == self._boot
        at_s = min(_number(trip.get("at_s"), now), now) if same_boot else 0.0
        return Signal(
            id=SIGNAL,
            cause="memory_guard_kill",
            proof=Proof.PROVES,
            fatal=same_boot and at_s >= self._begun_s,
            node=self._node,
            source="sparkd-guard",
            quote=f"sparkd-guard: {trip.get('says', 'trip')}"[:_QUOTE_MAX],
            at_s=at_s,
            phase=_phase(trip.get("phase")),
            quantities=_quantities(trip),
        )

    def _read_status(self) -> dict[str, Any] | None:
        """Return the status, None where it is not there; it may take two reads."""
        for _ in range(_READS):
            found = _read_json(self._status)
            if found is not None and found.get("seq") == found.get("seq_end"):
                return found
        return None


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return None
    with contextlib.suppress(OSError, ValueError, RecursionError), os.fdopen(fd, "rb") as file:
        found = json.loads(file.read(_FILE_MAX_BYTES))
        if isinstance(found, dict):
            return found
    return None


def _key(trip: dict[str, Any]) -> tuple[str, float]:
    return str(trip.get("boot")), _number(trip.get("at_s"), 0.0)


def _number(value: object, otherwise: float) -> float:
    good = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if good and isinstance(value, int | float) else otherwise


def _texts(value: object) -> tuple[str, ...]:
    return tuple(str(each)[:_TEXT_MAX] for each in value[:_TEXTS_MAX]) if isinstance(value, list) else ()


def _rivals(value: object) -> tuple[str, ...]:
    found = [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []
    said = [f"{each.get('says', each.get('name'))}; first to act: {each.get('first')}" for each in found]
    return _texts(said)


def _phase(value: object) -> Phase | None:
    try:
        return Phase(str(value))
    except ValueError:
        return None


def _quantities(record: dict[str, Any]) -> tuple[Quantity, ...]:
    """Return the trip's numbers in the words of the catalogue, in bytes; of what it does not tell, none."""
    numbers = {name: _number(record.get(name), math.nan) for name in ("total_bytes", "available_bytes")}
    total, available = numbers["total_bytes"], numbers["available_bytes"]
    found = {
        "used_bytes": total - available,
        "total_bytes": total,
        "available_bytes": available,
        "floor_bytes": _number(record.get("floor_bytes"), math.nan),
        "fall_bytes_per_s": _number(record.get("fall_bytes_per_s"), math.nan),
        "victims_count": _number(record.get("victims"), math.nan),
    }
    return tuple(Quantity(name, value) for name, value in found.items() if not math.isnan(value))
