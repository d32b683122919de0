"""What only systemd's units have to do: orders that count once, hands, a lost bus, limits."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from contract.units_world import (
    CLUSTER,
    EPOCH,
    GENERATIONS,
    PROC,
    RAY,
    SERVE,
    SETTINGS,
    UP,
    World,
    alive,
)
from sparkd.adapters.launch import Launch, launch_path, write_launch
from sparkd.adapters.services import service
from sparkd.core.events import (
    EndedUnit,
    LeftoversSwept,
    RunningUnit,
    UnitEmptied,
    UnitExited,
    UnitStarted,
    UnitStoppedByHand,
)
from sparkd.engines.digest import node_digest
from sparkd.words import Settings, Stamp
from standin.wait import until

pytestmark = [pytest.mark.process, pytest.mark.nodes]
UNIT = service(SERVE)


def shown(world: World, *names: str) -> dict[str, str]:
    lines = world.node.run("systemctl", "show", UNIT, *(f"-p{name}" for name in names)).stdout.splitlines()
    return dict(line.split("=", 1) for line in lines)


def started_by_hand(world: World) -> dict[str, str]:
    """Start the unit as an operator would; return what systemd shows of it then."""
    world.node.run("systemctl", "start", UNIT, check=False)
    return shown(world, "ExecMainStatus", "StatusText", "ActiveState")


def order(world: World, stamp: Stamp, digest: str) -> None:
    write_launch(world.node.path("/run/sparkd"), Launch(SERVE, stamp, Settings(), digest))


def test_an_order_runs_once(on_systemd) -> None:
    """Who starts the unit by hand brings nothing back: neither the order that has ended, nor a copy of it."""

    async def scenario(world: World) -> None:
        rendered = world.rendered(UP)
        await world.units.start(rendered)
        await world.next()
        await world.heard("up")
        copy = launch_path(world.node.path("/run/sparkd"), SERVE).read_text(encoding="utf-8")
        await world.units.stop(SERVE, world.generation, 5.0)

        refused = started_by_hand(world)
        assert refused["ExecMainStatus"] == "78"
        assert "there is no order" in refused["StatusText"]

        launch_path(world.node.path("/run/sparkd"), SERVE).write_text(copy, encoding="utf-8")
        refused = started_by_hand(world)
        assert (refused["ExecMainStatus"], refused["ActiveState"]) == ("78", "failed")
        assert f"generation {world.generation} (epoch 3) has been run before" in refused["StatusText"]

        order(world, Stamp(99, world.generation - 1), node_digest((rendered,)))
        assert "has been run before" in started_by_hand(world)["StatusText"]
        assert world.words.empty()

    on_systemd(scenario)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "launch-serve.json: Expecting value"),
        ("{}", "must be there"),
        ('{"unit": "ray", "stamp": [1, 99], "settings": {}, "digest": "a"}', "launch-serve.json: "),
        ("[" * 5000, "longer than"),
    ],
    ids=["empty", "bare", "of another", "long"],
)
def test_an_order_that_cannot_be_understood_is_refused(on_systemd, text, said) -> None:
    async def scenario(world: World) -> None:
        launch_path(world.node.path("/run/sparkd"), SERVE).write_text(text, encoding="utf-8")
        refused = started_by_hand(world)
        assert refused["ExecMainStatus"] == "78"
        assert said in refused["StatusText"]
        assert await world.units.sweep() == LeftoversSwept(())

    on_systemd(scenario)


@contextmanager
def configured(world: World, line: str) -> Iterator[None]:
    """Have one more line at the end of the node's configuration."""
    config = world.node.path("/etc/sparkd/sparkd.toml")
    before = config.read_text(encoding="utf-8")
    config.write_text(f"{before}{line}\n", encoding="utf-8")
    try:
        yield
    finally:
        config.write_text(before, encoding="utf-8")


def test_a_configuration_that_has_changed_is_refused(on_systemd) -> None:
    """What would run is no more what the daemon has told the cluster."""

    async def scenario(world: World) -> None:
        wrong = pytest.raises(OSError, match=r"not the one that was ordered.*systemctl restart sparkd")
        with configured(world, 'extra_args = ["--swap-space=4"]'), wrong:
            await world.units.start(world.rendered(UP))
        assert world.events.empty()
        assert shown(world, "ExecMainStatus") == {"ExecMainStatus": "78"}

    on_systemd(scenario)


