"""The status document: all that `sparkctl status` and the page show, as JSON-able data. Pure.

Times are ages and remaining seconds, never clock readings: two machines' clocks need not agree. `None` is
*unknown* everywhere, but for the memory settings, where it is the engine's own default.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from sparkd.core import guards
from sparkd.core.fence import memory_not_back
from sparkd.core.messages import GuardSeen, UnitState
from sparkd.core.policy import Policy
from sparkd.core.state import Incident, Peer, State
from sparkd.export import facts
from sparkd.sizing.model import Learned
from sparkd.words import Phase, Role

VERSION = 1
_STEADY = (Phase.STOPPED, Phase.IDLE, Phase.SERVING, Phase.PAUSED, Phase.ESCALATED)


@dataclass(frozen=True, slots=True)
class About:
    """What the state does not know and people want to see. Unknown stays None.

    Attributes:
        cluster, model, api_url: names from the configuration; parallel: "tp 2"; engine_version: of vLLM.
        last_incident: summary of the newest incident that is over (`store.view`).
        learned: what was learned, with `age_s` instead of its wall-clock time.
        trouble: what does not work in sparkd itself (a full disk), empty for nothing.
    """

    cluster: str | None = None
    model: str | None = None
    api_url: str | None = None
    parallel: str | None = None
    engine_version: str | None = None
    last_incident: dict[str, Any] | None = None
    learned: dict[str, Any] | None = None
    trouble: str = ""


NOTHING = About()


def status_view(state: State, policy: Policy, now: float, about: About = NOTHING) -> dict[str, Any]:
    """Return the status document.

    Args:
        state: the newest state.
        policy: the policy in force.
        now: monotonic seconds of the same clock as the state's.
        about: what comes from elsewhere.
    """
    phase = facts.phase_of(state)
    coordinator = state.coordinator
    return {
        "version": VERSION,
        "cluster": about.cluster,
        "node": state.node,
        "role": Role.HEAD if policy.is_head else Role.WORKER,
        "head": policy.head,
        "phase": phase,
        "phase_for_s": None if coordinator is None else now - coordinator.phase_since_s,
        "serving": None if phase is None else phase is Phase.SERVING,
        "target": None if coordinator is None else coordinator.target,
        "generation": facts.generation_of(state),
        "epoch": state.seen.epoch,
        "model": _model(policy, about),
        "traffic": _traffic(state),
        "nodes": [_node(state, name, policy, now) for name, _ in policy.nodes],
        "guard_enforcing": facts.guards_enforce(state, policy, now),
        "settings": _settings(state, policy, about),
        "held": _held(state),
        "learned_peaks": None if coordinator is None else _learned_peaks(coordinator.learned),
        "progress": _progress(state, policy, now),
        "memory_not_back": [{"node": node, "generation": last} for node, last in memory_not_back(state)],
        "waiting": None if coordinator is None else list(coordinator.waiting),
        "backoff_s": _backoff(state, now),
        "incident": None if coordinator is None else _incident(coordinator.incident, now),
        "last_incident": about.last_incident,
        "needs": facts.needs_of(state, now),
        "trouble": about.trouble,
    }


def ready(state: State) -> tuple[bool, str]:
    """Return whether a verified engine serves, and why not."""
    phase = facts.phase_of(state)
    if phase is Phase.SERVING:
        return True, "serving"
    return False, f"not serving: {'the phase is unknown' if phase is None else phase}"


def _model(policy: Policy, about: About) -> dict[str, Any]:
    return {
        "name": about.model,
        "parallel": about.parallel,
        "backend": policy.backend,
        "engine_version": about.engine_version,
        "api_url": about.api_url,
    }


def _traffic(state: State) -> dict[str, Any]:
    watch = facts.watch_of(state)
    engine = watch.engine
    return {
        "rate_tok_s": watch.rate_tok_s,
        "running": None if engine is None else engine.running,
        "waiting": None if engine is None else engine.waiting,
        "healthy": None if engine is None else engine.healthy,
        "canary_ok": watch.canary_ok,
        "canary_latency_s": watch.canary_latency_s,
        "ray_nodes_alive": facts.ray_nodes_alive(state),
    }


def _node(state: State, name: str, policy: Policy, now: float) -> dict[str, Any]:
    peer = state.peer(name)
    own = _own(state) if peer is None else _peer(state, peer, policy, now)
    return {
        "node": name,
        "role": Role.HEAD if name == policy.head else Role.WORKER,
        **asdict(facts.memory_of(state, name, policy, now)),
        **_guard(facts.guard_of(state, name, policy, now)),
        **own,
    }


def _guard(guard: GuardSeen | None) -> dict[str, Any]:
    """The memory guard of a node; all None where nobody has said anything of it."""
    return {
        "floor_bytes": guard.floor_bytes if guard else None,
        "guard": guard.state if guard else None,
        "guard_why": guard.reason if guard else None,
        "guard_trips": guard.trips if guard else None,
        "guard_notes": [*guard.notes, *guard.rivals] if guard else None,
    }


def _own(state: State) -> dict[str, Any]:
    return {
        "self": True,
        "phase": facts.phase_of(state),
        "units": {unit.unit: unit.state for unit in state.member.units},
        "heard_s": 0.0,
        "mqtt": None,
        "http": None,
        "broker": state.broker,
        "baseline_bytes": state.member.baseline_bytes,
        "leaving": state.member.leaving,
        "not_ready": state.member.not_ready,
        "refused": state.member.refused,
        "unkillable": any(unit.state is UnitState.UNKILLABLE for unit in state.member.units),
    }


def _peer(state: State, peer: Peer, policy: Policy, now: float) -> dict[str, Any]:
    status = peer.status
    lately = facts.heard(peer, policy, now)
    heard_at_s = max(peer.heard_at_s, peer.mqtt_at_s, peer.http_at_s)
    units = () if status is None else status.units
    return {
        "self": False,
        "phase": peer.telemetry.phase if lately and peer.telemetry is not None else None,
        "units": {unit.unit: unit.state for unit in units} if lately and status is not None else None,
        "heard_s": now - heard_at_s if heard_at_s > float("-inf") else None,
        "mqtt": facts.heard_by_mqtt(state, peer, policy, now),
        "http": facts.heard_by_http(peer, policy, now),
        "broker": facts.heard_by_mqtt(state, peer, policy, now),
        "baseline_bytes": None if status is None else status.baseline_bytes,
        "leaving": None if status is None else status.leaving,
        "not_ready": None if status is None else status.not_ready,
        "refused": None if status is None else status.refused,
        "unkillable": any(unit.state is UnitState.UNKILLABLE for unit in units),
    }


def _settings(state: State, policy: Policy, about: About) -> dict[str, Any]:
    wanted = guards.asked(state, policy)
    in_force = facts.settings_of(state)
    return {
        "asked": asdict(wanted),
        "in_force": None if in_force is None else asdict(in_force),
        "changed": facts.changed(wanted, in_force),
        "kv_cache_measured_bytes": facts.said_of(state).kv_cache_bytes,
        "learned": about.learned,
    }


def _held(state: State) -> dict[str, Any]:
    """What the running engine says that one rank holds."""
    said = facts.said_of(state)
    return {
        "weights_bytes": said.weights_bytes,
        "kv_cache_bytes": said.kv_cache_bytes,
        "graphs_bytes": said.sizes.captured_bytes,
    }


def _learned_peaks(learned: Learned | None) -> dict[str, Any] | None:
    """What measured starts teach the next estimate: measured less estimated, bytes, of this node."""
    if learned is None:
        return None
    by_phase = {phase.value: delta for phase, delta in learned.by_phase}
    return {
        "kv_cache_bytes": learned.kv_cache_bytes,
        "by_phase": by_phase,
        "step_bytes": learned.step_bytes,
        "graphs_bytes": learned.graphs_bytes,
    }


def _progress(state: State, policy: Policy, now: float) -> dict[str, Any] | None:
    coordinator = state.coordinator
    if coordinator is None or coordinator.phase in _STEADY:
        return None
    progress = facts.progress_of(coordinator, policy, now)
    return None if progress is None else asdict(progress)


def _backoff(state: State, now: float) -> float | None:
    coordinator = state.coordinator
    if (
        coordinator is None
        or coordinator.backoff_until_s is None
        or coordinator.phase is not Phase.BACKING_OFF
    ):
        return None
    return max(0.0, coordinator.backoff_until_s - now)


def _incident(incident: Incident | None, now: float) -> dict[str, Any] | None:
    if incident is None:
        return None
    diagnosis = incident.diagnosis
    return {
        "incident": incident.number,
        "open_s": now - incident.opened_at_s,
        "failures": incident.failures,
        "relaunches": incident.relaunches,
        "cause": None if diagnosis is None else diagnosis.cause,
        "node": None if diagnosis is None else diagnosis.node,
        "phase": None if diagnosis is None else diagnosis.phase,
        "explanation": "" if diagnosis is None else diagnosis.explanation,
        "remedy": incident.remedy,
    }
