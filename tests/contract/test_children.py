"""Units as real processes: what ends, what is found, what is killed, and what is left alone."""

from __future__ import annotations

import asyncio
import ctypes
import errno
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import uuid
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import pytest

import sparkd
from sparkd.adapters import children as backend
from sparkd.adapters import proctree
from sparkd.adapters import unittree as module
from sparkd.adapters.children import Children
from sparkd.adapters.proctree import snapshot
from sparkd.core.events import LeftoversSwept, UnitEmptied, UnitExited, UnitStarted, UnitUnkillable
from sparkd.engines.model import Rendered
from sparkd.words import Stamp, UnitName

pytestmark = pytest.mark.process

PROC = Path("/proc")
DEADLINE_S = 20.0
PRELUDE = """
import ctypes, os, signal, sys, time
def say(word):
    fd = os.open(os.environ["SAY"], os.O_WRONLY)
    os.write(fd, f"{word} {os.getpid()}\\n".encode())
    os.close(fd)
def rest():
    signal.alarm(60)
    while True:
        signal.pause()
def clobber():
    fields = open("/proc/self/stat").read().rsplit(")", 1)[1].split()
    start, end = int(fields[47]), int(fields[48])
    ctypes.memset(start, 0, end - start)
def daemonize():
    if os.fork():
        os._exit(0)
    os.setsid()
    if os.fork():
        os._exit(0)
"""


class World:
    """One daemon's children, the events that they emitted, and a pipe on which processes speak."""

    def __init__(self, tmp_path: Path, cluster: str) -> None:
        self.cluster = cluster
        self.tmp = tmp_path
        self.events: asyncio.Queue[object] = asyncio.Queue()
        self.words: asyncio.Queue[tuple[str, int]] = asyncio.Queue()
        self.children = Children(cluster, "one", tmp_path / "log", self.events.put_nowait, cwd=tmp_path)
        self.fifo = tmp_path / "say"
        if not self.fifo.exists():
            os.mkfifo(self.fifo)
        self.fd = os.open(self.fifo, os.O_RDWR | os.O_NONBLOCK)
        asyncio.get_running_loop().add_reader(self.fd, self.hear)

    def hear(self) -> None:
        for line in os.read(self.fd, 65536).decode().splitlines():
            word, pid = line.split()
            self.words.put_nowait((word, int(pid)))

    def rendered(
        self, *argv: str, unit: UnitName = UnitName.SERVE, generation: int = 7, node: str = "one", **env: str
    ) -> Rendered:
        given = {
            "SPARKD_STAMP": f"{self.cluster}/{node}/{generation}/{unit.value}",
            "SPT_NOENV": "1",
            "SAY": str(self.fifo),
            **env,
        }
        return Rendered(unit, Stamp(1, generation), argv, tuple(given.items()))

    def python(self, code: str, **more: object) -> Rendered:
        return self.rendered(sys.executable, "-S", "-c", PRELUDE + textwrap.dedent(code), **more)

    async def next(self) -> object:
        return await asyncio.wait_for(self.events.get(), DEADLINE_S)

    async def heard(self, word: str) -> int:
        said, pid = await asyncio.wait_for(self.words.get(), DEADLINE_S)
        assert said == word
        return pid

    async def start(self, rendered: Rendered) -> int:
        await self.children.start(rendered)
        started = await self.next()
        assert isinstance(started, UnitStarted)
        return started.pid

    def log(self, unit: UnitName = UnitName.SERVE, generation: int = 7) -> bytes:
        return (self.tmp / "log" / str(generation) / f"{unit.value}.log").read_bytes()

    async def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self.fd)
        os.close(self.fd)
        await self.children.close()


def alive(pid: int) -> bool:
    found = snapshot(PROC, {}, read_marks=False).get(pid)
    return found is not None and found.alive


