"""What each layer of a model keeps of a request on one rank, from the configuration.

Read in vLLM 0.32: attention/attention.py, attention/mla_attention.py, mamba/mamba_utils.py, models/config.py,
utils/torch_utils.py (resolve_kv_cache_dtype_string).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sparkd.sizing.architectures import Attention, Family, family_of
from sparkd.sizing.model import Checkpoint, Layout, Options
from sparkd.sizing.weights import stage_ends

TYPE_BYTES: Mapping[str, int] = {
    "float32": 4, "float": 4, "bfloat16": 2, "float16": 2, "half": 2, "fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1,
}  # fmt: skip
LAYERS_MAX = 10_000
"""More layers than this are a damaged configuration."""
_WINDOW_KINDS = frozenset({"sliding_attention"})
_STATE_KINDS = frozenset({"linear_attention"})


@dataclass(frozen=True, slots=True)
class Kept:
    """What one layer keeps: bytes for each token, within a window or not, or a state for each request."""

    token_bytes: int = 0
    window: int | None = None
    state_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Layers:
    """What the layers of the fullest rank keep, equal ones counted; `unknown` says why there is no answer.

    Attributes:
        counted: (what a layer keeps, how many such layers).
        dtype_bytes: bytes of one number of the cache.
        unknown: why it cannot be told; empty where it can.
    """

    counted: tuple[tuple[Kept, int], ...] = ()
    dtype_bytes: int = 2
    unknown: str = ""


@dataclass(frozen=True, slots=True)
class _Widths:
    """What one layer of each kind keeps on one rank."""

    attention: Kept
    window: int | None
    state: Kept


def layers_of(checkpoint: Checkpoint, layout: Layout, options: Options) -> Layers:
    """Return what the layers keep, or why that is unknown."""
    family = family_of(checkpoint.architecture)
    if family is None:
        named = checkpoint.architecture or "none named"
        return Layers(unknown=f"its architecture ({named}) is not one that sparkd knows")
    dtype = _cache_type(checkpoint, options)
    size = TYPE_BYTES.get(dtype)
    if size is None:
        return Layers(unknown=f"a KV cache of type {dtype} is not worked out")
    try:
        kinds = _kinds(checkpoint, family)
        widths = _Widths(
            _attention(checkpoint, family, layout, size),
            checkpoint.number("sliding_window"),
            _state(checkpoint, family, layout),
        )
    except _LackingError as lacking:
        return Layers(unknown=f"config.json does not say {lacking}")
    of_stages = [Counter(part) for part in _stages(kinds, layout.pipeline_parallel)]
    most = max(of_stages, key=lambda counts: sum(counts[kind] for kind in ("full", "window", "state")))
    counted = [(_kept(kind, widths), number) for kind, number in sorted(most.items()) if kind != "none"]
    return Layers(tuple(counted), size)


class _LackingError(Exception):
    """A number that the configuration must have is not there."""


def _number(checkpoint: Checkpoint, *names: str) -> int:
    value = checkpoint.number(*names)
    if value is None or value < 1:
        raise _LackingError(names[0])
    return value


def _cache_type(checkpoint: Checkpoint, options: Options) -> str:
    """`auto` is what the quantisation says of the cache, else the model's own type."""
    if options.kv_cache_dtype != "auto":
        return options.kv_cache_dtype
    scheme = checkpoint.scheme
    inner = scheme.get("quantization")
    tables: tuple[Mapping[str, Any], ...] = (scheme, inner) if isinstance(inner, dict) else (scheme,)
    for table in tables:
        said = table.get("kv_cache_quant_algo")
        given = table.get("kv_cache_scheme")
        if isinstance(said, str):
            return said.lower()
        if isinstance(given, dict):
            bits, kind = given.get("num_bits"), given.get("type")
            return "fp8" if (bits, kind) == (8, "float") else f"{kind}{bits}"
    return model_type(checkpoint)


def model_type(checkpoint: Checkpoint) -> str:
    """Return the type in which the model computes; vLLM computes what is stored as float32 in half of it."""
    for holder in (checkpoint.text, checkpoint.config):
        said = holder.get("dtype", holder.get("torch_dtype"))
        if isinstance(said, str):
            return "bfloat16" if said == "float32" else said
    return "bfloat16"


