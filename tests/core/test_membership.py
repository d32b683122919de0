"""Who is there and whose word counts, by single messages; stories of whole clusters stand in tests/sim."""

from __future__ import annotations

from dataclasses import replace

import pytest

from core.given import (
    HEAD,
    NOW,
    POLICY,
    RAY,
    SERVE,
    WORKER,
    head_state,
    intent_of,
    status_of_worker,
    turn_of,
    unit,
    worker_seen,
    worker_state,
)
from sim.world import make_policy
from sparkd.core.events import IntentReceived, MembershipObserved, Path, RayNode, StatusReceived
from sparkd.core.membership import (
    fold_intent,
    fold_status,
    head_joined,
    is_heard,
    is_present,
    leaking,
    lost_nodes,
    missing,
    refusal,
    unproven,
)
from sparkd.core.messages import UnitState, UnitStatus
from sparkd.core.records import MessageDropped, PeerChanged, StampAdvanced
from sparkd.core.state import RETIRED_MAX, Peer
from sparkd.words import Stamp

ADDRESSES = dict(POLICY.nodes)
WANTS = ((HEAD, (RAY, SERVE)), (WORKER, (RAY,)))
BY_WORKER = make_policy(WORKER)


def told(state, status, path=Path.MQTT, *, retained=False, now=NOW + 1.0):
    """Return the turn after a status, and what the head then knows of the worker."""
    turn = turn_of(state, now)
    fold_status(turn, StatusReceived(status, path, retained))
    return turn, turn.state.peer(WORKER)


# -- a peer's status -----------------------------------------------------------------------------


def test_a_live_status_is_taken_with_the_time_of_its_way() -> None:
    status = status_of_worker(seen=Stamp(3, 9), ready=False)

    turn, peer = told(head_state(), status)
    _, asked = told(head_state(), status, Path.HTTP)

    assert peer == replace(worker_seen(status), heard_at_s=NOW + 1, mqtt_at_s=NOW + 1)
    assert asked == replace(worker_seen(status), heard_at_s=NOW + 1, http_at_s=NOW + 1)
    assert turn.state.seen == Stamp(3, 9)
    assert turn.records == [StampAdvanced(Stamp(3, 9))]


def test_a_status_that_says_the_same_is_no_news_but_one_after_a_silence_is() -> None:
    again, _ = told(head_state(), status_of_worker())
    memory, _ = told(head_state(), status_of_worker(available_bytes=5))
    other, _ = told(head_state(), status_of_worker(ready=False))
    returned, _ = told(head_state(), status_of_worker(), now=NOW + 10.0)
    by_http, _ = told(head_state(), status_of_worker(), Path.HTTP, now=NOW + 10.0)
    refreshed, _ = told(head_state(peer=worker_seen(fresh=False)), status_of_worker())

    assert [t.news for t in (again, memory, other, returned, by_http, refreshed)] == [
        False, False, True, True, False, True,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("heard", "path", "fresh"),
    [
        (((HEAD, "a#1"),), Path.MQTT, True),
        (((HEAD, "a#0"),), Path.MQTT, False),
        ((), Path.MQTT, False),
        (((WORKER, "a#1"),), Path.MQTT, False),
        ((), Path.HTTP, True),
    ],
)
def test_a_status_is_fresh_when_it_names_this_instance_or_was_asked_for(heard, path, fresh) -> None:
    _, peer = told(head_state(), status_of_worker(heard=heard), path)

    assert peer.fresh is fresh


def test_what_a_probe_said_is_over_once_the_broker_brings_the_peer_again() -> None:
    refused = head_state(peer=worker_seen(probe_reason="refused"))

    assert told(refused, status_of_worker())[1].probe_reason == ""
    assert told(refused, status_of_worker(), Path.HTTP)[1].probe_reason == "refused"


def test_a_daemon_that_was_started_anew_replaces_its_instance_for_ever() -> None:
    known = head_state(peer=worker_seen(received_seq=5, retired=("b#0",)))

    turn, peer = told(known, status_of_worker(instance="b#2"))

    assert peer.retired == ("b#0", "b#1")
    assert peer.received_seq == 0
    assert turn.records == [PeerChanged(WORKER, True, "its sparkd was started anew")]
    late, still = told(turn.state, status_of_worker(seen=Stamp(9, 9)))
    assert late.records == [MessageDropped("status", "retired_instance", WORKER)]
    assert (still, late.state.seen) == (peer, Stamp(2, 7))


