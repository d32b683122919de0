"""The transition table: what must never be possible."""

from __future__ import annotations

import pytest

from sparkd.core import phases
from sparkd.core.phases import TRANSITIONS, IllegalTransitionError, check_move, is_forward
from sparkd.words import ENGINE, LIVE, Phase


def test_every_phase_has_a_row_and_can_be_reached() -> None:
    reached = {after for moves in TRANSITIONS.values() for after in moves}

    assert set(TRANSITIONS) == set(Phase)
    assert set(Phase) - reached <= {Phase.IDLE}


def test_serving_is_entered_from_verifying_alone() -> None:
    entrances = {before for before, moves in TRANSITIONS.items() if Phase.SERVING in moves}

    assert entrances == {Phase.VERIFYING, Phase.PAUSED}


@pytest.mark.parametrize("phase", LIVE)
def test_every_live_phase_can_fail_and_be_stopped(phase: Phase) -> None:
    assert {Phase.FAILING, Phase.STOPPING, Phase.FENCING} <= set(TRANSITIONS[phase])


def test_an_engine_moves_forward_and_may_skip() -> None:
    assert is_forward(Phase.RESOLVING_CONFIG, Phase.STARTING_API)
    assert not is_forward(Phase.CAPTURING_GRAPHS, Phase.LOADING_WEIGHTS)
    assert not is_forward(Phase.STARTING_API, Phase.SERVING)
    assert all(is_forward(Phase.FORMING, phase) for phase in ENGINE)


def test_a_move_that_the_table_does_not_know_raises() -> None:
    with pytest.raises(IllegalTransitionError):
        check_move(Phase.FORMING, Phase.SERVING)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (Phase.IDLE, Phase.STOPPED),
        (Phase.BACKING_OFF, Phase.ESCALATED),
        (Phase.PAUSED, Phase.FAILING),
        (Phase.PAUSED, Phase.FENCING),
    ],
)
def test_what_no_rule_does_is_not_allowed(before: Phase, after: Phase) -> None:
    """A stop takes its order, a wait ends in a try, and a pause changes nothing."""
    with pytest.raises(IllegalTransitionError):
        check_move(before, after)


def test_an_engine_phase_may_be_followed_by_every_later_one_and_none_before() -> None:
    moves = phases._engine_moves()
    ends = (Phase.VERIFYING, Phase.FAILING, Phase.FENCING, Phase.STOPPING)

    assert moves.items() <= TRANSITIONS.items()
    assert list(moves) == list(ENGINE)
    assert moves[ENGINE[0]] == (*ENGINE[1:], *ends)
    assert moves[Phase.CAPTURING_GRAPHS] == (Phase.STARTING_API, *ends)
    assert moves[Phase.STARTING_API] == ends
