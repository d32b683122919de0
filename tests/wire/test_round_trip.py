"""What is said is what is heard, for everything that can be said."""

from __future__ import annotations

import json
from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkd.core.messages import Echo, IncidentNotice, Intent, MemberStatus, Report, Telemetry, UnitStatus
from sparkd.signals.model import Quantity, Signal
from sparkd.wire import shapes
from sparkd.wire.codec import Encoder, Message, kind_of, split
from sparkd.wire.envelope import SIZE_MAX
from sparkd.wire.shapes import Will
from sparkd.wire.topics import Kind
from sparkd.words import Settings
from wire import samples
from wire.samples import KEY, NOW, REPORT, SIGNAL, STATUS, decoder, encoder_of


def through(message: Message) -> Message:
    """Return *message* as the other side hears it."""
    sealed = encoder_of(message).encode(message, NOW)
    return decoder().decode(sealed.topic, sealed.payload, NOW).message


@pytest.mark.parametrize("message", samples.MESSAGES, ids=kind_of)
def test_each_kind_survives(message: Message) -> None:
    """Every kind of message comes back equal."""
    assert message == through(message)


@given(samples.statuses | samples.intents | samples.telemetries | samples.wills)
def test_any_message_survives(message: Message) -> None:
    """So does any message whose values are within the bounds."""
    assert message == through(message)


@pytest.mark.parametrize(
    ("message", "topic", "retain"),
    [
        (samples.STATUS, "sparkd/lab/node/spark-2/status", True),
        (samples.WILL, "sparkd/lab/node/spark-2/will", False),
        (samples.TELEMETRY, "sparkd/lab/node/spark-2/telemetry", False),
        (samples.REPORT, "sparkd/lab/node/spark-2/report", False),
        (samples.INTENT, "sparkd/lab/intent", True),
    ],
)
def test_each_kind_has_its_topic(message: Message, topic: str, retain: bool) -> None:
    """The topics are those that the documentation names; only levels are retained."""
    sealed = encoder_of(message).encode(message, NOW)

    assert (topic, retain) == (sealed.topic, sealed.retain)


@given(samples.notices)
def test_an_incident_is_plain_json_for_people_and_automations(notice: IncidentNotice) -> None:
    sealed = encoder_of(notice).encode(notice, NOW)
    body = json.loads(sealed.payload.partition(b"\n")[2])["body"]

    assert sealed.topic == "sparkd/lab/incident"
    assert not sealed.retain
    assert (body["incident"], body["state"]) == (notice.incident, notice.state)
    assert body.get("cause", "") == notice.cause


def test_times_travel_as_ages() -> None:
    """A signal's time is translated by its age: the two clocks need not agree."""
    sealed = encoder_of(REPORT).encode(REPORT, NOW)

    heard = decoder().decode(sealed.topic, sealed.payload, now=100.0).message

    assert [signal.at_s for signal in heard.signals] == [97.0, 97.0]
    assert (heard.sent_s, heard.received_s) == (NOW, 100.0)


@given(st.lists(samples.odd_signals, max_size=5))
def test_evidence_can_always_be_sent(signals: list[Signal]) -> None:
    """No log line, however odd, keeps a report from being said and heard."""
    report = Report(samples.WORKER, samples.INSTANCE, 1, tuple(signals))

    for part in split(report):
        assert len(part.signals) == len(through(part).signals)


@pytest.mark.parametrize("letter", ["x", '"', "\\", "\n", "\x00", "ü", "😀"])
def test_large_reports_are_split(letter: str) -> None:
    """Parts keep the numbering, lose nothing, and each fits into one frame whatever the text is made of."""
    large = replace(
        SIGNAL, quote=letter * 5000, quantities=(Quantity("n" * 64, -1.2345678901234567e17),) * 30
    )
    report = Report(samples.WORKER, samples.INSTANCE, 41, (large,) * 130)

    parts = list(split(report))

    assert list(range(41, 171)) == [p.first_seq + i for p in parts for i in range(len(p.signals))]
    assert all(len(encoder_of(part).encode(part, NOW).payload) <= SIZE_MAX for part in parts)


def test_an_empty_report_is_one_part() -> None:
    """Nothing to report is an answer, too."""
    empty = replace(REPORT, signals=())

    assert [empty] == list(split(empty))


@pytest.mark.parametrize(
    ("made", "field", "elsewhere"),
    [
        (MemberStatus, shapes.STATUS, {"node", "instance"}),
        (Intent, shapes.INTENT, {"node", "coordinator"}),
        (Report, shapes.REPORT, {"node", "instance", "received_s"}),
        (Telemetry, shapes.TELEMETRY, {"node", "instance"}),
        (Will, shapes.WILL, {"node", "instance"}),
        (Settings, shapes.SETTINGS, set()),
        (UnitStatus, shapes.UNIT, set()),
        (Signal, shapes.SIGNAL, {"error_s"}),
        (Echo, shapes.ECHO, set()),
        (Quantity, shapes.QUANTITY, set()),
    ],
)
def test_every_field_is_on_the_wire(made: type, field: shapes.Field, elsewhere: set[str]) -> None:
    """A field that is added to a message must get its line in the table, with its bounds."""
    assert {f.name for f in fields(made)} - elsewhere == field.parts


def test_who_says_it_stands_once() -> None:
    """Names stand in the signed envelope only: the body cannot contradict it."""
    sealed = encoder_of(STATUS).encode(STATUS, NOW)

    content = json.loads(sealed.payload.split(b"\n", 1)[1])

    assert {"v", "kind", "cluster", "from", "instance", "seq", "body"} == content.keys()
    assert not {"node", "instance"} & content["body"].keys()


def test_numbers_grow_for_each_kind() -> None:
    """Each kind has its own numbers, from 1."""
    encoder = Encoder(KEY, "lab", samples.WORKER, samples.INSTANCE)
    listener = decoder()

    heard = [
        listener.decode(sealed.topic, sealed.payload, NOW).seq
        for message in (STATUS, STATUS, samples.TELEMETRY, STATUS)
        for sealed in [encoder.encode(message, NOW)]
    ]

    assert heard == [1, 2, 1, 3]
    assert tuple(encoder.said(kind) for kind in (Kind.STATUS, Kind.TELEMETRY, Kind.REPORT)) == (3, 1, 0)
