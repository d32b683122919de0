"""The loop's order in one step: on the disk, begun, told."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from sparkd.core import events as ev
from sparkd.core.commands import EndDaemon, StartUnit
from sparkd.core.records import StampAdvanced
from sparkd.core.step import Step
from sparkd.loop import runner
from sparkd.words import Settings, Stamp, UnitName

START = StartUnit(unit=UnitName.SERVE, stamp=Stamp(1, 1), settings=Settings())


def test_what_starts_something_waits_for_the_disk_and_is_on_its_way_before_anybody_is_told(
    monkeypatch,
) -> None:
    """A start waits for no log; a log tells of nothing that has not begun."""
    done: list[str] = []
    told = asyncio.Event()

    async def append(_records) -> None:
        await asyncio.get_running_loop().run_in_executor(None, done.append, "on disk")

    async def send() -> None:
        done.append("sent")

    async def begin(tasks) -> None:
        done.append("begun")
        tasks.append(asyncio.create_task(send()))

    def observe(*_) -> None:
        done.append("told")
        told.set()

    async def main() -> None:
        tasks: list[asyncio.Task[None]] = []
        loop = runner.Loop(
            None,
            None,
            clock=SimpleNamespace(now=lambda: 0.0),
            store=SimpleNamespace(append=append),
            execute=lambda _: tasks.append(asyncio.create_task(begin(tasks))),
            observe=observe,
            stepped=lambda *_: None,
        )
        loop.emit(ev.TimerFired())
        running = asyncio.create_task(loop.run())
        async with asyncio.timeout(10):
            await told.wait()
        running.cancel()

    monkeypatch.setattr(runner, "next_deadline", lambda _: None)
    monkeypatch.setattr(runner, "step", lambda *_: Step(None, (START,), (StampAdvanced(Stamp(1, 1)),)))
    asyncio.run(main())

    assert done == ["on disk", "begun", "sent", "told"]


def loop_of(commands, monkeypatch, **ports) -> runner.Loop:
    """Return a loop with one event, whose step gives these commands."""
    monkeypatch.setattr(runner, "next_deadline", lambda _: None)
    monkeypatch.setattr(runner, "step", lambda *_: Step(None, commands, ()))
    loop = runner.Loop(
        None,
        None,
        **{
            "clock": SimpleNamespace(now=lambda: 0.0),
            "store": None,
            "stepped": lambda *_: None,
            **ports,
        },
    )
    loop.emit(ev.TimerFired())
    return loop


def test_the_step_that_ends_the_daemon_is_told(monkeypatch) -> None:
    """Its command is carried out, and ends this loop, before anybody would have been told."""
    told: list[object] = []

    async def main() -> None:
        async def end() -> None:
            running.cancel()

        loop = loop_of(
            (EndDaemon(),),
            monkeypatch,
            execute=lambda _: asyncio.create_task(end()),
            observe=lambda *_: told.append("told"),
        )
        running = asyncio.create_task(loop.run())
        async with asyncio.timeout(10):
            await asyncio.wait([running])

    asyncio.run(main())
    assert told == ["told"]


def test_a_step_that_cannot_be_carried_out_is_told_before_the_loop_ends(monkeypatch) -> None:
    told: list[object] = []

    def fail(_command) -> None:
        raise LookupError("a defect")

    loop = loop_of((START,), monkeypatch, execute=fail, observe=lambda *_: told.append("told"))
    with pytest.raises(LookupError, match="a defect"):
        asyncio.run(loop.run())
    assert told == ["told"]


def test_what_others_do_meanwhile_is_no_part_of_how_long_a_step_took(monkeypatch) -> None:
    now_s = [100.0]
    took: list[float] = []
    tasks: list[asyncio.Task[None]] = []

    async def main() -> None:
        async def begin() -> None:
            now_s[0] += 5.0

        def execute(_command) -> None:
            now_s[0] += 0.25
            tasks.append(asyncio.create_task(begin()))

        def stepped(took_s: float, _late_s: float) -> None:
            took.append(took_s)
            running.cancel()

        loop = loop_of(
            (START,),
            monkeypatch,
            clock=SimpleNamespace(now=lambda: now_s[0]),
            execute=execute,
            observe=lambda *_: None,
            stepped=stepped,
        )
        running = asyncio.create_task(loop.run())
        async with asyncio.timeout(10):
            await asyncio.wait([running])

    asyncio.run(main())
    assert took == [0.25]
