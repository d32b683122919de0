"""Log lines as entries of the journal, with fields: `journalctl SPARKD_INCIDENT=3`.

Every flat field of a line becomes `SPARKD_<NAME>`; the text is the line as a person reads it. Used where
standard error is connected to the journal (`$JOURNAL_STREAM`, systemd.exec(5)).
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from typing import Any, TextIO, cast

import structlog

Send = Callable[..., Any]

# Syslog's levels (syslog(3)), by Python's, which are sparse.
PRIORITIES = ((logging.CRITICAL, 2), (logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6))
DEBUG_PRIORITY = 7
_NO_FIELDS = {"event", "timestamp", "level", "logger", "exception"}


def send_to_journal(stream: TextIO | None = None) -> Send | None:
    """Return what sends an entry, None where *stream* (standard error) is not the journal's."""
    try:
        there = os.fstat((stream or sys.stderr).fileno())
    except (OSError, ValueError):
        return None
    if os.environ.get("JOURNAL_STREAM") != f"{there.st_dev}:{there.st_ino}":
        return None
    try:
        from systemd.journal import send
    except ImportError:
        return None
    return cast("Send", send)


class JournalLines(logging.Handler):
    """Sends each line with *send* (as `systemd.journal.send`)."""

    def __init__(self, send: Send) -> None:
        super().__init__()
        self._send = send

    def emit(self, record: logging.LogRecord) -> None:
        """Send one line; what cannot be sent is told as logging tells it, and nothing else suffers."""
        try:
            text, fields = entry_of(record)
            fields["PRIORITY"] = str(priority_of(record.levelno))
            # Where no function is given it is looked for in the stack, and in each file of it: milliseconds.
            self._send(text, SYSLOG_IDENTIFIER="sparkd", CODE_FUNC=record.funcName or "", **fields)
        except OSError:
            self.handleError(record)


def entry_of(record: logging.LogRecord) -> tuple[str, dict[str, str]]:
    """Return the text of a line and its fields."""
    if not isinstance(record.msg, dict):
        return _FORMAT.format(record), {"LOGGER": record.name}
    said = structlog.processors.format_exc_info(None, "", dict(record.msg))
    flat = {k: str(v) for k, v in said.items() if k not in _NO_FIELDS and v not in (None, "")}
    text = " ".join([str(said.get("event", "")), *(f"{key}={value!r}" for key, value in flat.items())])
    trace = f"\n{said['exception']}" if "exception" in said else ""
    return text + trace, {"LOGGER": record.name, **{_name(key): value for key, value in flat.items()}}


_FORMAT = logging.Formatter()
"""The message, with its traceback below it."""


def _name(key: str) -> str:
    """A field's name: capitals, digits and underscores (systemd.journal-fields(7))."""
    known = "".join(c if c.isascii() and c.isalnum() else "_" for c in key)
    return f"SPARKD_{known.upper()}"[:64]


def priority_of(level: int) -> int:
    """Return the syslog priority of a Python level."""
    return next((priority for least, priority in PRIORITIES if level >= least), DEBUG_PRIORITY)
