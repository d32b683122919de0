"""What is observed of the running generation, observation by observation."""

from __future__ import annotations

from dataclasses import replace

import pytest

from core.given import NOW, POLICY, head_state, turn_of, worker_state
from sparkd.core import events as ev
from sparkd.core.observed import canary, engine, membership, phase_seen
from sparkd.core.records import KeptChanged
from sparkd.core.step import step
from sparkd.core.turn import Concern
from sparkd.signals.model import MemorySample
from sparkd.words import EngineMemory, Phase

KNOWN = ev.PhaseSeen(7, Phase.LOADING_WEIGHTS, done=3, total=10)
NODES = (ev.RayNode("192.168.200.12", True, True, "1"),)
TABLE = ev.MembershipObserved(7, NODES)


def after(fold, event, watch: dict | None = None, phase=Phase.SERVING, now=NOW + 1.0, **more):
    turn = turn_of(head_state(phase, watch=watch, **more), now)
    fold(turn, event)
    return turn


@pytest.mark.parametrize(
    ("fold", "event"),
    [
        (phase_seen, ev.PhaseSeen(6, Phase.PROFILING)),
        (membership, ev.MembershipObserved(6, NODES)),
        (engine, ev.EngineObserved(6, True)),
        (canary, ev.CanaryAnswered(6, True, 1.0)),
    ],
)
def test_what_is_of_another_generation_or_told_to_a_worker_changes_nothing(fold, event) -> None:
    turn = after(fold, event)
    at_worker = turn_of(worker_state())
    fold(at_worker, event)

    assert (turn.state, turn.news, set(turn.wakes)) == (head_state(), False, {float("inf")})
    assert at_worker.state == worker_state()


# -- phases --------------------------------------------------------------------------------------


def seen(event, watch: dict | None = None, phase=Phase.LOADING_WEIGHTS, **more):
    turn = after(phase_seen, event, watch, phase, **more)
    return turn, turn.lead.watch


@pytest.mark.parametrize(
    ("known", "event", "shown"),
    [
        (None, KNOWN, KNOWN),
        (KNOWN, ev.PhaseSeen(7, done=4, total=10), ev.PhaseSeen(7, Phase.LOADING_WEIGHTS, 4, 10)),
        (KNOWN, ev.PhaseSeen(7, Phase.PROFILING), ev.PhaseSeen(7, Phase.PROFILING)),
        (KNOWN, ev.PhaseSeen(7, rate_tok_s=5.0), KNOWN),
        (None, ev.PhaseSeen(7, done=1), ev.PhaseSeen(7, done=1)),
        (None, ev.PhaseSeen(7, rate_tok_s=5.0), None),
    ],
)
def test_progress_belongs_to_the_phase_that_shows_it(known, event, shown) -> None:
    _, watch = seen(event, {"progress": known})

    assert watch.progress == shown
    assert watch.progress_at_s == NOW + 1.0


@pytest.mark.parametrize(
    ("known", "event", "news"),
    [
        (KNOWN, ev.PhaseSeen(7, done=4), False),
        (replace(KNOWN, done=0), ev.PhaseSeen(7, done=4), True),
        (replace(KNOWN, done=None), ev.PhaseSeen(7, done=0), False),
        (KNOWN, ev.PhaseSeen(7, Phase.PROFILING, done=3), True),
        (KNOWN, ev.PhaseSeen(7, Phase.LOADING_WEIGHTS), True),
        (KNOWN, ev.PhaseSeen(7, rate_tok_s=5.0), False),
        (None, ev.PhaseSeen(7, rate_tok_s=5.0), True),
    ],
)
def test_progress_is_news_where_it_begins_or_the_phase_is_another(known, event, news) -> None:
    assert seen(event, {"progress": known})[0].news is news


def test_sizes_are_kept_until_something_says_better() -> None:
    sizes = ev.PhaseSeen(7, kv_cache_bytes=900, weights_bytes=70, request_tokens=4096, requests=3.0)
    rate = ev.PhaseSeen(7, rate_tok_s=12.5)

    first, watch = seen(sizes)
    second = turn_of(first.state)
    phase_seen(second, rate)

    for known in (watch.said, second.lead.watch.said):
        assert (known.kv_cache_bytes, known.weights_bytes) == (900, 70)
        assert (known.request_tokens, known.request_kv_bytes) == (4096, 300)
    assert (watch.rate_tok_s, second.lead.watch.rate_tok_s) == (None, 12.5)
    third = turn_of(second.state)
    phase_seen(third, ev.PhaseSeen(7, kv_cache_bytes=600, weights_bytes=80, request_tokens=8, rate_tok_s=1.0))
    assert third.lead.watch.said == EngineMemory(600, 80, 8, 300)
    assert third.lead.watch.rate_tok_s == 1.0


