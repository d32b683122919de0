"""One node's daemon, put together, run, and taken down in order."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import os
import signal
import time
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import structlog

from sparkd.adapters import machine
from sparkd.adapters.clock import MonotonicClock
from sparkd.adapters.meminfo import MemInfo
from sparkd.adapters.notify import Notifier
from sparkd.api import http as http_api
from sparkd.api import operator as operator_api
from sparkd.api.peerview import PeerViewServer
from sparkd.app.notice import Notice
from sparkd.app.outside import Callbacks, connect
from sparkd.app.people import People
from sparkd.config import EX_CONFIG, Loaded
from sparkd.core import release
from sparkd.core.beginning import initial
from sparkd.core.commands import Command
from sparkd.core.events import OperatorAsked, Verb
from sparkd.core.records import IncidentClosed, MessageDropped, Record, SettingsAdopted
from sparkd.core.state import State
from sparkd.engines.digest import context_of
from sparkd.export.logs import LogExporter
from sparkd.export.metrics import Metrics
from sparkd.loop.executor import Executor
from sparkd.loop.pumps import keep_up, pump_guard, pump_memory
from sparkd.loop.runner import Loop
from sparkd.signals.causes import CAUSES
from sparkd.store.disk import DiskStore
from sparkd.store.lock import StateLock, StateLockedError

log = structlog.get_logger()


class AppError(Exception):
    """The daemon cannot start or go on; the text says what to do."""

    def __init__(self, text: str, code: int = EX_CONFIG) -> None:
        super().__init__(text)
        self.code = code


class Daemon:
    """One node's daemon."""

    def __init__(self, loaded: Loaded) -> None:
        policy = replace(loaded.policy, version=version("sparkd"), context=_context(loaded))
        self._loaded = loaded = replace(loaded, policy=policy)
        self._clock = MonotonicClock()
        self._instance = uuid.uuid4().hex
        self._ended, self._memory_asked = asyncio.Event(), asyncio.Event()
        self._exit_code = 0
        _make_directories(loaded)
        state, boot = Path(loaded.paths.state_dir), machine.boot_id()
        self._lock = _take_lock(state, self._instance, boot)
        self._store = DiskStore(state, asked=policy.settings, wall=time.time, boot=boot)
        self._metrics = Metrics(policy.version, policy.node, causes=tuple(CAUSES))
        self._logs = LogExporter(self._clock.now)
        self._loop = Loop(
            initial(policy, self._instance, self._store.load(), self._clock.now()),
            policy,
            clock=self._clock,
            store=self._store,
            execute=self._execute,
            observe=self._observe,
            stepped=self._stepped,
        )
        self._notice = Notice(Notifier.of(os.environ))
        told = Callbacks(self._loop.emit, self._twin, self._dropped, self.end)
        self._outside = connect(loaded, self._instance, self._lock.predecessors, self._clock, told)
        self._executor = Executor(self._outside.world, self._loop.emit)
        self._people = People(loaded, self._loop, self._store, self._metrics, self._clock)
        self._recalling: asyncio.Task[None] | None = None

    async def run(self) -> int:
        """Run until ended; return the exit code. Raises AppError where the daemon cannot start."""
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(self._close)
            await self._listen(stack)
            _on_signals(self._asked_to_end)
            self._outside.backend.start()
            for task in self._tasks():
                stack.callback(task.cancel)
            node, cluster = self._loaded.node.name, self._loaded.cluster
            log.info("started", node=node, instance=self._instance, cluster=cluster)
            for note in self._loaded.notes:
                log.warning("configuration", note=note)
            await self._ended.wait()
        return self._exit_code

    def end(self, code: int = 0) -> None:
        """Let `run` return."""
        self._exit_code = max(self._exit_code, code)
        self._ended.set()

    async def _listen(self, stack: contextlib.AsyncExitStack) -> None:
        loaded, api = self._loaded, self._loaded.api
        if loaded.broker.embedded and loaded.policy.is_head:
            await _start_broker(loaded, self._clock, stack)
        peer_view = PeerViewServer(
            key=loaded.key,
            cluster=loaded.cluster,
            node=loaded.node.name,
            instance=self._instance,
            clock=self._clock,
            status=self._people.status_message,
            reports=self._people.reports,
        )
        starting = peer_view.start([(address, api.peer_port) for address in api.peer_addresses])
        where = f"{' and '.join(api.peer_addresses)} port {api.peer_port}"
        await _started(starting, f"the peer view cannot listen on {where}", "api.peer_port")
        stack.push_async_callback(peer_view.stop)
        views = http_api.make_app(self._people.http_views(), token=api.token)
        served = http_api.listen(views, api.address, api.port, token=api.token)
        where = f"{api.address} port {api.port}"
        page = await _started(served, f"the page cannot listen on {where}", "api.port")
        stack.push_async_callback(page.cleanup)
        asked = operator_api.listen(operator_api.make_app(self._people.operator_views()), Path(api.socket))
        socket = await _started(asked, f"the operator socket cannot listen on {api.socket}", "api.socket")
        stack.push_async_callback(socket.cleanup)

    def _tasks(self) -> list[asyncio.Task[None]]:
        failed = self._metrics.handler_failed
        pumps: dict[str, Callable[[], Awaitable[None]]] = {
            "memory": functools.partial(
                pump_memory, MemInfo(self._clock), self._loop.emit, self._memory_asked
            ),
            "memory guard": functools.partial(pump_guard, self._outside.world.guard, self._loop.emit),
            "log records": self._outside.pump.tick,
            "bus": self._outside.bus.run,
        }
        tasks = [asyncio.create_task(keep_up(name, pump, failed), name=name) for name, pump in pumps.items()]
        loop = asyncio.create_task(self._loop.run(), name="loop")
        loop.add_done_callback(self._loop_ended)
        return [*tasks, loop, asyncio.create_task(self._recall_history(), name="recall")]

    async def _recall_history(self) -> None:
        """An incident that a daemon did not live to close ended with it; then what people see is read."""
        for record in await self._people.interrupted(self._loop.state):
            await self._store.append([record])
            self._logs.records([record])
        await self._people.recall()

    def _loop_ended(self, task: asyncio.Task[None]) -> None:
        """The single writer never ends by itself: a defect, and the service manager starts us anew."""
        if not task.cancelled():
            log.critical("the loop ended", exc_info=task.exception())
            self.end(1)

    def _execute(self, command: Command) -> None:
        self._executor(command)

    def _observe(self, state: State, records: Sequence[Record], now: float) -> None:
        self._metrics.update(state, self._loaded.policy, now)
        if release.lacks_reading(state.member):
            self._memory_asked.set()  # asked by the state: a unit's end is told before the core has dated it
        if not records:
            return
        self._metrics.records(records)
        self._logs.records(records)
        if any(isinstance(record, IncidentClosed | SettingsAdopted) for record in records):
            self._recalling = asyncio.get_running_loop().create_task(self._people.recall())

    def _stepped(self, took_s: float, late_s: float) -> None:
        self._metrics.stepped(took_s, late_s)
        self._notice.stepped(self._loop.state, self._loaded.policy, self._clock.now())

    async def _asked_to_end(self) -> None:
        """End alone where the engine can serve on: a restart of the daemon is nobody else's business."""
        try:
            leaves = await self._outside.backend.leaves()
        except OSError as error:
            log.warning("system's state unknown", reason=str(error), note="ends alone, the engine serves on")
            leaves = False
        if leaves:
            self._notice.ending("leaving: ends this node's part of the engine first")
            self._leave()
        else:
            log.info("ending", note="the engine serves on; sparkctl stop ends it")
            self._notice.ending("ending; the engine serves on")
            self.end()

    def _leave(self) -> None:
        """First: end this node's part of the engine, then this daemon. Again: end at once."""
        state = self._loop.state
        again = state.leaving_since_s is not None
        if state.coordinator is not None:
            again = state.coordinator.shutdown
        if again:
            self.end(1)
        log.info("ending", note="stops this node's part of the engine first; a second signal ends at once")
        self._loop.emit(OperatorAsked(verb=Verb.SHUTDOWN, by="signal"))

    def _twin(self, instance: str) -> None:
        name = self._loaded.node.name
        log.critical("another sparkd lives under this node's name", other=instance, node=name)
        self.end(EX_CONFIG)

    def _dropped(self, kind: str, reason: str, sender: str) -> None:
        self._metrics.records([MessageDropped(kind=kind, reason=reason, sender=sender)])

    async def _close(self) -> None:
        await self._executor.close()
        await self._outside.close()
        await self._loop.flush()
        await self._store.close()
        self._lock.release()


