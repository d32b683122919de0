"""Each rung by literal numbers: how far it goes, what it says, and where it ends; then rooms and refusals."""

from __future__ import annotations

from dataclasses import replace

import pytest

from core.given import POLICY
from sparkd.core import ladder, room, rungs, spikes
from sparkd.core.need import Known, Need, need_of
from sparkd.core.rungs import Draft
from sparkd.core.spikes import NOISE_BYTES
from sparkd.signals.model import Diagnosis, Quantity
from sparkd.words import GIB, Backend, CudaGraph, Floors, LoadFormat, Phase, Settings

TOTAL = 100 * GIB
FLOORS = Floors()
PLAIN = Settings()


def need(free=GIB, settings=PLAIN, known=None, **more) -> Need:
    knows = Known(settings, **{"total_bytes": TOTAL, **(known or {})})
    return Need(free, **{"total_bytes": TOTAL, "known": knows, "ceiling_share": 0.9, **more})


def failed(cause="cuda_oom", phase: Phase | None = Phase.SERVING, **quantities: float) -> Diagnosis:
    made = tuple(Quantity(name, value) for name, value in quantities.items())
    return Diagnosis(cause, phase, "spark-a", None, 1.0, "", quantities=made)


# -- drafts --------------------------------------------------------------------------------------


def test_a_draft_says_every_step_and_what_is_left() -> None:
    draft = Draft(PLAIN, 10).take((Settings(max_num_seqs=4), "one"), 3).take(None, 9).take((PLAIN, "two"))

    assert draft == Draft(PLAIN, 7, ("one", "two"))
    assert draft.step == (PLAIN, "one · two")
    assert Draft(PLAIN, 10).step is None


def test_a_rung_pays_what_it_surely_frees() -> None:
    draft = Draft(PLAIN, GIB).try_(rungs.to_piecewise, need(), FLOORS)

    assert draft == Draft(
        Settings(cudagraph=CudaGraph.PIECEWISE), GIB - int(0.3 * GIB), ("CUDA graphs full -> piecewise",)
    )
    assert draft.try_(rungs.to_piecewise, need(), FLOORS) is draft


# -- Ray's monitor -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("threshold", "guarded", "then", "said"),
    [
        (0.95, False, 0.98, "Ray's monitor 0.95 -> 0.98 (no guard enforces, so it stays on)"),
        (0.98, False, 0.98, ""),
        (0.99, False, 0.99, ""),
        (0.95, True, None, "Ray's monitor off, the guard watches instead"),
        (None, True, None, ""),
        (None, False, None, ""),
    ],
)
def test_the_monitor_is_loosened_as_far_as_something_else_guards(threshold, guarded, then, said) -> None:
    before = Settings(ray_memory_threshold=threshold, max_num_seqs=4)

    found = rungs.loosen_monitor(before, replace(POLICY, guard_enforcing=guarded))

    assert found == (replace(before, ray_memory_threshold=then), said)


# -- the cache and the share ---------------------------------------------------------------------


def test_the_cache_pays_one_for_one_down_to_its_floor() -> None:
    small = need(2 * GIB, known={"kv_cache_bytes": 10 * GIB})
    huge = need(20 * GIB, known={"kv_cache_bytes": 10 * GIB})
    floor = need(GIB, known={"kv_cache_bytes": GIB})

    assert rungs.lower_kv(PLAIN, small, FLOORS) == (
        Settings(kv_cache_bytes=8 * GIB, gpu_memory_utilization=0.88), "KV cache 10.0 GiB -> 8.0 GiB",
    )  # fmt: skip
    assert rungs.lower_kv(PLAIN, huge, FLOORS) == (
        Settings(kv_cache_bytes=GIB, gpu_memory_utilization=0.81), "KV cache 10.0 GiB -> 1.0 GiB",
    )  # fmt: skip
    assert rungs.lower_kv(PLAIN, floor, FLOORS) is None
    at_floor = Settings(gpu_memory_utilization=0.5)
    assert rungs.lower_kv(at_floor, small, FLOORS)[0] == replace(at_floor, kv_cache_bytes=8 * GIB)


@pytest.mark.parametrize("cache", [None, 0, -GIB])
def test_without_a_cache_the_share_pays(cache) -> None:
    found = rungs.lower_kv(PLAIN, need(2 * GIB, known={"kv_cache_bytes": cache}), FLOORS)

    assert found == (Settings(gpu_memory_utilization=0.88), "utilisation 0.9 -> 0.88")


def test_one_byte_of_cache_is_a_cache() -> None:
    tiny = need(GIB, known={"kv_cache_bytes": 1})

    assert rungs.lower_kv(PLAIN, tiny, Floors(kv_cache_bytes=0))[0].kv_cache_bytes == 0


@pytest.mark.parametrize(
    ("settings", "cache", "pinned"),
    [
        (PLAIN, 10, Settings(kv_cache_bytes=10)),
        (Settings(kv_cache_bytes=5), 10, Settings(kv_cache_bytes=5)),
        (PLAIN, None, PLAIN),
        (PLAIN, 0, PLAIN),
        (PLAIN, 1, Settings(kv_cache_bytes=1)),
    ],
)
def test_a_cache_is_pinned_at_what_it_was(settings, cache, pinned) -> None:
    assert rungs.pin_kv(settings, need(settings=settings, known={"kv_cache_bytes": cache})) == pinned


