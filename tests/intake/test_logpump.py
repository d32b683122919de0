"""What the host says belongs to the start of the engine in which it was said."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from sparkd.core.events import Event, SignalSeen
from sparkd.engines.lines import read_line
from sparkd.intake.logpump import HOST, LogPump
from sparkd.intake.pump import Intake
from sparkd.signals.catalogue import packaged_catalogue
from sparkd.words import UnitName

KILL = b"Memory cgroup out of memory: Killed process 9635 (VLLM::Worker) total-vm:1kB, anon-rss:1kB\n"


@dataclass
class _Clock:
    now_s: float = 0.0

    def now(self) -> float:
        return self.now_s


def _pump() -> tuple[LogPump, _Clock, list[float]]:
    clock, told = _Clock(), list[float]()

    def emit(event: Event) -> None:
        assert isinstance(event, SignalSeen)
        told.append(event.signal.at_s)

    return LogPump(Intake("a", packaged_catalogue(), read_line), clock, emit), clock, told


def _kill(pump: LogPump, clock: _Clock, at_s: float) -> None:
    clock.now_s = at_s
    pump.feed("kernel", None, HOST, KILL)


def _drain(pump: LogPump, clock: _Clock, at_s: float) -> None:
    clock.now_s = at_s
    asyncio.run(pump.drain(2))


def test_a_kill_that_was_said_again_before_a_start_is_not_told_at_its_end() -> None:
    pump, clock, told = _pump()
    _kill(pump, clock, 1.0)
    _kill(pump, clock, 2.0)
    pump.open(UnitName.SERVE, 2)
    _drain(pump, clock, 9.0)

    assert told == [1.0]


def test_a_kill_that_is_said_again_after_a_start_is_told_at_its_end() -> None:
    """Also after its second unit has begun."""
    pump, clock, told = _pump()
    _kill(pump, clock, 1.0)
    pump.open(UnitName.RAY, 2)
    _kill(pump, clock, 2.0)
    pump.open(UnitName.SERVE, 2)
    _drain(pump, clock, 29.0)

    assert told == [1.0, 2.0]
