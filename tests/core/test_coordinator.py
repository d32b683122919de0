"""The head's judgement, phase by phase; whole starts and failures stand in tests/sim."""

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
    worker_seen,
)
from core.given import unit as made
from sparkd.core import coordinator as c
from sparkd.core import fence
from sparkd.core import stopping as stopping_
from sparkd.core.commands import PublishIntent
from sparkd.core.events import EngineObserved, MembershipObserved, RayNode
from sparkd.core.messages import UnitState, UnitStatus
from sparkd.core.records import (
    IncidentClosed,
    IncidentOpened,
    PhaseChanged,
    SettingsAdopted,
    StampAdvanced,
    Times,
    WaitingFor,
)
from sparkd.core.state import Failure, Incident, Peer, Published
from sparkd.words import ENGINE, LIVE, Backend, Phase, Settings, Stamp

APPLIED = {"intent_seq": 3, "intent_coordinator": "a#1"}
BACK = {**APPLIED, "emptied_generation": 7, "fenced_generation": 7}
OWN_BACK = {"emptied_generation": 7, "fenced_generation": 7}
OVER_RAY = intent_of(wanted=((HEAD, (RAY, SERVE)), (WORKER, (RAY,))), phase=Phase.SERVING)
NODES = (RayNode("192.168.200.12", True, True, "1"), RayNode("192.168.200.13", True, False, "2"))
HEALTHY = {"membership": MembershipObserved(7, NODES), "engine": EngineObserved(7, True, True, 0, 0, 1.0)}
CAREFUL = Settings(max_num_seqs=4)


def decided(phase, *, now=NOW, status=None, policy=None, state=None, **more):
    """Return the turn after one decision of the head; the worker says *status*."""
    if status is not None:
        more["peer"] = worker_seen(status_of_worker(**status))
    turn = turn_of(state or head_state(phase, **more), now, **(policy or {}))
    c.decide(turn)
    return turn


def moves(turn) -> list[tuple[Phase, str]]:
    return [(r.after, r.reason) for r in turn.records if isinstance(r, PhaseChanged)]


def serving(**more):
    more.setdefault("intent", OVER_RAY)
    return decided(Phase.SERVING, **{"watch": {**HEALTHY, "canary_ok": True}, **more})


# -- the epoch -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ours", "seen", "then", "highest"), [(2, 2, 2, 2), (2, 3, 4, 4), (3, 2, 3, 2), (0, 3, 0, 3)]
)
def test_an_epoch_beyond_ours_makes_a_newer_one(ours, seen, then, highest) -> None:
    turn = decided(Phase.IDLE, epoch=ours, seen=Stamp(seen, 7), target=False)

    assert turn.lead.epoch == then
    assert turn.state.seen == Stamp(highest, 7)


def test_before_the_first_intent_the_epoch_is_one_more_than_the_highest() -> None:
    first = decided(Phase.WAITING, epoch=0, seen=Stamp(5, 7), intent=None)
    known = decided(Phase.WAITING, epoch=5, seen=Stamp(5, 7), intent=None)

    assert (first.lead.epoch, first.state.seen) == (6, Stamp(6, 7))
    assert (known.lead.epoch, known.state.seen) == (5, Stamp(5, 7))
    assert first.lead.intent.stamp == Stamp(6, 7)


# -- what a person asks --------------------------------------------------------------------------

RESTING = (Phase.STOPPING, Phase.STOPPED)


@pytest.mark.parametrize("phase", [p for p in Phase if p is not Phase.FAILING])
def test_a_stop_goes_before_what_the_phase_would_do(phase) -> None:
    turn = turn_of(head_state(phase, target=False, stop_wanted=True))
    c._obey(turn)

    assert moves(turn) == ([] if phase in RESTING else [(Phase.STOPPING, "asked to stop")])


def test_an_idle_head_that_nobody_asked_to_stop_stays_idle() -> None:
    assert moves(decided(Phase.IDLE, target=False)) == []
    assert moves(decided(Phase.IDLE, target=True, status={}))[0] == (Phase.WAITING, "start wanted")