def test_of_two_instances_in_the_wrong_order_the_one_that_answers_now_counts() -> None:
    """A late message has put the living one aside: asked over HTTP it answers for itself."""
    known = head_state(peer=worker_seen(retired=("b#2",)))

    _, peer = told(known, status_of_worker(instance="b#2"), Path.HTTP)

    assert peer.status is not None
    assert (peer.status.instance, peer.retired) == ("b#2", ("b#1",))


def test_the_same_instance_keeps_what_was_received() -> None:
    known = head_state(peer=worker_seen(received_seq=5, retired=("b#0",)))

    _, peer = told(known, status_of_worker(ready=False))

    assert (peer.received_seq, peer.retired) == (5, ("b#0",))


def test_so_many_replaced_instances_are_known_and_no_more() -> None:
    full = tuple(f"old#{n}" for n in range(RETIRED_MAX))

    _, peer = told(head_state(peer=worker_seen(retired=full)), status_of_worker(instance="b#2"))

    assert peer.retired == (*full[1:], "b#1")


def test_another_instance_that_has_not_heard_this_daemon_replaces_nothing() -> None:
    turn, peer = told(head_state(), status_of_worker(instance="b#2", heard=()))

    assert peer == worker_seen()
    assert turn.records == [MessageDropped("status", "not_fresh", WORKER)]


def test_a_retained_status_informs_where_nothing_is_known_and_raises_the_stamp() -> None:
    status = status_of_worker(instance="b#2", seen=Stamp(4, 1))

    _, unknown = told(head_state(peer=Peer(WORKER)), status, retained=True)
    turn, known = told(head_state(), status, retained=True)

    assert unknown == Peer(WORKER, status=status)
    assert known == worker_seen()
    assert turn.state.seen == Stamp(4, 7)


def test_a_status_of_nobody_in_the_configuration_is_dropped() -> None:
    turn, _ = told(head_state(), status_of_worker(node="spark-z", seen=Stamp(9, 9)))

    assert turn.records == [MessageDropped("status", "unknown_node", "spark-z")]
    assert turn.state.seen == Stamp(2, 7)


def test_what_the_broker_kept_of_this_nodes_last_daemon_raises_the_stamp() -> None:
    own = status_of_worker(node=HEAD, instance="a#0", seen=Stamp(9, 9))

    turn, peer = told(head_state(), own, retained=True)

    assert turn.state.seen == Stamp(9, 9)
    assert [record for record in turn.records if isinstance(record, MessageDropped)] == []
    assert peer == worker_seen()


# -- an intent -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({}, None),
        ({"wanted": WANTS}, None),
        ({"node": WORKER}, "not_the_coordinator"),
        ({"addressees": ((HEAD, "a#1"), (WORKER, "b#0"))}, "other_instance"),
        ({"addressees": ((HEAD, "a#1"),)}, "other_instance"),
        ({"wanted": WANTS, "shared_digest": "other"}, "plan_differs"),
        ({"shared_digest": "other"}, None),
        ({"wanted": WANTS, "node_digests": ((WORKER, "other"),)}, "rendering_changed"),
        ({"wanted": WANTS, "node_digests": ((HEAD, f"digest-{WORKER}"),)}, "rendering_changed"),
        ({"wanted": ((HEAD, (RAY,)), (WORKER, ())), "shared_digest": "other"}, None),
    ],
)
def test_an_intent_is_accepted_or_refused_with_the_reason(changes, why) -> None:
    intent = intent_of(**changes)

    assert refusal(intent, worker_state(), BY_WORKER, older=False) == why


@pytest.mark.parametrize(
    ("current", "older", "why"),
    [
        (intent_of(), False, "known"),
        (intent_of(seq=4), False, "replay"),
        (intent_of(seq=2), False, None),
        (intent_of(seq=4, coordinator="a#0"), False, None),
        (None, True, "old_stamp"),
        (intent_of(), True, "known"),
    ],
)
def test_an_older_word_of_one_coordinator_is_a_replay(current, older, why) -> None:
    assert refusal(intent_of(), worker_state(intent=current), BY_WORKER, older=older) == why


def test_who_only_observes_obeys_nobody() -> None:
    assert refusal(intent_of(), worker_state(), replace(BY_WORKER, observe_only=True), older=False) == (
        "observe_only"
    )


def ordered(state, intent, *, retained=False):
    turn = turn_of(state)
    fold_intent(turn, IntentReceived(intent, retained))
    return turn


def test_an_accepted_intent_is_in_force_and_takes_the_refusal_back() -> None:
    turn = ordered(worker_state(refused="plan_differs"), intent_of())

    assert (turn.member.intent, turn.member.refused) == (intent_of(), None)
    assert turn.state.seen == Stamp(2, 7)


