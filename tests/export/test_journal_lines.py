"""Lines as entries of the journal: text for people, fields for `journalctl SPARKD_…=`."""

from __future__ import annotations

import logging
import os
from typing import Any

import pytest
import structlog

from sparkd.core.records import IncidentClosed, PhaseChanged, Times
from sparkd.export.journal_lines import JournalLines, priority_of, send_to_journal
from sparkd.export.logs import LogExporter, configure
from sparkd.words import Phase


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What reached the journal, with logging set up as in a unit."""
    entries: list[dict[str, Any]] = []
    monkeypatch.setattr(
        "sparkd.export.logs.send_to_journal",
        lambda _out: lambda text, **fields: entries.append({"MESSAGE": text, **fields}),
    )
    root = logging.getLogger()
    before, level = root.handlers, root.level
    configure()
    yield entries
    root.handlers, root.level = before, level
    structlog.reset_defaults()


def test_an_incident_can_be_asked_for_by_its_number_and_cause(sent) -> None:
    told = LogExporter(lambda: 0.0)
    told.records([IncidentClosed(3, "recovered", "ray_memory_monitor", 7, 1, Times(detected_s=1.0))])
    (entry,) = sent
    assert entry["SPARKD_INCIDENT"] == "3"
    assert entry["SPARKD_CAUSE"] == "ray_memory_monitor"
    assert entry["SPARKD_GENERATION"] == "7"
    assert entry["PRIORITY"] == "6"
    assert entry["MESSAGE"].startswith("incident_closed ")
    assert "cause='ray_memory_monitor'" in entry["MESSAGE"]
    assert "SPARKD_NEEDS" not in entry
    assert entry["CODE_FUNC"], "without one the library reads every file of the stack, for each line"


def test_a_phase_carries_its_fields(sent) -> None:
    LogExporter(lambda: 0.0).records([PhaseChanged(2, Phase.FORMING, Phase.SERVING, "why", 1.5)])
    assert sent[0]["SPARKD_AFTER"] == "serving"


def test_other_libraries_lines_and_tracebacks_arrive(sent) -> None:
    logging.getLogger("aiomqtt").warning("lost %s", "it")
    try:
        int("broken")
    except ValueError:
        structlog.get_logger("sparkd").error("command_failed", exc_info=True)
    assert (sent[0]["MESSAGE"], sent[0]["LOGGER"], sent[0]["PRIORITY"]) == ("lost it", "aiomqtt", "4")
    assert sent[1]["PRIORITY"] == "3"
    assert "ValueError: invalid literal" in sent[1]["MESSAGE"]


@pytest.mark.parametrize(
    ("level", "priority"), [(10, 7), (20, 6), (25, 6), (30, 4), (40, 3), (50, 2), (5, 7)]
)
def test_levels_are_syslogs(level: int, priority: int) -> None:
    assert priority_of(level) == priority


def test_a_journal_that_does_not_take_it_is_no_reason_to_end(capsys) -> None:
    def broken(*_args: object, **_fields: object) -> None:
        raise OSError("no such socket")

    record = logging.LogRecord("x", logging.INFO, "", 0, {"event": "hello"}, (), None)
    JournalLines(broken).emit(record)
    assert "no such socket" in capsys.readouterr().err


def test_only_a_stream_that_is_the_journals_goes_there(tmp_path, monkeypatch) -> None:
    pytest.importorskip("systemd.journal", reason="systemd-python is not installed")
    with (tmp_path / "stderr").open("w") as stream:
        monkeypatch.delenv("JOURNAL_STREAM", raising=False)
        assert send_to_journal(stream) is None
        there = os.fstat(stream.fileno())
        monkeypatch.setenv("JOURNAL_STREAM", f"{there.st_dev}:{there.st_ino + 1}")
        assert send_to_journal(stream) is None
        monkeypatch.setenv("JOURNAL_STREAM", f"{there.st_dev}:{there.st_ino}")
        assert send_to_journal(stream) is not None
