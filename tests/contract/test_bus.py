"""The bus against real brokers: the same contract with mosquitto and with the embedded one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import aiomqtt
import pytest
from structlog.testing import capture_logs

from sparkd.adapters import mqtt, mqttdrops, mqttsender
from sparkd.core.events import (
    IntentReceived,
    ReportReceived,
    StatusReceived,
    TelemetryReceived,
    WillReceived,
)
from sparkd.core.events import (
    Path as By,
)
from sparkd.wire.envelope import SIZE_MAX
from wire.brokers import DEADLINE_S, LOOPBACK, MOSQUITTO, Ear, Embedded, HandClock, Mosquitto, Proxy
from wire.samples import (
    HEAD,
    INSTANCE,
    INTENT,
    NOW,
    REPORT,
    STATUS,
    TELEMETRY,
    WILL,
    WORKER,
    encoder_of,
    forged,
)

pytestmark = pytest.mark.process
Broker = Mosquitto | Embedded
HEAD_STATUS = replace(STATUS, node=HEAD, instance="feed", report_seq=1)


@pytest.fixture(
    params=[
        pytest.param(
            Mosquitto, marks=pytest.mark.skipif(MOSQUITTO is None, reason="mosquitto is not installed")
        ),
        Embedded,
    ]
)
def run(
    request: pytest.FixtureRequest, tmp_path: Path
) -> Callable[[Callable[[Broker], Awaitable[None]]], None]:
    """Return what runs a test with a broker that is started before it and stopped after it."""

    async def with_broker(test: Callable[[Broker], Awaitable[None]]) -> None:
        broker = request.param(tmp_path)
        await broker.start()
        try:
            await test(broker)
        finally:
            await broker.stop()

    return lambda test: asyncio.run(with_broker(test))


def head(port: int) -> Ear:
    return Ear(port, HEAD, "feed")


def worker(port: int) -> Ear:
    return Ear(port, WORKER, INSTANCE)


def test_two_nodes_exchange_everything(run) -> None:
    """Every kind that one node says reaches the other as its event, and not itself."""

    async def test(broker: Broker) -> None:
        async with head(broker.port) as one, worker(broker.port) as two:
            await one.connected()
            await two.connected()
            for message in (INTENT, HEAD_STATUS):
                await one.bus.publish(message)
            assert IntentReceived(INTENT) == await two.until(IntentReceived)
            assert StatusReceived(HEAD_STATUS, By.MQTT) == await two.until(StatusReceived)
            for message in (STATUS, REPORT, TELEMETRY):
                await two.bus.publish(message)
            assert StatusReceived(STATUS, By.MQTT) == await one.until(StatusReceived)
            assert ReportReceived(REPORT, By.MQTT) == await one.until(ReportReceived)
            assert TelemetryReceived(TELEMETRY) == await one.until(TelemetryReceived)
            assert one.events.empty()
            assert two.events.empty()
            assert one.dropped.empty()
            assert two.dropped.empty()

    run(test)


def test_its_own_words_that_the_broker_brings_back_are_not_read(run, monkeypatch) -> None:
    """It listens to its own name for another one under it; what it has sent itself costs nothing."""

    async def test(broker: Broker) -> None:
        async with head(broker.port) as one, worker(broker.port) as two:
            await one.connected()
            read = one.bus._decoder.decode
            topics: list[str] = []

            def decode(topic: str, *rest):
                topics.append(topic)
                return read(topic, *rest)

            monkeypatch.setattr(one.bus._decoder, "decode", decode)
            await one.bus.publish(HEAD_STATUS)
            await two.until(StatusReceived)
            await two.bus.publish(STATUS)  # behind the other one's, on its way to both
            await one.until(StatusReceived)
            assert {topic.split("/")[-2] for topic in topics} == {WORKER}

    run(test)


def test_retained_messages_are_marked(run) -> None:
    """Who connects later hears the levels, and knows that they are old; reports and telemetry are gone."""

    async def test(broker: Broker) -> None:
        async with head(broker.port) as one, worker(broker.port) as two:
            for message in (REPORT, TELEMETRY, STATUS):
                await two.bus.publish(message)
            await one.until(StatusReceived)
            await one.bus.publish(INTENT)
            await two.until(IntentReceived)
        async with Ear(broker.port, HEAD, "beef") as late:
            heard = [await late.until(StatusReceived | IntentReceived) for _ in range(2)]
        expected = [StatusReceived(STATUS, By.MQTT, retained=True), IntentReceived(INTENT, retained=True)]
        assert sorted(map(repr, expected)) == sorted(map(repr, heard))
        assert not any(isinstance(event, ReportReceived) for event in late.events._queue)

    run(test)


def test_a_broken_connection_is_told_by_its_will(run) -> None:
    """The will names the node and its instance; the bus comes back by itself and says its levels anew."""

    async def test(broker: Broker) -> None:
        async with Proxy(broker.port) as proxy, head(broker.port) as one, worker(proxy.port) as two:
            await one.connected()
            await two.connected()
            await two.bus.publish(STATUS)
            await one.until(StatusReceived)
            proxy.kill()
            assert WillReceived(WORKER, INSTANCE) == await one.until(WillReceived)
            assert StatusReceived(STATUS, By.MQTT) == await one.until(StatusReceived)

    run(test)


def test_a_bus_that_ends_leaves_no_will(run) -> None:
    """A daemon that ends in order is away, not lost: its status stays, no will is said."""

    async def test(broker: Broker) -> None:
        async with head(broker.port) as one:
            await one.connected()
            async with worker(broker.port) as two:
                await two.bus.publish(STATUS)
                await one.until(StatusReceived)
            async with worker(broker.port) as again:
                await again.bus.publish(REPORT)
                await one.until(ReportReceived)
            assert not any(isinstance(event, WillReceived) for event in one.events._queue)

    run(test)


def test_a_restarted_broker_is_filled_again(run) -> None:
    """The broker forgot everything: both buses come back and what is retained is published anew."""

    async def test(broker: Broker) -> None:
        async with head(broker.port) as one, worker(broker.port) as two:
            await one.bus.publish(INTENT)
            await two.bus.publish(STATUS)
            await one.until(StatusReceived)
            await two.until(IntentReceived)
            await broker.stop()
            await asyncio.gather(one.lost(), two.lost())
            await one.bus.publish(replace(INTENT, seq=6))
            await broker.start()
            assert (await two.until(IntentReceived)).intent.seq == 6
            await one.until(StatusReceived)
            async with Ear(broker.port, HEAD, "beef") as late:
                assert (await late.until(StatusReceived)).retained

    run(test)


def test_what_was_said_meanwhile_waits(run) -> None:
    """Without a session the newest levels and the evidence wait; telemetry does not."""

    async def test(broker: Broker) -> None:
        await broker.stop()
        async with worker(broker.port) as two:
            reason = await two.lost()
            assert reason == "connection refused: no broker listens at this address and port"
            for message in (STATUS, TELEMETRY, REPORT, replace(STATUS, report_seq=99)):
                await two.bus.publish(message)
            await broker.start()
            async with head(broker.port) as one:
                assert (await one.until(StatusReceived)).status.report_seq == 99
            await two.connected()
        assert two.dropped.empty()

    run(test)


def test_hostile_messages_are_dropped_and_counted(run) -> None:
    """A flood of bad messages is counted by reason, logged once, and keeps nothing good from being heard."""
    other = replace(STATUS, node=HEAD)
    sealed = encoder_of(STATUS).encode(STATUS, NOW)
    moved = encoder_of(other).encode(other, NOW)
    hostile = [
        (b"\x00" * 10, "not_signed", ""),
        (b"x" * SIZE_MAX, "not_signed", ""),
        (moved.payload, "bad_mac", ""),
        (forged(sealed.topic, b"[" * 1000), "too_deep", ""),
        (forged(sealed.topic, b'{"v":NaN}'), "not_finite", ""),
        (
            encoder_of(STATUS, key=b"another cluster key of 32 bytes.").encode(STATUS, NOW).payload,
            "bad_mac",
            "",
        ),
        (sealed.payload.replace(b"sparkd/1", b"sparkd/9"), "unknown_version", ""),
    ]

    async def test(broker: Broker) -> None:
        async with (
            head(broker.port) as one,
            aiomqtt.Client(LOOPBACK, broker.port, identifier="mallory") as mallory,
        ):
            await one.connected()
            for _ in range(20):
                for payload, _, _ in hostile:
                    await mallory.publish(sealed.topic, payload, qos=1)
            await mallory.publish(sealed.topic, sealed.payload, qos=1)
            await mallory.publish(sealed.topic, sealed.payload, qos=1)
            assert (await one.until(StatusReceived)).status == STATUS
            drops = [await one.drop() for _ in range(20 * len(hostile) + 1)]
            assert [("status", reason, sender) for _, reason, sender in hostile * 20] == drops[:-1]
            assert drops[-1] == ("status", "replay", WORKER)

    with capture_logs() as logs:
        run(test)
    assert sum(entry["event"] == "messages_dropped" for entry in logs) == 1


def test_a_will_cannot_be_borrowed(run) -> None:
    """A will is signed like everything else, and heard once."""
    sealed = encoder_of(WILL).encode(WILL, NOW)

    async def test(broker: Broker) -> None:
        async with (
            head(broker.port) as one,
            aiomqtt.Client(LOOPBACK, broker.port, identifier="mallory") as mallory,
        ):
            await one.connected()
            await mallory.publish(sealed.topic, b"spark-2 is dead", qos=1)
            await mallory.publish(sealed.topic, sealed.payload, qos=1)
            await mallory.publish(sealed.topic, sealed.payload, qos=1)
            assert await one.drop() == ("will", "not_signed", "")
            assert await one.drop() == ("will", "replay", WORKER)
            assert WillReceived(WORKER, INSTANCE) == await one.until(WillReceived)

    run(test)


def test_the_newcomer_of_two_twins_is_told(run) -> None:
    """Another living daemon under this node's name: the one that came later ends, the elder does not."""

    async def test(broker: Broker) -> None:
        async with worker(broker.port) as elder, head(broker.port) as one:
            await one.connected()
            await elder.connected()
            for _ in range(5):
                await elder.bus.publish(TELEMETRY)
                await one.until(TelemetryReceived)
            async with Ear(broker.port, WORKER, "newcomer") as newcomer:
                await newcomer.connected()
                for _ in range(4):
                    await newcomer.bus.publish(replace(TELEMETRY, instance="newcomer"))
                    assert await elder.drop() == ("telemetry", "twin", WORKER)
                    await elder.bus.publish(TELEMETRY)
                    assert await newcomer.drop() == ("telemetry", "twin", WORKER)
                    elder.clock.now_s += 1.0
                    newcomer.clock.now_s += 1.0
                assert await asyncio.wait_for(newcomer.twins.get(), DEADLINE_S) == INSTANCE
            assert elder.twins.empty()

    run(test)