@pytest.mark.parametrize("phase", list(Phase))
def test_a_pause_takes_effect_at_safe_points_and_remembers_where(phase) -> None:
    turn = turn_of(head_state(phase, pause_wanted=True))
    c._obey(turn)

    if phase in (Phase.IDLE, Phase.WAITING, Phase.BACKING_OFF, Phase.SERVING):
        assert moves(turn) == [(Phase.PAUSED, "asked to pause")]
        assert turn.lead.paused_from is phase
    else:
        assert moves(turn) == []


@pytest.mark.parametrize("phase", [Phase.IDLE, Phase.WAITING, Phase.BACKING_OFF, Phase.SERVING])
def test_a_resume_goes_back_to_where_the_pause_came_from(phase) -> None:
    paused = head_state(
        Phase.PAUSED, paused_from=phase, watch={"token_at_s": 1.0}, target=phase is not Phase.IDLE
    )
    turn = turn_of(paused)
    c._paused(turn)

    assert moves(turn) == [(phase, "resumed")]
    assert turn.lead.watch.token_at_s == NOW
    held = turn_of(head_state(Phase.PAUSED, pause_wanted=True, watch={"token_at_s": 1.0}))
    c._paused(held)
    assert (moves(held), held.lead.watch.token_at_s) == ([], 1.0)


def test_what_was_stopped_by_hand_during_a_pause_is_started_anew() -> None:
    gone = made(state=UnitState.GONE, by_hand=True, ordered=True)

    turn = turn_of(head_state(Phase.PAUSED, paused_from=Phase.SERVING, member={"units": (gone,)}))
    c._paused(turn)

    assert moves(turn) == [(Phase.WAITING, "resumed")]


BY_HAND = {"units": (made(by_hand=True, ordered=True),)}


@pytest.mark.parametrize("phase", LIVE)
def test_a_unit_stopped_by_hand_is_a_pause_and_no_failure(phase) -> None:
    turn = turn_of(head_state(phase, member=BY_HAND))
    c._obey(turn)

    after = Phase.PAUSED if phase is Phase.SERVING else Phase.FENCING
    assert moves(turn) == [(after, "spark-a's serve was stopped by hand")]
    assert (turn.lead.pause_wanted, turn.lead.asked_pause) == (True, True)
    if phase is Phase.SERVING:
        assert turn.lead.paused_from is Phase.WAITING


FAILED = {
    "incident": Incident(number=4, opened_at_s=1.0),
    "failure": Failure(7, Phase.SERVING, Times(detected_s=NOW)),
}


@pytest.mark.parametrize("phase", [Phase.WAITING, Phase.BACKING_OFF])
def test_a_stop_by_hand_that_is_told_late_closes_the_incident_that_it_had_opened(phase) -> None:
    """By a daemon that was away when a person stopped its unit. Without an incident it is history."""
    told = turn_of(head_state(phase, member=BY_HAND, **FAILED))
    c._obey(told)

    assert moves(told) == [(Phase.PAUSED, "asked to pause")]
    assert (told.lead.pause_wanted, told.lead.asked_pause, told.lead.incident) == (True, True, None)
    closed = [record for record in told.records if isinstance(record, IncidentClosed)]
    assert [(record.incident, record.outcome) for record in closed] == [(4, "stopped")]

    resumed = turn_of(head_state(phase, member=BY_HAND))
    c._obey(resumed)
    assert moves(resumed) == []


def test_a_stop_by_hand_that_is_told_while_the_next_generation_waits_for_its_fence_pauses_that() -> None:
    told = turn_of(head_state(Phase.FENCING, member=BY_HAND, **FAILED))
    c._obey(told)
    assert (told.lead.pause_wanted, told.lead.incident, moves(told)) == (True, None, [])
    c._launch(told)
    assert [phase for phase, _ in moves(told)] == [Phase.WAITING], "and nothing is launched"


