"""The text of `sparkctl explain`."""

from __future__ import annotations

from typing import Any

from sparkd.cli.layout import seconds_text
from sparkd.export.sentences import not_back_text

Document = dict[str, Any]


def explain_text(document: Document, now_s: float) -> str:
    """Return the document as a few sentences; *now_s* is the wall clock, for times of day."""
    if document["phase"] is None:
        return f"this node does not coordinate: sparkctl explain on {document['head']}"
    lines = [f"{document['name']} (generation {document['generation']})"]
    lines += _waits(document, now_s)
    if document["if_memory"]:
        lines.append(f"If it fails for memory: {document['if_memory']}.")
    lines += [f"{not_back_text(told)}." for told in document["memory_not_back"]]
    lines += [_budget(entry, now_s) for entry in document["budget"]]
    return "\n".join(lines)


def _waits(document: Document, now_s: float) -> list[str]:
    waits, then, left_s = document["waits_for"], document["then"], document["left_s"]
    lines = [f"Waiting for: {waits[0]}" if len(waits) == 1 else "Waiting for:"] if waits else []
    if len(waits) > 1:
        lines += [f"  {what}" for what in waits]
    if left_s is not None:
        lines.append(f"Until {seconds_text(now_s + left_s)} ({left_s:.0f} s), then: {then}")
    elif then:
        lines.append(f"Then: {then}" if waits else f"Nothing is waited for; {then}")
    return lines


def _budget(entry: Document, now_s: float) -> str:
    until = seconds_text(now_s + entry["until_s"])
    return f"{entry['left']} of {entry['of']} relaunches for {entry['cause']} left until {until}."
