"""Log lines: one canonical line a record; JSON for machines, colours on a terminal, fields in the journal."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any, TextIO

import structlog

from sparkd.core.records import (
    IncidentClosed,
    IncidentOpened,
    InvariantBroken,
    Judged,
    KeptChanged,
    MemberRan,
    MemberRested,
    MemoryNotBack,
    MessageDropped,
    PeerChanged,
    PhaseChanged,
    PlanDoubted,
    Record,
    Remedied,
    SessionChanged,
    SettingsAdopted,
    StampAdvanced,
    UnitChanged,
    Verified,
    WaitingFor,
)
from sparkd.export.journal_lines import JournalLines, send_to_journal
from sparkd.export.stages import recovery_s, stages_of
from sparkd.words import Settings

DROPPED_EVERY_S = 60.0
_KEYS_MAX = 256
_SHARED: tuple[Any, ...] = (
    structlog.stdlib.add_logger_name,
    structlog.stdlib.add_log_level,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
)


def configure(level: str = "INFO", stream: TextIO | None = None, *, as_json: bool | None = None) -> None:
    """Set up logging for the process, that of libraries included.

    Args:
        level: lowest level that is shown ("DEBUG", "INFO", "WARNING", "ERROR").
        stream: where to; standard error where it is not given.
        as_json: one JSON object a line; None = only where the stream is no terminal.

    Where the stream is connected to the journal, lines are its entries, with fields.
    """
    out = stream or sys.stderr
    send = send_to_journal(out)
    handler = _stream_handler(out, as_json=as_json) if send is None else JournalLines(send)
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level)
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *_SHARED,
            structlog.stdlib.PositionalArgumentsFormatter(),
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )


def _stream_handler(out: TextIO, *, as_json: bool | None) -> logging.Handler:
    plain = not out.isatty() if as_json is None else as_json
    render: list[Any] = [structlog.stdlib.ProcessorFormatter.remove_processors_meta]
    if plain:
        render += [structlog.processors.dict_tracebacks, structlog.processors.JSONRenderer(default=str)]
    else:
        render += [structlog.dev.ConsoleRenderer()]
    handler = logging.StreamHandler(out)
    handler.setFormatter(structlog.stdlib.ProcessorFormatter(foreign_pre_chain=_SHARED, processors=render))
    return handler


class LogExporter:
    """An `Exporter` that writes records as log lines."""

    def __init__(self, now: Callable[[], float], logger: Any = None) -> None:
        """Make it.

        Args:
            now: monotonic seconds: how often a dropped message is told.
            logger: a structlog logger; the process's own where it is not given.
        """
        self._now = now
        self._log = logger if logger is not None else structlog.get_logger("sparkd")
        self._told: dict[tuple[str, str], tuple[float, int]] = {}

    def records(self, records: Sequence[Record]) -> None:
        """Write the records of one step."""
        for record in records:
            if isinstance(record, MessageDropped):
                self._dropped(record)
            else:
                level, event, fields = line_of(record)
                self._log.log(level, event, **fields)

    def _dropped(self, record: MessageDropped) -> None:
        key = (record.kind, record.reason)
        now = self._now()
        told_at_s, silent = self._told.get(key, (float("-inf"), 0))
        if now - told_at_s < DROPPED_EVERY_S:
            self._told[key] = (told_at_s, silent + 1)
            return
        if len(self._told) >= _KEYS_MAX:
            self._told.clear()
        self._told[key] = (now, 0)
        self._log.warning("message_dropped", **asdict(record), not_shown=silent)


def line_of(record: Record) -> tuple[int, str, dict[str, Any]]:
    """Return (level, event, fields) of a record's line. Fields are flat; names end in their unit."""
    match record:
        case (
            PhaseChanged()
            | WaitingFor()
            | UnitChanged()
            | MessageDropped()
            | KeptChanged()
            | Judged()
            | MemberRan()
            | MemberRested()
            | PlanDoubted()
        ):
            level = logging.DEBUG if isinstance(record, _FOR_THE_DISK) else logging.INFO
            level = logging.WARNING if isinstance(record, PlanDoubted) else level
            return level, _EVENTS[type(record)], asdict(record)
        case PeerChanged(present=there) | SessionChanged(connected=there):
            return logging.INFO if there else logging.WARNING, _EVENTS[type(record)], asdict(record)
        case StampAdvanced(seen=seen):
            return logging.INFO, "stamp_advanced", asdict(seen)
        case IncidentOpened() | MemoryNotBack():
            return logging.WARNING, _EVENTS[type(record)], asdict(record)
        case Remedied():
            return logging.WARNING, "remedied", _remedied(record)
        case IncidentClosed():
            level = logging.INFO if record.outcome == "recovered" else logging.WARNING
            return level, "incident_closed", _closed(record)
        case SettingsAdopted(settings=settings, reason=reason):
            return logging.INFO, "settings_adopted", {"reason": reason, **asdict(settings)}
        case Verified():
            return logging.INFO, "verified", asdict(record)
        case InvariantBroken(rule=rule):
            return logging.ERROR, "invariant_broken", {"rule": rule}


_FOR_THE_DISK = (Judged, KeptChanged, MemberRan, MemberRested)
_EVENTS: dict[type[Any], str] = {
    PhaseChanged: "phase_changed",
    WaitingFor: "waiting_for",
    UnitChanged: "unit_changed",
    MessageDropped: "message_dropped",
    PeerChanged: "peer_changed",
    SessionChanged: "session_changed",
    Judged: "judged",
    KeptChanged: "kept_changed",
    MemberRan: "member_ran",
    MemberRested: "member_rested",
    PlanDoubted: "plan_doubted",
    IncidentOpened: "incident_opened",
    MemoryNotBack: "memory_not_back",
}


def _remedied(record: Remedied) -> dict[str, Any]:
    diagnosis = record.diagnosis
    return {
        **{quantity.name: quantity.value for quantity in diagnosis.quantities},
        "incident": record.incident,
        "generation": record.generation,
        "cause": diagnosis.cause,
        "node": diagnosis.node,
        "phase": diagnosis.phase,
        "why": diagnosis.explanation,
        "confidence": diagnosis.confidence,
        "action": record.action,
        "remedy": record.explanation,
        "settings_changed": changes(record.settings_before, record.settings_after),
        "backoff_s": record.backoff_s,
    }


def _closed(record: IncidentClosed) -> dict[str, Any]:
    times = asdict(record.times)
    return {
        "incident": record.incident,
        "generation": record.generation,
        "cause": record.cause,
        "outcome": record.outcome,
        "relaunches": record.relaunches,
        "recovery_s": recovery_s(times),
        **{f"{stage}_after_s": round(spent_s, 3) for stage, spent_s in stages_of(times)},
        "needs": record.needs,
    }


def changes(before: Settings, after: Settings) -> dict[str, list[Any]]:
    """Return the settings that differ: name → [before, after]."""
    new = asdict(after)
    return {name: [old, new[name]] for name, old in asdict(before).items() if old != new[name]}