@pytest.mark.parametrize("phase", [Phase.WAITING, Phase.FENCING])
def test_after_the_resume_an_incident_about_something_else_does_not_pause_again(phase) -> None:
    """A boot that ended uncleanly opens one when the next launch is admitted."""
    resumed = turn_of(head_state(phase, member=BY_HAND, incident=FAILED["incident"]))
    c._obey(resumed)
    assert (resumed.lead.pause_wanted, moves(resumed)) == (False, [])


@pytest.mark.parametrize(
    ("status", "fresh", "said"),
    [
        (
            {"units": (UnitStatus(RAY, 7, UnitState.RUNNING, by_hand=True),)},
            True,
            "spark-b's ray was stopped by hand",
        ),
        ({"units": (UnitStatus(RAY, 7, UnitState.RUNNING, by_hand=True),)}, False, None),
        ({"units": (UnitStatus(RAY, 6, UnitState.GONE, by_hand=True),)}, True, None),
        ({"units": (UnitStatus(RAY, 7, UnitState.RUNNING),)}, True, None),
        ({"leaving": True}, True, "spark-b is leaving"),
        ({"leaving": True}, False, None),
    ],
)
def test_what_happens_on_the_worker_counts_where_it_is_fresh(status, fresh, said) -> None:
    turn = turn_of(head_state(peer=worker_seen(status_of_worker(**status), fresh=fresh)))
    c._obey(turn)

    assert [reason for _, reason in moves(turn)] == ([said] if said else [])


def test_a_node_that_leaves_matters_only_while_a_generation_lives() -> None:
    turn = turn_of(head_state(Phase.BACKING_OFF, peer=worker_seen(status_of_worker(leaving=True))))
    c._obey(turn)

    assert moves(turn) == []


def test_a_peer_of_whom_nothing_is_known_stops_and_leaves_nothing() -> None:
    turn = turn_of(head_state(peer=Peer(WORKER, fresh=True)))
    c._obey(turn)
    c._note_peers(turn)

    assert moves(turn) == []


def test_a_start_that_was_asked_for_is_forgotten_when_it_was_obeyed() -> None:
    assert not serving(restart_wanted=True).lead.restart_wanted


# -- what ends a generation ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("unit", "why"),
    [
        (made(state=UnitState.EXITED, code=1), "spark-a: serve ended (exit code 1)"),
        (made(state=UnitState.EXITED, signal=9), "spark-a: serve ended (killed with signal 9)"),
        (made(state=UnitState.GONE), "spark-a: serve ended (how is not known)"),
        (made(state=UnitState.STOPPING, code=0), "spark-a: serve ended (exit code 0)"),
        (made(state=UnitState.STOPPING, signal=15), "spark-a: serve ended (killed with signal 15)"),
        (made(state=UnitState.STOPPING), None),
        (made(), None),
        (made(state=UnitState.EXITED, generation=6, code=1), None),
        (made(state=UnitState.EXITED, code=1, ordered=True), None),
    ],
)
def test_an_end_that_nobody_ordered_is_a_failure(unit, why) -> None:
    turn = serving(member={"units": (unit,)})

    assert moves(turn) == ([] if why is None else [(Phase.FAILING, why)])
    if why is not None:
        (exit_,) = turn.lead.failure.exits
        assert (exit_.node, exit_.unit, exit_.generation, exit_.at_s) == (HEAD, SERVE, 7, NOW)
        assert (exit_.code, exit_.signal, exit_.ordered) == (unit.code, unit.signal, False)


