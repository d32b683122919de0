"""How many bytes must be freed, by literal numbers; what typically comes (core.spikes) beside it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from core.given import POLICY
from sparkd.core import spikes
from sparkd.core.need import Known, gib, limit_of, need_of, reading_of
from sparkd.signals.model import Diagnosis, Quantity
from sparkd.words import GIB, CudaGraph, Phase, Settings

TOTAL = 100 * GIB
DISCRETE = replace(POLICY, unified_memory=False)
PLAIN = Settings(ray_memory_threshold=None)
AIM = int(TOTAL * 0.98) - GIB
STEP_2048 = GIB // 2 + 2048 * (int(0.2 * GIB) // 1024)


def failed(cause="cuda_oom", phase: Phase | None = Phase.SERVING, **quantities: float) -> Diagnosis:
    made = tuple(Quantity(name, value) for name, value in quantities.items())
    return Diagnosis(cause, phase, "spark-a", None, 1.0, "", quantities=made)


def known(settings: Settings = PLAIN, **more) -> Known:
    return Known(settings, **{"total_bytes": TOTAL, **more})


def need(diagnosis=None, knows=None, policy=POLICY):
    knows = knows or known()
    return need_of(diagnosis or failed(), knows, knows.settings, policy)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (GIB, "1.0 GiB"),
        (-GIB, "-1.0 GiB"),
        (GIB - 1, "1024 MiB"),
        (1.55 * GIB, "1.6 GiB"),
        (512 << 20, "512 MiB"),
        (0, "0 MiB"),
    ],
)
def test_bytes_are_told_as_a_person_reads_them(value, text) -> None:
    assert gib(value) == text


# -- spikes --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tokens", "graphs", "step", "transient"),
    [
        (None, CudaGraph.FULL, STEP_2048, STEP_2048 + int(1.4 * GIB)),
        (1024, CudaGraph.PIECEWISE, GIB // 2 + 1024 * 209715, GIB // 2 + 1024 * 209715 + int(0.8 * GIB)),
        (4096, CudaGraph.REDUCED, GIB // 2 + 4096 * 209715, GIB // 2 + 4096 * 209715 + int(0.3 * GIB)),
        (4096, CudaGraph.NONE, GIB // 2 + 4096 * 209715, GIB // 2 + 4096 * 209715),
    ],
)
def test_what_a_step_and_the_graphs_take(tokens, graphs, step, transient) -> None:
    settings = Settings(max_num_batched_tokens=tokens, cudagraph=graphs)

    assert (spikes.step_bytes(settings), spikes.transient_bytes(settings)) == (step, transient)


@pytest.mark.parametrize(
    ("cache", "typical", "certain"),
    [
        (None, GIB, 0),
        (100 * GIB, 10 * GIB, int(5.5 * GIB)),
        (100 * GIB, GIB, int(2.5 * GIB)),
        (100 * GIB, 0, 0),
        (0, GIB, 0),
    ],
)
def test_the_certainty_is_a_share_of_the_cache_and_bounded_by_what_typically_comes(
    cache, typical, certain
) -> None:
    assert spikes.certainty_bytes(cache, typical) == certain


def test_a_negative_amount_makes_nothing_certain() -> None:
    assert spikes.certainty_bytes(100 * GIB, -GIB) == 0


@pytest.mark.parametrize(
    ("phase", "unified", "fixed", "of_step"),
    [
        (Phase.CAPTURING_GRAPHS, True, 1.8, 0.7),
        (Phase.ALLOCATING_KV_CACHE, True, 1.8, 0.7),
        (Phase.SERVING, True, 1.6, 0.6),
        (Phase.PROFILING, True, 2.0, 0.0),
        (None, True, 2.0, 0.0),
        (Phase.CAPTURING_GRAPHS, False, 0.8, 0.3),
        (Phase.ALLOCATING_KV_CACHE, False, 1.0, 0.3),
        (Phase.SERVING, False, 0.5, 0.2),
        (None, False, 0.5, 0.2),
    ],
)
def test_what_still_comes_after_a_reading_in_a_phase(phase, unified, fixed, of_step) -> None:
    small, huge = Settings(), Settings(max_num_batched_tokens=1 << 20)

    assert spikes.rest_bytes(phase, small, unified=unified) == int(fixed * GIB + of_step * STEP_2048)
    assert spikes.rest_bytes(phase, huge, unified=unified) == int(fixed * GIB + of_step * 5 * GIB)


@pytest.mark.parametrize(
    ("before", "after", "sure"),
    [
        (Settings(), Settings(cudagraph=CudaGraph.PIECEWISE), int(0.3 * GIB)),
        (Settings(cudagraph=CudaGraph.REDUCED), Settings(cudagraph=CudaGraph.NONE), int(0.15 * GIB)),
        (Settings(), Settings(max_num_batched_tokens=1024), 1024 * (int(0.07 * GIB) // 1024)),
        (
            Settings(max_num_batched_tokens=4096),
            Settings(max_num_batched_tokens=2048),
            2048 * (int(0.07 * GIB) // 1024),
        ),
        (Settings(max_num_batched_tokens=4096), Settings(max_num_batched_tokens=4096), 0),
        (Settings(max_num_batched_tokens=4096), Settings(), 0),
        (Settings(), Settings(), 0),
    ],
)
def test_what_a_rung_surely_frees(before, after, sure) -> None:
    assert spikes.sure_bytes(before, after) == sure


# -- the reading and the limit -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("quantities", "more", "total", "read"),
    [
        ({"requested_bytes": 3.0}, {}, TOTAL, None),
        ({"free_bytes": 3.0}, {}, TOTAL, None),
        ({"requested_bytes": 3.0, "free_bytes": 1.0}, {}, 0, None),
        ({"requested_bytes": 3.0, "free_bytes": 1.0}, {}, TOTAL, TOTAL + 2),
        ({"requested_bytes": 0.0, "free_bytes": 0.0}, {}, TOTAL, TOTAL),
        ({}, {"lowest_available_bytes": 4, "total_bytes": TOTAL + 1}, TOTAL, None),
        ({}, {"lowest_available_bytes": 0}, TOTAL, TOTAL),
        ({"trigger_bytes": 7.0}, {"lowest_available_bytes": 4}, TOTAL, 7),
    ],
)
def test_a_reading_needs_all_of_its_parts(quantities, more, total, read) -> None:
    assert reading_of(failed(**quantities), known(**more), total) == read


def test_a_kernel_that_killed_says_nothing_where_the_size_is_unknown() -> None:
    assert reading_of(failed("kernel_oom"), known(total_bytes=None), 0) is None


def test_no_limit_is_below_nothing() -> None:
    guarded = replace(POLICY, guard_enforcing=True)

    assert limit_of(GIB, PLAIN, guarded) == 0
    assert limit_of(GIB // 4, PLAIN, DISCRETE) == 0
    assert limit_of(100, Settings(ray_memory_threshold=0.99), POLICY) == 98


# -- what is to be freed -------------------------------------------------------------------------


def rest_of(phase=Phase.SERVING, cache=0, repeats=0, policy=POLICY) -> int:
    typical = spikes.rest_bytes(phase, PLAIN, unified=policy.unified_memory)
    return (typical + spikes.certainty_bytes(cache, typical)) * (1 + repeats)


def test_a_reading_with_what_still_comes_above_the_aim_is_freed() -> None:
    found = need(failed(used_bytes=97 * GIB), known(kv_cache_bytes=20 * GIB))

    rest = rest_of(cache=20 * GIB)
    assert (found.total_bytes, found.aim_bytes, found.read_bytes) == (TOTAL, AIM, 97 * GIB)
    assert (found.rest_bytes, found.free_bytes) == (rest, 97 * GIB + rest - AIM)
    assert (found.phase, found.ceiling_share, found.share_bytes, found.step_share) == (
        Phase.SERVING, 0.9, None, None,
    )  # fmt: skip


def test_where_it_fits_nothing_is_freed() -> None:
    assert need(failed(used_bytes=50 * GIB)).free_bytes == 0


def test_the_amounts_grow_with_every_failure_of_the_incident() -> None:
    found = need(failed(used_bytes=97 * GIB), known(repeats=2, baseline_bytes=TOTAL))

    assert found.rest_bytes == rest_of(repeats=2)
    assert found.share_bytes == AIM - int(4.5 * GIB) - 3 * int(3.2 * GIB)


@pytest.mark.parametrize(
    ("more", "held"),
    [
        ({"loading_available_bytes": 80 * GIB}, 20 * GIB),
        ({"baseline_bytes": 95 * GIB}, 5 * GIB + int(4.5 * GIB)),
        ({"loading_available_bytes": 80 * GIB, "baseline_bytes": 95 * GIB}, 20 * GIB),
    ],
)
def test_what_the_node_held_before_is_measured_when_the_load_begins_or_before_the_launch(more, held) -> None:
    assert need(knows=known(**more)).share_bytes == AIM - held - int(3.2 * GIB)


def test_the_free_memory_of_a_refusal_is_what_was_held() -> None:
    low = failed("startup_free_memory_too_low", None, free_bytes=70 * GIB, total_bytes=TOTAL)
    other = failed("cuda_oom", None, free_bytes=70 * GIB, total_bytes=TOTAL)

    assert need(low).share_bytes == AIM - 30 * GIB - int(3.2 * GIB)
    assert need(other).share_bytes is None
    assert need(failed("startup_free_memory_too_low", None)).share_bytes is None


def test_a_share_is_never_negative_and_unknown_without_a_size() -> None:
    assert need(knows=known(loading_available_bytes=GIB)).share_bytes == 0
    unknown = known(total_bytes=None)
    assert need(failed(), unknown, DISCRETE).share_bytes is None
    assert need(failed(), unknown).total_bytes == 0


def test_a_device_of_its_own_holds_little_before_and_counts_its_own_size() -> None:
    device = failed(total_bytes=80 * GIB)

    found = need(
        device, known(baseline_bytes=90 * GIB, weights_bytes=40 * GIB, kv_cache_bytes=20 * GIB), DISCRETE
    )

    aim = 80 * GIB - GIB // 2 - int(80 * GIB * 0.01)
    assert (found.total_bytes, found.aim_bytes) == (80 * GIB, aim)
    assert found.share_bytes == aim - GIB // 2 - GIB


def test_on_one_memory_the_node_is_used_up_and_the_share_is_of_what_the_device_says() -> None:
    found = need(failed(total_bytes=101 * GIB))

    assert (found.total_bytes, found.aim_bytes) == (101 * GIB, AIM)
    assert need(failed(total_bytes=90 * GIB), known(total_bytes=None)).aim_bytes == (
        int(90 * GIB * 0.98) - int(90 * GIB * 0.01)
    )


BEFORE = {"loading_available_bytes": 90 * GIB}
SHARE = AIM - 10 * GIB - int(3.2 * GIB)


@pytest.mark.parametrize(
    ("phase", "cache", "certain"),
    [
        (Phase.CAPTURING_GRAPHS, 20 * GIB, False),
        (Phase.PROFILING, 20 * GIB, True),
        (Phase.ALLOCATING_KV_CACHE, None, False),
    ],
)
def test_a_share_that_is_too_large_by_projection_is_freed(phase, cache, certain) -> None:
    found = need(failed(phase=phase, used_bytes=GIB), known(kv_cache_bytes=cache, **BEFORE))

    more = spikes.certainty_bytes(cache, rest_of(phase, cache or 0)) if certain else 0
    assert found.free_bytes == int(0.9 * TOTAL) - SHARE + more


@pytest.mark.parametrize("phase", [Phase.STARTING_API, Phase.VERIFYING, Phase.SERVING])
def test_after_the_graphs_the_reading_knows_better_than_a_projection(phase) -> None:
    assert need(failed(phase=phase, used_bytes=GIB), known(**BEFORE)).free_bytes == 0
    assert need(failed(phase=phase), known(**BEFORE)).free_bytes == int(0.9 * TOTAL) - SHARE


def test_a_pinned_cache_is_not_sized_by_the_share() -> None:
    pinned = replace(PLAIN, kv_cache_bytes=GIB)

    assert need(failed(phase=Phase.PROFILING, used_bytes=GIB), known(pinned, **BEFORE)).free_bytes == 0


def test_the_sum_of_what_is_known_counts_where_nothing_was_read_or_the_cache_is_allocated() -> None:
    knows = known(replace(PLAIN, kv_cache_bytes=20 * GIB), weights_bytes=66 * GIB, **BEFORE)
    parts = 2 * int(2.2 * GIB) + STEP_2048 + int(1.4 * GIB)
    peak = 10 * GIB + 66 * GIB + 20 * GIB + parts

    def freed(phase, **quantities):
        return need(failed(phase=phase, **quantities), knows).free_bytes

    for phase, quantities in ((Phase.SERVING, {}), (Phase.ALLOCATING_KV_CACHE, {"used_bytes": GIB})):
        certain = spikes.certainty_bytes(20 * GIB, rest_of(phase, 20 * GIB)) // 2
        assert freed(phase, **quantities) == peak - AIM + certain
    assert freed(Phase.CAPTURING_GRAPHS) == peak - AIM
    assert freed(Phase.SERVING, used_bytes=GIB) == 0


def test_on_a_device_of_its_own_nothing_of_the_host_is_in_the_sum_and_failures_make_it_larger() -> None:
    knows = known(
        replace(PLAIN, kv_cache_bytes=30 * GIB), weights_bytes=66 * GIB, total_bytes=None, repeats=1
    )
    found = need(failed(phase=Phase.CAPTURING_GRAPHS, total_bytes=TOTAL), knows, DISCRETE)

    peak = GIB // 2 + 96 * GIB + 2 * int(2.2 * GIB) + STEP_2048 + int(1.4 * GIB)
    assert found.free_bytes == peak - found.aim_bytes


@pytest.mark.parametrize(
    ("cause", "asks"),
    [
        ("startup_free_memory_too_low", False),
        ("kv_cache_too_small", False),
        ("cuda_oom", True),
        ("nccl_timeout", True),
    ],
)
def test_where_nothing_measures_what_typically_comes_is_freed_and_for_a_refusal_nothing(cause, asks) -> None:
    assert need(failed(cause), known(total_bytes=None)).free_bytes == (rest_of() if asks else 0)


@pytest.mark.parametrize(
    ("used", "share"),
    [(95.0, 0.5 * (AIM - 81 * GIB) / (14 * GIB * 1.6)), (40.0, 0.5 * (AIM - 81 * GIB) / (GIB // 2 * 1.6))],
)
def test_how_far_the_peak_of_a_step_has_to_come_down(used, share) -> None:
    knows = known(weights_bytes=70 * GIB, **BEFORE)

    assert need(failed(used_bytes=used * GIB), knows).step_share == pytest.approx(share)
    assert need(failed(used_bytes=used * GIB), replace(knows, repeats=1)).step_share == pytest.approx(
        share / 2
    )


def test_a_step_for_which_nothing_is_left_has_no_share_and_an_unknown_one_none() -> None:
    assert need(failed(used_bytes=99 * GIB), known(weights_bytes=99 * GIB, **BEFORE)).step_share == 0.0
    assert need(failed(), known(weights_bytes=70 * GIB, **BEFORE)).step_share is None
    assert need(failed(used_bytes=GIB), known(**BEFORE)).step_share is None
    assert need(failed(used_bytes=GIB), known(weights_bytes=70 * GIB)).step_share is None


def test_a_pinned_cache_goes_before_a_sized_one() -> None:
    assert Known(Settings(kv_cache_bytes=5), kv_cache_bytes=9).cache_bytes == 5
    assert Known(Settings(), kv_cache_bytes=9).cache_bytes == 9
    assert Known(Settings()).cache_bytes is None
