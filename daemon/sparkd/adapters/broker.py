"""The embedded MQTT broker (amqtt, 3.1.1): what the head runs when no other broker is configured.

It serves this cluster and nothing else. Anybody who reaches the port may connect: every message of sparkd
is signed, so a stranger can disturb but neither order nor pretend. Where that is not enough, run mosquitto
with accounts and TLS (`etc/mosquitto`).

amqtt itself bounds little, so this module accepts the connections and hands amqtt readers that do: number
of connections, time to the first packet, size of a packet, bytes a second, silence. Import it only where
the broker is wanted: amqtt is an optional package and not small.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import structlog
from amqtt.adapters import StreamWriterAdapter
from amqtt.broker import Action, Broker, BrokerContext
from amqtt.plugins.base import BaseTopicPlugin

from sparkd.ports import Clock
from sparkd.wire.envelope import SIZE_MAX
from sparkd.wire.topics import Topics

CONNECTIONS_MAX = 64
FIRST_PACKET_S = 5.0
PACKET_BYTES_MAX = SIZE_MAX + 1024  # a frame, its topic and the header around it
BYTES_PER_S = 512 * 1024
BURST_BYTES = 1024 * 1024
READ_BYTES_MIN = 64  # what one read is reckoned at least: tiny packets cost time, too
SILENCES_MAX = 2
LOG_EVERY_S = 60.0
STOP_S = 5.0
LISTENER = "default"

log = structlog.get_logger()


class BrokerStartError(Exception):
    """The embedded broker could not be started; the text says what to do."""


class TopicsOfCluster(BaseTopicPlugin):  # type: ignore[misc]  # amqtt has no types
    """Lets clients publish only on topics of the cluster and of its nodes: nothing else can pile up."""

    @dataclass
    class Config:
        """What amqtt hands over."""

        cluster: str = ""
        nodes: str = ""

    def __init__(self, context: BrokerContext) -> None:
        super().__init__(context)
        self._topics = Topics(self._get_config_option("cluster", ""))
        self._nodes = frozenset(self._get_config_option("nodes", "").split(","))

    async def topic_filtering(
        self, *, session: Any = None, topic: str | None = None, action: Action | None = None
    ) -> bool:
        """Return whether *topic* may be used; subscriptions are free."""
        del session
        if action is not Action.PUBLISH:
            return True
        found = self._topics.parse(topic or "")
        return found is not None and (found[1] is None or found[1] in self._nodes)


class EmbeddedBroker:
    """An amqtt broker behind a listener of this module's own."""

    def __init__(self, *, host: str, port: int, cluster: str, nodes: tuple[str, ...], clock: Clock) -> None:
        """Prepare the broker.

        Args:
            host: address to listen on; the head's fabric address.
            port: TCP port; 0 = any free one (see `port` after `start`).
            cluster: the cluster's name.
            nodes: the configured nodes; only their topics can be published on.
            clock: for the bounds of time.
        """
        self._host = host
        self._port = port
        self._clock = clock
        plugins = {
            "amqtt.plugins.authentication.AnonymousAuthPlugin": {"allow_anonymous": True},
            f"{__name__}.{TopicsOfCluster.__name__}": {"cluster": cluster, "nodes": ",".join(nodes)},
        }
        self._config = {"listeners": {LISTENER: {"type": "external"}}, "plugins": plugins}
        self._broker: Broker | None = None
        self._server: asyncio.Server | None = None
        self._connections: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return self._port

    async def start(self) -> None:
        """Listen. Raises BrokerStartError where that is not possible, with what to do."""
        _quieten(self._clock)
        broker = Broker(self._config)
        try:
            self._server = await asyncio.start_server(self._accept, self._host, self._port)
        except OSError as error:
            raise BrokerStartError(_advice(self._host, self._port, error)) from error
        await broker.start()
        self._broker = broker
        self._port = self._server.sockets[0].getsockname()[1]
        log.info("broker_started", host=self._host, port=self._port)

    async def stop(self) -> None:
        """End every connection and the broker. May be called in any state."""
        server, self._server = self._server, None
        broker, self._broker = self._broker, None
        if server is None or broker is None:
            return
        server.close()
        await self._hang_up()
        try:
            async with asyncio.timeout(STOP_S):
                await broker.shutdown()
        except TimeoutError:
            log.warning("broker_stop_timeout", after_s=STOP_S)
        await server.wait_closed()
        log.info("broker_stopped", host=self._host, port=self._port)

    async def _hang_up(self) -> None:
        """End the connections first: amqtt's own way can miss its cancellation and then waits for ever."""
        tasks = list(self._connections)
        for writer in self._connections.values():
            writer.transport.abort()
        if tasks:
            _, pending = await asyncio.wait(tasks, timeout=STOP_S)
            for task in pending:
                task.cancel()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if self._broker is None or task is None or len(self._connections) >= CONNECTIONS_MAX:
            writer.close()
            return
        self._connections[task] = writer
        bounded = _BoundedReader(reader, self._clock.now)
        try:
            await self._broker.external_connected(bounded, StreamWriterAdapter(writer), LISTENER)
        except (OSError, _BoundError) as error:
            log.debug("broker_connection_ended", reason=str(error))
        except asyncio.CancelledError:
            log.debug("broker_connection_cancelled")  # by `stop`; asyncio would log it as an error
        finally:
            del self._connections[task]
            writer.close()