def test_the_workers_end_counts_where_its_word_is_fresh_and_an_intent_named_it() -> None:
    gone = {"units": (UnitStatus(RAY, 7, UnitState.EXITED, code=1),)}

    assert moves(serving(status=gone)) == [(Phase.FAILING, "spark-b: ray ended (exit code 1)")]
    stale = serving(peer=worker_seen(status_of_worker(**gone), fresh=False))
    assert moves(stale) == []
    other = turn_of(head_state(peer=worker_seen(status_of_worker(instance="b#2", swept=False, **gone))))
    c._note_peers(other)
    assert moves(other) == []
    taken_over = turn_of(head_state(intent=None, peer=worker_seen(status_of_worker(**gone))))
    c._note_peers(taken_over)
    assert moves(taken_over) == [(Phase.FAILING, "spark-b: ray ended (exit code 1)")]


def test_a_daemon_that_came_back_without_its_processes_ends_the_generation() -> None:
    turn = serving(status={"instance": "b#2", "units": ()})

    assert [phase for phase, _ in moves(turn)] == [Phase.FAILING]
    (signal,) = turn.lead.failure.signals
    assert (signal.id, signal.cause, signal.node) == ("observed_daemon_lost", "peer_lost", WORKER)
    assert signal.quote == "sparkd of spark-b was started anew and its part of generation 7 does not run"


@pytest.mark.parametrize("phase", [Phase.WAITING, Phase.FENCING, Phase.BACKING_OFF, Phase.STOPPING])
def test_where_no_generation_lives_nothing_ends_one(phase) -> None:
    turn = turn_of(head_state(phase, member={"units": (made(state=UnitState.EXITED, code=1),)}))
    c._note_peers(turn)

    assert (moves(turn), turn.lead.failure) == ([], None)


def test_ends_that_are_told_while_failing_are_kept_as_evidence() -> None:
    failure = Failure(7, Phase.SERVING, Times(detected_s=NOW))
    turn = turn_of(
        head_state(Phase.FAILING, failure=failure, member={"units": (made(state=UnitState.EXITED, code=1),)})
    )
    c._note_peers(turn)

    assert [exit_.code for exit_ in turn.lead.failure.exits] == [1]


# -- waiting -------------------------------------------------------------------------------------


def test_what_is_missing_is_said_once() -> None:
    turn = decided(Phase.WAITING, status={"ready": None})

    reason = "spark-b: checking the model's files"
    assert (turn.lead.waiting, turn.records) == ((reason,), [WaitingFor((reason,))])
    assert decided(Phase.WAITING, state=turn.state).records == []


def test_with_every_precondition_there_everything_is_fenced_first() -> None:
    turn = decided(Phase.WAITING)

    assert moves(turn) == [(Phase.FENCING, "every precondition is there")]


def test_after_a_pause_what_was_wanted_is_wanted_no_more() -> None:
    turn = decided(Phase.WAITING, intent=OVER_RAY, status={"ready": None})
    fenced = decided(Phase.WAITING, status={"ready": None})

    assert (turn.lead.intent.wants_units, turn.lead.intent.grace_s) == (False, 10.0)
    assert fenced.commands == []


STUCK = {"units": (made(state=UnitState.UNKILLABLE),)}
REBOOT = (Phase.ESCALATED, "processes survive SIGKILL on spark-a")


@pytest.mark.parametrize("phase", [Phase.WAITING, Phase.FENCING])
def test_beside_what_survives_sigkill_nothing_is_started(phase) -> None:
    turn = decided(phase, member=STUCK)

    assert moves(turn) == [REBOOT]
    assert turn.lead.needs == "reboot spark-a; it goes on by itself then"
    theirs = {"units": (UnitStatus(SERVE, 7, UnitState.UNKILLABLE),)}
    assert (
        decided(phase, member=STUCK, status=theirs).lead.needs
        == "reboot spark-a, spark-b; it goes on by itself then"
    )


