"""What must hold after every step, in production too. A broken rule is a defect of sparkd: it is said."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any

from sparkd.core.messages import UnitState
from sparkd.core.policy import Policy
from sparkd.core.remedy import MEMORY, PROVEN, account_of, budget_of
from sparkd.core.state import Coordinator, State
from sparkd.signals.causes import cause_info
from sparkd.words import AMOUNTS, LIVE, Backend, CudaGraph, Phase, UnitName

Rules = tuple[tuple[str, Callable[[State, Policy], bool]], ...]


def check(state: State, policy: Policy, before: State | None = None) -> tuple[str, ...]:
    """Return the rules that do not hold, as sentences; none = all hold.

    Given *before*, a state that was checked, only the rules are looked at of which a fact has changed since.
    """
    lead = state.coordinator
    broken: tuple[str, ...] = ()
    if before is None or not _member_stands(state, before):
        broken = _broken(MEMBER_RULES, _member_facts, state, policy, before)
    if lead is None or (before is not None and _stands(lead, state, before)):
        return broken
    return broken + _broken(LEAD_RULES, _lead_facts, state, policy, before)


def _member_stands(state: State, before: State) -> bool:
    same = state.node == before.node and state.instance == before.instance
    return same and state.member is before.member and state.seen is before.seen


def _stands(lead: Coordinator, state: State, before: State) -> bool:
    return lead is before.coordinator and state.seen is before.seen and state.instance == before.instance


def _broken(
    rules: Rules, facts: Callable[[State], Any], state: State, policy: Policy, before: State | None
) -> tuple[str, ...]:
    if before is not None and facts(state) == facts(before):
        return ()
    return tuple([rule for rule, holds in rules if not holds(state, policy)])


def _one_generation(state: State, _policy: Policy) -> bool:
    """Beside what starts nothing of another generation lives, in whatever state."""
    units = state.member.units
    working = {unit.generation for unit in units if unit.state in (UnitState.STARTING, UnitState.RUNNING)}
    starting = any(unit.state is UnitState.STARTING for unit in units)
    alive = {unit.generation for unit in units if unit.alive} if starting else working
    return len(alive) <= 1


def _for_this_instance(state: State, _policy: Policy) -> bool:
    intent = state.member.intent
    return intent is None or intent.instance_of(state.node) == state.instance


def _nothing_unknown_runs(state: State, _policy: Policy) -> bool:
    intent = state.member.intent
    starting = [unit for unit in state.member.units if unit.state is UnitState.STARTING]
    return not starting or (intent is not None and starting[0].generation <= intent.stamp.generation)


def _no_future(state: State, _policy: Policy) -> bool:
    return all(unit.generation <= state.seen.generation for unit in state.member.units)


def _answers_are_true(state: State, _policy: Policy) -> bool:
    alive = [unit.generation for unit in state.member.units if unit.alive]
    return not alive or state.member.emptied_generation < min(alive)


def _evidence_goes_on(state: State, _policy: Policy) -> bool:
    """What runs goes on talking: a decision would not wait for what it says at its end."""
    member = state.member
    return all(unit.generation > member.drained_generation for unit in member.units if unit.alive)


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
    wants = lead.intent is not None and lead.intent.wants_units
    return lead.phase in (*LIVE, Phase.STOPPING, Phase.PAUSED) or not wants


def _within_bounds(lead: Coordinator, _state: State, policy: Policy) -> bool:
    """What was taken over runs with the bounds of its start; an edit is in force from the next launch on."""
    if lead.edited or lead.settings == policy.settings:
        return True
    settings, asked, floors = lead.settings, policy.settings, policy.floors
    lowest = min(floors.gpu_memory_utilization, asked.gpu_memory_utilization)
    eager_ok = settings.cudagraph is not CudaGraph.NONE or floors.eager_allowed
    return (
        lowest <= settings.gpu_memory_utilization <= asked.gpu_memory_utilization
        and (eager_ok or asked.cudagraph is CudaGraph.NONE)
        and all(
            _between(getattr(settings, name), getattr(asked, name), getattr(floors, name)) for name in AMOUNTS
        )
    )


def _between(value: int | None, asked: int | None, floor: int) -> bool:
    """As asked, or not below the floor and not above what was asked; None = the engine's own."""
    return value in (None, asked) or (value >= floor and (asked is None or value <= asked))


def _not_again(lead: Coordinator, _state: State, _policy: Policy) -> bool:
    return lead.settings not in lead.failed


def _budget_respected(lead: Coordinator, _state: State, policy: Policy) -> bool:
    """No more relaunches for one account than the operator allows; a memory cause ends with the ladder."""
    if lead.incident is None:
        return True
    counted = [account_of(cause) for cause in lead.incident.causes if cause not in MEMORY]
    return all(counted.count(account) <= budget_of(account, policy) for account in counted)


def _permanent_stays(lead: Coordinator, _state: State, _policy: Policy) -> bool:
    """Nothing is started while a person has to mend what was proven."""
    known = lead.incident.diagnosis if lead.incident is not None else None
    if known is None or known.cause in MEMORY:
        return True
    return not (cause_info(known.cause).permanent and known.confidence >= PROVEN)


