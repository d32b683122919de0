"""Suggestions that nothing ties to an end: candidates of a SIGKILL, a crash, an exit without a reason.

A disk that is nearly full, a client's missing chat template, a hub that was asked twice: a serving engine
says such things for weeks. Before an end that says nothing of its reason they are worth a look, and no cause.
So is every suggestion where an exception that nobody knows is in view: it is what ended the engine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from sparkd.signals.causes import UNKNOWN
from sparkd.signals.model import Proof, Signal, UnitExit
from sparkd.signals.precedence import (
    BURST,
    EXPLAINS_AN_END,
    HANGS,
    INSTALLED,
    LONE_IDS,
    TIE_S,
    UNEXPLAINED,
    hung_since,
)

_KILLS = frozenset({"killed_unspecified", "worker_process_died"})
# What a start waits for may be why it ended by itself.
_WAITS_FOR = frozenset({"ray_insufficient_resources"})
# A stop, and what nobody knows, are no reasons of an exception.
_NO_REASONS = frozenset({"clean_shutdown", UNKNOWN})
WHY = "only suggests, and nothing ties it to the end"


def hints_of(signals: Sequence[Signal], exits: Sequence[UnitExit]) -> tuple[Signal, ...]:
    """Return the suggestions among *signals* that are no more than candidates for what ended."""
    causes = _loose(signals, exits)
    raised = [s for s in signals if s.id in UNEXPLAINED]
    lines = Counter(s.node for s in signals if s.id in LONE_IDS)
    return tuple(
        s
        for s in signals
        if not s.fatal
        and s.proof is Proof.SUGGESTS
        and (s.cause in causes or (s.id in LONE_IDS and lines[s.node] < BURST) or _is_beside(s, raised))
    )


def _is_beside(signal: Signal, raised: Sequence[Signal]) -> bool:
    """Return whether *signal* is no part of an exception that was *raised*, which its next line may be."""
    own = any(
        (s.writer, s.source) == (signal.writer, signal.source) and 0.0 <= signal.at_s - s.at_s < TIE_S
        for s in raised
    )
    return bool(raised) and not own and signal.cause not in _NO_REASONS


def _loose(signals: Sequence[Signal], exits: Sequence[UnitExit]) -> frozenset[str]:
    """Return the causes of which a suggestion cannot explain how it ended."""
    hung_s = min((hung_since(s) for s in signals if s.fatal and s.cause in HANGS), default=float("inf"))
    if any(s.cause in _KILLS and s.proof is Proof.PROVES and s.at_s < hung_s for s in signals):
        return INSTALLED | EXPLAINS_AN_END
    if exits and not any(s.fatal for s in signals):
        return (INSTALLED | EXPLAINS_AN_END) - _WAITS_FOR
    return frozenset()
