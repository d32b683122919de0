"""Watching a running generation: when it is asked, and what is called a failure."""

from __future__ import annotations

from dataclasses import replace

import pytest

from core.given import HEAD, NOW, RAY, WORKER, head_state, turn_of, unit, worker_state
from sparkd.core import watch as w
from sparkd.core.commands import ProbeEngine, ProbeMembership, SendCanary
from sparkd.core.events import EngineObserved, MembershipObserved, RayNode
from sparkd.core.messages import UnitState
from sparkd.words import ENGINE, LIVE, Backend, Phase

A, B = RayNode("192.168.200.12", True, True, "1"), RayNode("192.168.200.13", True, False, "2")
ALL = MembershipObserved(7, (A, B))
IDLE = EngineObserved(7, True, True, 0, 0, 100.0)


def on_head(phase=Phase.SERVING, now=NOW, member=None, policy=None, lead=None, **watch):
    return turn_of(head_state(phase, watch=watch, member=member, **(lead or {})), now, **(policy or {}))


# -- asking --------------------------------------------------------------------------------------


def asked(phase, **more) -> list[str]:
    turn = on_head(phase, **more)
    w.probe(turn)
    return [type(command).__name__ for command in turn.commands]


@pytest.mark.parametrize("phase", list(Phase))
def test_what_is_asked_in_a_phase(phase) -> None:
    table = ["ProbeMembership"] if phase in LIVE and phase is not Phase.FORMING else []
    engine = ["ProbeEngine"] if phase in (*ENGINE, Phase.SERVING) else []

    assert asked(phase) == [*table, *engine]
    if phase is not Phase.PAUSED:
        assert asked(Phase.PAUSED, lead={"paused_from": phase}) == [*table, *engine]


@pytest.mark.parametrize(
    ("units", "asks"),
    [
        ((unit(RAY),), True),
        ((unit(RAY, UnitState.STARTING),), False),
        ((unit(RAY, generation=6),), False),
        ((unit(),), False),
        ((), False),
    ],
)
def test_while_forming_the_table_is_asked_for_once_this_nodes_ray_runs(units, asks) -> None:
    assert asked(Phase.FORMING, member={"units": units}) == (["ProbeMembership"] if asks else [])


def test_a_worker_and_the_mp_backend_ask_for_no_table() -> None:
    turn = turn_of(worker_state())
    w.probe(turn)

    assert turn.commands == []
    assert asked(Phase.SERVING, policy={"backend": Backend.MP}) == ["ProbeEngine"]


def test_one_question_of_a_kind_at_a_time_and_each_at_its_period() -> None:
    fresh = {"probed_membership_at_s": NOW, "probed_engine_at_s": NOW}

    assert asked(Phase.SERVING, probing_membership=True, probing_engine=True) == []
    assert asked(Phase.SERVING, now=NOW + 0.999, **fresh) == []
    assert asked(Phase.SERVING, now=NOW + 1.0, **fresh) == ["ProbeMembership"]
    assert asked(Phase.SERVING, now=NOW + 2.0, **fresh) == ["ProbeMembership", "ProbeEngine"]
    assert asked(Phase.STARTING_API, now=NOW + 0.249, **fresh) == []
    assert asked(Phase.STARTING_API, now=NOW + 0.25, **fresh) == ["ProbeMembership", "ProbeEngine"]
    often = {"membership_every_s": 0.1, "engine_every_s": 0.1}
    assert asked(Phase.STARTING_API, now=NOW + 0.1, policy=often, **fresh) == [
        "ProbeMembership",
        "ProbeEngine",
    ]


def test_what_was_asked_is_known_and_of_which_generation() -> None:
    turn = on_head()

    w.probe(turn)

    watch = turn.lead.watch
    assert turn.commands == [ProbeMembership(generation=7), ProbeEngine(generation=7)]
    assert (watch.probing_membership, watch.probed_membership_at_s) == (True, NOW)
    assert (watch.probing_engine, watch.probed_engine_at_s) == (True, NOW)
    assert not turn.news


# -- Ray's table ---------------------------------------------------------------------------------


