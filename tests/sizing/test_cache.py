"""What a request keeps in the KV cache, by the kind of attention."""

from __future__ import annotations

import pytest

from sizing import checkpoints
from sizing.test_weights import checkpoint
from sparkd.sizing.cache import Cache, Group, cache_of
from sparkd.sizing.layers import Kept, Layers, layers_of
from sparkd.sizing.model import Layout, Options


def layers(made, ranks: int = 1, stages: int = 1, **options: object) -> Layers:
    return layers_of(checkpoint(made), Layout(ranks, stages), Options(**options))


def cache(made, ranks: int = 1, block: int = 16, batch: int = 2048, **options: object) -> Cache:
    found = layers(made, ranks, **options)
    assert not found.unknown
    return cache_of(found, block, batch)


@pytest.mark.parametrize(
    ("kv", "ranks", "heads"), [(8, 1, 8), (8, 2, 4), (2, 1, 2), (2, 2, 1), (1, 2, 1), (2, 8, 1)]
)
def test_keys_and_values_of_each_kv_head(kv, ranks, heads) -> None:
    """Four layers, 64 numbers a head, 16 bits; never less than one whole head."""
    found = cache(checkpoints.llama(kv=kv), ranks)
    assert found.token_bytes == 4 * 2 * heads * 64 * 2
    assert found.request_bytes(1600) == 1600 * found.token_bytes
    assert found.request_bytes(1601) == 1616 * found.token_bytes, "whole blocks"


def test_mla_keeps_one_vector_on_every_rank() -> None:
    for ranks in (1, 2, 8):
        assert cache(checkpoints.deepseek(), ranks).token_bytes == 3 * (512 + 64) * 2


@pytest.mark.parametrize(
    ("said", "factor"), [("auto", 2), ("bfloat16", 2), ("fp8", 1), ("fp8_e4m3", 1), ("fp8_e5m2", 1)]
)
def test_the_type_of_the_cache(said, factor) -> None:
    assert cache(checkpoints.llama(), kv_cache_dtype=said).token_bytes == 4 * 2 * 2 * 64 * factor


@pytest.mark.parametrize(
    "scheme",
    [
        {"quant_method": "modelopt", "kv_cache_quant_algo": "FP8"},
        {"quant_method": "modelopt", "quantization": {"kv_cache_quant_algo": "FP8"}},
        {"quant_method": "compressed-tensors", "kv_cache_scheme": {"num_bits": 8, "type": "float"}},
    ],
)
def test_a_checkpoint_may_say_the_type(scheme) -> None:
    config, tensors = checkpoints.llama()
    made = ({**config, "quantization_config": scheme}, tensors)
    assert cache(made).token_bytes == 4 * 2 * 2 * 64
    assert cache(made, kv_cache_dtype="bfloat16").token_bytes == 4 * 2 * 2 * 64 * 2, "what is asked wins"


def test_a_type_that_is_not_worked_out_is_unknown() -> None:
    assert "nvfp4" in layers(checkpoints.llama(), kv_cache_dtype="nvfp4").unknown


def test_windows_bound_what_a_long_request_keeps() -> None:
    """Gemma 3: 2 of 14 layers see everything, 12 a window of 256; groups of two layers share the pool."""
    found = cache(checkpoints.gemma3(), batch=1024)
    layer = 2 * 2 * 128 * 2
    assert found.token_bytes == 2 * layer
    assert found.block_bytes == 2 * 16 * layer
    windows = 6 * (-(-(255 + 1024) // 16) + 1)
    assert found.request_bytes(8192) == (8192 // 16 + windows) * found.block_bytes


def test_a_window_that_is_switched_off_or_not_listed() -> None:
    config, tensors = checkpoints.llama(kind="qwen2")
    off = ({**config, "sliding_window": 128, "use_sliding_window": False}, tensors)
    assert {kept.window for kept, _ in layers(off).counted} == {None}
    config = {**config, "architectures": ["MistralForCausalLM"], "sliding_window": 128}
    assert {kept.window for kept, _ in layers((config, tensors)).counted} == {128}
    config, tensors = checkpoints.gemma3()
    old = {**config, "sliding_window_pattern": 7}
    del old["layer_types"]
    assert {kept.window: n for kept, n in layers((old, tensors)).counted} == {None: 2, 256: 12}


def test_a_state_is_kept_once_and_enlarges_the_blocks_of_attention() -> None:
    """Qwen3-Next: six layers of gated delta net, two of attention; groups of two layers share pages."""
    state = (2 * 4 * 64 + 8 * 64) * 3 * 2 + 8 * 64 * 64 * 2
    token = 2 * 2 * 128 * 2
    found = cache(checkpoints.qwen3_next())
    block = 16 * -(-state // (16 * token))
    assert {group.block for group in found.groups} == {block}
    assert found.block_bytes == 2 * block * token
    assert found.request_bytes(block * 10) == (10 + 3) * found.block_bytes


def test_the_state_of_mamba_is_kept_in_32_bits_and_needs_a_whole_group() -> None:
    for groups, ranks, own in ((2, 1, 2), (2, 2, 1), (1, 2, 1)):
        state = {kept.state_bytes for kept, _ in layers(checkpoints.nemotron_h(groups=groups), ranks).counted}
        conv = (16 * 64 // ranks + 2 * own * 64) * 3 * 2
        assert state == {0, conv + 16 // ranks * 64 * 64 * 4}


def test_kinds_of_about_equal_number_are_padded_into_two_groups() -> None:
    found = cache_of(Layers(((Kept(64), 13), (Kept(64, window=128), 12))), 16, 512)
    assert [group.number for group in found.groups] == [1, 1]
    assert found.block_bytes == 13 * 16 * 64


def test_the_fullest_stage_counts() -> None:
    assert dict(layers(checkpoints.llama(layers=5), stages=2).counted) == {Kept(512): 3}


def test_the_longest_request_that_fits() -> None:
    found = cache(checkpoints.llama())
    assert found.longest(100 * found.block_bytes, 10_000) == 1600
    assert found.longest(10**12, 10_000) == 10_000
    assert found.longest(0, 10_000) == 0


def test_a_model_without_attention_caches_nothing() -> None:
    assert cache_of(Layers(), 16, 512) == Cache()
    assert Cache().request_bytes(1000) == 0
    assert Group(Kept(state_bytes=1), 16, 2).number == 2


@pytest.mark.parametrize("lost", ["num_hidden_layers", "num_attention_heads", "linear_key_head_dim"])
def test_what_a_configuration_does_not_say_is_unknown(lost) -> None:
    config, tensors = checkpoints.qwen3_next()
    del config[lost]
    assert lost in layers((config, tensors)).unknown


def test_an_unknown_architecture_or_layer_is_unknown() -> None:
    config, tensors = checkpoints.llama()
    assert "Grok" in layers(({**config, "architectures": ["Grok"]}, tensors)).unknown
    strange = {**config, "layer_types": ["full_attention", "retention", "retention", "retention"]}
    assert "retention" in layers((strange, tensors)).unknown
