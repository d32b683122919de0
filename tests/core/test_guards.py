"""What is observed of the guards, and what follows for Ray's monitor."""

from __future__ import annotations

from dataclasses import replace

import pytest

from core.given import HEAD, POLICY, WORKER, head_state, status_of_worker, worker_seen
from sim.world import ENFORCING, OBSERVING, UNSEEN
from sparkd.core import guards
from sparkd.words import Backend


def state_of(own, peers, *, fresh: bool = True):
    return head_state(member={"guard": own}, peer=worker_seen(status_of_worker(guard=peers), fresh=fresh))


@pytest.mark.parametrize("other", [OBSERVING, UNSEEN, None])
def test_every_guard_has_to_enforce(other) -> None:
    assert guards.enforce(state_of(ENFORCING, ENFORCING), POLICY)
    assert not guards.enforce(state_of(ENFORCING, other), POLICY)
    assert not guards.enforce(state_of(other, ENFORCING), POLICY)


def test_what_a_daemon_of_before_said_of_its_guard_does_not_count() -> None:
    state = state_of(ENFORCING, ENFORCING, fresh=False)
    assert guards.of(state, WORKER) is None
    assert guards.of(state, HEAD) == ENFORCING
    assert guards.of(state, "nobody") is None
    assert not guards.enforce(state, POLICY)


def test_a_decision_is_made_with_what_is_observed_whatever_the_policy_says() -> None:
    guarded, alone = state_of(ENFORCING, ENFORCING), state_of(ENFORCING, OBSERVING)
    for before in (POLICY, replace(POLICY, guard_enforcing=True)):
        assert guards.in_force(guarded, before).guard_enforcing
        assert not guards.in_force(alone, before).guard_enforcing


def test_the_monitor_is_asked_off_only_beside_guards_and_only_with_ray() -> None:
    off = replace(POLICY, ray_monitor_off_asked=True)
    guarded, alone = state_of(ENFORCING, ENFORCING), state_of(OBSERVING, ENFORCING)
    assert guards.asked(guarded, off) == replace(POLICY.settings, ray_memory_threshold=None)
    for state, policy in ((guarded, POLICY), (alone, off), (guarded, replace(off, backend=Backend.MP))):
        assert guards.asked(state, policy) == POLICY.settings
