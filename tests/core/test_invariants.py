"""Every rule that must hold after a step: what keeps it, and what breaks it by a hair."""

from __future__ import annotations

from dataclasses import replace

import pytest

from core.given import NOW, POLICY, RAY, SERVE, head_state, intent_of, unit, worker_state
from sim.world import make_policy
from sparkd.core.invariants import LEAD_RULES, MEMBER_RULES, check
from sparkd.core.messages import UnitState
from sparkd.core.records import Times
from sparkd.core.remedy import UNDECIDED
from sparkd.core.state import Failure, Incident
from sparkd.signals.model import Diagnosis
from sparkd.words import Backend, CudaGraph, Phase, Settings, Stamp

RULES = (*MEMBER_RULES, *LEAD_RULES)
FAILURE = Failure(7, Phase.SERVING, Times(detected_s=NOW))
RUNS_ALL = intent_of(wanted=(("spark-a", (RAY, SERVE)), ("spark-b", (RAY,))))
EVERY_RANK = intent_of(wanted=(("spark-a", (SERVE,)), ("spark-b", (SERVE,))))
MP = replace(POLICY, backend=Backend.MP)
FLOORED = replace(POLICY, settings=Settings(gpu_memory_utilization=0.85))


def incident(*causes: str) -> Incident:
    return Incident(1, NOW, causes=causes)


def judged(cause: str, confidence: float, *causes: str) -> Incident:
    known = Diagnosis(cause, Phase.LOADING_WEIGHTS, None, None, confidence, "")
    return Incident(1, NOW, causes=causes, diagnosis=known)


def units(*made) -> dict:
    return {"units": made}