def test_a_refused_intent_is_dropped_aloud_and_said_to_who_addressed_this_instance() -> None:
    differs = ordered(worker_state(), intent_of(wanted=WANTS, shared_digest="other"))
    stranger = ordered(worker_state(), intent_of(addressees=((HEAD, "a#1"), (WORKER, "b#0"))))

    assert (differs.member.intent, differs.member.refused) == (None, "plan_differs")
    assert differs.records[-1] == MessageDropped("intent", "plan_differs", HEAD)
    assert (stranger.member.intent, stranger.member.refused) == (None, None)
    assert stranger.records[-1] == MessageDropped("intent", "other_instance", HEAD)


def test_an_intent_of_an_older_stamp_is_not_accepted() -> None:
    seen = replace(worker_state(), seen=Stamp(2, 8))

    turn = ordered(seen, intent_of())

    assert turn.records == [MessageDropped("intent", "old_stamp", HEAD)]
    assert turn.member.refused == "old_stamp"


def test_retained_intents_and_those_at_the_head_only_raise_the_stamp() -> None:
    retained = ordered(worker_state(), intent_of(), retained=True)
    at_head = ordered(head_state(), intent_of(Stamp(5, 5), seq=9))

    assert (retained.member.intent, retained.state.seen) == (None, Stamp(2, 7))
    assert (at_head.member.intent.seq, at_head.state.seen) == (3, Stamp(5, 7))
    assert [type(r) for r in at_head.records] == [StampAdvanced]


def test_the_intent_in_force_said_again_changes_nothing() -> None:
    turn = ordered(replace(worker_state(intent=intent_of()), seen=Stamp(2, 7)), intent_of())

    assert (turn.news, turn.records) == (False, [])


# -- presence ------------------------------------------------------------------------------------


def test_a_peer_is_present_for_the_configured_silence_and_not_a_moment_longer() -> None:
    state = head_state()
    (peer,) = state.peers

    assert is_present(turn_of(state, NOW + 9.999), peer)
    assert not is_present(turn_of(state, NOW + 10.0), peer)
    assert is_heard(turn_of(state, NOW + 9.999), peer)
    assert not is_heard(turn_of(state, NOW + 10.0), peer)
    assert not is_present(turn_of(state), replace(peer, fresh=False))
    assert not is_present(turn_of(state), replace(peer, status=None))


def test_the_end_of_a_presence_is_a_deadline() -> None:
    turn = turn_of(head_state())

    is_present(turn, turn.state.peers[0])

    assert min(turn.wakes) == NOW + 10.0


# -- what a launch waits for ---------------------------------------------------------------------

GONE = UnitStatus(SERVE, 7, UnitState.GONE)
LIVES = UnitStatus(SERVE, 7, UnitState.RUNNING)
NOT_HEARD = "spark-b: its sparkd is not heard"
CHECKS = "spark-b: checking the model's files"
LOOKS = "spark-b: looking for processes of an earlier daemon"
DIFFERS = "spark-b: its configuration differs from this node's (compare the files)"


@pytest.mark.parametrize(
    ("changes", "reasons"),
    [
        ({}, ()),
        ({"leaving": True}, ("spark-b: its sparkd is leaving",)),
        ({"shared_digest": "other"}, (DIFFERS,)),
        ({"swept": False}, (LOOKS,)),
        ({"swept": False, "not_ready": "it only observes"}, ("spark-b: it only observes",)),
        ({"refused": "plan_differs"}, ("spark-b: refuses the plan: plan_differs",)),
        ({"refused": "rendering_changed"}, ("spark-b: refuses the plan: rendering_changed",)),
        ({"refused": "replay"}, ()),
        ({"ready": None}, (CHECKS,)),
        ({"ready": False, "not_ready": "shard 2 is missing"}, ("spark-b: shard 2 is missing",)),
        ({"ready": None, "units": (GONE,)}, (CHECKS,)),
        ({"ready": None, "units": (GONE, LIVES)}, ()),
    ],
)
def test_what_is_missing_of_a_peer_is_said(changes, reasons) -> None:
    assert missing(turn_of(head_state(peer=worker_seen(status_of_worker(**changes))))) == reasons


def test_a_peer_that_is_not_heard_is_missing_whatever_it_said_last() -> None:
    assert missing(turn_of(head_state(), NOW + 10.0)) == (NOT_HEARD,)
    assert missing(turn_of(head_state(peer=Peer(WORKER)))) == (NOT_HEARD,)
    broke = "spark-b: its session with the broker broke; it is asked whether it is there"
    assert missing(turn_of(head_state(peer=worker_seen(will=True)))) == (broke,)


