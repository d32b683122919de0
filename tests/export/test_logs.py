"""One canonical line a record; dropped messages at most once a minute."""

from __future__ import annotations

import io
import json
import logging

import pytest
import structlog
from structlog.testing import CapturingLogger

from sparkd.core.records import (
    InvariantBroken,
    MessageDropped,
    UnitChanged,
    Verified,
    WaitingFor,
)
from sparkd.export.logs import LogExporter, configure, line_of
from store.lives import ASKED, LOWERED, closed, life, opened, remedied


@pytest.fixture
def stream():
    """The process's logging, written to memory, put back afterwards."""
    root = logging.getLogger()
    before = root.handlers, root.level
    text = io.StringIO()
    yield text
    root.handlers, root.level = before[0], before[1]
    structlog.reset_defaults()


def lines(text):
    return [json.loads(line) for line in text.getvalue().splitlines()]


def test_each_record_is_one_json_line(stream):
    configure("INFO", stream)
    records = [record for step in life() for record in step]
    records += [WaitingFor(("a", "b")), UnitChanged("serve", 14, "running"), InvariantBroken("x")]

    LogExporter(lambda: 0.0).records(records)

    found = lines(stream)
    assert len(found) == len(records)
    assert all({"event", "level", "timestamp", "logger"} <= set(line) for line in found)


def test_the_line_of_a_remedy_says_cause_numbers_and_what_changes():
    level, event, fields = line_of(remedied())

    assert (level, event) == (logging.WARNING, "remedied")
    assert fields["cause"] == "ray_oom_kill"
    assert fields["used_bytes"] == 122e9
    assert fields["generation"] == 13
    assert fields["settings_changed"] == {
        "ray_memory_threshold": [ASKED.ray_memory_threshold, None],
        "kv_cache_bytes": [None, LOWERED.kv_cache_bytes],
    }


def test_the_line_of_a_closed_incident_says_how_long_each_stage_took():
    level, event, fields = line_of(closed())

    assert (level, event) == (logging.INFO, "incident_closed")
    assert fields["recovery_s"] == 871
    assert fields["serving_after_s"] == 855


@pytest.mark.parametrize(
    ("record", "level"),
    [
        (opened(), logging.WARNING),
        (closed(outcome="escalated"), logging.WARNING),
        (Verified(1, 0.4, 30.0), logging.INFO),
        (InvariantBroken("x"), logging.ERROR),
    ],
)
def test_levels(record, level):
    assert line_of(record)[0] == level


def test_dropped_messages_are_told_once_a_minute_with_what_was_not_shown():
    now = [0.0]
    logger = CapturingLogger()
    exporter = LogExporter(lambda: now[0], logger)

    for second in range(130):
        now[0] = float(second)
        exporter.records([MessageDropped("status", "replay", "spark-b")] * 10)
        exporter.records([MessageDropped("intent", "old_stamp", "spark-a")])

    told = [call.kwargs for call in logger.calls if call.kwargs["reason"] == "replay"]
    assert [entry["not_shown"] for entry in told] == [0, 599, 599]
    assert len(logger.calls) == 6


def test_reasons_made_up_by_a_sender_do_not_grow_memory():
    exporter = LogExporter(lambda: 0.0, CapturingLogger())

    exporter.records([MessageDropped("status", str(number)) for number in range(10_000)])

    assert len(exporter._told) <= 256


def test_lines_of_libraries_look_the_same_and_levels_hold(stream):
    configure("WARNING", stream)

    logging.getLogger("aiohttp.server").warning("from %s", "outside")
    logging.getLogger("aiohttp.server").info("not shown")
    structlog.get_logger("sparkd").info("not shown")

    assert [(line["event"], line["logger"]) for line in lines(stream)] == [("from outside", "aiohttp.server")]


def test_an_exception_is_one_line(stream):
    configure("INFO", stream)

    try:
        int("broken")
    except ValueError:
        structlog.get_logger("sparkd").exception("handler_failed")

    assert "broken" in json.dumps(lines(stream)[0])


def test_a_terminal_gets_text(stream):
    configure("INFO", stream, as_json=False)

    structlog.get_logger("sparkd").info("phase_changed", after="serving")

    assert "phase_changed" in stream.getvalue()
    assert not stream.getvalue().startswith("{")
