"""The session with the MQTT broker (3.1.1): `ports.Bus`.

- One task keeps the session: connect, subscribe, publish anew what is retained, then receive and send until
  the session breaks; then wait (0.2 s, doubling to 5 s) and again, for ever.
- Sending never blocks the caller. What waits is bounded: the newest status, intent and telemetry, and a
  number of reports; a lost report is a gap that the coordinator fetches over the second path.
- Nothing of a received message is used before `wire` has verified it. What is refused is counted by reason
  and logged once a minute at most; what arrives faster than it can be read is dropped and counted.
- A daemon that lives under this node's name with another instance is a twin (`wire.twins`): the younger of
  the two is told to end, by its own bus.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar, cast

import aiomqtt
import structlog

from sparkd.adapters.mqttdrops import Drops, Inbox, OnDrop
from sparkd.adapters.mqttreasons import first_of, reason_of
from sparkd.adapters.mqttsender import TIMEOUT_S, Sender, answered
from sparkd.core.events import (
    BrokerChanged,
    Event,
    IntentReceived,
    Path,
    ReportReceived,
    StatusReceived,
    TelemetryReceived,
    WillReceived,
)
from sparkd.core.messages import Intent, MemberStatus, Report, Telemetry
from sparkd.ports import Clock, Emit, Said
from sparkd.wire.codec import Decoder, Encoder, Message, Received, kind_of, split
from sparkd.wire.outbox import Outbox
from sparkd.wire.refusal import Refusal, WireError
from sparkd.wire.shapes import Will
from sparkd.wire.topics import Kind, Topics
from sparkd.wire.twins import Twins

OnTwin = Callable[[str], None]

BACKOFF_MIN_S = 0.2
BACKOFF_MAX_S = 5.0
CLOSE_S = 1.0
INBOX_MAX = 1024
SETTLE_S = 0.25
"""Retained messages follow the subscription at once; so long is waited for those of this node's name."""
LISTEN_S = 3.5
"""Who finds words of another instance under its own name listens so long before it speaks: a living one
says telemetry once a second, and three are proof (`wire.twins`)."""
_REFUSED_FILTER = 128
T = TypeVar("T")

log = structlog.get_logger()
# paho and aiomqtt describe every event of a session; what matters of it is said here.
_SILENT = logging.getLogger("sparkd.adapters.mqtt.library")
_SILENT.setLevel(logging.CRITICAL)


@dataclass(frozen=True, slots=True)
class BrokerOptions:
    """How the broker is reached.

    Attributes:
        host, port: where it listens.
        username, password: this node's account; None = anonymous.
        tls: speak TLS.
        ca_file: the authorities to trust; None = the system's.
        cert_file, key_file: this node's own certificate and its key, where the broker asks for one.
        keepalive_s: seconds of silence after which the broker is asked for a sign of life.
    """

    host: str
    port: int = 1883
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    tls: bool = False
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    keepalive_s: int = 5

    def context(self) -> ssl.SSLContext | None:
        """Return the TLS context. Raises OSError (ssl.SSLError) where a file is missing or unusable."""
        if not self.tls:
            return None
        context = ssl.create_default_context(cafile=self.ca_file)
        if self.cert_file is not None:
            context.load_cert_chain(self.cert_file, self.key_file)
        return context


