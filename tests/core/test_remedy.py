"""From a diagnosis to what is done: budgets, silent kills, and what is said where the ladder ends."""

from __future__ import annotations

import ast
from dataclasses import fields, replace
from pathlib import Path

import pytest

from sim.world import make_policy
from sparkd.core import remedy
from sparkd.core.remedy import Action, Facts
from sparkd.signals.causes import CAUSES
from sparkd.signals.model import Diagnosis, Quantity
from sparkd.words import GIB, LoadFormat, Phase, Settings

TOTAL = int(119.7 * GIB)
POLICY = make_policy("spark-a")


def diagnosed(cause: str, phase: Phase = Phase.SERVING, **quantities: float) -> Diagnosis:
    made = tuple(Quantity(name, value) for name, value in quantities.items())
    return Diagnosis(cause, phase, "spark-a", None, 1.0, "", quantities=made)


def facts(settings: Settings | None = None, **more: object) -> Facts:
    given = {"failures": 1, "spent": (), "kv_cache_bytes": 40 * GIB, "total_bytes": TOTAL}
    return Facts(settings or Settings(), **{**given, **more})


def test_memory_causes_have_no_budget_but_the_ladder() -> None:
    spent = tuple(("cuda_oom", float(t)) for t in range(20))
    oom = diagnosed("cuda_oom", requested_bytes=GIB, free_bytes=0)

    chosen = remedy.choose(oom, facts(failures=20, spent=spent), POLICY, 30.0)

    assert chosen.action is Action.RELAUNCH


@pytest.mark.parametrize("cause", remedy.MEMORY)
def test_every_memory_cause_is_known_and_leads_to_less_or_to_a_person(cause) -> None:
    assert cause in CAUSES
    chosen = remedy.choose(diagnosed(cause), facts(), POLICY, 0.0)

    assert chosen.settings != Settings() or chosen.action is Action.ESCALATE
    assert chosen.explanation


EXHAUSTED = "uma_host_exhaustion"


def test_an_exhausted_node_takes_a_memory_step_and_more_of_them_larger_ones() -> None:
    first, second = (
        remedy.choose(diagnosed(EXHAUSTED), facts(lowest_available_bytes=3 * GIB, causes=causes), POLICY, 0.0)
        for causes in ((), (EXHAUSTED,))
    )

    assert second.settings.kv_cache_bytes < first.settings.kv_cache_bytes < 40 * GIB
    assert first.memory


@pytest.mark.parametrize("lowest", [None, GIB])
def test_what_no_evidence_decides_changes_nothing_whatever_was_measured(lowest) -> None:
    """What was measured is evidence: where it decides, the diagnosis says so."""
    killed = diagnosed("killed_unspecified")

    chosen = remedy.choose(killed, facts(lowest_available_bytes=lowest), POLICY, 0.0)

    assert chosen.settings == Settings()
    assert "unchanged relaunch 1 of 2" in chosen.explanation


def test_an_exhausted_node_with_a_discrete_gpu_does_not_shrink_the_cache() -> None:
    policy = replace(POLICY, unified_memory=False)

    chosen = remedy.choose(diagnosed(EXHAUSTED), facts(lowest_available_bytes=GIB), policy, 0.0)

    assert chosen.settings == Settings(load_format=LoadFormat.LAZY)


def test_at_the_end_of_the_ladder_a_person_is_told_what_to_do() -> None:
    lazy = Settings(ray_memory_threshold=0.98, load_format=LoadFormat.LAZY)

    chosen = remedy.choose(diagnosed("ray_oom_kill", Phase.LOADING_WEIGHTS), facts(lazy), POLICY, 0.0)

    assert chosen.action is Action.ESCALATE
    assert chosen.settings == lazy
    assert "more nodes" in chosen.needs


def test_settings_that_failed_are_not_chosen_again() -> None:
    kill = diagnosed("ray_oom_kill", used_bytes=114 * GIB, total_bytes=TOTAL)
    first = remedy.choose(kill, facts(), POLICY, 0.0)

    second = remedy.choose(kill, facts(failed=(first.settings,)), POLICY, 0.0)

    assert second.settings.kv_cache_bytes < first.settings.kv_cache_bytes


def test_unknown_is_tried_unchanged_twice_then_one_memory_step_then_a_person() -> None:
    unknown, seen = diagnosed("unknown"), []
    for used in range(4):
        chosen = remedy.choose(unknown, facts(causes=("unknown",) * used), POLICY, 0.0)
        seen.append((chosen.action, chosen.settings == Settings()))

    go, stop = Action.RELAUNCH, Action.ESCALATE
    assert seen == [(go, True), (go, True), (go, False), (stop, True)]


