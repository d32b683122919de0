"""`explain`: in every phase it says what is waited for, until when, and what follows."""

from __future__ import annotations

from dataclasses import replace

import pytest

from export import states
from export.states import NOW, POLICY
from sim.world import World, serving
from sparkd.cli.explain_text import explain_text
from sparkd.cli.status_text import status_text
from sparkd.core import events as ev
from sparkd.core.policy import Policy
from sparkd.core.records import MemoryNotBack
from sparkd.core.state import State
from sparkd.export.explain import explain
from sparkd.export.status import status_view
from sparkd.words import Phase, UnitName

WALL_S = 1_700_000_000.0


def said(state: State, policy: Policy = POLICY, now: float = NOW) -> str:
    return explain_text(explain(state, policy, now), WALL_S)


@pytest.mark.parametrize("phase", list(Phase))
def test_every_phase_is_explained(phase: Phase) -> None:
    document = explain(states.head(phase, since_s=NOW - 1), POLICY, NOW)
    assert document["phase"] is phase
    assert document["waits_for"] or document["then"]
    assert explain_text(document, WALL_S).count("\n") >= 1


def test_a_load_says_which_shard_until_when_and_what_memory_would_change() -> None:
    state = states.loading(8, 39, moved_s=NOW - 6)
    lead = replace(state.coordinator, silences=((Phase.LOADING_WEIGHTS, 18.0),))
    document = explain(replace(state, coordinator=lead), POLICY, NOW)

    assert document["waits_for"] == ["shard 9 of 39 (at most every 18 s so far)"]
    assert document["left_s"] == 60.0 - 6.0
    assert document["then"] == "it is stuck: the start counts as failed"
    assert document["if_memory"]


def test_a_worker_says_whom_to_ask() -> None:
    state = replace(states.serving(), coordinator=None)
    assert said(state) == "this node does not coordinate: sparkctl explain on spark-a"


def test_it_says_what_a_person_has_to_do_and_when_it_tries_by_itself() -> None:
    state = states.head(Phase.ESCALATED, needs="reboot spark-b", retry_at_s=NOW + 1800)
    text = said(state)
    assert "reboot spark-b" in text
    assert "(1800 s), then: tried again by itself, once" in text


def test_what_a_reboot_ends_goes_on_by_itself_then() -> None:
    text = said(states.head(Phase.ESCALATED, needs="reboot spark-b", awaits_reboot=True))
    assert "Waiting for: a person: reboot spark-b" in text
    assert "it starts by itself when the node is back" in text


def test_the_cooldown_is_named_with_its_end() -> None:
    world = World(cooldown_s=100.0)
    world.run_until(serving(world))
    world.run_for(90)
    document = explain(world.head.state, world.head.policy, world.now)
    assert document["waits_for"] == ["the cooldown: it has to serve so long without a failure"]
    proven_s = world.now + document["left_s"]

    world.run_until(lambda: world.head.state.coordinator.proven is not None)

    assert world.now == pytest.approx(proven_s, abs=0.1)


def test_memory_that_is_waited_for_is_named_with_the_end_of_the_wait() -> None:
    world = World(memory_release_s=20.0)
    world.run_until(serving(world))
    world.head.available_bytes -= 30 << 30
    world.kill("spark-b", UnitName.RAY)
    world.run_until(lambda: world.phase is Phase.FENCING)
    world.run_for(2)
    document = explain(world.head.state, world.head.policy, world.now)
    assert document["waits_for"] == ["spark-a: the memory of generation 1 is not back yet"]
    ends_s = world.now + document["left_s"]

    world.run_until(lambda: world.generation == 2)

    assert world.now == pytest.approx(ends_s, abs=0.1)


def test_it_says_how_many_relaunches_are_left() -> None:
    spent = (("nccl_timeout", NOW - 600.0), ("nccl_timeout", NOW - 60.0), ("cuda_oom", NOW - 5.0))
    document = explain(states.head(Phase.SERVING, spent=spent), POLICY, NOW)
    assert document["budget"] == [{"cause": "nccl_timeout", "left": 1, "of": 3, "until_s": 3000.0}]
    assert "1 of 3 relaunches for nccl_timeout left until" in explain_text(document, WALL_S)


def test_what_nothing_decided_has_one_budget_and_its_own() -> None:
    spent = (("unknown", NOW - 600.0), ("killed_unspecified", NOW - 60.0), ("unknown", NOW - 7200.0))
    policy = replace(POLICY, unknown_unchanged=4)
    document = explain(states.head(Phase.SERVING, spent=spent), policy, NOW)
    assert document["budget"] == [{"cause": "unknown", "left": 3, "of": 5, "until_s": 3000.0}]


def test_memory_that_did_not_come_back_in_time_is_told_by_explain_and_status() -> None:
    """This node by its member, the other by its word; over with the next fence that is measured."""
    world = World()
    world.run_until(serving(world))
    for node in world.nodes.values():
        node.available_bytes -= 30 << 30
    world.kill("spark-b", UnitName.RAY)
    world.run_until(lambda: world.generation == 2)

    told = "the memory of generation 1 was not measured back in time; the next start goes on without"
    state, policy = world.head.state, world.head.policy
    for text in (said(state, policy, world.now), status_text(status_view(state, policy, world.now), WALL_S)):
        assert f"spark-a: {told}" in text
        assert f"spark-b: {told}" in text
    assert [r for n in world.nodes.values() for r in n.records if isinstance(r, MemoryNotBack)] == [
        MemoryNotBack(1, policy.memory_release_s, 30 << 30)
    ] * 2

    world.run_until(serving(world))
    for verb in (ev.Verb.STOP, ev.Verb.START):
        world.tell(world.head, ev.OperatorAsked(verb))
        world.run_for(30)
    assert "not measured back" not in said(world.head.state, policy, world.now)


def test_who_only_observes_says_so() -> None:
    policy = replace(POLICY, observe_only=True)
    assert "only observes" in said(states.head(Phase.PAUSED), policy)


def test_it_tells_the_truth_about_when_a_hang_is_called() -> None:
    """What it announces is what the core does then, and not a moment earlier."""
    world = World()
    world.run_until(serving(world))
    world.hung = True
    token = "the next token of what was asked"
    world.run_until(lambda: [token] == explain(world.head.state, world.head.policy, world.now)["waits_for"])
    announced_s = world.now + explain(world.head.state, world.head.policy, world.now)["left_s"]

    world.run_until(lambda: world.phase is Phase.FAILING)

    assert world.now == pytest.approx(announced_s, abs=0.1)


def test_it_tells_the_truth_about_the_end_of_a_wait() -> None:
    world = World(backoff_base_s=30.0)
    world.run_until(serving(world))
    world.kill("spark-a", UnitName.SERVE)
    world.run_until(lambda: world.phase is Phase.BACKING_OFF)
    ends_s = world.now + explain(world.head.state, world.head.policy, world.now)["left_s"]

    world.run_until(lambda: world.phase is not Phase.BACKING_OFF)

    assert world.now == pytest.approx(ends_s, abs=0.1)


def test_waiting_names_every_missing_precondition() -> None:
    world = World()
    world.nodes["spark-b"].up = False
    world.run_for(60)
    assert explain(world.head.state, world.head.policy, world.now)["waits_for"] == [
        "spark-b: its sparkd is not heard"
    ]
    world.tell(world.head, ev.OperatorAsked(ev.Verb.STOP))