def test_memory_that_is_lost_with_every_start_needs_a_reboot_unless_a_person_wants_one_more() -> None:
    leaks = {"leaking": True}

    turn = decided(Phase.WAITING, member=leaks, status={"leaking": True})

    assert moves(turn) == [(Phase.ESCALATED, "memory is lost with every start on spark-a, spark-b")]
    opened, closed = (
        next(r for r in turn.records if isinstance(r, k)) for k in (IncidentOpened, IncidentClosed)
    )
    assert (opened.incident, closed.outcome) == (closed.incident, "escalated")
    assert closed.needs == "reboot spark-a, spark-b; it goes on by itself then"
    assert turn.lead.needs == "reboot spark-a, spark-b; it goes on by itself then"
    assert moves(decided(Phase.WAITING, member=leaks, leaks_forgiven=True))[0][0] is Phase.FENCING


# -- fencing -------------------------------------------------------------------------------------


def test_a_fenced_cluster_is_launched() -> None:
    turn = decided(Phase.FENCING, status=BACK, member=OWN_BACK)

    assert moves(turn)[0] == (Phase.FORMING, "every node is fenced")
    assert turn.lead.generation == 8


def test_a_pause_or_a_precondition_that_went_away_holds_a_launch() -> None:
    paused = decided(Phase.FENCING, status=BACK, member=OWN_BACK, pause_wanted=True)
    missing = decided(Phase.FENCING, status={**BACK, "ready": None}, member=OWN_BACK)
    early = decided(Phase.FENCING, status={**APPLIED, "ready": None}, member=OWN_BACK)

    assert moves(paused)[0] == (Phase.WAITING, "everything is fenced, a pause is wanted")
    assert moves(missing) == moves(early) == [(Phase.WAITING, "a precondition went away")]


def test_whose_answer_is_missing_is_told_and_the_fence_is_demanded() -> None:
    turn = decided(Phase.FENCING, intent=OVER_RAY, member=OWN_BACK)

    assert turn.lead.waiting == ("spark-b: has not applied the fence yet",)
    assert (turn.lead.intent.wants_units, turn.lead.intent.grace_s) == (False, 10.0)


# -- serving -------------------------------------------------------------------------------------


def test_a_row_of_failures_is_over_when_a_generation_has_served_for_the_cooldown() -> None:
    before = serving(streak=2, now=NOW + 549.999, watch=late(549.999))
    after = serving(streak=2, now=NOW + 550.0, watch=late(550.0))

    assert (before.lead.streak, before.lead.proven) == (2, None)
    assert (after.lead.streak, after.lead.proven) == (0, Settings())
    assert min(before.wakes) <= NOW + 550.0


def late(after_s, **more):
    """Return what a healthy engine shows so much later."""
    at = NOW + after_s
    return {
        **HEALTHY,
        "membership_ok_at_s": at,
        "token_at_s": at,
        "canary_done_at_s": at,
        "canary_ok": True,
        **more,
    }


CLIMBS = {"climb_after_s": 100.0, "climb_idle_s": 30.0}


def climbed(after_s, *, policy=None, watch=None, **lead):
    state = {"settings": CAREFUL, "proven": CAREFUL, "verified": CAREFUL, **lead}
    known = late(after_s, **{"busy_at_s": NOW - 500.0, **(watch or {})})
    return serving(now=NOW + after_s, policy={**CLIMBS, **(policy or {})}, watch=known, **state)


def test_degraded_settings_are_left_in_a_quiet_moment() -> None:
    reason = "climbing back: nobody has asked for 30 s, the asked settings are tried"

    assert moves(climbed(49.999)) == []
    turn = climbed(50.0)
    assert moves(turn)[0] == (Phase.FENCING, reason)
    lead = turn.lead
    assert (lead.settings, lead.trial, lead.failed, lead.proven, lead.climbed) == (
        Settings(), True, (), CAREFUL, True,
    )  # fmt: skip
    assert SettingsAdopted(Settings(), reason) in turn.records


@pytest.mark.parametrize(
    "changes",
    [
        {"policy": {"climb_after_s": 0.0}},
        {"policy": {"climb_after_s": -1.0}},
        {"settings": Settings()},
        {"proven": None},
        {"climbed": True},
        {"watch": {"engine": None}},
        {"watch": {"engine": EngineObserved(7, True, True, None, 0)}},
        {"watch": {"outstanding_since_s": NOW}},
        {"watch": {"busy_at_s": NOW + 170.001}},
    ],
)
def test_nobody_climbs_without_being_asked_proven_and_quiet(changes) -> None:
    turn = climbed(200.0, **changes)

    assert Phase.FENCING not in [phase for phase, _ in moves(turn)]