def test_what_a_request_needs_is_found_of_the_cache_that_is_known() -> None:
    sized = {"said": EngineMemory(900)}
    assert seen(ev.PhaseSeen(7, requests=3.0), sized)[1].said.request_kv_bytes == 300
    assert seen(ev.PhaseSeen(7, requests=3.0))[1].said.request_kv_bytes is None
    assert seen(ev.PhaseSeen(7, requests=0.0), sized)[1].said.request_kv_bytes is None


def test_the_memory_when_the_load_begins_is_noted_once() -> None:
    memory = {"memory": MemorySample(NOW, 40, 119)}
    load = ev.PhaseSeen(7, Phase.LOADING_WEIGHTS)

    assert seen(load, member=memory)[1].loading_available_bytes == 40
    assert seen(load)[1].loading_available_bytes is None
    assert seen(load, {"loading_available_bytes": 50}, member=memory)[1].loading_available_bytes == 50
    assert seen(ev.PhaseSeen(7, Phase.PROFILING), member=memory)[1].loading_available_bytes is None


@pytest.mark.parametrize(
    ("phase", "progress_at_s", "known", "silences"),
    [
        (Phase.LOADING_WEIGHTS, NOW, (), ((Phase.LOADING_WEIGHTS, 1.0),)),
        (Phase.LOADING_WEIGHTS, NOW - 80.0, (), ((Phase.LOADING_WEIGHTS, 51.0),)),
        (
            Phase.LOADING_WEIGHTS,
            NOW,
            ((Phase.COMPILING, 9.0), (Phase.LOADING_WEIGHTS, 4.0)),
            ((Phase.COMPILING, 9.0), (Phase.LOADING_WEIGHTS, 4.0)),
        ),
        (Phase.LOADING_WEIGHTS, NOW - 9.0, ((Phase.LOADING_WEIGHTS, 4.0),), ((Phase.LOADING_WEIGHTS, 10.0),)),
        (Phase.SERVING, NOW - 9.0, ((Phase.LOADING_WEIGHTS, 4.0),), ((Phase.LOADING_WEIGHTS, 4.0),)),
        (Phase.FORMING, NOW - 9.0, (), ()),
    ],
)
def test_the_longest_silence_of_every_engine_phase_is_kept(phase, progress_at_s, known, silences) -> None:
    _, watch = seen(KNOWN, {"progress_at_s": progress_at_s, "silences": known}, phase)

    assert watch.silences == silences


# -- Ray's table ---------------------------------------------------------------------------------


def test_a_table_is_kept_and_one_that_did_not_come_leaves_the_last() -> None:
    asked = {"probing_membership": True, "probed_membership_at_s": NOW, "membership_ok_at_s": NOW - 9.0}
    first = after(membership, replace(TABLE, reason="said"), asked)
    refused = after(membership, ev.MembershipObserved(7, None, "refused"), {**asked, "membership": TABLE})

    watch, last = first.lead.watch, refused.lead.watch
    assert watch.membership == replace(TABLE, reason="said")
    assert (watch.probing_membership, watch.membership_ok_at_s, watch.membership_why) == (
        False, NOW + 1.0, "said",
    )  # fmt: skip
    assert (last.membership, last.probing_membership) == (TABLE, False)
    assert (last.membership_ok_at_s, last.membership_why) == (NOW - 9.0, "refused")
    assert first.wakes[Concern.PROBE] == refused.wakes[Concern.PROBE] == NOW + 1.0


def test_the_same_table_is_no_news() -> None:
    same = after(membership, TABLE, {"membership": TABLE})
    other = after(membership, ev.MembershipObserved(7, ()), {"membership": TABLE})

    assert (same.news, other.news, after(membership, TABLE).news) == (False, True, True)


# -- health and counters -------------------------------------------------------------------------

IDLE = ev.EngineObserved(7, True, True, 0, 0, 100.0)
BUSY = replace(IDLE, running=1)


def counted(event, **watch):
    turn = after(engine, event, watch)
    return turn, turn.lead.watch


def test_health_and_counters_are_kept_and_the_next_probe_has_its_time() -> None:
    turn, watch = counted(IDLE, probing_engine=True, probed_engine_at_s=NOW)

    assert (watch.engine, watch.probing_engine, watch.tokens_total) == (IDLE, False, 100.0)
    assert turn.wakes[Concern.PROBE] == NOW + 2.0


@pytest.mark.parametrize(
    ("before", "event", "token_at_s", "misses"),
    [
        (90.0, IDLE, NOW + 1.0, 0),
        (100.0, IDLE, NOW, 2),
        (110.0, IDLE, NOW + 1.0, 0),
        (None, IDLE, NOW + 1.0, 0),
        (100.0, replace(IDLE, tokens_total=None), NOW, 2),
    ],
)
def test_a_counter_that_moved_is_a_token(before, event, token_at_s, misses) -> None:
    _, watch = counted(event, tokens_total=before, canary_misses=2)

    assert (watch.token_at_s, watch.canary_misses) == (token_at_s, misses)
    assert watch.tokens_total == 100.0


