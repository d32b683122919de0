"""What bad input gets, at real daemons: a clear refusal with exit code 78, or nothing at all."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiomqtt
import pytest

from cluster import DaemonProcess, Event, NodeSetup, stamped_processes
from ports import free_port
from sparkd.core.messages import Intent
from sparkd.wire.codec import Encoder
from sparkd.wire.envelope import SIZE_MAX
from standin_cluster import HEAD, NODES, PROGRAMS, Standin, is_event, until
from wire.samples import INTENT

pytestmark = [pytest.mark.process, pytest.mark.timeout(180)]

EX_CONFIG = 78
SERVING_S = 60.0
QUICK = "model_check_s = 0.5"
FULL_BYTES = 2 << 20


def another(
    standin: Standin, node: str, prefix: tuple[str, ...] = (), file: str = "sparkd.toml", **env: str
) -> DaemonProcess:
    """Return a further daemon under *node*'s name, with directories and ports of its own."""
    ports = {"SPARKD_API__PORT": str(free_port()), "SPARKD_API__PEER_PORT": str(free_port(HEAD))}
    env = {**standin.cluster.daemons[node].setup.env, **ports, **env}
    setup = NodeSetup(node, standin.directory / "two", prefix=prefix, env=env)
    return DaemonProcess(setup, standin.directory / file, {})


async def refused(daemon: DaemonProcess, code: int = EX_CONFIG) -> str:
    """Start the daemon, which must end by itself with that code; return what it said in words."""
    try:
        start = len(daemon.events)
        await daemon.start()
        ended = await daemon.wait(is_event("process_ended"), 30, start)
        assert ended["code"] == code, daemon.tail()
        return "\n".join(e["text"] for e in daemon.events[start:] if e["event"] == "text")
    finally:
        await daemon.stop()


def waits_for(word: str) -> Callable[[Event], bool]:
    return lambda event: event["event"] == "waiting_for" and word in str(event["reasons"])


async def still_serves(standin: Standin, generation: int = 1) -> None:
    status = await standin.cluster.head.status()
    assert (status["phase"], status["generation"]) == ("serving", generation)
    assert status["incident"] is None


# Configuration ---------------------------------------------------------------------------------------------


def test_every_error_of_the_configuration_is_told_with_its_place(live: Callable[..., Standin]) -> None:
    """File, key, value, and what is allowed; all at once, a misspelt variable among them."""

    async def story(standin: Standin) -> None:
        config = standin.directory / "sparkd.toml"
        text = config.read_text().replace("backoff_base_s", "backof_base_s")
        config.write_text(text + "\n[settings]\ngpu_memory_utilization = 1.5\n")
        said = await refused(another(standin, "spark-a", SPARKD_BROKER__PROT="1884"))
        assert len(said.splitlines()) == 3
        assert f"{config}: settings.gpu_memory_utilization = 1.5: must be less than 1" in said
        assert f"{config}: recovery.backof_base_s: unknown key; did you mean backoff_base_s?" in said
        assert "environment SPARKD_BROKER__PROT: sets no key; did you mean SPARKD_BROKER__PORT?" in said

    live(story, start=False)


def test_keys_that_do_not_fit_together_are_told_with_their_numbers(live: Callable[..., Standin]) -> None:
    async def story(standin: Standin) -> None:
        env = {"SPARKD_BROKER__PORT": "9999", "SPARKD_API__PEER_PORT": "9999", "SPARKD_NODE": "spark-a"}
        said = await refused(another(standin, "spark-a", SPARKD_TIMEOUTS__STALL_S="700", **env))
        assert "api.peer_port and broker.port: both are 9999" in said
        assert "timeouts.stall_s = 700 s: must be below timeouts.phase_budget_s.loading_weights" in said

    live(story, start=False)


# Others in the same place ----------------------------------------------------------------------------------


def test_a_second_daemon_on_the_same_state_directory_is_refused(live: Callable[..., Standin]) -> None:
    async def story(standin: Standin) -> None:
        first = standin.cluster.head
        state = first.setup.directory / "state"
        await first.start()
        await first.wait(is_event("started"), 20)
        said = await refused(another(standin, "spark-a", SPARKD_PATHS__STATE_DIR=str(state)))
        assert f"another sparkd (pid {first.pid}) uses the state directory {state}" in said
        assert (await first.status())["node"] == "spark-a"

    live(story, start=False)


