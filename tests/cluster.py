"""Two (or more) real daemons on one machine, as the demo, the process tests and the lab need them.

A daemon is followed by its own log (one JSON object a line) and asked over its operator socket. Everything
that is started here is stopped here, by process id, also when a test fails.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

Event = dict[str, Any]
Predicate = Callable[[Event], bool]


class DeadlineError(AssertionError):
    """What was waited for did not come; the text ends with what came instead."""


@dataclass(frozen=True)
class NodeSetup:
    """How one daemon is started: its name, its directory, what stands before its command, its variables."""

    name: str
    directory: Path
    prefix: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)

    @property
    def socket(self) -> Path:
        """The operator socket."""
        return self.directory / "run" / "sparkd.sock"

    def environment(self, common: dict[str, str]) -> dict[str, str]:
        """Return the variables of the daemon."""
        base = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
        paths = {f"SPARKD_PATHS__{kind.upper()}_DIR": str(self.directory / kind) for kind in ("state", "run")}
        own = {
            "SPARKD_PATHS__LOG_DIR": str(self.directory / "log"),
            # The nodes share this machine's kernel: each would take the other's records for its own.
            "SPARKD_PATHS__KERNEL_LOG": "",
        }
        return {**base, **common, **paths, **own, **self.env}


class DaemonProcess:
    """One `sparkd run`, and everything that it has logged."""

    def __init__(self, setup: NodeSetup, config: Path, common: dict[str, str]) -> None:
        self.setup = setup
        self.events: list[Event] = []
        self.changed = asyncio.Condition()
        self.config = config
        self._common = common
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int:
        """The daemon's process id."""
        if self._process is None:
            raise RuntimeError("not started")
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """The exit code, None while it runs."""
        return self._process.returncode if self._process else None

    async def start(self) -> None:
        """Start the daemon; its stderr is followed and kept in `sparkd.log`."""
        self.setup.directory.mkdir(parents=True, exist_ok=True)
        argv = [
            *self.setup.prefix,
            sys.executable,
            "-m",
            "sparkd.cli.sparkd",
            "run",
            "--config",
            str(self.config),
            "--node",
            self.setup.name,
        ]
        self._process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            env=self.setup.environment(self._common),
            start_new_session=True,
            limit=1 << 20,
        )
        self._reader = asyncio.create_task(self._follow(self._process))

    async def _follow(self, process: asyncio.subprocess.Process) -> None:
        with (self.setup.directory / "sparkd.log").open("ab") as kept:
            while process.stderr is not None and (line := await process.stderr.readline()):
                kept.write(line)
                kept.flush()
                await self._take(line)
        await process.wait()
        await self._take(json.dumps({"event": "process_ended", "code": process.returncode}).encode())

    async def _take(self, line: bytes) -> None:
        try:
            event = json.loads(line)
        except ValueError:
            event = {"event": "text", "text": line.decode("utf-8", "replace").rstrip()}
        event["at_s"] = time.monotonic()
        event["daemon"] = self.setup.name
        async with self.changed:
            self.events.append(event)
            self.changed.notify_all()

    async def wait(self, predicate: Predicate, deadline_s: float, start: int = 0) -> Event:
        """Return the first event from index *start* on that satisfies *predicate*."""
        position = start
        try:
            async with asyncio.timeout(deadline_s), self.changed:
                while True:
                    for event in self.events[position:]:
                        position += 1
                        if predicate(event):
                            return event
                        if event["event"] == "process_ended":
                            raise DeadlineError(f"{self.setup.name} ended; last of all:\n{self.tail()}")
                    await self.changed.wait()
        except TimeoutError:
            raise DeadlineError(f"not seen within {deadline_s} s; last of all:\n{self.tail()}") from None

    def tail(self, count: int = 25) -> str:
        """Return the last events, one a line."""
        return "\n".join(json.dumps(event, default=str)[:400] for event in self.events[-count:])

    def kill(self, number: int) -> None:
        """Send a signal to the daemon itself."""
        os.kill(self.pid, number)

    async def stop(self, deadline_s: float = 40.0) -> int | None:
        """End the daemon: SIGTERM (it takes its child processes along), at the deadline SIGKILL."""
        process = self._process
        if process is None:
            return None
        if process.returncode is None:
            process.send_signal(signal.SIGCONT)
            process.send_signal(signal.SIGTERM)
            try:
                await asyncio.wait_for(process.wait(), deadline_s)
            except TimeoutError:
                process.kill()
                await process.wait()
        if self._reader is not None:
            await self._reader
        return process.returncode

    async def ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        """Ask the daemon over its operator socket."""
        connector = aiohttp.UnixConnector(path=str(self.setup.socket))
        timeout = aiohttp.ClientTimeout(total=10)
        async with (
            aiohttp.ClientSession(connector=connector, timeout=timeout) as session,
            session.request(method, f"http://sparkd{path}", json=body) as answer,
        ):
            return await answer.json()

    async def status(self) -> dict[str, Any]:
        """Return the status document."""
        document: dict[str, Any] = await self.ask("GET", "/status")
        return document


class Cluster:
    """The daemons of one cluster; the first is the head."""

    def __init__(self, setups: Sequence[NodeSetup], config: Path, common: dict[str, str]) -> None:
        self.daemons = {setup.name: DaemonProcess(setup, config, common) for setup in setups}

    @property
    def head(self) -> DaemonProcess:
        """The coordinating daemon."""
        return next(iter(self.daemons.values()))

    async def start(self) -> None:
        """Start every daemon, in any order that the system likes."""
        await asyncio.gather(*(daemon.start() for daemon in self.daemons.values()))

    async def stop(self) -> dict[str, int | None]:
        """Stop every daemon, the head first: it takes the engine down on the whole cluster."""
        return {name: await daemon.stop() for name, daemon in self.daemons.items()}

    async def phase(self, phase: str, deadline_s: float, start: int = 0) -> Event:
        """Wait until the head moves to *phase*."""
        return await self.head.wait(
            lambda e: e["event"] == "phase_changed" and e["after"] == phase, deadline_s, start
        )


def stamped_processes(cluster: str, node: str | None = None) -> dict[int, str]:
    """Return pid -> stamp of every living process that carries this cluster's SPARKD_STAMP."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            environ = (entry / "environ").read_bytes()
            state = (entry / "stat").read_text().rsplit(")", 1)[1].split()[0]
        except OSError:
            continue
        for variable in environ.split(b"\0"):
            if variable.startswith(b"SPARKD_STAMP=") and state != "Z":
                stamp = variable.split(b"=", 1)[1].decode("utf-8", "replace")
                if stamp.startswith(f"{cluster}/{node}/" if node else f"{cluster}/"):
                    found[int(entry.name)] = stamp
    return found
