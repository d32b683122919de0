"""What typically is needed where nothing was measured: amounts with their sources, nothing else.

Typical is not certain: they are used where no evidence of this model on this node says better, and count
double once a settings change that was based on them did not suffice. Sources are public reports (repository
and number) or what was measured for sparkd (runtime-facts); none comes from the benchmark's world.
"""

from __future__ import annotations

from sparkd.words import GIB, CudaGraph, Phase, Settings

HOST_BYTES = int(4.5 * GIB)
"""What Ray and vLLM hold on the node before vLLM's first snapshot, outside its accounting: Ray with
dashboard 1 to 2 GiB, API server, engine core and worker 2 to 3 GiB (runtime-facts §1, §3); 5.6 GiB is
reported on a Spark (MiaAI-Lab/GLM-5.3-Flash-EXL3-2x-DGX-Sparks#118)."""

LATE_BYTES = int(2.2 * GIB)
"""What an engine takes on a unified node after its cache was sized, beside the graphs: the sampler's warm-up,
growth of the host processes while they start and serve."""

LATE_DEVICE_BYTES = int(0.4 * GIB)
"""The same on a discrete GPU, where the host's growth is elsewhere: 1.4 GiB, graphs and all, at 0.95 of 31
GiB (vllm#51590)."""

GRAPHS_BEYOND = 0.5
"""What graphs take above their estimate, as a share of it (vllm#57475; measured 0.27 of 0.32 GiB)."""

LEAST_REST_BYTES = GIB
"""What surely still comes after a reading, where a projection says the rest."""

BESIDE_WEIGHTS_BYTES = int(2.2 * GIB)
"""What vLLM finds in use beside weights, activations and graphs: CUDA context, NCCL, workspaces; on unified
memory the host's growth meanwhile. 0.2 to 3.6 GiB of "non_torch_memory" (vllm#10511, #14447)."""

STEP_BYTES = GIB // 2
STEP_BYTES_PER_TOKEN = int(0.2 * GIB) // 1024
"""A step's typical activation peak: 1.26 GiB at 8192 tokens (Llama 3 8B, vllm#10511), more in larger
models."""

STEP_BYTES_MAX = 5 * GIB
"""Above it a step's peak is an outlier, which no table foretells (36 GiB: vllm#12126)."""

GRAPHS_BYTES = {
    CudaGraph.FULL: int(1.4 * GIB),
    CudaGraph.PIECEWISE: int(0.8 * GIB),
    CudaGraph.REDUCED: int(0.3 * GIB),
    CudaGraph.NONE: 0,
}
"""Pools of 0.4 GiB (16 sizes, gpustack/runner#251), 1.7 GiB (GB10, AEON-7/vllm-ultimate-dgx-spark#9) and 8.4
GiB (vllm#49475) are reported; between the modes by the number of graphs."""

SURE_GRAPHS_BYTES = {
    CudaGraph.PIECEWISE: int(0.3 * GIB),
    CudaGraph.REDUCED: int(0.4 * GIB),
    CudaGraph.NONE: int(0.15 * GIB),
}
"""What going down *to* a mode surely frees: about half of the difference above."""

SURE_BYTES_PER_TOKEN = int(0.07 * GIB) // 1024
"""What a token less in a step surely frees: about a third of `STEP_BYTES_PER_TOKEN`; 0.37 GiB a step is
reported for a quantised model (vllm#14447)."""

NOISE_BYTES = int(0.4 * GIB)
"""How much the memory that vLLM finds differs from start to start on unified memory: its frees are
system-wide (runtime-facts §4; 101.3 to 102.2 GiB over fresh boots: GLM-5.3-Flash-EXL3-2x-DGX-Sparks#47)."""

DEVICE_USED_BYTES = GIB // 2
"""What a discrete GPU holds before vLLM starts: other processes, a display."""

DEVICE_RESERVE_BYTES = GIB // 2
"""What the driver keeps of a discrete GPU's memory."""

DEFAULT_BATCHED_TOKENS = 2048
"""vLLM 0.32's default for the API server where the device's memory size is unknown (engine/arg_utils.py)."""

REST: dict[Phase, tuple[float, float]] = {
    Phase.ALLOCATING_KV_CACHE: (1.8, 0.7),
    Phase.CAPTURING_GRAPHS: (1.8, 0.7),
    Phase.STARTING_API: (1.6, 0.6),
    Phase.VERIFYING: (1.6, 0.6),
    Phase.SERVING: (1.6, 0.6),
}
REST_OTHER = (2.0, 0.0)
REST_DEVICE: dict[Phase, tuple[float, float]] = {
    Phase.ALLOCATING_KV_CACHE: (1.0, 0.3),
    Phase.CAPTURING_GRAPHS: (0.8, 0.3),
}
REST_DEVICE_OTHER = (0.5, 0.2)
"""What still comes after a reading in a phase until the engine serves under load: GiB (graphs, growth, as
above), and a share of a step's peak. A discrete GPU lacks the host's part; there 16 MiB were missing
(vllm#57475)."""

CERTAINTY_SHARE, CERTAINTY_MAX = 0.055, 2.5
"""What is added to be sure: this share of the KV cache, at most so many times what typically comes. A
relaunch costs a load of minutes; of a large cache the certainty costs little, of a small one it would cost
the cache."""


def step_bytes(settings: Settings) -> int:
    """Return what a step of full size typically takes."""
    tokens = settings.max_num_batched_tokens or DEFAULT_BATCHED_TOKENS
    return STEP_BYTES + tokens * STEP_BYTES_PER_TOKEN


def transient_bytes(settings: Settings) -> int:
    """Return what a step and the graphs typically take."""
    return step_bytes(settings) + GRAPHS_BYTES[settings.cudagraph]


def certainty_bytes(kv_cache_bytes: int | None, typical: int) -> int:
    """Return what is added to *typical* to be sure."""
    return max(0, min(int(CERTAINTY_SHARE * (kv_cache_bytes or 0)), int(CERTAINTY_MAX * typical)))


def rest_bytes(phase: Phase | None, settings: Settings, *, unified: bool) -> int:
    """Return what typically still comes after a reading in *phase*."""
    table, other = (REST, REST_OTHER) if unified else (REST_DEVICE, REST_DEVICE_OTHER)
    fixed, of_step = table.get(phase or Phase.IDLE, other)
    return int(fixed * GIB + of_step * min(step_bytes(settings), STEP_BYTES_MAX))


def sure_bytes(before: Settings, after: Settings) -> int:
    """Return what going from *before* to *after* surely frees of steps and graphs."""
    if before.cudagraph is not after.cudagraph:
        return SURE_GRAPHS_BYTES[after.cudagraph]
    tokens = before.max_num_batched_tokens or DEFAULT_BATCHED_TOKENS
    return (tokens - (after.max_num_batched_tokens or tokens)) * SURE_BYTES_PER_TOKEN