def test_quiet_is_counted_from_who_asked_last() -> None:
    assert moves(climbed(200.0, watch={"busy_at_s": NOW + 170.0}))[0][0] is Phase.FENCING


@pytest.mark.parametrize(
    ("lead", "proven"),
    [
        ({"verified": CAREFUL}, CAREFUL),
        ({"verified": None}, None),
        ({"verified": Settings()}, None),
        ({"verified": CAREFUL, "proven": Settings(max_num_seqs=2)}, Settings(max_num_seqs=2)),
    ],
)
def test_a_trial_remembers_what_served(lead, proven) -> None:
    turn = turn_of(head_state(Phase.STOPPED, settings=CAREFUL, failed=(CAREFUL,), **lead))
    c._stopped(turn)

    assert moves(turn) == [(Phase.WAITING, "start asked")]
    assert (turn.lead.settings, turn.lead.trial, turn.lead.failed) == (Settings(), True, ())
    assert turn.lead.proven == proven
    assert turn.records[0] == SettingsAdopted(
        Settings(), "started anew by the operator: the asked settings are tried once"
    )


def test_where_the_asked_settings_are_in_force_nothing_is_tried() -> None:
    turn = turn_of(head_state(Phase.STOPPED, failed=(CAREFUL,)))
    c._stopped(turn)

    assert (turn.lead.trial, turn.lead.failed, len(turn.records)) == (False, (CAREFUL,), 1)


# -- backing off, escalated ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("until", "after_s", "over"), [(5.0, 4.999, False), (5.0, 5.0, True), (None, 0.0, True)]
)
def test_a_wait_has_an_end(until, after_s, over) -> None:
    turn = turn_of(
        head_state(Phase.BACKING_OFF, backoff_until_s=None if until is None else NOW + until), NOW + after_s
    )
    c._backing_off(turn)

    assert moves(turn) == ([(Phase.WAITING, "the wait is over")] if over else [])
    assert (turn.lead.backoff_until_s is None) is over


def escalated(now=NOW, **lead):
    turn = turn_of(head_state(Phase.ESCALATED, **{"intent": OVER_RAY, **lead}), now)
    c._escalated(turn)
    return turn


def test_nothing_runs_while_escalated_and_a_person_can_start_again() -> None:
    turn = escalated(restart_wanted=True, retry_at_s=NOW, settings=CAREFUL)

    assert (turn.lead.intent.wants_units, turn.lead.intent.grace_s) == (False, 0.5)
    assert moves(turn) == [(Phase.WAITING, "asked to start again")]
    assert (turn.lead.retry_at_s, turn.lead.restart_wanted, turn.lead.retrying) == (None, False, False)
    assert (turn.lead.settings, turn.lead.trial) == (Settings(), True)


def test_what_may_pass_is_tried_again_at_its_time() -> None:
    early, due, never = escalated(retry_at_s=NOW + 1), escalated(NOW + 1, retry_at_s=NOW + 1), escalated()

    assert (moves(early), min(early.wakes)) == ([], NOW + 1)
    assert moves(due) == [(Phase.WAITING, "it may have passed: tried again")]
    assert (due.lead.retry_at_s, due.lead.retrying) == (None, True)
    assert moves(never) == []


def test_a_head_without_an_epoch_fences_only_with_everybody_present() -> None:
    present = escalated(epoch=0, intent=None)
    absent = escalated(epoch=0, intent=None, peer=Peer(WORKER))

    assert (present.lead.epoch, present.lead.intent.wants_units) == (3, False)
    assert (absent.lead.epoch, absent.lead.intent) == (0, None)