def test_a_broken_configuration_is_told_by_the_start(on_systemd) -> None:
    async def scenario(world: World) -> None:
        wrong = pytest.raises(OSError, match=r"engine\.vllm\.api_port = 0: must be")
        with configured(world, "api_port = 0"), wrong:
            await world.units.start(world.rendered(UP))

    on_systemd(scenario)


def test_what_amounts_to_the_order_runs_whatever_else_the_file_says(on_systemd) -> None:
    """A slip of an editor elsewhere in the file is the daemon's to refuse, not a relaunch's at night."""

    async def scenario(world: World) -> None:
        with configured(world, "ports = 1"):
            root = await world.start(UP)
            await world.heard("up")
            assert alive(root)

    on_systemd(scenario)


@pytest.mark.parametrize("end", ["rest()", "signal.signal(signal.SIGTERM, lambda *_: os._exit(3)); rest()"])
def test_a_stop_by_hand_is_told_as_such(on_systemd, end) -> None:
    async def scenario(world: World) -> None:
        await world.start(f"say('up'); {end}")
        await world.heard("up")
        world.node.run("systemctl", "stop", UNIT)
        assert await world.next() == UnitStoppedByHand(SERVE, world.generation)
        assert isinstance(await world.next(), UnitExited)
        assert await world.next() == UnitEmptied(SERVE, world.generation)

    on_systemd(scenario)


def test_a_stop_by_hand_is_told_to_the_daemon_that_comes_in_between(on_systemd) -> None:
    async def scenario(world: World) -> None:
        root = await world.start(f"deaf(); {UP}")
        await world.heard("up")
        await world.units.close()
        world.node.run("systemctl", "stop", "--no-block", UNIT)
        await world.restarted()
        assert len((await world.units.sweep()).running) == 1
        os.kill(root, signal.SIGKILL)
        assert await world.next() == UnitStoppedByHand(SERVE, world.generation)
        assert await world.next() == UnitExited(SERVE, world.generation, signal=9)
        assert await world.next() == UnitEmptied(SERVE, world.generation)

    on_systemd(scenario)


@pytest.mark.parametrize(
    ("end", "how"),
    [
        ("rest()", {"signal": 15}),
        ("signal.signal(signal.SIGTERM, lambda *_: os._exit(0)); rest()", {"code": 0}),
    ],
    ids=["SIGTERM", "exit 0"],
)
def test_a_stop_by_hand_is_told_to_the_daemon_that_was_away(on_systemd, end, how) -> None:
    """Also where systemd itself has forgotten it: the unit's own notes tell."""

    async def scenario(world: World) -> None:
        await world.start(f"say('up'); {end}")
        await world.heard("up")
        await world.units.close()
        world.node.run("systemctl", "stop", UNIT)
        world.units = world.backend()
        ended = EndedUnit(SERVE, Stamp(EPOCH, world.generation), SETTINGS, **how, by_hand=True)
        assert await world.units.sweep() == LeftoversSwept((), ended=(ended,))

    on_systemd(scenario)


@pytest.mark.parametrize(
    ("end", "how"),
    [
        ("os._exit(0)", {"code": 0}),
        ("os._exit(7)", {"code": 7}),
        ("os.kill(os.getpid(), 15)", {"signal": 15}),
    ],
    ids=["exit 0", "exit 7", "SIGTERM"],
)
def test_an_end_is_told_to_the_daemon_that_was_away(on_systemd, end, how) -> None:
    async def scenario(world: World) -> None:
        root = await world.start(f"signal.signal(signal.SIGUSR1, lambda *_: {end}); {UP}")
        await world.heard("up")
        await world.units.close()
        os.kill(root, signal.SIGUSR1)
        await until(lambda: shown(world, "ActiveState")["ActiveState"] in {"inactive", "failed"})
        world.units = world.backend()
        ended = EndedUnit(SERVE, Stamp(EPOCH, world.generation), SETTINGS, **how)
        assert await world.units.sweep() == LeftoversSwept((), ended=(ended,))

    on_systemd(scenario)


