"""Checkpoints without weights: true names, types and shapes in sparse files of zeros.

Each maker returns (config, tensors) of a small model of one architecture, with the names that its published
checkpoints have; the real vLLM loads them (tests/contract/test_sizing_contract.py proves it). Standard
library only: the engine's own Python runs this file, too.
"""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

Tensor = tuple[str, str, tuple[int, ...]]
BYTES = {"F32": 4, "BF16": 2, "F16": 2, "F8_E4M3": 1, "U8": 1, "I32": 4, "I64": 8}
MADE = dict[str, object]


def size_of(tensor: Tensor) -> int:
    count = BYTES[tensor[1]]
    for extent in tensor[2]:
        count *= extent
    return count


def write(folder: Path, config: MADE, tensors: Iterable[Tensor], shards: int = 2) -> Path:
    """Make the folder of a model; its weight files take no room on the disk."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    tensors = list(tensors)
    names = [f"model-{n:05d}-of-{shards:05d}.safetensors" for n in range(1, shards + 1)]
    index = {}
    for n, name in enumerate(names):
        part = tensors[n::shards]
        write_shard(folder / name, part)
        index |= {tensor[0]: name for tensor in part}
    total = sum(map(size_of, tensors))
    document = {"metadata": {"total_size": total}, "weight_map": index}
    (folder / "model.safetensors.index.json").write_text(json.dumps(document))
    return folder


def write_shard(path: Path, tensors: Iterable[Tensor]) -> None:
    header: MADE = {"__metadata__": {"format": "pt"}}
    at = 0
    for tensor in tensors:
        end = at + size_of(tensor)
        header[tensor[0]] = {"dtype": tensor[1], "shape": list(tensor[2]), "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + at)


# -- one linear layer in each form of quantisation ---------------------------------------------------------


def linear(name: str, out: int, into: int, quant: str, *, bias: bool = False) -> Iterator[Tensor]:
    if bias:
        yield f"{name}.bias", "BF16", (out,)
    match quant:
        case "bf16":
            yield f"{name}.weight", "BF16", (out, into)
        case "fp8":
            yield f"{name}.weight", "F8_E4M3", (out, into)
            yield f"{name}.weight_scale", "F32", ()
            yield f"{name}.input_scale", "F32", ()
        case "fp8-block":
            yield f"{name}.weight", "F8_E4M3", (out, into)
            yield f"{name}.weight_scale_inv", "BF16", (-(-out // 128), -(-into // 128))
        case "awq":
            yield f"{name}.qweight", "I32", (into, out // 8)
            yield f"{name}.qzeros", "I32", (into // 128, out // 8)
            yield f"{name}.scales", "F16", (into // 128, out)
        case "gptq":
            yield f"{name}.qweight", "I32", (into // 8, out)
            yield f"{name}.qzeros", "I32", (into // 128, out // 8)
            yield f"{name}.scales", "F16", (into // 128, out)
            yield f"{name}.g_idx", "I32", (into,)
        case "int4":
            yield f"{name}.weight_packed", "I32", (out, into // 8)
            yield f"{name}.weight_scale", "BF16", (out, into // 128)
            yield f"{name}.weight_shape", "I64", (2,)
        case "int8":
            yield f"{name}.weight", "I8", (out, into)
            yield f"{name}.weight_scale", "F32", (out, 1)
        case "nvfp4":
            yield f"{name}.weight", "U8", (out, into // 2)
            yield f"{name}.weight_scale", "F8_E4M3", (out, into // 16)
            yield f"{name}.weight_scale_2", "F32", ()
            yield f"{name}.input_scale", "F32", ()
        case _:
            raise ValueError(quant)


BYTES["I8"] = 1
SCHEMES: dict[str, MADE] = {
    "bf16": {},
    "fp8": {"quant_method": "fp8", "activation_scheme": "static"},
    "fp8-block": {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]},
    "awq": {"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm", "zero_point": True},
    "gptq": {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False, "sym": True},
    "int4": {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "ignore": ["lm_head"],
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": {
                    "num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 128,
                },
            }
        },
    },
    "int8": {
        "quant_method": "compressed-tensors",
        "format": "int-quantized",
        "ignore": ["lm_head"],
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"},
                "input_activations": {
                    "num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True,
                },
            }
        },
    },
    "nvfp4": {
        "quant_method": "modelopt",
        "quant_algo": "NVFP4",
        "quantization": {
            "quant_algo": "NVFP4", "kv_cache_quant_algo": None, "group_size": 16,
            "exclude_modules": ["lm_head"],
        },
    },
}  # fmt: skip


def configured(architecture: str, model_type: str, quant: str, **more: object) -> MADE:
    config: MADE = {
        "architectures": [architecture],
        "model_type": model_type,
        "torch_dtype": "float16" if quant in {"awq", "gptq"} else "bfloat16",
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 4096,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "pad_token_id": 0,
        "rope_theta": 10000.0,
        **more,
    }
    if SCHEMES[quant]:
        config["quantization_config"] = SCHEMES[quant]
    return config


# -- architectures -----------------------------------------------------------------------------------------


def mlp(name: str, hidden: int, inner: int, quant: str) -> Iterator[Tensor]:
    yield from linear(f"{name}.gate_proj", inner, hidden, quant)
    yield from linear(f"{name}.up_proj", inner, hidden, quant)
    yield from linear(f"{name}.down_proj", hidden, inner, quant)


def attention(  # noqa: PLR0917
    name: str, hidden: int, heads: int, kv: int, dim: int, quant: str, *,
    bias: bool = False, normed: bool = False, gated: bool = False,
) -> Iterator[Tensor]:  # fmt: skip
    yield from linear(f"{name}.q_proj", heads * dim * (2 if gated else 1), hidden, quant, bias=bias)
    yield from linear(f"{name}.k_proj", kv * dim, hidden, quant, bias=bias)
    yield from linear(f"{name}.v_proj", kv * dim, hidden, quant, bias=bias)
    yield from linear(f"{name}.o_proj", hidden, heads * dim, quant)
    if normed:
        yield f"{name}.q_norm.weight", "BF16", (dim,)
        yield f"{name}.k_norm.weight", "BF16", (dim,)


def ends(vocab: int, hidden: int, *, tied: bool, prefix: str = "model.") -> Iterator[Tensor]:
    yield f"{prefix}embed_tokens.weight", "BF16", (vocab, hidden)
    yield f"{prefix}norm.weight", "BF16", (hidden,)
    if not tied:
        yield "lm_head.weight", "BF16", (vocab, hidden)


def norms(name: str, hidden: int, names: Iterable[str] = ("input_layernorm", "post_attention_layernorm")):
    for norm in names:
        yield f"{name}.{norm}.weight", "BF16", (hidden,)


def llama(
    quant: str = "bf16", *, hidden: int = 512, inner: int = 1536, layers: int = 4, heads: int = 8,
    kv: int = 2, vocab: int = 32003, tied: bool = False, kind: str = "llama",
) -> tuple[MADE, list[Tensor]]:  # fmt: skip
    """Dense: Llama; `qwen2` has biases, `qwen3` norms of queries and keys."""
    name = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}[kind]
    dim = 64
    config = configured(
        name, kind, quant, vocab_size=vocab, hidden_size=hidden, intermediate_size=inner,
        num_hidden_layers=layers, num_attention_heads=heads, num_key_value_heads=kv, head_dim=dim,
        tie_word_embeddings=tied,
    )  # fmt: skip
    tensors = [*ends(vocab, hidden, tied=tied)]
    for n in range(layers):
        at = f"model.layers.{n}"
        tensors += attention(
            f"{at}.self_attn", hidden, heads, kv, dim, quant, bias=kind == "qwen2", normed=kind == "qwen3"
        )
        tensors += [*mlp(f"{at}.mlp", hidden, inner, quant), *norms(at, hidden)]
    return config, tensors


def gemma3(*, layers: int = 14, window: int = 256) -> tuple[MADE, list[Tensor]]:
    """Sliding windows: five of six layers see only so many tokens; head_dim is not hidden / heads."""
    hidden, inner, heads, kv, dim, vocab = 512, 1024, 4, 2, 128, 8000
    config = configured(
        "Gemma3ForCausalLM", "gemma3_text", "bf16", vocab_size=vocab, hidden_size=hidden,
        intermediate_size=inner, num_hidden_layers=layers, num_attention_heads=heads,
        num_key_value_heads=kv, head_dim=dim, sliding_window=window, query_pre_attn_scalar=dim,
        layer_types=["full_attention" if n % 6 == 5 else "sliding_attention" for n in range(layers)],
        hidden_activation="gelu_pytorch_tanh", rope_local_base_freq=10000.0, tie_word_embeddings=True,
    )  # fmt: skip
    tensors = [*ends(vocab, hidden, tied=True)]
    four = (
        "input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm",
        "post_feedforward_layernorm",
    )  # fmt: skip
    for n in range(layers):
        at = f"model.layers.{n}"
        tensors += attention(f"{at}.self_attn", hidden, heads, kv, dim, "bf16", normed=True)
        tensors += [*mlp(f"{at}.mlp", hidden, inner, "bf16"), *norms(at, hidden, four)]
    return config, tensors


def qwen3_moe(quant: str = "bf16", *, experts: int = 8, layers: int = 3) -> tuple[MADE, list[Tensor]]:
    hidden, inner, heads, kv, dim, vocab = 512, 256, 8, 2, 64, 9000
    config = configured(
        "Qwen3MoeForCausalLM", "qwen3_moe", quant, vocab_size=vocab, hidden_size=hidden,
        intermediate_size=1024, moe_intermediate_size=inner, num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=kv, head_dim=dim, num_experts=experts,
        num_experts_per_tok=2, norm_topk_prob=True, decoder_sparse_step=1, mlp_only_layers=[],
        tie_word_embeddings=False,
    )  # fmt: skip
    tensors = [*ends(vocab, hidden, tied=False)]
    for n in range(layers):
        at = f"model.layers.{n}"
        tensors += attention(f"{at}.self_attn", hidden, heads, kv, dim, quant, normed=True)
        tensors += [(f"{at}.mlp.gate.weight", "BF16", (experts, hidden)), *norms(at, hidden)]
        for e in range(experts):
            tensors += mlp(f"{at}.mlp.experts.{e}", hidden, inner, quant)
    return config, tensors


def deepseek(quant: str = "bf16", *, layers: int = 3, experts: int = 8) -> tuple[MADE, list[Tensor]]:
    """MLA with low-rank queries, a dense first layer, routed and shared experts."""
    hidden, inner, heads, vocab = 512, 256, 8, 9000
    q_rank, kv_rank, nope, rope, v_dim, dense = 256, 512, 128, 64, 128, 1024
    config = configured(
        "DeepseekV3ForCausalLM", "deepseek_v3", quant, vocab_size=vocab, hidden_size=hidden,
        intermediate_size=dense, moe_intermediate_size=inner, num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=heads, q_lora_rank=q_rank, kv_lora_rank=kv_rank,
        qk_nope_head_dim=nope, qk_rope_head_dim=rope, v_head_dim=v_dim, n_routed_experts=experts,
        n_shared_experts=1, num_experts_per_tok=2, n_group=2, topk_group=1, first_k_dense_replace=1,
        moe_layer_freq=1, norm_topk_prob=True, routed_scaling_factor=2.5, scoring_func="sigmoid",
        topk_method="noaux_tc", tie_word_embeddings=False, num_nextn_predict_layers=0,
    )  # fmt: skip
    tensors = [*ends(vocab, hidden, tied=False)]
    for n in range(layers):
        at = f"model.layers.{n}"
        own = f"{at}.self_attn"
        tensors += linear(f"{own}.q_a_proj", q_rank, hidden, quant)
        tensors += linear(f"{own}.q_b_proj", heads * (nope + rope), q_rank, quant)
        tensors += linear(f"{own}.kv_a_proj_with_mqa", kv_rank + rope, hidden, quant)
        tensors += linear(f"{own}.kv_b_proj", heads * (nope + v_dim), kv_rank, quant)
        tensors += linear(f"{own}.o_proj", hidden, heads * v_dim, quant)
        tensors += [(f"{own}.q_a_layernorm.weight", "BF16", (q_rank,))]
        tensors += [(f"{own}.kv_a_layernorm.weight", "BF16", (kv_rank,)), *norms(at, hidden)]
        if n == 0:
            tensors += mlp(f"{at}.mlp", hidden, dense, quant)
            continue
        tensors += [(f"{at}.mlp.gate.weight", "BF16", (experts, hidden))]
        tensors += [(f"{at}.mlp.gate.e_score_correction_bias", "F32", (experts,))]
        tensors += mlp(f"{at}.mlp.shared_experts", hidden, inner, quant)
        for e in range(experts):
            tensors += mlp(f"{at}.mlp.experts.{e}", hidden, inner, quant)
    return config, tensors


def qwen3_next(*, layers: int = 8, experts: int = 8) -> tuple[MADE, list[Tensor]]:
    """Hybrid: three layers of gated delta net for each one of full attention; experts in every layer."""
    hidden, inner, heads, kv, dim, vocab = 512, 256, 8, 2, 128, 9000
    k_heads, v_heads, state = 4, 8, 64
    config = configured(
        "Qwen3NextForCausalLM", "qwen3_next", "bf16", vocab_size=vocab, hidden_size=hidden,
        intermediate_size=1024, moe_intermediate_size=inner, shared_expert_intermediate_size=inner,
        num_hidden_layers=layers, num_attention_heads=heads, num_key_value_heads=kv, head_dim=dim,
        num_experts=experts, num_experts_per_tok=2, norm_topk_prob=True, decoder_sparse_step=1,
        mlp_only_layers=[], partial_rotary_factor=0.25, linear_conv_kernel_dim=4,
        linear_key_head_dim=state, linear_value_head_dim=state, linear_num_key_heads=k_heads,
        linear_num_value_heads=v_heads, full_attention_interval=4, tie_word_embeddings=False,
        layer_types=["full_attention" if n % 4 == 3 else "linear_attention" for n in range(layers)],
    )  # fmt: skip
    tensors = [*ends(vocab, hidden, tied=False)]
    for n in range(layers):
        at = f"model.layers.{n}"
        if n % 4 == 3:
            tensors += attention(f"{at}.self_attn", hidden, heads, kv, dim, "bf16", normed=True, gated=True)
        else:
            tensors += delta_net(f"{at}.linear_attn", hidden, k_heads, v_heads, state)
        tensors += [(f"{at}.mlp.gate.weight", "BF16", (experts, hidden)), *norms(at, hidden)]
        tensors += [(f"{at}.mlp.shared_expert_gate.weight", "BF16", (1, hidden))]
        tensors += mlp(f"{at}.mlp.shared_expert", hidden, inner, "bf16")
        for e in range(experts):
            tensors += mlp(f"{at}.mlp.experts.{e}", hidden, inner, "bf16")
    return config, tensors


def delta_net(name: str, hidden: int, k_heads: int, v_heads: int, state: int) -> Iterator[Tensor]:
    keys, values = k_heads * state, v_heads * state
    yield f"{name}.in_proj_qkvz.weight", "BF16", (2 * keys + 2 * values, hidden)
    yield f"{name}.in_proj_ba.weight", "BF16", (2 * v_heads, hidden)
    yield f"{name}.conv1d.weight", "BF16", (2 * keys + values, 1, 4)
    yield f"{name}.dt_bias", "BF16", (v_heads,)
    yield f"{name}.A_log", "BF16", (v_heads,)
    yield f"{name}.norm.weight", "BF16", (state,)
    yield f"{name}.out_proj.weight", "BF16", (hidden, values)


def nemotron_h(*, groups: int = 2) -> tuple[MADE, list[Tensor]]:
    """Hybrid: Mamba 2, attention and plain MLP as layers of their own."""
    hidden, inner, heads, kv, dim, vocab = 512, 1024, 8, 2, 64, 9000
    pattern, m_heads, m_dim, state = "M-M-M*-M-M*-", 16, 64, 64
    config = configured(
        "NemotronHForCausalLM", "nemotron_h", "bf16", vocab_size=vocab, hidden_size=hidden,
        intermediate_size=inner, num_hidden_layers=len(pattern), hybrid_override_pattern=pattern,
        num_attention_heads=heads, num_key_value_heads=kv, head_dim=dim, attention_head_dim=dim,
        mamba_num_heads=m_heads, mamba_head_dim=m_dim, ssm_state_size=state, n_groups=groups, conv_kernel=4,
        chunk_size=128, use_conv_bias=True, use_bias=False, mlp_bias=False, attention_bias=False,
        mlp_hidden_act="relu2", mamba_hidden_act="silu", layer_norm_epsilon=1e-5, expand=2,
        tie_word_embeddings=False, time_step_limit=[0.0, float("1e9")],
    )  # fmt: skip
    tensors: list[Tensor] = [
        ("backbone.embeddings.weight", "BF16", (vocab, hidden)),
        ("backbone.norm_f.weight", "BF16", (hidden,)),
        ("lm_head.weight", "BF16", (vocab, hidden)),
    ]
    for n, kind in enumerate(pattern):
        at = f"backbone.layers.{n}"
        tensors += [(f"{at}.norm.weight", "BF16", (hidden,))]
        if kind == "M":
            tensors += mamba2(f"{at}.mixer", hidden, m_heads * m_dim, groups * state, m_heads)
        elif kind == "*":
            tensors += attention(f"{at}.mixer", hidden, heads, kv, dim, "bf16")
        else:
            tensors += linear(f"{at}.mixer.up_proj", inner, hidden, "bf16")
            tensors += linear(f"{at}.mixer.down_proj", hidden, inner, "bf16")
    return config, tensors


def mamba2(name: str, hidden: int, inner: int, groups: int, heads: int) -> Iterator[Tensor]:
    yield f"{name}.in_proj.weight", "BF16", (2 * inner + 2 * groups + heads, hidden)
    yield f"{name}.conv1d.weight", "BF16", (inner + 2 * groups, 1, 4)
    yield f"{name}.conv1d.bias", "BF16", (inner + 2 * groups,)
    yield f"{name}.dt_bias", "BF16", (heads,)
    yield f"{name}.A_log", "BF16", (heads,)
    yield f"{name}.D", "BF16", (heads,)
    yield f"{name}.norm.weight", "BF16", (inner,)
    yield f"{name}.out_proj.weight", "BF16", (hidden, inner)


def qwen3_5(*, layers: int = 8) -> tuple[MADE, list[Tensor]]:
    """As Qwen3-Next, dense, with the parts of the delta net apart and its state in 32 bits."""
    hidden, inner, heads, kv, dim, vocab = 512, 1024, 8, 2, 128, 9000
    k_heads, v_heads, state = 4, 8, 64
    config = configured(
        "Qwen3_5ForCausalLM", "qwen3_5_text", "bf16", vocab_size=vocab, hidden_size=hidden,
        intermediate_size=inner, num_hidden_layers=layers, num_attention_heads=heads,
        num_key_value_heads=kv, head_dim=dim, linear_conv_kernel_dim=4, linear_key_head_dim=state,
        linear_value_head_dim=state, linear_num_key_heads=k_heads, linear_num_value_heads=v_heads,
        full_attention_interval=4, tie_word_embeddings=False, mamba_ssm_dtype="float32",
        layer_types=["full_attention" if n % 4 == 3 else "linear_attention" for n in range(layers)],
    )  # fmt: skip
    keys, values = k_heads * state, v_heads * state
    tensors = [*ends(vocab, hidden, tied=False)]
    for n in range(layers):
        at = f"model.layers.{n}"
        if n % 4 == 3:
            tensors += attention(f"{at}.self_attn", hidden, heads, kv, dim, "bf16", normed=True, gated=True)
        else:
            own = f"{at}.linear_attn"
            whole = delta_net(own, hidden, k_heads, v_heads, state)
            tensors += [tensor for tensor in whole if ".in_proj_" not in tensor[0]]
            for part, rows in (("qkv", 2 * keys + values), ("z", values), ("b", v_heads), ("a", v_heads)):
                tensors += linear(f"{own}.in_proj_{part}", rows, hidden, "bf16")
        tensors += [*mlp(f"{at}.mlp", hidden, inner, "bf16"), *norms(at, hidden)]
    return config, tensors


def mixtral(*, experts: int = 8, layers: int = 2) -> tuple[MADE, list[Tensor]]:
    hidden, inner, heads, kv, vocab = 512, 512, 8, 2, 9000
    config = configured(
        "MixtralForCausalLM", "mixtral", "bf16", vocab_size=vocab, hidden_size=hidden,
        intermediate_size=inner, num_hidden_layers=layers, num_attention_heads=heads,
        num_key_value_heads=kv, head_dim=64, num_local_experts=experts, num_experts_per_tok=2,
        sliding_window=None, tie_word_embeddings=False,
    )  # fmt: skip
    tensors = [*ends(vocab, hidden, tied=False)]
    for n in range(layers):
        at = f"model.layers.{n}"
        tensors += [*attention(f"{at}.self_attn", hidden, heads, kv, 64, "bf16"), *norms(at, hidden)]
        tensors += linear(f"{at}.block_sparse_moe.gate", experts, hidden, "bf16")
        for e in range(experts):
            one = f"{at}.block_sparse_moe.experts.{e}"
            tensors += linear(f"{one}.w1", inner, hidden, "bf16")
            tensors += linear(f"{one}.w2", hidden, inner, "bf16")
            tensors += linear(f"{one}.w3", inner, hidden, "bf16")
    return config, tensors


def minimax_m2(*, experts: int = 8, layers: int = 2) -> tuple[MADE, list[Tensor]]:
    """Norms over all heads of queries and keys; a correction of the router beside its experts."""
    hidden, inner, heads, kv, dim, vocab = 512, 256, 8, 2, 64, 9000
    config = configured(
        "MiniMaxM2ForCausalLM", "minimax_m2", "bf16", vocab_size=vocab, hidden_size=hidden,
        intermediate_size=inner, num_hidden_layers=layers, num_attention_heads=heads,
        num_key_value_heads=kv, head_dim=dim, num_local_experts=experts, num_experts_per_tok=2,
        rotary_dim=32, use_qk_norm=True, qk_norm_type="per_layer", scoring_func="sigmoid",
        use_routing_bias=True, attn_type_list=[1] * layers, tie_word_embeddings=False,
    )  # fmt: skip
    tensors = [*ends(vocab, hidden, tied=False)]
    for n in range(layers):
        at = f"model.layers.{n}"
        tensors += [*attention(f"{at}.self_attn", hidden, heads, kv, dim, "bf16"), *norms(at, hidden)]
        tensors += [(f"{at}.self_attn.q_norm.weight", "BF16", (heads * dim,))]
        tensors += [(f"{at}.self_attn.k_norm.weight", "BF16", (kv * dim,))]
        tensors += linear(f"{at}.block_sparse_moe.gate", experts, hidden, "bf16")
        tensors += [(f"{at}.block_sparse_moe.e_score_correction_bias", "F32", (experts,))]
        for e in range(experts):
            one = f"{at}.block_sparse_moe.experts.{e}"
            tensors += linear(f"{one}.w1", inner, hidden, "bf16")
            tensors += linear(f"{one}.w2", hidden, inner, "bf16")
            tensors += linear(f"{one}.w3", inner, hidden, "bf16")
    return config, tensors


def qwen2_moe(*, experts: int = 8, layers: int = 2) -> tuple[MADE, list[Tensor]]:
    """Biases, and one shared expert with a gate of its own."""
    hidden, inner, shared, heads, kv, vocab = 512, 256, 512, 8, 2, 9000
    config = configured(
        "Qwen2MoeForCausalLM", "qwen2_moe", "bf16", vocab_size=vocab, hidden_size=hidden,
        intermediate_size=1024, moe_intermediate_size=inner, shared_expert_intermediate_size=shared,
        num_hidden_layers=layers, num_attention_heads=heads, num_key_value_heads=kv, num_experts=experts,
        num_experts_per_tok=2, decoder_sparse_step=1, mlp_only_layers=[], norm_topk_prob=False,
        use_sliding_window=False, sliding_window=1024, tie_word_embeddings=False,
    )  # fmt: skip
    tensors = [*ends(vocab, hidden, tied=False)]
    for n in range(layers):
        at = f"model.layers.{n}"
        tensors += [
            *attention(f"{at}.self_attn", hidden, heads, kv, 64, "bf16", bias=True),
            *norms(at, hidden),
        ]
        tensors += linear(f"{at}.mlp.gate", experts, hidden, "bf16")
        tensors += linear(f"{at}.mlp.shared_expert_gate", 1, hidden, "bf16")
        tensors += mlp(f"{at}.mlp.shared_expert", hidden, shared, "bf16")
        for e in range(experts):
            tensors += mlp(f"{at}.mlp.experts.{e}", hidden, inner, "bf16")
    return config, tensors


def mistral() -> tuple[MADE, list[Tensor]]:
    """Every layer sees a window, without a list of layers."""
    config, tensors = llama()
    return {
        **config,
        "architectures": ["MistralForCausalLM"],
        "model_type": "mistral",
        "sliding_window": 256,
    }, tensors


def gemma2() -> tuple[MADE, list[Tensor]]:
    """Every second layer sees a window; no norms of queries and keys, and no list of layers."""
    config, tensors = gemma3(layers=8)
    config |= {"architectures": ["Gemma2ForCausalLM"], "model_type": "gemma2", "attn_logit_softcapping": None}
    config |= {"final_logit_softcapping": 30.0}
    for name in ("layer_types", "rope_local_base_freq"):
        del config[name]
    return config, [tensor for tensor in tensors if "q_norm" not in tensor[0] and "k_norm" not in tensor[0]]


def phi3(*, layers: int = 4) -> tuple[MADE, list[Tensor]]:
    """Queries, keys and values in one tensor, and both halves of the MLP in another."""
    hidden, inner, heads, kv, dim, vocab = 512, 1536, 8, 2, 64, 9000
    config = configured(
        "Phi3ForCausalLM", "phi3", "bf16", vocab_size=vocab, hidden_size=hidden, intermediate_size=inner,
        num_hidden_layers=layers, num_attention_heads=heads, num_key_value_heads=kv, sliding_window=None,
        tie_word_embeddings=False, original_max_position_embeddings=4096,
    )  # fmt: skip
    tensors = [*ends(vocab, hidden, tied=False)]
    for n in range(layers):
        at = f"model.layers.{n}"
        tensors += linear(f"{at}.self_attn.qkv_proj", (heads + 2 * kv) * dim, hidden, "bf16")
        tensors += linear(f"{at}.self_attn.o_proj", hidden, heads * dim, "bf16")
        tensors += linear(f"{at}.mlp.gate_up_proj", 2 * inner, hidden, "bf16")
        tensors += [*linear(f"{at}.mlp.down_proj", hidden, inner, "bf16"), *norms(at, hidden)]
    return config, tensors


def glm4_moe(*, experts: int = 8, layers: int = 3) -> tuple[MADE, list[Tensor]]:
    """A dense first layer, shared experts, and a layer beyond the last that predicts a second token."""
    hidden, inner, dense, heads, kv, dim, vocab = 512, 256, 1024, 8, 2, 64, 9000
    config = configured(
        "Glm4MoeForCausalLM", "glm4_moe", "bf16", vocab_size=vocab, hidden_size=hidden,
        intermediate_size=dense, moe_intermediate_size=inner, num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=kv, head_dim=dim, n_routed_experts=experts,
        n_shared_experts=1, num_experts_per_tok=2, n_group=1, topk_group=1, first_k_dense_replace=1,
        norm_topk_prob=True, routed_scaling_factor=1.0, attention_bias=True, use_qk_norm=True,
        partial_rotary_factor=0.5, num_nextn_predict_layers=1, tie_word_embeddings=False,
    )  # fmt: skip
    tensors = [*ends(vocab, hidden, tied=False)]
    for n in range(layers + 1):
        at = f"model.layers.{n}"
        tensors += attention(f"{at}.self_attn", hidden, heads, kv, dim, "bf16", bias=True, normed=True)
        tensors += norms(at, hidden)
        if n == 0:
            tensors += mlp(f"{at}.mlp", hidden, dense, "bf16")
            continue
        tensors += [(f"{at}.mlp.gate.weight", "BF16", (experts, hidden))]
        tensors += [(f"{at}.mlp.gate.e_score_correction_bias", "F32", (experts,))]
        tensors += mlp(f"{at}.mlp.shared_experts", hidden, inner, "bf16")
        for e in range(experts):
            tensors += mlp(f"{at}.mlp.experts.{e}", hidden, inner, "bf16")
    at = f"model.layers.{layers}"
    tensors += [(f"{at}.eh_proj.weight", "BF16", (hidden, 2 * hidden))]
    return config, [*tensors, *norms(at, hidden, ("enorm", "hnorm"))]


CASES = {
    "llama-gqa": llama,
    "llama-mha": lambda: llama(kv=8),
    "qwen2-tied": lambda: llama(kind="qwen2", kv=1, tied=True, vocab=5000),
    "qwen3": lambda: llama(kind="qwen3", kv=4),
    "llama-fp8": lambda: llama("fp8"),
    "llama-fp8-block": lambda: llama("fp8-block"),
    "llama-awq": lambda: llama("awq"),
    "llama-gptq": lambda: llama("gptq"),
    "llama-int4": lambda: llama("int4"),
    "llama-int8": lambda: llama("int8"),
    "llama-nvfp4": lambda: llama("nvfp4"),
    "gemma3": gemma3,
    "qwen3-moe": qwen3_moe,
    "qwen3-moe-fp8-block": lambda: qwen3_moe("fp8-block"),
    "qwen3-moe-nvfp4": lambda: qwen3_moe("nvfp4"),
    "deepseek": deepseek,
    "deepseek-fp8-block": lambda: deepseek("fp8-block"),
    "mixtral": mixtral,
    "phi3": phi3,
    "minimax-m2": minimax_m2,
    "qwen2-moe": qwen2_moe,
    "mistral": mistral,
    "gemma2": gemma2,
    "glm4-moe": glm4_moe,
    "qwen3-5": qwen3_5,
    "qwen3-next": qwen3_next,
    "nemotron-h": nemotron_h,
    "nemotron-h-one-group": lambda: nemotron_h(groups=1),
}