HOLDS = {
    "serving": head_state(intent=RUNS_ALL, member=units(unit(RAY), unit())),
    "an old generation that is gone beside one that runs": head_state(
        member=units(unit(generation=6, state=UnitState.GONE), unit(RAY), unit(state=UnitState.STARTING))
    ),
    "an old generation that is being stopped": head_state(
        member=units(unit(generation=6, state=UnitState.STOPPING), unit(RAY))
    ),
    "emptied up to the generation before": head_state(member={**units(unit()), "emptied_generation": 6}),
    "failing with a failure": head_state(Phase.FAILING, failure=FAILURE),
    "a failure while backing off": head_state(Phase.BACKING_OFF, failure=FAILURE),
    "stopping in order": head_state(Phase.STOPPING, intent=RUNS_ALL),
    "paused while serving": head_state(Phase.PAUSED, intent=RUNS_ALL),
    "a cache at its floor": head_state(settings=Settings(kv_cache_bytes=1 << 30)),
    "the share at its floor": head_state(settings=Settings(gpu_memory_utilization=0.5)),
    "the longest wait": head_state(Phase.BACKING_OFF, backoff_until_s=NOW - 50.0 + 330.0),
    "an incident while fencing": head_state(Phase.FENCING, incident=incident("nccl_timeout")),
    "as many relaunches as the budget": head_state(
        Phase.FAILING, failure=FAILURE, incident=incident(*["nccl_timeout"] * 3)
    ),
    "unknown, twice unchanged and a memory step": head_state(
        Phase.FAILING, failure=FAILURE, incident=incident("unknown", "killed_unspecified", "unknown")
    ),
    "a permanent cause that is only suggested": head_state(
        Phase.BACKING_OFF, incident=judged("bad_cli_argument", 0.6, *["bad_cli_argument"] * 3)
    ),
    "a wait in the next daemon": head_state(Phase.WAITING, backoff_until_s=NOW + 5, intent=None),
    "what an earlier daemon left beside what survives": head_state(
        member=units(unit(generation=6, state=UnitState.UNKILLABLE), unit(RAY))
    ),
    "memory may fail as often as there are steps": head_state(
        Phase.FAILING, failure=FAILURE, incident=incident(*["ray_oom_kill"] * 9)
    ),
    "a retry while escalated": head_state(Phase.ESCALATED, retry_at_s=NOW),
    "a retry while stopping": head_state(Phase.STOPPING, retry_at_s=NOW),
    "a retry while stopped": head_state(Phase.STOPPED, retry_at_s=NOW),
    "what was taken over runs with the bounds of its start": head_state(
        settings=Settings(gpu_memory_utilization=0.95), edited=(("gpu_memory_utilization", 0.9),)
    ),
    "the monitor off, where guards enforced at the launch and are lost since": head_state(
        settings=Settings(ray_memory_threshold=None)
    ),
    "the monitor still off, before the next launch has it on again": head_state(
        Phase.FENCING, settings=Settings(ray_memory_threshold=None), unguarded=True
    ),
    "the monitor on, without guards": head_state(unguarded=True),
    "no intent yet": head_state(Phase.WAITING, intent=None),
    "a worker": worker_state(),
}
BROKEN = {
    "no two generations work on this node": [
        head_state(member=units(unit(generation=6), unit())),
        head_state(member=units(unit(generation=6, state=UnitState.STARTING), unit())),
        *(
            head_state(member=units(unit(generation=6, state=state), unit(RAY, UnitState.STARTING)))
            for state in (UnitState.STOPPING, UnitState.EXITED, UnitState.UNKILLABLE)
        ),
    ],
    "the intent in force names this instance": [
        head_state(member={"intent": intent_of(addressees=(("spark-a", "a#0"),))}),
    ],
    "nothing starts without an intent": [
        head_state(member={**units(unit(state=UnitState.STARTING)), "intent": None}),
        head_state(member={**units(unit(state=UnitState.STARTING)), "intent": intent_of(Stamp(2, 6))}),
    ],
    "no unit is of a generation that was never seen": [head_state(member=units(unit(generation=8)))],
    "a generation with living units is not called dead": [
        head_state(member={**units(unit()), "emptied_generation": 7}),
        head_state(member={**units(unit(state=UnitState.UNKILLABLE)), "emptied_generation": 8}),
    ],
    "a generation with living units is not called read to its end": [
        head_state(member={**units(unit()), "drained_generation": 7}),
        head_state(member={**units(unit(state=UnitState.UNKILLABLE)), "drained_generation": 8}),
    ],
    "serving was launched": [head_state(launched_at_s=None)],
    "failing has a failure": [head_state(Phase.FAILING)],
    "a live generation has no open failure": [
        head_state(failure=FAILURE),
        head_state(Phase.FORMING, failure=FAILURE),
    ],
    "units are wanted in live phases only": [
        head_state(Phase.WAITING, intent=RUNS_ALL),
        head_state(Phase.ESCALATED, intent=RUNS_ALL),
    ],
    "settings stay within the operator's bounds": [
        head_state(settings=Settings(gpu_memory_utilization=0.901)),
        head_state(settings=Settings(gpu_memory_utilization=0.499)),
        head_state(settings=Settings(kv_cache_bytes=(1 << 30) - 1)),
        head_state(settings=Settings(max_num_batched_tokens=511)),
        head_state(settings=Settings(max_num_seqs=7)),
        head_state(settings=Settings(max_model_len=2047)),
    ],
    "settings that failed for memory are not tried again": [head_state(failed=(Settings(),))],
    "no cause gets more relaunches than its budget": [
        head_state(Phase.FAILING, failure=FAILURE, incident=incident(*["nccl_timeout"] * 4)),
        head_state(Phase.FAILING, failure=FAILURE, incident=incident(*UNDECIDED, UNDECIDED[0])),
        head_state(Phase.FAILING, failure=FAILURE, incident=incident("peer_lost", *["nccl_timeout"] * 4)),
        head_state(Phase.FAILING, failure=FAILURE, incident=incident(*["bad_cli_argument"] * 4)),
    ],
    "what only a person can mend is not tried again": [
        head_state(Phase.BACKING_OFF, incident=judged("bad_cli_argument", 0.9, "bad_cli_argument")),
    ],
    "nothing runs before the wait is over": [
        head_state(Phase.FORMING, backoff_until_s=NOW + 5),
        head_state(backoff_until_s=NOW - 5),
    ],
    "no wait is longer than the operator allows": [
        head_state(Phase.BACKING_OFF, backoff_until_s=NOW - 50.0 + 330.001)
    ],
    "no incident is open where nothing is on the way": [
        head_state(incident=incident()),
        head_state(Phase.ESCALATED, incident=incident()),
        head_state(Phase.STOPPED, incident=incident()),
    ],
    "only an escalation is tried again by itself": [head_state(retry_at_s=NOW)],
    "orders are this instance's, of the newest epoch": [
        head_state(intent=intent_of(coordinator="a#2")),
        head_state(intent=intent_of(Stamp(3, 7)), seen=Stamp(3, 7)),
        head_state(seen=Stamp(1, 7)),
    ],
    "never one rank alone is wanted": [
        head_state(intent=intent_of(wanted=(("spark-a", (RAY, SERVE)), ("spark-b", ())))),
        head_state(intent=intent_of(wanted=(("spark-a", (RAY,)), ("spark-b", (RAY, SERVE))))),
        head_state(intent=intent_of(wanted=(("spark-a", (RAY, SERVE)), ("spark-b", (RAY, SERVE))))),
    ],
    "Ray's monitor is off only where guards enforced at the launch": [
        head_state(settings=Settings(ray_memory_threshold=None), unguarded=True),
        head_state(Phase.FORMING, settings=Settings(ray_memory_threshold=None), unguarded=True),
    ],
}
OBSERVERS = {"who only observes runs nothing", "who only observes orders nothing"}
CASES = [(rule, state) for rule, states in BROKEN.items() for state in states]


