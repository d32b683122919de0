"""Boots that nobody ordered: a node that lost its power, or that somebody had to reset.

A boot alone says nothing, and so does the first line of a log. Of a node that spoke before and was not shut
down it is the last witness: of the memory that its driver had been missing, or of a time-out elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from sparkd.signals.model import Proof, Signal
from sparkd.signals.precedence import NEAR_S

BOOTED_ID, SHUT_DOWN_ID = "node_booted", "node_shut_down"
WEDGED_ID = "uma_node_wedged"
# A shutdown takes minutes where a unit does not end; a wedged node waits for a person.
_SHUTDOWN_S = 600.0
_WEDGED_S = 3600.0
# How long a survivor waits for a lost node (vLLM 300 s, NCCL 600 s), and a person for the survivor.
_WAITED_S = 900.0


@dataclass(slots=True)
class Boots:
    """The boots of the nodes, in the order of reading."""

    _down: dict[str, float] = field(default_factory=dict)
    _seen: dict[str, float] = field(default_factory=dict)

    def is_unordered(self, signal: Signal, *, first: bool) -> bool:
        """Note a boot or a shutdown; return whether it is a boot that nobody asked for.

        *first* tells that the node has said nothing before.
        """
        node, at_s = signal.node, signal.at_s
        if signal.id == SHUT_DOWN_ID:
            self._down[node] = at_s
            return False
        again = at_s - self._seen.get(node, float("-inf")) < NEAR_S  # one boot has several lines
        ordered = at_s - self._down.get(node, float("-inf")) < _SHUTDOWN_S
        self._seen[node] = at_s
        return not (first or again or ordered)


def explained(signals: Sequence[Signal], timeouts: Iterable[Signal]) -> list[Signal]:
    """Return *signals* with what their boots say beside what was said before, on that node or on another."""
    waits = tuple(timeouts)
    return [_explained(s, signals, waits) if s.id == BOOTED_ID else s for s in signals]


def _explained(boot: Signal, signals: Sequence[Signal], timeouts: Sequence[Signal]) -> Signal:
    if any(
        s.cause == "uma_host_exhaustion" and s.node == boot.node and 0 <= boot.at_s - s.at_s < _WEDGED_S
        for s in signals
    ):
        return replace(boot, id=WEDGED_ID, cause="uma_host_exhaustion", fatal=True)
    if any(t.writer != boot.writer and -_WAITED_S < boot.at_s - t.at_s < _WEDGED_S for t in timeouts):
        return replace(boot, cause="peer_lost", proof=Proof.SUGGESTS, fatal=True)
    return boot
