"""Weights of one rank: what vLLM splits, what every rank holds, and what it adds."""

from __future__ import annotations

import pytest

from sizing import checkpoints
from sparkd.sizing.architectures import KNOWN
from sparkd.sizing.model import ITEM_BYTES, Checkpoint, Layout, Options, Tensor
from sparkd.sizing.weights import stage_ends, weights_of


def checkpoint(made: tuple[dict, list]) -> Checkpoint:
    config, tensors = made
    return Checkpoint(config, tuple(Tensor(*tensor) for tensor in tensors))


def weights(made: tuple[dict, list], ranks: int = 2, *, stages: int = 1, **options: object):
    return weights_of(checkpoint(made), Layout(ranks, stages), Options(**options))


def test_dense_by_hand() -> None:
    """Llama: everything but the norms is halved; the vocabulary is padded to 64 first."""
    found = weights(checkpoints.llama())
    embeddings = 2 * (32064 // 2) * 512
    attention = 512 * 64 * (4 + 1 + 1 + 4)
    layer = attention + 3 * 512 * 768 + 2 * 512
    assert found.bytes == 2 * (embeddings + 4 * layer + 512)
    assert found.exact and found.whole_bytes == 2 * (4 * 2 * 512 + 512)


def test_fewer_kv_heads_than_ranks_are_held_by_several() -> None:
    one, two = (weights(checkpoints.llama(kv=kv), ranks=4).bytes for kv in (1, 4))
    assert one == two, "each rank holds one whole head either way"


def test_tied_embeddings_are_held_once() -> None:
    config, tensors = checkpoints.llama(kind="qwen2", tied=True, vocab=6400)
    alone = weights((config, tensors))
    with_copy = weights((config, [*tensors, ("lm_head.weight", "BF16", (6400, 512))]))
    assert with_copy.bytes == alone.bytes


def test_experts_are_sliced_or_whole() -> None:
    made = checkpoints.qwen3_moe()
    sliced, whole = weights(made), weights(made, expert_parallel=True)
    assert sliced.bytes == whole.bytes, "8 experts halve either way"
    odd = checkpoints.qwen3_moe(experts=9)
    one = 3 * 512 * 256 * 2
    more = weights(odd, expert_parallel=True).bytes - weights(odd).bytes
    halves = 3 * one // 2
    assert abs(more - halves) < halves / 1000, "in three layers five of nine whole, instead of nine halves"


def test_fused_experts_are_sliced() -> None:
    """Qwen3.5 keeps all experts of a layer in one tensor; biases of the second half are whole."""
    config, tensors = checkpoints.qwen3_moe(layers=1)
    at = "model.layers.0.mlp.experts."
    rest = [tensor for tensor in tensors if not tensor[0].startswith(at)]
    fused = [
        (f"{at}gate_up_proj_blocks", "U8", (8, 512, 16, 16)),
        (f"{at}gate_up_proj_scales", "U8", (8, 512, 16)),
        (f"{at}down_proj_bias", "BF16", (8, 512)),
    ]
    more = weights((config, rest + fused)).bytes - weights((config, rest)).bytes
    assert more == (8 * 512 * 16 * 16 + 8 * 512 * 16) // 2 + 2 * 8 * 512


def test_mla_replicates_the_low_rank_parts_and_keeps_a_quantised_kv_b_twice() -> None:
    found = weights(checkpoints.deepseek())
    assert found.derived_bytes == 0, "of what is not quantised it keeps views"
    quantised = weights(checkpoints.deepseek("fp8-block"))
    assert quantised.derived_bytes == 3 * 2 * (8 // 2) * (128 + 128) * 512
    low_rank = 3 * 2 * (512 * 256 + 512 * (512 + 64))
    assert low_rank <= found.whole_bytes <= low_rank * 1.1


def test_one_group_of_mamba_is_on_every_rank() -> None:
    one, two = (weights(checkpoints.nemotron_h(groups=n)) for n in (1, 2))
    assert one.exact and two.exact
    assert one.bytes == two.bytes, "one group held twice is as large as two held once"


@pytest.mark.parametrize("quant", sorted(set(checkpoints.SCHEMES) - {"bf16"}))
def test_quantised_layers_are_as_large_as_their_tensors(quant) -> None:
    """Both ranks together hold what the file has, but for norms, scalars and the vocabulary's padding."""
    made = checkpoints.llama(quant, vocab=32000)
    found = weights(made)
    file_bytes = checkpoint(made).tensor_bytes
    assert found.exact
    assert file_bytes <= 2 * found.bytes <= file_bytes * 1.002
    assert found.whole_bytes <= file_bytes / 1000


def test_what_predicts_several_tokens_counts_only_where_it_is_used() -> None:
    config, tensors = checkpoints.deepseek()
    more = [
        *tensors,
        ("model.layers.3.eh_proj.weight", "BF16", (512, 1024)),
        ("mtp.fc.weight", "BF16", (64, 64)),
    ]
    assert weights((config, more)).bytes == weights((config, tensors)).bytes
    assert weights((config, more), speculative=True).bytes > weights((config, tensors)).bytes


def test_an_unknown_architecture_gets_bounds_and_no_number() -> None:
    config, tensors = checkpoints.llama()
    made = ({**config, "architectures": ["GrokForCausalLM"]}, tensors)
    found = weights(made)
    total = checkpoint(made).tensor_bytes
    assert not found.exact and (found.least_bytes, found.bytes) == (total // 2, total)
    assert weights(made, ranks=1).exact, "one rank holds it all, whatever it is"
    assert not weights(({}, tensors)).exact


def test_a_tensor_that_no_rule_places_is_named() -> None:
    config, tensors = checkpoints.llama()
    found = weights((config, [*tensors, ("model.layers.0.mixer.strange.weight", "BF16", (512, 512))]))
    assert found.unplaced == ("model.layers.0.mixer.strange.weight",)
    assert found.bytes - found.least_bytes == 512 * 512


def test_heads_that_cannot_be_split_are_a_refusal() -> None:
    assert weights(checkpoints.llama(), ranks=3).refusal == "8 attention heads cannot be split over 3 ranks"
    assert "KV heads" in weights(checkpoints.llama(heads=12, kv=3), ranks=2).refusal
    assert not weights(checkpoints.deepseek(), ranks=8).refusal


def test_stages_of_a_pipeline_hold_their_layers_and_the_ends() -> None:
    assert stage_ends(10, 4) == (2, 5, 8, 10)
    assert stage_ends(4, 2) == (2, 4)
    made = checkpoints.llama()
    whole, staged = weights(made, ranks=1), weights(made, ranks=1, stages=2)
    assert whole.bytes // 2 <= staged.bytes <= whole.bytes // 2 + 4096


def test_a_vision_tower_is_split_where_vllm_splits_it() -> None:
    config, tensors = checkpoints.qwen3_next()
    tower = [
        ("model.visual.blocks.0.attn.qkv.weight", "BF16", (3072, 1024)),
        ("model.visual.blocks.0.attn.proj.weight", "BF16", (1024, 1024)),
        ("model.visual.blocks.0.mlp.linear_fc1.bias", "BF16", (4096,)),
        ("model.visual.patch_embed.proj.weight", "BF16", (1024, 3, 2, 16, 16)),
        ("model.visual.blocks.0.norm1.weight", "BF16", (1024,)),
    ]
    seeing = {"architectures": ["Qwen3_5MoeForConditionalGeneration"], "text_config": config}
    blind = weights((seeing, tensors)).bytes
    found = weights((seeing, tensors + tower))
    assert found.exact
    assert found.bytes - blind == 1024 * (3072 + 1024) + 4096 + 2 * (1024 * 3 * 2 * 16 * 16 + 1024)
    assert not weights((config, tensors + tower)).exact, "of a text model a tower is not known"


def test_every_known_architecture_has_been_read_and_types_have_sizes() -> None:
    assert len(KNOWN) >= 20
    assert all(size > 0 for size in ITEM_BYTES.values())
