"""A daemon that has just started, the small records, and one step in the making."""

from __future__ import annotations

from dataclasses import replace

import pytest

from core.given import HEAD, NOW, POLICY, WORKER, head_state, intent_of, turn_of, worker_seen, worker_state
from sim.world import make_policy
from sparkd.core.beginning import Remembered, initial
from sparkd.core.context import context_to_keep, same_context
from sparkd.core.edited import settings_in_force
from sparkd.core.evolve import evolve
from sparkd.core.leak import LEAK_LEAST_BYTES, leaks
from sparkd.core.learned import recall
from sparkd.core.messages import same_level
from sparkd.core.phases import IllegalTransitionError
from sparkd.core.publish import status_of
from sparkd.core.records import (
    InContext,
    Kept,
    MessageDropped,
    PeerChanged,
    PhaseChanged,
    SessionChanged,
    StampAdvanced,
)
from sparkd.core.state import Coordinator, Member, Peer, State
from sparkd.core.step import next_deadline, step
from sparkd.core.told import tell
from sparkd.core.turn import LEAP_MAX, Concern
from sparkd.words import GIB, CudaGraph, Floors, Phase, Settings, Stamp

ASKED = replace(POLICY, context="engine/driver")
LEARNED = Settings(max_num_seqs=12)
KEPT = Kept(
    context="engine/driver",
    proven=LEARNED,
    spent=("a", "b"),
    silences=((Phase.PROFILING, 3.0),),
    forgiven=4,
    unclean=1,
    target=False,
    paused=True,
)
DISK = Remembered(
    seen=Stamp(3, 9), incidents=5, settings=LEARNED, asked=Settings(), kept=KEPT, unclean_generation=8,
    returned=(4 * GIB, 3 * GIB, 2 * GIB, GIB), unrested=True, ran_at_s=7.0,
)  # fmt: skip


# -- initial -------------------------------------------------------------------------------------


def test_a_new_daemon_knows_what_is_on_its_disk_and_nothing_else() -> None:
    assert initial(ASKED, "a#1", DISK, NOW) == State(
        node=HEAD,
        instance="a#1",
        member=Member(unclean_generation=8, returned=DISK.returned, leaking=True, ran=True, ran_at_s=7.0),
        peers=(Peer(WORKER),),
        coordinator=Coordinator(
            phase_since_s=NOW,
            target=False,
            asked_target=False,
            asked_pause=True,
            settings=LEARNED,
            incidents=5,
            spent=(("a", NOW), ("b", NOW)),
            pause_wanted=True,
            proven=LEARNED,
            silences=((Phase.PROFILING, 3.0),),
            forgiven=4,
            unclean=1,
            context="engine/driver",
            kept=KEPT,
        ),
        seen=Stamp(3, 9),
        head=HEAD,
    )


def test_settings_that_failed_stay_failed_until_something_is_edited() -> None:
    worse = replace(LEARNED, gpu_memory_utilization=0.89)
    disk = replace(DISK, kept=replace(KEPT, failed=(worse, LEARNED)))

    def failed(policy=ASKED, remembered=disk):
        return initial(policy, "a#1", remembered, NOW).coordinator.failed

    assert failed() == (worse,)  # what is in force is tried once more, whatever a damaged disk says
    assert failed(replace(ASKED, context="another model")) == ()
    assert failed(remembered=replace(disk, asked=replace(Settings(), gpu_memory_utilization=0.7))) == ()


def test_a_worker_coordinates_nothing() -> None:
    state = initial(make_policy(WORKER), "b#1", Remembered(), NOW)

    assert state == State(WORKER, "b#1", Member(), (Peer(HEAD),), head=HEAD)


@pytest.mark.parametrize(
    ("policy", "kept", "target", "paused"),
    [
        ({}, {}, True, False),
        ({"autostart": False}, {}, False, False),
        ({"autostart": False}, {"target": True}, True, False),
        ({}, {"target": False}, False, False),
        ({"observe_only": True}, {}, True, True),
        ({}, {"paused": True}, True, True),
    ],
)
def test_what_a_person_said_last_goes_before_the_configuration(policy, kept, target, paused) -> None:
    lead = initial(replace(POLICY, **policy), "a#1", Remembered(kept=Kept(**kept)), NOW).coordinator

    assert (lead.target, lead.pause_wanted) == (target, paused)


