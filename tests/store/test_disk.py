"""What the store promises: durable, never raising, nothing lost that was on disk."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sqlite3
import subprocess
import sys
import threading
from dataclasses import asdict, replace

import pytest
from structlog.testing import capture_logs

from sparkd.core.beginning import Remembered
from sparkd.core.records import (
    InContext,
    Kept,
    KeptChanged,
    MemberRan,
    MemberRested,
    MessageDropped,
    PhaseChanged,
    StampAdvanced,
)
from sparkd.sizing.model import Learned
from sparkd.store.disk import DiskStore
from sparkd.store.history import History, Retention
from sparkd.store.stamp import StampFile
from sparkd.words import EngineMemory, Phase, Settings, Sizes, Stamp
from standin.wait import until
from store.lives import ASKED, LOWERED, WHY, life, opened

DEADLINE_S = 10


def store(path, **options):
    return DiskStore(path, asked=ASKED, wall=lambda: 1_700_000_000.0, retry_s=0.01, **options)


def run(path, work, **options):
    """Run `work(store)` on a loaded store and close it."""

    async def main():
        disk = store(path, **options)
        remembered = disk.load()
        try:
            return remembered, await work(disk)
        finally:
            await disk.close()

    return asyncio.run(main())


async def nothing(_):
    return None


async def live(disk, number=7):
    for records in life(number):
        await disk.append(records)


def test_neither_file_waits_for_the_others_disk(tmp_path, monkeypatch):
    """A start waits for both: each is begun before the other is done."""
    both = threading.Barrier(2, timeout=DEADLINE_S)

    def beside(write):
        def written(self, *arguments):
            both.wait()
            return write(self, *arguments)

        return written

    for kind in (StampFile, History):
        monkeypatch.setattr(kind, "write", beside(kind.write))
    appended(tmp_path, StampAdvanced(Stamp(2, 3)))
    assert remembered_in(tmp_path, "").seen == Stamp(2, 3)


def test_an_empty_directory_remembers_nothing(tmp_path):
    assert run(tmp_path, nothing)[0] == Remembered()


KEPT = Kept(
    context="a1",
    proven=LOWERED,
    spent=("nccl_timeout", "unknown"),
    silences=((Phase.LOADING_WEIGHTS, 18.2),),
    forgiven=12,
    unclean=1,
    target=False,
    paused=True,
    learned=Learned(-3 << 30, ((Phase.PROFILING, -(1 << 30)), (Phase.SERVING, 1 << 26))),
    others=(InContext("a2", LOWERED, ASKED, LOWERED, ((Phase.PROFILING, 2.5),)), InContext("a3")),
    failed=(Settings(), Settings(gpu_memory_utilization=0.8, max_num_seqs=4)),
    said=EngineMemory(
        49 << 30, 58 << 30, 262144, 3 << 30, Sizes(device_bytes=119 << 30, graphs_counted=True)
    ),
)


def appended(path, *records, boot="boot-1"):
    run(path, lambda disk: disk.append(records), boot=boot)


def remembered_in(path, boot):
    return run(path, nothing, boot=boot)[0]


def test_what_the_coordinator_keeps_is_remembered(tmp_path):
    appended(tmp_path, KeptChanged(Kept()), KeptChanged(KEPT))
    assert remembered_in(tmp_path, "boot-1").kept == KEPT


def test_what_ran_when_the_boot_ended_is_remembered_by_the_next_one(tmp_path):
    appended(tmp_path, MemberRested(13, (5, 4)), MemberRan(14))
    assert remembered_in(tmp_path, "boot-1").unclean_generation == 0
    assert remembered_in(tmp_path, "boot-2").unclean_generation == 14


def test_since_when_it_runs_is_remembered_in_the_same_boot(tmp_path):
    appended(tmp_path, MemberRan(14, (), 1234.5))
    assert remembered_in(tmp_path, "boot-1").ran_at_s == 1234.5
    assert remembered_in(tmp_path, "boot-2").ran_at_s is None
    appended(tmp_path, MemberRested(14))
    assert remembered_in(tmp_path, "boot-1").ran_at_s is None


def test_what_rested_ended_cleanly(tmp_path):
    appended(tmp_path, MemberRan(14), MemberRested(14, (7, 6, 5)))
    assert remembered_in(tmp_path, "boot-2").unclean_generation == 0
    assert remembered_in(tmp_path, "boot-2").returned == ()
    assert remembered_in(tmp_path, "boot-1").returned == (7, 6, 5)


def test_what_an_earlier_version_kept_is_read(tmp_path):
    older = asdict(KEPT)
    del older["others"], older["generation"], older["phase"]
    overwritten(tmp_path, json.dumps(older))
    assert remembered_in(tmp_path, "boot-1").kept == replace(KEPT, others=())


@pytest.mark.parametrize("damaged", [7, {}, {"context": "a4", "settings": None, "silences": 3}])
def test_one_damaged_context_costs_no_other(tmp_path, damaged):
    body = asdict(KEPT)
    body["others"] = (damaged, *body["others"])
    overwritten(tmp_path, json.dumps(body))
    assert remembered_in(tmp_path, "boot-1").kept == KEPT


def overwritten(path, body):
    appended(path, KeptChanged(KEPT))
    with contextlib.closing(sqlite3.connect(path / "history.sqlite")) as database, database:
        database.execute("UPDATE fact SET body = ? WHERE name = 'kept'", (body,))


@pytest.mark.parametrize("body", ["{", "[]", '{"context": 1}', '{"context": "", "proven": null, "spent": 3}'])
def test_what_was_kept_and_cannot_be_read_is_nothing(tmp_path, body):
    overwritten(tmp_path, body)
    assert remembered_in(tmp_path, "boot-1").kept == Kept()


def test_what_was_appended_is_remembered(tmp_path):
    run(tmp_path, live)

    remembered, incident = run(tmp_path, lambda disk: disk.view.incident(7))

    assert remembered == Remembered(seen=Stamp(3, 14), incidents=7, settings=LOWERED, asked=ASKED)
    assert incident["outcome"] == "recovered"
    assert incident["recovery_s"] == 871.0
    assert incident["remedies"][0]["diagnosis"]["explanation"] == WHY
    assert [entry["kind"] for entry in incident["timeline"]] == [
        "incident_opened",
        "phase_changed",
        "settings_adopted",
        "stamp_advanced",
        "verified",
        "incident_closed",
    ]


def test_the_list_is_newest_first_and_knows_what_is_not_over(tmp_path):
    async def work(disk):
        for number in (1, 2, 3):
            await live(disk, number)
        await disk.append([opened(4)])
        return await disk.view.incidents(3), await disk.view.last_closed(), await disk.view.learned()

    _, (listed, last, learned) = run(tmp_path, work)

    assert [(entry["incident"], entry["outcome"]) for entry in listed] == [
        (4, None),
        (3, "recovered"),
        (2, "recovered"),
    ]
    assert last["incident"] == 3
    assert learned["reason"] == "KV cache 49.1 → 44.6 GiB"


def test_an_incident_that_is_not_there_is_none(tmp_path):
    assert run(tmp_path, lambda disk: disk.view.incident(99))[1] is None


WRITER = """
import asyncio, pathlib, sys
from sparkd.core.records import IncidentOpened, StampAdvanced
from sparkd.words import Phase, Stamp
from store.test_disk import store

