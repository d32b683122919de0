"""The stamp file survives any torn write, a full disk and damage."""

from __future__ import annotations

import errno
import os

import pytest

from sparkd.store.stamp import SLOT_BYTES, StampFile, decode, encode
from sparkd.words import NO_STAMP, Stamp


def loaded(path):
    stamps = StampFile(path)
    try:
        return stamps.load()
    finally:
        stamps.close()


def written(path, *stamps):
    file = StampFile(path)
    file.load()
    for stamp in stamps:
        file.write(stamp)
    file.close()


def test_a_new_directory_has_no_stamp_and_is_not_damaged(tmp_path):
    assert loaded(tmp_path / "stamp").stamp == NO_STAMP
    assert not loaded(tmp_path / "stamp").damaged


def test_the_highest_stamp_comes_back(tmp_path):
    written(tmp_path / "stamp", *(Stamp(epoch, epoch * 2) for epoch in range(1, 8)))

    assert loaded(tmp_path / "stamp").stamp == Stamp(7, 14)


def test_a_lower_stamp_is_never_written(tmp_path):
    written(tmp_path / "stamp", Stamp(5, 9), Stamp(4, 10))

    assert loaded(tmp_path / "stamp").stamp == Stamp(5, 9)


def test_stamps_go_on_after_a_restart(tmp_path):
    for epoch in range(1, 6):
        written(tmp_path / "stamp", Stamp(epoch, 1))
        assert loaded(tmp_path / "stamp").stamp == Stamp(epoch, 1)


def test_the_file_never_grows(tmp_path):
    path = tmp_path / "stamp"
    written(path, Stamp(1, 1), Stamp(2, 2), Stamp(3, 3))

    assert path.stat().st_size == 2 * SLOT_BYTES


def test_a_write_torn_at_any_byte_loses_at_most_the_newest(tmp_path):
    path = tmp_path / "stamp"
    old, new = Stamp(41, 99), Stamp(42, 100)
    written(path, Stamp(40, 98), old)
    before = path.read_bytes()
    written(path, new)
    after = path.read_bytes()
    slot = next(
        i for i in range(2) if before[i * SLOT_BYTES :][:SLOT_BYTES] != after[i * SLOT_BYTES :][:SLOT_BYTES]
    )
    start = slot * SLOT_BYTES

    path.write_bytes(before)
    with path.open("r+b", buffering=0) as file:
        file.seek(start)
        for torn in range(SLOT_BYTES):
            result = loaded(path)
            assert result.stamp in (old, new), torn
            assert not result.damaged
            file.write(after[start + torn : start + torn + 1])
    assert loaded(path).stamp == new


def test_a_slot_with_any_byte_of_its_line_changed_is_not_believed():
    slot = encode(Stamp(3, 7))
    for index in range(slot.index(b"\n") + 1):
        broken = bytearray(slot)
        broken[index] ^= 1
        assert decode(bytes(broken)) is None, index


@pytest.mark.parametrize("content", [b"", b"\0" * 2 * SLOT_BYTES, b"garbage", encode(Stamp(1, 1))[:-1]])
def test_a_damaged_file_is_moved_aside_and_the_daemon_goes_on(tmp_path, content):
    path = tmp_path / "stamp"
    path.write_bytes(content)

    result = loaded(path)

    assert (result.stamp, result.damaged) == (NO_STAMP, True)
    assert content == (tmp_path / "stamp.damaged.1").read_bytes()
    assert "stamp.damaged.1" in result.note
    assert not loaded(path).damaged


def test_damaged_files_cannot_fill_the_disk(tmp_path):
    for _ in range(20):
        (tmp_path / "stamp").write_bytes(b"garbage")
        assert loaded(tmp_path / "stamp").damaged

    assert len(list(tmp_path.iterdir())) == 10


def test_a_failed_write_leaves_the_older_stamp_and_is_tried_again(tmp_path, monkeypatch):
    path = tmp_path / "stamp"
    file = StampFile(path)
    file.load()
    file.write(Stamp(1, 1))

    def refuse(fd, content, offset):
        os.lseek(fd, offset, os.SEEK_SET)
        os.write(fd, content[:10])
        raise OSError(errno.EIO, "injected")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", refuse)
        with pytest.raises(OSError, match="injected"):
            file.write(Stamp(2, 2))
    assert loaded(path).stamp == Stamp(1, 1)

    file.write(Stamp(2, 2))
    file.close()
    assert loaded(path).stamp == Stamp(2, 2)
