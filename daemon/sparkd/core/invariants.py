"""What must hold after every step, in production too. A broken rule is a defect of sparkd: it is said."""

from __future__ import annotations

from collections.abc import Callable

from sparkd.core.messages import UnitState
from sparkd.core.phases import LIVE
from sparkd.core.policy import Policy
from sparkd.core.state import Coordinator, State
from sparkd.words import Phase


def check(state: State, policy: Policy) -> tuple[str, ...]:
    """Return the rules that do not hold, as sentences; none = all hold."""
    return tuple(rule for rule, holds in RULES if not holds(state, policy))


def _one_generation(state: State, _policy: Policy) -> bool:
    working = (UnitState.STARTING, UnitState.RUNNING)
    return len({unit.generation for unit in state.member.units if unit.state in working}) <= 1


def _nothing_unknown_runs(state: State, _policy: Policy) -> bool:
    intent = state.member.intent
    starting = [unit for unit in state.member.units if unit.state is UnitState.STARTING]
    return not starting or (intent is not None and starting[0].generation <= intent.stamp.generation)


def _no_future(state: State, _policy: Policy) -> bool:
    return all(unit.generation <= state.seen.generation for unit in state.member.units)


def _answers_are_true(state: State, _policy: Policy) -> bool:
    alive = [unit.generation for unit in state.member.units if unit.alive]
    return not alive or state.member.emptied_generation < min(alive)


def _lead(rule: Callable[[Coordinator, State, Policy], bool]) -> Callable[[State, Policy], bool]:
    def holds(state: State, policy: Policy) -> bool:
        return state.coordinator is None or rule(state.coordinator, state, policy)

    return holds


def _verified(lead: Coordinator, _state: State, _policy: Policy) -> bool:
    return lead.phase is not Phase.SERVING or lead.launched_at_s is not None


def _judged(lead: Coordinator, _state: State, _policy: Policy) -> bool:
    return lead.phase is not Phase.FAILING or lead.failure is not None


def _no_failure_while_live(lead: Coordinator, _state: State, _policy: Policy) -> bool:
    return lead.phase not in LIVE or lead.failure is None


def _fenced_before_start(lead: Coordinator, _state: State, _policy: Policy) -> bool:
    wants = lead.intent is not None and any(units for _, units in lead.intent.wanted)
    return lead.phase in (*LIVE, Phase.STOPPING, Phase.PAUSED) or not wants


def _within_bounds(lead: Coordinator, _state: State, policy: Policy) -> bool:
    settings, asked, floors = lead.settings, policy.settings, policy.floors
    kv_ok = settings.kv_cache_bytes in (None, asked.kv_cache_bytes) or (
        settings.kv_cache_bytes is not None and settings.kv_cache_bytes >= floors.kv_cache_bytes
    )
    lowest = min(floors.gpu_memory_utilization, asked.gpu_memory_utilization)
    return kv_ok and lowest <= settings.gpu_memory_utilization <= asked.gpu_memory_utilization


def _monitor_stays(lead: Coordinator, _state: State, policy: Policy) -> bool:
    return lead.settings.ray_memory_threshold is not None or policy.guard_enforcing


RULES: tuple[tuple[str, Callable[[State, Policy], bool]], ...] = (
    ("no two generations work on this node", _one_generation),
    ("nothing starts without an intent", _nothing_unknown_runs),
    ("no unit is of a generation that was never seen", _no_future),
    ("a generation with living units is not called dead", _answers_are_true),
    ("serving was launched", _lead(_verified)),
    ("failing has a failure", _lead(_judged)),
    ("a live generation has no open failure", _lead(_no_failure_while_live)),
    ("units are wanted in live phases only", _lead(_fenced_before_start)),
    ("settings stay within the operator's bounds", _lead(_within_bounds)),
    ("Ray's monitor is off only with an enforcing guard", _lead(_monitor_stays)),
)
