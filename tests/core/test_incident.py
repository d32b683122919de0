"""From the first signal of trouble to the decision, and what of it is kept; stories stand in tests/sim."""

from __future__ import annotations

from dataclasses import replace

import pytest

from core.given import (
    HEAD,
    NOW,
    POLICY,
    SERVE,
    WORKER,
    head_state,
    intent_of,
    status_of_worker,
    turn_of,
    worker_seen,
)
from sparkd.core import incident as i
from sparkd.core import keeping, unclean
from sparkd.core.decision import Case
from sparkd.core.events import PhaseSeen
from sparkd.core.records import (
    IncidentClosed,
    IncidentOpened,
    Judged,
    Kept,
    KeptChanged,
    PhaseChanged,
    Remedied,
    SettingsAdopted,
    Times,
)
from sparkd.core.remedy import Action, Facts, NodeMemory, Remedy
from sparkd.core.state import CAUSES_MAX, FAILED_MAX, SIGNALS_MAX, Failure, Incident, Peer
from sparkd.signals.model import (
    Curve,
    Diagnosis,
    Evidence,
    Heard,
    MemorySample,
    Proof,
    Quantity,
    Signal,
    UnitExit,
    Work,
)
from sparkd.words import GIB, LIVE, EngineMemory, Phase, Settings, Sizes, Stamp

TIMES = Times(detected_s=NOW - 1, fence_ordered_s=NOW - 1)
FAILURE = Failure(7, Phase.SERVING, TIMES)
CAREFUL, LOW = Settings(max_num_seqs=4), Settings(gpu_memory_utilization=0.8)
EXIT = UnitExit(WORKER, SERVE, 7, NOW, code=1)
READ = {"drained_generation": 7, "report_seq": 0}


def signal(number: int = 0, **more) -> Signal:
    return Signal(f"s{number}", "nccl_timeout", Proof.SUGGESTS, WORKER, "serve log", "text", NOW, **more)


def kinds(turn, kind) -> list:
    return [record for record in turn.records if isinstance(record, kind)]


# -- signals -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("generation", "kept"), [(7, True), (0, True), (6, False), (8, False), (1, False)])
def test_a_signal_counts_for_the_running_generation_or_where_none_is_known(generation, kept) -> None:
    turn = turn_of(head_state())

    i.note_signal(turn, signal(generation=generation, fatal=True))

    assert len(turn.lead.recent) == kept
    assert turn.lead.phase is (Phase.FAILING if kept else Phase.SERVING)


def test_what_was_read_before_the_engine_was_taken_over_is_evidence_of_its_end() -> None:
    """A new daemon reads on at once; which generation it will lead, it learns only then."""
    turn = turn_of(head_state(Phase.PAUSED, epoch=0, generation=0))
    for generation in (6, 7):
        i.note_signal(turn, signal(generation=generation))
    turn.set_lead(epoch=3, generation=7, phase=Phase.SERVING)
    i.fail(turn, "spark-a: serve ended (exit code 1)")

    assert [each.generation for each in turn.lead.failure.signals] == [7]


def test_only_a_fatal_signal_ends_a_generation_and_only_one_that_lives() -> None:
    mere, fenced = turn_of(head_state()), turn_of(head_state(Phase.FENCING))

    i.note_signal(mere, signal())
    i.note_signal(fenced, signal(fatal=True))

    assert (mere.lead.phase, mere.lead.failure) == (Phase.SERVING, None)
    assert (fenced.lead.phase, fenced.lead.failure) == (Phase.FENCING, None)


@pytest.mark.parametrize(("node", "why"), [(WORKER, "spark-b: s0"), ("", "the cluster: s0")])
def test_a_failure_is_told_with_the_node_of_its_signal(node, why) -> None:
    turn = turn_of(head_state())

    i.note_signal(turn, replace(signal(fatal=True), node=node))

    assert [record.reason for record in kinds(turn, PhaseChanged)] == [why]


