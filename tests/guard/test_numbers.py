"""The kernel's texts as numbers: recorded ones, and any bytes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkd.guard.numbers import kept_back_pages, number_after, only_number, stall_us

MEMINFO = (Path(__file__).parents[1] / "contract" / "data_meminfo.txt").read_bytes()
PSI = b"some avg10=0.10 avg60=0.02 avg300=0.00 total=539605\nfull avg10=0.00 avg60=0.00 total=268945\n"
ZONES = b"""Node 0, zone      DMA
  per-node stats
      nr_inactive_anon 1
  pages free     3840
        boost    0
        min      8
        low      11
        high     14
        managed  3840
        cma      0
        protection: (0, 1915, 24075, 24075)
  pagesets
    cpu: 0
              count:    0
              high:     378
Node 0, zone   Normal
  pages free     4000000
        min      15000
        low      20000
        high     25000
        managed  5000000
        protection: (0, 0, 0, 0)
"""


def test_recorded_numbers() -> None:
    size = len(MEMINFO)
    assert number_after(MEMINFO, b"MemTotal:", size) == 24683656
    assert number_after(MEMINFO, b"\nMemAvailable:", size) == 18820620
    assert number_after(MEMINFO, b"\nSwapFree:", size) == 8388092
    assert (stall_us(PSI, b"some", len(PSI)), stall_us(PSI, b"full", len(PSI))) == (539605, 268945)


@pytest.mark.parametrize(
    ("text", "end"),
    [(b"", 0), (b"MemTotal:", 9), (b"MemTotal: kB", 12), (b"MemTotal: -5", 12), (b"MemTotal: 5", 9)],
)
def test_what_is_missing_is_unknown(text, end) -> None:
    assert number_after(text, b"MemTotal:", end) is None


def test_only_what_was_read_counts_of_a_buffer() -> None:
    buffer = bytearray(b"5000\nrest of an older reading 9")
    assert only_number(buffer, 5) == 5000
    assert only_number(buffer, len(buffer)) is None
    assert only_number(bytearray(b"max\n"), 4) is None
    assert stall_us(PSI, b"full", 60) is None


def test_what_the_kernel_keeps_back_is_watermark_and_protection_of_each_zone() -> None:
    assert kept_back_pages(ZONES) == min(3840, 14 + 24075) + 25000
    assert kept_back_pages(b"") == 0


@pytest.mark.skipif(not Path("/proc/zoneinfo").exists(), reason="this kernel shows no zones")
def test_free_less_the_reserve_is_never_above_available_on_a_real_node() -> None:
    """The kernel computes the one from the other; per-CPU counters drift by a few MiB."""
    reserve = kept_back_pages(Path("/proc/zoneinfo").read_bytes()) * os.sysconf("SC_PAGE_SIZE")
    text = Path("/proc/meminfo").read_bytes()
    free = (number_after(text, b"\nMemFree:", len(text)) or 0) * 1024
    available = (number_after(text, b"\nMemAvailable:", len(text)) or 0) * 1024
    assert 0 < reserve < free + available
    assert free - reserve <= available + (64 << 20)


@given(st.binary(max_size=400), st.integers(0, 400))
def test_any_bytes_are_a_number_or_unknown(text, end) -> None:
    end = min(end, len(text))
    for found in (
        number_after(text, b"\nMemFree:", end),
        only_number(text, end),
        stall_us(text, b"full", end),
        kept_back_pages(text),
    ):
        assert found is None or found >= 0
