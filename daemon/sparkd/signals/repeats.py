"""Of what is said again and again, the first counts, which may be what it began with, and the last."""

from __future__ import annotations

from sparkd.signals.boots import IDS as BOOTS
from sparkd.signals.model import Signal
from sparkd.signals.precedence import UNEXPLAINED_ID

Key = tuple[str, str, str, int | None]
# More than make a burst; of boots each counts.
REPEATS_MAX = 8
_BOOTS_MAX = 256


def key_of(signal: Signal) -> Key:
    """Return what makes a signal a repeat; errors that nobody knows are told apart by their logs."""
    source = signal.source if signal.id == UNEXPLAINED_ID else ""
    return (signal.id, signal.node, source, signal.rank)


def most_of(signal: Signal) -> int:
    """Return how many of a signal are kept."""
    return _BOOTS_MAX if signal.id in BOOTS else REPEATS_MAX


def forget_one(signals: list[Signal], key: Key) -> None:
    """Forget the second of the signals with *key*."""
    places = (place for place, signal in enumerate(signals) if key_of(signal) == key)
    next(places, None)
    second = next(places, None)
    if second is not None:
        del signals[second]


def with_one_more(signals: tuple[Signal, ...], signal: Signal) -> tuple[Signal, ...]:
    """Return *signals* and *signal*, without one that is a repeat too many."""
    key = key_of(signal)
    if sum(key_of(s) == key for s in signals) < most_of(signal):
        return (*signals, signal)
    kept = list(signals)
    forget_one(kept, key)
    return (*kept, signal)