def test_an_end_that_was_ordered_is_no_news_to_the_next_daemon(on_systemd) -> None:
    async def scenario(world: World) -> None:
        root = await world.start(f"deaf(); {UP}")
        await world.heard("up")
        stopping = asyncio.create_task(world.units.stop(SERVE, world.generation, 30.0))
        await until(lambda: not launch_path(world.node.path("/run/sparkd"), SERVE).exists())
        stopping.cancel()
        await world.units.close()
        os.kill(root, signal.SIGKILL)
        await until(lambda: shown(world, "ActiveState")["ActiveState"] in {"inactive", "failed"})
        world.units = world.backend()
        assert await world.units.sweep() == LeftoversSwept(())

    on_systemd(scenario)


def test_the_same_again_is_run_as_it_was_rendered(on_systemd) -> None:
    """Its own note stands there for the next start; what is run bears the new generation."""

    async def scenario(world: World) -> None:
        note = world.node.path("/run/sparkd/serve/rendered")
        note.unlink(missing_ok=True)
        for generation in (world.generation, next(GENERATIONS)):
            before = note.exists() and note.stat().st_ino
            root = await world.start(UP, generation=generation)
            await world.heard("up")
            mark = f"SPARKD_STAMP={CLUSTER}/one/{generation}/serve".encode()
            assert mark in (PROC / str(root) / "environ").read_bytes().split(b"\0")
            assert before in {False, note.stat().st_ino}
            await world.units.stop(SERVE, generation, 5.0)
            while not isinstance(await world.next(), UnitEmptied):
                pass

    on_systemd(scenario)


def test_a_kill_by_hand_is_an_end_like_any_other(on_systemd) -> None:
    async def scenario(world: World) -> None:
        await world.start(UP)
        await world.heard("up")
        world.node.run("systemctl", "kill", "-s", "INT", UNIT)
        assert await world.next() == UnitExited(SERVE, world.generation, signal=2)
        assert await world.next() == UnitEmptied(SERVE, world.generation)

    on_systemd(scenario)


def test_the_next_daemon_takes_over_what_runs(on_systemd) -> None:
    async def scenario(world: World) -> None:
        serve = await world.start(UP)
        await world.heard("up")
        ray = await world.start(UP, unit=RAY)
        await world.heard("up")
        await world.restarted()
        stamp = Stamp(EPOCH, world.generation)
        both = (RunningUnit(RAY, stamp, SETTINGS), RunningUnit(SERVE, stamp, SETTINGS))
        assert await world.units.sweep() == LeftoversSwept((world.generation,), (), both)
        assert await world.units.sweep() == LeftoversSwept(())
        assert alive(serve)
        assert alive(ray)
        assert world.events.empty()
        os.kill(serve, signal.SIGKILL)
        assert await world.next() == UnitExited(SERVE, world.generation, signal=9)
        assert await world.next() == UnitEmptied(SERVE, world.generation)
        await world.units.stop(RAY, world.generation, 5.0)
        assert await world.next() == UnitExited(RAY, world.generation, signal=15)
        assert not alive(ray)

    on_systemd(scenario)


@pytest.mark.parametrize("text", ["", "no order", None], ids=["empty", "damaged", "lost"])
def test_what_runs_by_no_order_is_not_taken_over(on_systemd, text) -> None:
    """Nobody knows its generation: it is swept."""

    async def scenario(world: World) -> None:
        root = await world.start(f"deaf(); {UP}")
        await world.heard("up")
        path = launch_path(world.node.path("/run/sparkd"), SERVE)
        path.unlink()
        if text is not None:
            path.write_text(text, encoding="utf-8")
        await world.restarted()
        assert await world.units.sweep() == LeftoversSwept(())
        assert not alive(root)

    on_systemd(scenario)


def test_an_order_that_was_not_run_takes_nothing_over(on_systemd) -> None:
    """A daemon that died between its order and the start of the unit: what runs is not what was ordered."""

    async def scenario(world: World) -> None:
        rendered = world.rendered(UP)
        root = await world.start(UP)
        await world.heard("up")
        order(world, Stamp(EPOCH, world.generation + 1), node_digest((rendered,)))
        await world.restarted()
        assert (await world.units.sweep()).running == ()
        assert not alive(root)

    on_systemd(scenario)


def bus(world: World, verb: str) -> None:
    """Take the system bus away, or bring it back; its clients lose their connections."""
    world.node.run("systemctl", verb, "dbus.socket", "dbus.service")


