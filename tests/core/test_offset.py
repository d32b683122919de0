"""A peer's clock against this node's: what is certain whatever messages waited, and what is placed by it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from core.given import HEAD, NOW, WORKER, head_state, status_of_worker, turn_of, worker_seen, worker_state
from sparkd.core import events as ev
from sparkd.core.commands import PublishTelemetry
from sparkd.core.evidence import evidence_of
from sparkd.core.fold import fold
from sparkd.core.messages import Echo, Report, Telemetry
from sparkd.core.offset import DRIFT, UNKNOWN, UNMEASURED_S, Offset, heard, of_report, pair_error_s, placed
from sparkd.core.publish import publish
from sparkd.core.records import Times
from sparkd.core.state import Failure
from sparkd.core.turn import Turn
from sparkd.signals.model import Proof, Signal
from sparkd.signals.precedence import TIE_S
from sparkd.words import Phase

ROUNDING_S = 1e-6
delays = st.floats(0.0, 30.0)
rounds = st.tuples(delays, st.floats(0.0, 5.0), delays)
short = st.tuples(*[st.floats(0.0, 5.0)] * 3)
"""How long a message waited, how long it was kept until it was repeated, how long that waited."""


@dataclass
class Clock:
    """A peer's clock that runs a little wrong: `behind_s` at the time 0 of this node."""

    behind_s: float
    rate: float = 0.0

    def at(self, own_s: float) -> float:
        return (own_s - self.behind_s) * (1 + self.rate)

    def offset_s(self, own_s: float) -> float:
        return own_s - self.at(own_s)


clocks = st.builds(Clock, st.floats(-1e6, 1e6), st.floats(-0.9 * DRIFT, 0.9 * DRIFT))


def exchanged(known: Offset, clock: Clock, start_s: float, waits: tuple[float, float, float]):
    """Return what is known after one exchange that began at *start_s*, and when it was over."""
    there_s, kept_s, back_s = waits
    received_s = start_s + there_s
    answered_s = received_s + kept_s
    now = answered_s + back_s
    return heard(known, clock.at(answered_s), now, Echo("a#1", start_s, clock.at(received_s))), now


def after_all(clock: Clock, times) -> tuple[Offset, float]:
    known, now = UNKNOWN, NOW
    for waits in times:
        known, now = exchanged(known, clock, now, waits)
    return known, now


def signal_of(at_s: float, node: str = WORKER, **more) -> Signal:
    return Signal("s", "ray_oom_kill", Proof.PROVES, node, "raylet.out", "…", at_s, **more)


def reported(clock: Clock, known: Offset, happened_s: float, sent_s: float, waited_s: float) -> Signal:
    """Return what this node makes of an event that came in a report."""
    sent, received_s = clock.at(sent_s), sent_s + waited_s
    age_s = sent - clock.at(happened_s)
    signal = signal_of(received_s - age_s)
    report = Report(WORKER, "b#1", 1, (signal,), sent, received_s)
    return placed(of_report(known, report), report, signal)


# -- the bounds ----------------------------------------------------------------------------------


@given(clocks, st.lists(rounds, min_size=1, max_size=8))
def test_the_truth_is_within_the_bounds_whatever_waits(clock, times) -> None:
    known, now = after_all(clock, times)

    assert known.low_s - ROUNDING_S <= clock.offset_s(now) <= known.high_s + ROUNDING_S


@given(
    clocks,
    st.lists(rounds, min_size=1, max_size=8),
    st.floats(0, 20),
    st.floats(0, 60),
    st.tuples(delays, delays),
)
def test_an_order_of_events_further_apart_than_the_error_is_never_turned_around(
    clock, times, back_s, between_s, post
) -> None:
    known, now = after_all(clock, times)
    theirs_s, own_s = now - back_s, now - back_s + between_s - 30.0

    signal = reported(clock, known, theirs_s, now + post[0], post[1])

    assume(abs(theirs_s - own_s) > signal.error_s + ROUNDING_S)
    assert (theirs_s < own_s) == (signal.at_s < own_s)


@given(clocks, st.lists(rounds, max_size=5), st.floats(0.0, 0.01), st.floats(0.0, 0.01))
def test_one_quick_exchange_is_enough_and_slow_ones_lose_nothing(clock, times, there_s, back_s) -> None:
    known, now = after_all(clock, times)
    quick, now = exchanged(known, clock, now, (there_s, 1.0, back_s))
    slow, late = exchanged(quick, clock, now, (20.0, 1.0, 20.0))

    assert quick.error_s <= (there_s + back_s) / 2 + 2 * DRIFT * 1.1
    assert slow.error_s <= quick.error_s + 2 * DRIFT * (late - now)


def test_a_word_alone_measures_nothing() -> None:
    assert heard(UNKNOWN, 5.0, NOW).error_s == float("inf")


@pytest.mark.parametrize("lost_s", [60.0, -60.0])
@given(st.floats(-1e6, 1e6), st.lists(short, min_size=1, max_size=5), short)
def test_a_clock_that_stood_still_is_measured_anew(lost_s, behind_s, times, after_it) -> None:
    """The peer's (60 s further behind), or this node's own."""
    known, now = after_all(Clock(behind_s), times)
    stepped = Clock(behind_s + lost_s)

    again, now = exchanged(known, stepped, now, after_it)

    assert again.low_s - ROUNDING_S <= stepped.offset_s(now) <= again.high_s + ROUNDING_S