@pytest.mark.parametrize(
    ("before", "event", "worked_at_s"),
    [
        (90.0, IDLE, NOW + 1.0),
        (100.0, IDLE, 5.0),
        (None, IDLE, 5.0),
        (100.0, replace(IDLE, tokens_total=None), 5.0),
    ],
)
def test_work_is_a_counter_that_was_seen_to_move(before, event, worked_at_s) -> None:
    """The first reading of a counter says nothing of when its tokens were made."""
    _, watch = counted(event, tokens_total=before, worked_at_s=5.0)

    assert watch.worked_at_s == worked_at_s


@pytest.mark.parametrize(
    ("running", "waiting", "before", "since"),
    [
        (0, 0, None, None),
        (0, 0, NOW - 5.0, None),
        (1, 0, None, NOW + 1.0),
        (0, 1, None, NOW + 1.0),
        (1, None, NOW - 5.0, NOW - 5.0),
        (None, None, NOW - 5.0, NOW - 5.0),
        (None, None, None, None),
        (None, 1, None, None),
    ],
)
def test_since_when_requests_wait(running, waiting, before, since) -> None:
    event = replace(IDLE, running=running, waiting=waiting)

    assert counted(event, outstanding_since_s=before)[1].outstanding_since_s == since


LONG_AGO = {"tokens_total": 100.0, "busy_at_s": 5.0, "canary_done_at_s": NOW - 50.0}


@pytest.mark.parametrize(
    ("event", "more", "busy_at_s"),
    [
        (IDLE, {}, 5.0),
        (BUSY, {}, NOW + 1.0),
        (replace(IDLE, waiting=1), {}, NOW + 1.0),
        (replace(IDLE, running=None), {}, NOW + 1.0),
        (IDLE, {"tokens_total": 90.0}, NOW + 1.0),
        (IDLE, {"tokens_total": 90.0, "canary_sent_at_s": NOW}, 5.0),
        (IDLE, {"tokens_total": 90.0, "canary_done_at_s": NOW - 3.0}, 5.0),
        (IDLE, {"tokens_total": 90.0, "canary_done_at_s": NOW - 3.1}, NOW + 1.0),
    ],
)
def test_sparkds_own_tokens_are_nobody_who_asks(event, more, busy_at_s) -> None:
    assert counted(event, **{**LONG_AGO, **more})[1].busy_at_s == busy_at_s


@pytest.mark.parametrize(
    ("known", "event", "more", "news"),
    [
        (None, IDLE, {}, True),
        (IDLE, IDLE, {}, False),
        (IDLE, replace(IDLE, tokens_total=200.0), {"canary_done_at_s": NOW - 5.0}, False),
        (IDLE, replace(IDLE, tokens_total=200.0), {"canary_done_at_s": NOW}, True),
        (IDLE, replace(IDLE, healthy=False), {}, True),
        (IDLE, replace(IDLE, answered=False), {}, True),
        (IDLE, replace(IDLE, running=None), {}, True),
        (replace(IDLE, running=None), replace(IDLE, running=None), {}, False),
        (IDLE, BUSY, {}, True),
        (BUSY, replace(BUSY, running=2), {"outstanding_since_s": NOW - 5.0}, False),
    ],
)
def test_counters_are_news_where_something_is_decided_otherwise(known, event, more, news) -> None:
    watch = {"engine": known, "tokens_total": 100.0, "canary_done_at_s": NOW - 50.0, **more}

    assert counted(event, **watch)[0].news is news


# -- the real generation -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ok", "misses", "token_at_s", "latency_s"),
    [(True, 0, NOW + 1.0, 0.7), (False, 3, NOW, 0.4), (None, 2, NOW, 0.4)],
)
def test_a_generation_that_came_right_is_a_token_and_a_wrong_one_a_miss(
    ok, misses, token_at_s, latency_s
) -> None:
    before = {"canary_sent_at_s": NOW - 1, "canary_misses": 2, "canary_latency_s": 0.4}

    watch = after(canary, ev.CanaryAnswered(7, ok, 0.7, "why"), before).lead.watch

    assert (watch.canary_ok, watch.canary_why, watch.canary_done_at_s) == (ok, "why", NOW + 1.0)
    assert watch.canary_sent_at_s is None
    assert (watch.canary_misses, watch.token_at_s, watch.canary_latency_s) == (misses, token_at_s, latency_s)
    assert watch.worked_at_s == (NOW + 1.0 if ok else float("-inf"))


def test_what_an_engine_says_of_its_memory_while_it_serves_is_kept() -> None:
    """The line may be read after the generation was verified, and it comes but once."""
    known = ev.PhaseSeen(7, Phase.ALLOCATING_KV_CACHE)
    first = step(head_state(watch={"progress": known}), (ev.TimerFired(),), NOW, POLICY)
    said = step(first.state, (ev.PhaseSeen(7, kv_cache_bytes=5 << 30),), NOW + 0.1, POLICY)

    assert [r.kept.said.kv_cache_bytes for r in said.records if isinstance(r, KeptChanged)] == [5 << 30]
