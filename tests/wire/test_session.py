"""The parts of a session that need no broker: the outbox, twins, the signed requests."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sparkd.core.messages import Report
from sparkd.wire import peerview
from sparkd.wire.codec import Message, Received
from sparkd.wire.outbox import REPORTS_MAX, Outbox
from sparkd.wire.topics import Kind
from sparkd.wire.twins import Twins
from wire.samples import INTENT, KEY, REPORT, STATUS, TELEMETRY, WORKER


def taken(outbox: Outbox) -> list[Message]:
    """Return everything that waits, in the order in which it would be sent."""
    messages = []
    while (waiting := outbox.next()) is not None:
        outbox.done(waiting)
        messages.append(waiting.message)
    return messages


def test_an_intent_goes_first() -> None:
    """Orders overtake everything that waits."""
    outbox = Outbox()
    for message in (STATUS, REPORT, INTENT):
        outbox.put(message)

    assert taken(outbox) == [INTENT, STATUS, REPORT]


def test_only_the_newest_level_waits() -> None:
    """A newer status takes the place of the older one: evidence before it still goes before it."""
    outbox = Outbox()
    newer = replace(STATUS, report_seq=41)
    for message in (REPORT, STATUS, newer):
        outbox.put(message)

    assert [REPORT, newer] == taken(outbox)


def test_reports_are_bounded() -> None:
    """Too many reports push out the oldest, and the caller is told."""
    outbox = Outbox()
    reports = [Report(WORKER, "i", number, ()) for number in range(1, REPORTS_MAX + 3)]

    kept = [outbox.put(report) for report in reports]

    assert kept == [True] * REPORTS_MAX + [False] * 2
    assert reports[2:] == taken(outbox)


def test_telemetry_waits_only_in_a_session() -> None:
    """Telemetry is worth nothing later."""
    outbox = Outbox()
    outbox.put(TELEMETRY)
    assert taken(outbox) == []

    outbox.connected()
    outbox.put(TELEMETRY)
    assert taken(outbox) == [TELEMETRY]

    outbox.put(TELEMETRY)
    outbox.disconnected()
    assert taken(outbox) == []


def test_levels_are_said_anew_in_each_session() -> None:
    """A broker may have forgotten what it retained."""
    outbox = Outbox()
    outbox.put(STATUS)
    outbox.put(INTENT)
    taken(outbox)

    outbox.connected()

    assert taken(outbox) == [INTENT, STATUS]


@pytest.mark.parametrize("newer", [replace(STATUS, report_seq=41), STATUS])
def test_what_was_replaced_while_it_was_sent_still_waits(newer: Message) -> None:
    """Having sent the old status does not mean having sent the new one, also where they are equal."""
    outbox = Outbox()
    outbox.put(STATUS)
    sending = outbox.next()
    outbox.put(newer)

    outbox.done(sending)

    assert taken(outbox) == [newer]


def telemetry(seq: int, instance: str = "other") -> Received:
    return Received(Kind.TELEMETRY, WORKER, instance, seq, TELEMETRY)


def heard(
    twins: Twins, first: int, said: int, times: tuple[float, ...], instance: str = "other"
) -> list[bool]:
    return [twins.heard(telemetry(first + i, instance), said + i, now) for i, now in enumerate(times)]


def test_the_newcomer_finds_its_elder() -> None:
    """A daemon that has said less than its living namesake is the newcomer."""
    assert heard(Twins("mine"), 1000, 3, (0.0, 1.0, 2.0)) == [False, False, True]


def test_the_elder_stays() -> None:
    """The other of the two goes on."""
    assert heard(Twins("mine"), 3, 1000, (0.0, 1.0, 2.0, 3.0, 4.0)) == [False] * 5


def test_equals_agree_on_who_ends() -> None:
    """Two that started at once: exactly one of them ends."""
    assert heard(Twins("a"), 5, 5, (0.0, 1.0, 2.0), "b")[-1]
    assert not heard(Twins("b"), 5, 5, (0.0, 1.0, 2.0), "a")[-1]


def test_last_words_are_no_twin() -> None:
    """What a predecessor left in the broker's queues comes at once, not for a while."""
    assert heard(Twins("mine"), 1000, 0, (0.0,) * 10) == [False] * 10


def test_only_telemetry_tells_twins() -> None:
    """A status may come at any rate: it tells nobody's age."""
    twins = Twins("mine")
    status = Received(Kind.STATUS, WORKER, "other", 9, STATUS)

    assert not any(twins.heard(status, 0, now) for now in (0.0, 1.0, 2.0, 3.0))


def test_the_memory_of_twins_is_bounded() -> None:
    """A daemon that restarts for ever under this name is remembered a few times."""
    twins = Twins("mine")
    for number in range(100):
        twins.heard(telemetry(9, f"i{number}"), 0, 0.0)

    assert len(twins._heard) == 8


def test_a_request_is_signed_for_one_node_and_target() -> None:
    """A request recorded on the way to one node is none for another, nor for another question."""
    target = peerview.reports_target(7, "0" * 32)
    given = peerview.request_mac(KEY, WORKER, target)

    assert target == "/peer/reports?from=7&nonce=" + "0" * 32
    assert peerview.is_request(KEY, WORKER, target, given)
    assert not peerview.is_request(KEY, "spark-1", target, given)
    assert not peerview.is_request(KEY, WORKER, peerview.status_target("0" * 32), given)
    assert not peerview.is_request(KEY[::-1], WORKER, target, given)
    assert not peerview.is_request(KEY, WORKER, target, "é")


def test_what_a_request_says_is_bounded() -> None:
    """Sequence numbers and nonces have one form."""
    assert (peerview.first_seq_of("7"), peerview.first_seq_of("0")) == (7, 1)
    assert [peerview.first_seq_of(text) for text in ("", "-1", "1e3", "9" * 16)] == [None] * 4
    assert [peerview.is_nonce(n) for n in ("ab" * 16, "AB" * 16, "ab" * 15)] == [True, False, False]
