"""Units over a bus that a test answers: where a start runs is asked then, and a refusal says what to do."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sparkd.adapters import services
from sparkd.adapters.cgroups import Groups
from sparkd.adapters.dbus import SERVICE, BusLostError, RefusedError
from sparkd.adapters.services import service
from sparkd.adapters.systemd import Systemd
from sparkd.core.events import UnitEmptied, UnitUnkillable
from sparkd.engines.model import Rendered
from sparkd.words import Stamp, UnitName

SERVE = UnitName.SERVE
UNIT = service(SERVE)
PID = 4711
DEADLINE_S = 10.0


class Systemd1:
    """One unit of systemd, in the place of the bus: an operator's drop-in has moved it to another slice."""

    is_up = True

    def __init__(self, root: Path) -> None:
        self.procs = root / "other.slice" / UNIT / "cgroup.procs"
        self.shown: dict[str, Any] = {"LoadState": "loaded", "Slice": "sparkd-engine.slice"}
        self.answers = True
        self.asked = asyncio.Event()
        self.start: Callable[[], Awaitable[None]] = self.fail

    def __call__(self, _rules, heard, came_up, *, address) -> Systemd1:
        self.heard, self.came_up = heard, came_up
        return self

    async def close(self) -> None:
        """Nothing is held."""

    async def properties(self, _path: str) -> dict[str, Any]:
        if not self.answers:
            raise BusLostError("nobody answers")
        return dict(self.shown)

    async def manager(self, member: str, _signature: str = "", *body: Any) -> list[Any]:
        if member == "StartUnit":
            self.asked.set()
            await self.start()
        return [[]]

    def move(self) -> None:
        """What is told from the next look on, as after a reload."""
        self.shown["Slice"] = "other.slice"

    def run(self) -> None:
        """A process of the unit is there, and no SIGKILL ends it."""
        self.move()
        self.shown["ControlGroup"] = f"/other.slice/{UNIT}"
        self.procs.parent.mkdir(parents=True)
        self.procs.write_text(f"{PID}\n", encoding="ascii")

    async def fail(self) -> None:
        """The start fails, and something of it lives on."""
        self.run()
        self.shown["Result"] = "failed"
        self.heard(SimpleNamespace(path="", member="JobRemoved", body=[1, "/job/1", UNIT, "failed"]))

    async def lose(self) -> None:
        """The start is begun, its answer is lost."""
        self.run()
        raise BusLostError("lost")

    async def hang(self) -> None:
        """The start is begun and goes on."""
        self.run()
        await asyncio.Event().wait()


@pytest.fixture
def bed(tmp_path, monkeypatch):
    """Play a scenario with systemd as it stands and the adapter, which has looked before the drop-in came."""

    def play(scenario: Callable[[Systemd1, Systemd, list[object]], Awaitable[None]]) -> None:
        async def main() -> None:
            told: list[object] = []
            systemd = Systemd1(tmp_path / "cgroup")
            monkeypatch.setattr(services, "SystemBus", systemd)
            (tmp_path / "run").mkdir()
            units = Systemd(
                tmp_path / "run", told.append, groups=Groups([tmp_path / "cgroup"]), kill_deadline_s=0.0
            )
            await units.sweep()
            async with asyncio.timeout(DEADLINE_S):
                await scenario(systemd, units, told)
            await units.close()

        asyncio.run(main())

    return play


def rendered(generation: int = 7) -> Rendered:
    return Rendered(SERVE, Stamp(3, generation), ("/bin/true",), ())


@pytest.mark.parametrize("how", ["fail", "lose"])
def test_what_a_failed_start_left_in_another_group_is_not_told_as_dead(bed, how) -> None:
    async def scenario(systemd: Systemd1, units: Systemd, told: list[object]) -> None:
        systemd.start = getattr(systemd, how)
        with pytest.raises(OSError, match=r"failed|lost"):
            await units.start(rendered())
        await units.stop(SERVE, 7, 0.0)
        assert told == [UnitUnkillable(SERVE, 7, (PID,))]
        systemd.procs.write_text("", encoding="ascii")
        await units.stop(SERVE, 7, 0.0)
        assert told[1:] == [UnitEmptied(SERVE, 7)]

    bed(scenario)


def test_where_nobody_answers_nothing_is_told(bed) -> None:
    async def scenario(systemd: Systemd1, units: Systemd, told: list[object]) -> None:
        async def lost() -> None:
            systemd.answers = False
            await systemd.lose()

        systemd.start = lost
        with pytest.raises(BusLostError):
            await units.start(rendered())
        with pytest.raises(BusLostError):
            await units.stop(SERVE, 7, 0.0)
        assert told == []
        systemd.answers = True
        await units.stop(SERVE, 7, 0.0)
        assert told == [UnitUnkillable(SERVE, 7, (PID,))]

    bed(scenario)


def test_a_stop_that_overtakes_the_start_looks_where_it_runs(bed) -> None:
    async def scenario(systemd: Systemd1, units: Systemd, told: list[object]) -> None:
        systemd.start = systemd.hang
        starting = asyncio.create_task(units.start(rendered()))
        await systemd.asked.wait()
        await units.stop(SERVE, 7, 0.0)
        starting.cancel()
        assert told == [UnitUnkillable(SERVE, 7, (PID,))]

    bed(scenario)


def test_a_bus_that_came_back_is_asked_before_a_start(bed) -> None:
    async def scenario(systemd: Systemd1, units: Systemd, told: list[object]) -> None:
        systemd.run()
        systemd.came_up()
        with pytest.raises(OSError, match="an earlier serve is not empty"):
            await units.start(rendered())
        assert not systemd.asked.is_set()

    bed(scenario)


def test_an_answer_that_fails_when_nobody_waits_any_more_is_no_news(bed) -> None:
    unfetched: list[str] = []

    async def scenario(systemd: Systemd1, units: Systemd, told: list[object]) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, said: unfetched.append(said["message"]))
        failing, asked = asyncio.Event(), asyncio.Event()

        async def fail_later(_path: str) -> dict[str, Any]:
            asked.set()
            await failing.wait()
            raise BusLostError("lost")

        systemd.properties = fail_later
        stopping = asyncio.create_task(units.stop(SERVE, 7, 0.0))
        await asked.wait()
        (answer,) = (task for task in asyncio.all_tasks() if task.get_name() == "facts-serve")
        stopping.cancel()
        await asyncio.wait([stopping])
        failing.set()
        await asyncio.wait([answer])

    bed(scenario)
    gc.collect()
    assert unfetched == []


@pytest.mark.parametrize(
    ("name", "todo"),
    [
        ("NoSuchUnit", "sudo sparkctl install"),
        ("UnitMasked", f"sudo systemctl unmask {UNIT}"),
        ("LoadFailed", f"systemctl cat {UNIT}"),
        ("BadUnitSetting", f"systemctl cat {UNIT}"),
    ],
)
def test_a_unit_that_cannot_be_started_says_what_to_do(bed, name, todo) -> None:
    async def scenario(systemd: Systemd1, units: Systemd, told: list[object]) -> None:
        async def refuse() -> None:
            raise RefusedError(f"{SERVICE}.{name}", "systemd refuses StartUnit: so it is")

        systemd.start = refuse
        with pytest.raises(FileNotFoundError, match=f"{UNIT} .*so it is") as refused:
            await units.start(rendered())
        said = [
            what for what in ("sparkctl install", "unmask", "systemctl cat") if what in str(refused.value)
        ]
        assert todo in str(refused.value)
        assert len(said) == 1

    bed(scenario)
