"""Every event, folded alone: what it changes, and what it leaves as it is."""

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
    worker_state,
)
from sparkd.core import events as ev
from sparkd.core.fold import ESSENTIAL, SWEEP_PAUSE_S, fold
from sparkd.core.messages import Report, Telemetry, UnitState
from sparkd.core.records import MessageDropped, StampAdvanced, UnitChanged
from sparkd.core.state import REPORTS_MAX, Outbox, Peer, Unit
from sparkd.core.turn import Concern
from sparkd.signals.model import MemorySample, Proof, Signal
from sparkd.words import Phase, Settings, Stamp

NEVER = float("-inf")
STARTING = unit(state=UnitState.STARTING)


def after(state, *events, now=NOW, **policy):
    turn = turn_of(state, now, **policy)
    for event in events:
        fold(turn, event)
    return turn


def signal(number: int, **more) -> Signal:
    return Signal(f"s{number}", "unknown", Proof.SUGGESTS, WORKER, "serve log", "text", NOW, **more)


def own(id_: str, cause: str, text: str, node: str = HEAD) -> Signal:
    return Signal(id_, cause, Proof.PROVES, node, "sparkd", text, NOW, 7, fatal=True)


# -- leftovers -----------------------------------------------------------------------------------


def test_leftovers_that_are_gone_are_looked_for_no_more_and_their_generation_was_seen() -> None:
    turn = after(worker_state(swept=False, sweeping=True), ev.LeftoversSwept((3, 9, 5)))

    assert (turn.member.swept, turn.member.sweeping, turn.member.units) == (True, False, ())
    assert turn.state.seen == Stamp(0, 9)


def test_where_nothing_was_left_no_stamp_is_raised() -> None:
    turn = after(worker_state(swept=False), ev.LeftoversSwept(()))

    assert (turn.member.swept, turn.records) == (True, [])


def test_survivors_are_a_unit_that_no_signal_ends() -> None:
    turn = after(worker_state(), ev.LeftoversSwept((3, 9), (11, 12)))
    nameless = after(worker_state(), ev.LeftoversSwept((), (11,)))

    assert turn.member.units == (Unit(SERVE, 9, UnitState.UNKILLABLE, NOW, reason="pids 11, 12"),)
    assert nameless.member.units == (Unit(SERVE, 1, UnitState.UNKILLABLE, NOW, reason="pids 11"),)


# -- the session and the peers -------------------------------------------------------------------


def test_the_session_is_known_with_its_reason_and_since_when() -> None:
    state = after(head_state(), ev.BrokerChanged(False, "refused")).state

    assert (state.broker, state.broker_why, state.broker_since_s) == (False, "refused", NOW)


def report(first: int, count: int, **more) -> Report:
    made = Report(WORKER, "b#1", first, tuple(signal(first + n) for n in range(count)))
    return replace(made, **more)


@pytest.mark.parametrize(
    ("received", "first", "count", "path", "then", "new"),
    [
        (0, 1, 3, ev.Path.MQTT, 3, [1, 2, 3]),
        (2, 1, 3, ev.Path.MQTT, 3, [3]),
        (3, 1, 3, ev.Path.MQTT, 3, []),
        (5, 1, 3, ev.Path.MQTT, 5, []),
        (3, 4, 1, ev.Path.MQTT, 4, [4]),
        (2, 4, 1, ev.Path.MQTT, 2, []),
        (2, 4, 2, ev.Path.HTTP, 5, [4, 5]),
    ],
)
def test_evidence_is_taken_once_and_a_gap_is_fetched(received, first, count, *, path, then, new) -> None:
    state = head_state(peer=worker_seen(received_seq=received))

    turn = after(state, ev.ReportReceived(report(first, count), path))

    assert turn.state.peers[0].received_seq == then
    assert [s.id for s in turn.lead.recent] == [f"s{n}" for n in new]


