"""Logs of which each line is a JSON object → the lines that were written, with stamp and origin before them.

Known are docker's json-file driver, `journalctl -o json`, and the usual names of structured logging. A line
that is none of these stays as it is.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

_MESSAGES = ("MESSAGE", "log", "message", "msg", "text")
_TIMES = ("time", "timestamp", "@timestamp", "ts", "asctime", "t")


def is_json_log(head: bytes) -> bool:
    """Return whether a log that begins so has one object a line."""
    first = head.lstrip().split(b"\n", 1)[0]
    return first.startswith(b"{") and _message(_parsed(first)) is not None


def plain(block: bytes) -> bytes:
    """Return a block of whole lines with every object replaced by its message's lines."""
    return b"".join(_plain_line(line) for line in block.split(b"\n") if line)


def _plain_line(line: bytes) -> bytes:
    entry = _parsed(line) if line.startswith(b"{") else None
    message = _message(entry)
    if entry is None or message is None:
        return line + b"\n"
    before = _before(entry)
    return b"".join(before + part + b"\n" for part in message.splitlines() if part)


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        entry = json.loads(line)
    except ValueError:
        return None
    return entry if isinstance(entry, dict) else None


def _message(entry: dict[str, Any] | None) -> bytes | None:
    for key in _MESSAGES if entry else ():
        value = entry.get(key) if entry else None
        if isinstance(value, str):
            return value.encode("utf-8", "replace")
        if isinstance(value, list) and all(isinstance(b, int) and 0 <= b < 256 for b in value):
            return bytes(value)  # journald's form of a text with escape sequences
    return None


def _before(entry: dict[str, Any]) -> bytes:
    host, unit = entry.get("_HOSTNAME"), entry.get("SYSLOG_IDENTIFIER") or entry.get("_COMM")
    stamp = _stamp(entry)
    if stamp and isinstance(host, str) and isinstance(unit, str):
        pid = "" if unit == "kernel" else f"[{entry.get('_PID') or 0}]"
        return f"{stamp} {host} {unit.replace(' ', '_')}{pid}: ".encode("utf-8", "replace")
    return f"{stamp} ".encode("utf-8", "replace") if stamp else b""


def _stamp(entry: dict[str, Any]) -> str:
    micros = entry.get("__REALTIME_TIMESTAMP") or entry.get("_SOURCE_REALTIME_TIMESTAMP")
    try:
        if micros is not None:
            return datetime.fromtimestamp(int(micros) / 1e6, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        value = next((entry[key] for key in _TIMES if key in entry), "")
        if isinstance(value, (int, float)):
            return datetime.fromtimestamp(value, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    except (ValueError, OverflowError, OSError):
        return ""
    return value if isinstance(value, str) and "\n" not in value else ""