def test_what_was_learned_with_another_engine_says_nothing() -> None:
    other = replace(ASKED, context="other/driver")

    lead = initial(other, "a#1", DISK, NOW).coordinator

    assert (lead.settings, lead.proven, lead.silences) == (Settings(), None, ())
    assert (lead.forgiven, lead.unclean, lead.spent) == (4, 1, (("a", NOW), ("b", NOW)))


def test_what_was_learned_with_a_context_counts_again_when_it_comes_back() -> None:
    other = initial(replace(ASKED, context="other/driver"), "a#1", DISK, NOW).coordinator
    kept = replace(KEPT, context=other.context, proven=None, silences=(), others=other.others)

    lead = initial(ASKED, "a#2", replace(DISK, settings=None, asked=None, kept=kept), NOW).coordinator

    assert (lead.settings, lead.proven, lead.silences) == (LEARNED, LEARNED, KEPT.silences)
    assert (lead.context, lead.others) == ("engine/driver", ())


def test_an_edit_counts_for_every_context() -> None:
    other = initial(replace(ASKED, context="other/driver"), "a#1", DISK, NOW).coordinator
    edited = replace(ASKED, settings=Settings(max_num_seqs=9))

    lead = initial(edited, "a#2", Remembered(kept=Kept(others=other.others)), NOW).coordinator

    assert (lead.settings, lead.proven) == (Settings(max_num_seqs=9), None)


def shelf(*contexts: str) -> tuple[InContext, ...]:
    return tuple(InContext(context=context, settings=LEARNED) for context in contexts)


@pytest.mark.parametrize(
    ("last", "others", "now", "known", "aside"),
    [
        ("a/1", ("b/1",), "a/1", "a/1", ("b/1",)),
        ("a/1", ("b/1",), "a/?", "a/1", ("b/1",)),
        ("a/1", ("b/1",), "b/1", "b/1", ("a/1",)),
        ("a/1", ("b/1", "b/2"), "b/?", "b/2", ("b/1", "a/1")),
        ("a/1", ("a/1", "b/1"), "c/1", "c/1", ("b/1", "a/1")),
        ("", ("b/1",), "c/1", "c/1", ("b/1",)),
        ("z/1", tuple(f"{n}/1" for n in range(8)), "c/1", "c/1", (*(f"{n}/1" for n in range(1, 8)), "z/1")),
    ],
)
def test_one_context_is_in_force_and_the_newest_few_others_lie_aside(last, others, now, known, aside) -> None:
    found, left = recall(shelf(last)[0], shelf(*others), now)

    assert (found.context, left) == (known, shelf(*aside))


def test_a_context_with_which_nothing_was_learned_is_not_kept() -> None:
    assert recall(InContext(context="a/1"), (), "b/1") == (InContext(context="b/1"), ())


def test_what_is_proven_is_so_for_what_was_asked_then() -> None:
    edited = replace(ASKED, settings=Settings(max_model_len=4096))

    lead = initial(edited, "a#1", DISK, NOW).coordinator

    assert (lead.proven, lead.settings) == (None, Settings(max_num_seqs=12, max_model_len=4096))


@pytest.mark.parametrize(
    ("learned", "before", "asked", "in_force"),
    [
        (None, Settings(), LEARNED, LEARNED),
        (LEARNED, None, Settings(), Settings()),
        (LEARNED, Settings(), Settings(), LEARNED),
        (LEARNED, Settings(), Settings(max_num_seqs=9), Settings(max_num_seqs=9)),
        (
            Settings(gpu_memory_utilization=0.8, cudagraph=CudaGraph.NONE),
            Settings(),
            Settings(kv_cache_bytes=GIB),
            Settings(kv_cache_bytes=GIB, cudagraph=CudaGraph.NONE),
        ),
        (
            Settings(kv_cache_bytes=GIB),
            Settings(),
            Settings(gpu_memory_utilization=0.8),
            Settings(gpu_memory_utilization=0.8),
        ),
    ],
)
def test_an_edited_setting_voids_what_was_learned_about_it(learned, before, asked, in_force) -> None:
    assert settings_in_force(learned, before, asked) == in_force


