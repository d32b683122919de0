"""The daemon's floors: bounded, leased, and never needed."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkd.guard.lease import LeaseFile, parse
from sparkd.guard.settings import Settings

GIB = 1 << 30
NOW = 1000.0
SETTINGS = Settings({})


def text(floor: object = 3 * GIB, until: object = 1030.0, phase: str = "serving") -> str:
    return f"sparkd-floors 1\nphase={phase}\nfloor_bytes={floor}\nuntil_s={until}\nend\n"


def test_a_lease_holds_until_it_says_and_never_longer_than_is_allowed() -> None:
    lease = parse(text(), NOW, SETTINGS)
    assert (lease.floor, lease.phase, lease.until_s, lease.note) == (3 * GIB, "serving", 1030.0, "")
    assert parse(text(until=9e9), NOW, SETTINGS).until_s == NOW + 60


@pytest.mark.parametrize(
    ("asked", "given_"), [(1, 2 * GIB), (-5, 2 * GIB), (5 * GIB, 5 * GIB), (999 * GIB, 8 * GIB)]
)
def test_a_floor_is_bounded(asked, given_) -> None:
    assert parse(text(asked), NOW, SETTINGS).floor == given_


@pytest.mark.parametrize(
    "said",
    [
        "",
        "nonsense",
        text()[:-4],
        text(until=999.0),
        text(until="nan"),
        text(until="inf"),
        text(floor="many"),
        text(phase="a b"),
        text(phase=""),
        text(phase="x" * 41),
        text().replace("sparkd-floors 1", "sparkd-floors 2"),
        text().replace("floor_bytes", "floor"),
    ],
)
def test_what_is_no_lease_is_the_default_and_says_so(said) -> None:
    lease = parse(said, NOW, SETTINGS)
    assert (lease.floor, lease.phase, lease.until_s) == (2 * GIB, "", 0.0)
    assert lease.note.startswith("floors of the daemon")


@given(st.text(max_size=300))
def test_any_text_gives_a_bounded_floor(said) -> None:
    for each in (said, "sparkd-floors 1\n" + said + "\nend\n"):
        lease = parse(each, NOW, SETTINGS)
        assert SETTINGS.floor <= lease.floor <= SETTINGS.floor_most
        assert lease.until_s <= NOW + SETTINGS.lease_most_s


def test_the_file_is_read_when_it_changes_and_expires_by_itself(tmp_path) -> None:
    path = tmp_path / "floors"
    file = LeaseFile(Settings({"lease": str(path)}))
    file.refresh(NOW)
    assert (file.lease.floor, file.lease.note) == (2 * GIB, "the daemon has given no floors")
    path.write_text(text())
    file.refresh(NOW)
    assert file.lease.floor == 3 * GIB
    path.unlink()
    file.refresh(NOW + 29)
    assert file.lease.floor == 3 * GIB, "a daemon that is away does not end its lease"
    file.refresh(NOW + 31)
    assert (file.lease.floor, file.lease.note) == (2 * GIB, "floors of the daemon have expired")


def test_an_expired_lease_comes_back_with_a_new_one(tmp_path) -> None:
    path = tmp_path / "floors"
    path.write_text(text(until=900.0))
    file = LeaseFile(Settings({"lease": str(path)}))
    file.refresh(NOW)
    assert file.lease.floor == 2 * GIB
    fresh = tmp_path / "new"
    fresh.write_text(text(4 * GIB))
    fresh.replace(path)
    file.refresh(NOW)
    assert file.lease.floor == 4 * GIB


@pytest.mark.parametrize("kind", ["fifo", "folder", "link"])
def test_what_is_no_plain_file_is_never_opened(tmp_path, kind) -> None:
    """Opening a FIFO would wait for ever."""
    path = tmp_path / "floors"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        (tmp_path / "other").write_text(text())
        path.symlink_to(tmp_path / "other")
    file = LeaseFile(Settings({"lease": str(path)}))
    file.refresh(NOW)
    assert file.lease.floor == 2 * GIB
