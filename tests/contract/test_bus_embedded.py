"""The embedded broker's own promises: it says why it cannot start, serves one cluster, and is bounded."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable

import aiomqtt
import pytest
from structlog.testing import capture_logs

from sparkd.adapters import broker as adapter
from sparkd.adapters.broker import BrokerStartError, EmbeddedBroker
from sparkd.adapters.clock import MonotonicClock
from sparkd.core.events import WillReceived
from wire.brokers import DEADLINE_S, LOOPBACK, Ear, HandClock, Proxy
from wire.samples import CLUSTER, HEAD, INSTANCE, NODES, WORKER

pytestmark = pytest.mark.process


def embedded(port: int = 0, host: str = LOOPBACK) -> EmbeddedBroker:
    return EmbeddedBroker(host=host, port=port, cluster=CLUSTER, nodes=NODES, clock=MonotonicClock())


def run(test: Callable[[EmbeddedBroker], Awaitable[None]]) -> None:
    async def with_broker() -> None:
        broker = embedded()
        await broker.start()
        try:
            await test(broker)
        finally:
            await broker.stop()

    asyncio.run(with_broker())


def test_a_port_in_use_is_said_with_what_to_do() -> None:
    """The likeliest reason is another broker: the text says what can be done."""

    async def test() -> None:
        with socket.create_server((LOOPBACK, 0)) as other:
            broker = embedded(other.getsockname()[1])
            with pytest.raises(BrokerStartError, match="maybe another broker listens there"):
                await broker.start()
            await broker.stop()

    asyncio.run(test())


def test_an_address_of_another_node_is_said() -> None:
    """A fabric interface that is down looks like this."""

    async def test() -> None:
        with pytest.raises(BrokerStartError, match="is not an address of this node"):
            await embedded(host="192.0.2.1").start()

    asyncio.run(test())


def test_only_topics_of_the_cluster_are_carried() -> None:
    """Nothing but the configured nodes' topics can be published, so nothing else can be retained."""

    async def test(broker: EmbeddedBroker) -> None:
        own = f"sparkd/{CLUSTER}/node/{HEAD}/status"
        async with (
            aiomqtt.Client(LOOPBACK, broker.port, identifier="a") as speaker,
            aiomqtt.Client(LOOPBACK, broker.port, identifier="b") as listener,
        ):
            await listener.subscribe("#", qos=1)
            for topic in ("other", f"sparkd/{CLUSTER}/node/spark-9/status", "sparkd/x/intent", own):
                await speaker.publish(topic, b"x", qos=1, retain=True)
            async with asyncio.timeout(DEADLINE_S):
                assert str((await anext(listener.messages)).topic) == own
        assert list(broker._broker._retained_messages) == [own]

    run(test)


def test_a_packet_that_is_too_large_ends_its_connection() -> None:
    """A header that announces a large packet is enough: nothing of it is kept."""

    async def test(broker: EmbeddedBroker) -> None:
        async with aiomqtt.Client(LOOPBACK, broker.port, identifier="a") as client:
            await client.publish(f"sparkd/{CLUSTER}/intent", b"x" * 200_000, qos=0)
            with pytest.raises(aiomqtt.MqttError):
                await asyncio.wait_for(anext(client.messages), DEADLINE_S)

    run(test)


def test_who_says_nothing_is_hung_up(monkeypatch) -> None:
    """A connection without a first packet does not hold its place for ever."""
    monkeypatch.setattr(adapter, "FIRST_PACKET_S", 0.05)

    async def test(broker: EmbeddedBroker) -> None:
        reader, writer = await asyncio.open_connection(LOOPBACK, broker.port)
        assert await asyncio.wait_for(reader.read(), DEADLINE_S) == b""
        writer.close()
        await writer.wait_closed()

    run(test)


def test_connections_are_bounded(monkeypatch) -> None:
    """One connection too many is closed at once; the others stay."""
    monkeypatch.setattr(adapter, "CONNECTIONS_MAX", 1)

    async def test(broker: EmbeddedBroker) -> None:
        async with aiomqtt.Client(LOOPBACK, broker.port, identifier="a") as client:
            reader, writer = await asyncio.open_connection(LOOPBACK, broker.port)
            assert await asyncio.wait_for(reader.read(), DEADLINE_S) == b""
            writer.close()
            await writer.wait_closed()
            await client.publish(f"sparkd/{CLUSTER}/intent", b"x", qos=1)

    run(test)


def test_a_silent_node_is_noticed() -> None:
    """A connection that dies without a word is noticed by both ends; the broker says the node's will."""

    async def test(broker: EmbeddedBroker) -> None:
        async with (
            Ear(broker.port, HEAD, "feed") as one,
            Proxy(broker.port) as proxy,
            Ear(proxy.port, WORKER, INSTANCE, keepalive_s=1) as two,
        ):
            await one.connected()
            await two.connected()
            proxy.mute()
            assert await one.until(WillReceived) == WillReceived(WORKER, INSTANCE)
            assert (await two.lost()).startswith("connection lost")

    run(test)


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x10\xff\xff\xff\x7f",
        b"\x00" * 100,
        b"\x10\x0c\x00\x04MQTT\x05\x02\x00\x3c\x00\x00",
    ],
)
def test_garbage_ends_its_connection_only(garbage: bytes) -> None:
    """Whatever a stranger sends, the broker goes on, and complains once a minute at most."""

    async def test(broker: EmbeddedBroker) -> None:
        for _ in range(5):
            reader, writer = await asyncio.open_connection(LOOPBACK, broker.port)
            writer.write(garbage)
            writer.write_eof()
            await asyncio.wait_for(reader.read(), DEADLINE_S)
            writer.close()
        async with aiomqtt.Client(LOOPBACK, broker.port, identifier="a") as client:
            await client.publish(f"sparkd/{CLUSTER}/intent", b"x", qos=1)

    with capture_logs() as logs:
        run(test)
    assert sum(entry["event"] == "broker_complained" for entry in logs) <= 1


def test_stopping_is_safe_at_any_time() -> None:
    """A broker that never started, and one that has stopped, can be stopped; it can start again."""

    async def test() -> None:
        broker = embedded()
        await broker.stop()
        for _ in range(2):
            await broker.start()
            await broker.stop()
        await broker.stop()

    asyncio.run(test())


def test_reading_is_throttled() -> None:
    """A client that sends faster than the bound is read no faster than it."""

    async def test() -> list[float]:
        slept: list[float] = []
        stream = asyncio.StreamReader()
        stream.feed_data(b"x" * 200)
        reader = adapter._BoundedReader(stream, HandClock().now)
        reader._credit_bytes = 100.0

        async def sleep(delay_s: float) -> None:
            slept.append(delay_s)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(adapter.asyncio, "sleep", sleep)
            await reader.read(100)
            await reader.read(100)
        return slept

    assert asyncio.run(test()) == [100 / adapter.BYTES_PER_S]


def test_complaints_are_a_digest() -> None:
    """The first complaint of a minute is logged, the others are counted."""
    clock = HandClock()
    digest = adapter._Digest(clock.now)
    record = logging.LogRecord(
        "amqtt.broker", logging.WARNING, "broker.py", 7, "strange %s", ("bytes",), None
    )
    with capture_logs() as logs:
        for _ in range(50):
            digest.emit(record)
        clock.now_s += 60.0
        digest.emit(record)

    assert [entry["counts"] for entry in logs] == [{"amqtt.broker:7": 1}, {"amqtt.broker:7": 50}]
    assert logs[0]["last"] == "strange bytes"
