"""How often and how soon: the budget per cause and the growing wait."""

from __future__ import annotations

import zlib

from sparkd.core.policy import Policy

Spent = tuple[tuple[str, float], ...]


def spent_on(cause: str, spent: Spent, policy: Policy, now: float) -> int:
    """Return how many relaunches *cause* has cost within the window."""
    return len(counted(cause, spent, policy, now))


def counted(cause: str, spent: Spent, policy: Policy, now: float) -> tuple[float, ...]:
    """Return when the relaunches for *cause* were that still count."""
    return tuple(at_s for name, at_s in spent if name == cause and at_s > now - policy.budget_window_s)


def spend(cause: str, spent: Spent, policy: Policy, now: float) -> Spent:
    """Return the account with one more relaunch for *cause*, without what is older than the window."""
    kept = tuple(entry for entry in spent if entry[1] > now - policy.budget_window_s)
    return (*kept, (cause, now))


def backoff(failures: int, policy: Policy) -> float:
    """Return the wait in seconds before the relaunch after the n-th failure in a row (n from 1)."""
    doubled: float = policy.backoff_base_s * 2 ** min(max(failures, 1) - 1, 16)
    return min(doubled, policy.backoff_max_s)


def jittered(wait_s: float, seed: str, policy: Policy) -> float:
    """Return *wait_s* and up to `jitter_share` of it more, by *seed*: the same seed, the same wait."""
    return wait_s * (1.0 + policy.jitter_share * zlib.crc32(seed.encode()) / 0xFFFFFFFF)
