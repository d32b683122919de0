"""What a node says of itself, field by field, and when."""

from __future__ import annotations

from dataclasses import replace

import pytest

from core.given import HEAD, NOW, WORKER, head_state, intent_of, status_of_worker, turn_of, unit, worker_seen
from core.given import worker_state as worker
from sparkd.core.commands import ProbePeer, PublishIncident, PublishReport, PublishStatus, PublishTelemetry
from sparkd.core.events import PhaseSeen
from sparkd.core.messages import IncidentNotice, MemberStatus, Report, Telemetry, UnitState, UnitStatus
from sparkd.core.publish import PROBE_PEER_EVERY_S, publish, reports_from, status_of
from sparkd.core.records import IncidentClosed, IncidentOpened, Remedied, StampAdvanced, Times
from sparkd.core.state import Outbox, Peer, Published
from sparkd.signals.model import Diagnosis, MemorySample, Proof, Signal
from sparkd.words import Phase, Settings, Stamp, UnitName

SAMPLE = MemorySample(NOW, 40, 119, pressure_percent=2.5)
QUIET = Published(status_at_s=NOW, telemetry_at_s=NOW, level=None)


def signal(number: int) -> Signal:
    return Signal(f"s{number}", "unknown", Proof.NOISE, WORKER, "serve log", "text", NOW)


def outbox(first: int, count: int, sent: int = 0) -> Outbox:
    return Outbox(first, tuple(signal(first + n) for n in range(count)), sent)


# -- status --------------------------------------------------------------------------------------


def test_a_status_says_everything_that_the_node_knows_of_itself() -> None:
    state = head_state(
        member={
            "refused": "replay",
            "units": (
                unit(
                    state=UnitState.EXITED, code=3, signal=9, ordered=True, reason="why", by_hand=True, pid=77
                ),
            ),
            "emptied_generation": 4,
            "fenced_generation": 3,
            "drained_generation": 2,
            "outbox": outbox(5, 2),
            "not_ready": "no vllm",
            "leaving": True,
            "unclean_generation": 6,
            "leaking": True,
            "memory": SAMPLE,
            "baseline_bytes": 50,
            "lowest_bytes": 30,
        }
    )

    assert status_of(state, "shared", "own", "1.2") == MemberStatus(
        node=HEAD,
        instance="a#1",
        seen=Stamp(2, 7),
        heard=((WORKER, "b#1"),),
        intent_seq=3,
        intent_coordinator="a#1",
        refused="replay",
        units=(UnitStatus(UnitName.SERVE, 7, UnitState.EXITED, 3, 9, True, "why", True),),
        swept=True,
        emptied_generation=4,
        fenced_generation=3,
        drained_generation=2,
        report_seq=6,
        shared_digest="shared",
        node_digest="own",
        ready=True,
        not_ready="no vllm",
        leaving=True,
        unclean_generation=6,
        leaking=True,
        available_bytes=40,
        total_bytes=119,
        baseline_bytes=50,
        lowest_bytes=30,
        pressure_percent=2.5,
        version="1.2",
    )


def test_what_is_not_known_is_said_to_be_unknown() -> None:
    state = replace(worker(), peers=(Peer(HEAD),))

    assert status_of(state, "", "", "") == MemberStatus(node=WORKER, instance="b#1", swept=True)


def statuses(turn) -> list[MemberStatus]:
    publish(turn)
    return [c.status for c in turn.commands if isinstance(c, PublishStatus)]


def said(**published) -> tuple[MemberStatus, dict]:
    """Return the level that the head last said, and what it keeps of that."""
    policy = turn_of(head_state()).policy
    level = status_of(head_state(), policy.shared_digest, policy.node_digest, policy.version)
    return level, {"level": level, "status_at_s": NOW, "telemetry_at_s": NOW, **published}


