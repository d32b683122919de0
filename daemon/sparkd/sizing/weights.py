"""Weights of one rank: which tensors vLLM splits over the ranks, and which every rank holds whole.

The rules follow the last names of a tensor, since vLLM's own layers (column, row, vocabulary, experts) are
the same in every architecture of `architectures.KNOWN`. A tensor that no rule places is told apart and
counted whole: a bound, not a fact. Read in vLLM 0.32: layers/linear.py, vocab_parallel_embedding.py,
fused_moe, mamba_mixer2.py, attention/mla_attention.py, distributed/utils.py (stages).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from sparkd.sizing.architectures import Attention, Family, family_of
from sparkd.sizing.model import ITEM_BYTES, Checkpoint, Layout, Options, Tensor

VOCABULARY_PAD = 64
"""vLLM pads the vocabulary to a multiple of this before it splits it (DEFAULT_VOCAB_PADDING_SIZE)."""

COLUMN = frozenset({
    "q_proj", "gate_proj", "up_proj", "gate_up_proj", "q_b_proj", "kv_b_proj", "w1", "w3", "fc1",
    "linear_fc1", "qkv", "in_proj_qkvz", "in_proj_ba", "in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a",
})  # fmt: skip
ROW = frozenset({"o_proj", "down_proj", "out_proj", "w2", "fc2", "linear_fc2"})
HEADS = frozenset({"k_proj", "v_proj"})
MAMBA = frozenset({"in_proj", "conv1d"})
BY_HEAD = frozenset({"A_log", "D", "dt_bias", "sinks"})
WHOLE = frozenset({
    "gate", "router", "q_a_proj", "kv_a_proj_with_mqa", "shared_expert_gate", "e_score_correction_bias",
})  # fmt: skip
VOCABULARY = frozenset({"embed_tokens", "embeddings", "lm_head"})
_SCALARS = frozenset({"weight_scale_2", "input_scale", "weight_global_scale", "input_global_scale"})
_ORDER = frozenset({"g_idx", "weight_g_idx"})
_CACHE_SCALES = frozenset({"k_scale", "v_scale", "q_scale"})
_PACKED = frozenset({"qweight", "weight_packed"})
_INPUT_FIRST = frozenset({"qweight", "qzeros", "scales"})
_LEAVES = _SCALARS | _ORDER | _CACHE_SCALES | _INPUT_FIRST | {
    "weight", "bias", "weight_scale", "weight_scale_inv", "weight_packed", "weight_shape",
    "weight_zero_point",
}  # fmt: skip
_LAYER = re.compile(r"(?:^|\.)layers\.(\d+)\.")
_EXPERT = re.compile(r"\.experts\.(?:(\d+)\.)?")
_FUSED = re.compile(r"^(gate_up_proj|down_proj)(_blocks|_scales|_bias|_scale_inv|)$")
_VISION = re.compile(r"(?:^|\.)(?:visual|vision_tower|vision_model)\.")


@dataclass(frozen=True, slots=True)
class Weights:
    """Weights of the fullest rank, in bytes.

    Attributes:
        bytes: what one rank holds at most; where `exact` is false an upper bound.
        least_bytes: the lower bound.
        split_bytes, whole_bytes: of it: split over the ranks, held by every rank.
        derived_bytes: of it: what vLLM makes from the weights and keeps beside them (MLA).
        layer_bytes: the largest layer of a rank.
        unplaced: tensors that no rule places; empty where `exact`.
        refusal: why vLLM would refuse this split, empty where it would not.
    """

    bytes: int
    least_bytes: int
    split_bytes: int = 0
    whole_bytes: int = 0
    derived_bytes: int = 0
    layer_bytes: int = 0
    unplaced: tuple[str, ...] = ()
    refusal: str = ""

    @property
    def exact(self) -> bool:
        """Whether every tensor was placed by a rule."""
        return not self.unplaced


@dataclass(frozen=True, slots=True)
class _Split:
    """What the rules need to know of the model."""

    checkpoint: Checkpoint
    family: Family
    ranks: int
    experts: int
    per_rank_experts: int | None
    kv_heads: int
    group_rows: int
    tied: bool


def weights_of(checkpoint: Checkpoint, layout: Layout, options: Options) -> Weights:
    """Return the weights of the fullest rank; of an unknown architecture only bounds, with the reason."""
    loaded = [tensor for tensor in checkpoint.tensors if _is_loaded(tensor, checkpoint, options)]
    family = family_of(checkpoint.architecture)
    if family is None:
        return _bounds(checkpoint, loaded, layout)
    split = _split(checkpoint, family, layout, options)
    stages = _stages(loaded, checkpoint, layout.pipeline_parallel)
    refusal = _refusal(checkpoint, split)
    found = [_stage(stage, split, refusal) for stage in stages]
    return max(found, key=lambda weights: weights.bytes)


def _bounds(checkpoint: Checkpoint, loaded: list[Tensor], layout: Layout) -> Weights:
    total = sum(tensor.bytes for tensor in loaded)
    ranks = layout.tensor_parallel * layout.pipeline_parallel
    if ranks == 1:
        return Weights(total, total, whole_bytes=total)
    return Weights(total, total // ranks, unplaced=(checkpoint.architecture or "no architecture named",))


def _split(checkpoint: Checkpoint, family: Family, layout: Layout, options: Options) -> _Split:
    experts = checkpoint.number("num_experts", "n_routed_experts", "num_local_experts") or 0
    ranks = layout.tensor_parallel
    groups, state = checkpoint.number("n_groups") or 1, checkpoint.number("ssm_state_size") or 0
    return _Split(
        checkpoint=checkpoint,
        family=family,
        ranks=ranks,
        experts=experts,
        per_rank_experts=-(-experts // ranks) if options.expert_parallel and experts else None,
        kv_heads=checkpoint.number("num_key_value_heads", "num_attention_heads") or 1,
        group_rows=2 * groups * state if groups % ranks else 0,
        tied=bool(checkpoint.text.get("tie_word_embeddings", checkpoint.config.get("tie_word_embeddings"))),
    )


def _is_loaded(tensor: Tensor, checkpoint: Checkpoint, options: Options) -> bool:
    """Layers that predict several tokens come after the last layer, or under their own name."""
    if tensor.name.endswith("rotary_emb.inv_freq"):
        return False
    if options.speculative:
        return True
    layer, layers = _LAYER.search(tensor.name), checkpoint.number("num_hidden_layers")
    beyond = layer is not None and layers is not None and int(layer[1]) >= layers
    return not (beyond or tensor.name.startswith("mtp."))


def _stages(tensors: list[Tensor], checkpoint: Checkpoint, count: int) -> list[list[Tensor]]:
    """Return the tensors of each pipeline stage: layers in turn, the rest on the first and the last."""
    if count == 1:
        return [tensors]
    ends = stage_ends(checkpoint.number("num_hidden_layers") or 0, count)
    stages: list[list[Tensor]] = [[] for _ in range(count)]
    for tensor in tensors:
        layer = _LAYER.search(tensor.name)
        if layer is not None and not _VISION.search(tensor.name):
            stages[next((n for n, end in enumerate(ends) if int(layer[1]) < end), count - 1)].append(tensor)
            continue
        last = tensor.name.split(".")[-2:-1] in (["lm_head"], ["norm"], ["norm_f"])
        stages[-1 if last else 0].append(tensor)
    return stages


def stage_ends(layers: int, count: int) -> tuple[int, ...]:
    """Return where each pipeline stage ends: what is left over goes to the stages before the last."""
    sizes = [layers // count] * count
    for n in range(2, layers % count + 2):
        sizes[-n] += 1
    return tuple(sum(sizes[: n + 1]) for n in range(count))


def _refusal(checkpoint: Checkpoint, split: _Split) -> str:
    heads = checkpoint.number("num_attention_heads")
    if heads is not None and heads % split.ranks:
        return f"{heads} attention heads cannot be split over {split.ranks} ranks"
    larger, smaller = max(split.kv_heads, split.ranks), min(split.kv_heads, split.ranks)
    if split.family.attention is not Attention.MLA and larger % smaller:
        return f"{split.kv_heads} KV heads cannot be spread over {split.ranks} ranks"
    return ""


def _stage(tensors: Iterable[Tensor], split: _Split, refusal: str) -> Weights:
    total = {"split": 0, "whole": 0, "unplaced": 0}
    layers: dict[str, int] = {}
    unplaced = []
    derived = 0
    for tensor in tensors:
        kind, size = _placed(tensor, split)
        total[kind] += size
        if kind == "unplaced":
            unplaced.append(tensor.name)
        layer = _LAYER.search(tensor.name)
        layers[layer[1] if layer else ""] = layers.get(layer[1] if layer else "", 0) + size
        derived += _derived(tensor, split)
    most = sum(total.values()) + derived
    return Weights(
        bytes=most,
        least_bytes=most - total["unplaced"] + total["unplaced"] // split.ranks,
        split_bytes=total["split"],
        whole_bytes=total["whole"],
        derived_bytes=derived,
        layer_bytes=max((size for layer, size in layers.items() if layer), default=0),
        unplaced=tuple(unplaced),
        refusal=refusal,
    )


def _placed(tensor: Tensor, split: _Split) -> tuple[str, int]:
    """Return whether a tensor is split, whole or unplaced, and its bytes on one rank."""
    if _VISION.search(tensor.name) and not split.family.vision:
        return "unplaced", tensor.bytes
    expert = _EXPERT.search(tensor.name)
    if expert is not None:
        return _of_experts(tensor, tensor.name[expert.end() :], split)
    module, leaf = _ends(tensor.name)
    if module in VOCABULARY:
        return _of_vocabulary(tensor, module, leaf, split)
    if module in WHOLE or "norm" in module or leaf in _CACHE_SCALES:
        return _of_whole(tensor, module, leaf, split)
    if module in MAMBA and split.family.attention is not Attention.PLAIN:
        return _column(tensor, leaf, split.ranks, split.group_rows)
    if module in HEADS and split.family.attention is not Attention.MLA:
        return _column(tensor, leaf, min(split.ranks, split.kv_heads))
    if module == "qkv_proj":
        return _packed(tensor, split)
    if module in COLUMN or module in BY_HEAD:
        return _column(tensor, leaf, split.ranks)
    if module in ROW or ".attn.proj." in tensor.name:
        return _row(tensor, leaf, split.ranks)
    return ("whole" if _VISION.search(tensor.name) else "unplaced"), tensor.bytes


def _ends(name: str) -> tuple[str, str]:
    """Return the module and the parameter of a name; parameters without a module are their own."""
    *path, last = name.split(".")
    if last in _LEAVES:
        return (path[-1] if path else "", last)
    return (last, "")


def _of_whole(tensor: Tensor, module: str, leaf: str, split: _Split) -> tuple[str, int]:
    """The gated norm of Mamba 2 is as wide as the heads of a rank; every other norm is whole."""
    inner = (split.checkpoint.number("mamba_num_heads") or 0) * (
        split.checkpoint.number("mamba_head_dim") or 0
    )
    gated = split.family.attention is Attention.PATTERN and module == "norm" and leaf == "weight"
    if gated and inner and tensor.shape == (inner,) and ".mixer." in tensor.name:
        return _share(tensor, split.ranks, 0, 0)
    return "whole", tensor.bytes


def _of_vocabulary(tensor: Tensor, module: str, leaf: str, split: _Split) -> tuple[str, int]:
    if module == "lm_head" and split.tied:
        return "whole", 0
    if leaf != "weight" or len(tensor.shape) != 2:
        return _column(tensor, leaf, split.ranks)
    rows, width = tensor.shape
    padded = -(-rows // VOCABULARY_PAD) * VOCABULARY_PAD
    return "split", int(-(-padded // split.ranks) * width * ITEM_BYTES[tensor.dtype])


def _of_experts(tensor: Tensor, rest: str, split: _Split) -> tuple[str, int]:
    """Whole experts on each rank, or a slice of each; experts may be apart or fused in one tensor."""
    if split.per_rank_experts is not None:
        return "split", tensor.bytes * split.per_rank_experts // split.experts
    fused = _FUSED.match(rest)
    if fused is not None:
        row_bias = fused[1] == "down_proj" and fused[2] == "_bias"
        return ("whole", tensor.bytes) if row_bias else ("split", tensor.bytes // split.ranks)
    module, leaf = _ends(rest)
    if module in COLUMN:
        return _column(tensor, leaf, split.ranks)
    return _row(tensor, leaf, split.ranks) if module in ROW else ("unplaced", tensor.bytes)


def _column(tensor: Tensor, leaf: str, ranks: int, kept_rows: int = 0) -> tuple[str, int]:
    """Split along the outputs; scalars and the order of the inputs stay whole."""
    if not tensor.shape or leaf in _ORDER | _SCALARS | {"weight_shape"} or max(tensor.shape) == 1:
        return "whole", tensor.bytes
    return _share(tensor, ranks, kept_rows, -1 if leaf in _INPUT_FIRST else 0)


def _row(tensor: Tensor, leaf: str, ranks: int) -> tuple[str, int]:
    """Split along the inputs; what belongs to the outputs (bias, scales of a channel) stays whole."""
    if leaf in _ORDER:
        return _share(tensor, ranks, 0, 0)
    axis = 0 if leaf in _INPUT_FIRST else -1
    if len(tensor.shape) < 2 or tensor.shape[axis] == 1 or leaf == "weight_shape":
        return "whole", tensor.bytes
    return _share(tensor, ranks, 0, axis)


def _share(tensor: Tensor, ranks: int, kept_rows: int, axis: int) -> tuple[str, int]:
    """Return one rank's share along an axis, rounded up; *kept_rows* of it are on every rank."""
    if not tensor.shape:
        return "whole", tensor.bytes
    extent = tensor.shape[axis]
    kept = min(kept_rows, extent)
    return "split", tensor.bytes // extent * (-(-(extent - kept) // ranks) + kept) if extent else 0


def _packed(tensor: Tensor, split: _Split) -> tuple[str, int]:
    """Queries, keys and values in one tensor: only the queries are always split over all ranks."""
    heads = split.checkpoint.number("num_attention_heads") or 1
    rows = heads + 2 * split.kv_heads
    own = heads // split.ranks + 2 * max(1, split.kv_heads // split.ranks)
    return "split", tensor.bytes * own // rows


def _derived(tensor: Tensor, split: _Split) -> int:
    """MLA keeps a quantised kv_b_proj a second time, in the model's own type; of a plain one only views."""
    module, leaf = _ends(tensor.name)
    quantised = leaf in _PACKED or (leaf == "weight" and ITEM_BYTES[tensor.dtype] < 2)
    if split.family.attention is not Attention.MLA or module != "kv_b_proj" or not quantised:
        return 0
    number = split.checkpoint.number
    width = (number("qk_nope_head_dim") or 0) + (number("v_head_dim") or 0)
    rank, heads = number("kv_lora_rank") or 0, number("num_attention_heads") or 0
    return 2 * width * rank * (heads // split.ranks)
