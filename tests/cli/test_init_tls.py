"""TLS for the broker by `sparkctl init`: certificates given or made, what is said of wrong ones."""

from __future__ import annotations

import asyncio
import os
import shutil
import ssl
from dataclasses import replace
from pathlib import Path

import aiomqtt
import pytest

from cli.setup_bed import host, shipped, writes
from cli.test_init_plan import ENGINE, PAIR, WISHES, document, init
from cli.test_setting_up import INIT, System, token_of
from ports import free_port
from sparkd.setup import broker, places, tls, token
from sparkd.setup.broker import Certificates
from sparkd.setup.head import Fresh, Wishes, plan_init
from sparkd.setup.tls import TlsError
from wire.brokers import LOOPBACK, MOSQUITTO, Mosquitto

ADDRESS = "192.168.200.12"
MADE = Certificates("ca\n", "cert\n", "key\n")
openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
root = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("systemd-sysusers") is None, reason="needs root and systemd's programs"
)


def test_the_broker_and_every_node_speak_tls() -> None:
    head = init(replace(WISHES, mosquitto=True, tls=MADE))
    brought = token.decode(head.tokens["spark-b"])

    wanted = {"host": ADDRESS, "port": 8883, "tls": True, "ca_file": places.BROKER_CA}
    assert document(head)["broker"] == {**wanted, "username": "spark-a"}
    assert brought.document["broker"] == {**wanted, "username": "spark-b"}
    assert brought.secrets[token.CA] == MADE.ca
    found = writes(head.plan)
    conf = found[broker.CONF].content.decode().splitlines()
    assert {f"listener 8883 {ADDRESS}", "cafile /etc/mosquitto/certs/ca.pem", "tls_version tlsv1.2"} <= set(
        conf
    )
    assert (found[broker.CERTS["key"]].mode, found[broker.CERTS["key"]].owner) == (0o400, "mosquitto")
    assert [found[path].content for path in (places.BROKER_CA, *broker.CERTS.values())] == [
        b"ca\n",
        b"ca\n",
        b"cert\n",
        b"key\n",
    ]


def test_the_authority_is_found_again_for_a_later_join() -> None:
    first = init(replace(WISHES, mosquitto=True, tls=MADE))
    there = host(files={path: step.content for path, step in writes(first.plan).items()}, node=None)
    fresh = Fresh("other", ("x", "y", "z"))
    again = plan_init(shipped(), there, PAIR, programs=ENGINE, wishes=Wishes(), fresh=fresh)

    assert again.tokens == first.tokens


def test_without_tls_nothing_of_it_is_written() -> None:
    head = init(replace(WISHES, mosquitto=True))

    assert not {places.BROKER_CA, *broker.CERTS.values()} & set(writes(head.plan))
    assert token.CA not in token.decode(head.tokens["spark-b"]).secrets
    assert "#cafile" in writes(head.plan)[broker.CONF].content.decode()


def put(folder: Path, found: Certificates) -> dict[str, str]:
    folder.mkdir(exist_ok=True)
    for name in ("ca", "cert", "key"):
        (folder / name).write_text(getattr(found, name))
    return {name: str(folder / name) for name in ("ca", "cert", "key")}


@openssl
def test_what_is_made_is_also_right_when_it_is_given(tmp_path) -> None:
    made = tls.made(ADDRESS)

    assert tls.given(**put(tmp_path, made), address=ADDRESS) == made


@openssl
@pytest.mark.parametrize(
    ("change", "address", "said"),
    [
        ({}, "192.168.200.99", r"--tls-cert \S+: is not for 192.168.200.99"),
        ({"key": "other/key"}, ADDRESS, r"--tls-key \S+/key: is not the key of"),
        ({"ca": "other/ca"}, ADDRESS, r"--tls-cert \S+: is not signed by"),
        ({"ca": "own/key"}, ADDRESS, r"--tls-ca \S+: holds no certificate"),
        ({"key": "own/ca"}, ADDRESS, r"--tls-key \S+: holds no private key"),
        ({"cert": "own/none"}, ADDRESS, r"--tls-cert \S+: No such file"),
        ({"key": "own/binary"}, ADDRESS, r"--tls-key \S+: is no PEM file"),
    ],
)
def test_each_fault_of_given_files_is_told_with_the_option(tmp_path, change, address, said) -> None:
    files = put(tmp_path / "own", tls.made(ADDRESS))
    put(tmp_path / "other", tls.made(ADDRESS))
    (tmp_path / "own/binary").write_bytes(bytes([0xFF, 0]))
    files |= {name: str(tmp_path / path) for name, path in change.items()}
    with pytest.raises(TlsError, match=said):
        tls.given(**files, address=address)


def test_without_openssl_it_is_said_what_to_install(monkeypatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(TlsError, match="sudo apt install openssl"):
        tls.made(ADDRESS)


@root
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--tls"], "say --broker mosquitto, too"),
        (["--broker", "mosquitto", "--tls-ca", "/x"], "belong together"),
        (
            ["--broker", "mosquitto", "--tls-ca", "/x", "--tls-cert", "/y", "--tls-key", "/z"],
            "--tls-cert /y: No such file",
        ),
    ],
)
def test_what_cannot_be_is_refused_and_nothing_changes(
    tmp_path, capsys, monkeypatch, arguments, said
) -> None:
    head = System(tmp_path, "spark-a", capsys, monkeypatch)
    status, _, errors = head.ctl("init", *INIT, *arguments)

    assert (status, said in errors) == (1, True), errors
    assert not (head.root / "etc/sparkd/sparkd.toml").exists()


@root
@openssl
@pytest.mark.process
@pytest.mark.skipif(MOSQUITTO is None, reason="mosquitto is not installed")
def test_a_worker_trusts_the_broker_by_what_its_token_brought(tmp_path, capsys, monkeypatch) -> None:
    head = System(tmp_path, "spark-a", capsys, monkeypatch)
    worker = System(tmp_path, "spark-b", capsys, monkeypatch)
    _, said, _ = head.ctl("init", *INIT, "--broker", "mosquitto", "--tls")
    worker.ctl("join", "-", stdin=token_of(said))
    assert worker.mode("etc/sparkd/broker-ca.pem") == "0o644"
    loaded = worker.loaded("spark-b").broker
    assert (loaded.tls, loaded.port, loaded.ca_file) == (True, 8883, places.BROKER_CA)

    port = free_port()
    text = (head.root / "etc/mosquitto/conf.d/sparkd.conf").read_text()
    text = text.replace(f"listener 8883 {ADDRESS}", f"listener {port} {LOOPBACK}")
    broker_ = Mosquitto(tmp_path, text.replace("/etc/mosquitto/", f"{head.root}/etc/mosquitto/"), port)
    context = ssl.create_default_context(cafile=str(worker.root / "etc/sparkd/broker-ca.pem"))
    context.check_hostname = False  # it is for the head's address, not for this test's

    async def story() -> None:
        await broker_.start()
        try:
            async with (
                asyncio.timeout(20.0),
                aiomqtt.Client(
                    LOOPBACK, port, username="spark-b", password=loaded.password, tls_context=context
                ) as client,
            ):
                await client.publish("sparkd/sparks/node/spark-b/status", b"x", qos=1)
        finally:
            await broker_.stop()

    asyncio.run(story())
