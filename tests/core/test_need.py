"""How many bytes must be freed, by literal numbers; what typically comes (core.spikes) beside it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from core.given import POLICY
from sparkd.core import spikes
from sparkd.core.need import Known, gib, limit_of, need_of, reading_of
from sparkd.signals.model import Diagnosis, Quantity
from sparkd.words import GIB, Backend, CudaGraph, Phase, Settings, Sizes

TOTAL = 100 * GIB
DISCRETE = replace(POLICY, unified_memory=False)
PLAIN = Settings(ray_memory_threshold=0.98)
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
        (50 * GIB, 10 * GIB, 4 * GIB),
        (100 * GIB, GIB, int(0.6 * GIB)),
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


@pytest.mark.parametrize(
    ("said", "share"),
    [
        ({}, 1.0),
        ({"graphs_bytes": int(1.4 * GIB)}, 1.0),
        ({"graphs_bytes": int(2.8 * GIB)}, 2.0),
        ({"graphs_bytes": int(2.8 * GIB), "captured_bytes": int(0.7 * GIB)}, 0.5),
        ({"graphs_bytes": int(2.8 * GIB), "captured_bytes": 0}, 0.0),
    ],
)
def test_larger_graphs_free_more_where_the_engine_said_how_large_they_are(said, share) -> None:
    knows = known(sizes=Sizes(**said))
    piecewise = Settings(cudagraph=CudaGraph.PIECEWISE)

    assert knows.graphs_share == pytest.approx(share)
    assert spikes.sure_bytes(Settings(), piecewise, share) == int(share * int(0.3 * GIB))
    assert known(replace(PLAIN, cudagraph=CudaGraph.NONE), sizes=Sizes(**said)).graphs_share == 1.0


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


REST = int(1.6 * GIB + 0.6 * STEP_2048)
"""What typically still comes after a reading while serving."""
LATE, LATE_DEVICE = int(2.2 * GIB), int(0.4 * GIB)
GRAPHS = int(1.4 * GIB)
BEYOND = LATE + GRAPHS // 2
"""What comes beyond vLLM's share on one memory, where the engine has said nothing of its graphs."""


def sure(left: int, rest: int) -> int:
    """Return what is added to be sure where so much of the cache is left and so much still comes."""
    return min(int(0.08 * max(0, left)), int(0.6 * rest))


def test_a_reading_with_what_still_comes_above_the_aim_is_freed() -> None:
    found = need(failed(used_bytes=97 * GIB), known(kv_cache_bytes=20 * GIB))

    assert (found.total_bytes, found.aim_bytes, found.read_bytes) == (TOTAL, AIM, 97 * GIB)
    over = 97 * GIB + REST - AIM
    assert (found.rest_bytes, found.free_bytes) == (REST, over + sure(20 * GIB - over, REST))
    assert (found.phase, found.ceiling_share) == (Phase.SERVING, 0.9)
    assert (found.projected_bytes, found.share_bytes, found.step_share) == (None, None, None)


def test_where_it_fits_nothing_is_freed() -> None:
    assert need(failed(used_bytes=50 * GIB)).free_bytes == 0


def test_typical_amounts_grow_with_every_time_that_the_ladders_own_settings_were_too_much() -> None:
    found = need(failed(used_bytes=97 * GIB), known(repeats=2, baseline_bytes=TOTAL))

    held = int(4.5 * GIB)
    beyond = 3 * LATE + GRAPHS // 2
    assert found.rest_bytes == 3 * REST
    assert found.share_bytes == AIM - held - beyond
    assert found.free_bytes == held + int(0.9 * TOTAL) + beyond - AIM


def test_what_is_added_to_be_sure_grows_with_them() -> None:
    found = need(failed(used_bytes=97 * GIB), known(repeats=1, kv_cache_bytes=20 * GIB))

    over = 97 * GIB + 2 * REST - AIM
    assert found.free_bytes == over + 2 * sure(20 * GIB - over, 2 * REST)


def test_where_nothing_watches_what_is_left_above_the_limit_makes_it_sure() -> None:
    """Of 100 GiB two are above the limit: nothing is killed there yet."""
    kill, large = failed(used_bytes=97 * GIB), {"kv_cache_bytes": 60 * GIB}
    over = 97 * GIB + REST - AIM
    alone = replace(PLAIN, ray_memory_threshold=None)
    guarded = replace(POLICY, guard_enforcing=True, guard_floor_bytes=2 * GIB)

    assert need(kill, known(**large)).free_bytes == over + sure(60 * GIB, REST)
    assert need(kill, known(alone, **large)).free_bytes == over
    assert need(kill, known(**large), replace(POLICY, backend=Backend.MP)).free_bytes == over
    assert need(kill, known(alone, **large), guarded).free_bytes == over + sure(60 * GIB, REST)
    assert need(kill, known(alone, repeats=4, **large)).free_bytes == (
        97 * GIB + 5 * REST - AIM + 5 * sure(60 * GIB - (97 * GIB + 5 * REST - AIM), 5 * REST) - 2 * GIB
    )