def test_evidence_of_another_instance_of_nobody_or_for_a_worker_is_not_taken() -> None:
    other = after(head_state(), ev.ReportReceived(report(1, 1, instance="b#0"), ev.Path.MQTT))
    unknown = after(head_state(peer=Peer(WORKER)), ev.ReportReceived(report(1, 1), ev.Path.MQTT))
    nobody = after(head_state(), ev.ReportReceived(report(1, 1, node="spark-z"), ev.Path.MQTT))
    at_worker = after(
        worker_state(), ev.ReportReceived(report(1, 1, node=HEAD, instance="a#1"), ev.Path.MQTT)
    )

    assert other.records == unknown.records == [MessageDropped("report", "other_instance", WORKER)]
    assert (nobody.records, at_worker.records) == ([], [])
    assert all(not t.lead.recent for t in (other, unknown, nobody))
    assert at_worker.state.peers[0].received_seq == 0


def test_telemetry_is_a_word_of_the_peer() -> None:
    said = Telemetry(WORKER, "b#1", Phase.SERVING, 7)
    old = head_state(peer=worker_seen(heard_at_s=NOW - 5, mqtt_at_s=NOW - 5))
    silent = head_state(peer=worker_seen(heard_at_s=NOW - 10, mqtt_at_s=NOW - 10))

    turn = after(old, ev.TelemetryReceived(said))

    assert turn.state.peers == (worker_seen(telemetry=said),)
    assert not turn.news
    assert after(silent, ev.TelemetryReceived(said)).news


@pytest.mark.parametrize("changes", [{"instance": "b#0"}, {"node": "spark-z"}])
def test_telemetry_of_another_instance_is_none(changes) -> None:
    said = replace(Telemetry(WORKER, "b#1", Phase.SERVING, 7), **changes)

    assert after(head_state(), ev.TelemetryReceived(said), now=NOW + 1).state == head_state()
    assert after(head_state(peer=Peer(WORKER)), ev.TelemetryReceived(said)).state.peers == (Peer(WORKER),)


def test_a_will_makes_a_probe_due_and_proves_nothing() -> None:
    asked = head_state(peer=worker_seen(probed_at_s=NOW))

    assert after(asked, ev.WillReceived(WORKER, "b#1")).state.peers == (worker_seen(will=True),)
    assert after(asked, ev.WillReceived(WORKER, "b#0")).state == asked
    assert after(asked, ev.WillReceived("spark-z", "b#1")).state == asked
    nothing = head_state(peer=Peer(WORKER))
    assert after(nothing, ev.WillReceived(WORKER, "b#1")).state == nothing


def test_a_word_after_the_will_ends_the_doubt() -> None:
    doubted = head_state(peer=worker_seen(will=True))

    spoke = after(doubted, ev.TelemetryReceived(Telemetry(WORKER, "b#1", Phase.SERVING, 7)), now=NOW + 1)
    said = after(doubted, ev.StatusReceived(worker_seen().status, ev.Path.MQTT), now=NOW + 1)

    assert (spoke.state.peers[0].will, spoke.news) == (False, True)
    assert (said.state.peers[0].will, said.news) == (False, True)


def test_a_probe_that_came_back_may_be_followed_by_another_after_its_period() -> None:
    asked = head_state(peer=worker_seen(probing=True, will=True, probed_at_s=NOW - 1))

    refused = after(asked, ev.PeerProbed(WORKER, False, "refused"))
    reached = after(asked, ev.PeerProbed(WORKER, True, "ignored"))

    assert refused.state.peers == (worker_seen(will=True, probed_at_s=NOW - 1, probe_reason="refused"),)
    assert reached.state.peers == (worker_seen(probed_at_s=NOW - 1),)
    assert (refused.news, reached.news) == (True, True)
    assert refused.wakes[Concern.SAY] == NOW + 1
    assert after(asked, ev.PeerProbed("spark-z", True)).state == asked


# -- units ---------------------------------------------------------------------------------------


def one(made: Unit, event, state=None, **policy):
    turn = after(state or head_state(member={"units": (made,)}), event, **policy)
    return turn, turn.member.units[0]