@pytest.mark.parametrize("what", HOLDS)
def test_what_is_allowed_breaks_no_rule(what) -> None:
    assert check(HOLDS[what], make_policy(HOLDS[what].node)) == ()


@pytest.mark.parametrize(("rule", "state"), CASES)
def test_what_is_not_allowed_breaks_that_rule_alone(rule, state) -> None:
    assert check(state, POLICY) == (rule,)


def test_who_only_observes_runs_nothing() -> None:
    observes = replace(POLICY, observe_only=True)

    nothing = head_state(Phase.PAUSED, intent=None)
    assert check(nothing, observes) == ()
    running = head_state(Phase.PAUSED, intent=None, member=units(unit()))
    assert check(running, observes) == ("who only observes runs nothing",)
    assert check(head_state(Phase.PAUSED), observes) == ("who only observes orders nothing",)


def test_over_mp_serve_is_wanted_on_every_rank() -> None:
    alone = intent_of(wanted=(("spark-a", (SERVE,)), ("spark-b", ())))

    assert check(head_state(intent=EVERY_RANK), MP) == ()
    assert check(head_state(intent=alone), MP) == ("never one rank alone is wanted",)
    assert check(head_state(Phase.STOPPING, intent=alone), MP) == ()


def test_the_bounds_are_the_operators_also_where_he_asks_for_more_than_a_floor() -> None:
    pinned = Settings(kv_cache_bytes=1 << 20)
    asks = replace(POLICY, settings=pinned)
    low = replace(POLICY, settings=Settings(gpu_memory_utilization=0.4))

    assert check(head_state(settings=pinned), asks) == ()
    assert check(head_state(settings=low.settings), low) == ()
    assert check(head_state(settings=FLOORED.settings), FLOORED) == ()
    assert check(head_state(settings=Settings()), FLOORED) == ("settings stay within the operator's bounds",)


def test_the_budget_is_the_operators() -> None:
    failing = head_state(Phase.FAILING, failure=FAILURE, incident=incident(*["nccl_timeout"] * 5))
    undecided = head_state(Phase.FAILING, failure=FAILURE, incident=incident(*["unknown"] * 5))

    assert check(failing, replace(POLICY, transient_budget=5)) == ()
    assert check(undecided, replace(POLICY, unknown_unchanged=4)) == ()
    assert check(failing, replace(POLICY, transient_budget=4)) != ()
    assert check(undecided, replace(POLICY, unknown_unchanged=3)) != ()


def test_eager_mode_is_the_operators_to_allow() -> None:
    eager = head_state(settings=Settings(cudagraph=CudaGraph.NONE))
    never = replace(POLICY, floors=replace(POLICY.floors, eager_allowed=False))

    assert check(eager, POLICY) == ()
    assert check(eager, never) == ("settings stay within the operator's bounds",)
    assert check(eager, replace(never, settings=Settings(cudagraph=CudaGraph.NONE))) == ()


def test_nothing_is_raised_above_what_was_asked() -> None:
    asks = replace(POLICY, settings=Settings(kv_cache_bytes=8 << 30, max_num_batched_tokens=4096))
    for more in ({"kv_cache_bytes": 9 << 30}, {"max_num_batched_tokens": 8192}):
        state = head_state(settings=replace(asks.settings, **more))
        assert check(state, asks) == ("settings stay within the operator's bounds",)


def test_every_rule_has_a_state_that_breaks_it() -> None:
    assert {rule for rule, _ in RULES} == {*BROKEN, *OBSERVERS}