def _backoff_respected(lead: Coordinator, _state: State, policy: Policy) -> bool:
    longest_s = policy.backoff_max_s * (1.0 + policy.jitter_share)
    until_s = lead.backoff_until_s
    return until_s is None or until_s <= lead.phase_since_s + longest_s + ROUNDING_S


ROUNDING_S = 1e-6
"""Of a sum of monotonic seconds as floats, with years to spare."""


def _wait_is_over(lead: Coordinator, _state: State, _policy: Policy) -> bool:
    return lead.phase not in LIVE or lead.backoff_until_s is None


def _observer_orders_nothing(lead: Coordinator, _state: State, policy: Policy) -> bool:
    return not policy.observe_only or lead.intent is None


def _incident_goes_on(lead: Coordinator, _state: State, _policy: Policy) -> bool:
    """An incident ends: none is open where nothing is on the way any more."""
    over = (Phase.ESCALATED, Phase.STOPPED, Phase.SERVING)
    return lead.phase not in over or lead.incident is None


def _retry_is_announced(lead: Coordinator, _state: State, _policy: Policy) -> bool:
    return lead.retry_at_s is None or lead.phase in (Phase.ESCALATED, Phase.STOPPING, Phase.STOPPED)


def _acts_in_its_epoch(lead: Coordinator, state: State, _policy: Policy) -> bool:
    """What is ordered bears the coordinator's own instance and an epoch that nobody has outdone."""
    intent = lead.intent
    return intent is None or (
        intent.coordinator == state.instance and intent.stamp.epoch <= lead.epoch <= state.seen.epoch
    )


def _never_one_rank(lead: Coordinator, _state: State, policy: Policy) -> bool:
    """Serve is wanted on every rank at once over mp, and over Ray only with every node's Ray."""
    if lead.intent is None:
        return True
    wanted = dict(lead.intent.wanted)
    serving = [name for name, units in wanted.items() if UnitName.SERVE in units]
    if not serving or lead.phase is Phase.STOPPING:
        return True
    if policy.backend is Backend.MP:
        return len(serving) == len(policy.nodes)
    return serving == [policy.head] and all(UnitName.RAY in units for units in wanted.values())


def _observes_only(state: State, policy: Policy) -> bool:
    return not policy.observe_only or not state.member.units


def _monitor_stays(lead: Coordinator, _state: State, _policy: Policy) -> bool:
    """A guard that is lost later ends nothing that serves: the next launch has the monitor on again."""
    return lead.phase not in LIVE or lead.settings.ray_memory_threshold is not None or not lead.unguarded


MEMBER_FACTS = (
    "node",
    "instance",
    "seen.generation",
    "member.units",
    "member.intent",
    "member.emptied_generation",
    "member.drained_generation",
)
"""All that the rules of a member look at."""
MEMBER_RULES: Rules = (
    ("no two generations work on this node", _one_generation),
    ("the intent in force names this instance", _for_this_instance),
    ("nothing starts without an intent", _nothing_unknown_runs),
    ("no unit is of a generation that was never seen", _no_future),
    ("a generation with living units is not called dead", _answers_are_true),
    ("a generation with living units is not called read to its end", _evidence_goes_on),
    ("who only observes runs nothing", _observes_only),
)
LEAD_FACTS = (
    "instance",
    "seen.epoch",
    *(
        f"coordinator.{name}"
        for name in (
            *("phase", "phase_since_s", "epoch", "intent", "launched_at_s", "failure", "incident"),
            *("settings", "edited", "failed", "backoff_until_s", "retry_at_s", "unguarded"),
        )
    ),
)
"""All that the rules of a coordinator look at."""
LEAD_RULES: Rules = (
    ("serving was launched", _lead(_verified)),
    ("failing has a failure", _lead(_judged)),
    ("a live generation has no open failure", _lead(_no_failure_while_live)),
    ("units are wanted in live phases only", _lead(_fenced_before_start)),
    ("settings stay within the operator's bounds", _lead(_within_bounds)),
    ("settings that failed for memory are not tried again", _lead(_not_again)),
    ("no cause gets more relaunches than its budget", _lead(_budget_respected)),
    ("what only a person can mend is not tried again", _lead(_permanent_stays)),
    ("no wait is longer than the operator allows", _lead(_backoff_respected)),
    ("nothing runs before the wait is over", _lead(_wait_is_over)),
    ("who only observes orders nothing", _lead(_observer_orders_nothing)),
    ("no incident is open where nothing is on the way", _lead(_incident_goes_on)),
    ("only an escalation is tried again by itself", _lead(_retry_is_announced)),
    ("orders are this instance's, of the newest epoch", _lead(_acts_in_its_epoch)),
    ("never one rank alone is wanted", _lead(_never_one_rank)),
    ("Ray's monitor is off only where guards enforced at the launch", _lead(_monitor_stays)),
)
_member_facts, _lead_facts = attrgetter(*MEMBER_FACTS), attrgetter(*LEAD_FACTS)
