"""An engine on several nodes, in logs: its head waits for a dead node as it waits for one that hangs.

Where the engine is spread over nodes, a step that ran out of time does not prove a hang: a node that lost its
power says nothing. Where a log of another node shows that it was killed before, or that it booted, that node
is the lost one. Ray tells of nodes that it loses; without Ray, and without a word of another node after the
time-out, nothing decides between the two.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from sparkd.signals.model import Evidence, Proof, Signal
from sparkd.signals.precedence import SUSPICION_S

MARK = " distributed_init_method=tcp://"
MIGHT_BE = ("engine_hang", "peer_lost", "worker_process_died")
"""What a time-out of a spread engine may be."""
_TIMEOUTS = frozenset({"engine_rpc_timeout", "engine_rpc_timeout_other", "engine_wait_timeout"})
_SPREAD = re.compile(
    r"world_size=(?!1\b)\d{1,6} [^\n]{0,80}distributed_init_method=tcp://(?!127\.|localhost)"
)


def is_spread(text: str) -> bool:
    """Return whether a line says that ranks meet at an address that other nodes reach."""
    return MARK in text and _SPREAD.search(text) is not None


def timeouts(signals: Sequence[Signal]) -> list[Signal]:
    """Return the steps that ran out of time."""
    return [s for s in signals if s.id in _TIMEOUTS]


def weighed(signals: Sequence[Signal]) -> list[Signal]:
    """Return the *signals* of a spread engine with what a time-out is worth there."""
    first = next(iter(timeouts(signals)), None)
    if first is None:
        return list(signals)
    return [_weighed(s, first) for s in signals]


def is_unheard(evidence: Evidence) -> bool:
    """Return whether a step of a spread engine ran out of time, and no other log speaks after it."""
    first = next(iter(timeouts(evidence.signals)), None)
    if first is None or not evidence.spread or evidence.on_ray:
        return False
    here = (first.writer, first.source)
    after_s = first.at_s - SUSPICION_S
    return not any(h.last_s > after_s for h in evidence.heard if (h.node, h.source) != here)


def _weighed(signal: Signal, timeout: Signal) -> Signal:
    if signal.id in _TIMEOUTS:
        return replace(signal, proof=Proof.SUGGESTS)
    elsewhere = (signal.writer, signal.source) != (timeout.writer, timeout.source)
    if signal.cause == "killed_unspecified" and elsewhere and signal.at_s < timeout.at_s - SUSPICION_S:
        return replace(signal, cause="peer_lost", proof=Proof.SUGGESTS)
    return signal