def test_an_echo_of_before_this_node_stood_still_counts_no_more() -> None:
    known, now = exchanged(UNKNOWN, Clock(100.0), NOW, (0.01, 1.0, 0.01))

    again = heard(known, now - 40.0, now, Echo("a#1", NOW, NOW + 0.01 - 100.0))

    assert (again.low_s, again.high_s) == (float("-inf"), 40.0)


# -- what is placed ------------------------------------------------------------------------------


def test_a_report_that_waited_is_placed_by_when_it_was_said() -> None:
    known, now = exchanged(UNKNOWN, Clock(100.0), NOW, (0.01, 0.5, 0.01))

    signal = reported(Clock(100.0), known, now, now + 1.0, waited_s=8.0)

    assert abs(signal.at_s - now) <= signal.error_s < 0.03


def test_of_a_peer_without_stamps_the_receipt_places() -> None:
    signal = signal_of(NOW - 3)
    report = Report(WORKER, "b#1", 1, (signal,), None, NOW)

    assert of_report(UNKNOWN, report) is UNKNOWN
    assert placed(Offset(5.0, 5.1, NOW), report, signal) == replace(signal, error_s=UNMEASURED_S)


def test_what_is_not_measured_yet_is_placed_by_the_receipt() -> None:
    signal = signal_of(NOW - 3)
    report = Report(WORKER, "b#1", 1, (signal,), 50.0, NOW)

    assert placed(of_report(UNKNOWN, report), report, signal) == replace(signal, error_s=UNMEASURED_S)


def test_two_nodes_are_as_far_apart_as_the_worst_two_are_wrong() -> None:
    own = signal_of(NOW, HEAD)
    peers = [signal_of(NOW, f"spark-{n}", error_s=error_s) for n, error_s in enumerate((0.1, 0.3, 0.2))]
    twice = signal_of(NOW, "spark-1", error_s=0.01)

    assert pair_error_s(()) == pair_error_s((own,)) == TIE_S
    assert pair_error_s((own, peers[0])) == TIE_S + 0.1
    assert pair_error_s((own, *peers, twice)) == TIE_S + 0.3 + 0.2


def test_the_judgement_knows_the_error_of_what_it_is_given() -> None:
    signals = (signal_of(NOW, HEAD), signal_of(NOW, error_s=0.004))
    failure = Failure(7, Phase.SERVING, Times(NOW, NOW), signals)

    assert evidence_of(turn_of(head_state()), failure).order_error_s == TIE_S + 0.004


# -- in the core ---------------------------------------------------------------------------------


def after(state, event) -> Turn:
    turn = turn_of(state)
    fold(turn, event)
    return turn


def said(sent_s: float | None, *echoes: Echo) -> ev.TelemetryReceived:
    made = Telemetry(WORKER, "b#1", Phase.SERVING, 7, sent_s=sent_s, echoes=echoes)
    return ev.TelemetryReceived(made)


def test_telemetry_measures_and_is_no_news() -> None:
    turn = after(head_state(), said(400.0, Echo("b#2", 1.0, 1.0), Echo("a#1", NOW - 1, 399.2)))
    peer = turn.state.peers[0]

    assert not turn.news
    assert (peer.offset.low_s, peer.offset.high_s) == (pytest.approx(599.8 - DRIFT), 600.0)
    assert peer.echo == Echo("b#1", 400.0, NOW)


def test_without_a_stamp_nothing_is_measured_and_nothing_repeated() -> None:
    peer = after(head_state(), said(None)).state.peers[0]

    assert (peer.offset, peer.echo) == (UNKNOWN, None)


def test_a_new_instance_may_have_a_new_clock() -> None:
    known = worker_seen(offset=Offset(1.0, 2.0, NOW), echo=Echo("b#1", 1.0, NOW))
    status = status_of_worker(instance="b#2")

    same = after(head_state(peer=known), ev.StatusReceived(status_of_worker(), ev.Path.MQTT))
    anew = after(head_state(peer=known), ev.StatusReceived(status, ev.Path.MQTT)).state.peers[0]

    assert same.state.peers[0].offset == known.offset
    assert (anew.offset, anew.echo) == (UNKNOWN, None)


def test_evidence_is_noted_where_it_happened() -> None:
    known = worker_seen(offset=Offset(599.98, 600.0, NOW))
    signal = signal_of(NOW - 2.0)
    report = Report(WORKER, "b#1", 1, (signal,), 395.0, NOW)

    noted = after(head_state(peer=known), ev.ReportReceived(report, ev.Path.MQTT)).lead.recent[0]

    assert noted.at_s == pytest.approx(NOW - 2.0 - 5.01)
    assert noted.error_s == pytest.approx(0.01 + DRIFT * 2.0)


@pytest.mark.parametrize("state", [head_state(), worker_state()])
def test_what_was_heard_is_repeated_with_the_own_stamp(state) -> None:
    echo = Echo("x#1", 400.0, NOW - 0.2)
    turn = turn_of(replace(state, peers=(replace(state.peers[0], echo=echo),)))

    publish(turn)

    (telemetry,) = [c.telemetry for c in turn.commands if isinstance(c, PublishTelemetry)]
    assert (telemetry.sent_s, telemetry.echoes) == (NOW, (echo,))
