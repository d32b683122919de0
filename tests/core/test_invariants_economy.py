"""The rules that hold after every step: each is broken once; left out is only what has not changed."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from sim.world import World, serving
from sparkd.core import events as ev
from sparkd.core import keeping
from sparkd.core.invariants import LEAD_FACTS, LEAD_RULES, MEMBER_FACTS, MEMBER_RULES, check
from sparkd.core.messages import UnitState
from sparkd.core.policy import Policy
from sparkd.core.records import InvariantBroken, Kept, KeptChanged
from sparkd.core.state import AT_ONCE, Coordinator, Failure, Incident, Member, State, Unit, Watch
from sparkd.core.step import step
from sparkd.core.turn import Turn
from sparkd.signals.causes import UNKNOWN
from sparkd.signals.model import Diagnosis
from sparkd.words import Phase, Settings, Stamp, UnitName

RULES = (*MEMBER_RULES, *LEAD_RULES)


class Spied:
    """A part of the state that notes what is read of it."""

    def __init__(self, part: Any, path: str, read: set[str]) -> None:
        self.part, self.path, self.read = part, path, read

    def __getattr__(self, name: str) -> Any:
        value, path = getattr(self.part, name), f"{self.path}{name}"
        if isinstance(value, Member | Coordinator | Watch):
            return Spied(value, f"{path}.", self.read)
        if path == "seen":
            return Spied(value, "seen.", self.read)
        self.read.add(path)
        return value


@pytest.fixture(scope="module")
def head() -> tuple[State, Policy]:
    world = World()
    world.run_until(serving(world))
    return world.head.state, world.head.policy


def lead(state: State, **changes: Any) -> State:
    return replace(state, coordinator=replace(state.coordinator, **changes))


def unit(state: UnitState, generation: int, name: UnitName = UnitName.SERVE) -> Unit:
    return Unit(name, generation, state, 0.0)


def failure(state: State) -> Failure:
    return Failure(state.coordinator.generation, Phase.SERVING, times=None)  # type: ignore[arg-type]


def incident(*causes: str) -> Incident:
    return Incident(1, 0.0, causes=causes)


PROVEN = Diagnosis("bad_cli_argument", Phase.LOADING_WEIGHTS, None, None, 1.0, "")
WRONG = {
    "no two generations work on this node": lambda s: replace(
        s,
        member=replace(
            s.member, units=(unit(UnitState.RUNNING, 0), unit(UnitState.RUNNING, 1)), emptied_generation=-1
        ),
    ),
    "the intent in force names this instance": lambda s: replace(s, instance="another"),
    "nothing starts without an intent": lambda s: replace(
        s, member=replace(s.member, intent=None, units=(unit(UnitState.STARTING, 1),))
    ),
    "no unit is of a generation that was never seen": lambda s: replace(s, seen=Stamp(s.seen.epoch, 0)),
    "a generation with living units is not called dead": lambda s: replace(
        s, member=replace(s.member, emptied_generation=s.seen.generation)
    ),
    "a generation with living units is not called read to its end": lambda s: replace(
        s, member=replace(s.member, drained_generation=s.seen.generation)
    ),
    "serving was launched": lambda s: lead(s, launched_at_s=None),
    "failing has a failure": lambda s: lead(s, phase=Phase.FAILING),
    "a live generation has no open failure": lambda s: lead(s, failure=failure(s)),
    "units are wanted in live phases only": lambda s: lead(s, phase=Phase.BACKING_OFF),
    "settings stay within the operator's bounds": lambda s: lead(
        s, settings=replace(s.coordinator.settings, gpu_memory_utilization=0.99)
    ),
    "settings that failed for memory are not tried again": lambda s: lead(
        s, failed=(s.coordinator.settings,)
    ),
    "no cause gets more relaunches than its budget": lambda s: lead(
        s, phase=Phase.WAITING, incident=incident(*[UNKNOWN] * 9)
    ),
    "what only a person can mend is not tried again": lambda s: lead(
        s, incident=replace(incident("bad_cli_argument"), diagnosis=PROVEN)
    ),
    "no wait is longer than the operator allows": lambda s: lead(s, backoff_until_s=1e9),
    "nothing runs before the wait is over": lambda s: lead(s, backoff_until_s=0.0),
    "no incident is open where nothing is on the way": lambda s: lead(s, incident=incident()),
    "only an escalation is tried again by itself": lambda s: lead(s, retry_at_s=1.0),
    "orders are this instance's, of the newest epoch": lambda s: lead(s, epoch=s.seen.epoch + 1),
    "never one rank alone is wanted": lambda s: lead(
        s, intent=replace(s.coordinator.intent, wanted=(("spark-a", (UnitName.SERVE,)), ("spark-b", ())))
    ),
    "Ray's monitor is off only where guards enforced at the launch": lambda s: lead(
        s, settings=Settings(ray_memory_threshold=None), unguarded=True
    ),
}


@pytest.mark.parametrize("rule", [name for name, _ in RULES])
def test_a_rule_that_is_broken_is_found_beside_what_went_before(rule: str, head) -> None:
    state, policy = head
    if rule.startswith("who only observes"):
        policy, wrong = replace(policy, observe_only=True), state
        before = lead(replace(state, member=replace(state.member, units=())), intent=None)
    else:
        before, wrong = state, WRONG[rule](state)

    assert rule not in check(before, policy)
    assert rule in check(wrong, policy)
    assert rule in check(wrong, policy, before)


@pytest.mark.parametrize(("rules", "facts"), [(MEMBER_RULES, MEMBER_FACTS), (LEAD_RULES, LEAD_FACTS)])
def test_a_rule_looks_at_the_facts_that_are_compared_and_at_nothing_else(rules, facts, head) -> None:
    state, policy = head
    read: set[str] = set()
    states = [state, *(wrong(state) for wrong in WRONG.values())]
    for seen in states:
        for _, holds in rules:
            holds(Spied(seen, "", read), policy)

    assert read == set(facts)


def ignored(*_args: Any, **_changes: Any) -> None:
    """Only what is read is asked for."""


def test_what_is_kept_is_made_of_the_facts_that_are_compared(head) -> None:
    state, policy = head
    read: set[str] = set()
    for phase, epoch in ((Phase.SERVING, 1), (Phase.ESCALATED, 1), (Phase.SERVING, 0)):
        known = Spied(replace(state.coordinator, phase=phase, epoch=epoch), "", read)
        turn = SimpleNamespace(lead=known, before=None, policy=policy, set_lead=ignored, note=ignored)
        keeping.keep(turn)

    assert read == set(keeping.FACTS)


@pytest.mark.parametrize(
    "changes",
    [{"streak": 5}, {"phase": Phase.PAUSED}, {"asked_pause": True}, {"silences": ((Phase.SERVING, 1.0),)}],
)
def test_what_is_kept_is_said_where_a_fact_of_it_has_moved(changes, head) -> None:
    state, policy = head
    before = lead(state, kept=Kept())
    moved = Turn(state=lead(before, **changes), now=0.0, policy=policy, before=before)
    still = Turn(state=lead(before, needs=before.coordinator.needs), now=0.0, policy=policy, before=before)

    keeping.keep(moved)
    keeping.keep(still)

    assert [type(record) for record in moved.records] == [KeptChanged]
    assert still.records == []


def test_the_first_step_looks_at_every_rule_and_the_next_at_what_has_changed(head) -> None:
    state, policy = head
    now = max(state.published.status_at_s, state.published.telemetry_at_s)
    wrong = WRONG["serving was launched"](state)
    first = step(replace(wrong, wakes=AT_ONCE), (ev.BrokerChanged(connected=False),), now, policy)
    second = step(first.state, (ev.BrokerChanged(connected=True),), now, policy)

    assert InvariantBroken(rule="serving was launched") in first.records
    assert not [record for record in second.records if isinstance(record, InvariantBroken)]
