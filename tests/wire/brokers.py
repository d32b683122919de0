"""Real brokers, a proxy between them and a bus, and buses that remember what they were told."""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from ports import free_port
from sparkd.adapters.broker import EmbeddedBroker
from sparkd.adapters.clock import MonotonicClock
from sparkd.adapters.mqtt import BrokerOptions, MqttBus
from sparkd.core.events import BrokerChanged, Event
from wire.samples import CLUSTER, KEY, NODES, NOW

DEADLINE_S = 15.0
LOOPBACK = "127.0.0.1"
MOSQUITTO = shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin")


class HandClock:
    """A clock that moves when it is told to."""

    def __init__(self) -> None:
        self.now_s = NOW

    def now(self) -> float:
        return self.now_s


class Mosquitto:
    """The broker program with a configuration of the test's own."""

    def __init__(self, folder: Path, config: str = "allow_anonymous true\n", port: int | None = None) -> None:
        self.port = port or free_port()
        self._file = folder / "mosquitto.conf"
        listener = "" if "listener " in config else f"listener {self.port} {LOOPBACK}\n"
        # As root, mosquitto would change to an account that cannot read the test's files.
        self._file.write_text(f"user {getpass.getuser()}\nlog_dest stderr\n{listener}{config}")
        self._process: asyncio.subprocess.Process | None = None
        self._log: asyncio.Task[None] | None = None
        self._running = asyncio.Event()

    async def start(self) -> None:
        self._process = await asyncio.create_subprocess_exec(
            str(MOSQUITTO), "-c", str(self._file), stderr=asyncio.subprocess.PIPE
        )
        self._log = asyncio.create_task(self._follow(self._process.stderr))
        try:
            await asyncio.wait_for(self._running.wait(), DEADLINE_S)
            await asyncio.wait_for(self._answers(), DEADLINE_S)
        except BaseException:
            await self.stop()
            raise

    async def _follow(self, log: asyncio.StreamReader) -> None:
        while line := await log.readline():
            if b" running" in line:
                self._running.set()

    async def _answers(self) -> None:
        """Wait until it handles a connection: a SIGTERM just before its main loop would be lost."""
        reader, writer = await asyncio.open_connection(LOOPBACK, self.port)
        writer.write(b"\x00" * 64)
        with contextlib.suppress(ConnectionError):
            await reader.read()
            writer.close()
            await writer.wait_closed()

    async def stop(self) -> None:
        process, self._process = self._process, None
        self._running.clear()
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            await asyncio.wait_for(process.wait(), DEADLINE_S)
            await asyncio.wait_for(self._log, DEADLINE_S)


class Embedded:
    """The embedded broker under the same handles."""

    def __init__(self, folder: Path) -> None:
        del folder
        self.port = free_port()
        self._broker: EmbeddedBroker | None = None

    async def start(self) -> None:
        self._broker = EmbeddedBroker(
            host=LOOPBACK, port=self.port, cluster=CLUSTER, nodes=NODES, clock=MonotonicClock()
        )
        await self._broker.start()

    async def stop(self) -> None:
        await self._broker.stop()


class Proxy:
    """Passes bytes between a bus and its broker until it is told to break, or to stall."""

    def __init__(self, port: int) -> None:
        self._to = port
        self.port = 0
        self.stalled = False
        self._muted = asyncio.Event()
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, LOOPBACK, 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        self.kill()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=DEADLINE_S)

    def kill(self) -> None:
        """Break every connection without a word, as a node does that loses its power."""
        for writer in self._writers:
            writer.transport.abort()

    def mute(self) -> None:
        """Pass nothing on any more, and close nothing: a node that is wedged, or a cable that is cut."""
        self._muted.set()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                if not self._muted.is_set():
                    writer.write(data)
                    await writer.drain()
        except OSError:
            return
        finally:
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._tasks.add(asyncio.current_task())
        self._writers.add(writer)
        try:
            if self.stalled:
                await reader.read()
                return
            there, back = await asyncio.open_connection(LOOPBACK, self._to)
            self._writers.add(back)
            await asyncio.gather(self._pump(reader, back), self._pump(there, writer))
        except OSError:
            return
        finally:
            writer.close()


class Ear:
    """A bus that runs, and everything that it was told."""

    def __init__(
        self, port: int, node: str, instance: str, predecessors: tuple[str, ...] = (), **options: Any
    ) -> None:
        self.clock = HandClock()
        self.events: asyncio.Queue[Event] = asyncio.Queue()
        self.dropped: asyncio.Queue[tuple[str, str, str]] = asyncio.Queue()
        self.twins: asyncio.Queue[str] = asyncio.Queue()
        self.bus = MqttBus(
            broker=BrokerOptions(options.pop("host", LOOPBACK), port, **options),
            key=KEY,
            cluster=CLUSTER,
            node=node,
            instance=instance,
            predecessors=frozenset(predecessors),
            nodes=NODES,
            clock=self.clock,
            emit=self.events.put_nowait,
            on_twin=self.twins.put_nowait,
            on_drop=lambda *drop: self.dropped.put_nowait(drop),
        )
        self.task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self.task = asyncio.create_task(self.bus.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        self.task.cancel()
        await asyncio.wait({self.task}, timeout=DEADLINE_S)

    async def until(self, kind: type[Any], fits: Callable[[Any], bool] = lambda _: True) -> Any:
        """Return the next event of *kind* that fits; earlier others are passed over."""
        async with asyncio.timeout(DEADLINE_S):
            while True:
                event = await self.events.get()
                if isinstance(event, kind) and fits(event):
                    return event

    async def connected(self) -> None:
        await self.until(BrokerChanged, lambda event: event.connected)

    async def lost(self) -> str:
        return (await self.until(BrokerChanged, lambda event: not event.connected)).reason

    async def drop(self) -> tuple[str, str, str]:
        return await asyncio.wait_for(self.dropped.get(), DEADLINE_S)