def test_of_the_newest_signals_so_many_are_kept_and_of_a_failure_the_first() -> None:
    turn = turn_of(head_state())
    for number in range(SIGNALS_MAX + 3):
        i.note_signal(turn, signal(number))
    assert [s.id for s in turn.lead.recent] == [f"s{n}" for n in range(3, SIGNALS_MAX + 3)]

    i.fail(turn, "why")
    assert [s.id for s in turn.lead.failure.signals] == [f"s{n}" for n in range(35, SIGNALS_MAX + 3)]
    for number in range(100, 140):
        i.note_signal(turn, signal(number))
    ids = [s.id for s in turn.lead.failure.signals]
    assert (len(ids), ids[32], ids[-1]) == (SIGNALS_MAX, "s100", "s131")


@pytest.mark.parametrize("phase", list(Phase))
def test_what_the_head_observes_is_a_failure_where_a_generation_lives(phase) -> None:
    turn = turn_of(head_state(phase))

    i.observe_failure(turn, "observed_x", "engine_hang", "no token", node=WORKER)

    if phase not in LIVE:
        assert (turn.lead.failure, turn.lead.recent) == (None, ())
        return
    expected = Signal(
        "observed_x",
        "engine_hang",
        Proof.PROVES,
        WORKER,
        "sparkd",
        "no token",
        NOW,
        7,
        fatal=True,
        phase=phase,
    )
    assert turn.lead.failure.signals == (expected,)


# -- ends ----------------------------------------------------------------------------------------


def test_an_end_is_noted_once_a_unit_and_of_its_own_generation() -> None:
    turn = turn_of(head_state(Phase.FAILING, failure=replace(FAILURE, exits=(EXIT,))))
    other, older = replace(EXIT, node=HEAD), replace(EXIT, generation=6, node=HEAD)

    for exit_ in (replace(EXIT, code=9), older, other, other):
        i.note_exit(turn, exit_)

    assert turn.lead.failure.exits == (EXIT, other)


@pytest.mark.parametrize(
    ("exit_", "phase", "why"),
    [
        (EXIT, Phase.SERVING, "spark-b: serve ended (exit code 1)"),
        (replace(EXIT, code=None, signal=9), Phase.FORMING, "spark-b: serve ended (killed with signal 9)"),
        (replace(EXIT, ordered=True), Phase.SERVING, None),
        (replace(EXIT, generation=6), Phase.SERVING, None),
        (EXIT, Phase.STOPPING, None),
    ],
)
def test_an_end_that_nobody_ordered_fails_a_generation_that_lives(exit_, phase, why) -> None:
    turn = turn_of(head_state(phase))

    i.note_exit(turn, exit_)

    assert [record.reason for record in kinds(turn, PhaseChanged)] == ([why] if why else [])
    assert (turn.lead.failure.exits if turn.lead.failure else ()) == ((exit_,) if why else ())


# -- the failure ---------------------------------------------------------------------------------


def test_a_failure_opens_an_incident_and_orders_the_fence_in_the_same_step() -> None:
    turn = turn_of(
        head_state(
            streak=1, incidents=4, recent=(signal(),), watch={"said": EngineMemory(9)}, seen=Stamp(2, 7)
        )
    )

    i.fail(turn, "why", (EXIT,))

    lead = turn.lead
    assert lead.failure == Failure(
        7, Phase.SERVING, Times(detected_s=NOW, fence_ordered_s=NOW), (signal(),), (EXIT,), 9, NOW - 50
    )
    assert (lead.streak, lead.incidents) == (2, 5)
    assert lead.incident == Incident(5, NOW, failures=1)
    assert turn.records == [
        IncidentOpened(5, 7, Phase.SERVING, "why"),
        PhaseChanged(7, Phase.SERVING, Phase.FAILING, "why", 50.0),
    ]
    assert not lead.intent.wants_units


