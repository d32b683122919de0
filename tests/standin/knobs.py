"""Knobs: what the stand-in pretends, read from the environment. README.md explains each."""

import json
import os
from dataclasses import dataclass, field
from typing import Any

GIB = 1 << 30
PREFIX = "SPARKD_STANDIN_"

# Seconds a phase takes at speed 1; a whole start is about two of them.
PHASE_SECONDS = {
    "resolving_config": 0.05,
    "init_distributed": 0.1,
    "loading_weights": 0.6,
    "compiling": 0.3,
    "profiling": 0.15,
    "allocating_kv_cache": 0.05,
    "capturing_graphs": 0.3,
    "starting_api": 0.05,
    "forming": 0.1,
}


@dataclass(frozen=True)
class Knobs:
    speed: float = 1.0
    phase_delays: dict[str, float] = field(default_factory=dict)
    token_interval_s: float = 0.01
    shards: int = 39
    memory_total_bytes: int = 128_526_899_773  # 119.70 GiB, as Ray prints it for a 128 GB node
    memory_used_bytes: int = 6 * GIB
    gpu_total_bytes: int = 128_526_899_773
    weights_bytes: int = 55 * GIB
    activation_bytes: int = 3 * GIB
    graphs_bytes: int = int(1.25 * GIB)
    kv_bytes_per_token: int = 98_304
    model_max_len: int = 32_768
    architecture: str = "Qwen3ForCausalLM"
    unsupported_architectures: tuple[str, ...] = ("FooBarForCausalLM",)
    weights_mib: int = 4
    kv_scale: int = 16_384
    raylet_loss_s: float = 0.5
    driver_loss_s: float = 0.2
    log_hold_s: float = 1.0
    ray_version: str = "2.60.0"
    vllm_version: str = "0.32.0"
    generation: int = 0

    def seconds(self, phase: str) -> float:
        return (PHASE_SECONDS[phase] + self.phase_delays.get(phase, 0.0)) / self.speed


def _convert(kind: Any, text: str) -> Any:
    if kind in {"int", int}:
        return int(float(text))
    if kind in {"float", float}:
        return float(text)
    if "dict" in str(kind):
        return json.loads(text)
    if "tuple" in str(kind):
        return tuple(text.split(","))
    return text


def read() -> Knobs:
    """The knobs of this process; an unknown SPARKD_STANDIN_ name is an error: it would be a typo."""
    kinds = {name: item.type for name, item in Knobs.__dataclass_fields__.items()}
    values = {}
    for variable, text in os.environ.items():
        if not variable.startswith(PREFIX):
            continue
        name = variable[len(PREFIX) :].lower()
        if name in {"python", "faults"}:
            continue
        if name not in kinds:
            raise SystemExit(f"stand-in: no such knob: {variable}")
        values[name] = _convert(kinds[name], text)
    return Knobs(**values)


def ray_setting(name: str, default: float) -> float:
    """One of Ray's own settings, from the environment that Ray reads."""
    return float(os.environ.get("RAY_" + name, default))
