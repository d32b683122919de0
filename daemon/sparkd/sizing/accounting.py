"""How the versions of vLLM turn `gpu_memory_utilization` into a size of the KV cache."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil

from sparkd.sizing.model import Options

_RELEASE = re.compile(r"(\d+)\.(\d+)")


@dataclass(frozen=True, slots=True)
class Accounting:
    """What one release series does.

    Attributes:
        estimates_graphs: it sets memory for CUDA graphs aside before it sizes the cache.
        refuses_more_than_free: it ends at once where its share is more than what is free.
        batches: steps that may be on their way at once (asynchronous scheduling).
    """

    estimates_graphs: bool = True
    refuses_more_than_free: bool = True
    batches: int = 2


NEWEST = Accounting()
# 0.32: read in the installed build (v1/worker/gpu_worker.py, v1/worker/utils.py, config/vllm.py). 0.22: the
# estimate of graphs is the default since 0.21 (as 0.32's own message says); seen in logs of real starts.
KNOWN: Mapping[tuple[int, int], Accounting] = {(0, 22): Accounting(), (0, 32): NEWEST}


def accounting_of(version: str, options: Options) -> tuple[Accounting, str]:
    """Return how a version accounts, and a warning where it is not one that was read."""
    release = _RELEASE.match(version)
    known = KNOWN.get((int(release[1]), int(release[2]))) if release else None
    found = known or NEWEST
    if options.estimate_graphs is not None:
        found = Accounting(options.estimate_graphs, found.refuses_more_than_free, found.batches)
    if known is not None:
        return found, ""
    names = ", ".join(f"{major}.{minor}" for major, minor in sorted(KNOWN))
    told = f"vLLM {version}" if version else "a vLLM of unknown version"
    return (
        found,
        f"how {told} accounts for memory was not read (known: {names}); taken as the newest of these",
    )


def requested_bytes(total_bytes: int, utilization: float) -> int:
    """Return vLLM's share: of the device's total, not of what is free."""
    return ceil(total_bytes * utilization)