@pytest.mark.parametrize(("asked", "pinned"), [(None, 40), (41, 40), (40, 40), (8, 8)])
def test_a_cache_is_pinned_at_no_more_than_the_operator_asks_for(asked, pinned) -> None:
    ceiling = None if asked is None else asked * GIB
    sized = {"known": {"kv_cache_bytes": 40 * GIB}, "ceiling_kv_bytes": ceiling}

    assert rungs.pin_kv(PLAIN, need(**sized)).kv_cache_bytes == pinned * GIB
    assert rungs.lower_kv(PLAIN, need(1, **sized), FLOORS)[0].kv_cache_bytes == min(
        pinned * GIB, 40 * GIB - 1
    )


@pytest.mark.parametrize(
    ("free", "total", "then"),
    [
        (GIB, TOTAL, 0.89),
        (GIB, 7 * GIB, 0.757),
        (90 * GIB, TOTAL, 0.5),
        (0, TOTAL, None),
        (GIB, 0, None),
        (1, 1, 0.5),
    ],
)
def test_the_share_goes_down_by_the_amount_to_the_smaller_side(free, total, then) -> None:
    found = rungs.lower_utilization(PLAIN, need(free, total_bytes=total), FLOORS)

    assert (found[0].gpu_memory_utilization if found else None) == then


@pytest.mark.parametrize(
    ("share", "then"),
    [(0.9, None), (0.8999, 0.899), (0.95, None), (0.7, 0.7), (0.4, 0.5), (0.29 + 0.41, 0.7)],
)
def test_a_share_is_lowered_to_what_fits_in_steps_of_a_thousandth(share, then) -> None:
    found = rungs.lower_share_to(PLAIN, share, FLOORS)

    assert (found[0].gpu_memory_utilization if found else None) == then
    if then is not None:
        assert found[1] == f"utilisation 0.9 -> {then:g}"


def test_a_share_is_fitted_where_it_is_known() -> None:
    assert rungs.fit_share(PLAIN, need(share_bytes=80 * GIB), FLOORS)[0].gpu_memory_utilization == 0.8
    assert rungs.fit_share(PLAIN, need(share_bytes=0), FLOORS)[0].gpu_memory_utilization == 0.5
    assert rungs.fit_share(PLAIN, need(share_bytes=None), FLOORS) is None
    assert rungs.fit_share(PLAIN, need(share_bytes=80 * GIB, total_bytes=0), FLOORS) is None


@pytest.mark.parametrize(
    ("before", "free", "total", "then"),
    [
        (0.7, GIB, TOTAL, 0.71),
        (0.7, 50 * GIB, TOTAL, 0.8),
        (0.9, GIB, TOTAL, None),
        (0.7, 0, TOTAL, None),
        (0.7, GIB, 0, None),
        (0.7, 1, 1, 0.8),
    ],
)
def test_a_share_is_given_back_half_way_at_most(before, free, total, then) -> None:
    found = rungs.give_back_share(
        Settings(gpu_memory_utilization=before), need(free, total_bytes=total), FLOORS
    )

    assert (found[0].gpu_memory_utilization if found else None) == then
    if then is not None:
        assert found[1] == f"utilisation {before:g} -> {then:g}, given back"


@pytest.mark.parametrize(
    ("room_for", "then"), [(85 * GIB, 0.85), (120 * GIB, 0.9), (71 * GIB, 0.71), (70 * GIB, None), (0, None)]
)
def test_a_share_is_given_back_to_what_is_projected_to_fit_and_never_above_what_was_asked(
    room_for, then
) -> None:
    low = Settings(gpu_memory_utilization=0.7)
    found = rungs.give_back_share(low, need(50 * GIB, share_bytes=room_for), FLOORS)

    assert (found[0].gpu_memory_utilization if found else None) == then


def test_a_pinned_cache_gets_no_share_back() -> None:
    pinned = Settings(gpu_memory_utilization=0.7, kv_cache_bytes=GIB)

    assert rungs.give_back_share(pinned, need(), FLOORS) is None


# -- steps, graphs, context ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "then"),
    [(8192, 4096), (None, 1024), (1025, 512), (1023, 512), (513, 512), (512, None), (100, None)],
)
def test_the_tokens_of_a_step_are_halved_down_to_the_floor(before, then) -> None:
    found = rungs.lower_batched_tokens(Settings(max_num_batched_tokens=before), need(), FLOORS)

    expected = (Settings(max_num_batched_tokens=then), f"batched tokens {before or 2048} -> {then}")
    assert found == (None if then is None else expected)


@pytest.mark.parametrize(
    ("asked", "floor", "then"),
    [
        ((2048, 1024), (512, 8), (1024, 1024)),
        ((2048, 1025), (512, 8), (1024, 1024)),
        ((1024, 1024), (512, 8), (512, 512)),
        ((1024, 1024), (512, 768), (768, 768)),
        ((1024, 1024), (512, 1024), None),
        ((1024, 64), (512, 128), (512, 64)),
        ((512, None), (128, 8), (256, None)),
        ((256, None), (128, 8), (128, 128)),
        ((256, None), (128, 200), (200, 200)),
        ((256, None), (128, 256), None),
    ],
)
def test_a_step_never_has_fewer_tokens_than_requests(asked, floor, then) -> None:
    """With fewer vLLM refuses to start; of requests it takes 256 where none are asked for."""
    floors = replace(FLOORS, max_num_batched_tokens=floor[0], max_num_seqs=floor[1])
    settings = Settings(max_num_batched_tokens=asked[0], max_num_seqs=asked[1])

    found = rungs.lower_batched_tokens(settings, need(), floors)

    now = None if found is None else (found[0].max_num_batched_tokens, found[0].max_num_seqs)
    assert now == then
    assert found is None or ("requests" in found[1]) is (then[1] != asked[1])