def test_a_unit_that_starts_runs_with_its_pid() -> None:
    turn, now = one(STARTING, ev.UnitStarted(SERVE, 7, 77))

    assert now == replace(STARTING, state=UnitState.RUNNING, pid=77, since_s=NOW)
    assert turn.records == [UnitChanged(SERVE, 7, UnitState.RUNNING, "pid 77")]


@pytest.mark.parametrize(
    ("made", "event"),
    [
        (unit(state=UnitState.STOPPING), ev.UnitStarted(SERVE, 7, 77)),
        (STARTING, ev.UnitStarted(SERVE, 6, 77)),
        (STARTING, ev.UnitStarted(RAY, 7, 77)),
        (unit(state=UnitState.GONE, signal=9), ev.UnitExited(SERVE, 7, 1)),
        (unit(), ev.UnitExited(SERVE, 6, 1)),
        (unit(state=UnitState.GONE), ev.UnitEmptied(SERVE, 7)),
        (unit(), ev.UnitEmptied(SERVE, 6)),
        (unit(state=UnitState.GONE), ev.UnitUnkillable(SERVE, 7, (5,))),
        (unit(), ev.UnitUnkillable(SERVE, 6, (5,))),
        (unit(), ev.UnitStartFailed(SERVE, 6, "no such file")),
        (unit(state=UnitState.GONE), ev.UnitStartFailed(SERVE, 7, "no such file")),
        (unit(ordered=True), ev.UnitStoppedByHand(SERVE, 7)),
        (unit(), ev.UnitStoppedByHand(SERVE, 6)),
    ],
)
def test_news_of_another_unit_or_of_one_that_is_over_changes_nothing(made, event) -> None:
    turn, now = one(made, event)

    assert (now, turn.records, turn.news) == (made, [], False)


def test_an_end_that_is_told_late_still_says_how() -> None:
    _, now = one(unit(state=UnitState.GONE), ev.UnitExited(SERVE, 7, 137))
    assert (now.state, now.code) == (UnitState.GONE, 137)


@pytest.mark.parametrize(
    ("before", "event", "state", "how"),
    [
        (UnitState.RUNNING, ev.UnitExited(SERVE, 7, 1), UnitState.EXITED, "exit code 1"),
        (UnitState.RUNNING, ev.UnitExited(SERVE, 7, 0), UnitState.EXITED, "exit code 0"),
        (UnitState.STARTING, ev.UnitExited(SERVE, 7, None, 9), UnitState.EXITED, "signal 9"),
        (UnitState.STOPPING, ev.UnitExited(SERVE, 7, None, 15), UnitState.STOPPING, "signal 15"),
    ],
)
def test_the_end_of_a_units_root_is_kept_with_how(before, event, state, how) -> None:
    turn, now = one(unit(state=before), event)

    assert now == replace(unit(), state=state, code=event.code, signal=event.signal, since_s=NOW)
    assert turn.records == [UnitChanged(SERVE, 7, state, how)]


def test_a_tree_without_processes_is_gone() -> None:
    turn, now = one(unit(state=UnitState.STOPPING, code=1), ev.UnitEmptied(SERVE, 7))

    assert now == replace(unit(code=1), state=UnitState.GONE, since_s=NOW)
    assert turn.records == [UnitChanged(SERVE, 7, UnitState.GONE, "no process left")]


def test_a_tree_that_survives_sigkill_is_said_with_its_pids() -> None:
    turn, now = one(unit(state=UnitState.STOPPING), ev.UnitUnkillable(SERVE, 7, (5, 6)))

    text = "pids 5, 6 survive SIGKILL"
    assert now == replace(unit(), state=UnitState.UNKILLABLE, since_s=NOW, reason=text)
    assert turn.records == [UnitChanged(SERVE, 7, UnitState.UNKILLABLE, text)]


