"""What the engine holds beside what is counted, by where it runs, and how vLLM accounts for memory there.

On a GPU torch's allocator keeps what a step took, and vLLM fits its share around it: weights, context,
step, graphs, the cache out of the rest. Where the GPU has a memory of its own (discrete), the host's
processes are not in it; on unified memory they are in the same pool. The CPU build has no context and no
graphs; its processes are lighter, and what a step took goes back to the system.

Read in vLLM 0.32: v1/worker/gpu_worker.py and utils/mem_utils.py; v1/worker/cpu_worker.py and
platforms/cpu.py for the CPU build: the share is compared with what is free only where the cache is not
pinned; the cache is then the share less what the worker's process has resident, its libraries' pages among
it; a step is tried before the first request only in order to compile (cpu_model_runner.py). Its activations
are PyTorch's own functions, one after the other (model_executor/layers/activation.py, forward_native).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sparkd.sizing import declared
from sparkd.sizing.model import Request
from sparkd.words import Backend, CudaGraph


@dataclass(frozen=True, slots=True)
class Platform:
    """Where an engine runs; sizes in bytes.

    Attributes:
        ray_bytes, engine_bytes: Ray's processes and vLLM's in the pool, on the head.
        beside_bytes: what the device holds beside the weights: context, communication, workspaces.
        aside_bytes: what vLLM finds in use by the worker beside the weights when it sizes its cache.
        graphs_bytes: CUDA graphs by what is captured.
        late_bytes: what grows between the cache's allocation and serving.
        step_floor_bytes: below this a step's peak is the allocator's granularity.
        halves: as `declared.step_bytes` takes it.
        keeps_step: what a step took stays with the engine.
        shares_pinned: the share is compared with what is free also where the cache is pinned.
    """

    ray_bytes: int = declared.RAY_BYTES
    engine_bytes: int = declared.ENGINE_BYTES
    beside_bytes: int = declared.BESIDE_BYTES
    aside_bytes: int = declared.BESIDE_BYTES
    graphs_bytes: Mapping[CudaGraph, int] = field(default_factory=lambda: declared.GRAPHS_BYTES)
    late_bytes: int = declared.LATE_BYTES
    step_floor_bytes: int = declared.STEP_FLOOR_BYTES
    halves: int = 3
    keeps_step: bool = True
    shares_pinned: bool = True

    def host_bytes(self, backend: Backend) -> int:
        """Return what the processes beside the engine's device hold of the pool."""
        return self.engine_bytes + (self.ray_bytes if backend is Backend.RAY else 0)


UNIFIED = Platform()
DISCRETE = Platform(ray_bytes=0, engine_bytes=0, late_bytes=declared.LATE_DEVICE_BYTES)
CPU = Platform(
    engine_bytes=declared.CPU_ENGINE_BYTES,
    beside_bytes=0,
    aside_bytes=declared.CPU_WORKER_BYTES,
    graphs_bytes=dict.fromkeys(CudaGraph, 0),
    late_bytes=declared.CPU_LATE_BYTES,
    step_floor_bytes=0,
    halves=4,
    keeps_step=False,
    shares_pinned=False,
)


def platform_of(request: Request) -> Platform:
    """Return where the engine that is asked about runs."""
    if request.layout.cpu:
        return CPU
    return UNIFIED if request.node.unified else DISCRETE


def tries_a_step(request: Request) -> bool:
    """Whether a whole step is run before the cache is allocated: the CPU build does so only to compile."""
    return not (request.layout.cpu and request.settings.cudagraph is CudaGraph.NONE)
