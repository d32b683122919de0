"""Packed streams are read up to the very place of their damage."""

from __future__ import annotations

import bz2
import gzip
import lzma
import random

import pytest

from sparkd.intake.unpacking import DamagedError, unpacked


def fast_xz(data: bytes) -> bytes:
    return lzma.compress(data, preset=0)


def small_bz2(data: bytes) -> bytes:
    return bz2.compress(data, 1)  # blocks of 100 kB: only whole ones can be unpacked


PACKS = [gzip.compress, small_bz2, fast_xz]
TEXT = b"".join(b"line %d %d\n" % (n, random.Random(n).getrandbits(60)) for n in range(12_000))


def read(data: bytes, size: int = 1 << 16) -> tuple[bytes, str]:
    out = bytearray()
    try:
        for chunk in unpacked(data[n : n + size] for n in range(0, len(data), size)):
            out += chunk
    except DamagedError as error:
        return bytes(out), str(error)
    return bytes(out), ""


@pytest.mark.parametrize("pack", PACKS)
@pytest.mark.parametrize("size", [1 << 16, 1 << 20, 777])
def test_whole_streams_and_several_in_a_row(pack, size) -> None:
    assert read(pack(TEXT), size) == (TEXT, "")
    assert read(pack(TEXT) + pack(b"more") + b"\0" * 512, size) == (TEXT + b"more", "")
    assert read(pack(b"\0" * 2_000_000), size) == (b"\0" * 2_000_000, "")


@pytest.mark.parametrize("text", [b"", b"x", b"plain\n" * 9])
def test_what_is_not_packed_stays_as_it_is(text) -> None:
    assert read(text, 1) == (text, "")


@pytest.mark.parametrize("pack", [gzip.compress, fast_xz])
@pytest.mark.parametrize("lines", [400, 12_000])
def test_a_cut_stream_gives_nearly_all_of_its_part(pack, lines) -> None:
    text = b"".join(TEXT.splitlines(keepends=True)[:lines])
    packed = pack(text)
    out, why = read(packed[: len(packed) * 9 // 10])
    assert why == "it ends too early"
    assert text.startswith(out)
    assert len(out) > len(text) * 0.8
    assert read(packed[:-1])[0] == text


def test_a_cut_bz2_gives_its_whole_blocks() -> None:
    out, why = read(small_bz2(TEXT)[:-50])
    assert why.startswith("it ends too early, and its last block")
    assert TEXT.startswith(out)
    assert len(out) > len(TEXT) - 200_000


@pytest.mark.parametrize("pack", PACKS)
def test_damage_in_the_middle(pack) -> None:
    packed = bytearray(pack(TEXT))
    half = len(packed) // 2
    packed[half : half + 40] = bytes(40)
    out, why = read(bytes(packed))
    assert why
    assert out[: len(TEXT) // 4] == TEXT[: len(TEXT) // 4]


def test_a_wrong_checksum_and_a_foreign_tail_are_told() -> None:
    packed = gzip.compress(b"short\n")
    assert read(packed[:-8] + bytes(8))[0] == b"short\n"
    assert read(packed[:-8] + bytes(8))[1]
    assert read(packed + b"tail") == (b"short\n", "something else follows after its packed part")