def test_a_unit_stopped_by_hand_was_ordered_by_a_person() -> None:
    turn, now = one(unit(), ev.UnitStoppedByHand(SERVE, 7))

    assert now == unit(ordered=True, by_hand=True).__class__(
        SERVE, 7, UnitState.RUNNING, NOW, ordered=True, by_hand=True
    )
    assert turn.records == [UnitChanged(SERVE, 7, UnitState.RUNNING, "stopped by hand")]


@pytest.mark.parametrize(
    ("reason", "cause"),
    [
        ("no such file", "broken_install"),
        ("[Errno 2] sparkd-serve.service is not there: type sudo sparkctl install", "broken_install"),
        ("[Errno 8] sparkd-serve.service: its start ended with exit-code (203)", "broken_install"),
        ("[Errno 5] sparkd-serve.service: /opt/vllm: No such file or directory", "broken_install"),
        ("[Errno 13] Permission denied: '/var/log/sparkd/7'", "permission_denied"),
        ("[Errno 28] No space left on device", "disk_full"),
        ("[Errno 11] Resource temporarily unavailable", "unknown"),
        ("[Errno 16] an earlier serve is not empty", "unknown"),
        ("[Errno 17] serve of generation 7 has been started before", "unknown"),
        ("[Errno 5] sparkd-serve.service: its start ended with timeout (0)", "unknown"),
        ("the bus did not answer", "unknown"),
    ],
)
def test_a_unit_that_could_not_be_started_may_live_and_its_error_says_what_it_can(reason, cause) -> None:
    state = head_state(Phase.FORMING, member={"units": (STARTING,)})

    turn, now = one(STARTING, ev.UnitStartFailed(SERVE, 7, reason), state)

    assert now == replace(STARTING, state=UnitState.EXITED, reason=reason, since_s=NOW)
    assert turn.records[0] == UnitChanged(SERVE, 7, UnitState.EXITED, reason)
    proof = own("observed_start_failed", cause, f"serve could not be started: {reason}")
    assert turn.lead.recent == (proof,)
    assert turn.lead.phase is Phase.FAILING


@pytest.mark.parametrize("state", [UnitState.STOPPING, UnitState.UNKILLABLE])
def test_a_start_that_fails_while_it_is_being_ended_is_still_being_ended(state) -> None:
    turn, now = one(unit(state=state), ev.UnitStartFailed(SERVE, 7, "x"))

    assert now == unit(state=state)
    assert turn.lead.recent == (own("observed_start_failed", "unknown", "serve could not be started: x"),)


@pytest.mark.parametrize(
    ("about", "failed"),
    [((), True), ((SERVE, 7), True), ((SERVE, 6), False), ((RAY, 7), False)],
)
def test_a_start_without_an_outcome_is_one_that_failed(about, failed) -> None:
    """One of an earlier generation whose deadline passes later says nothing of this one's."""
    state = head_state(Phase.FORMING, member={"units": (STARTING,)})

    turn, now = one(STARTING, ev.CommandFailed("StartUnit", "TimeoutError: ", *about), state)

    text = "serve could not be started: TimeoutError: "
    assert (now.state is UnitState.EXITED) is failed
    assert turn.lead.recent == ((own("observed_start_failed", "unknown", text),) if failed else ())
    assert (turn.lead.phase is Phase.FAILING) is failed


def test_a_start_that_came_up_is_not_undone_by_its_deadline() -> None:
    assert one(unit(), ev.CommandFailed("StartUnit", "TimeoutError: ", SERVE, 7))[1] == unit()


# -- what was dead before anything was ended -----------------------------------------------------


def surveyed(names: tuple[str, ...], *, name=RAY, state=None, **of_unit):
    made = unit(name, **{"established": True, **of_unit})
    begun = state or head_state(Phase.FAILING, member={"units": (made,)})
    return after(begun, ev.UnitSurveyed(name, 7, names)).lead.recent


