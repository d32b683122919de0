"""Requests that a client was refused: the server answers and goes on, however long the trace of it."""

from __future__ import annotations

import re
from dataclasses import replace

from sparkd.signals import prefix, wrapping
from sparkd.signals.catalogue import Catalogue
from sparkd.signals.match import recognise
from sparkd.signals.model import Record

REFUSED = "noise_request_refused"
_BEGINS = "Traceback (most recent call last)"
# A frame, its source or a mark below it; collectors that print an ISO time take the indentation away.
_OF_A_TRACE = re.compile(r'\s|$|File "|[~^]')


def without(whole: Record, catalogue: Catalogue) -> Record:
    """Return a text without the traces that end in the refusal of a request.

    A trace is over with the first line that is none of its own: whatever that is, it stays.
    """
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
        elif not _OF_A_TRACE.match(body):
            begun = None
        kept.append(line)
    return replace(whole, text="\n".join(kept))


def _is_refusal(body: str, catalogue: Catalogue) -> bool:
    found = recognise(Record("log", "", body, level="-"), catalogue)
    return bool(found) and all(signal.id == REFUSED for signal in found)