@pytest.mark.parametrize(
    ("more", "held"),
    [
        ({"loading_available_bytes": 80 * GIB}, 20 * GIB),
        ({"baseline_bytes": 95 * GIB}, 5 * GIB + int(4.5 * GIB)),
        ({"loading_available_bytes": 80 * GIB, "baseline_bytes": 95 * GIB}, 20 * GIB),
    ],
)
def test_what_the_node_held_before_is_measured_when_the_load_begins_or_before_the_launch(more, held) -> None:
    assert need(knows=known(**more)).share_bytes == AIM - held - BEYOND


def test_the_free_memory_of_a_refusal_is_what_was_held() -> None:
    low = failed("startup_free_memory_too_low", None, free_bytes=70 * GIB, total_bytes=TOTAL)
    other = failed("cuda_oom", None, free_bytes=70 * GIB, total_bytes=TOTAL)

    assert need(low).share_bytes == AIM - 30 * GIB - BEYOND
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
    assert found.share_bytes == aim - GIB // 2 - LATE_DEVICE - GRAPHS // 2


def test_on_one_memory_the_node_is_used_up_and_the_share_is_of_what_the_device_says() -> None:
    found = need(failed(total_bytes=101 * GIB))

    assert (found.total_bytes, found.aim_bytes) == (101 * GIB, AIM)
    assert need(failed(total_bytes=90 * GIB), known(total_bytes=None)).aim_bytes == (
        int(90 * GIB * 0.98) - int(90 * GIB * 0.01)
    )


BEFORE = {"loading_available_bytes": 90 * GIB}
PROJECTED = 10 * GIB + int(0.9 * TOTAL) + BEYOND
"""What was held before, the share, and what comes beyond it."""


@pytest.mark.parametrize("quantities", [{}, {"used_bytes": GIB}])
@pytest.mark.parametrize("cache", [20 * GIB, GIB, None])
@pytest.mark.parametrize("phase", [Phase.PROFILING, Phase.CAPTURING_GRAPHS, Phase.SERVING])
def test_a_share_that_is_too_large_by_projection_is_freed_whatever_was_read(phase, cache, quantities) -> None:
    found = need(failed(phase=phase, **quantities), known(kv_cache_bytes=cache, **BEFORE))

    over = PROJECTED - AIM
    assert found.projected_bytes == PROJECTED
    assert found.free_bytes == over + sure((cache or 0) - over, found.rest_bytes)


def test_a_peak_is_at_least_what_was_read_and_a_little_more() -> None:
    """On a discrete GPU that is half as much."""
    above = {"used_bytes": PROJECTED + 1}
    device = need(failed(total_bytes=TOTAL, used_bytes=TOTAL), known(), DISCRETE)

    assert need(failed(**above), known(**BEFORE)).free_bytes == PROJECTED + 1 + GIB - AIM
    assert device.rest_bytes > GIB // 2
    assert device.free_bytes == TOTAL + GIB // 2 - device.aim_bytes


def test_a_refusal_asks_for_nothing_to_be_sure() -> None:
    low = failed("startup_free_memory_too_low", None, free_bytes=90 * GIB, total_bytes=TOTAL)

    assert need(low, known(kv_cache_bytes=20 * GIB)).free_bytes == PROJECTED - AIM


# -- what the engine said ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "beyond"),
    [
        ({"graphs_bytes": 4 * GIB, "graphs_counted": True}, 2 * GIB),
        ({"graphs_bytes": 4 * GIB}, 2 * GIB),
        ({"graphs_bytes": 4 * GIB, "graphs_counted": False}, 6 * GIB),
        ({"graphs_bytes": 4 * GIB, "captured_bytes": 5 * GIB}, GIB),
        ({"graphs_bytes": 4 * GIB, "captured_bytes": 3 * GIB}, -GIB),
        ({"graphs_bytes": 4 * GIB, "captured_bytes": 5 * GIB, "graphs_counted": False}, 5 * GIB),
        ({"captured_bytes": 5 * GIB}, 5 * GIB),
    ],
)
def test_graphs_come_beyond_the_share_as_far_as_nothing_was_left_free_for_them(said, beyond) -> None:
    found = need(knows=known(sizes=Sizes(**said), **BEFORE))

    assert found.share_bytes == AIM - 10 * GIB - LATE - beyond
    assert found.projected_bytes == 10 * GIB + int(0.9 * TOTAL) + LATE + beyond


