"""Requests that a client was refused: the server answers and goes on, however long the trace of it."""

from __future__ import annotations

from dataclasses import replace

from sparkd.signals import prefix, wrapping
from sparkd.signals.catalogue import Catalogue
from sparkd.signals.exceptions import raised_in
from sparkd.signals.match import recognise
from sparkd.signals.model import Record

REFUSED = "noise_request_refused"
_BEGINS = "Traceback (most recent call last)"


def without(whole: Record, catalogue: Catalogue) -> Record:
    """Return a text without the traces that end in the refusal of a request."""
    kept: list[str] = []
    begun: int | None = None
    for line in whole.text.split("\n"):
        body = prefix.split(wrapping.unwrap(line).body).body
        if _is_refusal(body, catalogue):
            del kept[len(kept) if begun is None else begun :]
            begun = None
            continue
        if body.startswith(_BEGINS):
            begun = len(kept)
        elif begun is not None and raised_in(body):
            begun = None
        kept.append(line)
    return replace(whole, text="\n".join(kept))


def _is_refusal(body: str, catalogue: Catalogue) -> bool:
    found = recognise(Record("log", "", body, level="-"), catalogue)
    return bool(found) and all(signal.id == REFUSED for signal in found)
