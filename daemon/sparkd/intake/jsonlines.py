"""Logs of which each line is a JSON object → the lines that were written, with stamp and origin before them.

Known are docker's json-file driver, `journalctl -o json`, and the usual names of structured logging. A line
that is none of these stays as it is.
"""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from typing import Any

_OBJECT = re.compile(rb"^\{[^\n]*\n?", re.MULTILINE)
_MESSAGES = ("MESSAGE", "log", "message", "msg", "text")
_TIMES = ("time", "timestamp", "@timestamp", "ts", "asctime", "t")


def plain(block: bytes) -> bytes:
    """Return a block of whole lines with every object that has a message replaced by its message's lines."""
    if not block.startswith(b"{") and b"\n{" not in block:
        return block
    return _OBJECT.sub(lambda found: _plain_line(found[0].removesuffix(b"\n")), block)


def _plain_line(line: bytes) -> bytes:
    entry = _parsed(line)
    message = _message(entry)
    if entry is None or message is None:
        return line + b"\n"
    before = _before(entry)
    return b"".join(before + part + b"\n" for part in message.splitlines() if part)


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return entry if isinstance(entry, dict) else None


def _message(entry: dict[str, Any] | None) -> bytes | None:
    for key in _MESSAGES if entry else ():
        message = _bytes(entry.get(key) if entry else None)
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


def _stamp(entry: dict[str, Any]) -> str:
    micros = _first(entry.get("__REALTIME_TIMESTAMP") or entry.get("_SOURCE_REALTIME_TIMESTAMP"))
    try:
        if isinstance(micros, (str, int, float)):
            return datetime.fromtimestamp(int(micros) / 1e6, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        value = _first(next((entry[key] for key in _TIMES if key in entry), ""))
        if isinstance(value, (int, float)):
            return datetime.fromtimestamp(value, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    except (ValueError, OverflowError, OSError):
        return ""
    return value if isinstance(value, str) and "\n" not in value else ""
