"""The fence, question by question: what is demanded, who has answered, and what is said meanwhile."""

from __future__ import annotations

from dataclasses import replace

import pytest

from core.given import (
    HEAD,
    NOW,
    RAY,
    SERVE,
    WORKER,
    head_state,
    intent_of,
    status_of_worker,
    turn_of,
    unit,
    worker_seen,
)
from sparkd.core.commands import PublishIntent
from sparkd.core.fence import (
    demand,
    demand_nothing,
    has_applied,
    is_emptied,
    is_fenced,
    unanswered,
    unkillable,
)
from sparkd.core.messages import UnitState, UnitStatus
from sparkd.core.state import Peer
from sparkd.words import Phase, Settings, Stamp

APPLIED = {"intent_seq": 3, "intent_coordinator": "a#1"}
DEAD = {**APPLIED, "emptied_generation": 7}
BACK = {**DEAD, "fenced_generation": 7}
OWN_DEAD = {"emptied_generation": 7}
OWN_BACK = {"emptied_generation": 7, "fenced_generation": 7}


def fencing(status: dict | None = None, member: dict | None = None, **lead):
    peer = worker_seen(status_of_worker(**(status or {})))
    return turn_of(head_state(Phase.FENCING, peer=peer, member=member, **lead))


# -- what is demanded ----------------------------------------------------------------------------


def test_a_fence_names_the_newest_generation_that_anybody_saw_and_a_start_the_one_that_runs() -> None:
    fence = turn_of(head_state(Phase.FAILING, seen=Stamp(2, 9), intent=None, peer=worker_seen()))
    start = turn_of(head_state(Phase.FORMING, seen=Stamp(2, 9), intent=None, peer=worker_seen()))

    demand_nothing(fence, 0.5)
    demand(start, {HEAD: (RAY,)}, 10.0)

    assert fence.lead.intent == intent_of(Stamp(2, 9), seq=4, phase=Phase.FAILING, grace_s=0.5)
    assert start.lead.intent == intent_of(
        seq=4, phase=Phase.FORMING, grace_s=10.0, wanted=((HEAD, (RAY,)), (WORKER, ()))
    )


def test_a_new_level_is_published_and_is_this_nodes_own_intent_too() -> None:
    turn = fencing(intent=None, member={"refused": "replay"})

    demand(turn, {HEAD: (SERVE,)}, 10.0)

    made = turn.lead.intent
    assert (turn.lead.seq, made.seq) == (4, 4)
    assert turn.commands == [PublishIntent(intent=made)]
    assert (turn.member.intent, turn.member.refused) == (made, None)
    assert (turn.state.published.intent_at_s, turn.state.published.intent_seq) == (NOW, 4)


def test_the_level_in_force_is_not_said_again_for_another_phase_or_grace() -> None:
    turn = fencing()

    demand_nothing(turn, 99.0)

    assert (turn.commands, turn.lead.seq) == ([], 3)


@pytest.mark.parametrize(
    "differs",
    [
        {"epoch": 3},
        {"generation": 8, "wanted": {HEAD: (RAY,)}},
        {"wanted": {WORKER: (RAY,)}},
        {"settings": Settings(max_num_seqs=4)},
        {"peer": worker_seen(status_of_worker(instance="b#2"))},
        {"peer": worker_seen(status_of_worker(node_digest="other"))},
    ],
)
def test_another_stamp_addressee_want_setting_or_digest_is_a_new_level(differs) -> None:
    state = {name: value for name, value in differs.items() if name != "wanted"}
    turn = turn_of(head_state(Phase.FENCING, **state))

    demand(turn, differs.get("wanted", {}), 10.0)

    assert turn.lead.intent.seq == 4


def test_a_peer_of_whom_nothing_is_known_is_not_addressed() -> None:
    turn = turn_of(head_state(Phase.FENCING, peer=Peer(WORKER)))

    demand_nothing(turn, 10.0)

    assert turn.lead.intent.addressees == ((HEAD, "a#1"),)
    assert turn.lead.intent.node_digests == ((HEAD, f"digest-{HEAD}"),)