def test_what_is_missing_of_ray_before_its_end_did_not_end_by_our_hand() -> None:
    dead = "of generation 7 was dead before sparkd ended anything"

    assert surveyed(("raylet", "gcs_server", "python")) == ()
    assert surveyed(("gcs_server",)) == (own("observed_raylet_dead", "ray_node_died", f"raylet {dead}"),)
    assert surveyed(("raylet",)) == (
        own("observed_gcs_server_dead", "ray_gcs_unreachable", f"gcs_server {dead}"),
    )
    assert [s.id for s in surveyed(())] == [f"observed_{name}_dead" for name, _, _ in ESSENTIAL]


def test_ray_that_never_came_up_misses_nothing_and_serve_has_no_such_processes() -> None:
    assert surveyed((), established=False) == ()
    assert surveyed((), name=SERVE) == ()
    assert surveyed((), state=head_state(Phase.FAILING)) == ()


def test_the_head_process_of_ray_runs_on_the_head_alone() -> None:
    state = worker_state(units=(unit(RAY, established=True),))

    kept = after(state, ev.UnitSurveyed(RAY, 7, ())).member.outbox.signals

    assert [s.id for s in kept] == ["observed_raylet_dead"]
    assert kept[0].node == WORKER


# -- evidence ------------------------------------------------------------------------------------


def test_a_worker_keeps_so_much_evidence_and_numbers_it_on() -> None:
    full = Outbox(5, tuple(signal(n) for n in range(REPORTS_MAX)), sent_seq=9)

    few = after(worker_state(), ev.SignalSeen(signal(1))).member.outbox
    many = after(worker_state(outbox=full), ev.SignalSeen(signal(999))).member.outbox

    assert few == Outbox(1, (signal(1),))
    assert many == Outbox(6, (*full.signals[1:], signal(999)), sent_seq=9)
    assert (few.last_seq, many.last_seq, Outbox().last_seq) == (1, 5 + REPORTS_MAX, 0)


def test_the_head_notes_evidence_at_once() -> None:
    turn = after(head_state(), ev.SignalSeen(signal(1)))

    assert (turn.lead.recent, turn.member.outbox) == ((signal(1),), Outbox())


def test_what_was_read_to_the_end_is_never_taken_back() -> None:
    asked = {"draining_generation": 9}
    known = after(worker_state(drained_generation=3, **asked), ev.SourcesDrained(7))
    newer = after(worker_state(drained_generation=9, **asked), ev.SourcesDrained(7))
    assert (known.member.drained_generation, newer.member.drained_generation) == (7, 9)


def test_an_answer_of_before_another_unit_of_the_generation_was_started_does_not_count() -> None:
    over = after(worker_state(drained_generation=6, draining_generation=6), ev.SourcesDrained(7))
    assert over.member.drained_generation == 6


@pytest.mark.parametrize(
    ("ran", "ran_at_s", "counts"),
    [(True, 400.0, True), (True, 600.0, False), (True, None, False), (False, 400.0, False)],
)
def test_a_guards_trip_of_before_the_daemon_counts_where_it_was_of_what_ran(ran, ran_at_s, counts) -> None:
    trip = Signal("memory_guard_killed", "memory_guard_kill", Proof.PROVES, HEAD, "sparkd-guard", "it", 500.0)
    of_now = replace(trip, fatal=True)
    state = head_state(member={"ran": ran, "ran_at_s": ran_at_s})

    assert (trip in after(state, ev.SignalSeen(trip)).lead.recent) is counts
    assert of_now in after(state, ev.SignalSeen(of_now)).lead.recent


# -- memory and model ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "available", "lowest"),
    [
        ({"ran": True, "lowest_bytes": 50}, 40, 40),
        ({"ran": True, "lowest_bytes": 30}, 40, 30),
        ({"ran": False, "lowest_bytes": 50}, 40, 50),
        ({"ran": True, "lowest_bytes": None}, 40, None),
    ],
)
def test_the_least_memory_counts_while_something_runs(before, available, lowest) -> None:
    sample = MemorySample(NOW, available, 119)

    turn = after(worker_state(**before), ev.MemoryObserved(sample))

    assert (turn.member.memory, turn.member.lowest_bytes, turn.news) == (sample, lowest, False)


