"""Which options this vLLM and this Ray take: those of `releases`; else the portable ones, with a warning."""

from __future__ import annotations

from sparkd import releases
from sparkd.releases import PORTABLE_RAY, PORTABLE_VLLM, RAY, VLLM, RayOptions, VllmOptions


def vllm_options(version: str) -> tuple[VllmOptions, tuple[str, ...]]:
    """Return what this vLLM takes, and a warning where it is not known."""
    known = releases.vllm(version)
    if known is not None:
        return known.options, ()
    return PORTABLE_VLLM, (_unknown("vLLM", version, releases.names(VLLM)),)


def ray_options(version: str) -> tuple[RayOptions, tuple[str, ...]]:
    """Return what this Ray takes, and a warning where it is not known."""
    known = releases.ray(version)
    if known is not None:
        return known, ()
    return PORTABLE_RAY, (_unknown("Ray", version, releases.names(RAY)),)


def _unknown(program: str, version: str, known: str) -> str:
    return f"{program} {version or 'of unknown version'}: portable options only (known: {known})"