@pytest.mark.parametrize(
    ("member", "reasons"),
    [
        ({}, ()),
        ({"swept": False, "ready": None}, ("spark-a: looking for processes of an earlier daemon",)),
        ({"ready": None}, ("spark-a: checking the model's files",)),
        ({"ready": False, "not_ready": "no vllm"}, ("spark-a: no vllm",)),
        ({"ready": None, "units": (unit(),)}, ()),
        ({"ready": None, "units": (unit(state=UnitState.GONE),)}, ("spark-a: checking the model's files",)),
    ],
)
def test_what_is_missing_here_is_said(member, reasons) -> None:
    assert missing(turn_of(head_state(member=member))) == reasons


def test_everything_that_is_missing_is_said_at_once() -> None:
    state = replace(head_state(member={"ready": False, "not_ready": "no vllm"}), broker=False)

    assert missing(turn_of(state, NOW + 10.0)) == (
        "the broker is not connected",
        "spark-a: no vllm",
        NOT_HEARD,
    )


def test_the_nodes_that_leak_are_named() -> None:
    both = head_state(member={"leaking": True}, peer=worker_seen(status_of_worker(leaking=True)))

    assert leaking(turn_of(both)) == (HEAD, WORKER)
    assert leaking(turn_of(head_state(member={"leaking": True}))) == (HEAD,)
    assert leaking(turn_of(head_state(peer=worker_seen(status_of_worker(leaking=True))))) == (WORKER,)
    assert leaking(turn_of(head_state(peer=Peer(WORKER)))) == ()
    retained = worker_seen(status_of_worker(leaking=True), fresh=False)
    assert leaking(turn_of(head_state(peer=retained))) == ()


# -- Ray's table ---------------------------------------------------------------------------------


def ray(name: str, *, alive: bool = True, gpus: float | None = 1.0, address: str = "") -> RayNode:
    resources = (("CPU", 20.0), *((("GPU", gpus),) if gpus is not None else ()))
    return RayNode(address or ADDRESSES[name], alive, name == HEAD, name, resources)


def table(*nodes: RayNode) -> MembershipObserved:
    return MembershipObserved(7, nodes)


UNREACHABLE, WRONG, LACKS = (
    "observed_gcs_unreachable",
    "observed_membership_wrong_address",
    "observed_membership_missing",
)


@pytest.mark.parametrize(
    ("observed", "found"),
    [
        (None, (UNREACHABLE, "Ray's head does not answer: not asked yet")),
        (MembershipObserved(7, None, "refused"), (UNREACHABLE, "Ray's head does not answer: refused")),
        (table(ray(HEAD), ray(WORKER)), None),
        (table(ray(HEAD)), (LACKS, "1 of 2 Ray nodes joined; missing: spark-b (192.168.200.13)")),
        (
            table(ray(HEAD), ray(WORKER, alive=False)),
            (LACKS, "1 of 2 Ray nodes joined; missing: spark-b (192.168.200.13)"),
        ),
        (
            table(),
            (LACKS, "0 of 2 Ray nodes joined; missing: spark-a (192.168.200.12), spark-b (192.168.200.13)"),
        ),
        (
            table(ray(HEAD), ray(WORKER, address="10.0.0.7"), ray(WORKER, address="10.0.0.10")),
            (WRONG, "Ray registered 10.0.0.10, 10.0.0.7, which is no configured address"),
        ),
        (table(ray(HEAD), ray(WORKER, gpus=0.0)), (LACKS, "spark-b offers 0 of 1 GPU to Ray")),
        (table(ray(HEAD, gpus=None), ray(WORKER)), (LACKS, "spark-a offers 0 of 1 GPU to Ray")),
    ],
)
def test_membership_is_proven_by_exactly_the_configured_addresses_with_their_gpus(observed, found) -> None:
    assert unproven(observed, POLICY) == found


def test_the_head_has_joined_where_it_lives_under_its_own_address() -> None:
    assert head_joined(table(ray(HEAD)), POLICY)
    assert not head_joined(table(ray(WORKER)), POLICY)
    assert not head_joined(table(ray(HEAD, alive=False), ray(WORKER)), POLICY)
    assert head_joined(table(), POLICY) is False
    assert head_joined(MembershipObserved(7, None), POLICY) is False
    assert head_joined(None, POLICY) is False


def test_nodes_are_lost_where_ray_answers_without_them() -> None:
    assert lost_nodes(table(ray(HEAD), ray(WORKER)), POLICY) == ()
    assert lost_nodes(table(ray(HEAD), ray(WORKER, alive=False)), POLICY) == (WORKER,)
    assert lost_nodes(table(), POLICY) == (HEAD, WORKER)
    assert lost_nodes(MembershipObserved(7, None), POLICY) == ()
    assert lost_nodes(None, POLICY) == ()