def test_a_status_is_said_at_its_period_and_when_something_else_is_to_be_said() -> None:
    level, before = said()
    quiet = turn_of(replace(head_state(), published=Published(**before)), NOW + 4.999)
    due = turn_of(replace(head_state(), published=Published(**before)), NOW + 5.0)
    same = turn_of(replace(head_state(), published=Published(**before)), NOW + 1.0)
    changed = turn_of(replace(head_state(member={"ready": False}), published=Published(**before)), NOW + 1.0)
    same.news = changed.news = True

    assert statuses(quiet) == []
    assert statuses(due) == [level]
    assert due.state.published.status_at_s == NOW + 5.0
    assert statuses(same) == []
    assert statuses(changed) == [replace(level, ready=False)]
    assert changed.state.published.level == replace(level, ready=False)
    assert min(quiet.wakes) <= NOW + 5.0


def test_a_change_that_is_no_news_waits_for_the_period() -> None:
    _, before = said()
    turn = turn_of(replace(head_state(member={"ready": False}), published=Published(**before)), NOW + 1.0)

    assert statuses(turn) == []
    assert not turn.news


# -- evidence ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "first", "count"), [(1, 5, 3), (5, 5, 3), (6, 6, 2), (7, 7, 1), (8, None, 0), (99, None, 0)]
)
def test_evidence_is_handed_over_from_the_number_that_is_asked_for(asked, first, count) -> None:
    report = reports_from(worker(outbox=outbox(5, 3)), asked)

    assert report == (
        None
        if first is None
        else Report(WORKER, "b#1", first, tuple(signal(first + n) for n in range(count)))
    )


def test_new_evidence_is_sent_once() -> None:
    turn = turn_of(replace(worker(outbox=outbox(5, 3, sent=6)), published=QUIET))

    publish(turn)
    publish(turn)

    assert [c for c in turn.commands if isinstance(c, PublishReport)] == [
        PublishReport(report=Report(WORKER, "b#1", 7, (signal(7),)))
    ]
    assert turn.member.outbox.sent_seq == 7


# -- telemetry -----------------------------------------------------------------------------------


def telemetry(turn) -> list[Telemetry]:
    publish(turn)
    return [c.telemetry for c in turn.commands if isinstance(c, PublishTelemetry)]


def test_the_heads_telemetry_says_phase_progress_and_memory() -> None:
    progress = PhaseSeen(7, Phase.LOADING_WEIGHTS, done=3, total=10)
    state = head_state(Phase.LOADING_WEIGHTS, member={"memory": SAMPLE}, watch={"progress": progress})

    assert telemetry(turn_of(state)) == [
        Telemetry(HEAD, "a#1", Phase.LOADING_WEIGHTS, 7, 40, 119, 2.5, 3, 10, sent_s=NOW)
    ]


def test_a_workers_telemetry_says_what_the_head_said_last() -> None:
    state = worker(intent=intent_of(Stamp(2, 7)))
    heard = replace(state.peers[0], telemetry=Telemetry(HEAD, "a#1", Phase.COMPILING, 7))

    assert telemetry(turn_of(worker())) == [Telemetry(WORKER, "b#1", Phase.IDLE, 0, sent_s=NOW)]
    assert telemetry(turn_of(state)) == [Telemetry(WORKER, "b#1", Phase.FENCING, 7, sent_s=NOW)]
    assert telemetry(turn_of(replace(state, peers=(heard,)))) == [
        Telemetry(WORKER, "b#1", Phase.COMPILING, 7, sent_s=NOW)
    ]


def test_telemetry_is_said_once_a_second_and_only_into_a_session() -> None:
    early = turn_of(replace(head_state(), published=QUIET), NOW + 0.999)
    due = turn_of(replace(head_state(), published=QUIET), NOW + 1.0)
    alone = turn_of(replace(head_state(), published=QUIET, broker=False), NOW + 1.0)

    assert (len(telemetry(early)), len(telemetry(due)), len(telemetry(alone))) == (0, 1, 0)
    assert due.state.published.telemetry_at_s == alone.state.published.telemetry_at_s == NOW + 1.0
    assert min(due.wakes) == NOW + 2.0
    assert min(early.wakes) == NOW + 1.0


