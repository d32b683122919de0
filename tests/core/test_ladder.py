"""The ladder by literal numbers: which setting, by how much, and where it ends."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sim.world import make_policy
from sparkd.core import ladder, remedy
from sparkd.core.policy import Floors
from sparkd.signals.model import Diagnosis, Quantity
from sparkd.words import GIB, CudaGraph, LoadFormat, Phase, Settings

TOTAL = int(119.7 * GIB)
POLICY = make_policy("spark-a")


def diagnosed(cause: str, phase: Phase | None, **quantities: float) -> Diagnosis:
    made = tuple(Quantity(name, value) for name, value in quantities.items())
    return Diagnosis(cause, phase, "spark-a", None, 1.0, "", quantities=made)


def choose(diagnosis: Diagnosis, settings: Settings | None = None, *, kv: int | None = None, policy=POLICY):
    facts = remedy.Facts(settings or Settings(), 1, (), kv, TOTAL)
    return remedy.choose(diagnosis, facts, policy, 0.0)


def test_the_seed_case_frees_the_overshoot_and_the_margin() -> None:
    kill = diagnosed(
        "ray_oom_kill",
        Phase.CAPTURING_GRAPHS,
        used_bytes=113.78 * GIB,
        total_bytes=TOTAL,
        threshold_bytes=0.95 * TOTAL,
    )

    chosen = choose(kill, kv=int(49.12 * GIB))

    assert chosen.settings.kv_cache_bytes / GIB == pytest.approx(49.12 - 0.065 - 0.0375 * 119.7, abs=0.01)
    assert chosen.settings.ray_memory_threshold == 0.98
    assert chosen.settings.gpu_memory_utilization == 0.86
    assert chosen.settings.cudagraph is CudaGraph.FULL


def test_with_enforcing_guards_rays_monitor_goes_off() -> None:
    kill = diagnosed("ray_oom_kill", Phase.SERVING, used_bytes=114 * GIB, total_bytes=TOTAL)

    chosen = choose(kill, kv=40 * GIB, policy=replace(POLICY, guard_enforcing=True))

    assert chosen.settings.ray_memory_threshold is None


def test_a_second_kill_above_the_raised_threshold_still_lowers_the_cache() -> None:
    raised = Settings(ray_memory_threshold=0.98, kv_cache_bytes=44 * GIB)
    kill = diagnosed(
        "ray_oom_kill", Phase.SERVING, used_bytes=118 * GIB, total_bytes=TOTAL, threshold_bytes=0.98 * TOTAL
    )

    chosen = choose(kill, raised)

    assert chosen.settings.kv_cache_bytes < 44 * GIB
    assert chosen.settings.ray_memory_threshold == 0.98


@pytest.mark.parametrize(
    ("phase", "setting", "value"),
    [
        (Phase.LOADING_WEIGHTS, "load_format", LoadFormat.LAZY),
        (Phase.PROFILING, "max_num_batched_tokens", 1024),
        (Phase.CAPTURING_GRAPHS, "gpu_memory_utilization", 0.84),
        (Phase.SERVING, "gpu_memory_utilization", 0.84),
    ],
)
def test_the_phase_picks_the_setting(phase: Phase, setting: str, value: object) -> None:
    oom = diagnosed("cuda_oom", phase, requested_bytes=3 * GIB, free_bytes=1 * GIB, total_bytes=TOTAL)

    assert getattr(choose(oom).settings, setting) == value


def test_out_of_memory_goes_down_rung_by_rung_and_ends_with_a_person() -> None:
    settings, seen = Settings(kv_cache_bytes=6 * GIB), []
    oom = diagnosed("cuda_oom", Phase.CAPTURING_GRAPHS, requested_bytes=GIB, free_bytes=0, total_bytes=TOTAL)
    while (chosen := choose(oom, settings)).action is remedy.Action.RELAUNCH:
        assert chosen.settings != settings
        settings = chosen.settings
        seen.append(chosen.explanation)

    assert settings.kv_cache_bytes == POLICY.floors.kv_cache_bytes
    assert settings.cudagraph is CudaGraph.NONE
    assert chosen.needs
    assert len(seen) < 10


def test_eager_mode_is_the_operators_to_allow() -> None:
    floors = Floors(eager_allowed=False)
    need = ladder.Need(GIB, TOTAL, None, Phase.CAPTURING_GRAPHS)

    reduced = Settings(cudagraph=CudaGraph.REDUCED)

    assert ladder.lower_graphs(reduced, need, floors) is None


def test_free_memory_at_start_sets_the_utilisation_below_what_was_free() -> None:
    low = diagnosed("startup_free_memory_too_low", None, free_bytes=102 * GIB, total_bytes=121.7 * GIB)

    chosen = choose(low, Settings(gpu_memory_utilization=0.87))

    assert chosen.settings.gpu_memory_utilization == 0.81


def test_the_engines_own_estimate_of_the_longest_context_is_used() -> None:
    small = diagnosed("kv_cache_too_small", Phase.ALLOCATING_KV_CACHE, estimated_max_model_len=20_000)

    assert choose(small).settings.max_model_len == 19_968


def test_an_unknown_total_changes_nothing_that_needs_it() -> None:
    facts = remedy.Facts(Settings(), 1, (), None, None)
    oom = diagnosed("cuda_oom", Phase.SERVING)

    chosen = remedy.choose(oom, facts, POLICY, 0.0)

    assert chosen.settings.gpu_memory_utilization == 0.90
    assert chosen.settings.max_num_batched_tokens == 1024


def test_memory_causes_have_no_budget_but_the_ladder() -> None:
    spent = tuple(("cuda_oom", float(t)) for t in range(20))
    facts = remedy.Facts(Settings(kv_cache_bytes=40 * GIB), 20, spent, None, TOTAL)
    oom = diagnosed("cuda_oom", Phase.SERVING, requested_bytes=GIB, free_bytes=0)

    assert remedy.choose(oom, facts, POLICY, 30.0).action is remedy.Action.RELAUNCH