async def main():
    disk = store(pathlib.Path(sys.argv[1]))
    disk.load()
    for number in range(1, 100_000):
        opened = IncidentOpened(number, number, Phase.SERVING, "x" * 500)
        await disk.append([StampAdvanced(Stamp(1, number)), opened])
        print(number, flush=True)

asyncio.run(main())
"""


@pytest.mark.process
@pytest.mark.parametrize("acknowledged", [1, 37, 400])
def test_what_append_acknowledged_survives_a_kill_at_any_moment(tmp_path, acknowledged):
    command = [sys.executable, "-c", WRITER, str(tmp_path)]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE) as writer:
        for _ in range(acknowledged):
            assert writer.stdout.readline()
        writer.kill()
        last = int((writer.stdout.read().splitlines() or [str(acknowledged)])[-1])

    with capture_logs() as logs:
        remembered, listed = run(tmp_path, lambda disk: disk.view.incidents(500))

    assert logs == []
    assert last <= remembered.seen.generation <= last + 1
    assert last <= remembered.incidents <= last + 1
    assert {entry["incident"] for entry in listed} >= set(range(max(1, last - 400), last + 1))


def test_dropped_messages_are_not_kept(tmp_path):
    async def work(disk):
        await disk.append([MessageDropped("status", "replay", "spark-b")] * 100)
        return await disk.view._read(lambda: disk._history.select("SELECT count(*) FROM record"))

    assert run(tmp_path, work)[1] == [(0,)]


@pytest.mark.parametrize("damage", ["garbage", "middle", "empty", "newer"])
def test_a_damaged_history_is_moved_aside_and_noted(tmp_path, damage):
    run(tmp_path, live)
    path = tmp_path / "history.sqlite"
    content = path.read_bytes()
    if damage == "garbage":
        path.write_bytes(b"garbage" * 1000)
    elif damage == "middle":
        path.write_bytes(content[:4096] + os.urandom(len(content) - 4096))
    elif damage == "empty":
        path.write_bytes(b"")
    else:
        with contextlib.closing(sqlite3.connect(path)) as connection:
            connection.execute("PRAGMA user_version = 99")

    with capture_logs() as logs:
        remembered, _ = run(tmp_path, live)

    # The stamp has its own file; an empty database is a new one and needs no note.
    assert remembered == Remembered(seen=Stamp(3, 14))
    noted = [entry["event"] for entry in logs]
    assert noted == ([] if damage == "empty" else ["history_damaged"])
    assert (tmp_path / "history.sqlite.damaged.1").exists() == (damage != "empty")
    assert run(tmp_path, nothing)[0].incidents == 7


def test_a_history_damaged_while_it_is_open_is_replaced(tmp_path):
    async def work(disk):
        await live(disk)
        connection = disk._history._open()
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        with (tmp_path / "history.sqlite").open("r+b") as file:
            file.seek(100)
            file.write(b"\xff" * 60_000)
        connection.execute("PRAGMA shrink_memory")
        with capture_logs() as logs:
            await live(disk, 8)
        return [entry["event"] for entry in logs], disk.trouble, await disk.view.incident(8)

    _, (events, trouble, incident) = run(tmp_path, work)

    assert events == ["history_damaged"]
    assert not trouble
    assert incident["outcome"] == "recovered"


def test_both_damaged_is_no_crash_and_the_history_can_stand_in_for_the_stamp(tmp_path):
    run(tmp_path, live)
    (tmp_path / "stamp").write_bytes(b"garbage")
    with capture_logs() as logs:
        assert run(tmp_path, nothing)[0].seen == Stamp(3, 14)
    assert [entry["event"] for entry in logs] == ["stamp_damaged"]

    (tmp_path / "stamp").write_bytes(b"garbage")
    (tmp_path / "history.sqlite").write_bytes(b"garbage" * 1000)
    assert run(tmp_path, nothing)[0] == Remembered()


def full(disk, pages):
    disk._history._open().execute(f"PRAGMA max_page_count = {pages}")


async def fill(disk):
    """Append until SQLite says that it is full."""
    moved = PhaseChanged(1, Phase.IDLE, Phase.WAITING, "x" * 3000, 1.0)
    async with asyncio.timeout(DEADLINE_S):
        while not disk.trouble:
            await disk.append([moved])


def test_a_full_database_is_told_once_keeps_what_it_has_and_catches_up(tmp_path):
    async def work(disk):
        await live(disk)
        full(disk, 20)
        with capture_logs() as logs:
            await fill(disk)
            await live(disk, 8)
            before = await disk.view.incident(7), await disk.view.incident(8), disk.queued
            full(disk, 10_000)
            await until(lambda: not disk.trouble)
            after = await disk.view.incident(8)
        return before, after, disk.queued, [entry["event"] for entry in logs]

    _, ((seven, eight, queued), after, left, events) = run(tmp_path, work)

    assert seven["outcome"] == "recovered"
    assert eight is None
    assert queued >= 7
    assert after["outcome"] == "recovered"
    assert left == 0
    assert events == ["store_failed", "store_works_again"]


def test_the_queue_is_bounded_and_gives_up_incidents_last(tmp_path):
    async def work(disk):
        full(disk, 8)
        await fill(disk)
        await live(disk, 8)
        moved = PhaseChanged(1, Phase.IDLE, Phase.WAITING, "y" * 3000, 1.0)
        for _ in range(30):
            await disk.append([moved])
        queued = disk.queued
        full(disk, 10_000)
        await until(lambda: not disk.trouble)
        return queued, await disk.view.incident(8)

    _, (queued, incident) = run(tmp_path, work, retention=Retention(queued=10))

    assert queued == 10
    assert incident["outcome"] == "recovered"
    assert len(incident["remedies"]) == 1


def test_the_history_is_bounded_and_keeps_incidents_longest(tmp_path):
    async def work(disk):
        await live(disk, 1)
        moved = PhaseChanged(1, Phase.IDLE, Phase.WAITING, "", 1.0)
        for _ in range(40):
            await disk.append([moved] * 5)
        counts = "SELECT milestone, count(*) FROM record GROUP BY milestone"
        return dict(await disk.view._read(lambda: disk._history.select(counts))), await disk.view.incidents()

    _, (counts, incidents) = run(tmp_path, work, retention=Retention(milestones=10, others=50, trim_every=10))

    assert counts[0] <= 60
    assert counts[1] == 3
    assert incidents[0]["outcome"] == "recovered"


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 1 MiB of its own."""
    point = tmp_path / "small"
    point.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(point)], check=False, capture_output=True
    )
    if made.returncode:
        pytest.skip(f"no small file system can be mounted here: {made.stderr.decode().strip()}")
    yield point
    subprocess.run(["umount", "-l", str(point)], check=True)


