"""Logs of which each line is a JSON object → the lines that were written, with stamp and origin before them.

Known are docker's json-file driver, `journalctl -o json`, `json-seq` and `json-sse`, fluentd's files, loki's,
and the usual names of structured logging. A line that is none of these stays as it is.
"""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from typing import Any

# What forms put before an object: a record separator, the mark of an event, fluentd's time and tag.
_BEFORE = rb"\x1e|data: |(?P<time>\d{4}-\d\d-\d\d[T ][\d:.,+Z-]+)\t[^\t\n{]{1,80}\t"
_OBJECT = rb"(?m)^(?:" + _BEFORE + rb")?(?P<object>\{[^\n]*)\n?"
_BEGINS = (b"{", b"\x1e{", b"data: {")
_MARKS = (*(b"\n" + begin for begin in _BEGINS), b"\t{")
_MESSAGES = ("MESSAGE", "log", "message", "msg", "text", "textPayload", "line")
# An alert that somebody sent: its message is no line of a log.
_ALERT = frozenset({"alerts", "alertname", "annotations", "groupLabels"})
_TIMES = ("time", "timestamp", "@timestamp", "ts", "asctime", "t")


def plain(block: bytes) -> bytes:
    """Return a block of whole lines with every object that has a message replaced by its message's lines."""
    if not (block.startswith(_BEGINS) or any(mark in block for mark in _MARKS)):
        return block
    return re.sub(_OBJECT, _plain_line, block)


def of_entry(entry: dict[str, Any], time: bytes = b"") -> bytes | None:
    """Return the lines of an entry's message, None where it has none or is an alert.

    *time* is for an entry that says none.
    """
    message = _message(entry)
    if message is None or not _ALERT.isdisjoint(entry):
        return None
    before = _before(entry) or (time + b" " if time else b"")
    return b"".join(before + part + b"\n" for part in message.splitlines() if part)


def _plain_line(found: re.Match[bytes]) -> bytes:
    entry = _parsed(found["object"])
    lines = None if entry is None else of_entry(entry, found["time"] or b"")
    return found[0].removesuffix(b"\n") + b"\n" if lines is None else lines


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return entry if isinstance(entry, dict) else None


def _message(entry: dict[str, Any]) -> bytes | None:
    for key in _MESSAGES:
        message = _bytes(entry.get(key))
        if message is not None:
            return message
    return None


def _bytes(value: object) -> bytes | None:
    """Return a message: a text, journald's list of bytes (of a text with escapes), or a list of these."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace")
    if not isinstance(value, list) or not value:
        return None
    if all(isinstance(byte, int) and 0 <= byte < 256 for byte in value):
        return bytes(value)
    parts = [_bytes(part) for part in value if isinstance(part, (str, list))]
    known = [part for part in parts if part is not None]
    return b"\n".join(known) or None


def _first(value: object) -> object:
    """Return the first of a field that journald has several of."""
    return value[0] if isinstance(value, list) and value else value


def _before(entry: dict[str, Any]) -> bytes:
    host, unit = _first(entry.get("_HOSTNAME")), _first(entry.get("SYSLOG_IDENTIFIER") or entry.get("_COMM"))
    stamp = _stamp(entry)
    if stamp and isinstance(host, str) and isinstance(unit, str):
        pid = "" if unit == "kernel" else f"[{_first(entry.get('_PID')) or 0}]"
        return f"{stamp} {host} {unit.replace(' ', '_')}{pid}: ".encode("utf-8", "replace")
    return f"{stamp} ".encode("utf-8", "replace") if stamp else b""


def stamp_of(wall_s: float) -> str:
    """Return seconds since the epoch as RFC 3339 has them."""
    return datetime.fromtimestamp(wall_s, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _stamp(entry: dict[str, Any]) -> str:
    micros = _first(entry.get("__REALTIME_TIMESTAMP") or entry.get("_SOURCE_REALTIME_TIMESTAMP"))
    try:
        if isinstance(micros, (str, int, float)):
            return stamp_of(int(micros) / 1e6)
        value = _first(next((entry[key] for key in _TIMES if key in entry), ""))
        if isinstance(value, (int, float)):
            return stamp_of(value)
    except (ValueError, OverflowError, OSError):
        return ""
    return value if isinstance(value, str) and "\n" not in value else ""