def test_another_failure_within_an_incident_is_counted_in_it() -> None:
    runs = intent_of(wanted=((HEAD, (SERVE,)), (WORKER, (SERVE,))))
    turn = turn_of(head_state(incident=Incident(5, NOW - 9, failures=2), incidents=5, intent=runs))

    i.fail(turn, "why")

    assert turn.lead.incident == Incident(5, NOW - 9, failures=3)
    assert (kinds(turn, IncidentOpened), turn.lead.incidents) == ([], 5)
    assert turn.commands[0].intent.grace_s == 0.5


def failing(*, now=NOW, member=None, status=None, peer=None, policy=None, failure=FAILURE, **lead):
    known = peer or worker_seen(status_of_worker(**{**READ, **(status or {})}))
    state = head_state(
        Phase.FAILING,
        member={"drained_generation": 7, **(member or {})},
        peer=known,
        failure=failure,
        **{"incident": Incident(5, NOW - 1, failures=1), **lead},
    )
    turn = turn_of(state, now, **(policy or {}))
    i.failing(turn)
    return turn


@pytest.mark.parametrize(
    ("member", "peer", "read"),
    [
        ({}, worker_seen(status_of_worker(**READ)), True),
        ({"drained_generation": 6}, worker_seen(status_of_worker(**READ)), False),
        ({"drained_generation": 8}, worker_seen(status_of_worker(**{**READ, "drained_generation": 8})), True),
        ({}, worker_seen(status_of_worker(**{**READ, "drained_generation": 6})), False),
        ({}, worker_seen(status_of_worker(**{**READ, "report_seq": 3}), received_seq=2), False),
        ({}, worker_seen(status_of_worker(**{**READ, "report_seq": 3}), received_seq=3), True),
        ({}, Peer(WORKER), False),
    ],
)
def test_the_decision_falls_when_all_is_read_at_the_latest_at_the_deadline(member, peer, read) -> None:
    early = failing(now=NOW + 0.999, member=member, peer=peer)
    late = failing(now=NOW + 1.0, member=member, peer=peer)

    assert bool(kinds(early, Judged)) is read
    assert len(kinds(late, Judged)) == 1
    assert read or min(early.wakes) <= NOW + 1.0


def test_without_a_failure_or_an_incident_nothing_is_decided() -> None:
    assert failing(failure=None).records == []
    assert failing(incident=None).records == []


def test_when_the_fence_was_answered_is_noted_once() -> None:
    answered = {"intent_seq": 3, "intent_coordinator": "a#1", "emptied_generation": 7}
    own = {"emptied_generation": 7}

    def noted(status, member, failure=FAILURE):
        state = head_state(
            Phase.BACKING_OFF, failure=failure, member=member, peer=worker_seen(status_of_worker(**status))
        )
        turn = turn_of(state)
        i.note_fence_times(turn)
        return turn.lead.failure.times if turn.lead.failure else None

    back = {**answered, "fenced_generation": 7}
    own_back = {**own, "fenced_generation": 7}
    assert noted({}, own) == TIMES
    assert noted(answered, own) == replace(TIMES, emptied_s=NOW)
    assert noted(back, own_back) == replace(TIMES, emptied_s=NOW, fenced_s=NOW)
    before = replace(FAILURE, times=replace(TIMES, emptied_s=1.0, fenced_s=2.0))
    assert noted(back, own_back, before) == before.times
    assert noted(back, own_back, None) is None


# -- what a decision uses ------------------------------------------------------------------------


