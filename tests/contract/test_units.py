"""The port `Units`: what child processes and systemd have to do alike."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from contract.units_world import DEADLINE_S, EPOCH, RAY, SERVE, SETTINGS, UP, World, alive, frozen
from sparkd.core.events import (
    EndedUnit,
    LeftoversSwept,
    UnitEmptied,
    UnitExited,
    UnitStarted,
    UnitUnkillable,
)
from sparkd.words import Stamp

pytestmark = [pytest.mark.process, pytest.mark.nodes]


@pytest.mark.parametrize(
    ("code", "exit_code", "number"),
    [
        ("sys.exit(3)", 3, None),
        ("sys.exit(0)", 0, None),
        ("os.kill(os.getpid(), signal.SIGKILL)", None, 9),
        ("os.kill(os.getpid(), signal.SIGTERM)", None, 15),
    ],
    ids=["exit 3", "exit 0", "SIGKILL", "SIGTERM"],
)
def test_an_end_is_told_and_then_emptiness(play, code, exit_code, number) -> None:
    async def scenario(world: World) -> None:
        await world.start(code)
        assert await world.next() == UnitExited(SERVE, world.generation, code=exit_code, signal=number)
        assert await world.next() == UnitEmptied(SERVE, world.generation)

    play(scenario)


def test_command_and_environment_are_the_rendered_ones(play) -> None:
    code = """
        import json
        facts = {
            "argv": open("/proc/self/cmdline").read().split(chr(0))[3:-1],
            "env": sorted(open("/proc/self/environ").read().split(chr(0))[:-1]),
            "stdin": os.readlink("/proc/self/fd/0"),
            "fds": [fd for fd in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{fd}")],
        }
        open(PLACE + "/facts", "w").write(json.dumps(facts))
    """

    async def scenario(world: World) -> None:
        rendered = world.rendered(code)
        (world.at / "facts").unlink(missing_ok=True)
        await world.start(code)
        await world.next()
        facts = __import__("json").loads((world.at / "facts").read_text(encoding="utf-8"))
        assert facts["argv"] == list(rendered.argv[1:])
        assert facts["env"] == sorted(f"{name}={value}" for name, value in rendered.env)
        assert facts["stdin"] == "/dev/null"
        assert set(facts["fds"]) == {"0", "1", "2"}

    play(scenario)


def test_output_is_kept(play) -> None:
    async def scenario(world: World) -> None:
        word = f"generation {world.generation}"
        await world.start(f"print('{word} out', flush=True); print('{word} err', file=sys.stderr)")
        await world.next()
        await world.next()
        assert [line for line in world.output() if word in line] == [f"{word} out", f"{word} err"]

    play(scenario)


def test_what_cannot_be_started_says_so(play) -> None:
    async def scenario(world: World) -> None:
        hidden = world.at / "engine.away"
        (world.at / "engine").rename(hidden)
        try:
            with pytest.raises(OSError, match="engine"):
                await world.units.start(world.rendered(UP))
        finally:
            hidden.rename(world.at / "engine")
        assert world.events.empty()
        assert await world.units.sweep() == LeftoversSwept(())

    play(scenario)


def test_a_start_is_idempotent_and_nothing_starts_beside(play) -> None:
    async def scenario(world: World) -> None:
        root = await world.start(UP)
        await world.heard("up")
        await world.units.start(world.rendered(UP))
        again = await world.next()
        assert isinstance(again, UnitStarted)
        assert world.outside(again.pid) == root
        with pytest.raises(OSError, match="not empty"):
            await world.units.start(world.rendered(UP, generation=world.generation + 1000))
        await world.units.stop(SERVE, world.generation, 5.0)
        with pytest.raises(OSError, match="before"):
            await world.units.start(world.rendered(UP))
        assert not alive(root)

    play(scenario)


def test_both_units_run_side_by_side(play) -> None:
    async def scenario(world: World) -> None:
        ray = await world.start(UP, unit=RAY)
        await world.heard("up")
        serve = await world.start(UP)
        await world.heard("up")
        await world.units.stop(SERVE, world.generation, 5.0)
        assert (alive(serve), alive(ray)) == (False, True)
        assert [await world.next(), await world.next()] == [
            UnitExited(SERVE, world.generation, signal=15),
            UnitEmptied(SERVE, world.generation),
        ]
        await world.units.stop(RAY, world.generation, 5.0)
        assert not alive(ray)

    play(scenario)


def test_sigterm_is_enough_for_the_obedient(play) -> None:
    code = """
        signal.signal(signal.SIGTERM, lambda *_: (say("term"), os._exit(5)))
        say("up"); rest()
    """

    async def scenario(world: World) -> None:
        await world.start(code)
        await world.heard("up")
        await world.units.stop(SERVE, world.generation, 60.0)
        await world.heard("term")
        assert await world.next() == UnitExited(SERVE, world.generation, code=5)
        assert await world.next() == UnitEmptied(SERVE, world.generation)

    play(scenario)


def test_who_ignores_sigterm_is_killed_with_sigkill(play) -> None:
    code = """
        signal.signal(signal.SIGTERM, lambda *_: say("term"))
        say("up"); rest()
    """

    async def scenario(world: World) -> None:
        await world.start(code)
        await world.heard("up")
        await world.units.stop(SERVE, world.generation, 0.5)
        await world.heard("term")
        assert await world.next() == UnitExited(SERVE, world.generation, signal=9)
        assert await world.next() == UnitEmptied(SERVE, world.generation)

    play(scenario)


def test_a_shorter_grace_overtakes_a_longer_one(play) -> None:
    async def scenario(world: World) -> None:
        await world.start(f"deaf(); {UP}")
        await world.heard("up")
        both = (world.units.stop(SERVE, world.generation, grace) for grace in (80.0, 0.1))
        await asyncio.wait_for(asyncio.gather(*both), DEADLINE_S)
        assert await world.next() == UnitExited(SERVE, world.generation, signal=9)
        assert await world.next() == UnitEmptied(SERVE, world.generation)
        assert world.events.empty()

    play(scenario)


def test_orphans_keep_a_unit_from_being_empty_until_it_is_stopped(play) -> None:
    code = """
        if os.fork() == 0:
            daemonize(); deaf(); say("orphan"); rest()
        rest()
    """

    async def scenario(world: World) -> None:
        root = await world.start(code)
        orphan = await world.heard("orphan")
        os.kill(root, signal.SIGKILL)
        assert await world.next() == UnitExited(SERVE, world.generation, signal=9)
        with pytest.raises(OSError, match="not empty"):
            await world.units.start(world.rendered(UP, generation=world.generation + 1000))
        assert alive(orphan)
        assert world.events.empty()
        await world.units.stop(SERVE, world.generation, 0.2)
        assert await world.next() == UnitEmptied(SERVE, world.generation)
        assert not alive(orphan)

    play(scenario)


def test_a_unit_is_empty_when_its_last_orphan_ends_by_itself(play) -> None:
    code = """
        if os.fork() == 0:
            daemonize(); deaf(); say("orphan"); rest()
        rest()
    """

    async def scenario(world: World) -> None:
        root = await world.start(code)
        orphan = await world.heard("orphan")
        os.kill(root, signal.SIGKILL)
        await world.next()
        os.kill(orphan, signal.SIGKILL)
        assert await world.next() == UnitEmptied(SERVE, world.generation)

    play(scenario)


def test_who_forks_while_being_killed_is_caught(play) -> None:
    code = """
        deaf(); signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        until = time.monotonic() + 40
        say("up")
        while time.monotonic() < until:
            if os.fork():
                os._exit(0)
            os.setsid()
            time.sleep(0.001)
    """

    async def scenario(world: World) -> None:
        await world.start(code)
        await world.heard("up")
        assert await world.next() == UnitExited(SERVE, world.generation, code=0)
        await world.units.stop(SERVE, world.generation, 0.1)
        assert await world.next() == UnitEmptied(SERVE, world.generation)

    play(scenario)


@pytest.mark.skipif(
    not Path("/sys/fs/cgroup/freezer").is_dir(), reason="no v1 freezer: nothing outlives SIGKILL"
)
def test_who_survives_sigkill_is_unkillable_and_told_when_it_is_gone(play) -> None:
    """A frozen process takes no signal at all, like one that a driver holds."""

    async def scenario(world: World) -> None:
        root = await world.start(UP)
        await world.heard("up")
        with frozen(root):
            await world.units.stop(SERVE, world.generation, 0.1)
            assert await world.next() == UnitUnkillable(SERVE, world.generation, (root,))
            assert world.events.empty()
            with pytest.raises(OSError, match="not empty"):
                await world.units.start(world.rendered(UP, generation=world.generation + 1000))
        assert isinstance(await world.next(), UnitExited)
        assert await world.next() == UnitEmptied(SERVE, world.generation)

    play(scenario)


def test_names_are_those_of_the_living(play) -> None:
    code = """
        if os.fork() == 0:
            open("/proc/self/comm", "w").write("VLLM::Worker"); say("up"); rest()
        rest()
    """

    async def scenario(world: World) -> None:
        await world.start(code)
        await world.heard("up")
        names = await world.units.names(SERVE, world.generation)
        assert "VLLM::Worker" in names
        assert len(names) == 2
        await world.units.stop(SERVE, world.generation, 5.0)
        assert await world.units.names(SERVE, world.generation) == ()

    play(scenario)


def test_a_sweep_leaves_this_daemons_own_units_alone(play) -> None:
    async def scenario(world: World) -> None:
        root = await world.start(UP)
        await world.heard("up")
        assert await world.units.sweep() == LeftoversSwept(())
        assert alive(root)
        assert world.events.empty()

    play(scenario)


def test_the_next_daemon_stops_what_runs_without_having_swept(play) -> None:
    async def scenario(world: World) -> None:
        root = await world.start(f"deaf(); {UP}")
        await world.heard("up")
        await world.restarted()
        await world.units.stop(SERVE, world.generation, 0.1)
        assert await world.next() == UnitEmptied(SERVE, world.generation)
        assert not alive(root)

    play(scenario)


def test_of_what_an_earlier_daemon_left_nothing_lives_that_is_not_told_to_run(play) -> None:
    """Orphans alone are no unit that could be taken over."""
    code = """
        if os.fork() == 0:
            daemonize(); deaf(); say("orphan"); rest()
        rest()
    """

    async def scenario(world: World) -> None:
        root = await world.start(code)
        orphan = await world.heard("orphan")
        os.kill(root, signal.SIGKILL)
        assert isinstance(await world.next(), UnitExited)
        await world.restarted()
        swept = await world.units.sweep()
        assert (swept.generations, swept.survivors, swept.running) == ((world.generation,), (), ())
        if world.node is not None:  # its backend notes how a root ends, whoever is there
            ended = EndedUnit(SERVE, Stamp(EPOCH, world.generation), SETTINGS, signal=9)
            assert swept.ended == (ended,)
        assert not alive(orphan)
        assert await world.units.sweep() == LeftoversSwept(())

    play(scenario)


def test_what_does_not_run_is_empty(play) -> None:
    async def scenario(world: World) -> None:
        await world.units.stop(RAY, world.generation, 5.0)
        assert await world.next() == UnitEmptied(RAY, world.generation)

    play(scenario)


def test_a_unit_outlives_the_daemon(play) -> None:
    async def scenario(world: World) -> None:
        root = await world.start(UP)
        await world.heard("up")
        await world.units.close()
        assert alive(root)
        await world.restarted()

    play(scenario)