# -- what it was learned with --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kept", "now", "same"),
    [
        ("e/d", "e/d", True),
        ("e/d", "e/x", False),
        ("e/d", "x/d", False),
        ("e/?", "e/d", True),
        ("e/d", "e/?", True),
        ("?/d", "e/d", False),
        ("e/?", "x/?", False),
        ("", "", True),
        ("e/a/b", "e/a/b", True),
        ("e/a/b", "e/c/b", False),
    ],
)
def test_a_driver_that_is_unknown_is_not_compared(kept, now, same) -> None:
    assert same_context(kept, now) is same


@pytest.mark.parametrize(
    ("kept", "now", "then"),
    [("e/d", "e/?", "e/d"), ("e/d", "e/x", "e/x"), ("e/d", "x/?", "x/?"), ("", "e/d", "e/d")],
)
def test_what_is_known_of_the_driver_is_kept_while_it_is_unknown(kept, now, then) -> None:
    assert context_to_keep(kept, now) == then


# -- leaks ---------------------------------------------------------------------------------------

STEP = LEAK_LEAST_BYTES
SOME = GIB // 2


@pytest.mark.parametrize(
    ("falls", "leaking"),
    [
        ((SOME, SOME, SOME), True),
        ((SOME, SOME), False),
        ((), False),
        ((STEP, 2 * STEP, 2 * STEP), True),
        ((STEP - 1, 2 * STEP, 2 * STEP), False),
        ((STEP, STEP, 2 * STEP), False),
        ((STEP, STEP, 2 * STEP + 1), True),
        ((SOME, SOME, 3 * SOME), True),
        ((SOME, SOME, 3 * SOME + 1), False),
        ((3 * SOME, SOME, SOME), True),
        ((SOME, -SOME, 5 * SOME), False),
        ((SOME, SOME, SOME, SOME), True),
    ],
)
def test_a_leak_is_a_row_of_falls_of_one_kind_and_a_tolerance_in_all(falls, leaking) -> None:
    available = [100 * GIB]
    for fall in falls:
        available.append(available[-1] - fall)

    assert leaks(tuple(available), POLICY) is leaking


def test_nothing_known_is_no_leak() -> None:
    assert leaks((), POLICY) is False
    assert leaks((GIB,), POLICY) is False


# -- small records -------------------------------------------------------------------------------


def test_a_record_is_changed_by_name_and_the_old_one_stays() -> None:
    old = Member(ready=True)

    new = evolve(old, {"ready": False, "swept": True})

    assert (new, old) == (Member(ready=False, swept=True), Member(ready=True))
    with pytest.raises(TypeError, match=r"^Member has no field raedy$"):
        evolve(old, {"raedy": False})


def test_two_statuses_say_the_same_whatever_the_memory_does() -> None:
    status = status_of(head_state(), "s", "n", "v")
    moved = replace(status, available_bytes=1, total_bytes=2, lowest_bytes=3, pressure_percent=4.0)

    assert same_level(status, moved)
    assert not same_level(status, replace(status, baseline_bytes=1))
    assert not same_level(None, status)


def test_an_intent_is_read_by_node() -> None:
    fence = intent_of()

    assert (fence.wants_units, fence.units_of("spark-z"), fence.instance_of("spark-z")) == (False, (), None)
    assert fence.instance_of(WORKER) == "b#1"


# -- a step in the making ------------------------------------------------------------------------


def test_a_stamp_is_raised_part_by_part_and_never_lowered() -> None:
    turn = turn_of(head_state())

    turn.see(Stamp(1, 9))
    turn.see(Stamp(5, 1))
    turn.see(Stamp(5, 9))

    assert turn.state.seen == Stamp(5, 9)
    assert turn.records == [StampAdvanced(Stamp(2, 9)), StampAdvanced(Stamp(5, 9))]


@pytest.mark.parametrize("wild", [Stamp(3 + LEAP_MAX, 9), Stamp(3, 8 + LEAP_MAX), Stamp(1 << 53, 1 << 53)])
def test_a_stamp_to_which_no_cluster_comes_is_told_and_not_believed(wild) -> None:
    """Taken over, the coordinator's next order could not be said: the wire ends at 2 to the 53rd."""
    turn = turn_of(head_state())

    turn.see(wild)

    assert turn.state.seen == Stamp(2, 7)
    assert turn.records == [MessageDropped("stamp", "beyond_any_history")]