def test_a_case_is_everything_that_a_decision_uses() -> None:
    watch = {
        "said": EngineMemory(1, 3, 4, 5, Sizes(checkpoint_bytes=6, graphs_bytes=7)),
        "loading_available_bytes": 2,
        "worked_at_s": NOW - 8,
    }
    member = {
        "memory": MemorySample(NOW, 40, 119),
        "baseline_bytes": 50,
        "lowest_bytes": 30,
        "drained_generation": 7,
    }
    theirs = {**READ, "total_bytes": 120, "baseline_bytes": 51, "lowest_bytes": 31}
    turn = failing(
        member=member,
        status=theirs,
        watch=watch,
        incident=Incident(5, NOW, failures=2, causes=("nccl_timeout",)),
        streak=3,
        settings=CAREFUL,
        spent=(("nccl_timeout", NOW - 5),),
        failed=(Settings(),),
        trial=True,
        proven=LOW,
        retrying=True,
        failure=replace(FAILURE, signals=(signal(),), exits=(EXIT,), kv_cache_bytes=9),
    )

    (judged,) = kinds(turn, Judged)
    assert judged == Judged(
        5,
        Case(
            evidence=Evidence(
                signals=(signal(),),
                exits=(EXIT,),
                phase=Phase.SERVING,
                nodes=(HEAD, WORKER),
                head=HEAD,
                kv_cache_bytes=9,
                fence_at_s=NOW - 1,
                works=(Work(HEAD, "sparkd", NOW - 8),),
                steps=(Work(HEAD, "sparkd", 0.0),),
                worked_at_s=NOW - 8,
                alive_at_s=NOW - 8,
                heard=(Heard(WORKER, "sparkd", 0.0, NOW),),
                order_error_s=0.25,
                memory=(
                    Curve(HEAD, 119, POLICY.guard_floor_bytes, (), 30),
                    Curve(WORKER, 120, POLICY.guard_floor_bytes, (), 31),
                ),
                spread=True,
                on_ray=True,
            ),
            facts=Facts(
                settings=CAREFUL,
                failures=3,
                spent=(("nccl_timeout", NOW - 5),),
                kv_cache_bytes=1,
                total_bytes=119,
                causes=("nccl_timeout",),
                baseline_bytes=50,
                lowest_available_bytes=30,
                request_kv_bytes=5,
                request_tokens=4,
                weights_bytes=3,
                loading_available_bytes=2,
                failed=(Settings(),),
                nodes=(NodeMemory(HEAD, 119, 50, 30), NodeMemory(WORKER, 120, 51, 31)),
                sizes=Sizes(checkpoint_bytes=6, graphs_bytes=7),
            ),
            generation=7,
            at_s=NOW,
            trial=True,
            proven=LOW,
            retrying=True,
        ),
        turn.policy,
    )


def test_an_engine_that_was_never_seen_at_work_did_not_work() -> None:
    """The clock of its silences, which our own stall begins anew, is no work."""
    (judged,) = kinds(failing(watch={"token_at_s": NOW - 5}), Judged)

    assert judged.case.evidence.works == ()


def test_what_is_unknown_of_the_memory_stays_unknown() -> None:
    case = i.case_of(turn_of(head_state(peer=Peer(WORKER))), Evidence(), 2)

    assert case.facts.total_bytes is None
    assert case.facts.nodes == (NodeMemory(HEAD),)
    assert (case.facts.failures, case.facts.causes) == (2, ())


def test_failures_count_within_the_incident_or_in_a_row() -> None:
    def counted(**lead):
        (judged,) = kinds(failing(**lead), Judged)
        return judged.case.facts.failures

    assert counted(incident=Incident(5, NOW, failures=4), streak=2) == 4
    assert counted(incident=Incident(5, NOW, failures=1), streak=2) == 2


