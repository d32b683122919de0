"""Units of either backend as one world for the contract suite: what is started, what it says, what is told.

What runs is a program of the test's own, in the place of `vllm` and `ray`: configuration, rendering, stamp
and launch are the real ones. With systemd it runs in a node of systemd-nspawn and the adapter outside of it,
over the node's bus and its control groups as they are seen from here.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from lab import nspawn
from sparkd.adapters.cgroups import Groups
from sparkd.adapters.children import Children
from sparkd.adapters.proctree import snapshot
from sparkd.adapters.systemd import Systemd
from sparkd.config import Loaded
from sparkd.config.load import load
from sparkd.core.events import UnitStarted
from sparkd.engines.member import render_unit
from sparkd.engines.model import Rendered
from sparkd.ports import Units
from sparkd.words import Settings, Stamp, UnitName

PROC = Path("/proc")
DEADLINE_S = 30.0
EPOCH = 3
SETTINGS = Settings(max_num_seqs=9)
RAY, SERVE = UnitName.RAY, UnitName.SERVE
# The code of a unit that says so when it is up, and stays.
UP = "say('up'); rest()"
CLUSTER = f"contract-{os.getpid()}"
CONFIG = """
[cluster]
name = "{cluster}"
key = "0123456789abcdef"
[[node]]
name = "one"
role = "head"
address = "127.0.0.2"
interface = "lo"
[[node]]
name = "two"
role = "worker"
address = "127.0.0.3"
interface = "lo"
[engine]
model = "/srv/model"
path = "/usr/bin:/bin"
env = {{ PLACE = "{place}" }}
[engine.ray]
program = "{place}/engine"
[engine.vllm]
program = "{place}/engine"
{more}
"""
ENGINE = """#!{python} -S
import ctypes, os, signal, sys, time
PLACE = os.environ["PLACE"]
def say(word):
    fd = os.open(PLACE + "/say", os.O_WRONLY)
    os.write(fd, (word + " " + str(os.getpid()) + "\\n").encode())
    os.close(fd)
def rest():
    signal.alarm(100)
    while True:
        signal.pause()
def deaf():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
def daemonize():
    if os.fork():
        os._exit(0)
    os.setsid()
    if os.fork():
        os._exit(0)
unit = os.environ["SPARKD_STAMP"].rpartition("/")[2]
exec(compile(open(PLACE + "/" + unit + ".py").read(), unit, "exec"))
"""
# Stamps run once in a node, and one node serves all tests.
GENERATIONS = itertools.count(7)


@contextmanager
def place() -> Iterator[Path]:
    """A folder that the engine's user sees, too: not below a home, open to all."""
    made = Path(tempfile.mkdtemp(prefix="sparkd-contract-", dir="/var/tmp"))
    made.chmod(0o777)
    (made / "engine").write_text(ENGINE.format(python=Path(sys.executable).resolve()), encoding="utf-8")
    (made / "engine").chmod(0o755)
    os.mkfifo(made / "say")
    (made / "say").chmod(0o666)
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


def configuration(at: Path, more: str = "") -> str:
    return CONFIG.format(cluster=CLUSTER, place=at, more=more)


@contextmanager
def node_of(at: Path) -> Iterator[nspawn.Node]:
    """A booted node with sparkd's units, accounts and directories, and with *at* at its own path."""
    with nspawn.node("one", binds=[str(at)], boot=False) as node:
        nspawn.install(node, configuration(at))
        node.boot()
        yield node