# -- stopping ------------------------------------------------------------------------------------


def stopping(own, theirs, *, after_s=-50.0, backend=Backend.RAY, status=None, **lead):
    """Return the turn so long after the stop began, with so many units on both nodes."""
    told = tuple(UnitStatus(name, 7, UnitState.RUNNING) for name in theirs)
    said = status_of_worker(units=told, **(status or {}))
    peer = lead.pop("peer", worker_seen(said, mqtt_at_s=NOW + 200.0, heard_at_s=NOW + 200.0))
    member = {"units": tuple(made(name) for name in own), **lead.pop("member", {})}
    state = head_state(
        Phase.STOPPING, member=member, peer=peer, intent=OVER_RAY, incident=Incident(4, NOW), **lead
    )
    turn = turn_of(state, NOW + after_s, backend=backend)
    stopping_.stop(turn)
    return turn


@pytest.mark.parametrize(
    ("backend", "own", "theirs", "stays"),
    [
        (Backend.RAY, (RAY, SERVE), (RAY,), {HEAD: (RAY,), WORKER: (RAY,)}),
        (Backend.RAY, (RAY,), (RAY,), {WORKER: (RAY,)}),
        (Backend.RAY, (), (RAY,), {}),
        (Backend.RAY, (SERVE,), (RAY,), {WORKER: (RAY,)}),
        (Backend.RAY, (RAY, SERVE), (), {HEAD: (RAY,)}),
        (Backend.RAY, (RAY,), (RAY, SERVE), {HEAD: (RAY,), WORKER: (RAY,)}),
        (Backend.RAY, (), (), {}),
        (Backend.MP, (SERVE,), (SERVE,), {WORKER: (SERVE,)}),
        (Backend.MP, (), (SERVE,), {}),
    ],
)
def test_down_in_order_serve_the_heads_ray_the_workers(backend, own, theirs, stays) -> None:
    wanted = dict(stopping(own, theirs, backend=backend).lead.intent.wanted)

    assert {node: units for node, units in wanted.items() if units} == stays


def test_an_older_generation_and_what_is_gone_hold_nothing_up() -> None:
    old = stopping((), (), member={"units": (made(RAY, generation=6), made(RAY, UnitState.GONE))})
    told = {"units": (UnitStatus(RAY, 7, UnitState.GONE), UnitStatus(RAY, 6, UnitState.RUNNING))}
    turn = turn_of(
        head_state(Phase.STOPPING, member={"units": (made(RAY),)}, peer=worker_seen(status_of_worker(**told)))
    )

    assert dict(old.lead.intent.wanted) == {HEAD: (), WORKER: ()}
    assert stopping_._still_wanted(turn) == {WORKER: ()}


def test_a_node_that_does_not_answer_is_not_waited_for_for_ever() -> None:
    """Three stages of 10 + 6 s in order, since 50 s ago; then everything at once, and one more stage."""
    in_order, at_once = (
        stopping((RAY, SERVE), (RAY,), after_s=-2.001),
        stopping((RAY, SERVE), (RAY,), after_s=-2.0),
    )
    waits, over = stopping((RAY,), (), after_s=13.999), stopping((RAY,), (), after_s=14.0)

    assert in_order.lead.intent.wants_units
    assert not at_once.lead.intent.wants_units
    assert (moves(waits), moves(over)) == (
        [],
        [(Phase.STOPPED, "stopped, but not known of spark-a, spark-b")],
    )
    assert at_once.lead.intent.grace_s == 10.0


def test_stopped_is_said_when_every_node_is_empty() -> None:
    turn = stopping((), (), member=OWN_BACK, status=BACK)
    asks = head_state(
        Phase.STOPPING, member=OWN_BACK, peer=worker_seen(status_of_worker(**BACK)), stop_wanted=True,
        waiting=("x",), incident=Incident(4, NOW, relaunches=1, causes=("cuda_oom",)),
    )  # fmt: skip
    done = turn_of(asks)
    stopping_.stop(done)

    assert moves(turn) == []  # the level in force was another one: it has to be applied first
    assert moves(done) == [(Phase.STOPPED, "stopped as asked")]
    assert (done.lead.stop_wanted, done.lead.waiting, done.lead.needs) == (False, (), "")
    assert done.records[0] == IncidentClosed(4, "stopped", "cuda_oom", 7, 1, Times(detected_s=NOW))