@pytest.mark.parametrize(
    ("failed_in", "shown", "reached"),
    [
        (Phase.LOADING_WEIGHTS, Phase.PROFILING, Phase.PROFILING),
        (Phase.PROFILING, Phase.LOADING_WEIGHTS, Phase.PROFILING),
        (Phase.FORMING, Phase.PROFILING, Phase.FORMING),
        (Phase.SERVING, Phase.PROFILING, Phase.SERVING),
        (Phase.PROFILING, None, Phase.PROFILING),
    ],
)
def test_the_phase_is_the_furthest_that_its_last_lines_show(failed_in, shown, reached) -> None:
    watch = {"progress": PhaseSeen(7, shown)}

    (judged,) = kinds(failing(failure=replace(FAILURE, phase=failed_in), watch=watch), Judged)
    (plain,) = kinds(failing(failure=replace(FAILURE, phase=failed_in)), Judged)

    assert (judged.case.evidence.phase, plain.case.evidence.phase) == (reached, failed_in)


# -- what follows --------------------------------------------------------------------------------

TRANSIENT = Diagnosis("nccl_timeout", Phase.SERVING, WORKER, True, 1.0, "a rank stood still")
MEMORY = Diagnosis(
    "ray_oom_kill", Phase.SERVING, WORKER, True, 1.0, "killed", quantities=(Quantity("x", 1.0),)
)


def applied(diagnosis, chosen, *, policy=None, **lead):
    state = head_state(
        Phase.FAILING,
        **{"failure": FAILURE, "incident": Incident(5, NOW - 1, failures=1, causes=("cuda_oom",)), **lead},
    )
    turn = turn_of(state, **(policy or {}))
    i._apply(turn, diagnosis, chosen)
    return turn


def test_an_unchanged_relaunch_waits_and_is_paid_for() -> None:
    turn = applied(TRANSIENT, Remedy(Action.RELAUNCH, Settings(), "it can pass", 12.5), trial=True)

    lead, times = turn.lead, replace(TIMES, decided_s=NOW)
    assert turn.records == [
        Remedied(5, 7, TRANSIENT, Action.RELAUNCH, "it can pass", Settings(), Settings(), 12.5, times),
        PhaseChanged(7, Phase.FAILING, Phase.BACKING_OFF, "nccl_timeout: it can pass", 50.0),
    ]
    assert (lead.spent, lead.backoff_until_s) == ((("nccl_timeout", NOW),), NOW + 12.5)
    assert lead.failure == replace(FAILURE, times=times)
    assert lead.incident == Incident(
        5,
        NOW - 1,
        failures=1,
        causes=("cuda_oom", "nccl_timeout"),
        diagnosis=TRANSIENT,
        remedy="it can pass",
        times=times,
    )
    assert (lead.trial, lead.failed, lead.settings) == (True, (), Settings())


@pytest.mark.parametrize(
    ("memory", "proven", "failed", "then"),
    [
        (True, Settings(), (Settings(),), None),
        (True, LOW, (Settings(),), LOW),
        (False, Settings(), (), Settings()),
    ],
)
def test_settings_that_failed_for_memory_are_given_up(memory, proven, failed, then) -> None:
    turn = applied(MEMORY, Remedy(Action.RELAUNCH, CAREFUL, "less", memory=memory), trial=True, proven=proven)

    lead = turn.lead
    assert (lead.settings, lead.trial, lead.failed, lead.proven) == (CAREFUL, False, failed, then)
    assert kinds(turn, SettingsAdopted) == [SettingsAdopted(CAREFUL, "less")]
    (remedied,) = kinds(turn, Remedied)
    assert (remedied.settings_before, remedied.settings_after) == (Settings(), CAREFUL)


def test_settings_that_stay_are_not_given_up() -> None:
    turn = applied(MEMORY, Remedy(Action.RELAUNCH, Settings(), "again", memory=True), trial=True)

    assert (turn.lead.failed, turn.lead.trial, kinds(turn, SettingsAdopted)) == ((), True, [])


def test_so_many_causes_and_failed_settings_are_kept_the_newest() -> None:
    old = tuple(f"c{n}" for n in range(CAUSES_MAX))
    failed = tuple(Settings(max_num_seqs=n) for n in range(FAILED_MAX))

    turn = applied(
        MEMORY,
        Remedy(Action.RELAUNCH, CAREFUL, "less", memory=True),
        incident=Incident(5, NOW, causes=old),
        failed=failed,
    )

    assert turn.lead.incident.causes == (*old[1:], "ray_oom_kill")
    assert turn.lead.failed == (*failed[1:], Settings())