def test_a_taken_port_is_told_with_what_to_change(live: Callable[..., Standin]) -> None:
    """The page's, the peer view's, the embedded broker's: each names its address and its key."""

    async def story(standin: Standin) -> None:
        with socket.create_server(("127.0.0.1", 0)) as page, socket.create_server((HEAD, 0)) as other:
            taken = page.getsockname()[1]
            said = await refused(another(standin, "spark-a", SPARKD_API__PORT=str(taken)))
            assert f"127.0.0.1 port {taken}" in said
            assert "in use" in said
            assert "api.port" in said
            taken = other.getsockname()[1]
            said = await refused(another(standin, "spark-a", SPARKD_API__PEER_PORT=str(taken)))
            assert f"{HEAD} port {taken}" in said
            assert "api.peer_port" in said
            said = await refused(another(standin, "spark-a", SPARKD_BROKER__PORT=str(taken)))
            assert f"port {taken} of {HEAD} is in use" in said

    live(story, start=False)


def test_an_address_that_is_not_there_yet_is_tried_again_by_the_service_manager(
    live: Callable[..., Standin],
) -> None:
    """After a boot an interface may be late: 78 would keep the daemon down for good."""

    async def story(standin: Standin) -> None:
        text = (standin.directory / "sparkd.toml").read_text(encoding="utf-8")
        daemon = another(standin, "spark-b", (), "late.toml")
        elsewhere = text.replace(NODES["spark-b"], "192.0.2.1").replace(
            f'address = "{HEAD}"', 'address = "192.0.2.2"'
        )
        daemon.config.write_text(elsewhere, encoding="utf-8")
        said = await refused(daemon, code=1)
        assert "192.0.2.1" in said

    live(story, start=False)


ELSEWHERE = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")


@pytest.fixture
def newcomer() -> Callable[[Standin, str], DaemonProcess]:
    """Return what makes a daemon that lives on a machine of its own: a process namespace stands for it."""
    if os.geteuid() != 0 or subprocess.run([*ELSEWHERE, "true"], check=False).returncode != 0:
        pytest.skip("a process namespace cannot be made here")

    def make(standin: Standin, node: str) -> DaemonProcess:
        return another(standin, node, ELSEWHERE, SPARKD_BROKER__HOST=HEAD)

    return make


def test_a_newcomer_under_a_living_daemons_name_ends_and_disturbs_nobody(
    live: Callable[..., Standin], newcomer
) -> None:
    """The younger of two daemons of one name ends, whichever the name; the elder serves on."""

    async def story(standin: Standin) -> None:
        await standin.cluster.phase("serving", SERVING_S)
        before = stamped_processes(standin.name)
        for node, elder in standin.cluster.daemons.items():
            twin = newcomer(standin, node)
            await refused(twin)
            assert any(is_event("another sparkd lives under this node's name")(e) for e in twin.events)
            assert elder.returncode is None
            await still_serves(standin)
        assert stamped_processes(standin.name) == before

    live(story)


# The state directory ---------------------------------------------------------------------------------------


def test_damaged_files_are_moved_aside_and_the_daemon_runs(live: Callable[..., Standin]) -> None:
    def prepare(standin: Standin) -> None:
        for node in standin.cluster.daemons:
            state = standin.directory / node / "state"
            state.mkdir(parents=True)
            (state / "stamp").write_bytes(b"\0 no stamp at all")
            (state / "history.sqlite").write_bytes(b"no database" * 999)

    async def story(standin: Standin) -> None:
        await standin.cluster.phase("serving", SERVING_S)
        for node, daemon in standin.cluster.daemons.items():
            for file, event in (("stamp", "stamp_damaged"), ("history.sqlite", "history_damaged")):
                noted = await daemon.wait(is_event(event), 5)
                assert f"{file} was damaged and is now {file}.damaged.1" in noted["note"]
                assert (standin.directory / node / "state" / f"{file}.damaged.1").exists()
        assert (await standin.cluster.head.status())["trouble"] == ""

    live(story, prepare=prepare)