@pytest.mark.parametrize(
    ("before", "then"), [(8192, 4096), (2049, 1024), (2048, None), (None, None), (100, None)]
)
def test_only_what_is_above_the_engines_default_is_halved_gently(before, then) -> None:
    found = rungs.halve_above_default(Settings(max_num_batched_tokens=before), need(), FLOORS)

    assert (found[0].max_num_batched_tokens if found else None) == then


FULL, PIECEWISE, REDUCED, NONE = CudaGraph


@pytest.mark.parametrize(
    ("before", "lower", "fewer", "mild"),
    [
        (FULL, PIECEWISE, PIECEWISE, PIECEWISE),
        (PIECEWISE, REDUCED, REDUCED, None),
        (REDUCED, NONE, None, None),
        (NONE, None, None, None),
    ],
)
def test_the_graphs_go_down_mode_by_mode(before, lower, fewer, mild) -> None:
    settings = Settings(cudagraph=before)

    found = [
        rung(settings, need(), FLOORS)
        for rung in (rungs.lower_graphs, rungs.fewer_graphs, rungs.to_piecewise)
    ]

    assert [step and step[0].cudagraph for step in found] == [lower, fewer, mild]
    if lower:
        assert found[0][1] == f"CUDA graphs {before} -> {lower}"
    not_eager = rungs.lower_graphs(settings, need(), Floors(eager_allowed=False))
    assert (not_eager and not_eager[0].cudagraph) == (None if lower in (NONE, None) else lower)


def test_weights_are_read_lazily_once() -> None:
    assert rungs.lazy_load(PLAIN, need(), FLOORS) == (
        Settings(load_format=LoadFormat.LAZY), "weights are read lazily",
    )  # fmt: skip
    assert rungs.lazy_load(Settings(load_format=LoadFormat.LAZY), need(), FLOORS) is None


@pytest.mark.parametrize(
    ("before", "tokens", "fits", "said"),
    [
        (None, 4097.9, 4096, "longest context of the model -> 4096 tokens"),
        (8192, 4223.0, 4096, "longest context 8192 -> 4096 tokens"),
        (8192, 4224.0, 4224, "longest context 8192 -> 4224 tokens"),
        (4096, 4097.0, None, ""),
        (4224, 4097.0, 4096, "longest context 4224 -> 4096 tokens"),
        (None, 2047.0, None, ""),
        (None, 2048.0, 2048, "longest context of the model -> 2048 tokens"),
    ],
)
def test_the_context_is_cut_to_what_fits(before, tokens, fits, said) -> None:
    found = rungs.fit_context(Settings(max_model_len=before), tokens, FLOORS)

    assert found == (None if fits is None else (Settings(max_model_len=fits), said))


# -- too little free at the start ----------------------------------------------------------------

LOW = failed("startup_free_memory_too_low", None, free_bytes=70.0 * GIB, total_bytes=float(TOTAL))


def test_a_refused_start_asks_for_no_more_than_was_free_but_for_the_noise() -> None:
    found = room.fit_free_memory(PLAIN, need(), LOW, FLOORS)

    assert found == (Settings(gpu_memory_utilization=0.696), "utilisation 0.9 -> 0.696: 70.0 GiB were free")
    with_share = room.fit_free_memory(PLAIN, need(share_bytes=60 * GIB), LOW, FLOORS)
    assert with_share[0].gpu_memory_utilization == 0.6
    roomy = room.fit_free_memory(PLAIN, need(share_bytes=80 * GIB), LOW, FLOORS)
    assert roomy[0].gpu_memory_utilization == 0.696
    assert room.fit_free_memory(Settings(gpu_memory_utilization=0.6), need(), LOW, FLOORS) is None


@pytest.mark.parametrize("quantities", [{}, {"free_bytes": 70.0 * GIB}, {"total_bytes": float(TOTAL)}])
def test_without_its_numbers_a_refused_start_takes_the_amount_from_the_share(quantities) -> None:
    low = failed("startup_free_memory_too_low", None, **quantities)

    assert room.fit_free_memory(PLAIN, need(), low, FLOORS)[0] == Settings(gpu_memory_utilization=0.89)


PINNED = Settings(kv_cache_bytes=20 * GIB)
SURE_20 = int(0.08 * 20 * GIB)
"""What is added to be sure of a cache of 20 GiB."""


def projected(over: int, settings=PINNED, **more) -> Need:
    """Return the need where so much more than should be used is to be expected, with what is to be sure."""
    peak = 90 * GIB + over - SURE_20
    return need(settings=settings, projected_bytes=peak, aim_bytes=90 * GIB, rest_bytes=4 * GIB, **more)


@pytest.mark.parametrize(("over", "cache"), [(GIB, 19), (0, 20), (-GIB, 20), (TOTAL, 1)])
def test_a_pinned_cache_pays_too_for_what_will_be_too_much(over, cache) -> None:
    found = room.fit_free_memory(PINNED, projected(over), LOW, FLOORS)

    assert found[0].kv_cache_bytes == cache * GIB
    assert (f"KV cache 20.0 GiB -> {cache}.0 GiB" in found[1]) is (cache < 20)