def test_a_second_nccl_failure_takes_one_memory_step() -> None:
    timeout = diagnosed("nccl_timeout")

    first = remedy.choose(timeout, facts(), POLICY, 0.0)
    second = remedy.choose(timeout, facts(causes=("nccl_timeout",)), POLICY, 0.0)

    assert first.settings == Settings()
    assert second.settings.kv_cache_bytes < 40 * GIB


@pytest.mark.parametrize("second", ["nccl_timeout", "ib_roce_error"])
def test_a_flapping_cable_costs_one_memory_step_in_all(second) -> None:
    settings, spent, steps = Settings(), (), []
    for n, cause in enumerate(("nccl_timeout", second, "nccl_timeout", second)):
        chosen = remedy.choose(diagnosed(cause), facts(settings, spent=spent), POLICY, float(n))
        steps.append(chosen.settings != settings)
        spent = (*spent, (cause, float(n)), *(((chosen.once, float(n)),) if chosen.once else ()))
        settings = chosen.settings

    assert steps == [False, True, False, False]


def test_an_nccl_failure_on_an_exhausted_node_takes_the_step_at_once_and_no_second_one() -> None:
    timeout, empty = diagnosed("nccl_timeout"), {"lowest_available_bytes": GIB}

    first = remedy.choose(timeout, facts(**empty), POLICY, 0.0)
    spent = (("nccl_timeout", 0.0), (first.once, 0.0))
    second = remedy.choose(timeout, facts(first.settings, spent=spent, **empty), POLICY, 1.0)

    assert first.settings.kv_cache_bytes < 40 * GIB
    assert first.explanation.startswith(
        "nccl_timeout with only 1.0 GiB available on the node, one memory step"
    )
    assert second.settings == first.settings


def test_a_passing_cause_changes_nothing_and_ends_with_its_budget() -> None:
    trips = diagnosed("memory_profiling_error", Phase.PROFILING)

    chosen = [
        remedy.choose(trips, facts(causes=("memory_profiling_error",) * n), POLICY, 0.0) for n in (0, 3)
    ]

    assert [c.action for c in chosen] == [Action.RELAUNCH, Action.ESCALATE]
    assert chosen[0].settings == Settings()


def test_what_the_daemon_hands_over_is_known() -> None:
    """Which facts the core fills in: the benchmark must not live on others without saying so."""
    source = Path(remedy.__file__).with_name("incident.py").read_text(encoding="utf-8")
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    (made,) = [call for call in calls if ast.unparse(call.func) == "remedy.Facts"]
    names = {word.arg for word in made.keywords}

    assert names <= {field.name for field in fields(Facts)}
    assert {"settings", "kv_cache_bytes", "total_bytes", "causes", "baseline_bytes", "failed"} <= names


def too_little_free(free_gib: float) -> Diagnosis:
    return diagnosed(
        "startup_free_memory_too_low", Phase.INIT_DISTRIBUTED, free_bytes=free_gib * GIB, total_bytes=TOTAL
    )


def test_memory_that_others_hold_is_waited_for_and_no_setting_is_burnt() -> None:
    for used in range(POLICY.transient_budget):
        spent = tuple(("startup_free_memory_too_low", 0.0) for _ in range(used))
        chosen = remedy.choose(too_little_free(35.4), facts(spent=spent), POLICY, 1.0)
        assert (chosen.action, chosen.settings) == (Action.RELAUNCH, Settings())
        assert "something else holds the memory" in chosen.explanation

    spent = tuple(("startup_free_memory_too_low", 0.0) for _ in range(POLICY.transient_budget))
    chosen = remedy.choose(too_little_free(35.4), facts(spent=spent), POLICY, 1.0)
    assert chosen.action is Action.ESCALATE
    assert chosen.needs.startswith("end what holds the memory of spark-a (only 35.4 GiB were free)")


@pytest.mark.parametrize(
    ("cause", "policy", "key"),
    [
        ("nccl_timeout", {"transient_budget": 0}, "recovery.transient_budget"),
        ("unknown", {"unknown_unchanged": 0}, "recovery.unknown_unchanged"),
    ],
)
def test_who_allows_no_relaunch_reads_that_and_what_to_look_at(cause: str, policy: dict, key: str) -> None:
    spent = () if cause != "unknown" else (("unknown", 0.0),)
    chosen = remedy.choose(diagnosed(cause), facts(), replace(POLICY, **policy), 0.0)
    if cause == "unknown":
        assert chosen.action is Action.RELAUNCH  # the one memory step
        chosen = remedy.choose(diagnosed(cause), facts(spent=spent), replace(POLICY, **policy), 0.0)
        assert chosen.explanation == "1 relaunch without a cause that evidence decides"
    else:
        assert chosen.explanation == f"no relaunch is allowed ({key} = 0)"
    assert chosen.action is Action.ESCALATE
    assert chosen.needs.startswith(f"find what is behind {cause} (sparkctl incidents show")


