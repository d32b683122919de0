"""The loop's order in one step: on the disk, begun, told."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

from sparkd.core import events as ev
from sparkd.core.commands import StartUnit
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
