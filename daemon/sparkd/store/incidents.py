"""Incidents seen through the history: a list, and one with all that happened in it. Plain data, for JSON."""

from __future__ import annotations

import json
from typing import Any

from sparkd.store.history import History


def incident_list(history: History, limit: int = 50) -> list[dict[str, Any]]:
    """Return summaries of the newest incidents, newest first.

    Raises:
        sqlite3.Error, OSError: the history cannot be read now.
    """
    rows = history.select(
        "SELECT incident, wall_s, kind, body FROM record WHERE milestone = 1 AND incident IN ("
        "SELECT DISTINCT incident FROM record WHERE milestone = 1 ORDER BY incident DESC LIMIT ?"
        ") ORDER BY id",
        (limit,),
    )
    found: dict[int, list[dict[str, Any]]] = {}
    for number, wall_s, kind, body in rows:
        found.setdefault(number, []).append(_entry(wall_s, kind, body))
    return [_summary(number, entries) for number, entries in sorted(found.items(), reverse=True)]


def incident_show(history: History, number: int) -> dict[str, Any] | None:
    """Return one incident: its summary, its remedies in order, everything else as a timeline.

    `judged` has what each decision used: the decision can be made again from it (`sparkctl replay`).

    Raises:
        sqlite3.Error, OSError: the history cannot be read now.
    """
    rows = history.select(
        "SELECT wall_s, kind, body FROM record WHERE incident = ? ORDER BY id LIMIT 1000", (number,)
    )
    if not rows:
        return None
    entries = [_entry(*row) for row in rows]
    return {
        **_summary(number, entries),
        "remedies": [entry for entry in entries if entry["kind"] == "remedied"],
        "timeline": [entry for entry in entries if entry["kind"] not in {"remedied", "judged"}],
        "judged": [entry for entry in entries if entry["kind"] == "judged"],
    }


def _entry(wall_s: float, kind: str, body: str) -> dict[str, Any]:
    try:
        fields = json.loads(body)
    except ValueError:
        fields = {}
    return {**fields, "kind": kind, "wall_s": wall_s}


def _last(entries: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    return next((entry for entry in reversed(entries) if entry["kind"] == kind), {})


def _summary(number: int, entries: list[dict[str, Any]]) -> dict[str, Any]:
    opened = next((entry for entry in entries if entry["kind"] == "incident_opened"), {})
    closed = _last(entries, "incident_closed")
    remedied = _last(entries, "remedied")
    first = next((entry for entry in entries if entry["kind"] == "remedied"), {})
    diagnosis = first.get("diagnosis") or {}
    times = closed.get("times") or remedied.get("times")
    return {
        "incident": number,
        "opened_wall_s": opened.get("wall_s"),
        "closed_wall_s": closed.get("wall_s"),
        "outcome": closed.get("outcome"),
        "cause": closed.get("cause") or diagnosis.get("cause"),
        "phase": diagnosis.get("phase") or opened.get("phase"),
        "node": diagnosis.get("node"),
        "reason": opened.get("reason"),
        "generation": opened.get("generation") or remedied.get("generation"),
        "generation_after": closed.get("generation"),
        "relaunches": closed.get("relaunches"),
        "needs": closed.get("needs") or "",
        "times": times,
        "recovery_s": _spent(entries, times) if closed else None,
    }


def _spent(entries: list[dict[str, Any]], times: dict[str, Any] | None) -> float | None:
    """Return seconds from the incident's first evidence to serving: it may have failed more than once."""
    if not times or times.get("serving_s") is None or times.get("detected_s") is None:
        return None
    known = [
        entry["times"]["detected_s"] for entry in entries if (entry.get("times") or {}).get("detected_s")
    ]
    return float(times["serving_s"]) - min(map(float, known))