@pytest.mark.parametrize(
    ("diagnosis", "memory", "retry"),
    [
        (TRANSIENT, False, True),
        (TRANSIENT, True, False),
        (replace(TRANSIENT, cause="weights_missing_or_corrupt"), False, False),
        (replace(TRANSIENT, cause="unknown"), False, True),
    ],
)
def test_an_escalation_is_tried_again_where_time_may_end_it(diagnosis, memory, retry) -> None:
    turn = applied(
        diagnosis, Remedy(Action.ESCALATE, Settings(), "gave up", needs="a person", memory=memory), trial=True
    )

    lead = turn.lead
    needs = "a person" if retry else "a person; then: sparkctl start"
    assert (lead.phase, lead.needs, lead.incident, lead.failure) == (Phase.ESCALATED, needs, None, None)
    assert lead.retry_at_s == (NOW + 3600.0 if retry else None)
    assert (lead.spent, lead.backoff_until_s, lead.trial) == ((), None, False)
    assert turn.records[-1] == PhaseChanged(7, Phase.FAILING, Phase.ESCALATED, "gave up", 50.0)
    (closed,) = kinds(turn, IncidentClosed)
    assert (closed.outcome, closed.needs, closed.cause) == ("escalated", needs, diagnosis.cause)


def test_an_escalation_needs_at_least_its_reason_and_may_never_be_retried() -> None:
    turn = turn_of(head_state(Phase.WAITING, backoff_until_s=NOW + 5), escalated_retry_s=0.0)
    i.escalate(turn, "why", "", may_pass=True)
    soon = turn_of(head_state(Phase.WAITING), escalated_retry_s=0.5)
    i.escalate(soon, "why", "", may_pass=True)
    never = turn_of(head_state(Phase.WAITING))
    i.escalate(never, "why", "")

    assert (turn.lead.retry_at_s, turn.lead.backoff_until_s, soon.lead.needs) == (None, None, "why")
    assert turn.lead.needs == never.lead.needs == "why; then: sparkctl start"
    assert soon.lead.retry_at_s == NOW + 0.5
    assert never.lead.retry_at_s is None
    (told,) = kinds(never, IncidentClosed)  # nothing failed, and people are told all the same
    assert (told.outcome, told.cause, told.needs) == ("escalated", "unknown", "why; then: sparkctl start")
    assert [r.reason for r in kinds(never, IncidentOpened)] == ["why"]


@pytest.mark.parametrize(
    ("failure", "known", "times"),
    [
        (FAILURE, None, TIMES),
        (None, replace(TIMES, launched_s=NOW), replace(TIMES, launched_s=NOW)),
        (None, None, Times(detected_s=NOW - 30)),
        (FAILURE, replace(TIMES, launched_s=NOW), TIMES),
    ],
)
def test_an_incident_is_closed_with_its_times_and_last_cause(failure, known, times) -> None:
    incident = Incident(5, NOW - 30, relaunches=2, causes=("cuda_oom", "nccl_timeout"), times=known)

    def closed(outcome, open_=incident):
        turn = turn_of(head_state(Phase.VERIFYING, failure=failure, incident=open_))
        i.close(turn, outcome, "needs")
        assert (turn.lead.incident, turn.lead.failure) == (None, None)
        return turn.records

    expected = IncidentClosed(5, "stopped", "nccl_timeout", 7, 2, times, "needs")
    assert closed("stopped") == [expected]
    assert closed("recovered") == [
        replace(expected, outcome="recovered", times=replace(times, serving_s=NOW))
    ]
    assert closed("stopped", replace(incident, causes=())) == [replace(expected, cause="unknown")]


