"""The journal as a log source, on real journal files (written by systemd-journal-remote)."""

from __future__ import annotations

import asyncio
import itertools
import shutil
import subprocess
import time
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from sparkd.adapters.journal import HELD_MAX_BYTES, TURN_ENTRIES, Journal
from sparkd.words import UnitName
from standin.wait import until

journal = pytest.importorskip("systemd.journal", reason="systemd-python is not installed")
REMOTE = Path("/lib/systemd/systemd-journal-remote")
pytestmark = pytest.mark.skipif(
    not REMOTE.exists(), reason="the package systemd-journal-remote is not installed"
)

DEADLINE_S = 20.0
UNITS = {UnitName.RAY: "sparkd-ray.service", UnitName.SERVE: "sparkd-serve.service"}
BOOT = uuid.uuid4().hex
_stamps = itertools.count(1)


class Desk:
    """A journal that can be written to, and daemons' readers of it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.cursor = directory / "cursor"
        self.fed: list[tuple[str, UnitName | None, int, bytes]] = []
        self.woken = asyncio.Event()
        self.log = self.daemon()
        out = directory / "system.journal"
        self.writer = subprocess.Popen(
            [str(REMOTE), f"--output={out}", "--split-mode=none", "-"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self.seq = 0

    def daemon(self, **more: Any) -> Journal:
        """Return the reader of a new daemon."""
        connect = lambda: journal.Reader(path=str(self.directory))  # noqa: E731
        self.log = Journal(self.feed, UNITS, self.cursor, connect=connect, **more)
        return self.log

    def feed(self, source: str, unit: UnitName | None, generation: int, chunk: bytes) -> None:
        self.fed.append((source, unit, generation, chunk))
        self.woken.set()

    def write(self, text: bytes | str, unit: str = "sparkd-serve.service", **fields: str) -> None:
        """Append one entry."""
        raw = text.encode() if isinstance(text, str) else text
        monotonic_us = fields.pop("monotonic_us", str(int(time.monotonic() * 1e6)))
        known = {
            "__REALTIME_TIMESTAMP": str(int(time.time() * 1e6) + next(_stamps)),
            "__MONOTONIC_TIMESTAMP": monotonic_us,
            "_BOOT_ID": BOOT,
            **({"_SYSTEMD_UNIT": unit, "_TRANSPORT": "stdout"} if unit else {"_TRANSPORT": "kernel"}),
            **fields,
        }
        head = "".join(f"{key}={value}\n" for key, value in known.items()).encode()
        body = b"MESSAGE\n" + len(raw).to_bytes(8, "little") + raw + b"\n\n"
        assert self.writer.stdin is not None
        self.writer.stdin.write(head + body)
        self.writer.stdin.flush()

    def said(self, unit: UnitName | None, generation: int) -> bytes:
        """Return all that was handed on of one source."""
        return b"".join(chunk for _, u, g, chunk in self.fed if (u, g) == (unit, generation))

    async def until(self, true: Callable[[], bool]) -> None:
        """Wait for it."""
        async with asyncio.timeout(DEADLINE_S):
            while not true():
                self.woken.clear()
                await self.woken.wait()

    async def written(self, count: int) -> None:
        """Wait until the journal holds *count* entries."""
        await until(lambda: sum(1 for _ in journal.Reader(path=str(self.directory))) >= count)

    async def close(self) -> None:
        await self.log.close()
        assert self.writer.stdin is not None
        self.writer.stdin.close()
        self.writer.wait(DEADLINE_S)


Story = Callable[[Desk], Awaitable[None]]


@pytest.fixture
def play(tmp_path: Path) -> Callable[[Story], None]:
    directory = tmp_path / "journal"
    directory.mkdir()

    async def told(story: Story) -> None:
        desk = Desk(directory)
        desk.write("before", unit="other.service")
        try:
            await desk.written(1)
            await story(desk)
        finally:
            await desk.close()
            shutil.rmtree(directory)

    return lambda story: asyncio.run(told(story))


def test_what_a_unit_says_is_of_the_generation_that_was_opened_last(play) -> None:
    async def story(desk: Desk) -> None:
        desk.log.start()
        desk.log.open(UnitName.SERVE, 1)
        desk.write("INFO one")
        desk.write("INFO ray", unit=UNITS[UnitName.RAY])
        await desk.until(lambda: desk.said(UnitName.SERVE, 1) == b"INFO one\n")
        await desk.log.drain(1)
        desk.log.open(UnitName.SERVE, 2)
        desk.write("INFO two")
        await desk.until(lambda: desk.said(UnitName.SERVE, 2) == b"INFO two\n")
        assert desk.fed[0][0] == "serve log"
        assert desk.said(UnitName.RAY, 1) == b""

    play(story)


def test_what_was_there_before_a_start_is_not_of_it(play) -> None:
    async def story(desk: Desk) -> None:
        desk.write("old")
        await desk.written(2)
        desk.log.start()
        desk.write("late word of the old one")
        await desk.written(3)
        desk.log.open(UnitName.SERVE, 4)
        desk.write("new")
        await desk.until(lambda: desk.said(UnitName.SERVE, 4) == b"new\n")

    play(story)


def test_a_new_daemon_reads_on_where_the_last_one_stopped(play) -> None:
    async def story(desk: Desk) -> None:
        desk.log.start()
        desk.log.open(UnitName.SERVE, 1)
        desk.write("heard")
        await desk.until(lambda: desk.said(UnitName.SERVE, 1) == b"heard\n")
        await desk.log.close()
        desk.write("said while nobody listened")
        await desk.written(3)
        desk.daemon().start()
        assert desk.said(UnitName.SERVE, 1) == b"heard\n"
        desk.log.resume(UnitName.SERVE, 1)
        desk.write("and on")
        await desk.until(lambda: desk.said(UnitName.SERVE, 1).endswith(b"and on\n"))
        assert desk.said(UnitName.SERVE, 1) == b"heard\nsaid while nobody listened\nand on\n"

    play(story)


@pytest.mark.parametrize(
    "cursor", ["", "s=nonsense", "s=0;i=1;b=2;m=3;t=4;x=5", "\udcff".encode("utf-8", "surrogateescape")]
)
def test_a_damaged_cursor_begins_behind_all_there_is(play, cursor) -> None:
    async def story(desk: Desk) -> None:
        desk.write("old")
        await desk.written(2)
        desk.cursor.write_bytes(cursor if isinstance(cursor, bytes) else cursor.encode())
        desk.log.start()
        desk.log.resume(UnitName.SERVE, 1)
        desk.write("new")
        await desk.until(lambda: desk.said(UnitName.SERVE, 1) == b"new\n")

    play(story)


def test_the_kernels_records_begin_with_the_daemon(play) -> None:
    async def story(desk: Desk) -> None:
        desk.write("Out of memory: long ago", unit="", monotonic_us="1000")
        desk.log.start()
        desk.write("NVRM: Xid 31", unit="")
        await desk.until(lambda: desk.said(None, 0) == b"NVRM: Xid 31\n")

    play(story)


def test_without_the_kernels_records_they_are_not_read(play) -> None:
    async def story(desk: Desk) -> None:
        desk.daemon(kernel=False).start()
        desk.log.open(UnitName.SERVE, 1)
        desk.write("NVRM: Xid 31", unit="")
        desk.write("INFO")
        await desk.until(lambda: desk.said(UnitName.SERVE, 1) == b"INFO\n")
        assert desk.said(None, 0) == b""

    play(story)


def test_parts_of_a_long_line_are_one_line_and_bytes_stay_as_they_are(play) -> None:
    async def story(desk: Desk) -> None:
        desk.log.start()
        desk.log.open(UnitName.SERVE, 1)
        desk.write(b"x" * 48000, _LINE_BREAK="line-max")
        desk.write(b"end \xff\xfe\x1b[31m")
        await desk.until(lambda: desk.said(UnitName.SERVE, 1) == b"x" * 48000 + b"end \xff\xfe\x1b[31m\n")

    play(story)


def test_a_drain_reads_a_flood_to_its_end(play) -> None:
    count = 4 * TURN_ENTRIES

    async def story(desk: Desk) -> None:
        desk.log.start()
        desk.log.open(UnitName.SERVE, 1)
        for number in range(count):
            desk.write(f"line {number}")
        await desk.written(count + 1)
        await desk.log.drain(1)
        assert desk.said(UnitName.SERVE, 1).count(b"\n") == count
        desk.write("after the end")
        desk.log.open(UnitName.SERVE, 2)
        desk.write("of the next")
        await desk.until(lambda: desk.said(UnitName.SERVE, 2).endswith(b"of the next\n"))

    play(story)


def test_what_is_held_is_bounded_and_keeps_the_newest(play) -> None:
    async def story(desk: Desk) -> None:
        desk.log.start()
        line = "y" * 40000
        count = HELD_MAX_BYTES // len(line) + 20
        for number in range(count):
            desk.write(f"{number:06} {line}")
        await desk.written(count + 1)
        await desk.log.drain(9)  # reads on although nobody has opened anything
        desk.log.resume(UnitName.SERVE, 1)
        said = desk.said(UnitName.SERVE, 1)
        assert len(said) <= HELD_MAX_BYTES
        assert said.splitlines()[-1].startswith(f"{count - 1:06}".encode())

    play(story)


def test_a_journal_that_cannot_be_read_is_said_once_and_is_unknown(tmp_path) -> None:
    def refused() -> None:
        raise PermissionError(13, "Permission denied")

    async def story() -> None:
        log = Journal(lambda *_: None, UNITS, tmp_path / "cursor", connect=refused)
        with capture_logs() as lines:
            log.start()
            log.open(UnitName.SERVE, 1)
            await log.drain(1)
            await log.close()
        assert not log.readable
        assert [line["event"] for line in lines] == ["journal_unknown"]
        assert "systemd-journal" in lines[0]["note"]

    asyncio.run(story())


def test_a_cursor_that_cannot_be_kept_is_said_and_nothing_stops(play, tmp_path) -> None:
    async def story(desk: Desk) -> None:
        desk.cursor = tmp_path / "nowhere" / "cursor"
        desk.daemon().start()
        desk.log.open(UnitName.SERVE, 1)
        desk.write("heard")
        await desk.until(lambda: desk.said(UnitName.SERVE, 1) == b"heard\n")
        with capture_logs() as lines:
            await desk.log.close()
        assert [line["event"] for line in lines] == ["journal_cursor_not_kept"]

    play(story)