def test_ending_never_hangs(run, monkeypatch) -> None:
    """A bus can be ended at any moment, also just when the broker answers."""
    monkeypatch.setattr(mqtt, "LISTEN_S", 0.01)

    async def test(broker: Broker) -> None:
        async with head(broker.port) as one:
            await one.connected()
            for number in range(30):
                async with Ear(broker.port, WORKER, f"i{number}") as two:
                    await two.bus.publish(replace(STATUS, instance=f"i{number}"))
                    await one.until(StatusReceived, lambda event: not event.retained)
                assert two.task.cancelled()

    run(test)


def test_a_predecessor_is_no_twin(run) -> None:
    """What an earlier daemon of this node left retained informs (its stamp counts), and is no drop."""

    async def test(broker: Broker) -> None:
        async with worker(broker.port) as before, head(broker.port) as one:
            await before.bus.publish(STATUS)
            await one.until(StatusReceived)
        async with Ear(broker.port, WORKER, "after") as after:
            assert StatusReceived(STATUS, By.MQTT, retained=True) == await after.until(StatusReceived)
        assert after.dropped.empty()
        assert after.twins.empty()

    run(test)


def test_the_words_of_a_dead_predecessor_are_not_waited_on(run, monkeypatch) -> None:
    """Who is known to be dead cannot be disturbed: a daemon that was restarted speaks at once."""
    monkeypatch.setattr(mqtt, "LISTEN_S", 10 * DEADLINE_S)

    async def test(broker: Broker) -> None:
        async with worker(broker.port) as before, head(broker.port) as one:
            await before.bus.publish(STATUS)
            await one.until(StatusReceived)
        async with Ear(broker.port, WORKER, "after", predecessors=(INSTANCE,)) as after:
            assert StatusReceived(STATUS, By.MQTT, retained=True) == await after.until(StatusReceived)
            await after.connected()

    run(test)


