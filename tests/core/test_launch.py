"""From a fenced cluster to a verified generation, one step at a time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from core.given import HEAD, NOW, POLICY, RAY, SERVE, WORKER, head_state, turn_of
from sparkd.core import launch
from sparkd.core.commands import SendCanary
from sparkd.core.events import EngineObserved, MembershipObserved, PhaseSeen, RayNode
from sparkd.core.records import IncidentClosed, PhaseChanged, StampAdvanced, Times, Verified
from sparkd.core.state import Failure, Incident, Watch
from sparkd.signals.model import Proof, Signal
from sparkd.words import ENGINE, Backend, EngineMemory, Phase, Settings, Stamp

GPU = (("GPU", 1.0),)
A = RayNode("192.168.200.12", True, True, "1", GPU)
B = RayNode("192.168.200.13", True, False, "2", GPU)
ALL = MembershipObserved(7, (A, B))
TIMES = Times(detected_s=NOW - 20)
FAILURE = Failure(7, Phase.SERVING, TIMES)
RAY_ONLY = ((HEAD, (RAY,)), (WORKER, (RAY,)))
OVER_RAY = ((HEAD, (RAY, SERVE)), (WORKER, (RAY,)))
OVER_MP = ((HEAD, (SERVE,)), (WORKER, (SERVE,)))


def done(act, phase, *, now=NOW, policy=None, watch=None, **lead):
    turn = turn_of(head_state(phase, watch=watch, **lead), now, **(policy or {}))
    act(turn)
    return turn


def told(turn) -> tuple[str, str, str] | None:
    """Return id, cause and text of the failure, None = none."""
    if turn.lead.failure is None:
        return None
    (signal,) = turn.lead.failure.signals
    return signal.id, signal.cause, signal.quote


# -- begin ---------------------------------------------------------------------------------------


def test_a_new_generation_is_named_and_everything_of_the_old_one_is_gone() -> None:
    old = Signal("s", "unknown", Proof.NOISE, HEAD, "x", "y", NOW)
    turn = done(
        launch.begin,
        Phase.FENCING,
        seen=Stamp(2, 11),
        watch={"said": EngineMemory(9)},
        recent=(old,),
        failure=FAILURE,
        incident=Incident(1, NOW, relaunches=2),
        waiting=("x",),
        needs="y",
        leaks_forgiven=True,
        launched_at_s=1.0,
    )

    lead = turn.lead
    assert (lead.generation, lead.phase, turn.state.seen) == (12, Phase.FORMING, Stamp(2, 12))
    assert lead.watch == Watch(progress_at_s=NOW, membership_ok_at_s=NOW, token_at_s=NOW)
    assert (lead.recent, lead.failure, lead.waiting, lead.needs) == ((), None, (), "")
    assert (lead.leaks_forgiven, lead.launched_at_s) == (False, NOW)
    assert lead.incident == Incident(1, NOW, relaunches=3, times=replace(TIMES, launched_s=NOW))
    assert turn.records == [
        StampAdvanced(Stamp(2, 12)),
        PhaseChanged(12, Phase.FENCING, Phase.FORMING, "every node is fenced", 50.0),
    ]


def test_a_first_start_belongs_to_no_incident() -> None:
    assert done(launch.begin, Phase.FENCING).lead.incident is None
    assert done(launch.begin, Phase.FENCING, failure=FAILURE).lead.incident is None


def test_a_relaunch_without_a_failure_keeps_the_incidents_times() -> None:
    lead = done(launch.begin, Phase.FENCING, incident=Incident(1, NOW, times=TIMES)).lead

    assert lead.incident == Incident(1, NOW, relaunches=1, times=TIMES)


# -- form ----------------------------------------------------------------------------------------


def test_rays_head_first_then_every_node() -> None:
    first = done(launch.form, Phase.FORMING)
    joined = done(launch.form, Phase.FORMING, watch={"membership": MembershipObserved(7, (A,))})

    assert first.lead.intent.wanted == ((HEAD, (RAY,)), (WORKER, ()))
    assert joined.lead.intent.wanted == RAY_ONLY
    assert first.lead.phase is joined.lead.phase is Phase.FORMING
    assert joined.lead.intent.grace_s == 10.0


def test_a_proven_membership_starts_serve_on_the_head() -> None:
    turn = done(launch.form, Phase.FORMING, watch={"membership": ALL})

    assert turn.lead.intent.wanted == OVER_RAY
    assert turn.lead.intent.grace_s == 10.0
    assert turn.records[-1] == PhaseChanged(
        7, Phase.FORMING, Phase.RESOLVING_CONFIG, "2 of 2 Ray nodes, addresses as configured", 50.0
    )


def test_over_mp_every_rank_starts_at_once() -> None:
    turn = done(launch.form, Phase.FORMING, policy={"backend": Backend.MP})

    assert turn.lead.intent.wanted == OVER_MP
    assert turn.lead.intent.grace_s == 10.0
    assert turn.records[-1].after is Phase.RESOLVING_CONFIG
    assert turn.records[-1].reason == "every rank starts"


@pytest.mark.parametrize(
    ("table", "found"),
    [
        (None, ("observed_gcs_unreachable", "ray_gcs_unreachable")),
        ((A, replace(B, address="10.0.0.1")), ("observed_membership_wrong_address", "wrong_interface")),
        ((A,), ("observed_membership_missing", "ray_insufficient_resources")),
    ],
)
def test_forming_that_takes_too_long_names_what_is_lacking(table, found) -> None:
    watch = {"membership": MembershipObserved(7, table, "refused")}
    early = done(launch.form, Phase.FORMING, now=NOW + 69.999, watch=watch)
    late = done(launch.form, Phase.FORMING, now=NOW + 70.0, watch=watch)

    assert told(early) is None
    assert min(early.wakes) <= NOW + 70.0
    assert told(late)[:2] == found


def test_a_whole_generation_is_serve_over_every_nodes_ray_or_on_every_rank() -> None:
    assert launch.running(POLICY) == dict(OVER_RAY)
    assert launch.running(replace(POLICY, backend=Backend.MP)) == dict(OVER_MP)


# -- follow --------------------------------------------------------------------------------------


def shows(phase: Phase | None, **more) -> dict:
    return {"membership": ALL, "progress": PhaseSeen(7, phase, **more)}


@pytest.mark.parametrize(
    ("at", "shown", "then"),
    [
        (Phase.LOADING_WEIGHTS, Phase.PROFILING, Phase.PROFILING),
        (Phase.PROFILING, Phase.LOADING_WEIGHTS, Phase.PROFILING),
        (Phase.PROFILING, Phase.PROFILING, Phase.PROFILING),
        (Phase.PROFILING, None, Phase.PROFILING),
    ],
)
def test_the_engines_output_moves_the_phase_forward_only(at, shown, then) -> None:
    turn = done(launch.follow, at, watch=shows(shown))

    assert turn.lead.phase is then
    assert [r.reason for r in turn.records] == ([] if at is then else ["as the engine's output shows"])


@pytest.mark.parametrize("phase", ENGINE)
def test_an_api_that_answers_goes_to_the_real_generation_from_any_phase(phase) -> None:
    up = {"membership": ALL, "engine": EngineObserved(7, True, True)}

    turn = done(launch.follow, phase, watch=up)

    assert turn.records == [PhaseChanged(7, phase, Phase.VERIFYING, "the API server answers", 50.0)]
    assert done(launch.follow, phase, watch={"membership": ALL}).lead.phase is phase


def test_a_lost_node_ends_a_start() -> None:
    lost = {"membership": MembershipObserved(7, (A,)), "engine": EngineObserved(7, True, True)}

    assert done(launch.follow, Phase.PROFILING, watch=lost).lead.phase is Phase.FAILING


@pytest.mark.parametrize(
    ("phase", "watch", "limit_s", "text"),
    [
        (Phase.PROFILING, {}, 1200.0, "no progress for 1200 s in profiling"),
        (
            Phase.LOADING_WEIGHTS,
            {"progress": PhaseSeen(7, Phase.LOADING_WEIGHTS, 4, 10)},
            180.0,
            "no progress for 180 s in loading_weights at 4 of 10",
        ),
        (
            Phase.LOADING_WEIGHTS,
            {"progress": PhaseSeen(7, Phase.LOADING_WEIGHTS, 0, 10)},
            600.0,
            "no progress for 600 s in loading_weights at 0 of 10",
        ),
        (
            Phase.LOADING_WEIGHTS,
            {"progress": PhaseSeen(7, Phase.LOADING_WEIGHTS, 4)},
            180.0,
            "no progress for 180 s in loading_weights",
        ),
    ],
)
def test_a_start_that_stands_still_is_a_hang_with_how_far_it_came(phase, watch, limit_s, text) -> None:
    def at(after_s):
        known = {"membership": ALL, "progress_at_s": NOW, "membership_ok_at_s": NOW + after_s, **watch}
        return done(launch.follow, phase, now=NOW + after_s, watch=known)

    assert told(at(limit_s - 0.001)) is None
    assert told(at(limit_s)) == ("observed_phase_stuck", "engine_hang", text)


def test_the_silence_of_a_phase_begins_with_it() -> None:
    def at(after_s):
        watch = {"membership": ALL, "progress_at_s": 0.0, "membership_ok_at_s": NOW + after_s}
        return told(done(launch.follow, Phase.PROFILING, now=NOW + after_s, watch=watch))

    assert at(1149.999) is None
    assert at(1150.0) is not None


LOADS = {"progress": PhaseSeen(7, Phase.LOADING_WEIGHTS, 4, 10)}


@pytest.mark.parametrize(
    ("phase", "watch", "known_s", "patience_s"),
    [
        (Phase.LOADING_WEIGHTS, LOADS, None, 180.0),
        (Phase.LOADING_WEIGHTS, LOADS, 5.0, 60.0),
        (Phase.LOADING_WEIGHTS, LOADS, 30.0, 90.0),
        (Phase.LOADING_WEIGHTS, LOADS, 70.0, 180.0),
        (Phase.LOADING_WEIGHTS, {}, 30.0, 600.0),
        (Phase.LOADING_WEIGHTS, {}, 400.0, 800.0),
        (Phase.PROFILING, LOADS, 700.0, 1400.0),
        (Phase.PROFILING, {}, None, 1200.0),
    ],
)
def test_how_long_a_phase_may_be_silent_is_learned_of_this_model(phase, watch, known_s, patience_s) -> None:
    silences = () if known_s is None else ((phase, known_s),)

    turn = turn_of(head_state(phase, watch=watch, silences=silences))

    assert launch.patience_s(turn) == patience_s


def test_a_phase_without_a_bound_has_none() -> None:
    state = head_state(Phase.PROFILING, silences=((Phase.PROFILING, 5.0),))

    assert launch.patience_s(turn_of(state, phase_budget_s=())) is None


# -- verify --------------------------------------------------------------------------------------


def verified(now=NOW, lead=None, **watch):
    known = {"membership": ALL, "membership_ok_at_s": now, **watch}
    return done(launch.verify, Phase.VERIFYING, now=now, watch=known, **(lead or {}))


def test_a_real_generation_that_came_right_serves_and_teaches() -> None:
    settings = Settings(max_num_seqs=4)
    incident = Incident(3, NOW - 200, relaunches=1, causes=("nccl_timeout",), times=TIMES)
    turn = verified(
        lead={
            "settings": settings,
            "incident": incident,
            "silences": ((Phase.PROFILING, 100.0), (Phase.COMPILING, 50.0)),
        },
        canary_ok=True,
        canary_latency_s=0.7,
        silences=((Phase.PROFILING, 20.0), (Phase.COMPILING, 45.12349)),
        token_at_s=1.0,
    )

    lead = turn.lead
    assert turn.records == [
        Verified(7, 0.7, 90.0),
        PhaseChanged(7, Phase.VERIFYING, Phase.SERVING, "verified by a real generation", 50.0),
        IncidentClosed(3, "recovered", "nccl_timeout", 7, 1, replace(TIMES, serving_s=NOW)),
    ]
    assert (lead.verified, lead.watch.token_at_s, lead.incident) == (settings, NOW, None)
    assert lead.silences == ((Phase.COMPILING, 45.123), (Phase.PROFILING, 80.0))


def test_a_phase_that_was_not_shown_is_still_known_and_a_new_one_is_learned() -> None:
    turn = verified(
        lead={"silences": ((Phase.PROFILING, 10.0),)}, canary_ok=True, silences=((Phase.COMPILING, 7.0),)
    )

    assert turn.lead.silences == ((Phase.COMPILING, 7.0), (Phase.PROFILING, 8.0))


def test_what_was_not_measured_is_no_time() -> None:
    (first, *_) = verified(lead={"launched_at_s": None}, canary_ok=True).records

    assert first == Verified(7, 0.0, 0.0)


def test_a_generation_is_asked_for_again_after_a_pause_one_at_a_time() -> None:
    ask = SendCanary(generation=7, deadline_s=60.0)

    assert verified().commands == [ask]
    assert verified(canary_done_at_s=NOW - 0.999).commands == []
    assert verified(canary_done_at_s=NOW - 1.0, canary_ok=False).commands == [ask]
    assert verified(canary_sent_at_s=NOW).commands == []


@pytest.mark.parametrize(("why", "text"), [("refused", "refused"), ("", "no answer")])
def test_a_generation_that_does_not_come_right_in_time_is_a_failure(why, text) -> None:
    early = verified(NOW + 129.999, canary_why=why)
    late = verified(NOW + 130.0, canary_why=why)

    assert told(early) is None
    assert told(late) == (
        "observed_canary_failed",
        "engine_hang",
        f"the verifying generation did not come right: {text}",
    )


def test_a_lost_node_is_no_serving() -> None:
    turn = verified(membership=MembershipObserved(7, (A,)), canary_ok=True)

    assert turn.lead.phase is Phase.FAILING
