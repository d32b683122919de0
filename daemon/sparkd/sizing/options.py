"""What further arguments of `vllm serve`, and the engine's environment, change about memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from sparkd.sizing.model import Options

GRAPHS_ESTIMATE = "VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS"
_SWITCHES = ("--enable-expert-parallel", "-ep")
_STRATEGIES = ("lazy", "eager", "prefetch")
NOT_WORKED_OUT = (
    "--cpu-offload-gb", "--kv-offloading-size", "--enable-lora", "--lora-modules", "--quantization", "-q",
    "--dtype", "--data-parallel-size", "-dp", "--decode-context-parallel-size", "-dcp",
    "--prefill-context-parallel-size", "--num-gpu-blocks-override", "--compilation-config", "-cc", "-O",
    "--load-format", "--mamba-ssm-cache-dtype", "--mamba-cache-dtype", "--hf-overrides",
    "--mm-encoder-tp-mode", "--enable-eplb", "--offload-group-size", "--max-cudagraph-capture-size",
    "--speculative-config", "--speculative-model",
)  # fmt: skip


def options_of(extra_args: Sequence[str], env: Mapping[str, str]) -> Options:
    """Return what the arguments and the environment say; what is not understood is named, not guessed."""
    given = _pairs(extra_args)
    options = Options(
        kv_cache_dtype=given.get("--kv-cache-dtype", "auto"),
        expert_parallel=any(name in given for name in _SWITCHES),
        speculative=any(name.startswith("--speculative") for name in given),
        unknown=tuple(sorted(name for name in given if name.split(".")[0] in NOT_WORKED_OUT)),
    )
    block = given.get("--block-size", "")
    if block.isdecimal() and int(block):
        options = replace(options, block_size=int(block))
    strategy = given.get("--safetensors-load-strategy", "auto")
    if strategy in _STRATEGIES:
        options = replace(options, load_strategy=strategy)
    estimate = env.get(GRAPHS_ESTIMATE)
    return (
        options if estimate is None else replace(options, estimate_graphs=estimate.strip() not in {"0", ""})
    )


def _pairs(arguments: Sequence[str]) -> dict[str, str]:
    """Return option -> value; vLLM takes `_` for `-` in their names, and `=` or a blank before the value."""
    pairs: dict[str, str] = {}
    name = ""
    for argument in arguments:
        if argument.startswith("-") and not argument.lstrip("-")[:1].isdecimal():
            spelt, _, value = argument.partition("=")
            name = spelt.replace("_", "-")
            pairs[name] = value
        elif name and not pairs[name]:
            pairs[name] = argument
    return pairs
