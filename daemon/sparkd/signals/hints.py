"""Suggestions that nothing ties to an end: candidates of a SIGKILL, a crash, an exit without a reason.

A disk that is nearly full, a client's missing chat template, a hub that was asked twice: a serving engine
says such things for weeks. Before an end that says nothing of its reason they are worth a look, and no cause.
"""

from __future__ import annotations

from collections.abc import Sequence

from sparkd.signals.model import Proof, Signal, UnitExit
from sparkd.signals.precedence import EXPLAINS_AN_END, HANGS, INSTALLED, hung_since

_KILLS = frozenset({"killed_unspecified", "worker_process_died"})
# What a start waits for may be why it ended by itself.
_WAITS_FOR = frozenset({"ray_insufficient_resources"})
WHY = "only suggests, and nothing ties it to the end"


def hints_of(signals: Sequence[Signal], exits: Sequence[UnitExit]) -> tuple[Signal, ...]:
    """Return the suggestions among *signals* that are no more than candidates for what ended."""
    causes = _loose(signals, exits)
    return tuple(s for s in signals if not s.fatal and s.proof is Proof.SUGGESTS and s.cause in causes)


def _loose(signals: Sequence[Signal], exits: Sequence[UnitExit]) -> frozenset[str]:
    """Return the causes of which a suggestion cannot explain how it ended."""
    hung_s = min((hung_since(s) for s in signals if s.fatal and s.cause in HANGS), default=float("inf"))
    if any(s.cause in _KILLS and s.proof is Proof.PROVES and s.at_s < hung_s for s in signals):
        return INSTALLED | EXPLAINS_AN_END
    if exits and not any(s.fatal for s in signals):
        return (INSTALLED | EXPLAINS_AN_END) - _WAITS_FOR
    return frozenset()