# -- the second path -----------------------------------------------------------------------------


def probes(state, now: float) -> list[ProbePeer]:
    turn = turn_of(replace(state, published=QUIET), now)
    publish(turn)
    found = [c for c in turn.commands if isinstance(c, ProbePeer)]
    if found:
        assert not turn.news
        assert (turn.state.peers[0].probing, turn.state.peers[0].probed_at_s) == (True, now)
    return found


@pytest.mark.parametrize(
    ("changes", "status", "after_s", "asks"),
    [
        ({}, {}, 9.999, None),
        ({}, {}, 10.0, ProbePeer(WORKER)),
        ({"probing": True}, {}, 10.0, None),
        ({"probed_at_s": NOW + 8.5}, {}, 10.0, None),
        ({"probed_at_s": NOW + 8.5}, {}, 10.5, ProbePeer(WORKER)),
        ({"will": True}, {}, 1.0, ProbePeer(WORKER)),
        ({"received_seq": 4}, {"report_seq": 5}, 1.0, ProbePeer(WORKER, reports_from=5)),
        ({"received_seq": 5}, {"report_seq": 5}, 1.0, None),
        ({"received_seq": 4, "fresh": False}, {"report_seq": 5}, 1.0, None),
        ({"received_seq": 4, "fresh": False}, {"report_seq": 5}, 10.0, ProbePeer(WORKER)),
    ],
)
def test_a_peer_is_asked_where_it_is_silent_gone_or_has_more_evidence(changes, status, after_s, asks) -> None:
    peer = worker_seen(status_of_worker(**status), **changes)

    found = probes(head_state(peer=peer), NOW + after_s)

    assert found == ([asks] if asks else [])


def test_the_silence_begins_with_the_session() -> None:
    state = head_state(peer=worker_seen(mqtt_at_s=0.0))

    assert probes(replace(state, broker_since_s=NOW), NOW + 9.999) == []
    assert probes(replace(state, broker_since_s=NOW), NOW + 10.0) == [ProbePeer(WORKER)]


def test_a_worker_fetches_no_evidence() -> None:
    state = worker()
    ahead = replace(state.peers[0], status=MemberStatus(HEAD, "a#1", report_seq=9))

    assert probes(replace(state, peers=(ahead,)), NOW + 1.0) == []


def test_the_period_of_asking_is_a_deadline() -> None:
    turn = turn_of(replace(head_state(peer=worker_seen(will=True, probed_at_s=NOW)), published=QUIET), NOW)

    publish(turn)

    assert min(turn.wakes) <= NOW + PROBE_PEER_EVERY_S


# -- incidents -----------------------------------------------------------------------------------


def test_every_turn_of_an_incident_is_told_to_people() -> None:
    turn = turn_of(replace(head_state(), published=QUIET))
    diagnosis = Diagnosis("nccl_timeout", None, WORKER, True, 1.0, "a rank stood still")
    times = Times(detected_s=NOW)
    turn.records += [
        StampAdvanced(Stamp(2, 7)),
        IncidentOpened(4, 7, Phase.SERVING, "spark-b: serve ended"),
        Remedied(4, 7, diagnosis, "relaunch", "it can pass", Settings(), Settings(), 0.0, times),
        IncidentClosed(4, "escalated", "nccl_timeout", 8, 1, times, needs="look at the cable"),
    ]

    publish(turn)

    common = {"node": HEAD, "instance": "a#1", "incident": 4}
    assert [c.notice for c in turn.commands if isinstance(c, PublishIncident)] == [
        IncidentNotice(**common, generation=7, state="open", text="spark-b: serve ended"),
        IncidentNotice(
            **common,
            generation=7,
            state="remedied",
            cause="nccl_timeout",
            text="a rank stood still",
            action="relaunch: it can pass",
        ),
        IncidentNotice(
            **common, generation=8, state="escalated", cause="nccl_timeout", needs="look at the cable"
        ),
    ]
