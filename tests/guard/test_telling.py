"""Status, records, clerk, curve: what is told reads back as it was."""

from __future__ import annotations

import json
import threading
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkd.guard.clerk import Clerk
from sparkd.guard.curve import MINUTE, RECENT, UNKNOWN, Curve
from sparkd.guard.telling import RECORD_BYTES, STATUS_BYTES, Records, StatusFile, as_json, plain

TREES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.text() | st.floats(-1e9, 1e9, width=32),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def near(value):
    return round(value, 6) if isinstance(value, float) else value


@given(TREES)
def test_json_reads_back(tree) -> None:
    found = json.loads(as_json(tree))

    def same(one, two) -> bool:
        if isinstance(two, dict):
            return one.keys() == two.keys() and all(same(one[key], two[key]) for key in two)
        if isinstance(two, list):
            return len(one) == len(two) and all(map(same, one, two))
        return near(one) == near(two)

    assert same(found, tree)


@given(st.binary(max_size=40))
def test_names_of_any_bytes_are_told(data) -> None:
    assert json.loads(as_json(plain(data))) == plain(data)


def test_what_is_no_number_is_null() -> None:
    assert as_json([float("nan"), float("inf"), -float("inf")]) == "[null, null, null]"


def test_the_status_is_written_over_itself_and_its_end_tells_that_it_is_whole(tmp_path) -> None:
    path = tmp_path / "run" / "status"
    status = StatusFile(str(path))
    inode = path.stat().st_ino
    for text in ("x" * 500, "short"):
        assert status.write({"text": text})
        found = json.loads(path.read_text())
        assert (found["text"], found["seq"]) == (text, found["seq_end"])
    assert path.stat().st_ino == inode
    assert not status.write({"text": "x" * STATUS_BYTES})
    with pytest.raises(BlockingIOError):
        StatusFile(str(path))


def test_a_full_disk_cannot_stop_a_record(tmp_path) -> None:
    """The space is taken before: the record is written into it and renamed."""
    records = Records(str(tmp_path / "state"))
    records.prepare()
    spare = tmp_path / "state" / "next"
    assert spare.stat().st_blocks * 512 >= RECORD_BYTES
    inode = spare.stat().st_ino
    path = Path(records.write("000000000000001", {"curve": [1] * 1000}))
    assert path.stat().st_ino == inode
    assert json.loads(path.read_text())["curve"] == [1] * 1000
    assert spare.exists(), "the next one is laid out"


def test_a_record_that_cannot_be_written_is_noted(tmp_path) -> None:
    (tmp_path / "state").write_text("a file")
    records = Records(str(tmp_path / "state"))
    records.prepare()
    assert records.write("1", {}) == ""
    assert "could not be written" in records.note


def test_the_clerk_does_each_kind_once_at_a_time_and_in_order() -> None:
    clerk, done = Clerk(), []
    assert clerk.ask("a", done.append, 1)
    assert not clerk.ask("a", done.append, 2)
    assert clerk.ask("b", done.append, 3)
    clerk.do_all()
    assert (done, clerk.busy) == ([1, 3], "")


def test_the_clerk_works_on_its_own_thread_and_the_loop_goes_on_while_it_hangs() -> None:
    clerk, hangs, goes_on = Clerk(), threading.Event(), threading.Event()
    clerk.start()
    clerk.ask("hang", lambda: (hangs.set(), goes_on.wait(20)))
    assert hangs.wait(20)
    assert clerk.busy == "hang"
    assert not clerk.ask("hang", goes_on.set)
    done = threading.Event()
    assert clerk.ask("next", done.set)
    goes_on.set()
    assert done.wait(20)


def test_the_curve_keeps_a_minute_in_fixed_memory() -> None:
    curve = Curve()
    for look in range(20_000):
        curve.add(look / 100, 1000.0 + look, UNKNOWN, 0.0, look * 10.0, UNKNOWN)
    now = 19_999 / 100
    rows = curve.rows(now)
    assert len(rows) <= RECENT + MINUTE
    assert rows[0][0] == pytest.approx(-60, abs=0.6)
    assert rows[-1][:3] == [0.0, 20_999, None]
    assert rows == sorted(rows, key=lambda row: row[0])
    assert max(b[0] - a[0] for a, b in pairwise(rows)) <= 0.52


def test_the_curve_tells_what_was_some_seconds_ago() -> None:
    curve = Curve()
    assert curve.since(5) is None
    for second in range(20):
        curve.add(float(second), 1.0, 1.0, second * 2.0, second * 3.0, UNKNOWN)
    assert curve.since(7.5) == (7.0, 21.0, 14.0)
    assert curve.since(-1) is None
    assert not Curve().rows(0)