def failed(check, turn):
    """Return what the check called a failure: id, cause, node, text; None = nothing."""
    check(turn)
    if turn.lead.failure is None:
        return None
    (signal,) = turn.lead.failure.signals
    return signal.id, signal.cause, signal.node, signal.quote


DEAD = replace(B, alive=False, death_reason="missed too many heartbeats")
UNTOLD = replace(B, alive=False)
OTHERS = RayNode("10.0.0.1", False, False, "9", death_reason="elsewhere")


@pytest.mark.parametrize(
    ("table", "text"),
    [
        ((A, DEAD), "Ray no longer lists spark-b as alive: missed too many heartbeats"),
        ((A, UNTOLD), "Ray no longer lists spark-b as alive"),
        ((A, DEAD, replace(DEAD, death_reason="later")), "Ray no longer lists spark-b as alive: later"),
        ((A, OTHERS), "Ray no longer lists spark-b as alive"),
        ((A, replace(A, death_reason="elsewhere")), "Ray no longer lists spark-b as alive"),
    ],
)
def test_a_node_that_ray_lost_ends_the_generation_with_rays_own_reason(table, text) -> None:
    turn = on_head(membership=MembershipObserved(7, table))

    assert failed(w.check_ray, turn) == ("observed_ray_node_dead", "ray_node_died", WORKER, text)


def test_the_first_of_several_lost_nodes_is_the_one_that_is_named() -> None:
    found = failed(w.check_ray, on_head(membership=MembershipObserved(7, ())))

    assert found[2:] == (HEAD, "Ray no longer lists spark-a, spark-b as alive")


@pytest.mark.parametrize(
    ("phase", "known", "token", "after_s", "fails"),
    [
        (Phase.SERVING, 0.0, -50.0, 29.999, False),
        (Phase.SERVING, 0.0, -50.0, 30.0, True),
        (Phase.SERVING, -50.0, 0.0, 29.999, False),
        (Phase.SERVING, -50.0, 0.0, 30.0, True),
        (Phase.LOADING_WEIGHTS, -29.0, 0.0, 0.999, False),
        (Phase.LOADING_WEIGHTS, -29.0, 0.0, 1.0, True),
    ],
)
def test_a_head_of_ray_that_is_silent_ends_it_unless_tokens_flow(phase, known, token, after_s, fails) -> None:
    turn = on_head(
        phase,
        now=NOW + after_s,
        membership=ALL,
        membership_ok_at_s=NOW + known,
        token_at_s=NOW + token,
        membership_why="refused",
    )

    found = failed(w.check_ray, turn)

    text = "Ray's head has not answered for 30 s: refused"
    assert found == (("observed_gcs_unreachable", "ray_gcs_unreachable", HEAD, text) if fails else None)


def test_over_mp_there_is_no_table_to_lose() -> None:
    turn = on_head(now=NOW + 99, policy={"backend": Backend.MP}, membership=MembershipObserved(7, ()))

    assert failed(w.check_ray, turn) is None


# -- tokens --------------------------------------------------------------------------------------


def canary_at(now, engine=IDLE, **watch) -> float | None:
    """Return the deadline of the canary that is sent at *now*, None = none is."""
    turn = on_head(now=now, **{"engine": engine, "canary_ok": True, **watch})
    w.check_serving(turn)
    sent = [c for c in turn.commands if isinstance(c, SendCanary)]
    if sent:
        assert (turn.lead.watch.canary_sent_at_s, sent[0].generation) == (now, 7)
    return sent[0].deadline_s if sent else None


@pytest.mark.parametrize(
    ("watch", "pause_s"),
    [
        ({"canary_done_at_s": NOW}, 60.0),
        ({"canary_done_at_s": NOW + 5}, 65.0),
        ({"canary_done_at_s": NOW - 1}, 15.0),
        ({"canary_done_at_s": NOW, "canary_ok": False}, 15.0),
        ({"canary_done_at_s": NOW, "canary_ok": None}, 15.0),
        ({"canary_done_at_s": NOW, "engine": replace(IDLE, running=None)}, 15.0),
        ({"canary_done_at_s": NOW, "engine": None}, 60.0),
    ],
)
def test_when_nobody_asks_sparkd_does_and_soon_after_the_last_token(watch, pause_s) -> None:
    assert canary_at(NOW + pause_s - 0.001, **watch) is None
    assert canary_at(NOW + pause_s, **watch) == 125.0


