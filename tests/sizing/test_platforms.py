"""The platform that is sized for: unified memory, a GPU with its own, or the CPU build."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sizing.large import large
from sparkd.sizing import declared
from sparkd.sizing.estimate import Observed, learn, needs_of, sizes_of
from sparkd.sizing.model import Checkpoint, Layout, Node, Request, Tensor
from sparkd.sizing.platforms import CPU, DISCRETE, UNIFIED, platform_of, tries_a_step
from sparkd.sizing.verdict import free_at_start, judge
from sparkd.words import GIB, Backend, CudaGraph, Phase, Settings

MIB = 1 << 20
NODE = Node(64 * GIB, 60 * GIB)
ON_CPU = Layout(1, 1, Backend.MP, "0.32.0+cpu", cpu=True)
PINNED = Settings(
    kv_cache_bytes=4 * GIB, max_num_batched_tokens=2048, max_num_seqs=16, cudagraph=CudaGraph.NONE
)


def asked(settings: Settings = PINNED, node: Node = NODE, layout: Layout = ON_CPU) -> Request:
    return Request(large(8.0), node, settings, layout)


def small(mib: int, inner: int) -> Checkpoint:
    """Return a dense model of so many MiB, all in one tensor, with MLPs of that width."""
    config = {"architectures": ["Qwen3ForCausalLM"], "hidden_size": 64, "vocab_size": 512, "head_dim": 32}
    more = {"num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2}
    whole = Tensor("model.layers.0.mlp.down_proj.weight", "BF16", (64, mib * MIB // 128))
    return Checkpoint({**config, **more, "intermediate_size": inner}, (whole,), (whole.bytes,))


def needed(request: Request) -> dict[Phase, int]:
    return {need.phase: need.bytes for need in needs_of(request, sizes_of(request))}


def names(request: Request, phase: Phase) -> list[str]:
    (need,) = [need for need in needs_of(request, sizes_of(request)) if need.phase is phase]
    return [part.name for part in need.parts]


def test_the_three_platforms() -> None:
    assert platform_of(asked()) is CPU
    assert platform_of(asked(layout=Layout())) is UNIFIED
    assert platform_of(asked(layout=Layout(), node=replace(NODE, unified=False))) is DISCRETE


@pytest.mark.parametrize(
    ("model", "kv_mib", "tokens", "measured"),
    [
        ((28, 10624), 256, 2048, (1216, 1248, 1697)),
        ((28, 10624), 1024, 4096, (1216, 1248, 2620)),
        ((264, 65280), 256, 512, (1216, 1484, 2014)),
        ((264, 65280), 1024, 1024, (1216, 1484, 3035)),
    ],
)
def test_the_cpu_build_holds_what_was_measured_of_it(model, kv_mib, tokens, measured) -> None:
    """In MiB, of the real vLLM 0.32 in a control group of its own, one rank, every step filled."""
    settings = replace(PINNED, kv_cache_bytes=kv_mib * MIB, max_num_batched_tokens=tokens)
    found = needed(Request(small(*model), Node(8 * GIB, 8 * GIB), settings, ON_CPU))
    phases = (Phase.INIT_DISTRIBUTED, Phase.LOADING_WEIGHTS, Phase.SERVING)
    assert [found[phase] / MIB for phase in phases] == pytest.approx(measured, rel=0.01)


def test_the_cpu_build_has_no_device_and_gives_a_step_back() -> None:
    request = asked()
    assert names(request, Phase.SERVING) == [
        "before the launch",
        "vLLM's processes",
        "weights",
        "KV cache",
        "growth",
        "a step",
    ]
    assert "a step" not in names(request, Phase.ALLOCATING_KV_CACHE)
    assert Phase.PROFILING not in needed(request) and not tries_a_step(request)
    assert not tries_a_step(asked(replace(PINNED, kv_cache_bytes=None)))
    compiled = asked(replace(PINNED, cudagraph=CudaGraph.FULL))
    assert Phase.PROFILING in needed(compiled) and Phase.CAPTURING_GRAPHS not in needed(compiled)
    assert "a step" in names(asked(layout=Layout()), Phase.ALLOCATING_KV_CACHE), "a GPU's allocator keeps it"


def test_the_cpu_build_sizes_its_cache_around_its_process() -> None:
    """The share less what the worker has resident, its libraries' pages too; not less a step, as on a GPU."""
    sizes = sizes_of(asked(replace(PINNED, kv_cache_bytes=None, gpu_memory_utilization=0.5)))
    assert sizes.kv_cache_bytes == 32 * GIB - sizes.weights.bytes - declared.CPU_WORKER_BYTES


