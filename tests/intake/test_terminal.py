"""A long text that a screen has broken is read as what was written; nothing else is put together."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from sparkd.intake.forms import Plain, is_headed
from sparkd.intake.terminal import Screen, width_of

DATA = Path(__file__).parents[1] / "signals" / "data"
LINE = "(EngineCore pid=31) ERROR 11-30 01:58:20 [core.py:15] torch.OutOfMemoryError: CUDA out of memory. {}"
LINES = [LINE.format("Tried to allocate. " * (n % 7) + str(n)) for n in range(300)]


def broken(lines: list[str], width: int, pad: bool = False) -> list[str]:
    parts = [line[at : at + width] for line in lines for at in range(0, len(line), width)]
    return [part.ljust(width) for part in parts] if pad else parts


@pytest.mark.parametrize("width", [60, 80, 132])
@pytest.mark.parametrize("pad", [False, True])
def test_lines_are_put_together_again(width: int, pad: bool) -> None:
    text = "".join(f"{line}\n" for line in broken(LINES, width, pad=pad))
    plain = Plain()
    found = (plain.lines(text.encode()) + plain.flush()).decode().splitlines()
    assert [line.replace(" ", "") for line in found] == [line.replace(" ", "") for line in LINES]


@pytest.mark.parametrize("path", sorted(DATA.glob("*.gz")), ids=lambda path: path.name)
def test_no_recorded_log_is_taken_for_a_screen(path: Path) -> None:
    lines = gzip.decompress(path.read_bytes())[: 1 << 16].decode("utf-8", "replace").split("\n")
    assert width_of([line for line in lines if line], is_headed) is None


@pytest.mark.parametrize(
    "lines",
    [
        broken(LINES[:60], 80),  # short: it is read without its breaks
        [LINE.format("x" * 20)] * 1000,  # all of one length, none broken
        ["x" * 80] * 1000,  # no line has a head
        [LINE.format(""), "a plain line"] * 500,  # what follows is shorter, and so are others
        broken(LINES, 20),
        broken(LINES, 500),
    ],
)
def test_other_texts_are_no_screen(lines: list[str]) -> None:
    width = width_of(lines, is_headed)
    assert width is None or lines[0] == LINE.format("")


def test_a_line_that_is_just_as_long_as_the_screen_is_no_beginning() -> None:
    screen = Screen(len(LINE), is_headed)
    assert [*screen.take(LINE), *screen.take(LINE), *screen.flush()] == [LINE, LINE]


def test_what_is_held_is_bounded() -> None:
    screen = Screen(80, is_headed)
    found = [line for _ in range(5_000) for line in screen.take("x" * 80)]
    assert max(map(len, found)) < 1 << 17