def test_the_pause_is_never_longer_than_half_of_what_is_called_a_hang() -> None:
    turn = on_head(now=NOW + 10.0, policy={"no_progress_s": 20.0}, canary_done_at_s=NOW - 1, engine=IDLE)

    w.check_serving(turn)

    assert turn.commands == [SendCanary(generation=7, deadline_s=25.0)]


def test_one_real_generation_at_a_time() -> None:
    assert canary_at(NOW + 100.0, canary_sent_at_s=NOW + 99.0) is None


@pytest.mark.parametrize(
    ("engine", "watch", "text"),
    [
        (IDLE, {}, None),
        (replace(IDLE, running=2, waiting=1), {"outstanding_since_s": NOW}, "3 requests were"),
        (replace(IDLE, running=2, waiting=None), {"outstanding_since_s": NOW}, "2 requests were"),
        (replace(IDLE, running=0, waiting=1), {"outstanding_since_s": NOW}, "1 requests were"),
        (IDLE, {"canary_sent_at_s": NOW}, "sparkd's own request was"),
        (None, {"canary_sent_at_s": NOW}, "sparkd's own request was"),
        (replace(IDLE, running=None), {"outstanding_since_s": NOW}, None),
    ],
)
def test_requests_without_a_token_for_the_configured_time_are_a_hang(engine, watch, text) -> None:
    says = {True: "200", False: "unhealthy", None: "nothing"}

    for healthy in (True, False, None):
        known = engine and replace(engine, healthy=healthy)
        early = on_head(now=NOW + 119.999, engine=known, canary_ok=True, **watch)
        late = on_head(now=NOW + 120.0, engine=known, canary_ok=True, **watch)

        found = failed(w.check_serving, late)

        assert failed(w.check_serving, early) is None
        if text is None:
            assert found is None
        else:
            health = says[healthy if engine else None]
            quote = f"no token for 120 s while {text} outstanding; /health says {health}"
            assert found == ("observed_no_progress", "engine_hang", "", quote)


@pytest.mark.parametrize(
    ("token", "outstanding", "canary", "hangs_after_s"),
    [
        (10.0, 0.0, None, 130.0),
        (0.0, 10.0, None, 130.0),
        (0.0, None, 20.0, 140.0),
        (0.0, 10.0, 20.0, 130.0),
    ],
)
def test_a_hang_is_counted_from_the_last_token_or_the_first_request(
    token, outstanding, canary, hangs_after_s
) -> None:
    def at(after_s):
        return on_head(
            now=NOW + after_s,
            engine=replace(IDLE, running=1),
            canary_ok=True,
            token_at_s=NOW + token,
            outstanding_since_s=None if outstanding is None else NOW + outstanding,
            canary_sent_at_s=NOW + (canary if canary is not None else hangs_after_s - 1),
        )

    assert failed(w.check_serving, at(hangs_after_s - 0.001)) is None
    assert failed(w.check_serving, at(hangs_after_s)) is not None


def test_three_wrong_answers_in_a_row_end_the_generation() -> None:
    two = on_head(canary_misses=2, canary_why="refused", engine=IDLE)
    three = on_head(canary_misses=3, canary_why="refused", engine=IDLE)

    assert failed(w.check_serving, two) is None
    assert failed(w.check_serving, three) == (
        "observed_canary_failed",
        "engine_hang",
        "",
        "3 real generations in a row did not come right: refused",
    )


def test_an_engine_is_up_when_its_own_port_says_healthy() -> None:
    assert w.serve_is_up(on_head(engine=IDLE))
    assert not w.serve_is_up(on_head(engine=replace(IDLE, healthy=False)))
    assert not w.serve_is_up(on_head(engine=replace(IDLE, healthy=None)))
    assert not w.serve_is_up(on_head())