def test_a_broker_that_says_nothing_is_a_timeout(run, monkeypatch) -> None:
    """A broker that accepts and never answers is told from one that is not there; ending does not hang."""
    for module in (mqtt, mqttsender):
        monkeypatch.setattr(module, "TIMEOUT_S", 0.3)

    async def test(broker: Broker) -> None:
        async with Proxy(broker.port) as proxy:
            proxy.stalled = True
            async with worker(proxy.port) as two:
                assert await two.lost() == "timeout: no answer from the broker"
                proxy.stalled = False
                proxy.kill()
                await two.connected()

    run(test)


def test_a_name_that_does_not_resolve_is_said() -> None:
    """The reason names what an operator has to look at."""

    async def test() -> None:
        async with Ear(1883, WORKER, INSTANCE, host="broker.invalid") as two:
            assert (await two.lost()).startswith("name resolution failed")

    asyncio.run(test())


def test_nothing_unsayable_stops_the_bus(run) -> None:
    """A message that is out of bounds is dropped and counted; the next one goes out."""

    async def test(broker: Broker) -> None:
        async with head(broker.port) as one, worker(broker.port) as two:
            await one.connected()
            await two.bus.publish(replace(STATUS, pressure_percent=float("nan")))
            assert await two.drop() == ("status", "not_finite", WORKER)
            await two.bus.publish(STATUS)
            assert (await one.until(StatusReceived)).status == STATUS

    run(test)


def test_the_inbox_is_bounded() -> None:
    """What arrives faster than it is read is dropped and counted, not kept."""

    async def test() -> None:
        full: list[int] = []
        inbox = mqttdrops.Inbox(lambda: full.append(1), maxsize=2)
        for _ in range(5):
            inbox.put_nowait(object())
        assert (inbox.qsize(), len(full)) == (2, 3)

    asyncio.run(test())


def test_drops_are_logged_once_a_minute() -> None:
    """However many are dropped; the next line tells how many there were."""
    clock = HandClock()
    counted: list[tuple[str, str, str]] = []
    drops = mqttdrops.Drops(lambda *drop: counted.append(drop), clock)
    with capture_logs() as logs:
        for _ in range(100):
            drops.count("status", "bad_mac", "")
        clock.now_s += 60.0
        drops.count("status", "bad_mac", "")

    assert len(counted) == 101
    assert [entry["counts"] for entry in logs] == [{"status bad_mac": 1}, {"status bad_mac": 100}]
