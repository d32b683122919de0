"""What is known of the versions of vLLM and Ray: which options they take.

A version that is not in these tables gets the portable options, which all releases near them take, and a
warning.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

RELEASE = re.compile(r"(\d+)\.(\d+)")


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
# 0.32: read in the installed CPU build (vllm/platforms/cpu.py, engine/arg_utils.py). 0.22: the options of
# real starts on GPUs; what was not seen there is left at the portable form.
VLLM: dict[tuple[int, int], VllmOptions] = {
    (0, 22): VllmOptions(load_strategy=True),
    (0, 32): VllmOptions(short_compilation=True, load_strategy=True, cpu_kv_bytes=True),
}
RAY: dict[tuple[int, int], RayOptions] = {
    (2, 51): RayOptions(token_auth=False, worker_temp_dir=False),
    (2, 60): RayOptions(),
}


def release(version: str) -> tuple[int, int] | None:
    """Return (major, minor) of a version text such as "0.32.0+cpu", None where it says none."""
    found = RELEASE.match(version)
    return (int(found[1]), int(found[2])) if found else None


def vllm_options(version: str) -> tuple[VllmOptions, tuple[str, ...]]:
    """Return what this vLLM takes, and a warning where it is not known."""
    known = VLLM.get(release(version) or (-1, -1))
    return (known, ()) if known else (PORTABLE_VLLM, (_unknown("vLLM", version, sorted(VLLM)),))


def ray_options(version: str) -> tuple[RayOptions, tuple[str, ...]]:
    """Return what this Ray takes, and a warning where it is not known."""
    known = RAY.get(release(version) or (-1, -1))
    return (known, ()) if known else (PORTABLE_RAY, (_unknown("Ray", version, sorted(RAY)),))


def _unknown(program: str, version: str, known: list[tuple[int, int]]) -> str:
    names = ", ".join(f"{major}.{minor}" for major, minor in known)
    return f"{program} {version or 'of unknown version'}: portable options only (known: {names})"