def test_what_survives_sigkill_is_named_when_stopped() -> None:
    turn = stopping((), (), after_s=14.0, member={"units": (made(state=UnitState.UNKILLABLE),)})

    assert turn.lead.needs == "reboot spark-a: processes survive SIGKILL"
    theirs = {"units": (UnitStatus(SERVE, 7, UnitState.UNKILLABLE),)}
    both = stopping((), (), after_s=14.0, member=STUCK, peer=worker_seen(status_of_worker(**theirs)))
    assert both.lead.needs == "reboot spark-a, spark-b: processes survive SIGKILL"


def test_a_daemon_that_never_ordered_anything_is_stopped_when_leftovers_were_looked_for() -> None:
    def begun(swept):
        state = head_state(
            Phase.STOPPING, epoch=0, intent=None, member={"swept": swept, "intent": None}, peer=Peer(WORKER)
        )
        turn = turn_of(state)
        stopping_.stop(turn)
        return turn

    assert moves(begun(swept=True)) == [(Phase.STOPPED, "stopped as asked")]
    assert moves(begun(swept=False)) == []
    assert begun(swept=True).commands == []


def test_a_shutdown_leaves_when_everything_is_stopped() -> None:
    def stopped(**lead):
        since = lead.pop("since", None)
        turn = turn_of(replace(head_state(Phase.STOPPED, target=False, **lead), leaving_since_s=since))
        c._stopped(turn)
        return turn.state.leaving_since_s

    assert stopped(shutdown=True) == NOW
    assert stopped(shutdown=True, since=NOW - 5) == NOW - 5
    assert stopped() is None


# -- one function a phase ------------------------------------------------------------------------


def test_every_phase_has_its_judgement() -> None:
    assert set(c.PHASES) == set(Phase)
    assert {c.PHASES[phase] for phase in ENGINE} == {c._starting}


def test_moves_that_follow_from_one_another_are_made_in_one_step() -> None:
    turn = decided(Phase.IDLE, status=BACK, member=OWN_BACK)

    assert [phase for phase, _ in moves(turn)] == [Phase.WAITING, Phase.FENCING, Phase.FORMING]


# -- saying it again -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "after_s", "broker", "again"),
    [
        ({}, 0.999, True, False),
        ({}, 1.0, True, True),
        ({}, 1.0, False, False),
        (APPLIED, 9.0, True, False),
        ({"refused": "plan_differs"}, 4.999, True, False),
        ({"refused": "plan_differs"}, 5.0, True, True),
    ],
)
def test_an_intent_is_said_again_to_whoever_has_not_applied_it(status, after_s, broker, again) -> None:
    """Who refuses is told at the pace of its own word: the reason may go away."""
    begun = head_state(peer=worker_seen(status_of_worker(**status)))
    state = replace(begun, broker=broker, published=Published(intent_at_s=NOW, intent_seq=3))
    turn = turn_of(state, NOW + after_s)

    fence.resend(turn)

    assert turn.commands == ([PublishIntent(intent=intent_of())] if again else [])
    assert turn.state.published == (
        Published(intent_at_s=NOW + after_s, intent_seq=3) if again else state.published
    )


def test_without_an_intent_nothing_is_said_again() -> None:
    turn = turn_of(head_state(intent=None))

    fence.resend(turn)

    assert turn.commands == []


def test_the_first_epoch_is_noted() -> None:
    turn = decided(Phase.WAITING, epoch=0, seen=Stamp(0, 0), intent=None)

    assert StampAdvanced(Stamp(1, 0)) in turn.records
