"""A model of the size that two Sparks serve, as its headers would tell it."""

from __future__ import annotations

from sparkd.sizing.model import Checkpoint, Layout, Options, Tensor
from sparkd.sizing.sized import Sized, sized
from sparkd.words import GIB


def large(gib_a_rank: float, *, layers: int = 64, **config: object) -> Checkpoint:
    """A mixture of experts in FP8 whose weights take so much on each of two ranks."""
    hidden, experts, inner = 4096, 128, 1024
    made = {
        "architectures": ["Qwen3MoeForCausalLM"], "hidden_size": hidden, "vocab_size": 151936,
        "num_hidden_layers": layers, "num_attention_heads": 64, "num_key_value_heads": 4, "head_dim": 128,
        "num_experts": experts, "num_experts_per_tok": 8, "moe_intermediate_size": inner,
        "intermediate_size": 12288, "max_position_embeddings": 262144, "tie_word_embeddings": False,
        "quantization_config": {"quant_method": "fp8"}, **config,
    }  # fmt: skip
    ends = [Tensor(f"{name}.weight", "BF16", (151936, hidden)) for name in ("model.embed_tokens", "lm_head")]
    rows = int((gib_a_rank * 2 * GIB - 2 * ends[0].bytes) / layers / hidden)
    name = "model.layers.{}.mlp.experts.0.down_proj.weight"
    body = [Tensor(name.format(n), "F8_E4M3", (hidden, rows)) for n in range(layers)]
    return Checkpoint(made, tuple(ends + body), (4 * GIB,) * int(gib_a_rank / 2))


def sized_large(gib_a_rank: float, **config: object) -> Sized:
    """The same, as a daemon keeps it."""
    return sized(large(gib_a_rank, **config), Layout(vllm_version="0.32.0"), Options())
