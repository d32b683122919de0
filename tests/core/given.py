"""Small states of a two-node cluster, so that a test says only what it is about.

The head is spark-a, the worker spark-b; it is 1000 s unless a test says otherwise.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sim.world import make_policy
from sparkd.core.beginning import Remembered, initial
from sparkd.core.messages import Intent, MemberStatus, UnitState
from sparkd.core.policy import Policy
from sparkd.core.state import Coordinator, Member, Peer, State, Unit, Watch
from sparkd.core.turn import Turn
from sparkd.words import Phase, Settings, Stamp, UnitName

HEAD, WORKER = "spark-a", "spark-b"
NOW = 1000.0
SEEN = Stamp(2, 7)
POLICY = make_policy(HEAD)
RAY, SERVE = UnitName.RAY, UnitName.SERVE


def intent_of(stamp: Stamp = SEEN, **changes: Any) -> Intent:
    """Return the head's newest intent, by default a fence of generation 7."""
    made = Intent(
        stamp=stamp,
        seq=3,
        coordinator="a#1",
        node=HEAD,
        addressees=((HEAD, "a#1"), (WORKER, "b#1")),
        wanted=((HEAD, ()), (WORKER, ())),
        settings=Settings(),
        shared_digest="shared",
        node_digests=((HEAD, f"digest-{HEAD}"), (WORKER, f"digest-{WORKER}")),
        phase=Phase.FENCING,
    )
    return replace(made, **changes)


def status_of_worker(**changes: Any) -> MemberStatus:
    """Return what a healthy worker says of itself."""
    made = MemberStatus(
        node=WORKER,
        instance="b#1",
        heard=((HEAD, "a#1"),),
        swept=True,
        shared_digest="shared",
        node_digest=f"digest-{WORKER}",
        ready=True,
    )
    return replace(made, **changes)


def worker_seen(status: MemberStatus | None = None, **changes: Any) -> Peer:
    """Return the worker as the head knows it: heard just now, by both ways."""
    made = Peer(
        WORKER,
        status=status or status_of_worker(),
        heard_at_s=NOW,
        mqtt_at_s=NOW,
        http_at_s=NOW,
        fresh=True,
        told_present=True,
    )
    return replace(made, **changes)


def unit(
    name: UnitName = SERVE, state: UnitState = UnitState.RUNNING, generation: int = 7, **more: Any
) -> Unit:
    """Return a unit, by default one that runs."""
    return Unit(name, generation, state, NOW - 100.0, **more)


def head_state(
    phase: Phase = Phase.SERVING,
    *,
    member: dict[str, Any] | None = None,
    watch: dict[str, Any] | None = None,
    peer: Peer | None = None,
    seen: Stamp = SEEN,
    policy: Policy = POLICY,
    **lead: Any,
) -> State:
    """Return the head's state in generation 7 of epoch 2; everything beside the phase is changed by name."""
    begun = initial(policy, "a#1", Remembered(), 0.0)
    coordinator = Coordinator(
        phase=phase,
        phase_since_s=NOW - 50.0,
        epoch=2,
        generation=7,
        seq=3,
        intent=intent_of(),
        launched_at_s=NOW - 90.0,
        watch=Watch(**{"progress_at_s": NOW, "membership_ok_at_s": NOW, "token_at_s": NOW, **(watch or {})}),
    )
    return replace(
        begun,
        broker=True,
        seen=seen,
        member=Member(**{"swept": True, "ready": True, "intent": intent_of(), **(member or {})}),
        peers=(peer or worker_seen(),),
        coordinator=replace(coordinator, **lead),
    )


def worker_state(policy: Policy | None = None, **member: Any) -> State:
    """Return the worker's state, with the head heard just now."""
    begun = initial(policy or make_policy(WORKER), "b#1", Remembered(), 0.0)
    head = Peer(HEAD, status=MemberStatus(HEAD, "a#1"), heard_at_s=NOW, mqtt_at_s=NOW, fresh=True)
    return replace(begun, broker=True, member=Member(**{"swept": True, **member}), peers=(head,))


def turn_of(state: State, now: float = NOW, policy: Policy | None = None, **changes: Any) -> Turn:
    """Return a step in the making over *state*; `changes` are those of the node's policy."""
    base = policy or make_policy(state.node)
    return Turn(state=state, now=now, policy=replace(base, **changes), wakes=[float("inf")] * 4)
