"""The memory guards as they are observed, and what follows for Ray's own monitor.

Ray's monitor kills at a share of the node's memory, page cache of a load included. Where every node's guard
enforces, it guards nothing that is not guarded better, and is off on unified memory unless the operator says
otherwise; a guard that is lost has it on again at the next launch. What is not seen does not enforce.
"""

from __future__ import annotations

from dataclasses import replace

from sparkd.core.messages import GuardSeen
from sparkd.core.policy import Policy
from sparkd.core.state import State
from sparkd.signals.model import Signal
from sparkd.words import Backend, Settings


def of(state: State, node: str) -> GuardSeen | None:
    """Return what is known of a node's guard, None = nothing was ever said of it."""
    if node == state.node:
        return state.member.guard
    peer = state.peer(node)
    return peer.status.guard if peer is not None and peer.fresh and peer.status is not None else None


def enforce(state: State, policy: Policy) -> bool:
    """Return whether every node's guard is observed enforcing."""
    seen = [of(state, name) for name, _ in policy.nodes]
    return all(guard is not None and guard.enforcing for guard in seen)


def in_force(state: State, policy: Policy) -> Policy:
    """Return the policy of a decision that is made now: with what is observed of the guards."""
    enforcing = enforce(state, policy)
    return policy if policy.guard_enforcing is enforcing else replace(policy, guard_enforcing=enforcing)


def asked(state: State, policy: Policy) -> Settings:
    """Return the settings that are asked for as they can be had now: Ray's monitor off, or watching."""
    off = policy.ray_monitor_off_asked and policy.backend is Backend.RAY and enforce(state, policy)
    return replace(policy.settings, ray_memory_threshold=None) if off else policy.settings


SOURCE = "sparkd-guard"
"""The source of what the guard tells of itself (`adapters.guard`)."""


def is_of_what_ran(state: State, signal: Signal) -> bool:
    """Whether a guard's trip of before this daemon was of what ran then, and nobody has seen its end."""
    if signal.source != SOURCE or signal.fatal:
        return True
    since_s = state.member.ran_at_s if state.member.ran else None
    return since_s is not None and signal.at_s >= since_s
