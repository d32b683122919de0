"""Amounts that no header tells: typical values, each with its source. What was measured replaces them.

The memory ladder (`core.spikes`) takes those that it uses, too, from here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from sparkd.words import GIB, CudaGraph

if TYPE_CHECKING:  # the ladder takes amounts from here and reads no checkpoint
    from sparkd.sizing.model import Checkpoint

SYSTEM_BYTES = int(2.5 * GIB)
"""What an otherwise idle node holds where nobody measured it: system, driver, page tables. A node that was
just booted is better asked: 8 to 9 GiB more are reported for some driver and kernel pairs
(MiaAI-Lab/GLM-5.3-Flash-EXL3-2x-DGX-Sparks#47)."""

RAY_BYTES = int(1.5 * GIB)
"""Ray's GCS, raylet, dashboard and agents on the head: 1 to 2 GiB (runtime facts: processes of an idle
cluster)."""

ENGINE_BYTES = 3 * GIB
"""The API server, engine core and worker of vLLM before the weights: 2 to 3 GiB; 5.6 GiB with Ray's are
reported on a Spark (MiaAI-Lab/GLM-5.3-Flash-EXL3-2x-DGX-Sparks#118)."""

START_LEAST_BYTES = GIB
"""What no start of vLLM does with less, whatever it serves: its three processes held 1.2 GiB of their own
before any weight (measured, 0.32, CPU build; with CUDA it is more)."""

HOST_BYTES = RAY_BYTES + ENGINE_BYTES
"""Both together."""

BESIDE_BYTES = int(2.2 * GIB)
"""CUDA context, NCCL, workspaces: 0.2 to 3.6 GiB of "non_torch_memory" (vllm#10511, #14447). Without NCCL and
attention 0.7 GiB were measured on an H200: torch 2.11's context 0.6, cuBLAS 0.1."""

CPU_ENGINE_BYTES = 1215 << 20
"""The same three processes of the CPU build before the weights, in memory of their own: 426 MiB the API
server, 396 the engine core, 393 a worker (measured, 0.32, x86-64; the same for models of 28 and 264 MiB)."""

CPU_WORKER_BYTES = (393 + 145) << 20
"""What the worker's process of the CPU build has resident beside the weights: 145 MiB of it libraries' pages
(measured, as above). vLLM takes it off its share (v1/worker/cpu_worker.py, determine_available_memory)."""

CPU_LATE_BYTES = 25 << 20
"""Growth of these processes from the cache's allocation until they serve: 24 to 26 MiB (as above)."""

GRAPHS_BYTES: Mapping[CudaGraph, int] = {
    CudaGraph.FULL: int(1.4 * GIB),
    CudaGraph.PIECEWISE: int(0.8 * GIB),
    CudaGraph.REDUCED: int(0.3 * GIB),
    CudaGraph.NONE: 0,
}
"""Pools of 0.4 GiB (16 sizes, gpustack/runner#251), 1.7 GiB (GB10, AEON-7/vllm-ultimate-dgx-spark#9) and 8.4
GiB (vllm#49475) are reported."""

GRAPHS_BEYOND = 0.5
"""Graphs above what vLLM set aside for them, on top of its share, as a share of it (vllm#57475; measured 0.27
of 0.32 GiB)."""

LATE_BYTES = int(2.2 * GIB)
"""Growth of the host's processes and the sampler's warm-up from the cache's allocation until it serves."""

LATE_DEVICE_BYTES = int(0.4 * GIB)
"""The same on a discrete GPU, where the host's growth is elsewhere: 1.4 GiB beyond the share, graphs and all
(vllm#51590)."""

DEVICE_USED_BYTES = GIB // 2
"""What a discrete GPU holds before vLLM starts."""

DEVICE_RESERVE_BYTES = GIB // 2
"""What the driver keeps of a discrete GPU's memory: 0.6 of 140 GiB on an H200 (NVML calls it reserved; it is
not in CUDA's total)."""

RAY_CEILING = 0.98
"""Nobody guards the node: what is left above it is the kernel's."""

NOISE_BYTES = int(0.4 * GIB)
"""How much free memory differs from start to start (101.3 to 102.2 GiB over fresh boots:
GLM-5.3-Flash-EXL3-2x-DGX-Sparks#47)."""

DEFAULT_BATCHED_TOKENS, DEFAULT_SEQS = 2048, 256
"""vLLM's defaults for the API server where the device's memory size is unknown (engine/arg_utils.py): NVML
does not tell it on GB10."""

LOGIT_BYTES = 40
"""The sampler's peak for each request and word of the vocabulary: logits in float32, probabilities, sorted
copies, indices. Llama 3 8B with 256 requests: 1.26 GiB with one rank and with two (vllm#10511); 1.7 GiB with
256 requests, 1.1 with 128 or 1 (vllm#9003)."""

STEP_FLOOR_BYTES = GIB // 8
"""Below this a step's peak is the allocator's granularity."""


def step_bytes(
    checkpoint: Checkpoint,
    tokens: int,
    requests: int,
    ranks: int,
    *,
    floor: int = STEP_FLOOR_BYTES,
    halves: int = 3,
) -> int | None:
    """Return a step's activation peak: the widest moment of a layer, or the sampler's; None = unknown.

    Estimated as what lives at once in 16 bits: the residual stream twice with a copy of each, and the outputs
    of an MLP's first half with its product; for experts these of all chosen experts. 0.9 GiB for Llama 3 8B
    at 8192 tokens, of 1.1 read (vllm#9003). *halves*: how many times the MLP's width lives at once: both
    outputs of the first half and the product, and one more where the activation has no kernel of its own.
    """
    hidden, vocabulary = checkpoint.number("hidden_size"), checkpoint.number("vocab_size")
    if hidden is None or vocabulary is None:
        return None
    dense = halves * (checkpoint.number("intermediate_size") or 4 * hidden) // ranks
    chosen = checkpoint.number("num_experts_per_tok", "num_experts_per_token", "top_k_experts")
    inner = checkpoint.number("moe_intermediate_size")
    routed = 0 if not chosen or not inner else chosen * (max(2 * inner // ranks, hidden) + inner // ranks)
    layer = tokens * (4 * hidden + max(dense, routed)) * 2
    return max(layer, requests * vocabulary * LOGIT_BYTES, floor)
