"""What stands in many a message, and in a unit's order: counts, stamps, settings, digests."""

from __future__ import annotations

from sparkd.wire.fields import Field, choice, integer, matching, number, optional, pair, shape
from sparkd.words import CudaGraph, LoadFormat, Settings, Stamp

COUNT_MAX = (1 << 53) - 1  # what every JSON reader keeps exactly
BYTES_MAX = 1 << 50

COUNT = integer(0, COUNT_MAX)
TOKENS = optional(integer(1, 1 << 31))
BYTES = optional(integer(0, BYTES_MAX))
DIGEST = matching(r"[0-9A-Za-z:_-]*", 128)
_STAMP = pair(COUNT, COUNT)
STAMP = Field(
    lambda stamp: _STAMP.encode((stamp.epoch, stamp.generation)),
    lambda value, lenient: Stamp(*_STAMP.decode(value, lenient)),
)
SETTINGS = shape(
    Settings,
    {
        "ray_memory_threshold": optional(number(0.0, 1.0)),
        "gpu_memory_utilization": number(0.0, 1.0),
        "kv_cache_bytes": BYTES,
        "max_num_batched_tokens": TOKENS,
        "max_num_seqs": TOKENS,
        "cudagraph": choice(CudaGraph),
        "max_model_len": TOKENS,
        "load_format": choice(LoadFormat),
    },
)
