"""The composition root: the only place that knows everything.

Builds the daemon of one node from its configuration, runs it, and takes it down in order. Nothing is
decided here; what a person has to read before the daemon can start is an `AppError` with its exit code.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import signal
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import structlog

from sparkd.adapters.broker import BrokerStartError, EmbeddedBroker
from sparkd.adapters.children import Children
from sparkd.adapters.clock import MonotonicClock
from sparkd.adapters.logfiles import LogFiles
from sparkd.adapters.meminfo import MemInfo
from sparkd.adapters.model_files import LocalModel
from sparkd.adapters.mqtt import BrokerOptions, MqttBus
from sparkd.adapters.peer import HttpPeerView, PeerAddress
from sparkd.adapters.ray_table import GcsTable
from sparkd.adapters.vllm_api import VllmApi
from sparkd.api import http as http_api
from sparkd.api import operator as operator_api
from sparkd.api.peerview import PeerViewServer
from sparkd.config import Loaded
from sparkd.core.commands import Command
from sparkd.core.events import OperatorAsked, Verb
from sparkd.core.messages import MemberStatus
from sparkd.core.policy import Policy
from sparkd.core.publish import reports_from, status_of
from sparkd.core.records import IncidentClosed, MessageDropped, Record, SettingsAdopted
from sparkd.core.state import State, initial
from sparkd.engines.lines import read_line
from sparkd.engines.member import render_unit
from sparkd.engines.model import Rendered
from sparkd.export.logs import LogExporter
from sparkd.export.metrics import Metrics
from sparkd.export.page import page
from sparkd.export.status import About, ready, status_view
from sparkd.intake.pump import Intake
from sparkd.loop.executor import Executor, World
from sparkd.loop.pumps import LogPump, keep_up, pump_memory
from sparkd.loop.runner import Loop
from sparkd.signals.catalogue import packaged_catalogue
from sparkd.signals.causes import CAUSES
from sparkd.signals.match import Places
from sparkd.store.disk import DiskStore
from sparkd.store.lock import StateLock, StateLockedError
from sparkd.store.view import HistoryUnreadableError
from sparkd.words import Backend, Settings, Stamp, UnitName

log = structlog.get_logger()

EX_CONFIG = 78
"""Exit code for what only a person can put right (EX_CONFIG of sysexits.h): retrying does not help."""

RAY_LOGS = ("raylet.out", "raylet.err", "gcs_server.out", "gcs_server.err")


class AppError(Exception):
    """The daemon cannot start or go on; the text says what to do."""

    def __init__(self, text: str, code: int = EX_CONFIG) -> None:
        super().__init__(text)
        self.code = code


@dataclass(frozen=True, slots=True)
class _Outside:
    """Adapters of one daemon that are closed at its end."""

    units: Children
    pump: LogPump
    bus: MqttBus
    api: VllmApi
    ray: GcsTable
    peers: HttpPeerView


class Daemon:
    """One node's daemon, put together."""

    def __init__(self, loaded: Loaded) -> None:
        self._loaded = replace(loaded, policy=replace(loaded.policy, version=version("sparkd")))
        self._clock = MonotonicClock()
        self._instance = uuid.uuid4().hex
        self._ended = asyncio.Event()
        self._exit_code = 0
        self._last: dict[str, Any] | None = None
        self._learned: dict[str, Any] | None = None
        _make_directories(loaded)
        self._lock = _take_lock(Path(loaded.paths.state_dir))
        self._store = DiskStore(Path(loaded.paths.state_dir), asked=self.policy.settings, wall=time.time)
        state = initial(self.policy, self._instance, self._store.load(), self._clock.now())
        self._metrics = Metrics(self.policy.version, self.policy.node, causes=tuple(CAUSES))
        self._logs = LogExporter(self._clock.now)
        self._loop = Loop(
            state,
            self.policy,
            clock=self._clock,
            store=self._store,
            execute=self._execute,
            observe=self._observe,
        )
        self._outside = self._connect()
        self._executor = Executor(self._world(), self._loop.emit)

    def _execute(self, command: Command) -> None:
        self._executor(command)

    @property
    def policy(self) -> Policy:
        """The policy in force."""
        return self._loaded.policy

    async def run(self) -> int:
        """Run until ended; return the exit code. Raises AppError where the daemon cannot start."""
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(self._close)
            await self._listen(stack)
            _on_signals(self._asked_to_end)
            for task in self._tasks():
                stack.callback(task.cancel)
            log.info("started", node=self.policy.node, instance=self._instance, cluster=self._loaded.cluster)
            await self._ended.wait()
        return self._exit_code

    def end(self, code: int = 0) -> None:
        """Let `run` return."""
        self._exit_code = max(self._exit_code, code)
        self._ended.set()

    # -- parts -----------------------------------------------------------------------------------

    def _connect(self) -> _Outside:
        loaded, emit = self._loaded, self._loop.emit
        spec, node = loaded.engine, loaded.node
        pump = LogPump(Intake(node.name, packaged_catalogue(), read_line, _places(loaded)), self._clock, emit)
        log_dir = Path(loaded.paths.log_dir)
        ray_logs = [f"{spec.ray_temp_dir}/session_latest/logs/{name}" for name in RAY_LOGS]
        pump.files = LogFiles(log_dir, pump.feed, further={UnitName.RAY: ray_logs})
        return _Outside(
            units=Children(loaded.cluster, node.name, log_dir, emit),
            pump=pump,
            bus=self._make_bus(),
            api=self._make_api(),
            ray=GcsTable(
                f"{loaded.nodes[0].address}:{spec.ray_port}", token_path=_path(spec.ray_auth_token_path)
            ),
            peers=self._make_peer_view(),
        )

    def _make_api(self) -> VllmApi:
        loaded, spec = self._loaded, self._loaded.engine
        return VllmApi(
            _api_host(loaded), spec.api_port, spec.served_name, self._clock, api_key=loaded.api_key
        )

    def _make_bus(self) -> MqttBus:
        loaded, broker = self._loaded, self._loaded.broker
        options = BrokerOptions(
            host=broker.host,
            port=broker.port,
            username=broker.username,
            password=broker.password,
            tls=broker.tls,
            ca_file=broker.ca_file,
            cert_file=broker.cert_file,
            key_file=broker.key_file,
        )
        return MqttBus(
            broker=options,
            key=loaded.key,
            cluster=loaded.cluster,
            node=loaded.node.name,
            instance=self._instance,
            nodes=tuple(node.name for node in loaded.nodes),
            clock=self._clock,
            emit=self._loop.emit,
            on_twin=self._twin,
            on_drop=self._dropped,
        )

    def _make_peer_view(self) -> HttpPeerView:
        loaded = self._loaded
        peers = {
            node.name: tuple(
                PeerAddress(way, address, loaded.api.peer_port)
                for way, address in (("fabric", node.address), ("management", node.management_address))
                if address
            )
            for node in loaded.nodes
            if node.name != loaded.node.name
        }
        return HttpPeerView(key=loaded.key, cluster=loaded.cluster, peers=peers, clock=self._clock)

    def _world(self) -> World:
        spec = self._loaded.engine
        programs = (spec.vllm_program, *([spec.ray_program] if spec.backend is Backend.RAY else []))
        return World(
            units=self._outside.units,
            sources=self._outside.pump,
            bus=self._outside.bus,
            peers=self._outside.peers,
            ray=self._outside.ray,
            api=self._outside.api,
            model=LocalModel(spec.model, programs, spec.path),
            render=self._render,
            end=self.end,
        )

    def _render(self, unit: UnitName, stamp: Stamp, settings: Settings) -> Rendered:
        loaded = self._loaded
        rendered = render_unit(
            unit, loaded.engine, loaded.cluster, loaded.node, loaded.nodes, settings=settings, stamp=stamp
        )
        for warning in rendered.warnings:
            log.warning("engine", unit=unit, warning=warning)
        return rendered

    # -- listening -------------------------------------------------------------------------------

    async def _listen(self, stack: contextlib.AsyncExitStack) -> None:
        loaded = self._loaded
        if loaded.broker.embedded and self.policy.is_head:
            await self._start_broker(stack)
        peer_view = PeerViewServer(
            key=loaded.key,
            cluster=loaded.cluster,
            node=loaded.node.name,
            instance=self._instance,
            clock=self._clock,
            status=self._status_message,
            reports=lambda first: reports_from(self._loop.state, first),
        )
        await _started(peer_view.start([(a, loaded.api.peer_port) for a in loaded.api.peer_addresses]))
        stack.push_async_callback(peer_view.stop)
        await self._listen_to_people(stack)

    async def _start_broker(self, stack: contextlib.AsyncExitStack) -> None:
        loaded = self._loaded
        broker = EmbeddedBroker(
            host=loaded.node.address,
            port=loaded.broker.port,
            cluster=loaded.cluster,
            nodes=tuple(node.name for node in loaded.nodes),
            clock=self._clock,
        )
        await _started(broker.start())
        stack.push_async_callback(broker.stop)

    async def _listen_to_people(self, stack: contextlib.AsyncExitStack) -> None:
        api = self._loaded.api
        views = http_api.Views(
            metrics=self._metrics_text,
            status=self._status_document,
            page=lambda: page(self._status_document()),
            ready=lambda: ready(self._loop.state),
            step_age_s=lambda: self._loop.age_s,
            failed=self._metrics.handler_failed,
        )
        served = http_api.listen(http_api.make_app(views), api.address, api.port)
        stack.push_async_callback((await _started(served)).cleanup)
        asked = operator_api.OperatorViews(
            status=self._status_document,
            incidents=self._store.view.incidents,
            incident=self._store.view.incident,
            ask=self._ask,
            failed=self._metrics.handler_failed,
        )
        socket = operator_api.listen(operator_api.make_app(asked), Path(api.socket))
        stack.push_async_callback((await _started(socket)).cleanup)

    def _tasks(self) -> list[asyncio.Task[None]]:
        memory = MemInfo(self._clock)
        failed = self._metrics.handler_failed
        pumps: dict[str, Callable[[], Awaitable[None]]] = {
            "memory": functools.partial(pump_memory, memory, self._loop.emit),
            "log records": self._outside.pump.tick,
            "bus": self._outside.bus.run,
        }
        tasks = [asyncio.create_task(keep_up(name, pump, failed), name=name) for name, pump in pumps.items()]
        loop = asyncio.create_task(self._loop.run(), name="loop")
        loop.add_done_callback(self._loop_ended)
        return [*tasks, loop, asyncio.create_task(self._recall(), name="recall")]

    def _loop_ended(self, task: asyncio.Task[None]) -> None:
        """The single writer never ends by itself: a defect, and the service manager starts us anew."""
        if not task.cancelled():
            log.critical("the loop ended", exc_info=task.exception())
            self.end(1)

    # -- what others ask and tell ----------------------------------------------------------------

    def _observe(self, state: State, records: Sequence[Record], now: float) -> None:
        self._metrics.update(state, self.policy, now)
        if records:
            self._metrics.records(records)
            self._logs.records(records)
            if any(isinstance(record, IncidentClosed | SettingsAdopted) for record in records):
                task = asyncio.get_running_loop().create_task(self._recall())
                self._recalling = task

    async def _recall(self) -> None:
        """Read from the history what people see beside the state."""
        try:
            self._last = await self._store.view.last_closed()
            self._learned = await self._store.view.learned()
        except HistoryUnreadableError as error:
            log.warning("history unreadable", reason=str(error))

    def _metrics_text(self) -> bytes:
        self._metrics.store(troubled=bool(self._store.trouble), queued=self._store.queued)
        return self._metrics.text()

    def _status_document(self) -> dict[str, Any]:
        return status_view(self._loop.state, self.policy, self._clock.now(), self._about())

    def _about(self) -> About:
        loaded, spec = self._loaded, self._loaded.engine
        learned = self._learned
        if learned is not None:
            learned = {**learned, "age_s": max(0.0, time.time() - float(learned.get("wall_s", 0.0)))}
        return About(
            cluster=loaded.cluster,
            model=spec.served_name,
            api_url=f"http://{loaded.nodes[0].address}:{spec.api_port}",
            parallel=f"tp {spec.tensor_parallel}"
            if spec.pipeline_parallel == 1
            else f"tp {spec.tensor_parallel} pp {spec.pipeline_parallel}",
            last_incident=self._last,
            learned=learned,
            trouble=self._store.trouble,
        )

    def _status_message(self) -> MemberStatus:
        policy = self.policy
        return status_of(self._loop.state, policy.shared_digest, policy.node_digest, policy.version)

    def _ask(self, verb: Verb, by: str) -> operator_api.Answer:
        if self._loop.state.coordinator is None:
            return operator_api.Answer(False, f"this node does not coordinate: ask on {self.policy.head}")
        self._loop.emit(OperatorAsked(verb=verb, by=by))
        return operator_api.Answer(True, f"{verb} asked")

    def _asked_to_end(self) -> None:
        if self._loop.state.ending:
            self.end()
        log.info("ending", note="stops this node's part of the engine first")
        self._loop.emit(OperatorAsked(verb=Verb.SHUTDOWN, by="signal"))

    def _twin(self, instance: str) -> None:
        log.critical("another sparkd lives under this node's name", other=instance, node=self.policy.node)
        self.end(EX_CONFIG)

    def _dropped(self, kind: str, reason: str, sender: str) -> None:
        self._metrics.records([MessageDropped(kind=kind, reason=reason, sender=sender)])

    async def _close(self) -> None:
        await self._executor.close()
        outside = self._outside
        for part in (outside.pump, outside.units, outside.api, outside.ray):
            await part.close()
        await self._store.close()
        self._lock.release()


