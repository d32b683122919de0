"""The architectures whose sharding is known, as vLLM 0.32's own model files build them.

An architecture that is not here is unknown: its weights get bounds, its KV cache no number. Add one after
reading vLLM's file for it, with a checkpoint in tests/sizing/checkpoints.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class Attention(StrEnum):
    """What the layers of an architecture keep of a request."""

    PLAIN = "plain"  # keys and values of each KV head; some layers may see a window only
    MLA = "mla"  # one low-rank vector a token, the same on every rank
    DELTA = "delta"  # gated delta net (a state a request) with a layer of plain attention now and then
    PATTERN = "pattern"  # Mamba 2, attention and MLP by the letters of a pattern


@dataclass(frozen=True, slots=True)
class Family:
    """What an architecture has beside the rules that all share.

    Attributes:
        attention: what its layers keep.
        window_every: of a pattern of so many layers the last one sees everything, where the configuration
            does not list the layers; 0 = no layer has a window then.
        window_always: `sliding_window` counts for every layer without a list, too.
        vision: it may carry a vision tower that vLLM splits over the ranks.
        state_dtype: type of the recurrent state, by default the model's.
    """

    attention: Attention = Attention.PLAIN
    window_every: int = 0
    window_always: bool = False
    vision: bool = False
    state_dtype: str = ""


_PLAIN = Family()
_DELTA_VISION = Family(Attention.DELTA, vision=True)
KNOWN: Mapping[str, Family] = {
    "LlamaForCausalLM": _PLAIN,
    "MistralForCausalLM": Family(window_always=True),
    "MixtralForCausalLM": Family(window_always=True),
    "Qwen2ForCausalLM": _PLAIN,
    "Qwen2MoeForCausalLM": _PLAIN,
    "Qwen3ForCausalLM": _PLAIN,
    "Qwen3MoeForCausalLM": _PLAIN,
    "Qwen3VLForConditionalGeneration": Family(vision=True),
    "Qwen3VLMoeForConditionalGeneration": Family(vision=True),
    "Glm4MoeForCausalLM": _PLAIN,
    "MiniMaxM2ForCausalLM": _PLAIN,
    "Phi3ForCausalLM": _PLAIN,
    "Gemma2ForCausalLM": Family(window_every=2),
    "Gemma3ForCausalLM": Family(window_every=6),
    "DeepseekV2ForCausalLM": Family(Attention.MLA),
    "DeepseekV3ForCausalLM": Family(Attention.MLA),
    "Qwen3NextForCausalLM": Family(Attention.DELTA),
    "Qwen3_5ForCausalLM": Family(Attention.DELTA),
    "Qwen3_5MoeForCausalLM": Family(Attention.DELTA),
    "Qwen3_5ForConditionalGeneration": _DELTA_VISION,
    "Qwen3_5MoeForConditionalGeneration": _DELTA_VISION,
    "NemotronHForCausalLM": Family(Attention.PATTERN, state_dtype="float32"),
}


def family_of(architecture: str) -> Family | None:
    """Return what is known of an architecture, None = unknown."""
    return KNOWN.get(architecture)