def test_a_pinned_cache_that_nobody_can_check_is_given_up() -> None:
    settings, said = room.fit_free_memory(PINNED, need(settings=PINNED), LOW, FLOORS)

    assert settings == Settings(gpu_memory_utilization=0.696)
    assert said.endswith("KV cache not of 20.0 GiB but what vLLM's share leaves (weights not known)")
    assert room.fit_free_memory(PLAIN, need(), LOW, FLOORS)[0] == settings


def test_a_pinned_cache_that_the_operator_asks_for_is_not_given_up() -> None:
    """What vLLM's share leaves could be more than he asks for: 37.7 GiB instead of 8."""
    asked = need(settings=PINNED, ceiling_kv_bytes=20 * GIB)

    settings, _ = room.fit_free_memory(PINNED, asked, LOW, FLOORS)

    assert settings == replace(PINNED, gpu_memory_utilization=0.696)


def test_what_smaller_steps_and_fewer_graphs_free_a_pinned_cache_keeps() -> None:
    """Piecewise graphs take 0.6 GiB less, a step of 1024 tokens instead of 2048 takes 0.2 GiB less."""
    piecewise = replace(PINNED, cudagraph=CudaGraph.PIECEWISE)
    both = replace(piecewise, max_num_batched_tokens=1024)
    graphs, steps = int(1.4 * GIB) - int(0.8 * GIB), 1024 * 209715

    assert rungs.fit_pin(piecewise, projected(GIB), FLOORS)[0].kv_cache_bytes == 19 * GIB + graphs
    assert rungs.fit_pin(both, projected(GIB), FLOORS)[0].kv_cache_bytes == 19 * GIB + graphs + steps
    assert rungs.fit_pin(piecewise, projected(graphs), FLOORS) is None


