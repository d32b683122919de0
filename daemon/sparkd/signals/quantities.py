"""The numbers of a diagnosis: of the run that failed, and of all that was said of it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from sparkd.signals.model import Diagnosis, Evidence, Quantity, Signal
from sparkd.signals.precedence import NEAR_S, WAITED_TWICE
from sparkd.words import Phase

_A_PORT = re.compile(r"(?i)\bport\W{0,3}\d|:\d{2,5}\b|', \d{2,5}\)")


def lasting(root: Signal, signals: Sequence[Signal]) -> Signal:
    """Return what was said again and again with how long it lasted in all."""
    waits = [
        (s.at_s - root.at_s, waited_s)
        for s in signals
        if (s.id, s.node) == (root.id, root.node) and (waited_s := s.quantity("waited_s")) is not None
    ]
    first_s = root.quantity("waited_s")
    if first_s is None or len(waits) < WAITED_TWICE:
        return root
    longest_s = max(max(waited_s, since_s + first_s) for since_s, waited_s in waits)
    rest = tuple(q for q in root.quantities if q.name != "waited_s")
    return replace(root, quantities=(Quantity("waited_s", float(round(longest_s))), *rest))


def with_port(root: Signal, evidence: Evidence) -> Signal:
    """Return what tells of a taken port with the API's, where it names none and the API was starting."""
    api = root.cause == "port_in_use" and root.phase is Phase.STARTING_API
    if not api or evidence.port is None or _A_PORT.search(root.quote):
        return root
    return replace(root, quantities=(*root.quantities, Quantity("port_number", float(evidence.port))))


def threshold_share_of(found: Signal | Diagnosis) -> float | None:
    """Return the share of the memory from which Ray's monitor kills, as the evidence states it."""
    share = found.quantity("threshold_share")
    limit, total = found.quantity("threshold_bytes"), found.quantity("total_bytes")
    if share is None and limit is not None and total:
        share = limit / total
    return share if share is not None and 0.0 < share <= 1.0 else None


def kv_cache_of(root: Signal, evidence: Evidence) -> int | None:
    """Return the size of the KV cache in the run that *root* is of: what other runs had is not its."""
    if not evidence.starts:
        before = [size for at_s, size in evidence.kv_cache_told if at_s <= root.at_s + NEAR_S]
        return before[-1] if before else evidence.kv_cache_bytes
    began_s = max((at_s for at_s in evidence.starts if at_s <= root.at_s), default=float("-inf"))
    again_s = min((at_s for at_s in evidence.starts if at_s > root.at_s), default=float("inf"))
    said = [size for at_s, size in evidence.kv_cache_told if began_s <= at_s < again_s]
    return said[-1] if said else None


def with_kv_cache(quantities: tuple[Quantity, ...], kv_cache_bytes: int | None) -> tuple[Quantity, ...]:
    """Return *quantities* with the size of the KV cache, where it is known and not among them."""
    if kv_cache_bytes is None or any(q.name == "kv_cache_bytes" for q in quantities):
        return quantities
    return (*quantities, Quantity("kv_cache_bytes", float(kv_cache_bytes)))
