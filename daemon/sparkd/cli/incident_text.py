"""`sparkctl incidents` as text: the list, and one incident as Why / Proof / Did / Then. Pure."""

from __future__ import annotations

from typing import Any

from sparkd.cli.layout import clock_text, columns, seconds_text
from sparkd.cli.quoting import proof_lines
from sparkd.export.human import UNKNOWN, changes_text, duration_text, words
from sparkd.export.sentences import last_text
from sparkd.export.stages import stages_of
from sparkd.signals.model import Quote

Document = dict[str, Any]


def list_text(incidents: list[Document], wall_s: float) -> str:
    """Return the newest incidents, one a line."""
    if not incidents:
        return "no incident so far"
    rows = [("incident", "opened", "what")]
    for incident in incidents:
        opened = incident["opened_wall_s"]
        at = UNKNOWN if opened is None else clock_text(opened, wall_s)
        rows.append((str(incident["incident"]), at, last_text(_told(incident))))
    return "\n".join(columns(rows))


def show_text(incident: Document) -> str:
    """Return one incident."""
    blocks = [_headline(incident), ""]
    remedies = incident["remedies"]
    for number, remedied in enumerate(remedies, 1):
        if len(remedies) > 1:
            blocks.append(f"failure {number} of {len(remedies)}, generation {remedied['generation']}")
        blocks += _failure(remedied)
    if not remedies:
        blocks.append(_entry("Why", [incident["reason"] or UNKNOWN]))
    blocks.append(_entry("Then", _then(incident)))
    blocks.append(_entry("More", [f"docs/runbook.md: {incident['cause'] or 'unknown'}"]))
    return "\n".join(blocks)


def _told(incident: Document) -> Document:
    return {
        **incident,
        "cause": incident["cause"] or "cause not decided",
        "outcome": incident["outcome"] or "not over",
    }


def _headline(incident: Document) -> str:
    what = [incident["cause"] or UNKNOWN, words(incident["phase"]), incident["node"] or "node unknown"]
    span = f"{seconds_text(incident['opened_wall_s'])} → {seconds_text(incident['closed_wall_s'])}"
    took = f" ({duration_text(incident['recovery_s'])}{_stages(incident['times'])})"
    outcome = (incident["outcome"] or "not over") + (took if incident["recovery_s"] is not None else "")
    return f"incident {incident['incident']}    {' · '.join(what)}      {span}  {outcome}"


def _stages(times: dict[str, float | None] | None) -> str:
    spent = [f"{words(name)} after {duration_text(spent_s)}" for name, spent_s in stages_of(times or {})]
    return f": {', '.join(spent)}" if spent else ""


def _failure(remedied: Document) -> list[str]:
    diagnosis = remedied["diagnosis"]
    why = [diagnosis["explanation"]]
    if diagnosis["confidence"] < 1:
        why.append(f"confidence {diagnosis['confidence']:.2f}")
    if diagnosis["candidates"]:
        why.append(f"the evidence would also allow: {', '.join(diagnosis['candidates'])}")
    lines = [_entry("Why", why)]
    evidence, cascade = ([Quote(**quote) for quote in diagnosis[key]] for key in ("evidence", "cascade"))
    if proof := proof_lines(evidence, cascade):
        lines.append(_entry("Proof", proof))
    lines.append(_entry("Did", _did(remedied)))
    return lines


def _did(remedied: Document) -> list[str]:
    fence = dict(stages_of(remedied["times"]))
    emptied = f", empty after {duration_text(fence['emptied'])}" if "emptied" in fence else ""
    done = [f"fenced generation {remedied['generation']} on every node{emptied}"]
    before, after = remedied["settings_before"], remedied["settings_after"]
    done += [f"· {change}" for change in changes_text(before, after)]
    done.append(f"· {remedied['action']}: {remedied['explanation']}")
    if remedied["backoff_s"]:
        done.append(f"· waited {duration_text(remedied['backoff_s'])} before it")
    return done


def _then(incident: Document) -> list[str]:
    outcome = incident["outcome"]
    if outcome is None:
        return ["not over: sparkctl status"]
    if outcome == "recovered":
        verified = next((e for e in reversed(incident["timeline"]) if e["kind"] == "verified"), None)
        how = f", verified by a generation ({duration_text(verified['latency_s'])})" if verified else ""
        return [f"generation {incident['generation_after']} serving{how}"]
    return [outcome, *([incident["needs"]] if incident["needs"] else [])]


def _entry(title: str, lines: list[str]) -> str:
    first, *rest = lines
    return "\n".join([f"{title:<7}{first}", *(f"       {line}" for line in rest)])