@pytest.mark.parametrize(
    ("layout", "pinned", "refused"),
    [(ON_CPU, True, False), (ON_CPU, False, True), (Layout(1), True, True), (Layout(1), False, True)],
)
def test_the_share_is_compared_with_what_is_free_where_vllm_does(layout, pinned, refused) -> None:
    """The CPU build leaves it where the cache is pinned; a GPU's engine compares it all the same."""
    settings = replace(PINNED, gpu_memory_utilization=0.9)
    settings = settings if pinned else replace(settings, kv_cache_bytes=None)
    little = replace(NODE, available_bytes=40 * GIB)
    causes = [failure.cause for failure in judge(asked(settings, little, layout)).failures]
    assert ("startup_free_memory_too_low" in causes) is refused
    assert free_at_start(asked(node=little)) == 40 * GIB - declared.CPU_ENGINE_BYTES


@pytest.mark.parametrize("layout", [Layout(1, vllm_version="0.32.0"), ON_CPU])
def test_what_was_learned_of_a_step_grows_with_it_and_the_rest_does_not(layout) -> None:
    """A launch that took 40 % of the estimated step, and 1 GiB more for its processes than is typical."""
    request = asked(replace(PINNED, max_num_batched_tokens=16384), layout=layout)
    step = sizes_of(request).step_bytes or 0

    def real(settings: Settings) -> dict[Phase, int]:
        other = replace(request, settings=settings)
        own = sizes_of(other).step_bytes or 0
        return {
            need.phase: need.bytes + GIB - (int(0.6 * own) if "a step" in [p.name for p in need.parts] else 0)
            for need in needs_of(other, sizes_of(other))
            if need.phase is not Phase.FORMING
        }

    learned = learn(request, Observed(tuple(real(request.settings).items())))
    for settings in (
        replace(request.settings, max_num_batched_tokens=32768),
        replace(request.settings, max_num_batched_tokens=8192, kv_cache_bytes=8 * GIB),
    ):
        got = needed(replace(request, settings=settings, learned=learned))
        for phase, wanted in real(settings).items():
            assert got[phase] == pytest.approx(wanted, abs=MIB), phase
    assert learned.step_bytes == step > GIB // 2


def test_what_was_learned_of_graphs_goes_with_them() -> None:
    """Graphs that took twice what is typical."""
    full = asked(replace(PINNED, cudagraph=CudaGraph.FULL), layout=Layout(1))
    graphs = sizes_of(full).graphs_bytes
    with_graphs = (Phase.CAPTURING_GRAPHS, Phase.SERVING)
    seen = [(phase, held + (graphs if phase in with_graphs else 0)) for phase, held in needed(full).items()]
    learned = learn(full, Observed(tuple(seen)))
    for mode in (CudaGraph.NONE, CudaGraph.REDUCED, CudaGraph.FULL):
        other = replace(full, settings=replace(full.settings, cudagraph=mode))
        more = needed(replace(other, learned=learned))[Phase.SERVING] - needed(other)[Phase.SERVING]
        assert more == pytest.approx(declared.GRAPHS_BYTES[mode], abs=MIB), mode