async def _start_broker(loaded: Loaded, clock: MonotonicClock, stack: contextlib.AsyncExitStack) -> None:
    """Start the embedded broker; its library is loaded only where it is used."""
    try:
        from sparkd.adapters.broker import BrokerStartError, EmbeddedBroker
    except ModuleNotFoundError as error:
        raise AppError(
            f"the embedded broker needs the package {error.name}: install sparkd[broker], "
            "or give [broker] host of another broker"
        ) from error
    broker = EmbeddedBroker(
        host=loaded.node.address,
        port=loaded.broker.port,
        cluster=loaded.cluster,
        nodes=tuple(node.name for node in loaded.nodes),
        clock=clock,
    )
    try:
        await broker.start()
    except BrokerStartError as error:
        raise AppError(str(error), _code_of(error.__cause__)) from error
    stack.push_async_callback(broker.stop)


def _context(loaded: Loaded) -> str:
    """Return the digest of what settings and times are learned with."""
    return context_of(loaded.engine, loaded.nodes, machine.kernel_release(), machine.driver_version())


def _make_directories(loaded: Loaded) -> None:
    for path in (loaded.paths.state_dir, loaded.paths.log_dir, loaded.paths.run_dir):
        try:
            Path(path).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise AppError(f"cannot make {path}: {error.strerror}; make it, or change [paths]") from error
        if not os.access(path, os.W_OK):
            raise AppError(f"cannot write to {path}; change its owner, or change [paths]")


def _take_lock(directory: Path, instance: str, boot: str) -> StateLock:
    try:
        return StateLock(directory, instance=instance, boot=boot)
    except StateLockedError as error:
        raise AppError(str(error)) from error


async def _started(starting: Awaitable[Any], failed: str, key: str) -> Any:
    """Await the start of a listener; what it cannot have is told with what to do."""
    try:
        return await starting
    except http_api.ExposedWithoutTokenError as error:
        raise AppError(str(error)) from error
    except OSError as error:
        # asyncio repeats the address before what the system said.
        why = (error.strerror or str(error)).rpartition(": ")[2]
        raise AppError(f"{failed}: {why}; end who has it, or change {key}", _code_of(error)) from error


def _code_of(error: BaseException | None) -> int:
    """An address that is not there yet comes with its interface: the service manager tries again."""
    late = isinstance(error, OSError) and error.errno == errno.EADDRNOTAVAIL
    return 1 if late else EX_CONFIG


def _on_signals(handle: Callable[[], Coroutine[None, None, None]]) -> None:
    loop = asyncio.get_running_loop()
    handling: set[asyncio.Task[None]] = set()

    def begin() -> None:
        task = loop.create_task(handle(), name="asked to end")
        handling.add(task)
        task.add_done_callback(handling.discard)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, begin)