def test_memory_is_news_while_a_fence_waits_for_it() -> None:
    event = ev.MemoryObserved(MemorySample(NOW, 40, 119))

    assert after(worker_state(emptied_generation=7, fenced_generation=6), event).news
    assert not after(worker_state(emptied_generation=7, fenced_generation=7), event).news


@pytest.mark.parametrize(
    ("before", "event", "then", "news"),
    [
        ({}, ev.ModelChecked(True), (True, None), True),
        ({"ready": True}, ev.ModelChecked(True, "ignored"), (True, None), False),
        ({"ready": True}, ev.ModelChecked(False, "shard 2"), (False, "shard 2"), True),
        (
            {"ready": False, "not_ready": "shard 2"},
            ev.ModelChecked(False, "shard 2"),
            (False, "shard 2"),
            False,
        ),
        (
            {"ready": False, "not_ready": "shard 2"},
            ev.ModelChecked(False, "shard 3"),
            (False, "shard 3"),
            True,
        ),
    ],
)
def test_the_models_check_is_news_where_it_says_something_else(before, event, then, news) -> None:
    turn = after(worker_state(**before), event)

    assert ((turn.member.ready, turn.member.not_ready), turn.news) == (then, news)


# -- the operator --------------------------------------------------------------------------------

WANTS = ("target", "asked_target", "pause_wanted", "asked_pause", "restart_wanted", "stop_wanted", "shutdown")


def wants(lead) -> dict:
    return {name: getattr(lead, name) for name in WANTS}


@pytest.mark.parametrize(
    ("verb", "then"),
    [
        (ev.Verb.START, (True, True, False, False, True, False, False)),
        (ev.Verb.STOP, (False, False, False, False, False, True, True)),
        (ev.Verb.PAUSE, (False, None, True, True, False, False, True)),
        (ev.Verb.RESUME, (False, None, False, False, True, False, True)),
        (ev.Verb.SHUTDOWN, (False, None, False, False, False, True, True)),
    ],
)
def test_what_a_person_asks_is_what_the_head_wants(verb, then) -> None:
    asked = {"target": False, "shutdown": True, "pause_wanted": verb is ev.Verb.RESUME}

    turn = after(head_state(Phase.WAITING, **asked), ev.OperatorAsked(verb))

    assert wants(turn.lead) == dict(zip(WANTS, then, strict=True))


@pytest.mark.parametrize("verb", list(ev.Verb))
def test_a_start_or_resume_forgives_what_went_before(verb) -> None:
    held = {
        "needs": "reboot",
        "spent": (("nccl_timeout", NOW),),
        "streak": 2,
        "retrying": True,
        "retry_at_s": NOW,
        "unclean": 2,
        "failed": (Settings(),),
        "climbed": True,
        "leaks_forgiven": False,
    }
    forgiven = {
        "needs": "",
        "spent": (),
        "streak": 0,
        "retrying": False,
        "retry_at_s": None,
        "unclean": 0,
        "failed": (),
        "climbed": False,
        "leaks_forgiven": True,
    }

    lead = after(head_state(Phase.ESCALATED, **held), ev.OperatorAsked(verb)).lead

    expected = forgiven if verb in (ev.Verb.START, ev.Verb.RESUME) else held
    assert {name: getattr(lead, name) for name in held} == expected


@pytest.mark.parametrize("verb", list(ev.Verb))
def test_who_only_observes_obeys_the_end_of_its_daemon_alone(verb) -> None:
    state = head_state()
    turn = after(state, ev.OperatorAsked(verb), observe_only=True)
    assert (turn.state != state) is (verb is ev.Verb.SHUTDOWN)


def test_a_worker_is_only_told_to_shut_down_and_only_once() -> None:
    leaving = after(worker_state(), ev.OperatorAsked(ev.Verb.SHUTDOWN))
    again = after(leaving.state, ev.OperatorAsked(ev.Verb.SHUTDOWN), now=NOW + 5)
    stop = after(worker_state(), ev.OperatorAsked(ev.Verb.STOP))

    assert (leaving.member.leaving, leaving.state.leaving_since_s) == (True, NOW)
    assert again.state == leaving.state
    assert stop.state == worker_state()


