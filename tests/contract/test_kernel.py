"""The kernel's records: a FIFO or a file in its place, and the real /dev/kmsg where it may be read."""

from __future__ import annotations

import asyncio
import fcntl
import os
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from sparkd.adapters import kernel as module
from sparkd.adapters.clock import MonotonicClock
from sparkd.adapters.kernel import TURN_BYTES, KernelLog
from sparkd.core.events import SignalSeen
from sparkd.engines.lines import read_line
from sparkd.intake.logpump import LogPump
from sparkd.intake.pump import Intake
from sparkd.signals.catalogue import packaged_catalogue

DEADLINE_S = 20.0
KMSG = Path("/dev/kmsg")
RECORD = b"6,339,5140900,-,caller=T1;%s\n SUBSYSTEM=pci\n DEVICE=+pci:0000:00:01.0\n"
OOM = (
    b"3,900,77000000,-;Out of memory: Killed process 9635 (VLLM::Worker_TP) "
    b"total-vm:52428800kB, anon-rss:1509949kB, file-rss:0kB, shmem-rss:0kB, UID:0\n"
)


class Desk:
    """A kernel log on a FIFO or file, and what it fed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.fed = b""
        self.sizes: list[int] = []
        self.order: list[str] = []
        self.woken = asyncio.Event()
        self.log = KernelLog(str(path), self.feed)

    def feed(self, source: str, unit: object, generation: int, chunk: bytes) -> None:
        assert (source, unit, generation) == ("kernel", None, 0)
        self.fed += chunk
        self.sizes.append(len(chunk))
        self.order.append("turn")
        asyncio.get_running_loop().call_soon(self.order.append, "others")
        self.woken.set()

    def write(self, data: bytes) -> None:
        with self.path.open("ab", buffering=0) as file:
            file.write(data)

    async def until(self, true: Callable[[], bool]) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while not true():
                self.woken.clear()
                await self.woken.wait()


def run(path: Path, story: Callable[[Desk], Awaitable[None]], *, fifo: bool = True) -> Desk:
    async def told() -> Desk:
        if fifo:
            os.mkfifo(path)
        desk = Desk(path)
        desk.log.start()
        try:
            await story(desk)
        finally:
            await desk.log.close()
        assert not desk.log.readable
        return desk

    return asyncio.run(told())


def test_the_text_of_each_record_is_handed_on_decoded(tmp_path) -> None:
    async def story(desk: Desk) -> None:
        desk.write(RECORD % rb"a \x5c b; caf\xc3\xa9" + RECORD % rb"two\x0alines" + b"3,1,2,c;last\n")
        await desk.until(lambda: b"last" in desk.fed)

    desk = run(tmp_path / "kmsg", story)
    assert desk.fed.decode() == "a \\ b; café\ntwo\nlines\nlast\n"


def test_a_line_of_another_form_is_handed_on_as_it_is(tmp_path) -> None:
    line = rb"Nov 30 01:58:34 spark-b kernel: [1.2] x; \x41" + b"\n"

    async def story(desk: Desk) -> None:
        desk.write(line)
        await desk.until(lambda: bool(desk.fed))

    assert run(tmp_path / "kmsg", story).fed == line


def test_a_record_in_pieces_is_one_and_writers_may_come_and_go(tmp_path) -> None:
    async def story(desk: Desk) -> None:
        desk.write(b"6,1,2,-;one\n6,2,3,-;t")
        await desk.until(lambda: desk.fed == b"one\n")
        desk.write(b"wo\n")
        await desk.until(lambda: desk.fed == b"one\ntwo\n")

    desk = run(tmp_path / "kmsg", story)
    assert len(desk.sizes) == 2


def test_an_endless_line_is_bounded(tmp_path) -> None:
    async def story(desk: Desk) -> None:
        for _ in range(10):
            desk.write(b"x" * 4096)
            await desk.log.drain()
        assert len(desk.log._held) <= module._READ_BYTES

    assert run(tmp_path / "kmsg", story).fed


def test_of_a_plain_file_only_what_is_new_is_read(tmp_path) -> None:
    path = tmp_path / "kern.log"
    path.write_bytes(b"6,1,2,-;before\n")

    async def story(desk: Desk) -> None:
        desk.write(b"6,2,3,-;after\n")
        await desk.until(lambda: bool(desk.fed))
        desk.write(b"6,3,4,-;later\n")
        await desk.until(lambda: b"later" in desk.fed)

    assert run(path, story, fifo=False).fed == b"after\nlater\n"


def test_a_flood_is_taken_in_turns_and_a_drain_takes_all(tmp_path) -> None:
    flood = b"".join(b"6,%d,1,-;%060d\n" % (number, number) for number in range(9000))
    path = tmp_path / "kmsg"

    async def story(desk: Desk) -> None:
        with path.open("wb", buffering=0) as file:
            fcntl.fcntl(file, fcntl.F_SETPIPE_SZ, 1 << 20)
            file.write(flood)
        await desk.until(lambda: len(desk.sizes) >= 2)
        assert desk.order[:3] == ["turn", "others", "turn"]
        await desk.log.drain()
        assert desk.fed.count(b"\n") == 9000

    desk = run(path, story)
    assert max(desk.sizes) <= TURN_BYTES + module._READ_BYTES
    assert desk.log.overruns == 0


def test_what_was_overwritten_is_counted_and_reading_goes_on(tmp_path, monkeypatch) -> None:
    real, left = os.read, [3]

    def read(fd: int, size: int) -> bytes:
        if left[0] and size == module._READ_BYTES:
            left[0] -= 1
            raise BrokenPipeError
        return real(fd, size)

    async def story(desk: Desk) -> None:
        monkeypatch.setattr(module.os, "read", read)
        desk.write(b"6,1,2,-;still here\n")
        with capture_logs() as lines:
            await desk.until(lambda: bool(desk.fed))
        assert [line["event"] for line in lines] == ["kernel_log_overwritten"]

    desk = run(tmp_path / "kmsg", story)
    assert (desk.log.overruns, desk.fed) == (3, b"still here\n")


@pytest.mark.parametrize("path", ["absent", "absent/kmsg", "."])
def test_what_cannot_be_read_is_said_once_and_is_no_error(tmp_path, path) -> None:
    async def story(desk: Desk) -> None:
        await desk.log.drain()
        assert not desk.log.readable

    with capture_logs() as lines:
        desk = run(tmp_path / path, story, fifo=False)
    assert [line["event"] for line in lines] == ["kernel_log_unknown"]
    assert lines[0]["path"] == str(tmp_path / path)
    assert not desk.fed


def test_no_permission_is_unknown(tmp_path, monkeypatch) -> None:
    """As with kernel.dmesg_restrict; a file's mode alone would not keep root out."""

    def refused(*_arguments: object) -> int:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(module.os, "open", refused)
    log = KernelLog(str(tmp_path), lambda *_fed: None)
    with capture_logs() as lines:
        log.start()
    assert not log.readable
    assert lines[0]["reason"] == "Operation not permitted"