def _kinds(checkpoint: Checkpoint, family: Family) -> list[str]:
    """Return for each layer: full, window, state or none."""
    if family.attention is Attention.PATTERN:
        pattern = checkpoint.text.get("hybrid_override_pattern")
        if not isinstance(pattern, str):
            raise _LackingError("hybrid_override_pattern")
        return [{"M": "state", "*": "full"}.get(letter, "none") for letter in pattern]
    count = _number(checkpoint, "num_hidden_layers")
    if count > LAYERS_MAX:
        raise _LackingError("a credible num_hidden_layers")
    listed = checkpoint.text.get("layer_types")
    windowed = checkpoint.number("sliding_window") is not None and _window_used(checkpoint)
    if isinstance(listed, list) and len(listed) == count:
        return [_listed(str(kind), windowed=windowed) for kind in listed]
    if family.attention is Attention.DELTA:
        every = checkpoint.number("full_attention_interval") or 4
        return ["state" if (n + 1) % every else "full" for n in range(count)]
    if not windowed or family.attention is Attention.MLA:
        return ["full"] * count
    every = checkpoint.number("sliding_window_pattern") or family.window_every
    if every:
        return ["window" if (n + 1) % every else "full" for n in range(count)]
    return ["window" if family.window_always else "full"] * count


def _window_used(checkpoint: Checkpoint) -> bool:
    """Qwen's configurations carry a window that is switched off."""
    return checkpoint.text.get("use_sliding_window", True) is not False


def _listed(kind: str, *, windowed: bool) -> str:
    if kind in _STATE_KINDS:
        return "state"
    if kind in _WINDOW_KINDS:
        return "window" if windowed else "full"
    if kind != "full_attention":
        raise _LackingError(f"what a layer of type {kind} keeps")
    return "full"


def _stages(kinds: list[str], count: int) -> list[list[str]]:
    ends = stage_ends(len(kinds), count)
    return [kinds[start:end] for start, end in zip((0, *ends), ends, strict=False)]


def _kept(kind: str, widths: _Widths) -> Kept:
    if kind == "state":
        return widths.state
    if kind == "window":
        return Kept(widths.attention.token_bytes, widths.window)
    return widths.attention


def _attention(checkpoint: Checkpoint, family: Family, layout: Layout, size: int) -> Kept:
    """Where there are fewer KV heads than ranks, each rank keeps one whole head."""
    if family.attention is Attention.MLA:
        rank, rope = _number(checkpoint, "kv_lora_rank"), _number(checkpoint, "qk_rope_head_dim")
        return Kept((rank + rope) * size)
    heads = _number(checkpoint, "num_attention_heads")
    kv = checkpoint.number("num_key_value_heads") or heads
    dim = checkpoint.number("head_dim", "attention_head_dim")
    dim = dim or _number(checkpoint, "hidden_size") // heads
    return Kept(2 * max(1, kv // layout.tensor_parallel) * dim * size)


def _state(checkpoint: Checkpoint, family: Family, layout: Layout) -> Kept:
    """The convolution's last inputs and the recurrent state, each in its own type."""
    ranks = layout.tensor_parallel
    own = TYPE_BYTES.get(model_type(checkpoint), 2)
    said = checkpoint.text.get("mamba_ssm_cache_dtype", checkpoint.text.get("mamba_ssm_dtype"))
    recurrent = TYPE_BYTES.get(str(said), TYPE_BYTES.get(family.state_dtype, own))
    if family.attention is Attention.DELTA:
        keys = _number(checkpoint, "linear_num_key_heads") * _number(checkpoint, "linear_key_head_dim")
        heads, dim = (
            _number(checkpoint, "linear_num_value_heads"),
            _number(checkpoint, "linear_value_head_dim"),
        )
        width, rows = 2 * keys + heads * dim, _number(checkpoint, "linear_conv_kernel_dim") - 1
        numbers = heads * dim * _number(checkpoint, "linear_key_head_dim")
    elif family.attention is Attention.PATTERN:
        heads, dim = _number(checkpoint, "mamba_num_heads"), _number(checkpoint, "mamba_head_dim")
        groups, state = _number(checkpoint, "n_groups"), _number(checkpoint, "ssm_state_size")
        groups = groups if groups % ranks == 0 else ranks
        width, rows = heads * dim + 2 * groups * state, _number(checkpoint, "conv_kernel") - 1
        numbers = heads * dim * state
    else:
        return Kept()
    return Kept(state_bytes=width // ranks * rows * own + numbers // ranks * recurrent)