async def gone(pid: int) -> None:
    """Wait until the process has ended."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(fd, ended.set)
    try:
        await asyncio.wait_for(ended.wait(), DEADLINE_S)
    finally:
        loop.remove_reader(fd)
        os.close(fd)


@pytest.fixture
def play(tmp_path: Path):
    """Run a scenario in a world of its own; whatever it leaves is killed by pid."""
    cluster = f"test-{uuid.uuid4().hex[:12]}"

    def run(scenario: Callable[[World], Awaitable[None]]) -> None:
        async def whole() -> None:
            world = World(tmp_path, cluster)
            try:
                await asyncio.wait_for(scenario(world), 60)
            finally:
                await world.close()

        asyncio.run(whole())

    yield run
    for process in snapshot(PROC, {}).values():
        if process.mark and process.mark.cluster == cluster and process.alive:
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)


def oom_score_adj(pid: int) -> int:
    return int((PROC / str(pid) / "oom_score_adj").read_text())


def run(argv: list[str], env: dict[str, str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(argv, env=env)


def subreaper(on: int) -> None:
    ctypes.CDLL(None).prctl(36, on, 0, 0, 0)


@pytest.mark.parametrize(
    ("script", "code", "number"), [("exit 3", 3, None), ("exit 0", 0, None), ("kill -9 $$", None, 9)]
)
def test_exit_is_reported_and_then_emptiness(play, script, code, number) -> None:
    async def scenario(world: World) -> None:
        await world.start(world.rendered("/bin/sh", "-c", script))
        assert await world.next() == UnitExited(UnitName.SERVE, 7, code=code, signal=number)
        assert await world.next() == UnitEmptied(UnitName.SERVE, 7)

    play(scenario)


def test_nothing_is_inherited(play, monkeypatch) -> None:
    monkeypatch.setenv("LEAKED", "yes")
    code = """
        import json
        shown = [fd for fd in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{fd}")]
        facts = {
            "env": open("/proc/self/environ").read(), "fds": sorted(map(int, shown)),
            "stdin": os.readlink("/proc/self/fd/0"), "cwd": os.getcwd(), "leads": os.getsid(0) == os.getpid(),
        }
        print(json.dumps(facts), flush=True)
        print("to stderr", file=sys.stderr)
    """

    async def scenario(world: World) -> None:
        fd = os.open("/dev/null", os.O_RDONLY)
        os.set_inheritable(fd, True)
        try:
            rendered = world.python(code, GREETING="hello = world")
            await world.start(rendered)
            await world.next()
        finally:
            os.close(fd)
        first, _, rest = world.log().partition(b"\n")
        facts = json.loads(first)
        assert facts["env"] == "".join(f"{name}={value}\0" for name, value in rendered.env)
        assert facts["fds"] == [0, 1, 2]
        assert facts["stdin"] == "/dev/null"
        assert facts["cwd"] == str(world.tmp)
        assert facts["leads"]
        assert rest == b"to stderr\n"

    play(scenario)


def test_engine_is_killed_first_when_memory_ends(play) -> None:
    async def scenario(world: World) -> None:
        pid = await world.start(world.python("say('up'); rest()"))
        await world.heard("up")
        assert oom_score_adj(pid) == 500
        await world.children.stop(UnitName.SERVE, 7, 5.0)

    play(scenario)


def test_what_cannot_be_started_says_so(play) -> None:
    async def scenario(world: World) -> None:
        for bad in (
            world.rendered("/no/such/program"),
            world.rendered("/bin/true", SPARKD_STAMP="another/one/7/serve"),
            world.rendered("/bin/echo", "zero\0byte"),
            world.rendered(),
        ):
            with pytest.raises(OSError):
                await world.children.start(bad)
        assert world.events.empty()

    play(scenario)


def test_a_start_is_idempotent_and_nothing_starts_beside(play) -> None:
    async def scenario(world: World) -> None:
        rendered = world.python("say('up'); rest()")
        pid = await world.start(rendered)
        assert await world.start(rendered) == pid
        with pytest.raises(OSError, match="not empty"):
            await world.children.start(world.rendered("/bin/true", generation=8))
        await world.children.stop(UnitName.SERVE, 7, 5.0)
        with pytest.raises(OSError, match="before"):
            await world.children.start(rendered)

    play(scenario)


def test_program_is_found_on_the_engines_own_path(play) -> None:
    async def scenario(world: World) -> None:
        (world.tmp / "engine").write_text("#!/bin/sh\nexit 5\n")
        (world.tmp / "engine").chmod(0o755)
        await world.start(world.rendered("engine", PATH=str(world.tmp)))
        assert await world.next() == UnitExited(UnitName.SERVE, 7, code=5)

    play(scenario)


def test_sigterm_is_enough_for_the_obedient(play) -> None:
    code = """
        signal.signal(signal.SIGTERM, lambda *_: (say("term"), os._exit(0)))
        say("up"); rest()
    """

    async def scenario(world: World) -> None:
        await world.start(world.python(code))
        await world.heard("up")
        await world.children.stop(UnitName.SERVE, 7, 30.0)
        await world.heard("term")
        assert await world.next() == UnitExited(UnitName.SERVE, 7, code=0)
        assert await world.next() == UnitEmptied(UnitName.SERVE, 7)

    play(scenario)


def test_who_ignores_sigterm_is_killed_with_sigkill(play) -> None:
    code = """
        signal.signal(signal.SIGTERM, lambda *_: say("term"))
        say("up"); rest()
    """

    async def scenario(world: World) -> None:
        await world.start(world.python(code))
        await world.heard("up")
        await world.children.stop(UnitName.SERVE, 7, 0.3)
        await world.heard("term")
        assert await world.next() == UnitExited(UnitName.SERVE, 7, signal=9)
        assert await world.next() == UnitEmptied(UnitName.SERVE, 7)

    play(scenario)


def test_a_shorter_grace_overtakes_a_longer_one(play) -> None:
    async def scenario(world: World) -> None:
        await world.start(world.python("signal.signal(signal.SIGTERM, signal.SIG_IGN); say('up'); rest()"))
        await world.heard("up")
        both = (world.children.stop(UnitName.SERVE, 7, grace) for grace in (50.0, 0.1))
        await asyncio.wait_for(asyncio.gather(*both), DEADLINE_S)
        assert await world.next() == UnitExited(UnitName.SERVE, 7, signal=9)
        assert await world.next() == UnitEmptied(UnitName.SERVE, 7)
        assert world.events.empty()

    play(scenario)


@pytest.mark.parametrize("disguise", ["", "clobber()"])
def test_orphans_keep_a_unit_from_being_empty_until_it_is_stopped(play, disguise) -> None:
    code = f"""
        if os.fork() == 0:
            daemonize(); {disguise or "pass"}; say("orphan"); rest()
        rest()
    """

    async def scenario(world: World) -> None:
        root = await world.start(world.python(code))
        orphan = await world.heard("orphan")
        os.kill(root, signal.SIGKILL)
        assert await world.next() == UnitExited(UnitName.SERVE, 7, signal=9)
        await world.children._scan()
        assert alive(orphan) and world.events.empty()
        await world.children.stop(UnitName.SERVE, 7, 5.0)
        assert await world.next() == UnitEmptied(UnitName.SERVE, 7)
        assert not alive(orphan)
        assert orphan not in snapshot(PROC, {}, read_marks=False), "an orphan that came back must be reaped"

    play(scenario)


def test_a_unit_is_empty_when_its_last_orphan_ends_by_itself(play) -> None:
    code = """
        if os.fork() == 0:
            daemonize(); say("orphan"); rest()
        rest()
    """

    async def scenario(world: World) -> None:
        root = await world.start(world.python(code))
        orphan = await world.heard("orphan")
        os.kill(root, signal.SIGKILL)
        await world.next()
        os.kill(orphan, signal.SIGKILL)
        assert await world.next() == UnitEmptied(UnitName.SERVE, 7)

    play(scenario)


@pytest.mark.parametrize(
    "child",
    [
        "os.setsid(); clobber()",
        # Its session's leader has ended, and an engine's own subreaper (raylets are) holds it until it dies.
        "daemonize(); clobber()",
    ],
)
def test_a_disguised_orphan_is_the_unit_that_it_was_learned_for(play, child) -> None:
    code = f"""
        ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
        if os.fork() == 0:
            {child}; say("child"); rest()
        rest()
    """

    async def scenario(world: World) -> None:
        ray = await world.start(world.python("say('up'); rest()", unit=UnitName.RAY))
        await world.heard("up")
        root = await world.start(world.python(code))
        pid = await world.heard("child")
        tree = world.children._trees[UnitName.SERVE, 7]
        tree.learn(world.children._members(tree, await world.children._scan()))
        os.kill(root, signal.SIGKILL)
        await world.next()
        await world.children.stop(UnitName.SERVE, 7, 5.0)
        assert not alive(pid)
        assert alive(ray)
        await world.children.stop(UnitName.RAY, 7, 5.0)

    play(scenario)


def test_sigkill_is_not_taken_back(play) -> None:
    async def scenario(_: World) -> None:
        tree = module.Tree(lambda _: False)
        tree.order(signal.SIGTERM)
        tree.order(signal.SIGKILL)
        tree.order(signal.SIGTERM)
        assert tree.signal is signal.SIGKILL

    play(scenario)


HYDRA = """
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    until = time.monotonic() + 40
    def hop():
        # The child goes on, the parent ends: no process lives longer than a moment.
        while time.monotonic() < until:
            if os.fork():
                os._exit(0)
            time.sleep(0.002)
    for leads in (False, False, True):
        if os.fork() == 0:
            if leads:
                os.setsid()
            hop()
            os._exit(0)
    say("up")
    heads = set()
    while time.monotonic() < until:
        if len(heads) < 8:
            pid = os.fork()
            if pid == 0:
                time.sleep(0.05)
                os._exit(0)
            heads.add(pid)
        heads = {pid for pid in heads if os.path.exists(f"/proc/{pid}")}
        time.sleep(0.001)
"""


def test_a_tree_that_forks_all_the_time_is_emptied(play) -> None:
    async def scenario(world: World) -> None:
        await world.start(world.python(HYDRA))
        await world.heard("up")
        await world.children.stop(UnitName.SERVE, 7, 0.2)
        assert await world.next() == UnitExited(UnitName.SERVE, 7, signal=9)
        assert await world.next() == UnitEmptied(UnitName.SERVE, 7)
        left = [p for p in snapshot(PROC, {}).values() if p.mark and p.mark.cluster == world.cluster]
        assert [p for p in left if p.alive] == []

    play(scenario)


def test_a_units_processes_are_named(play) -> None:
    async def scenario(world: World) -> None:
        assert await world.children.names(UnitName.SERVE, 7) == ()
        await world.start(
            world.python("open('/proc/self/comm', 'w').write('VLLM::Worker'); say('up'); rest()")
        )
        await world.heard("up")
        assert await world.children.names(UnitName.SERVE, 7) == ("VLLM::Worker",)
        await world.children.stop(UnitName.SERVE, 7, 5.0)
        assert await world.children.names(UnitName.SERVE, 7) == ()

    play(scenario)


def test_an_unknown_unit_is_empty(play) -> None:
    async def scenario(world: World) -> None:
        for _ in range(2):
            await world.children.stop(UnitName.RAY, 3, 1.0)
            assert await world.next() == UnitEmptied(UnitName.RAY, 3)

    play(scenario)


def test_who_survives_sigkill_is_named_and_still_watched(play, monkeypatch) -> None:
    monkeypatch.setattr(module, "kill", lambda *_: None)

    async def scenario(world: World) -> None:
        world.children._kill_deadline_s = 0.1
        pid = await world.start(world.python("say('up'); rest()"))
        await world.heard("up")
        await world.children.stop(UnitName.SERVE, 7, 0.1)
        assert await world.next() == UnitUnkillable(UnitName.SERVE, 7, (pid,))
        os.kill(pid, signal.SIGKILL)
        assert await world.next() == UnitExited(UnitName.SERVE, 7, signal=9)
        assert await world.next() == UnitEmptied(UnitName.SERVE, 7)

    play(scenario)


def test_another_nodes_process_is_left_alone_even_below_the_unit(play) -> None:
    code = """
        if os.fork() == 0:
            env = dict(os.environ, SPARKD_STAMP=os.environ["OTHER"])
            os.execve(sys.executable, [sys.executable, "-S", "-c", os.environ["CODE"]], env)
        rest()
    """

    async def scenario(world: World) -> None:
        other = f"{world.cluster}/two/7/serve"
        await world.start(world.python(code, OTHER=other, CODE=PRELUDE + "\nsay('other'); rest()"))
        pid = await world.heard("other")
        await world.children.stop(UnitName.SERVE, 7, 5.0)
        assert alive(pid)
        assert await world.children.sweep() == LeftoversSwept(())
        assert alive(pid)
        os.kill(pid, signal.SIGKILL)

    play(scenario)


EARLIER = """
import asyncio, os, sys
from pathlib import Path
from sparkd.adapters.children import Children
from sparkd.engines.model import Rendered
from sparkd.words import Stamp, UnitName

async def main(cluster, log_dir, code):
    children = Children(cluster, "one", Path(log_dir), lambda event: None)
    for unit, generation in ((UnitName.RAY, 4), (UnitName.SERVE, 5)):
        env = {"SPARKD_STAMP": f"{cluster}/one/{generation}/{unit.value}", "SAY": os.environ["SAY"]}
        argv = (sys.executable, "-S", "-c", code)
        await children.start(Rendered(unit, Stamp(1, generation), argv, (*env.items(), ("SPT_NOENV", "1"))))
    await asyncio.Event().wait()

asyncio.run(main(*sys.argv[1:]))
"""


def test_what_an_earlier_daemon_left_is_swept(play) -> None:
    code = PRELUDE + textwrap.dedent("""
        if os.fork() == 0:
            clobber(); say("up"); rest()
        if os.fork() == 0:
            daemonize(); say("up"); rest()
        say("up"); rest()
    """)

    async def scenario(world: World) -> None:
        subreaper(0)
        env = {"PYTHONPATH": str(Path(sparkd.__file__).parent.parent), "SAY": str(world.fifo)}
        argv = [sys.executable, "-c", EARLIER, world.cluster, str(world.tmp / "earlier"), code]
        earlier = run(argv, env)
        try:
            pids = [await world.heard("up") for _ in range(6)]
        finally:
            earlier.kill()
            earlier.wait(DEADLINE_S)
        assert all(alive(pid) for pid in pids)
        assert await world.children.sweep() == LeftoversSwept((4, 5))
        assert not any(alive(pid) for pid in pids)
        assert await world.children.sweep() == LeftoversSwept(())

    play(scenario)


def test_a_sweep_leaves_this_instances_units_alone(play) -> None:
    async def scenario(world: World) -> None:
        pid = await world.start(world.python("say('up'); rest()"))
        await world.heard("up")
        assert await world.children.sweep() == LeftoversSwept(())
        assert alive(pid)
        await world.children.stop(UnitName.SERVE, 7, 5.0)

    play(scenario)


def test_statuses_of_other_programs_are_not_stolen(play) -> None:
    async def scenario(world: World) -> None:
        own = run(["/bin/sh", "-c", "exit 9"], {})
        await gone(own.pid)
        await world.start(world.rendered("/bin/sh", "-c", "exit 0"))
        await world.next()
        await world.next()
        await world.children._scan()
        assert own.wait(DEADLINE_S) == 9
        other = await asyncio.create_subprocess_exec("/bin/sh", "-c", "exit 8")
        assert await asyncio.wait_for(other.wait(), DEADLINE_S) == 8

    play(scenario)


def test_a_hanging_proc_file_delays_a_stop_but_does_not_prevent_it(play, monkeypatch) -> None:
    held = []

    def hanging(*args: object, read_marks: bool = True) -> object:
        if read_marks:
            event = threading.Event()
            held.append(event)
            event.wait(DEADLINE_S)
        return snapshot(*args, read_marks=False)

    monkeypatch.setattr(backend, "snapshot", hanging)
    monkeypatch.setattr(backend, "SCAN_DEADLINE_S", 0.05)

    async def scenario(world: World) -> None:
        pid = await world.start(world.python("say('up'); rest()"))
        await world.heard("up")
        try:
            await world.children.stop(UnitName.SERVE, 7, 5.0)
        finally:
            for event in held:
                event.set()
        assert not alive(pid)

    play(scenario)


def test_units_outlive_the_daemon(play) -> None:
    async def scenario(world: World) -> None:
        pid = await world.start(world.python("say('up'); rest()"))
        await world.heard("up")
        await world.children.close()
        assert alive(pid)

    play(scenario)


def test_not_to_see_is_not_to_be_gone(play, monkeypatch) -> None:
    """Out of descriptors, nothing is told empty; what was ordered reaches the root all the same."""

    def scandir(_path: object) -> None:
        raise OSError(errno.EMFILE, "too many open files")

    async def story(world: World) -> None:
        await world.start(world.python("say('up'); time.sleep(60)"))
        await world.heard("up")
        with monkeypatch.context() as blind:
            blind.setattr(proctree.os, "scandir", scandir)
            with pytest.raises(OSError, match="too many"):
                await world.children.names(UnitName.SERVE, 7)
            stopping = asyncio.ensure_future(world.children.stop(UnitName.SERVE, 7, 0.2))
            assert isinstance(await world.next(), UnitExited)
            assert world.events.empty()
        assert isinstance(await world.next(), UnitEmptied)
        await stopping

    play(story)