# -- what is kept (core.keeping) -----------------------------------------------------------------


@pytest.mark.parametrize("changed", [{"streak": 1}, {"retrying": True}, {"unclean": 1}, {"trial": True}])
def test_what_has_served_for_the_cooldown_ends_the_row_whatever_it_was(changed) -> None:
    turn = turn_of(head_state(**changed, climbed=True, proven=Settings()))

    keeping.served(turn)

    lead = turn.lead
    assert (lead.streak, lead.retrying, lead.unclean, lead.trial) == (0, False, 0, False)
    assert (lead.climbed, lead.proven) == (True, Settings())  # before a person acts it is not tried again


def test_where_nothing_is_to_end_nothing_is_news() -> None:
    turn = turn_of(head_state(climbed=True, proven=Settings()))

    keeping.served(turn)

    assert (turn.news, turn.lead.climbed) == (False, True)
    other = turn_of(head_state(proven=CAREFUL))
    keeping.served(other)
    assert other.lead.proven == Settings()


def test_what_is_kept_is_noted_when_it_changes() -> None:
    turn = turn_of(
        head_state(
            proven=LOW,
            spent=(("a", 1.0), ("b", 2.0)),
            silences=((Phase.PROFILING, 3.0),),
            forgiven=4,
            unclean=1,
            asked_target=False,
            asked_pause=True,
        ),
        context="engine/driver",
    )
    keeping.keep(turn)

    kept = Kept(
        context="engine/driver",
        proven=LOW,
        spent=("a", "b"),
        silences=((Phase.PROFILING, 3.0),),
        forgiven=4,
        unclean=1,
        generation=7,
        phase=Phase.SERVING,
        target=False,
        paused=True,
    )
    assert (turn.lead.kept, turn.records) == (kept, [KeptChanged(kept)])
    keeping.keep(turn)
    assert turn.records == [KeptChanged(kept)]


def test_what_an_earlier_daemon_left_running_is_kept_until_this_one_has_ordered_something() -> None:
    left = Kept(generation=6, phase=Phase.PROFILING)

    def after(epoch):
        turn = turn_of(head_state(Phase.WAITING, epoch=epoch, kept=left))
        keeping.keep(turn)
        return turn.lead.kept.generation, turn.lead.kept.phase

    assert after(0) == (6, Phase.PROFILING)
    assert after(2) == (7, Phase.WAITING)


def test_in_a_pause_the_phase_that_it_interrupted_is_kept() -> None:
    turn = turn_of(head_state(Phase.PAUSED, paused_from=Phase.SERVING))
    keeping.keep(turn)
    assert turn.lead.kept.phase is Phase.SERVING


@pytest.mark.parametrize(
    ("phase", "generation", "kept_of", "kept"),
    [
        (Phase.SERVING, 7, 7, "now"),
        (Phase.FAILING, 7, 7, "before"),
        (Phase.PROFILING, 7, 7, "before"),
        (Phase.FORMING, 7, 6, "nothing"),
    ],
)
def test_what_the_engine_said_is_kept_once_it_serves_and_for_its_own_generation(
    phase, generation, kept_of, kept
) -> None:
    texts = {"now": EngineMemory(900), "before": EngineMemory(600), "nothing": EngineMemory()}
    before = Kept(generation=kept_of, said=texts["before"])
    turn = turn_of(
        head_state(phase, generation=generation, kept=before, watch={"said": texts["now"]}),
    )
    keeping.keep(turn)
    assert turn.lead.kept.said == texts[kept]


# -- boots that ended uncleanly (core.unclean) ---------------------------------------------------


def admitted(own=0, theirs=0, peer=None, **lead):
    known = peer or worker_seen(status_of_worker(unclean_generation=theirs))
    member = {
        "unclean_generation": own,
        "memory": MemorySample(NOW, 100 * GIB, 119 * GIB),
        "lowest_bytes": GIB,
    }
    turn = turn_of(head_state(Phase.WAITING, member=member, peer=known, **lead))
    return turn, unclean.admit(turn)


