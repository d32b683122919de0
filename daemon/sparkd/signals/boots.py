"""Boots that nobody ordered: a node that lost its power, or that somebody had to reset.

A boot alone says nothing, and so does the first line of a log. Of a node that spoke before and was not shut
down it is the last witness: of the memory that its driver had been missing, or of a time-out elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from sparkd.signals.model import Evidence, Proof, Signal
from sparkd.signals.precedence import NEAR_S

BOOTED_ID, SHUT_DOWN_ID = "node_booted", "node_shut_down"
IDS = frozenset({BOOTED_ID, SHUT_DOWN_ID})
WEDGED_ID = "uma_node_wedged"
WHY = "a boot that was ordered, or with which its log begins"
# A shutdown takes minutes where a unit does not end; a wedged node waits for a person.
_SHUTDOWN_S = 600.0
_WEDGED_S = 3600.0
# How long a survivor waits for a lost node (vLLM 300 s, NCCL 600 s), and a person for the survivor.
_WAITED_S = 900.0


def ordered(evidence: Evidence) -> tuple[Signal, ...]:
    """Return the boots and shutdowns of *evidence* that tell of nothing: all but those that nobody asked for.

    A log that begins with a boot is a new one; a live node has spoken before.
    """
    told = sorted((s for s in evidence.signals if s.id in IDS), key=lambda s: s.at_s)
    began_s = {(heard.node, heard.source): heard.first_s for heard in evidence.heard}
    down_s: dict[str, float] = {}
    seen_s: dict[str, float] = {}
    found = []
    for signal in told:
        if signal.id == SHUT_DOWN_ID:
            down_s[signal.node] = signal.at_s
            found.append(signal)
            continue
        first = evidence.recorded and began_s.get((signal.writer, signal.source), signal.at_s) >= signal.at_s
        again = signal.at_s - seen_s.get(signal.node, float("-inf")) < NEAR_S  # one boot has several lines
        seen_s[signal.node] = signal.at_s
        if first or again or signal.at_s - down_s.get(signal.node, float("-inf")) < _SHUTDOWN_S:
            found.append(signal)
    return tuple(found)


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