def test_weights_that_do_not_fit_into_what_is_free_are_no_matter_of_the_share() -> None:
    chosen = remedy.choose(too_little_free(70.0), facts(weights_bytes=72 * GIB), POLICY, 1.0)
    assert chosen.settings == Settings()
    fits = remedy.choose(too_little_free(100.0), facts(weights_bytes=72 * GIB), POLICY, 1.0)
    assert fits.settings.gpu_memory_utilization < 0.9


def test_a_mere_suggestion_of_a_permanent_cause_does_not_end_the_trying() -> None:
    suggested = replace(diagnosed("disk_full"), confidence=0.6)
    assert remedy.choose(suggested, facts(), POLICY, 0.0).action is Action.RELAUNCH
    assert remedy.choose(diagnosed("disk_full"), facts(), POLICY, 0.0).action is Action.ESCALATE


def test_the_emptiest_nodes_memory_counts_where_nobody_is_known() -> None:
    nodes = (
        remedy.NodeMemory("spark-a", TOTAL, TOTAL, 60 * GIB),
        remedy.NodeMemory("spark-b", TOTAL, TOTAL, GIB),
    )
    nobody = replace(diagnosed(EXHAUSTED), node=None)
    emptiest, other = (
        remedy.choose(replace(nobody, node=node), facts(nodes=nodes), POLICY, 0.0).settings.kv_cache_bytes
        for node in (None, "spark-a")
    )
    assert emptiest < other


@pytest.mark.parametrize("guilty", [(), (remedy.NodeMemory("spark-b"),)])
def test_the_heads_memory_does_not_stand_in_for_a_node_that_tells_nothing_of_its_own(guilty) -> None:
    """The head had 1 GiB left; of the node on which it was killed nobody knows."""
    nodes = (remedy.NodeMemory("spark-a", TOTAL, TOTAL - 5 * GIB, GIB), *guilty)
    killed = replace(diagnosed("killed_unspecified"), node="spark-b")
    known = facts(nodes=nodes, lowest_available_bytes=GIB, baseline_bytes=TOTAL - 5 * GIB)

    chosen = remedy.choose(killed, known, POLICY, 0.0)

    assert (chosen.memory, chosen.settings) == (False, Settings())
    assert "unchanged relaunch 1 of 2" in chosen.explanation


def test_what_a_rank_takes_before_it_loads_is_alike_and_what_the_node_held_is_its_own() -> None:
    """The head held 30 GiB before the launch, the guilty node 4; 3 GiB more were taken until the load."""

    def cache(node: str, head: int | None = 30, loading: int | None = 33) -> int | None:
        known = None if head is None else TOTAL - head * GIB
        nodes = (
            remedy.NodeMemory("spark-a", TOTAL, known, 8 * GIB),
            remedy.NodeMemory("spark-b", TOTAL, TOTAL - 4 * GIB, 8 * GIB),
        )
        began = None if loading is None else TOTAL - loading * GIB
        killed = replace(diagnosed("cuda_oom"), node=node)
        found = facts(nodes=nodes, loading_available_bytes=began)
        return remedy.choose(killed, found, POLICY, 0.0).settings.kv_cache_bytes

    assert cache("spark-b") == cache("spark-b", head=4, loading=7) != cache("spark-a")
    assert cache("spark-b") != cache("spark-b", head=30, loading=36)
    assert cache("spark-b", head=None) == cache("spark-b", loading=None)


def test_readings_of_another_memory_than_the_diagnosis_speaks_of_are_not_used() -> None:
    """A limit of 119.7 GiB, on a node that measured 23.5: what was available there says nothing."""
    kill = diagnosed(
        "ray_oom_kill",
        Phase.CAPTURING_GRAPHS,
        used_bytes=113.78 * GIB,
        total_bytes=TOTAL,
        threshold_bytes=0.95 * TOTAL,
    )
    measured = {"kv_cache_bytes": int(48.5 * GIB), "weights_bytes": 55 * GIB}
    plain = remedy.choose(kill, facts(**measured), POLICY, 0.0)
    node = remedy.NodeMemory("spark-a", int(23.5 * GIB), 20 * GIB, 18 * GIB)
    small = {"total_bytes": int(23.5 * GIB), "baseline_bytes": 20 * GIB, "loading_available_bytes": 19 * GIB}
    strange = remedy.choose(kill, facts(**measured, **small, nodes=(node,)), POLICY, 0.0)
    assert strange.settings == plain.settings
    assert plain.settings.kv_cache_bytes > 42 * GIB
