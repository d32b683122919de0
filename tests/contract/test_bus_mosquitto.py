"""The example configuration of mosquitto does what its comments say: accounts, ACL, bounds, TLS."""

from __future__ import annotations

import asyncio
import gc
import subprocess
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import aiomqtt
import pytest

from ports import free_port
from sparkd.adapters import mqtt, mqttsender
from sparkd.core.events import StatusReceived
from wire.brokers import DEADLINE_S, LOOPBACK, MOSQUITTO, Ear, Mosquitto
from wire.samples import INSTANCE, STATUS, WORKER

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(MOSQUITTO is None, reason="mosquitto is not installed"),
]
ETC = Path(__file__).parents[2] / "etc" / "mosquitto"
PASSWORDS = {"spark-a": "head's", "spark-b": "worker's", "watcher": "people's"}


def example(folder: Path) -> Mosquitto:
    """Return mosquitto with the example, its address and its files moved to where the test has them."""
    port = free_port()
    passwd = folder / "sparkd.passwd"
    passwd.write_text("".join(f"{name}:{word}\n" for name, word in PASSWORDS.items()))
    passwd.chmod(0o600)
    subprocess.run(["mosquitto_passwd", "-U", str(passwd)], check=True, timeout=DEADLINE_S)
    acl = folder / "sparkd.acl"
    acl.write_text((ETC / "sparkd.acl").read_text())
    acl.chmod(0o600)
    text = (ETC / "sparkd.conf").read_text()
    for written, moved in (
        ("listener 1883 192.168.100.1", f"listener {port} {LOOPBACK}"),
        ("/etc/mosquitto/sparkd.passwd\n\n", f"{passwd}\n\n"),
        ("/etc/mosquitto/sparkd.acl\n", f"{acl}\n"),
    ):
        assert written in text
        text = text.replace(written, moved)
    return Mosquitto(folder, text, port)


def run(broker: Mosquitto, test: Callable[[], Awaitable[None]]) -> None:
    async def with_broker() -> None:
        await broker.start()
        try:
            await test()
        finally:
            await broker.stop()

    asyncio.run(with_broker())


def account(broker: Mosquitto, name: str) -> aiomqtt.Client:
    return aiomqtt.Client(LOOPBACK, broker.port, username=name, password=PASSWORDS[name], identifier=name)


async def heard(listener: aiomqtt.Client, last: str) -> list[str]:
    """Return the topics that arrive, up to *last*."""
    topics: list[str] = []
    async with asyncio.timeout(DEADLINE_S):
        async for message in listener.messages:
            topics.append(str(message.topic))
            if topics[-1] == last:
                return topics
    raise AssertionError


@pytest.mark.parametrize(
    ("name", "allowed"),
    [
        (
            "spark-a",
            ["node/spark-a/status", "node/spark-a/will", "node/spark-a/telemetry", "node/spark-a/report"],
        ),
        (
            "spark-b",
            ["node/spark-b/status", "node/spark-b/will", "node/spark-b/telemetry", "node/spark-b/report"],
        ),
    ],
)
def test_a_node_says_only_its_own_words(tmp_path: Path, name: str, allowed: list[str]) -> None:
    """A node's account publishes on its own topics; the intent is the head's."""
    broker = example(tmp_path)
    head_only = ["intent", "incident"] if name == "spark-a" else []
    other = "spark-b" if name == "spark-a" else "spark-a"
    refused = [f"node/{other}/status", f"node/{other}/will", f"node/{name}/orders", "node/spark-c/status"]
    refused += [] if head_only else ["intent", "incident"]

    async def test() -> None:
        async with account(broker, name) as speaker, account(broker, "watcher") as listener:
            await listener.subscribe("sparkd/sparks/#", qos=1)
            for topic in refused + allowed + head_only:
                await speaker.publish(f"sparkd/sparks/{topic}", b"x", qos=1)
            expected = [f"sparkd/sparks/{topic}" for topic in allowed + head_only]
            assert await heard(listener, expected[-1]) == expected

    run(broker, test)


def test_a_node_hears_the_cluster(tmp_path: Path) -> None:
    """Every node hears the others' words and the intent, and nothing else that the broker carries."""
    broker = example(tmp_path)

    async def test() -> None:
        async with account(broker, "spark-b") as listener, account(broker, "spark-a") as speaker:
            await listener.subscribe("#", qos=1)
            for topic in ("incident", "node/spark-a/status", "intent"):
                await speaker.publish(f"sparkd/sparks/{topic}", b"x", qos=1)
            topics = await heard(listener, "sparkd/sparks/intent")
            assert topics == ["sparkd/sparks/node/spark-a/status", "sparkd/sparks/intent"]

    run(broker, test)