def test_a_lost_bus_is_no_end(on_systemd) -> None:
    async def scenario(world: World) -> None:
        root = await world.start(UP)
        await world.heard("up")
        bus(world, "stop")
        try:
            assert await world.units.names(SERVE, world.generation) != ()
            assert world.events.empty()
        finally:
            bus(world, "start")
        os.kill(root, signal.SIGKILL)
        assert await world.next() == UnitExited(SERVE, world.generation, signal=9)
        assert await world.next() == UnitEmptied(SERVE, world.generation)

    on_systemd(scenario)


@pytest.mark.parametrize(
    ("ending", "exited"),
    [("os._exit(0)", {"code": 0}), ("os._exit(7)", {"code": 7}), ("os.kill(os.getpid(), 9)", {"signal": 9})],
    ids=["exit 0", "exit 7", "SIGKILL"],
)
def test_an_end_while_the_bus_is_away_is_read_from_the_units_own_note(on_systemd, ending, exited) -> None:
    code = f"""
        signal.signal(signal.SIGUSR1, lambda *_: {ending})
        say("up"); rest()
    """

    async def scenario(world: World) -> None:
        root = await world.start(code)
        await world.heard("up")
        bus(world, "stop")
        try:
            os.kill(root, signal.SIGUSR1)
            assert await world.next() == UnitExited(SERVE, world.generation, **exited)
            assert await world.next() == UnitEmptied(SERVE, world.generation)
        finally:
            bus(world, "start")

    on_systemd(scenario)


def test_without_a_bus_nobody_says_what_runs_and_nothing_is_told_unkillable(on_systemd, monkeypatch) -> None:
    monkeypatch.setattr("sparkd.adapters.dbus.CALL_DEADLINE_S", 0.5)

    async def scenario(world: World) -> None:
        root = await world.start(UP)
        await world.heard("up")
        bus(world, "stop")
        try:
            with pytest.raises(OSError, match="bus"):
                await world.units.stop(SERVE, world.generation, 0.1)
            await world.units.close()
            world.units = world.backend()
            with pytest.raises(OSError, match="bus"):
                await world.units.sweep()
            assert alive(root)
            assert world.events.empty()
        finally:
            bus(world, "start")

    on_systemd(scenario)


def test_the_process_has_the_limits_that_the_engine_needs(on_systemd) -> None:
    async def scenario(world: World) -> None:
        root = await world.start(UP)
        await world.heard("up")
        limits = (PROC / str(root) / "limits").read_text(encoding="utf-8")
        assert (PROC / str(root) / "oom_score_adj").read_text(encoding="utf-8").strip() == "500"
        assert "/sparkd.slice/sparkd-engine.slice/sparkd-serve.service" in (
            PROC / str(root) / "cgroup"
        ).read_text(encoding="utf-8")
        assert shown(world, "LimitMEMLOCK") == {"LimitMEMLOCK": "infinity"}
        core = next(line for line in limits.splitlines() if line.startswith("Max core file size"))
        assert core.split()[4:6] == ["0", "0"]
        owner = (PROC / str(root)).stat().st_uid
        assert world.node.run("id", "-u", "sparkd-engine").stdout.strip() == str(owner)

    on_systemd(scenario)


def test_a_start_that_is_given_up_runs_nothing(on_systemd) -> None:
    """The unit's own program hangs before it has become the engine, as on a disk that does not answer."""

    async def scenario(world: World) -> None:
        config = world.node.path("/etc/sparkd/sparkd.toml")
        before = config.read_text(encoding="utf-8")
        config.unlink()
        os.mkfifo(config)
        try:
            starting = asyncio.ensure_future(world.units.start(world.rendered(UP)))
            await until(lambda: _has_reader(config))
            starting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await starting
            assert not launch_path(world.node.path("/run/sparkd"), SERVE).exists()
            await world.units.stop(SERVE, world.generation, 0.1)
            assert await world.next() == UnitEmptied(SERVE, world.generation)
        finally:
            config.unlink()
            config.write_text(before, encoding="utf-8")
        await world.units.start(world.rendered(UP, generation=world.generation + 1))
        assert isinstance(await world.next(), UnitStarted)

    on_systemd(scenario)


def _has_reader(fifo: Path) -> bool:
    """Whether somebody has opened it to read."""
    try:
        os.close(os.open(fifo, os.O_WRONLY | os.O_NONBLOCK))
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        return False
    return True