@pytest.mark.parametrize(
    ("phase", "seen", "counted"),
    [
        (Phase.PROFILING, 10 * GIB, True),
        (Phase.COMPILING, 10 * GIB, True),
        (Phase.PROFILING, GIB // 2, False),
        (Phase.PROFILING, None, False),
        (Phase.SERVING, 10 * GIB, False),
    ],
)
def test_a_pinned_cache_pays_for_a_step_that_was_seen_to_be_larger_than_typical(phase, seen, counted) -> None:
    """Of 10 GiB a step of half the tokens leaves 5.75, of which 0.7 are typical."""
    half = replace(PINNED, max_num_batched_tokens=1024)
    typical = GIB // 2 + 1024 * 209715

    found = rungs.fit_pin(half, projected(GIB, phase=phase, step_bytes=seen), FLOORS)[0]

    more = int(10 * GIB * (0.15 + 0.85 * 0.5)) - typical if counted else 0
    assert found.kv_cache_bytes == 19 * GIB + 1024 * 209715 - more


def test_only_a_pinned_cache_is_fitted_and_only_by_a_projection() -> None:
    assert rungs.fit_pin(PLAIN, projected(GIB, PLAIN), FLOORS) is None
    assert rungs.fit_pin(PINNED, need(settings=PINNED), FLOORS) is None


BESIDE = int(2.2 * GIB) + int(1.25 * (GIB // 2 + 2048 * 209715 + int(1.4 * GIB))) + 2 * NOISE_BYTES


def foreseen(cache_gib: float, settings=PLAIN, one=10 * GIB, tokens=8192, **unknown):
    """Return the draft where the share will leave so much for a cache of which a request needs 10 GiB."""
    weights = int(0.9 * TOTAL) - BESIDE - int(cache_gib * GIB)
    knows = {"request_kv_bytes": one, "request_tokens": tokens}
    found = {"weights_bytes": weights, **unknown}
    return room.foresee(Draft(settings), need(settings=settings, known=knows, **found), FLOORS)


def test_a_cache_that_is_foreseen_too_small_is_made_room_for() -> None:
    assert foreseen(10.0) == Draft(PLAIN)
    gentle = foreseen(9.5)
    assert gentle.settings == Settings(cudagraph=CudaGraph.PIECEWISE)
    short = foreseen(5.0)
    assert short.settings == Settings(cudagraph=CudaGraph.PIECEWISE, max_model_len=4608)
    wide = foreseen(8.0, Settings(max_num_batched_tokens=8192))
    assert wide.settings.max_num_batched_tokens == 2048


def test_a_cache_foreseen_below_the_floor_is_made_room_for_to_the_ends_and_then_pinned() -> None:
    """The steps are worth 2.8 GiB in all: with less missing the share does, else the cache is fixed."""
    lean = {"max_num_batched_tokens": 512, "cudagraph": CudaGraph.NONE}
    made = foreseen(-1.0, tokens=65536).settings
    assert made == replace(PLAIN, **lean, max_model_len=made.max_model_len)
    assert made.max_model_len == pytest.approx(65536 * 1.1 / 10, rel=0.05)
    pinned = foreseen(-3.0, tokens=65536)
    assert pinned.settings == replace(PLAIN, **lean, kv_cache_bytes=GIB, max_model_len=6016)
    assert "KV cache fixed at 1.0 GiB: vLLM's share would leave none" in pinned.said


def test_a_pinned_cache_holds_the_shortest_context_that_is_allowed() -> None:
    """2048 of 8192 tokens of 10 GiB take 2.5 GiB: with 1 GiB vLLM would refuse whatever the context."""
    settings = foreseen(-3.0).settings

    assert settings.kv_cache_bytes == int(1.05 * 2.5 * GIB) + room.PINNED_NOISE_BYTES
    assert settings.max_model_len >= FLOORS.max_model_len


def test_what_is_typically_left_is_pinned_where_that_is_more_than_the_floor() -> None:
    """Care is 1.0 GiB here: two noises, and a quarter of a step of 0.6 GiB."""
    pinned = foreseen(-1.2, tokens=65536).settings.kv_cache_bytes

    assert pinned / GIB == pytest.approx(0.95 + 0.95, abs=0.1)


def test_a_peak_that_was_seen_counts_in_what_is_foreseen() -> None:
    """The step that failed is larger than a typical one by 4 GiB: they are missing from the cache."""
    seen = {"phase": Phase.PROFILING, "step_bytes": spikes.step_bytes(PLAIN) + 4 * GIB}
    assert foreseen(10.0, **seen).settings == foreseen(6.0).settings != PLAIN
    assert foreseen(10.0, **{**seen, "phase": Phase.SERVING}).said == ()


@pytest.mark.parametrize(("cache", "noise"), [(2, 0.4), (4, 0.4), (6, 0.6), (9, 0.9), (40, 0.9)])
def test_of_a_large_cache_more_is_kept_back_for_the_noise_of_a_start(cache, noise) -> None:
    said = {"needed_bytes": 60.0 * GIB, "available_bytes": cache * GIB, "estimated_tokens": 40960.0}

    assert refused(**said)[0].max_model_len == pytest.approx(40960 * (cache - noise) / cache, abs=128)


@pytest.mark.parametrize(
    "unknown",
    [{"weights_bytes": None}, {"total_bytes": 0}, {"settings": Settings(kv_cache_bytes=GIB)}],
)
def test_what_is_not_known_is_not_foreseen(unknown) -> None:
    assert foreseen(1.0, **unknown).said == ()


@pytest.mark.parametrize(("cache_gib", "graphs"), [(4.0, FULL), (3.9, PIECEWISE), (1.0, PIECEWISE)])
def test_a_request_that_nobody_knows_is_taken_for_4_gib_and_cuts_no_context(cache_gib, graphs) -> None:
    assert foreseen(cache_gib, one=None).settings == Settings(cudagraph=graphs)


def test_without_the_length_of_a_request_no_context_is_foreseen() -> None:
    assert foreseen(1.0, tokens=None).settings == Settings(cudagraph=PIECEWISE)


# -- a cache too small for one request -----------------------------------------------------------


def refused(settings=PLAIN, free=0, known=None, share=None, **quantities):
    small = failed("kv_cache_too_small", Phase.ALLOCATING_KV_CACHE, **quantities)
    return room.make_room(settings, need(free, settings, known, share_bytes=share), small, FLOORS)


def test_the_engines_estimate_less_the_noise_is_the_longest_context() -> None:
    said = {"needed_bytes": 12.0 * GIB, "available_bytes": 4.0 * GIB, "estimated_tokens": 40960.0}

    assert refused(**said)[0].max_model_len == int(40960 * (4 * GIB - NOISE_BYTES) / (4 * GIB)) // 128 * 128
    twice = refused(known={"repeats": 1}, **said)[0]
    assert twice.max_model_len == int(40960 * (4 * GIB - 2 * NOISE_BYTES) / (4 * GIB)) // 128 * 128
    taken = refused(free=GIB, **said)[0]
    assert taken.max_model_len == int(40960 * (3 * GIB - NOISE_BYTES) / (4 * GIB)) // 128 * 128


def test_the_size_of_the_cache_is_read_where_the_available_bytes_are_not() -> None:
    by_size = refused(needed_bytes=12.0 * GIB, kv_cache_bytes=4.0 * GIB, estimated_tokens=40960.0)

    assert by_size == refused(needed_bytes=12.0 * GIB, available_bytes=4.0 * GIB, estimated_tokens=40960.0)


def test_what_is_wanted_is_said_else_one_request_and_the_floor() -> None:
    """Of a cache of 1 GiB 0.2 are missing, and the noise: a smaller step and piecewise graphs do not do."""
    near = {"available_bytes": 0.8 * GIB}
    asked = refused(**near)
    same = refused(needed_bytes=float(GIB), **near)
    more = refused(known={"request_kv_bytes": 2 * GIB}, **near)

    assert asked == same
    assert asked[0].cudagraph is CudaGraph.REDUCED
    assert more[0].cudagraph is CudaGraph.NONE


def test_gentle_steps_suffice_where_little_is_missing() -> None:
    wide = Settings(max_num_batched_tokens=8192)
    found = refused(wide, needed_bytes=2.0 * GIB, available_bytes=1.8 * GIB)

    assert found[0] == replace(wide, max_num_batched_tokens=2048, cudagraph=CudaGraph.PIECEWISE)


def test_a_share_that_will_not_fit_is_lowered_with_the_rest() -> None:
    said = {"needed_bytes": 12.0 * GIB, "available_bytes": 4.0 * GIB, "estimated_tokens": 40960.0}

    assert refused(share=80 * GIB, **said)[0].gpu_memory_utilization == 0.8


def test_a_pinned_cache_has_little_noise_and_pays_what_the_next_start_should_leave() -> None:
    pinned = Settings(kv_cache_bytes=4 * GIB)
    said = {"needed_bytes": 12.0 * GIB, "available_bytes": 4.0 * GIB, "estimated_tokens": 40960.0}

    plain, less = refused(pinned, **said)[0], refused(pinned, free=GIB, **said)[0]

    assert plain == Settings(
        kv_cache_bytes=4 * GIB, max_model_len=int(40960 * (4 * GIB - (1 << 26)) / (4 * GIB)) // 128 * 128
    )
    assert less.kv_cache_bytes == 3 * GIB
    assert less.max_model_len == int(40960 * (3 * GIB - (1 << 26)) / (4 * GIB)) // 128 * 128


def test_so_many_refusals_and_no_more() -> None:
    said = {"needed_bytes": 12.0 * GIB, "available_bytes": 4.0 * GIB, "estimated_tokens": 40960.0}

    assert refused(known={"refusals": 2}, **said) is not None
    assert refused(known={"refusals": 3}, **said) is None


def test_spending_goes_down_rung_by_rung_until_it_is_paid() -> None:
    order = (rungs.lower_batched_tokens, rungs.lower_graphs)
    wide = Settings(max_num_batched_tokens=8192)

    paid = room.spend(Draft(wide, 1), need(), FLOORS, order)
    exactly = room.spend(Draft(wide, 4096 * (int(0.07 * GIB) // 1024)), need(), FLOORS, order)
    all_of_it = room.spend(Draft(wide, TOTAL), need(), FLOORS, order)

    assert paid.settings == exactly.settings == replace(wide, max_num_batched_tokens=4096)
    assert all_of_it.settings == replace(wide, max_num_batched_tokens=512, cudagraph=CudaGraph.NONE)
    assert room.spend(Draft(wide, 0), need(), FLOORS, order) == Draft(wide, 0)


LOWER = "Lower the floors, free memory on the node, or use a smaller model or more nodes."


# -- the ladder ----------------------------------------------------------------------------------


def down(
    cause="cuda_oom",
    phase=Phase.SERVING,
    *,
    settings=PLAIN,
    policy=POLICY,
    failed_before=(),
    known=None,
    **quantities,
):
    knows = Known(settings, **{"total_bytes": TOTAL, **(known or {})})
    return ladder.step_down(failed(cause, phase, **quantities), knows, policy, failed_before)


@pytest.mark.parametrize(
    ("cause", "policy", "free", "raised"),
    [
        ("ray_oom_kill", {}, None, True),
        ("cuda_oom", {}, None, False),
        ("startup_free_memory_too_low", {}, None, True),
        ("startup_free_memory_too_low", {"unified_memory": False}, 70.0 * GIB, False),
        ("ray_oom_kill", {"backend": Backend.MP}, None, False),
        ("startup_free_memory_too_low", {"backend": Backend.MP}, None, False),
    ],
)
def test_the_monitor_is_loosened_where_it_stands_in_the_way(cause, policy, free, raised) -> None:
    said_of_it = {} if free is None else {"free_bytes": free, "total_bytes": float(TOTAL)}

    settings, said = down(cause, policy=replace(POLICY, **policy), used_bytes=99.0 * GIB, **said_of_it)

    assert settings.ray_memory_threshold == (0.98 if raised else 0.95)
    assert said.startswith("Ray's monitor 0.95 -> 0.98") is raised


def test_where_only_the_monitor_is_left_it_alone_is_the_step() -> None:
    floor = Settings(gpu_memory_utilization=0.5, max_num_batched_tokens=512)

    assert down("ray_oom_kill", settings=floor)[0] == replace(floor, ray_memory_threshold=0.98)
    assert down("ray_oom_kill", settings=replace(floor, ray_memory_threshold=0.98)) is None


def test_settings_that_failed_lead_to_a_larger_step_and_then_to_none() -> None:
    found, tried = [], ()
    while (step := down(used_bytes=99.0 * GIB, failed_before=tried)) is not None:
        found.append(step[0].gpu_memory_utilization)
        tried = (*tried, step[0])

    assert len(found) == ladder.LARGER_STEPS
    assert found == sorted(found, reverse=True)


@pytest.mark.parametrize(
    ("cause", "phase", "unified", "rule"),
    [
        ("kv_cache_too_small", Phase.PROFILING, True, ladder.make_room),
        ("startup_free_memory_too_low", Phase.PROFILING, False, ladder.fit_free_memory),
        ("kernel_oom", Phase.PROFILING, False, ladder.spare_the_host),
        ("kernel_oom", Phase.PROFILING, True, ladder.shrink_steps),
        ("cuda_oom", Phase.COMPILING, False, ladder.shrink_steps),
        ("cuda_oom", Phase.LOADING_WEIGHTS, True, ladder.load_lightly),
        ("cuda_oom", Phase.SERVING, True, ladder.free_bytes),
        ("cuda_oom", None, True, ladder.free_bytes),
    ],
)
def test_the_cause_and_the_phase_pick_the_rule(cause, phase, unified, rule) -> None:
    assert ladder.rule_for(failed(cause, phase), replace(POLICY, unified_memory=unified)) is rule


@pytest.mark.parametrize(
    ("cause", "phase", "unified", "said"),
    [
        (
            "kernel_oom",
            Phase.LOADING_WEIGHTS,
            False,
            "The node's own memory is short, not the GPU's: stop other programs there, or give it more.",
        ),
        (
            "kv_cache_too_small",
            Phase.LOADING_WEIGHTS,
            False,
            (
                "The weights leave no room for the KV cache: raise settings.gpu_memory_utilization, or use a "
                "smaller or more quantised model, or more nodes."
            ),
        ),
        (
            "kernel_oom",
            Phase.LOADING_WEIGHTS,
            True,
            "The weights do not fit beside what the node holds: a smaller model or more nodes are needed.",
        ),
        ("cuda_oom", Phase.SERVING, False, LOWER),
    ],
)
def test_where_the_ladder_ends_a_person_is_told_what_to_do(cause, phase, unified, said) -> None:
    assert ladder.end_of(failed(cause, phase), replace(POLICY, unified_memory=unified)) == said


def test_the_amount_is_explained_by_what_was_read_or_projected() -> None:
    read = down(used_bytes=99.0 * GIB, known={"kv_cache_bytes": 40 * GIB})[1]
    share = down(phase=Phase.ALLOCATING_KV_CACHE, known={"loading_available_bytes": 80 * GIB})[1]
    neither = down(known={"kv_cache_bytes": 40 * GIB})[1]

    assert read.endswith("(99.0 GiB were in use, 3.4 GiB more are to be expected, 94.0 GiB should be used)")
    held = "from what the node held before and what the engine takes"
    assert share.endswith(f"(112.9 GiB are to be expected {held}, 94.0 GiB should be used)")
    assert "(" not in neither


def test_a_measured_cause_frees_at_least_half_a_gib() -> None:
    known = {"kv_cache_bytes": 40 * GIB}

    assert down(used_bytes=1.0, known=known)[0].kv_cache_bytes == 40 * GIB - GIB // 2


@pytest.mark.parametrize(
    ("halvings", "share", "enough"),
    [
        (0, None, False),
        (1, None, False),
        (2, None, True),
        (0, 0.9, False),
        (1, 0.575, True),
        (1, 0.574, False),
        (3, 0.25625, True),
    ],
)
def test_how_many_halvings_of_a_step_are_enough(halvings, share, enough) -> None:
    assert ladder._small_enough(halvings, need(step_share=share)) is enough


def test_below_a_request_the_context_pays_with_the_cache_and_then_steps_and_graphs() -> None:
    known = {"kv_cache_bytes": 2 * GIB, "request_kv_bytes": 2 * GIB, "request_tokens": 20480}

    settings, said = down(used_bytes=99.0 * GIB, known=known)

    assert settings.kv_cache_bytes == GIB
    assert settings.max_model_len == int(20480 * 0.5 / 1.02) // 128 * 128
    assert (settings.max_num_batched_tokens, settings.cudagraph) == (512, CudaGraph.NONE)
    assert "longest context of the model -> 9984 tokens" in said


# -- all that helps, and no more -----------------------------------------------------------------

SURE = int(0.07 * GIB) // 1024
LEAN = Settings(max_num_batched_tokens=512, cudagraph=CudaGraph.NONE)
REQUEST = {"request_kv_bytes": 12 * GIB, "request_tokens": 40960}
FOUR_OF_TWELVE = {"needed_bytes": 12.0 * GIB, "available_bytes": 4.0 * GIB}


def test_without_an_estimate_the_context_is_cut_by_what_one_request_needs() -> None:
    share = 1 - (8 * GIB + NOISE_BYTES) / (12 * GIB)

    assert refused(LEAN, known=REQUEST, **FOUR_OF_TWELVE)[0] == replace(
        LEAN, max_model_len=int(40960 * share) // 128 * 128
    )
    assert refused(LEAN, **FOUR_OF_TWELVE) is None


@pytest.mark.parametrize(("more", "cut"), [(0, False), (1, True)])
def test_the_context_is_left_alone_where_a_smaller_step_pays_exactly(more, cut) -> None:
    small = replace(LEAN, max_num_batched_tokens=1024)
    missing = 512 * SURE - room.NOISE_MAX_BYTES + more

    found = refused(small, known=REQUEST, needed_bytes=12.0 * GIB, available_bytes=12.0 * GIB - missing)

    assert found[0] == replace(LEAN, max_model_len=40832 if cut else None)


def test_what_a_token_needs_is_said_by_the_refusal_else_by_an_earlier_start() -> None:
    """A third of 12 GiB less the noise is left; the refusal asked for half as many tokens as before."""
    said = refused(LEAN, known=REQUEST, wanted_tokens=20480.0, **FOUR_OF_TWELVE)
    before = refused(LEAN, known=REQUEST, **FOUR_OF_TWELVE)

    assert said[0].max_model_len == int(20480 * (4 * GIB - NOISE_BYTES) / (12 * GIB)) // 128 * 128
    assert before[0].max_model_len == int(40960 * (4 * GIB - NOISE_BYTES) / (12 * GIB)) // 128 * 128
    assert refused(LEAN, wanted_tokens=20480.0, **FOUR_OF_TWELVE) == said


@pytest.mark.parametrize(("more", "tokens"), [(0, 4096), (1, 2048)])
def test_gentle_steps_end_where_the_room_is_made_exactly(more, tokens) -> None:
    wide = replace(LEAN, max_num_batched_tokens=8192)
    missing = 4096 * SURE - NOISE_BYTES + more

    said = {"available_bytes": 4.0 * GIB, "estimated_tokens": 40960.0}

    found = refused(wide, needed_bytes=4.0 * GIB + missing, **said)

    assert found[0] == replace(wide, max_num_batched_tokens=tokens)


@pytest.mark.parametrize(("refusals", "given"), [(0, True), (1, True), (2, False)])
def test_what_was_taken_too_much_is_given_back_where_the_projected_share_would_not_help(
    refusals, given
) -> None:
    low = replace(LEAN, gpu_memory_utilization=0.75)

    for share in (None, 60 * GIB):
        found = refused(low, share=share, known={"refusals": refusals}, **FOUR_OF_TWELVE)
        assert found == (
            (replace(low, gpu_memory_utilization=0.825), "utilisation 0.75 -> 0.825, given back")
            if given
            else None
        )


@pytest.mark.parametrize("refusals", [0, 2])
def test_where_the_node_has_room_for_more_the_share_pays_for_the_whole_cache_and_nothing_else_goes(
    refusals,
) -> None:
    """Another program's memory had the share lowered and is gone: no step is made smaller for it."""
    low, known = Settings(gpu_memory_utilization=0.3), {"refusals": refusals}

    told = refused(low, share=85 * GIB, known=known, needed_bytes=12.0 * GIB, available_bytes=-20.0 * GIB)
    untold = refused(low, share=85 * GIB, known=known, available_bytes=-20.0 * GIB)

    assert told == (replace(low, gpu_memory_utilization=0.624), "utilisation 0.3 -> 0.624, given back")
    assert untold[0] == replace(low, gpu_memory_utilization=0.544), "a request that nobody knows: 4 GiB"


def test_what_the_share_cannot_give_back_smaller_steps_and_the_context_pay() -> None:
    low = Settings(gpu_memory_utilization=0.3)
    said = {"needed_bytes": 12.0 * GIB, "available_bytes": -20.0 * GIB, "wanted_tokens": 40960.0}

    settings, text = refused(low, share=55 * GIB, **said)

    assert settings.gpu_memory_utilization == 0.55
    assert (settings.max_num_batched_tokens, settings.cudagraph) == (512, CudaGraph.NONE)
    assert 2048 <= settings.max_model_len < 40960
    assert text.startswith("utilisation 0.3 -> 0.55, given back · ")


def test_a_smaller_share_alone_makes_no_room() -> None:
    assert refused(LEAN, share=60 * GIB, **FOUR_OF_TWELVE) is None


def test_what_the_next_start_should_leave_is_taken_from_a_pinned_cache_only() -> None:
    said = {**FOUR_OF_TWELVE, "estimated_tokens": 40960.0}

    assert refused(free=GIB, **said)[0] == Settings(max_model_len=26624)


def test_a_pinned_cache_is_not_helped_by_smaller_steps_or_fewer_graphs() -> None:
    pinned = Settings(kv_cache_bytes=4 * GIB, max_num_batched_tokens=8192)
    said = {"needed_bytes": 4.2 * GIB, "available_bytes": 4.0 * GIB, "estimated_tokens": 40960.0}

    assert refused(pinned, **said)[0] == replace(pinned, max_model_len=40320)
    one = {"request_kv_bytes": int(4.2 * GIB), "request_tokens": 40960}
    without = refused(pinned, known=one, needed_bytes=4.2 * GIB, available_bytes=4.0 * GIB)
    assert without[0] == replace(pinned, max_model_len=int(40960 * 3.9375 / 4.2) // 128 * 128)


def test_where_a_rule_changes_nothing_no_refusal_is_foreseen_either() -> None:
    small = need(weights_bytes=80 * GIB, known={"request_kv_bytes": 10 * GIB, "request_tokens": 40960})
    lazy = replace(LEAN, load_format=LoadFormat.LAZY)

    assert room.foresee(Draft(lazy), small, FLOORS).said
    assert ladder.load_lightly(lazy, small, LOW, FLOORS) is None
    assert ladder.shrink_steps(lazy, small, LOW, FLOORS) is None


def test_where_smaller_steps_pay_for_all_the_cache_is_pinned_so_that_what_they_free_stays_free() -> None:
    wide = Settings(max_num_batched_tokens=32768)
    known = {"kv_cache_bytes": 4 * GIB}
    full = need_of(failed(used_bytes=TOTAL), Known(wide, total_bytes=TOTAL), wide, POLICY)
    over = int(1.02 * GIB)  # over a quarter of the cache: 0.78 GiB, and what is added to be sure
    used = TOTAL - full.free_bytes + int(0.78 * GIB)
    assert over < 0.08 * (4 * GIB - 0.78 * GIB) + 0.78 * GIB

    settings, _ = down(settings=wide, known=known, used_bytes=float(used))

    assert settings == replace(wide, max_num_batched_tokens=16384, kv_cache_bytes=4 * GIB)


@pytest.mark.parametrize(
    ("available", "policy", "raised"),
    [
        (60.0, {}, True),
        (95.0, {}, False),
        (60.0, {"unified_memory": False}, False),
        (60.0, {"backend": Backend.MP}, False),
    ],
)
def test_a_refused_cache_loosens_the_monitor_where_the_next_start_would_need_more_than_it_allows(
    available, policy, raised
) -> None:
    """The share of 80 GiB fits beside what was held before the load, or does not."""
    settings, _ = down(
        "kv_cache_too_small",
        Phase.ALLOCATING_KV_CACHE,
        settings=Settings(gpu_memory_utilization=0.8),
        policy=replace(POLICY, **policy),
        known={"loading_available_bytes": int((available + 4) * GIB)},
        total_bytes=float(TOTAL),
        needed_bytes=12.0 * GIB,
        available_bytes=4.0 * GIB,
        estimated_tokens=40960.0,
    )

    assert settings.ray_memory_threshold == (0.98 if raised else 0.95)