def test_an_empty_path_is_off_without_a_word() -> None:
    with capture_logs() as lines:
        KernelLog("", lambda *_fed: None).start()
    assert not lines


def test_it_may_be_started_twice_and_closed_unstarted(tmp_path) -> None:
    async def story(desk: Desk) -> None:
        desk.log.start()
        await KernelLog(str(tmp_path / "other"), desk.feed).close()

    run(tmp_path / "kmsg", story)


@given(st.lists(st.binary(max_size=60), max_size=20))
def test_any_bytes_become_lines_without_error(lines) -> None:
    text = module._text(b"".join(lines).split(b"\n"))
    assert not text or text.endswith(b"\n")


def test_a_kill_reaches_the_loop_of_the_node_and_is_news_to_the_next_generation(tmp_path) -> None:
    async def told() -> None:
        path, woken = tmp_path / "kmsg", asyncio.Event()
        os.mkfifo(path)
        events: list[object] = []

        def emit(event: object) -> None:
            events.append(event)
            woken.set()

        pump = LogPump(Intake("spark-b", packaged_catalogue(), read_line), MonotonicClock(), emit)
        log = KernelLog(str(path), pump.feed)
        pump.drain_host = log.drain
        log.start()
        with path.open("ab", buffering=0) as file:
            file.write(OOM)
            async with asyncio.timeout(DEADLINE_S):
                await woken.wait()
            file.write(OOM)
            await pump.drain(4)
            assert len(events) == 2, "told at once, and the last of its repeats at the end"
            file.write(OOM)
            await pump.drain(5)
        await log.close()
        await pump.close()
        assert [type(event) for event in events] == [SignalSeen] * 3
        signal = events[0].signal
        assert (signal.id, signal.node, signal.generation) == ("kernel_oom_engine", "spark-b", 0)
        assert (signal.source, signal.fatal) == ("kernel", False)

    asyncio.run(told())


def may_read_kmsg() -> bool:
    try:
        os.close(os.open(KMSG, os.O_RDONLY | os.O_NONBLOCK))
    except OSError:
        return False
    return True


def may_write_kmsg() -> bool:
    allowed = Path("/proc/sys/kernel/printk_devkmsg")
    return os.access(KMSG, os.W_OK) and allowed.exists() and allowed.read_text().strip() != "off"


@pytest.mark.skipif(not may_read_kmsg(), reason="/dev/kmsg cannot be read here")
def test_the_real_kernel_log_from_now_on() -> None:
    word = uuid.uuid4().hex

    async def story(desk: Desk) -> None:
        assert desk.log.readable
        await desk.log.drain()
        assert b"Linux version" not in desk.fed, "what was there before is not new"
        if may_write_kmsg():
            desk.write(f"<6>sparkd contract test: é \\ {word}\n".encode())
            await desk.until(lambda: f"sparkd contract test: é \\ {word}\n".encode() in desk.fed)

    run(KMSG, story, fifo=False)