class MqttBus:
    """Publishes what this daemon says, and turns what the others say into events."""

    def __init__(
        self,
        *,
        broker: BrokerOptions,
        key: bytes,
        cluster: str,
        node: str,
        instance: str,
        predecessors: frozenset[str] = frozenset(),
        nodes: tuple[str, ...],
        clock: Clock,
        emit: Emit,
        on_twin: OnTwin,
        on_drop: OnDrop,
    ) -> None:
        """Prepare the session; `run` keeps it.

        Args:
            broker: how the broker is reached.
            key: the cluster key.
            cluster: the cluster's name.
            node: this node.
            instance: this daemon's instance.
            predecessors: instances of this node that are known to be dead; their words make nobody listen.
            nodes: every configured node, this one included.
            clock: for the ages in reports.
            emit: takes events.
            on_twin: told the instance of another living daemon of this node that is the elder; again and
                again, as long as it lives.
            on_drop: told (kind, reason, sender) of every message that is dropped; the sender is empty where
                it is not proved.

        Raises:
            ValueError: a name or the key is unusable.
            OSError: a file that TLS needs is missing or unusable.
        """
        self._broker = broker
        self._node = node
        self._instance = instance
        self._predecessors = predecessors
        self._topics = Topics(cluster)
        self._encoder = Encoder(key, cluster, node, instance)
        self._decoder = Decoder(key, cluster, nodes)
        self._clock = clock
        self._emit = emit
        self._drops = Drops(on_drop, clock)
        self._twins = Twins(instance)
        self._on_twin = on_twin
        self._outbox = Outbox()
        self._sender = Sender(self._outbox, self._encoder, clock, self._drops, node)
        self._tls = broker.context()
        self._connection = 0
        self._said: BrokerChanged | None = None
        self._listened = self._namesakes = False

    async def run(self) -> None:
        """Keep the session up until cancelled."""
        delay_s = BACKOFF_MIN_S
        while True:
            connected_before = self._connection
            since = self._clock.now()
            reason = await self._session()
            self._outbox.disconnected()
            self._say(BrokerChanged(connected=False, reason=reason))
            held = self._connection > connected_before and self._clock.now() - since > BACKOFF_MAX_S
            delay_s = BACKOFF_MIN_S if held else delay_s
            await asyncio.sleep(delay_s)
            delay_s = min(delay_s * 2, BACKOFF_MAX_S)

    async def publish(self, message: Said) -> None:
        """Queue *message*; never blocks. Telemetry is dropped while there is no session."""
        try:
            for part in split(message) if isinstance(message, Report) else (message,):
                if not self._outbox.put(part):
                    self._drops.count(Kind.REPORT, "outbox_full", self._node)
        except WireError as refused:
            self._drops.count(kind_of(message), refused.reason, self._node, refused)
        self._sender.send()

    def _say(self, event: BrokerChanged) -> None:
        if event == self._said:
            return
        self._said = event
        log.info("broker_connected" if event.connected else "broker_lost", reason=event.reason)
        self._emit(event)

    async def _session(self) -> str:
        """Hold one session; return why it ended."""
        reason = "ended"
        try:
            async with _Connected(self._client()) as client:
                await self._subscribe(client)
                self._connection += 1
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._receive(client), name="mqtt-receive")
                    await self._listen_first()
                    self._outbox.connected()
                    self._say(BrokerChanged(connected=True))
                    group.create_task(self._sender.run(client), name="mqtt-send")
        except* aiomqtt.MqttError as errors:
            reason = reason_of(first_of(errors))
        return reason

    async def _listen_first(self) -> None:
        """Before the first word: an elder of this name must not be disturbed, not even by one status."""
        if self._listened:
            return
        await asyncio.sleep(SETTLE_S)
        if self._namesakes:
            await asyncio.sleep(LISTEN_S)
        self._listened = True

    def _client(self) -> aiomqtt.Client:
        will = self._encoder.encode(Will(self._node, self._instance, self._connection + 1), self._clock.now())
        broker = self._broker
        inbox = partial(Inbox, lambda: self._drops.count("any", "inbox_full", ""))
        return aiomqtt.Client(
            broker.host,
            broker.port,
            username=broker.username,
            password=broker.password,
            identifier=f"sparkd-{self._node}-{self._instance}",
            protocol=aiomqtt.ProtocolVersion.V311,
            will=aiomqtt.Will(will.topic, will.payload, qos=1),
            timeout=TIMEOUT_S,
            keepalive=broker.keepalive_s,
            queue_type=cast("type[asyncio.Queue[aiomqtt.Message]]", inbox),
            max_queued_incoming_messages=INBOX_MAX,
            tls_context=self._tls,
            socket_options=[(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)],  # an order is not held back
            logger=_SILENT,
        )

    async def _subscribe(self, client: aiomqtt.Client) -> None:
        filters = [(name, 1) for name in self._topics.filters()]
        codes = await answered(client.subscribe(filters, timeout=math.inf))
        if any((code if isinstance(code, int) else code.value) >= _REFUSED_FILTER for code in codes):
            raise aiomqtt.MqttError("the broker does not let this account subscribe: check its ACL")

    async def _receive(self, client: aiomqtt.Client) -> None:
        async for message in client.messages:
            self._take(str(message.topic), message.payload, retained=bool(message.retain))

    def _take(self, topic: str, payload: object, *, retained: bool) -> None:
        if self._sender.is_echo(payload) or (payload == b"" and not retained):
            return  # our own word, or somebody cleared a retained message
        try:
            received = self._decoder.decode(topic, cast("bytes", payload), self._clock.now())
        except WireError as refused:
            if not (retained and refused.reason is Refusal.REPLAY):  # brokers repeat what they retain
                parsed = self._topics.parse(topic)
                self._drops.count(parsed[0] if parsed else "unknown", refused.reason, refused.sender, refused)
            return
        if received.node != self._node:
            self._emit(_event(received.message, retained=retained))
        elif received.instance != self._instance:
            self._namesake(received, retained=retained)

    def _namesake(self, received: Received, *, retained: bool) -> None:
        """Take a message of another instance of this node: retained words of a predecessor inform."""
        self._namesakes |= received.instance not in self._predecessors
        if retained:
            self._emit(_event(received.message, retained=True))
        elif received.kind is not Kind.WILL:
            self._drops.count(received.kind, "twin", received.node)
            if self._twins.heard(received, self._encoder.said(Kind.TELEMETRY), self._clock.now()):
                self._on_twin(received.instance)


class _Connected:
    """A client's connection as a context that leaves nothing half-made behind, also when it is cancelled.

    aiomqtt connects in a thread, which cannot be cancelled: its end is waited for, and then undone.
    """

    def __init__(self, client: aiomqtt.Client) -> None:
        self._client = client

    async def __aenter__(self) -> aiomqtt.Client:
        connecting = asyncio.ensure_future(self._client.__aenter__())
        connecting.add_done_callback(lambda task: None if task.cancelled() else task.exception())
        try:
            return await asyncio.shield(connecting)
        except aiomqtt.MqttError:
            await self.__aexit__()  # a broker that does not answer leaves an open socket
            raise
        except asyncio.CancelledError:
            await asyncio.wait({connecting}, timeout=CLOSE_S)
            await self.__aexit__()
            raise

    async def __aexit__(self, *_raised: object) -> None:
        with contextlib.suppress(aiomqtt.MqttError, TimeoutError):  # the session has ended anyway
            async with asyncio.timeout(CLOSE_S):
                await self._client.__aexit__(None, None, None)


def _event(message: Message, *, retained: bool) -> Event:
    match message:
        case MemberStatus():
            return StatusReceived(message, Path.MQTT, retained=retained)
        case Intent():
            return IntentReceived(message, retained=retained)
        case Report():
            return ReportReceived(message, Path.MQTT)
        case Telemetry():
            return TelemetryReceived(message)
        case Will():
            return WillReceived(message.node, message.instance)
