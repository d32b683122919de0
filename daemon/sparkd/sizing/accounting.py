"""How this vLLM turns `gpu_memory_utilization` into a size of the KV cache."""

from __future__ import annotations

from dataclasses import replace
from math import ceil

from sparkd import releases
from sparkd.releases import VLLM, Accounting
from sparkd.sizing.model import Options

NEWEST = VLLM[max(VLLM)].accounting


def accounting_of(version: str, options: Options) -> tuple[Accounting, str]:
    """Return how a version accounts, and a warning where it is not one that was read."""
    known = releases.vllm(version)
    found = known.accounting if known is not None else NEWEST
    if options.estimate_graphs is not None:
        found = replace(found, estimates_graphs=options.estimate_graphs)
    if known is not None:
        return found, ""
    told = f"vLLM {version}" if version else "a vLLM of unknown version"
    read = f"known: {releases.names(VLLM)}"
    return found, f"how {told} accounts for memory was not read ({read}); taken as the newest of these"


def requested_bytes(total_bytes: int, utilization: float) -> int:
    """Return vLLM's share: of the device's total, not of what is free."""
    return ceil(total_bytes * utilization)
