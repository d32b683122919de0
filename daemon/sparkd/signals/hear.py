"""What one record is evidence of: what the catalogue knows, and failures that it does not know."""

from __future__ import annotations

from dataclasses import replace

from sparkd.signals.catalogue import Catalogue
from sparkd.signals.causes import UNKNOWN
from sparkd.signals.exceptions import raised_in
from sparkd.signals.match import NO_PLACES, QUOTE_CHARS, Places, recognise
from sparkd.signals.model import Proof, Record, Signal
from sparkd.signals.precedence import ENGINES_OWN, UNEXPLAINED_ID, UNKNOWN_EXCEPTION
from sparkd.signals.slips import is_engines_own

# What says no more than that something failed: an exception in the same record may be the reason.
SURFACE = "engine_dead_unspecified"
LOUD = frozenset({"ERROR", "CRITICAL", "FATAL"})


def hear(record: Record, catalogue: Catalogue, places: Places = NO_PLACES) -> tuple[Signal, ...]:
    """Return what *record* says; of what no signature knows an exception, or what is called an error."""
    found = recognise(record, catalogue, places)
    if all(signal.cause == SURFACE for signal in found):
        found = (*found, *_unexplained(record))
    if not found and record.level in LOUD:
        return (error_of(record, record.text),)
    return found


def _unexplained(record: Record) -> tuple[Signal, ...]:
    """Return an exception that no signature knows as the evidence that it is."""
    raised = raised_in(record.text)
    if raised is None:
        return ()
    name = ENGINES_OWN if is_engines_own(record.text, raised) else UNKNOWN_EXCEPTION
    return (replace(error_of(record, raised), id=name, fatal=True),)


def error_of(record: Record, words: str) -> Signal:
    """Return an error that no signature knows: it keeps a judgement from saying that nothing is wrong."""
    return Signal(
        id=UNEXPLAINED_ID,
        cause=UNKNOWN,
        proof=Proof.CASCADE,
        node=record.node,
        source=record.source,
        quote=" ".join(words.split())[:QUOTE_CHARS],
        at_s=record.at_s,
        generation=record.generation,
        rank=record.rank,
        printed=record.printed,
        file=record.file,
    )