def test_without_graphs_none_come_beyond_the_share() -> None:
    eager = known(replace(PLAIN, cudagraph=CudaGraph.NONE), **BEFORE)

    assert need(knows=eager).share_bytes == AIM - 10 * GIB - LATE


def test_what_was_free_at_the_engines_first_snapshot_is_measured_best() -> None:
    said = known(sizes=Sizes(start_free_bytes=70 * GIB), baseline_bytes=95 * GIB, **BEFORE)
    another = known(sizes=Sizes(start_free_bytes=TOTAL), **BEFORE)

    assert need(knows=said).share_bytes == AIM - 30 * GIB - BEYOND
    assert need(knows=another).share_bytes == AIM - 10 * GIB - BEYOND


def test_the_size_of_a_gpu_is_what_it_said_or_what_was_free_on_it_and_never_the_nodes() -> None:
    def total(diagnosis=None, policy=DISCRETE, **said):
        return need(diagnosis, known(sizes=Sizes(**said)), policy).total_bytes

    both = {"device_bytes": 80 * GIB, "start_free_bytes": 70 * GIB}
    assert total(failed(total_bytes=90 * GIB), **both) == 90 * GIB
    assert total(**both) == 80 * GIB
    assert total(start_free_bytes=70 * GIB) == 70 * GIB + GIB // 2
    assert total() == 0
    assert (total(policy=POLICY, **both), total(policy=POLICY)) == (80 * GIB, TOTAL)


def test_the_files_of_the_weights_are_spread_evenly_over_the_gpus() -> None:
    files = Sizes(checkpoint_bytes=120 * GIB)
    two = replace(POLICY, gpus=2)

    assert need(knows=known(sizes=files)).weights_bytes == 60 * GIB
    assert need(knows=known(sizes=files), policy=two).weights_bytes == 30 * GIB
    assert need(knows=known(sizes=files, weights_bytes=50 * GIB)).weights_bytes == 50 * GIB
    assert need().weights_bytes is None


# -- a cache of fixed size, and steps ------------------------------------------------------------


def test_a_pinned_cache_is_not_sized_by_the_share() -> None:
    pinned = replace(PLAIN, kv_cache_bytes=GIB)

    assert need(failed(phase=Phase.PROFILING, used_bytes=GIB), known(pinned, **BEFORE)).free_bytes == 0


@pytest.mark.parametrize("quantities", [{}, {"used_bytes": GIB}])
@pytest.mark.parametrize("phase", [Phase.LOADING_WEIGHTS, Phase.ALLOCATING_KV_CACHE, Phase.SERVING])
@pytest.mark.parametrize(("captured", "graphs"), [(None, GRAPHS), (3 * GIB, 3 * GIB), (0, 0)])
def test_with_a_cache_of_fixed_size_the_sum_of_what_is_known_is_to_be_expected(
    phase, quantities, captured, graphs
) -> None:
    knows = known(replace(PLAIN, kv_cache_bytes=20 * GIB), weights_bytes=66 * GIB, **BEFORE)
    knows = replace(knows, sizes=Sizes(captured_bytes=captured))

    found = need(failed(phase=phase, **quantities), knows)

    peak = 10 * GIB + 66 * GIB + 20 * GIB + int(2.2 * GIB) + LATE + STEP_2048 + graphs
    assert found.projected_bytes == peak
    over = peak - AIM
    assert found.free_bytes == over + sure(20 * GIB - max(0, over), found.rest_bytes)


def test_on_a_device_of_its_own_nothing_of_the_host_is_in_the_sum_and_failures_make_it_larger() -> None:
    knows = known(
        replace(PLAIN, kv_cache_bytes=30 * GIB), weights_bytes=66 * GIB, total_bytes=None, repeats=1
    )
    found = need(failed(phase=Phase.CAPTURING_GRAPHS, total_bytes=TOTAL), knows, DISCRETE)

    peak = GIB // 2 + 96 * GIB + 2 * (int(2.2 * GIB) + LATE_DEVICE) + STEP_2048 + GRAPHS
    over = peak - found.aim_bytes
    certain = 2 * sure(30 * GIB - over, found.rest_bytes)
    assert (found.projected_bytes, found.free_bytes) == (peak, over + certain)


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
    assert need(failed(cause), known(total_bytes=None)).free_bytes == (REST if asks else 0)


@pytest.mark.parametrize(
    ("used", "share"),
    [(95.0, 0.35 * (AIM - 81 * GIB) / (14 * GIB * 1.6)), (40.0, 0.35 * (AIM - 81 * GIB) / (GIB // 2 * 1.6))],
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
