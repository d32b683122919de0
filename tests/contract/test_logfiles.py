"""Log files on a real file system, followed while they are written."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from sparkd.adapters import logfiles as module
from sparkd.adapters.logfiles import LogFiles
from sparkd.words import UnitName

DEADLINE_S = 20.0


class Desk:
    """Takes what is fed, and wakes who waits for it."""

    def __init__(self, tmp_path: Path, **options: object) -> None:
        self.dir = tmp_path / "log"
        self.temp = tmp_path / "ray"
        self.fed: dict[tuple[str, UnitName, int], bytearray] = {}
        self.sizes: list[int] = []
        self.woken = asyncio.Event()
        self.files = LogFiles(self.dir, self.feed, **options)

    def feed(self, source: str, unit: UnitName, generation: int, chunk: bytes) -> None:
        self.fed.setdefault((source, unit, generation), bytearray()).extend(chunk)
        self.sizes.append(len(chunk))
        self.woken.set()

    def path(self, generation: int = 7, unit: UnitName = UnitName.SERVE) -> Path:
        path = self.dir / str(generation) / f"{unit.value}.log"
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def write(self, data: bytes, generation: int = 7) -> None:
        with self.path(generation).open("ab") as file:
            file.write(data)

    def got(self, source: str = "serve log", unit: UnitName = UnitName.SERVE, generation: int = 7) -> bytes:
        return bytes(self.fed.get((source, unit, generation), b""))

    async def until(self, true: Callable[[], bool]) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while not true():
                self.woken.clear()
                await self.woken.wait()

    def session(self, name: str) -> Path:
        """Make a new session of Ray and point `session_latest` to it."""
        logs = self.temp / name / "logs"
        logs.mkdir(parents=True)
        new = self.temp / "next"
        new.symlink_to(name)
        new.rename(self.temp / "session_latest")
        return logs


@pytest.fixture
def play(tmp_path):
    def run(scenario: Callable[[Desk], Awaitable[None]], **options: object) -> None:
        async def whole() -> None:
            desk = Desk(tmp_path, **options)
            try:
                await asyncio.wait_for(scenario(desk), 60)
            finally:
                await desk.files.close()

        asyncio.run(whole())

    return run


def test_bursts_of_any_bytes_come_through_unchanged(play) -> None:
    parts = [b"one\n", b"\r 10%\r 20%\r", bytes(range(256)) * 40, b"no end", b" yet\n", b"x" * 700_000]

    async def scenario(desk: Desk) -> None:
        desk.files.open(UnitName.SERVE, 7)
        whole = b""
        for part in parts:
            desk.write(part)
            whole += part
            await desk.until(lambda whole=whole: desk.got() == whole)
        assert max(desk.sizes) <= module.TURN_BYTES

    play(scenario)


def test_a_file_may_come_late_and_open_is_idempotent(play) -> None:
    async def scenario(desk: Desk) -> None:
        desk.files.open(UnitName.SERVE, 7)
        desk.files.open(UnitName.SERVE, 7)
        await desk.files._turn()
        desk.write(b"late\n")
        await desk.until(lambda: desk.got() == b"late\n")

    play(scenario)


def test_a_truncated_file_is_read_from_its_start(play) -> None:
    async def scenario(desk: Desk) -> None:
        desk.files.open(UnitName.SERVE, 7)
        desk.write(b"before, half a li")
        await desk.until(lambda: desk.got().endswith(b"li"))
        desk.path().write_bytes(b"after\n")
        await desk.until(lambda: desk.got() == b"before, half a li\nafter\n")

    play(scenario)


def test_a_rotated_file_is_read_to_its_end_before_the_next(play) -> None:
    async def scenario(desk: Desk) -> None:
        desk.files.open(UnitName.SERVE, 7)
        desk.write(b"1\n")
        await desk.until(lambda: desk.got() == b"1\n")
        desk.write(b"2\n")
        desk.path().rename(desk.path().with_suffix(".1"))
        desk.write(b"3\n")
        await desk.until(lambda: desk.got() == b"1\n2\n\n3\n")

    play(scenario)


def test_a_drain_reads_everything_to_the_end_and_forgets_it(play) -> None:
    async def scenario(desk: Desk) -> None:
        desk.files.open(UnitName.SERVE, 7)
        desk.files.open(UnitName.RAY, 7)
        data = os.urandom(5_000_000)
        desk.write(data)
        desk.path(unit=UnitName.RAY).write_bytes(b"ray\n")
        await desk.files.drain(7)
        assert desk.got() == data
        assert desk.got("ray log", UnitName.RAY) == b"ray\n"
        assert desk.files.lag_bytes == 0 and desk.files.dropped_bytes == 0
        desk.write(b"after\n")
        await desk.files.drain(7)
        assert desk.got() == data

    play(scenario, drain_s=30.0)


def test_a_drain_of_one_generation_leaves_the_other_followed(play) -> None:
    async def scenario(desk: Desk) -> None:
        desk.files.open(UnitName.SERVE, 7)
        desk.files.open(UnitName.SERVE, 8)
        await desk.files.drain(7)
        desk.write(b"new\n", generation=8)
        await desk.until(lambda: desk.got(generation=8) == b"new\n")

    play(scenario)


def test_a_drain_ends_in_time_beside_a_writer_that_does_not(play) -> None:
    async def scenario(desk: Desk) -> None:
        desk.files.open(UnitName.SERVE, 7)
        feed = desk.feed
        desk.files._feed = lambda *args: (feed(*args), desk.write(b"more\n" * 1000))
        desk.write(b"x\n")
        await asyncio.wait_for(desk.files.drain(7), DEADLINE_S)
        assert desk.got().startswith(b"x\nmore\n")

    play(scenario, drain_s=0.2)


def test_a_cancelled_drain_loses_nothing(play) -> None:
    async def scenario(desk: Desk) -> None:
        desk.files.open(UnitName.SERVE, 7)
        desk.write(b"y" * 600_000)
        drain = asyncio.ensure_future(desk.files.drain(7))
        await asyncio.wait({drain}, timeout=0)
        drain.cancel()
        await desk.until(lambda: desk.got() == b"y" * 600_000)

    play(scenario)


NAMES = ("raylet.out", "gcs_server.out")


def further(tmp_path: Path, *names: str) -> dict[UnitName, list[str]]:
    return {UnitName.RAY: [f"{tmp_path}/ray/session_latest/logs/{name}" for name in names]}


def test_an_older_session_is_not_read_as_the_new_generations(play, tmp_path) -> None:
    async def scenario(desk: Desk) -> None:
        old = desk.session("session_1")
        (old / "raylet.out").write_bytes(b"old\n")
        desk.files.open(UnitName.RAY, 7)
        await desk.files._turn()
        new = desk.session("session_2")
        (new / "raylet.out").write_bytes(b"new\n")
        await desk.until(lambda: desk.got("raylet.out", UnitName.RAY) == b"new\n")
        (new / "gcs_server.out").write_bytes(b"gcs\n")
        await desk.until(lambda: desk.got("gcs_server.out", UnitName.RAY) == b"gcs\n")
        shutil.rmtree(old.parent)
        with (new / "raylet.out").open("ab") as file:
            file.write(b"more\n")
        await desk.until(lambda: desk.got("raylet.out", UnitName.RAY) == b"new\nmore\n")

    play(scenario, further=further(tmp_path, *NAMES))


def test_what_is_added_to_a_session_that_goes_on_is_new(play, tmp_path) -> None:
    async def scenario(desk: Desk) -> None:
        logs = desk.session("session_1")
        (logs / "raylet.out").write_bytes(b"old\n")
        desk.files.open(UnitName.RAY, 7)
        with (logs / "raylet.out").open("ab") as file:
            file.write(b"new\n")
        await desk.until(lambda: desk.got("raylet.out", UnitName.RAY) == b"new\n")

    play(scenario, further=further(tmp_path, *NAMES))


def test_an_older_generation_does_not_read_the_newer_ones_session(play, tmp_path) -> None:
    async def scenario(desk: Desk) -> None:
        first = desk.session("session_1")
        desk.files.open(UnitName.RAY, 7)
        (first / "raylet.out").write_bytes(b"seven\n")
        await desk.until(lambda: desk.got("raylet.out", UnitName.RAY) == b"seven\n")
        desk.files.open(UnitName.RAY, 8)
        second = desk.session("session_2")
        (second / "raylet.out").write_bytes(b"eight\n")
        await desk.until(lambda: desk.got("raylet.out", UnitName.RAY, 8) == b"eight\n")
        await desk.files.drain(7)
        assert desk.got("raylet.out", UnitName.RAY, 7) == b"seven\n"

    play(scenario, further=further(tmp_path, *NAMES))


def test_files_that_match_a_pattern_later_are_followed(play, tmp_path) -> None:
    async def scenario(desk: Desk) -> None:
        logs = desk.session("session_1")
        (logs / "worker-1.err").write_bytes(b"old\n")
        desk.files.open(UnitName.RAY, 7)
        (logs / "worker-2.err").write_bytes(b"two\n")
        await desk.until(lambda: desk.got("worker-2.err", UnitName.RAY) == b"two\n")
        (logs / "worker-3.err").write_bytes(b"three\n")
        await desk.files.drain(7)
        assert desk.got("worker-3.err", UnitName.RAY) == b"three\n"
        assert desk.got("worker-1.err", UnitName.RAY) == b""

    play(scenario, further=further(tmp_path, "worker-*.err"))


def test_consumed_output_is_given_back_to_the_disk(play) -> None:
    async def scenario(desk: Desk) -> None:
        desk.files.open(UnitName.SERVE, 7)
        with desk.path().open("ab") as writer:
            for number in range(8):
                writer.write(bytes([65 + number]) * (1 << 20))
                writer.flush()
                await desk.until(lambda number=number: len(desk.got()) == (number + 1) << 20)
        assert desk.path().stat().st_size == 8 << 20
        await desk.files._turn()
        os.sync()
        assert desk.path().stat().st_blocks * 512 <= 3 << 20
        assert desk.got() == b"".join(bytes([65 + number]) * (1 << 20) for number in range(8))
        desk.write(b"end")
        await desk.until(lambda: desk.got().endswith(b"end"))

    play(scenario, keep_bytes=2 << 20)


def test_a_file_system_without_holes_is_no_error(play, monkeypatch) -> None:
    monkeypatch.setattr(module, "_punch", lambda *_: False)

    async def scenario(desk: Desk) -> None:
        desk.files.open(UnitName.SERVE, 7)
        desk.write(b"z" * (3 << 20))
        await desk.files.drain(7)
        assert len(desk.got()) == 3 << 20

    play(scenario, keep_bytes=0, drain_s=30.0)


def test_who_lags_too_far_skips_forward_and_counts(play) -> None:
    async def scenario(desk: Desk) -> None:
        desk.write(b"a" * 10_000_000 + b"tail\n")
        desk.files.open(UnitName.SERVE, 7)
        await desk.until(lambda: desk.got().endswith(b"tail\n"))
        assert desk.got().startswith(b"\na"), "halves of lines must not be joined"
        assert len(desk.got()) - 1 == module.RESUME_BYTES
        assert desk.files.dropped_bytes == 10_000_005 - module.RESUME_BYTES
        assert desk.files.lag_bytes == 0

    play(scenario, lag_limit_bytes=4 << 20)


def test_a_flood_leaves_the_loop_and_the_other_sources_their_turn(play) -> None:
    async def scenario(desk: Desk) -> None:
        desk.files.open(UnitName.SERVE, 7)
        desk.files.open(UnitName.RAY, 7)
        desk.write(b"flood\n" * 4_000_000)
        desk.path(unit=UnitName.RAY).write_bytes(b"quiet\n")
        await desk.until(lambda: desk.got("ray log", UnitName.RAY) == b"quiet\n")
        assert len(desk.got()) < 24_000_000, "the quiet source was served before the flood had been read"
        assert desk.files.lag_bytes > 0

    play(scenario)


def test_old_generations_are_deleted_and_nothing_else(play, tmp_path) -> None:
    async def scenario(desk: Desk) -> None:
        for generation in (1, 2, 3, 9, 10, 11, 12):
            desk.write(b"x", generation)
        (desk.dir / "notes").mkdir()
        (desk.dir / "0").symlink_to(tmp_path)
        desk.write(b"new\n", 13)
        desk.files.open(UnitName.SERVE, 13)
        await desk.until(lambda: desk.got(generation=13) == b"new\n")
        left = sorted(entry.name for entry in desk.dir.iterdir())
        assert left == sorted(["0", "9", "10", "11", "12", "13", "notes"])

    play(scenario)


def test_a_defect_in_the_taker_does_not_end_the_reading(play) -> None:
    async def scenario(desk: Desk) -> None:
        feed, wrong = desk.feed, [ZeroDivisionError()]

        def failing(*args: object) -> None:
            if wrong:
                raise wrong.pop()
            feed(*args)

        desk.files._feed = failing
        desk.files.open(UnitName.SERVE, 7)
        desk.write(b"lost\n")
        await asyncio.wait({desk.files._pump}, timeout=DEADLINE_S)
        desk.write(b"found\n")
        await desk.until(lambda: desk.got() == b"found\n")

    play(scenario)


def test_an_unreadable_path_is_not_fatal(play, tmp_path) -> None:
    async def scenario(desk: Desk) -> None:
        (desk.path().parent / "raylet.out").mkdir()
        desk.files.open(UnitName.SERVE, 7)
        desk.write(b"fine\n")
        await desk.until(lambda: desk.got() == b"fine\n")

    play(scenario, further={UnitName.SERVE: [f"{tmp_path}/log/7/raylet.out"]})
