import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkd.intake.lines import Blocks, text_of


def read(chunks: list[bytes], limit: int = 64) -> list[str]:
    blocks = Blocks(limit)
    whole = b"".join(blocks.feed(chunk) for chunk in chunks) + blocks.flush()
    assert not whole or whole.endswith(b"\n")
    return [text_of(line, limit + 24) for line in whole.split(b"\n") if line]


pieces = st.one_of(
    st.binary(max_size=40),
    st.sampled_from([b"\n", b"\r", b"\r\n", b"\x1b[36m", "…é".encode(), b"x" * 50, b"\xff\xfe"]),
)


@given(st.lists(pieces, max_size=12).map(b"".join), st.lists(st.integers(0, 500), max_size=8))
def test_any_split_gives_the_same_lines(data: bytes, cuts: list[int]) -> None:
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    chunks = [data[a:b] for a, b in itertools.pairwise(edges)]
    unbounded = 1 << 20
    assert read(chunks, unbounded) == read([data], unbounded)
    assert read([data], unbounded) == read([data[i : i + 1] for i in range(len(data))], unbounded)


@given(st.binary(max_size=300))
def test_any_bytes_give_clean_lines(data: bytes) -> None:
    for line in read([data]):
        assert not any(char in line for char in "\n\r\x1b\x00\x9b")


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (b"a\nb\r\nc\rd", ["a", "b", "c", "d"]),
        (b"\rLoading  0%\rLoading 50%\rLoading 100%\n\n", ["Loading  0%", "Loading 50%", "Loading 100%"]),
        (b"\x1b[36m(RayWorkerProc pid=1)\x1b[0m up\n", ["(RayWorkerProc pid=1) up"]),
        (b"PID\tMEM\x00\n", ["PID\tMEM"]),
        (b"caf\xc3\xa9 \xff\n", ["café \ufffd"]),
        ("a\u2028b\n".encode(), ["a\u2028b"]),
        (b"C\x1b[31mUDA\x1b[0m out\x00 of memory\n", ["CUDA out of memory"]),
    ],
)
def test_what_ends_a_line_and_what_is_taken_off(data: bytes, lines: list[str]) -> None:
    assert read([data]) == lines


def test_a_line_of_megabytes_is_held_small_and_cut_with_a_mark() -> None:
    blocks = Blocks(1024)
    for _ in range(100):
        assert blocks.feed(b"x" * 65536) == b""
        assert len(blocks._held) == 1024
    line = blocks.feed(b"\n")
    assert line.decode() == "x" * 1024 + f" …[cut {100 * 65536 - 1024} bytes]\n"
    assert text_of(b"y" * 2000, 1000) == "y" * 1000 + " …[cut 1000 bytes]"


def test_links_and_titles_are_taken_off() -> None:
    assert Blocks().feed(b"\x1b]8;;http://x\x07link\x1b]8;;\x1b\\ \x1b[2K\x1b(B\n") == b"link (B\n"