# -- our own faults ------------------------------------------------------------------------------


def test_our_own_stall_begins_every_silence_anew() -> None:
    old = worker_seen(heard_at_s=NOW - 90, mqtt_at_s=NOW - 95)
    waiting = {"outstanding_since_s": NOW - 80, "canary_sent_at_s": NOW - 70, "progress_at_s": 1.0}

    state = after(head_state(peer=old, watch=waiting), ev.LoopStalled(30.0)).state

    assert state.peers == (worker_seen(),)
    assert state.broker_since_s == NOW
    watch = state.coordinator.watch
    assert (watch.progress_at_s, watch.membership_ok_at_s, watch.token_at_s) == (NOW, NOW, NOW)
    assert (watch.outstanding_since_s, watch.canary_sent_at_s) == (NOW, NOW)
    assert state.coordinator.phase_since_s == NOW - 50.0 + 30.0


def test_who_was_never_heard_is_not_heard_by_a_stall() -> None:
    by_http = worker_seen(mqtt_at_s=NEVER, heard_at_s=NOW - 90)

    assert after(head_state(peer=Peer(WORKER)), ev.LoopStalled(30.0)).state.peers == (Peer(WORKER),)
    assert after(head_state(peer=by_http), ev.LoopStalled(30.0)).state.peers == (
        worker_seen(mqtt_at_s=NEVER),
    )
    at_worker = after(worker_state(), ev.LoopStalled(30.0), now=NOW + 40)
    assert at_worker.state.peers[0].mqtt_at_s == NOW + 40
    idle = after(head_state(), ev.LoopStalled(1.0)).lead.watch
    assert (idle.outstanding_since_s, idle.canary_sent_at_s) == (None, None)


@pytest.mark.parametrize(
    ("command", "field", "before", "then"),
    [
        ("ProbeMembership", "probing_membership", True, False),
        ("ProbeEngine", "probing_engine", True, False),
        ("SendCanary", "canary_sent_at_s", NOW, None),
    ],
)
def test_a_probe_that_broke_may_be_tried_again(command, field, before, then) -> None:
    turn = after(head_state(watch={field: before}), ev.CommandFailed(command, "deadline"))

    assert getattr(turn.lead.watch, field) is then
    assert turn.records == [MessageDropped("command", "deadline", command)]
    at_worker = after(worker_state(), ev.CommandFailed(command, "deadline"))
    assert at_worker.state == worker_state()


def test_other_commands_that_broke_are_tried_again_or_taken_for_done() -> None:
    probing = head_state(peer=worker_seen(probing=True))
    sweeping = worker_state(swept=False, sweeping=True)
    draining = worker_state(draining_generation=7)

    assert after(probing, ev.CommandFailed("ProbePeer", "x")).state.peers == (worker_seen(),)
    swept = after(sweeping, ev.CommandFailed("SweepLeftovers", "x")).member
    assert (swept.sweeping, swept.sweep_after_s, swept.swept) == (False, NOW + SWEEP_PAUSE_S, False)
    assert after(draining, ev.CommandFailed("DrainSources", "x")).member.drained_generation == 7
    other = after(head_state(), ev.CommandFailed("PublishStatus", "x"))
    assert (other.state, other.records) == (head_state(), [MessageDropped("command", "x", "PublishStatus")])


def test_statuses_and_intents_are_folded_by_who_judges_them() -> None:
    told = after(head_state(), ev.StatusReceived(status_of_worker(ready=False), ev.Path.MQTT))
    ordered = after(worker_state(), ev.IntentReceived(intent_of()))

    assert told.state.peers[0].status.ready is False
    assert ordered.member.intent == intent_of()
    assert ordered.records == [StampAdvanced(Stamp(2, 7))]
    assert after(head_state(), ev.TimerFired()).state == head_state()
