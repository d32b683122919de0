"""The pump of the memory guard: changes are told, a trip once, and one of before this daemon to people."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from structlog.testing import capture_logs

from sim.world import ENFORCING, UNSEEN
from sparkd.core.events import Event, GuardObserved, SignalSeen
from sparkd.core.messages import GuardSeen
from sparkd.loop import pumps
from sparkd.signals.model import Proof, Signal

TRIP = Signal(
    "memory_guard_killed", "memory_guard_kill", Proof.PROVES, "a", "sparkd-guard", "it", 5.0, fatal=True
)
BEFORE = replace(TRIP, fatal=False, quote="one of last week")


class Guard:
    """Says one thing after the other, and ends the pump after the last."""

    def __init__(self, *said: tuple[GuardSeen, list[Signal]]) -> None:
        self.said = list(said)
        self.asked = 0

    def read(self) -> GuardSeen:
        if not self.said:
            raise asyncio.CancelledError
        guard, self.waiting = self.said.pop(0)
        return guard

    def trips(self) -> list[Signal]:
        self.asked += 1
        found, self.waiting = self.waiting, []
        return found


def pumped(monkeypatch, guard: Guard) -> list[Event]:
    monkeypatch.setattr(pumps, "GUARD_EVERY_S", 0.0)
    told: list[Event] = []

    async def run() -> None:
        await asyncio.gather(pumps.pump_guard(guard, told.append), return_exceptions=True)

    asyncio.run(run())
    return told


def test_only_a_change_is_told(monkeypatch) -> None:
    guard = Guard((ENFORCING, []), (ENFORCING, []), (UNSEEN, []), (UNSEEN, []), (ENFORCING, []))
    assert pumped(monkeypatch, guard) == [GuardObserved(g) for g in (ENFORCING, UNSEEN, ENFORCING)]


def test_a_trip_is_looked_for_at_the_start_and_where_the_guard_says_so(monkeypatch) -> None:
    tripped = replace(ENFORCING, trips=1)
    guard = Guard((ENFORCING, []), (ENFORCING, [TRIP]), (tripped, [TRIP]), (tripped, []))
    told = pumped(monkeypatch, guard)
    assert told == [GuardObserved(ENFORCING), SignalSeen(TRIP), GuardObserved(tripped)]
    assert guard.asked == 2


def test_a_trip_of_before_this_daemon_is_told_to_people_too_and_whose_it_was_the_core_knows(
    monkeypatch,
) -> None:
    with capture_logs() as lines:
        told = pumped(monkeypatch, Guard((ENFORCING, [BEFORE])))
    assert told == [SignalSeen(BEFORE), GuardObserved(ENFORCING)]
    assert [line["quote"] for line in lines] == ["one of last week"]