def occupy(point):
    """Fill the file system to its last byte."""
    with contextlib.suppress(OSError), (point / "ballast").open("wb", buffering=0) as file:
        while True:
            file.write(b"\0" * 512)


def test_on_a_really_full_disk_the_stamp_goes_on_and_nothing_raises(small_disk):
    async def work(disk):
        await live(disk)
        occupy(small_disk)
        with capture_logs() as logs:
            await fill(disk)
            await disk.append([StampAdvanced(Stamp(9, 20)), opened(8)])
        trouble = disk.trouble
        (small_disk / "ballast").unlink()
        await until(lambda: not disk.trouble)
        return trouble, [entry["event"] for entry in logs], await disk.view.incidents()

    _, (trouble, events, incidents) = run(small_disk, work)

    assert "history" in trouble
    assert "stamp" not in trouble
    assert events == ["store_failed"]
    assert [entry["incident"] for entry in incidents] == [8, 7]
    assert run(small_disk, nothing)[0].seen == Stamp(9, 20)


def test_a_daemon_that_starts_on_a_full_disk_still_remembers(small_disk):
    run(small_disk, live)
    occupy(small_disk)

    async def work(disk):
        await disk.append([StampAdvanced(Stamp(9, 20))])
        return await disk.view.incident(7)

    remembered, incident = run(small_disk, work)

    assert remembered == Remembered(Stamp(3, 14), 7, LOWERED, ASKED)
    assert incident["outcome"] == "recovered"
    assert run(small_disk, nothing)[0].seen == Stamp(9, 20)


def test_a_first_start_on_a_full_disk_goes_on_and_catches_up(small_disk):
    occupy(small_disk)

    async def work(disk):
        await live(disk)
        trouble = disk.trouble
        (small_disk / "ballast").unlink()
        await until(lambda: not disk.trouble)
        return trouble

    remembered, trouble = run(small_disk, work)

    assert remembered == Remembered()
    assert "stamp" in trouble
    assert run(small_disk, nothing)[0] == Remembered(Stamp(3, 14), 7, LOWERED, ASKED)
