"""Memory that is lost with every start: the falls of what is available before one start after another."""

from __future__ import annotations

from itertools import pairwise

from sparkd.core.policy import Policy

LEAK_LEAST_BYTES = 1 << 28
"""A smaller fall from one start to the next is the system's own coming and going: 0.1 to 0.25 GiB on an idle
node between two starts."""
LEAK_SPREAD = 3
"""Falls of one leak resemble each other within this factor (reasoned: the same start leaves the same behind,
give or take what the system itself does); a single larger one is another program that took memory."""


def leaks(available: tuple[int, ...], policy: Policy) -> bool:
    """Return whether every start finds less than the one before, by falls of one kind, a tolerance in all.

    Args:
        available: bytes available before each of the last starts, newest last.
        policy: how many starts make a row, and the tolerance.
    """
    falls = sorted(before - after for before, after in pairwise(available))
    if len(available) < policy.leak_cycles or falls[0] < LEAK_LEAST_BYTES:
        return False
    return sum(falls) > policy.memory_tolerance_bytes and falls[-1] <= LEAK_SPREAD * falls[len(falls) // 2]
