"""A flood costs little and hides nothing."""

from __future__ import annotations

from collections import Counter

import pytest

from sparkd.engines.lines import read_line
from sparkd.intake.flood import KEPT, PLACES_MIN, thinned
from sparkd.intake.sieve import Sieve, Sifter
from sparkd.intake.whole import Origin, WholeLog
from sparkd.signals.assess import Assessor
from sparkd.signals.catalogue import packaged_catalogue

CATALOGUE = packaged_catalogue()
SIEVE = Sieve(CATALOGUE)
COUNT = 5 * PLACES_MIN
HEAD = "(EngineCore pid=31) ERROR 11-30 01:58:%02d [core.py:%d] "
ERRORS = [HEAD % (n // 200 % 60, n % 7) + f"request {n:08x} failed with code {n % 997}" for n in range(COUNT)]
OOM = HEAD % (59, 3) + "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 512.00 MiB."


def read_of(lines: list[str]) -> list[str]:
    """Return the lines that are read while a report is open all the time, as it is in a flood."""
    sifter = Sifter(SIEVE, lambda: True)
    return [line.decode() for _, line in sifter.lines("".join(f"{line}\n" for line in lines).encode())]


def test_of_a_flood_the_first_and_the_last_lines_are_read() -> None:
    seen = read_of(ERRORS)
    assert seen == ERRORS[:KEPT] + ERRORS[-KEPT:]


@pytest.mark.parametrize("at", [0, 1, KEPT, COUNT // 2, COUNT - 1, COUNT])
def test_what_stands_in_a_flood_is_read(at: int) -> None:
    lines = [*ERRORS[:at], OOM, *ERRORS[at:]]
    assert OOM in read_of(lines)
    log = WholeLog(Origin("log"), SIEVE)
    assessor = Assessor(CATALOGUE, read_line=read_line)
    for record in log.records([("\n".join(lines) + "\n").encode()]):
        assessor.add(record)
    assert assessor.finish().diagnosis.cause == "cuda_oom"


def test_few_lines_are_left_as_they_are() -> None:
    lines = ERRORS[: PLACES_MIN // 4]
    assert read_of(lines) == lines


def test_each_line_is_read_or_left_out_whole() -> None:
    block = b"".join(b"ERROR a ERROR b %d\nplain\n" % n for n in range(COUNT))
    places = [at for at in range(len(block)) if block.startswith(b"ERROR", at)]
    kept, left_out = thinned(block, places)
    starts = Counter(block.rfind(b"\n", 0, place) + 1 for place in kept)
    assert len(starts) == 2 * KEPT
    assert not starts.keys() & left_out
    assert len(starts) + len(left_out) == COUNT