# -- who has answered ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "applied"),
    [
        (APPLIED, True),
        ({**APPLIED, "intent_seq": 2}, False),
        ({**APPLIED, "intent_seq": 4}, False),
        ({**APPLIED, "intent_coordinator": "a#0"}, False),
    ],
)
def test_an_answer_is_for_one_intent_of_one_coordinator(status, applied) -> None:
    turn = fencing(status)

    assert has_applied(turn, turn.state.peers[0]) is applied
    assert not has_applied(turn, Peer(WORKER))
    assert not has_applied(fencing(status, intent=None), turn.state.peers[0])


@pytest.mark.parametrize(
    ("status", "member", "emptied", "fenced"),
    [
        (BACK, OWN_BACK, True, True),
        ({**BACK, "emptied_generation": 8, "fenced_generation": 8}, OWN_BACK, True, True),
        (DEAD, OWN_BACK, True, False),
        (BACK, OWN_DEAD, True, False),
        (APPLIED, OWN_BACK, False, False),
        ({**DEAD, "emptied_generation": 6}, OWN_BACK, False, False),
        ({**BACK, "intent_seq": 2}, OWN_BACK, False, False),
        (BACK, {"emptied_generation": 6, "fenced_generation": 7}, False, False),
        (BACK, {**OWN_BACK, "units": (unit(generation=8),)}, False, False),
        (BACK, {**OWN_BACK, "units": (unit(state=UnitState.GONE),)}, True, True),
    ],
)
def test_a_fence_is_every_nodes_own_answer(status, member, emptied, fenced) -> None:
    turn = fencing(status, member)

    assert (is_emptied(turn), is_fenced(turn)) == (emptied, fenced)


def test_before_an_intent_nobody_can_have_answered() -> None:
    turn = fencing(BACK, OWN_BACK, intent=None)

    assert (is_emptied(turn), is_fenced(turn)) == (False, False)


def test_the_question_in_force_counts_and_not_what_was_seen_since() -> None:
    turn = fencing(BACK, OWN_BACK)
    turn.set_state(seen=Stamp(2, 9))

    assert is_fenced(turn)


# -- what is said --------------------------------------------------------------------------------

NOT_DEAD, NOT_BACK = "generation 7 is not dead yet", "the memory of generation 7 is not back yet"


@pytest.mark.parametrize(
    ("status", "member", "said"),
    [
        (BACK, OWN_BACK, ()),
        (BACK, OWN_DEAD, (f"spark-a: {NOT_BACK}",)),
        (DEAD, OWN_BACK, (f"spark-b: {NOT_BACK}",)),
        (BACK, {}, (f"spark-a: {NOT_DEAD}",)),
        (APPLIED, OWN_BACK, (f"spark-b: {NOT_DEAD}",)),
        ({}, OWN_DEAD, (f"spark-a: {NOT_BACK}", "spark-b: has not applied the fence yet")),
    ],
)
def test_whose_answer_is_missing_is_said(status, member, said) -> None:
    assert unanswered(fencing(status, member)) == said


def test_a_silence_is_no_answer() -> None:
    turn = fencing(BACK, OWN_BACK)
    turn.now = NOW + 10.0

    said = ("spark-b: its sparkd is not heard, so nobody says that its engine is dead",)
    assert unanswered(turn) == said
    assert unanswered(turn_of(head_state(Phase.FENCING, member=OWN_BACK, peer=Peer(WORKER)))) == said


def test_nodes_with_processes_that_survive_sigkill_are_named() -> None:
    stuck = (unit(RAY), unit(state=UnitState.UNKILLABLE))
    theirs = (UnitStatus(RAY, 7, UnitState.RUNNING), UnitStatus(SERVE, 7, UnitState.UNKILLABLE))

    assert unkillable(fencing({"units": theirs}, {"units": stuck})) == (HEAD, WORKER)
    assert unkillable(fencing({"units": theirs})) == (WORKER,)
    assert unkillable(fencing({"units": theirs[:1]}, {"units": stuck})) == (HEAD,)
    assert unkillable(turn_of(head_state(peer=replace(worker_seen(), status=None)))) == ()


def test_a_retained_word_of_what_survives_sigkill_may_be_of_before_the_reboot() -> None:
    theirs = status_of_worker(units=(UnitStatus(SERVE, 7, UnitState.UNKILLABLE),))

    assert unkillable(turn_of(head_state(peer=worker_seen(theirs, fresh=False)))) == ()
    assert unkillable(turn_of(head_state(peer=worker_seen(theirs)))) == (WORKER,)