def test_an_unclean_end_is_counted_once() -> None:
    for changes in (
        {},
        {"own": 7, "forgiven": 7},
        {"own": 3, "theirs": 6, "forgiven": 7},
        {"peer": Peer(WORKER)},
    ):
        turn, may = admitted(**changes)
        assert (may, turn.records) == (True, [])


@pytest.mark.parametrize(
    ("own", "theirs", "node", "newest"), [(7, 0, HEAD, 7), (3, 6, WORKER, 6), (5, 4, HEAD, 5)]
)
def test_the_newest_unclean_end_counts_as_a_memory_failure_of_its_settings(own, theirs, node, newest) -> None:
    turn, may = admitted(own, theirs, forgiven=2, trial=True)

    reason = f"{node} went down while generation {newest} ran: a wedge, or power"
    (opened,), (remedied,), (adopted,) = (kinds(turn, k) for k in (IncidentOpened, Remedied, SettingsAdopted))
    lead = turn.lead
    assert (may, lead.forgiven, lead.unclean) == (True, newest, 1)
    assert opened == IncidentOpened(1, newest, Phase.WAITING, reason)
    assert remedied.diagnosis == Diagnosis("unknown", None, node, None, 0.0, reason)
    assert (remedied.incident, remedied.generation, remedied.action) == (1, newest, Action.RELAUNCH)
    assert (remedied.backoff_s, remedied.times) == (0.0, Times(detected_s=NOW, decided_s=NOW))
    assert (remedied.settings_before, remedied.settings_after) == (Settings(), lead.settings)
    assert remedied.explanation.startswith("counts as a memory failure: ")
    assert adopted == SettingsAdopted(lead.settings, remedied.explanation)
    assert (lead.failed, lead.trial) == ((Settings(),), False)
    assert lead.settings.gpu_memory_utilization < 0.9


def test_an_unclean_end_is_one_of_the_memory_of_its_own_node() -> None:
    theirs = {"unclean_generation": 7, "total_bytes": 60 * GIB, "lowest_bytes": 30 * GIB}

    turn, _ = admitted(peer=worker_seen(status_of_worker(**theirs)))

    assert turn.lead.settings.gpu_memory_utilization == 0.891  # half a GiB of 60


def test_so_many_unclean_ends_in_a_row_and_nothing_is_started() -> None:
    two, may = admitted(own=7, unclean=1)
    three, not_any_more = admitted(own=7, unclean=2)

    assert (may, two.lead.phase, two.lead.unclean) == (True, Phase.WAITING, 2)
    assert (not_any_more, three.lead.phase) == (False, Phase.ESCALATED)
    assert three.lead.needs == "find out why spark-a goes down (3 times in a row); then: sparkctl start"
    assert kinds(three, IncidentClosed)[0].outcome == "escalated"
    assert (
        kinds(three, PhaseChanged)[0].reason == "spark-a went down while generation 7 ran: a wedge, or power"
    )


def test_at_the_floor_an_unclean_end_needs_a_person() -> None:
    """The same settings again could take the node down once more; nothing of them is given up."""
    floor = Settings(gpu_memory_utilization=0.5, max_num_batched_tokens=512)

    turn, may = admitted(own=7, settings=floor)

    (remedied,) = kinds(turn, Remedied)
    assert (may, turn.lead.phase, turn.lead.settings, turn.lead.failed) == (False, Phase.ESCALATED, floor, ())
    assert (remedied.action, remedied.settings_after) == (Action.ESCALATE, floor)
    assert remedied.explanation == "counts as a memory failure: every memory setting is at its floor"
    assert turn.lead.needs.startswith("Lower the floors")
    assert (turn.lead.retry_at_s, turn.lead.incident) == (None, None)
    assert kinds(turn, SettingsAdopted) == []
