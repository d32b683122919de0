"""What the measured memory of the nodes says of an end: a kill for memory can leave no word in any log."""

from __future__ import annotations

from sparkd.signals.model import Curve, Evidence, Proof, Quantity, Signal
from sparkd.signals.precedence import OWN_SOURCE

EXHAUSTED_ID = "observed_memory_exhausted"
EXHAUSTED_SHARE = 0.01
"""A sample is up to a second old; a load takes 1 to 2 GiB a second: so much of the memory above the floor."""
# What is freed at the end is seen soon; what was short long before was lived through.
_BEFORE_S, _AFTER_S = 10.0, 1.0
_GIB = 1 << 30


def exhausted(evidence: Evidence) -> tuple[Signal, ...]:
    """Return a signal for each node that was as empty at the end as a kill for memory leaves it.

    A node that measured nothing at that time may have been too short of memory to do so: then the least since
    the start counts.
    """
    ended_s = _ended_s(evidence)
    if ended_s is None:
        return ()
    found = (_lowest(curve, ended_s) for curve in evidence.memory)
    return tuple(
        _signal(curve, *low)
        for curve, low in zip(evidence.memory, found, strict=True)
        if low is not None and is_exhausted(low[1], curve.total_bytes, curve.floor_bytes)
    )


def _ended_s(evidence: Evidence) -> float | None:
    """Return when something died; what sparkd ended for what it saw itself was no kill."""
    ends = [end.at_s for end in evidence.exits if not end.ordered]
    ends += [s.at_s for s in evidence.signals if s.fatal and s.source != OWN_SOURCE]
    return min(ends, default=None)


def _lowest(curve: Curve, ended_s: float) -> tuple[float, int] | None:
    """Return when the least was available near the end, and how much."""
    near = [sample for sample in curve.samples if -_BEFORE_S <= sample[0] - ended_s <= _AFTER_S]
    if near:
        return min(near, key=lambda sample: (sample[1], sample[0]))
    return None if curve.lowest_bytes is None else (ended_s, curve.lowest_bytes)


def is_exhausted(available_bytes: int | None, total_bytes: int | None, floor_bytes: int) -> bool:
    """Return whether a node is as empty as a kill for memory leaves it; what is unknown is not."""
    if available_bytes is None or not total_bytes:
        return False
    return available_bytes < floor_bytes + EXHAUSTED_SHARE * total_bytes


def _signal(curve: Curve, at_s: float, available_bytes: int) -> Signal:
    total = curve.total_bytes or 0
    return Signal(
        id=EXHAUSTED_ID,
        cause="uma_host_exhaustion",
        proof=Proof.SUGGESTS,
        node=curve.node,
        source=OWN_SOURCE,
        quote=f"{available_bytes / _GIB:.2f} of {total / _GIB:.2f} GiB were left on {curve.node} at the end",
        at_s=at_s,
        quantities=(Quantity("available_bytes", available_bytes), Quantity("total_bytes", total)),
    )
