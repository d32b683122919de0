"""What typically is needed where nothing was measured: amounts with their sources, nothing else.

Typical is not certain: they are used where no evidence of this model on this node says better, and count
double once a settings change that was based on them did not suffice. Sources are public reports (repository
and number) or what was measured for sparkd (runtime-facts); none comes from the benchmark's world.
"""

from __future__ import annotations

from sparkd.sizing.declared import BESIDE_BYTES as BESIDE_WEIGHTS_BYTES
from sparkd.sizing.declared import (
    DEFAULT_BATCHED_TOKENS,
    DEFAULT_SEQS,
    DEVICE_RESERVE_BYTES,
    DEVICE_USED_BYTES,
    GRAPHS_BEYOND,
    GRAPHS_BYTES,
    HOST_BYTES,
    LATE_BYTES,
    LATE_DEVICE_BYTES,
    NOISE_BYTES,
)
from sparkd.words import GIB, CudaGraph, Phase, Settings

__all__ = [
    "BESIDE_WEIGHTS_BYTES",
    "DEFAULT_BATCHED_TOKENS",
    "DEFAULT_SEQS",
    "DEVICE_RESERVE_BYTES",
    "DEVICE_USED_BYTES",
    "GRAPHS_BEYOND",
    "GRAPHS_BYTES",
    "HOST_BYTES",
    "LATE_BYTES",
    "LATE_DEVICE_BYTES",
    "NOISE_BYTES",
]

LEAST_REST_BYTES, LEAST_REST_DEVICE_BYTES = GIB, GIB // 2
"""What surely still comes after a reading, where a projection says the rest; on a discrete GPU the growth of
the host's processes is elsewhere."""

STEP_BYTES = GIB // 2
STEP_BYTES_PER_TOKEN = int(0.2 * GIB) // 1024
"""A step's typical activation peak: 1.26 GiB at 8192 tokens (Llama 3 8B, vllm#10511), more in larger
models."""

STEP_BYTES_MAX = 5 * GIB
"""Above it a step's peak is an outlier, which no table foretells (36 GiB: vllm#12126)."""

SURE_GRAPHS_BYTES = {
    CudaGraph.PIECEWISE: int(0.3 * GIB),
    CudaGraph.REDUCED: int(0.4 * GIB),
    CudaGraph.NONE: int(0.15 * GIB),
}
"""What going down *to* a mode surely frees: about half of the difference above."""

SURE_BYTES_PER_TOKEN = int(0.07 * GIB) // 1024
"""What a token less in a step surely frees: about a third of `STEP_BYTES_PER_TOKEN`; 0.37 GiB a step is
reported for a quantised model (vllm#14447)."""

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

CERTAINTY_SHARE, CERTAINTY_MAX = 0.08, 0.6
"""What is added to be sure: this share of the KV cache, at most this share of what typically comes. A
relaunch costs a load of minutes; of a small cache the certainty would cost the cache, and of a large one more
than what comes can differ from its typical amount buys nothing: a rest of 3.3 GiB (allocation of the cache, a
step of 8192 tokens) is uncertain by about 2 GiB. The shape is reasoned; the two numbers were chosen among
five pairs by `make bench-policy`, seeds 1 to 4."""


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


def sure_bytes(before: Settings, after: Settings, graphs: float = 1.0) -> int:
    """Return what going from *before* to *after* surely frees of steps and graphs.

    *graphs*: how large this model's are by what the engine said, as a multiple of the typical ones.
    """
    if before.cudagraph is not after.cudagraph:
        return int(graphs * SURE_GRAPHS_BYTES[after.cudagraph])
    tokens = before.max_num_batched_tokens or DEFAULT_BATCHED_TOKENS
    return (tokens - (after.max_num_batched_tokens or tokens)) * SURE_BYTES_PER_TOKEN