class _BoundError(Exception):
    """A client went beyond a bound; its connection ends."""


class _BoundedReader:
    """Reads for amqtt (its `ReaderAdapter`) within bounds of size, rate and silence."""

    def __init__(self, reader: asyncio.StreamReader, now: Callable[[], float]) -> None:
        self._reader = reader
        self._now = now
        self._credit_bytes = float(BURST_BYTES)
        self._credited_at_s = now()
        self._heard = False
        self._silences = 0

    async def read(self, n: int = -1) -> bytes:
        """Return *n* bytes; nothing once the client was silent for too long.

        Raises:
            _BoundError: more was asked for than a packet may have.
        """
        if not 0 <= n <= PACKET_BYTES_MAX:
            raise _BoundError(f"a packet of {n} bytes, at most {PACKET_BYTES_MAX} are allowed")
        if self._silences >= SILENCES_MAX:
            return b""
        await self._throttle(max(n, READ_BYTES_MIN))
        try:
            data = await self._read(n)
        except asyncio.CancelledError:
            # amqtt cancels a read after the client's keepalive time, and then only reads again: it would
            # keep a dead client, and its will, for ever.
            self._silences += 1
            raise
        self._silences = 0
        return data

    def feed_eof(self) -> None:
        """End the stream."""
        self._reader.feed_eof()

    async def _read(self, n: int) -> bytes:
        if self._heard:
            return await self._reader.readexactly(n)
        try:
            async with asyncio.timeout(FIRST_PACKET_S):
                data = await self._reader.readexactly(n)
        except TimeoutError:
            raise _BoundError("no packet after connecting") from None
        self._heard = True
        return data

    async def _throttle(self, size: int) -> None:
        now = self._now()
        earned = (now - self._credited_at_s) * BYTES_PER_S
        self._credit_bytes = min(self._credit_bytes + earned, BURST_BYTES) - size
        self._credited_at_s = now
        if self._credit_bytes < 0:
            await asyncio.sleep(-self._credit_bytes / BYTES_PER_S)


class _Digest(logging.Handler):
    """Says once a minute at most what amqtt complains of: its warnings can be caused by anybody."""

    def __init__(self, now: Callable[[], float]) -> None:
        super().__init__(logging.WARNING)
        self._now = now
        self._logged_at_s = float("-inf")
        self._since: Counter[str] = Counter()

    def emit(self, record: logging.LogRecord) -> None:
        """Count *record*; log the numbers when it is time."""
        self._since[f"{record.name}:{record.lineno}"] += 1
        if self._now() - self._logged_at_s < LOG_EVERY_S:
            return
        self._logged_at_s = self._now()
        log.warning("broker_complained", counts=dict(self._since), last=record.getMessage()[:500])
        self._since.clear()


def _quieten(clock: Clock) -> None:
    """Take amqtt's and its state machine's logs: only warnings, and those as a digest."""
    for name in ("amqtt", "transitions"):
        logger = logging.getLogger(name)
        logger.setLevel(logging.WARNING)
        logger.propagate = False
        logger.handlers = [_Digest(clock.now)]


def _advice(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return (
            f"port {port} of {host} is in use: maybe another broker listens there already. Configure that "
            "one as the cluster's broker, or give the embedded broker another port"
        )
    if error.errno == errno.EADDRNOTAVAIL:
        return f"{host} is not an address of this node: is its interface up, and is it the head's address?"
    return f"cannot listen on {host} port {port}: {error.strerror or error}"