class World:
    """One daemon's units, the events that they emitted, and a pipe on which their processes speak."""

    def __init__(self, at: Path, node: nspawn.Node | None, tmp: Path) -> None:
        self.at, self.node, self.tmp = at, node, tmp
        self.generation = next(GENERATIONS)
        self.events: asyncio.Queue[object] = asyncio.Queue()
        self.words: asyncio.Queue[tuple[str, int]] = asyncio.Queue()
        self.loaded = self.load()
        self.units = self.backend()
        self.fd = os.open(at / "say", os.O_RDWR | os.O_NONBLOCK)
        asyncio.get_running_loop().add_reader(self.fd, self.hear)

    def backend(self) -> Units:
        """Return a new daemon's adapter."""
        if self.node is None:
            log = self.tmp / "log"
            return Children(CLUSTER, "one", log, self.events.put_nowait, cwd=self.tmp, kill_deadline_s=1.0)
        return Systemd(
            self.node.path("/run/sparkd"),
            self.events.put_nowait,
            groups=Groups(nspawn.group_roots(self.node)),
            bus_address=f"unix:path={self.node.path('/run/dbus/system_bus_socket')}",
            kill_deadline_s=1.0,
        )

    def load(self, more: str = "") -> Loaded:
        """Return the configuration; with *more* as it is after somebody has changed it."""
        path = self.tmp / "sparkd.toml"
        path.write_text(configuration(self.at, more), encoding="utf-8")
        return load(str(path), "one", {})

    def hear(self) -> None:
        for line in os.read(self.fd, 65536).decode().splitlines():
            word, pid = line.split()
            self.words.put_nowait((word, self.outside(int(pid))))

    def outside(self, pid: int) -> int:
        """Return the number here of a process that calls itself *pid* in the node."""
        if self.node is None:
            return pid
        own = (PROC / str(self.node.leader) / "ns/pid").stat().st_ino
        for entry in PROC.iterdir():
            with suppress(OSError, ValueError, StopIteration):
                if (entry / "ns/pid").stat().st_ino == own:
                    status = (entry / "status").read_text(encoding="utf-8")
                    line = next(line for line in status.splitlines() if line.startswith("NSpid:"))
                    if int(line.split()[-1]) == pid:
                        return int(entry.name)
        return -1

    def rendered(
        self, code: str, *, unit: UnitName = UnitName.SERVE, generation: int | None = None, epoch: int = EPOCH
    ) -> Rendered:
        """Return a unit that runs *code*."""
        (self.at / f"{unit}.py").write_text(textwrap.dedent(code), encoding="utf-8")
        spec, nodes = self.loaded.engine, self.loaded.nodes
        stamp = Stamp(epoch, self.generation if generation is None else generation)
        return render_unit(
            unit, spec, CLUSTER, nodes[0], nodes, settings=Settings(max_num_seqs=9), stamp=stamp
        )

    async def next(self) -> object:
        return await asyncio.wait_for(self.events.get(), DEADLINE_S)

    async def heard(self, word: str) -> int:
        said, pid = await asyncio.wait_for(self.words.get(), DEADLINE_S)
        assert said == word
        return pid

    async def start(self, code: str, **more: object) -> int:
        """Start a unit; return its root's number here."""
        await self.units.start(self.rendered(code, **more))
        started = await self.next()
        assert isinstance(started, UnitStarted), started
        return self.outside(started.pid)

    async def restarted(self) -> None:
        """Another daemon takes the place of this one."""
        await self.units.close()
        self.units = self.backend()

    def output(self, unit: UnitName = UnitName.SERVE) -> list[str]:
        """Return what the unit has said of its own."""
        if self.node is None:
            path = self.tmp / "log" / str(self.generation) / f"{unit}.log"
            return path.read_text(encoding="utf-8").splitlines()
        self.node.run("journalctl", "--sync")
        records = self.node.journal("-u", f"sparkd-{unit}.service", "-t", f"sparkd-{unit}")
        return [str(record["MESSAGE"]) for record in records]

    async def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self.fd)
        os.close(self.fd)
        await self.units.close()
        self.clear()

    def clear(self) -> None:
        """Whatever a test has left ends."""
        if self.node is not None:
            for unit in UnitName:
                self.node.path(f"/run/sparkd/launch-{unit}.json").unlink(missing_ok=True)
                self.node.run("systemctl", "kill", "-s", "KILL", f"sparkd-{unit}.service", check=False)
                self.node.run("systemctl", "stop", f"sparkd-{unit}.service", check=False)
            return
        for process in snapshot(PROC, {}).values():
            if process.mark and process.mark.cluster == CLUSTER and process.alive:
                with suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGKILL)


def alive(pid: int) -> bool:
    found = snapshot(PROC, {}, read_marks=False).get(pid)
    return found is not None and found.alive


@contextmanager
def frozen(pid: int) -> Iterator[None]:
    """Hold a process so that SIGKILL does not end it, by the v1 freezer (v2's lets SIGKILL through)."""
    group = Path(f"/sys/fs/cgroup/freezer/sparkd-contract-{pid}")
    group.mkdir()
    try:
        (group / "cgroup.procs").write_text(str(pid), encoding="ascii")
        (group / "freezer.state").write_text("FROZEN", encoding="ascii")
        yield
    finally:
        (group / "freezer.state").write_text("THAWED", encoding="ascii")
        subprocess.run(["true"], check=True)  # a thawed process that was killed is reaped by then or soon
        with suppress(OSError):
            group.rmdir()