def test_a_wiped_node_believes_any_history_that_a_cluster_can_have() -> None:
    turn = turn_of(head_state(seen=Stamp(0, 0)))

    turn.see(Stamp(LEAP_MAX, LEAP_MAX))

    assert turn.state.seen == Stamp(LEAP_MAX, LEAP_MAX)


def test_a_move_is_told_with_the_time_that_was_spent_and_an_illegal_one_changes_nothing() -> None:
    turn = turn_of(head_state(Phase.WAITING))

    turn.move(Phase.FENCING, "why")

    assert turn.records == [PhaseChanged(7, Phase.WAITING, Phase.FENCING, "why", 50.0)]
    assert (turn.lead.phase, turn.lead.phase_since_s) == (Phase.FENCING, NOW)
    with pytest.raises(IllegalTransitionError, match="fencing -> serving"):
        turn.move(Phase.SERVING, "why")
    assert (len(turn.records), turn.lead.phase) == (1, Phase.FENCING)


def test_what_is_not_due_wakes_its_own_concern_at_the_earliest() -> None:
    turn = turn_of(head_state())
    turn.concern = Concern.SAY

    assert turn.due(NOW)
    assert turn.due(NOW - 1)
    assert turn.wakes == [float("inf")] * 4
    assert not turn.due(NOW + 5)
    assert not turn.due(NOW + 2)
    assert not turn.due(NOW + 9)
    turn.wake_for(Concern.PROBE, NOW + 3)
    turn.wake(NOW + 1)
    assert turn.wakes == [float("inf"), float("inf"), NOW + 3, NOW + 1]
    turn.begin(Concern.PROBE)
    assert (turn.wakes, turn.concern) == ([float("inf")] * 3 + [NOW + 1], Concern.PROBE)


def test_what_is_set_is_news_unless_it_only_confirms() -> None:
    for name in ("set_state", "set_member", "set_lead", "set_watch"):
        turn = turn_of(head_state())
        getattr(turn, name)(news=False)
        assert not turn.news
        getattr(turn, name)()
        assert turn.news
        getattr(turn, name)(news=False)
        assert turn.news
    peers = turn_of(head_state())
    peers.set_peer(peers.state.peers[0], news=False, will=True)
    assert (peers.news, peers.state.peers) == (False, (worker_seen(will=True),))
    peers.set_peer(peers.state.peers[0])
    assert peers.news
    with pytest.raises(LookupError, match="does not coordinate"):
        turn_of(worker_state()).set_lead(epoch=1)


def test_a_dropped_message_is_noted_with_its_sender() -> None:
    turn = turn_of(head_state())

    turn.drop("status", "why")
    turn.drop("status", "why", WORKER)

    assert turn.records == [MessageDropped("status", "why", ""), MessageDropped("status", "why", WORKER)]


# -- a whole step --------------------------------------------------------------------------------


def test_the_next_deadline_is_the_earliest_of_all_concerns() -> None:
    assert next_deadline(replace(head_state(), wakes=(5.0, 3.0, 4.0, 6.0))) == 3.0
    assert next_deadline(replace(head_state(), wakes=(float("inf"),) * 4)) is None


@pytest.mark.parametrize(
    ("wakes", "orders"),
    [
        ((NOW, NOW + 9, NOW + 9, NOW + 9), {"LeaseFloor", "PublishStatus", "PublishTelemetry"}),
        ((NOW + 9, NOW, NOW + 9, NOW + 9), {"CheckModel", "LeaseFloor", "PublishStatus", "PublishTelemetry"}),
        ((NOW + 9, NOW + 9, NOW, NOW + 9), set()),
        ((NOW + 9, NOW + 9, NOW + 9, NOW), {"LeaseFloor", "PublishStatus", "PublishTelemetry"}),
        ((NOW + 9,) * 4, set()),
        ((NOW + 0.001,) * 4, set()),
    ],
)
def test_without_news_only_what_is_due_is_looked_at(wakes, orders) -> None:
    state = replace(worker_state(), wakes=wakes)

    made = step(state, (), NOW, make_policy(WORKER))

    assert {type(c).__name__ for c in made.commands} == orders


