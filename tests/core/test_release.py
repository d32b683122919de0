"""Memory of a dead generation: back, still coming, or kept."""

from __future__ import annotations

import pytest

from core.given import NOW, intent_of, turn_of, worker_state
from sizing.large import sized_large
from sparkd.core import release
from sparkd.core.messages import GuardSeen
from sparkd.core.records import MemoryNotBack
from sparkd.signals.model import MemorySample
from sparkd.words import GIB, Settings

TOTAL = 120 * GIB
BEFORE = 115 * GIB
DEADLINE_S = 30.0


def asked(available: float, *, ended_s: float, rose_s: float = 100.0, policy=None, **more):
    """Return the turn *ended_s* after the end, with so many GiB available that last rose *rose_s* ago."""
    sample = MemorySample(NOW, int(available * GIB), TOTAL)
    member = {
        "baseline_bytes": BEFORE,
        "memory": sample,
        "ran": True,
        "emptied_at_s": NOW - ended_s,
        "emptied_generation": 7,
        "rose_bytes": sample.available_bytes,
        "rose_at_s": NOW - rose_s,
        **more,
    }
    turn = turn_of(worker_state(**member), memory_release_s=DEADLINE_S, **(policy or {}))
    return turn, release.is_over(turn, NOW - ended_s)


def test_what_was_there_before_within_the_tolerance_is_enough_at_once() -> None:
    turn, over = asked(114.1, ended_s=0.5)
    assert (over, turn.records) == (True, [])


def test_less_is_waited_for_until_the_deadline_though_nothing_moves() -> None:
    turn, over = asked(100.0, ended_s=29.0)
    assert not over
    assert turn.wakes[turn.concern] == NOW + 1.0


PLANNED = {
    "model": sized_large(40.0),
    "intent": intent_of(settings=Settings(gpu_memory_utilization=0.6)),
}
"""Needs about 0.6 of 120 GiB, and 10 beside it."""


def test_enough_for_the_plan_that_no_longer_rises_is_not_waited_for_to_the_deadline() -> None:
    turn, over = asked(100.0, ended_s=4.0, rose_s=3.5, **PLANNED)
    assert (over, turn.records) == (True, [])


def test_what_still_rises_may_become_more_than_enough() -> None:
    turn, over = asked(100.0, ended_s=4.0, rose_s=1.0, **PLANNED)
    assert not over
    assert turn.wakes[turn.concern] == NOW + release.FLAT_S - 1.0
    assert not asked(100.0, ended_s=1.0, **PLANNED)[1], "it has not had the time to rise"


@pytest.mark.parametrize(
    "other",
    [
        {"model": None},
        {"intent": None},
        {"memory": None},
        {"memory": MemorySample(NOW - 2.0, 100 * GIB, TOTAL)},
        {"intent": intent_of(settings=Settings(gpu_memory_utilization=0.9))},
        {"policy": {"unified_memory": False}},
    ],
)
def test_where_it_is_not_known_to_be_enough_it_is_waited_for(other) -> None:
    assert not asked(100.0, ended_s=4.0, rose_s=3.5, **{**PLANNED, **other})[1]


def test_an_enforcing_guards_floor_is_not_there_for_the_plan() -> None:
    assert asked(100.0, ended_s=4.0, rose_s=3.5, **PLANNED)[1]
    more = {"guard": GuardSeen(enforcing=True), "policy": {"guard_floor_bytes": 40 * GIB}}
    assert not asked(100.0, ended_s=4.0, rose_s=3.5, **PLANNED, **more)[1]


def test_what_has_stopped_coming_at_the_deadline_is_said_with_what_is_missing() -> None:
    turn, over = asked(100.0, ended_s=30.0)
    assert over
    assert turn.records == [MemoryNotBack(7, 30.0, 15 * GIB)]


def test_what_still_comes_at_the_deadline_is_waited_for() -> None:
    turn, over = asked(100.0, ended_s=31.0, rose_s=1.0)
    assert (over, turn.records) == (False, [])
    assert turn.wakes[turn.concern] == NOW + release.FLAT_S - 1.0


def test_not_for_ever() -> None:
    turn, over = asked(100.0, ended_s=release.PATIENCE * DEADLINE_S, rose_s=0.5)
    assert over
    assert turn.records


def test_only_a_true_rise_counts() -> None:
    turn, _ = asked(100.0, ended_s=10.0)
    release.note_rise(turn, 100 * GIB + release.RISE_BYTES)
    assert turn.member.rose_at_s == NOW - 100.0
    release.note_rise(turn, 101 * GIB)
    assert (turn.member.rose_bytes, turn.member.rose_at_s) == (101 * GIB, NOW)
    release.note_rise(turn, 90 * GIB)
    assert turn.member.rose_bytes == 101 * GIB


@pytest.mark.parametrize(
    ("read_s", "fenced", "lacks"),
    [(NOW - 0.001, 6, True), (NOW, 6, False), (NOW - 0.001, 7, False), (None, 6, True), (None, 7, False)],
)
def test_a_reading_is_asked_for_until_one_is_of_after_the_end(read_s, fenced, lacks) -> None:
    """Also one that was taken between the end and its step, of which nobody can say that all is gone."""
    sample = None if read_s is None else MemorySample(read_s, GIB, TOTAL)
    state = worker_state(memory=sample, emptied_at_s=NOW, emptied_generation=7, fenced_generation=fenced)
    assert release.lacks_reading(state.member) is lacks
