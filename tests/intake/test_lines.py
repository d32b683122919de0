import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkd.intake.lines import Lines, clean


def read(chunks: list[bytes], limit: int = 64) -> list[str]:
    lines = Lines(limit)
    return [line for chunk in chunks for line in lines.feed(chunk)] + lines.flush()


pieces = st.one_of(
    st.binary(max_size=40),
    st.sampled_from([b"\n", b"\r", b"\r\n", b"\x1b[36m", "…é".encode(), b"x" * 50, b"\xff\xfe"]),
)


@given(st.lists(pieces, max_size=12).map(b"".join), st.lists(st.integers(0, 500), max_size=8))
def test_any_split_gives_the_same_lines(data: bytes, cuts: list[int]) -> None:
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    chunks = [data[a:b] for a, b in itertools.pairwise(edges)]
    assert read(chunks) == read([data]) == read([bytes([byte]) for byte in data])


@given(st.binary(max_size=300))
def test_any_bytes_give_bounded_clean_lines(data: bytes) -> None:
    for line in read([data]):
        assert line
        assert len(line) <= 64 + len(" …[cut 300 bytes]")
        assert not any(char in line for char in "\n\r\x1b\x00")


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (b"a\nb\r\nc\rd", ["a", "b", "c", "d"]),
        (b"\rLoading  0%\rLoading 50%\rLoading 100%\n\n", ["Loading  0%", "Loading 50%", "Loading 100%"]),
        (b"\x1b[36m(RayWorkerProc pid=1)\x1b[0m up\n", ["(RayWorkerProc pid=1) up"]),
        (b"PID\tMEM\x00\n", ["PID\tMEM"]),
        (b"caf\xc3\xa9 \xff\n", ["café \ufffd"]),
        ("a\u2028b\n".encode(), ["a\u2028b"]),
    ],
)
def test_what_ends_a_line_and_what_is_taken_off(data: bytes, lines: list[str]) -> None:
    assert read([data]) == lines


def test_a_line_of_megabytes_is_cut_with_a_mark_and_held_small() -> None:
    lines = Lines(1024)
    for _ in range(100):
        assert lines.feed(b"x" * 65536) == []
        assert len(lines._held) == 1024
    (line,) = lines.feed(b"\n")
    assert line == "x" * 1024 + f" …[cut {100 * 65536 - 1024} bytes]"


def test_links_and_titles_are_taken_off() -> None:
    assert clean(b"\x1b]8;;http://x\x07link\x1b]8;;\x1b\\ \x1b[2K\x1b(B") == "link B"[:5] + "(B"