def test_a_broken_rule_is_said() -> None:
    broken = replace(head_state(launched_at_s=None), wakes=(float("-inf"),) * 4)
    loses = replace(broken, broker=False)

    made = step(loses, (), NOW, POLICY)
    quiet = step(replace(broken, wakes=(NOW + 9,) * 4), (), NOW, POLICY)

    assert "serving was launched" in [r.rule for r in made.records if hasattr(r, "rule")]
    assert quiet.records == ()


# -- what people are told ------------------------------------------------------------------------


def told(state, now=NOW):
    turn = turn_of(state, now)
    tell(turn)
    return turn


@pytest.mark.parametrize(
    ("connected", "why", "before", "record"),
    [
        (True, "", None, SessionChanged(True, "connected")),
        (True, "x", False, SessionChanged(True, "connected")),
        (True, "", True, None),
        (False, "refused", True, SessionChanged(False, "refused")),
        (False, "refused", None, SessionChanged(False, "refused")),
        (False, "refused", False, None),
        (False, "", None, None),
        (False, "", True, None),
    ],
)
def test_the_session_is_told_when_it_changed(connected, why, before, record) -> None:
    state = replace(head_state(), broker=connected, broker_why=why, told_session=before)

    turn = told(state)

    assert turn.records == ([record] if record else [])
    assert turn.state.told_session is (connected if record else before)


SILENT = "nothing heard through the broker for 10 s"


@pytest.mark.parametrize(
    ("peer", "after_s", "broker", "reason"),
    [
        ({}, 9.999, True, None),
        ({}, 10.0, True, SILENT),
        ({}, 10.0, False, f"{SILENT}, the session with it is gone"),
        ({"fresh": False}, 0.0, True, "it is heard, but has not heard this daemon"),
        ({"status": None}, 0.0, True, "never heard since this daemon's start"),
        ({"heard_at_s": float("-inf"), "fresh": False}, 0.0, True, "never heard since this daemon's start"),
    ],
)
def test_a_peer_that_goes_is_told_with_the_reason(peer, after_s, broker, reason) -> None:
    known = replace(worker_seen(), **peer)
    state = replace(head_state(peer=known), broker=broker, told_session=broker, broker_why="x")

    turn = told(state, NOW + after_s)

    assert turn.records == ([PeerChanged(WORKER, False, reason)] if reason else [])
    assert turn.state.peers[0].told_present is (reason is None)


def test_a_peer_that_left_and_one_that_came_are_told() -> None:
    known = replace(head_state(), told_session=True)
    left = worker_seen(replace(worker_seen().status, leaving=True), fresh=False)

    gone = told(replace(known, peers=(left,)))
    came = told(replace(known, peers=(worker_seen(told_present=None),)))

    assert gone.records == [PeerChanged(WORKER, False, "its sparkd has left")]
    assert came.records == [PeerChanged(WORKER, True, "heard through the broker")]


def test_at_a_start_nobody_is_told_to_be_absent_before_a_while() -> None:
    begun = replace(head_state(peer=Peer(WORKER)), told_session=True, broker_since_s=NOW)

    early, late = told(begun, NOW + 9.999), told(begun, NOW + 10.0)
    before_any = told(replace(begun, told_session=None, broker=False), NOW + 99.0)

    assert early.records == before_any.records == []
    assert min(early.wakes) == NOW + 10.0
    assert late.records == [PeerChanged(WORKER, False, "never heard since this daemon's start")]


def test_floors_that_were_raised_count_for_what_was_learned() -> None:
    floors = Floors(gpu_memory_utilization=0.75, kv_cache_bytes=4 * GIB, eager_allowed=False)
    low = Settings(gpu_memory_utilization=0.6, kv_cache_bytes=GIB, cudagraph=CudaGraph.NONE)
    disk = Remembered(settings=low, asked=Settings(), kept=Kept(proven=low))

    lead = initial(replace(POLICY, floors=floors), "a#1", disk, NOW).coordinator

    assert lead.settings == Settings(gpu_memory_utilization=0.75, kv_cache_bytes=4 * GIB)
    assert lead.proven is None