def test_people_only_listen(tmp_path: Path) -> None:
    """The watcher's account cannot say anything."""
    broker = example(tmp_path)

    async def test() -> None:
        async with account(broker, "watcher") as watcher, account(broker, "spark-a") as head:
            await watcher.subscribe("sparkd/#", qos=1)
            for topic in ("intent", "incident", "node/watcher/status", "node/spark-a/status"):
                await watcher.publish(f"sparkd/sparks/{topic}", b"x", qos=1)
            await head.publish("sparkd/sparks/incident", b"x", qos=1)
            assert await heard(watcher, "sparkd/sparks/incident") == ["sparkd/sparks/incident"]

    run(broker, test)


@pytest.mark.parametrize(("username", "password"), [(None, None), ("spark-a", "wrong"), ("spark-9", "x")])
def test_strangers_are_refused_and_told_why(
    tmp_path: Path, username: str | None, password: str | None
) -> None:
    """Without a right account there is no session, and the reason names the account."""
    broker = example(tmp_path)

    async def test() -> None:
        async with Ear(broker.port, WORKER, INSTANCE, username=username, password=password) as two:
            assert (await two.lost()).startswith("authentication refused by the broker")

    run(broker, test)


def test_large_messages_are_not_delivered(tmp_path: Path) -> None:
    """What no daemon would take does not reach any."""
    broker = example(tmp_path)

    async def test() -> None:
        async with account(broker, "watcher") as listener, account(broker, "spark-a") as speaker:
            await listener.subscribe("sparkd/sparks/#", qos=1)
            await speaker.publish("sparkd/sparks/node/spark-a/report", b"x" * 65536, qos=1)
            await speaker.publish("sparkd/sparks/node/spark-a/report", b"x" * 65537, qos=0)
            async with aiomqtt.Client(
                LOOPBACK, broker.port, username="spark-b", password=PASSWORDS["spark-b"]
            ) as other:
                await other.publish("sparkd/sparks/node/spark-b/status", b"x", qos=1)
            topics = await heard(listener, "sparkd/sparks/node/spark-b/status")
            assert topics.count("sparkd/sparks/node/spark-a/report") == 1

    run(broker, test)


def certificates(folder: Path, name: str) -> None:
    """Make an authority, and a broker's certificate for the loopback, as the example's comment says."""
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    rest = ["-CAcreateserial", "-days", "2", "-extfile", "broker.ext", "-out", "broker.pem"]
    (folder / "broker.ext").write_text(f"subjectAltName=IP:{LOOPBACK}\n")
    for arguments in (
        [
            "req",
            "-x509",
            *curve,
            "-days",
            "2",
            "-subj",
            f"/CN={name}",
            "-keyout",
            f"{name}.key",
            "-out",
            f"{name}.pem",
        ],
        ["req", *curve, "-subj", "/CN=broker", "-keyout", "broker.key", "-out", "broker.csr"],
        ["x509", "-req", "-in", "broker.csr", "-CA", f"{name}.pem", "-CAkey", f"{name}.key", *rest],
    ):
        subprocess.run(
            ["openssl", *arguments], cwd=folder, check=True, capture_output=True, timeout=DEADLINE_S
        )


@pytest.mark.filterwarnings("ignore:unclosed <ssl.SSLSocket:ResourceWarning")
def test_tls(tmp_path: Path, monkeypatch) -> None:
    """With TLS both nodes meet; who trusts another authority does not connect, and says why."""
    for module in (mqtt, mqttsender):
        monkeypatch.setattr(module, "TIMEOUT_S", 0.5)
    certificates(tmp_path, "other-ca")
    certificates(tmp_path, "ca")
    broker = Mosquitto(
        tmp_path,
        f"allow_anonymous true\ncafile {tmp_path}/ca.pem\n"
        f"certfile {tmp_path}/broker.pem\nkeyfile {tmp_path}/broker.key\n",
    )

    async def test() -> None:
        trusted = str(tmp_path / "ca.pem")
        async with (
            Ear(broker.port, "spark-1", "feed", tls=True, ca_file=trusted) as one,
            Ear(broker.port, WORKER, INSTANCE, tls=True, ca_file=trusted) as two,
            Ear(broker.port, WORKER, "fool", tls=True, ca_file=str(tmp_path / "other-ca.pem")) as fool,
            Ear(broker.port, WORKER, "clear") as clear,
        ):
            await two.bus.publish(replace(STATUS, report_seq=7))
            assert (await one.until(StatusReceived)).status.report_seq == 7
            assert (await fool.lost()).startswith("TLS failed")
            assert await clear.lost()

    run(broker, test)
    gc.collect()  # paho leaves the sockets of failed handshakes to the collector; their warnings belong here
