"""What can be said of a state, for metrics and status alike. Pure. None is *unknown*, everywhere."""

from __future__ import annotations

from dataclasses import dataclass

from sparkd.core import guards
from sparkd.core.messages import GuardSeen
from sparkd.core.policy import Policy
from sparkd.core.state import Coordinator, Peer, State, Watch
from sparkd.words import EngineMemory, Phase, Settings, UnitName, differing


@dataclass(frozen=True, slots=True)
class NodeMemory:
    """One node's memory in bytes; pressure is PSI `some avg10` in percent."""

    available_bytes: int | None = None
    total_bytes: int | None = None
    pressure_percent: float | None = None


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a phase is.

    Attributes:
        done, total: items (shards, captured sizes), None where the phase does not count any.
        each_s: seconds an item took so far, on average.
        left_s: estimated seconds until the last item.
        age_s: seconds since anything moved.
        stuck_in_s: seconds until this silence counts as stuck (negative: overdue), None = no limit.
    """

    done: int | None
    total: int | None
    each_s: float | None
    left_s: float | None
    age_s: float
    stuck_in_s: float | None


def phase_of(state: State) -> Phase | None:
    """Return the cluster's phase: the coordinator's own, or what it last told this worker."""
    if state.coordinator is not None:
        return state.coordinator.phase
    head = state.peer(state.head)
    if head is not None and head.telemetry is not None:
        return head.telemetry.phase
    return None if state.member.intent is None else state.member.intent.phase


def generation_of(state: State) -> int:
    """Return the newest generation: the coordinator's, or that of the intent that this worker follows."""
    if state.coordinator is not None:
        return state.coordinator.generation
    return 0 if state.member.intent is None else state.member.intent.stamp.generation


def settings_of(state: State) -> Settings | None:
    """Return the settings in force: the coordinator's, or those of the last intent."""
    if state.coordinator is not None:
        return state.coordinator.settings
    return None if state.member.intent is None else state.member.intent.settings


def changed(asked: Settings, in_force: Settings | None) -> list[str]:
    """Return the names of the settings in force that differ from those asked for."""
    return [] if in_force is None else list(differing(asked, in_force))


def said_of(state: State) -> EngineMemory:
    """Return what the running engine says of its memory; nothing where none of its generation runs here."""
    lead = state.coordinator
    alive = lead is not None and any(
        unit.alive and unit.unit is UnitName.SERVE and unit.generation == lead.generation
        for unit in state.member.units
    )
    return watch_of(state).said if alive else EngineMemory()


def watch_of(state: State) -> Watch:
    """Return what is observed of the running generation; nothing, on a worker."""
    return Watch() if state.coordinator is None else state.coordinator.watch


WAITS_FOR_A_PERSON_S = 60.0
"""What is missing for so long will hardly come by itself."""


def needs_of(state: State, now: float) -> str | None:
    """Return what only a person can do, empty for nothing; None on a worker, which does not know."""
    lead = state.coordinator
    if lead is None:
        return None
    waits = lead.phase is Phase.WAITING and now - lead.phase_since_s > WAITS_FOR_A_PERSON_S
    if not lead.needs and waits and lead.waiting:
        return f"what it waits for: {'; '.join(lead.waiting)}"
    return lead.needs


def heard(peer: Peer, policy: Policy, now: float) -> bool:
    """Return whether the peer was heard lately, by any path."""
    return now - max(peer.heard_at_s, peer.mqtt_at_s, peer.http_at_s) <= policy.peer_silence_s


def heard_by_mqtt(state: State, peer: Peer, policy: Policy, now: float) -> bool | None:
    """Return whether the peer is heard over the broker; without a broker that says nothing of the peer."""
    if not state.broker:
        return None
    return now - peer.mqtt_at_s <= policy.peer_silence_s


def heard_by_http(peer: Peer, policy: Policy, now: float) -> bool | None:
    """Return whether the peer's view answers; None where it was not asked lately."""
    if now - peer.http_at_s <= policy.peer_silence_s:
        return True
    return False if peer.probe_reason else None


def memory_of(state: State, node: str, policy: Policy, now: float) -> NodeMemory:
    """Return the node's memory: measured here, or said by a peer that was heard lately."""
    sample = state.member.memory
    if node == state.node:
        if sample is None:
            return NodeMemory()
        return NodeMemory(sample.available_bytes, sample.total_bytes, sample.pressure_percent)
    peer = state.peer(node)
    if peer is None or not heard(peer, policy, now):
        return NodeMemory()
    said = peer.telemetry or peer.status
    if said is None:
        return NodeMemory()
    return NodeMemory(said.available_bytes, said.total_bytes, said.pressure_percent)


def guard_of(state: State, node: str, policy: Policy, now: float) -> GuardSeen | None:
    """Return what is known of a node's memory guard now; None where nobody said it lately."""
    peer = state.peer(node)
    if peer is not None and not heard(peer, policy, now):
        return None
    return guards.of(state, node)


def guards_enforce(state: State, policy: Policy, now: float) -> bool | None:
    """Return whether every node's guard enforces; None where that of a node is not known."""
    seen = [guard_of(state, name, policy, now) for name, _ in policy.nodes]
    if any(guard is not None and not guard.enforcing for guard in seen):
        return False
    return None if None in seen else True


def ray_nodes_alive(state: State) -> int | None:
    """Return how many nodes Ray lists as alive, None = unknown."""
    membership = watch_of(state).membership
    if membership is None or membership.nodes is None:
        return None
    return sum(1 for node in membership.nodes if node.alive)


def progress_of(coordinator: Coordinator, policy: Policy, now: float) -> Progress | None:
    """Return how far the running phase is, None where it has no progress to follow."""
    limit = policy.budget_of(coordinator.phase)
    if limit is None:
        return None
    seen = coordinator.watch.progress
    if seen is not None and seen.phase not in {None, coordinator.phase}:
        seen = None
    moved_at_s = coordinator.phase_since_s
    if seen is not None:
        moved_at_s = max(moved_at_s, coordinator.watch.progress_at_s)
    done, total = (None, None) if seen is None else (seen.done, seen.total)
    if done and coordinator.phase is Phase.LOADING_WEIGHTS:
        limit = policy.stall_s
    each_s = (moved_at_s - coordinator.phase_since_s) / done if done else None
    age_s = now - moved_at_s
    return Progress(done, total, each_s, _left(done, total, each_s, age_s), age_s, limit - age_s)


def _left(done: int | None, total: int | None, each_s: float | None, age_s: float) -> float | None:
    if done is None or total is None or each_s is None:
        return None
    return max(0.0, each_s * (total - done) - age_s)