def _api_host(loaded: Loaded) -> str:
    """Return where the head asks its own API server: where it listens, else the head's address."""
    listens = loaded.engine.api_host
    return loaded.nodes[0].address if listens in {"", "0.0.0.0", "::"} else listens  # noqa: S104


def _places(loaded: Loaded) -> Places:
    """Return what tells a node from an address or a rank: vLLM fills node after node, the head first."""
    nodes, each = loaded.nodes, loaded.engine.gpus_per_node
    addresses = {a: n.name for n in nodes for a in (n.address, n.management_address) if a}
    ranks = {rank: nodes[rank // each].name for rank in range(len(nodes) * each)}
    return Places(addresses=addresses, ranks=ranks, head=nodes[0].name)


def _path(text: str | None) -> Path | None:
    return None if text is None else Path(text)


def _make_directories(loaded: Loaded) -> None:
    for path in (loaded.paths.state_dir, loaded.paths.log_dir, loaded.paths.run_dir):
        try:
            Path(path).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise AppError(f"cannot make {path}: {error.strerror}; make it, or change [paths]") from error
        if not os.access(path, os.W_OK):
            raise AppError(f"cannot write to {path}; change its owner, or change [paths]")


def _take_lock(directory: Path) -> StateLock:
    try:
        return StateLock(directory)
    except StateLockedError as error:
        raise AppError(str(error)) from error


async def _started(starting: Any) -> Any:
    """Await the start of a listener; what it cannot have is told with what to do."""
    try:
        return await starting
    except (BrokerStartError, http_api.ExposedWithoutTokenError, OSError) as error:
        raise AppError(str(error)) from error


def _on_signals(handle: Any) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, handle)


async def run(loaded: Loaded) -> int:
    """Run the daemon; return its exit code. Raises AppError."""
    return await Daemon(loaded).run()
