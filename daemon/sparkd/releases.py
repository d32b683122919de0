"""The releases of vLLM and Ray that were read or seen: which options they take, how vLLM accounts for memory.

The one place that a new release is added to. A leaf, as `words` is: rendering (`engines`) and sizing both ask
it. What is not in these tables gets the portable options and the newest accounting, each with a warning.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

_RELEASE = re.compile(r"(\d+)\.(\d+)")
Release = tuple[int, int]


@dataclass(frozen=True, slots=True)
class VllmOptions:
    """What one release series of vLLM takes.

    Attributes:
        short_compilation: `-cc.name=value` beside the JSON of `--compilation-config`.
        load_strategy: `--safetensors-load-strategy`.
        cpu_kv_bytes: the CPU build honours `--kv-cache-memory-bytes`; older ones know only whole GiB in
            VLLM_CPU_KVCACHE_SPACE, which overrides the option where both are given.
    """

    short_compilation: bool = False
    load_strategy: bool = False
    cpu_kv_bytes: bool = False


@dataclass(frozen=True, slots=True)
class Accounting:
    """How one release series of vLLM turns `gpu_memory_utilization` into a size of the KV cache.

    Attributes:
        estimates_graphs: it sets memory for CUDA graphs aside before it sizes the cache.
        refuses_more_than_free: it ends at once where its share is more than what is free.
        batches: steps that may be on their way at once (asynchronous scheduling).
    """

    estimates_graphs: bool = True
    refuses_more_than_free: bool = True
    batches: int = 2


@dataclass(frozen=True, slots=True)
class Vllm:
    """One release series of vLLM."""

    options: VllmOptions = field(default_factory=VllmOptions)
    accounting: Accounting = field(default_factory=Accounting)


@dataclass(frozen=True, slots=True)
class RayOptions:
    """What one release series of Ray takes.

    Attributes:
        token_auth: RAY_AUTH_MODE=token works (Ray's documentation: since 2.52).
        worker_temp_dir: `--temp-dir` of a worker counts; older releases use the head's path there.
    """

    token_auth: bool = True
    worker_temp_dir: bool = True


PORTABLE_VLLM = VllmOptions()
PORTABLE_RAY = RayOptions()
# 0.32: read in the installed CPU build (vllm/platforms/cpu.py, engine/arg_utils.py, v1/worker/gpu_worker.py,
# v1/worker/utils.py, config/vllm.py). 0.22: the options and logs of real starts on GPUs; what was not seen
# there is left at the portable form. The estimate of graphs is the default since 0.21 (0.32's own message).
VLLM: Mapping[Release, Vllm] = {
    (0, 22): Vllm(VllmOptions(load_strategy=True)),
    (0, 32): Vllm(VllmOptions(short_compilation=True, load_strategy=True, cpu_kv_bytes=True)),
}
RAY: Mapping[Release, RayOptions] = {
    (2, 51): RayOptions(token_auth=False, worker_temp_dir=False),
    (2, 60): RayOptions(),
}


def release(version: str) -> Release | None:
    """Return (major, minor) of a version text such as "0.32.0+cpu", None where it says none."""
    found = _RELEASE.match(version)
    return (int(found[1]), int(found[2])) if found else None


def vllm(version: str) -> Vllm | None:
    """Return what is known of this vLLM, None where its release is not in the table."""
    return VLLM.get(release(version) or (-1, -1))


def ray(version: str) -> RayOptions | None:
    """Return what is known of this Ray, None where its release is not in the table."""
    return RAY.get(release(version) or (-1, -1))


def names(known: Iterable[Release]) -> str:
    """Return releases as people write them, the oldest first."""
    return ", ".join(f"{major}.{minor}" for major, minor in sorted(known))