@contextmanager
def small_disk(path: Path) -> Iterator[None]:
    """Mount a disk of a few MiB on *path*, where this is allowed."""
    path.mkdir(parents=True)
    options = ["-t", "tmpfs", "-o", f"size={FULL_BYTES}", "tmpfs", str(path)]
    done = subprocess.run(["mount", *options], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"nothing can be mounted here: {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


def fill(path: Path) -> None:
    """Write until nothing more fits."""
    with path.open("wb", buffering=0) as file, suppress(OSError):
        while file.write(bytes(4096)):
            pass
    assert shutil.disk_usage(path.parent).free == 0


def test_a_full_disk_stops_no_recovery_and_loses_nothing(
    live: Callable[..., Standin], tmp_path: Path
) -> None:
    """A start that failed is on disk; the next failure meets a full disk, and is kept until there is room."""
    state = tmp_path / "small"

    def prepare(standin: Standin) -> None:
        standin.cluster.head.setup.env["SPARKD_PATHS__STATE_DIR"] = str(state)

    async def story(standin: Standin) -> None:
        head = standin.cluster.head
        await standin.cluster.phase("serving", SERVING_S)
        await head.wait(is_event("incident_closed"), 10)
        fill(state / "ballast")
        start = len(head.events)
        os.kill(standin.pids("spark-b", "RayWorkerProc")[0], signal.SIGKILL)
        _, closed = await standin.recovered(start)
        assert closed["outcome"] == "recovered"
        status = await head.status()
        assert status["phase"] == "serving"
        assert "cannot be written" in status["trouble"]
        assert "full" in status["trouble"]
        assert await metric(standin, "spark-a", "sparkd_store_writable") == {"": 0.0}
        assert [known["incident"] for known in await head.ask("GET", "/incidents")] == [1]
        (state / "ballast").unlink()

    with small_disk(state):
        failing = {"kind": "nccl_init_failure", "phase": "init_distributed", "times": 1}
        live(story, prepare=prepare, faults=(failing,))
        with sqlite3.connect(state / "history.sqlite") as history:
            rows = history.execute("SELECT incident FROM record WHERE kind = 'incident_closed'").fetchall()
        history.close()
        assert rows == [(1,), (2,)]


# What has to be there before a launch ----------------------------------------------------------------------


async def waits_and_starts(standin: Standin, word: str, cure: Callable[[], object]) -> None:
    """Wait until the cluster waits for *word*, cure it, and see it come to serve by itself."""
    head = standin.cluster.head
    await head.wait(waits_for(word), SERVING_S)
    status = await head.status()
    assert (status["phase"], status["generation"], status["incident"]) == ("waiting", 0, None)
    cure()
    await standin.cluster.phase("serving", SERVING_S)
    await still_serves(standin)
    assert not any(is_event("incident_opened")(event) for event in head.events)


def test_a_missing_program_is_waited_for(live: Callable[..., Standin], tmp_path: Path) -> None:
    programs = tmp_path / "programs"

    async def story(standin: Standin) -> None:
        await waits_and_starts(standin, "program_missing", lambda: programs.symlink_to(PROGRAMS))

    live(story, programs=programs, timeouts=QUICK)


@pytest.mark.parametrize("lack", ["model_missing", "model_incomplete"])
def test_a_model_that_is_not_whole_is_waited_for(live: Callable[..., Standin], lack: str) -> None:
    def place(standin: Standin) -> tuple[Path, Path]:
        model, aside = standin.directory / "model", standin.directory / "aside"
        shard = "model-00007-of-00039.safetensors"
        return (model, aside) if lack == "model_missing" else (model / shard, aside)

    def prepare(standin: Standin) -> None:
        there, aside = place(standin)
        there.rename(aside)

    async def story(standin: Standin) -> None:
        there, aside = place(standin)
        await waits_and_starts(standin, lack, lambda: aside.rename(there))

    live(story, prepare=prepare, timeouts=QUICK)


# Hostile messages ------------------------------------------------------------------------------------------


async def metric(standin: Standin, node: str, name: str) -> dict[str, float]:
    """Return labels -> value of one metric, as the node tells it."""
    _, text = await standin.get(node, "/metrics")
    return {
        labels: float(value) for labels, value in re.findall(rf"^{name}({{.*}})? (\S+)$", text, re.MULTILINE)
    }


def dropped(reason: str, count: int) -> Callable[[dict[str, float]], bool]:
    return lambda series: sum(n for labels, n in series.items() if f'"{reason}"' in labels) >= count


async def counted(standin: Standin, reason: str, count: int) -> None:
    """Wait until the worker has counted so many drops for the reason."""
    name = "sparkd_messages_dropped_total"
    await until(lambda: metric(standin, "spark-b", name), dropped(reason, count), 20)


async def too_much(host: str, port: int) -> None:
    """Announce a packet beyond the broker's bound, which hangs up: nobody else hears of it."""
    reader, writer = await asyncio.open_connection(host, port)
    connect = b"\x10\x11\x00\x04MQTT\x04\x02\x00\x3c\x00\x05giant"
    four_mib = b"\x80\x80\x80\x02"
    writer.write(connect + b"\x30" + four_mib + bytes(1 << 16))
    with suppress(ConnectionError):
        await asyncio.wait_for(reader.read(), 10)
    writer.close()


def order_to_stop(standin: Standin) -> Intent:
    """Return an intent that would end everything, were it believed."""
    wanted = (("spark-a", ()), ("spark-b", ()))
    return replace(INTENT, node="spark-a", wanted=wanted)


def test_hostile_messages_change_nothing_and_are_counted(live: Callable[..., Standin]) -> None:
    """Random bytes, huge, unsigned, signed with another key, said again, and all of it retained."""

    async def story(standin: Standin) -> None:
        await standin.cluster.phase("serving", SERVING_S)
        before = stamped_processes(standin.name)
        topic = f"sparkd/{standin.name}/intent"
        status = f"sparkd/{standin.name}/node/spark-b/status"
        order = order_to_stop(standin)
        forged = Encoder(b"another key of 32 bytes, not ours", standin.name, "spark-a", order.coordinator)
        unsigned = json.dumps({"kind": "intent", "wanted": {"spark-a": [], "spark-b": []}}).encode()
        async with aiomqtt.Client(HEAD, standin.ports["broker"], identifier="mallory") as mallory:
            await mallory.subscribe(topic)
            # The embedded broker repeats everything that it retains, whatever was subscribed to.
            genuine = await anext(m async for m in mallory.messages if m.topic.matches(topic))
            for _ in range(5):
                await mallory.publish(topic, os.urandom(999), qos=1)
                await mallory.publish(status, b"\0" * SIZE_MAX, qos=1)
                await mallory.publish(topic, unsigned, qos=1)
                await mallory.publish(topic, forged.encode(order, 0.0).payload, qos=1)
                await mallory.publish(topic, genuine.payload, qos=1)
            await mallory.publish(topic, unsigned, qos=1, retain=True)
            await mallory.publish(status, os.urandom(99), qos=1, retain=True)
        await too_much(HEAD, standin.ports["broker"])
        for reason, count in (("not_signed", 10), ("bad_mac", 5), ("replay", 5)):
            await counted(standin, reason, count)
        await still_serves(standin)
        assert stamped_processes(standin.name) == before

    live(story)


# The engine's output ---------------------------------------------------------------------------------------

LAST = b"\n(Worker_TP0 pid=1) INFO 01-01 00:00:00 [gpu_worker.py:466] Available KV cache memory: %d.00 GiB\n"


def a_million_lines() -> Iterator[bytes]:
    """As fast as they can be written."""
    for begin in range(0, 1_000_000, 50_000):
        yield b"".join(b"INFO step %07d%s\n" % (number, b"." * 62) for number in range(begin, begin + 50_000))


def bytes_and_a_long_line() -> Iterator[bytes]:
    """Four MiB of anything, then ten MiB without an end of line."""
    yield os.urandom(4 << 20)
    yield b"\n"
    for _ in range(10):
        yield b"x" * (1 << 20)


def read_to(number: int) -> Callable[[dict[str, Any]], bool]:
    return lambda status: bool(status["settings"]["kv_cache_measured_bytes"] == number << 30)


def test_any_output_of_the_engine_is_read_without_a_stall(live: Callable[..., Standin]) -> None:
    """The loop turns all the time, and what comes after the flood is read."""

    async def alive(standin: Standin) -> dict[str, Any]:
        code, text = await standin.get("spark-a", "/healthz")
        assert code == 200, text
        assert json.loads(text)["step_age_s"] < 5.0
        return await standin.cluster.head.status()

    async def story(standin: Standin) -> None:
        await standin.cluster.phase("serving", SERVING_S)
        # The engine's own output is appended to this file, by whichever process has it open.
        with (standin.directory / "spark-a" / "log" / "1" / "serve.log").open("ab", buffering=0) as log:
            for number, flood in enumerate((bytes_and_a_long_line, a_million_lines), start=1):
                for piece in flood():
                    await asyncio.to_thread(log.write, piece)
                    await alive(standin)
                log.write(LAST % number)
                await until(lambda: alive(standin), read_to(number), 60)
        await still_serves(standin)
        events = {event["event"] for event in standin.cluster.head.events}
        assert "loop stalled" not in events

    live(story)
