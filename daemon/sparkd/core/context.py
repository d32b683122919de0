"""What settings and paces are learned with, as two digests: `<engine>/<driver>`; another one voids them.

The driver's may be unknown (its module is not loaded yet): then it is not compared, and what is known of it
is kept.
"""

from __future__ import annotations

UNKNOWN = "?"


def same_context(kept: str, now: str) -> bool:
    """Return whether what was learned in *kept* says something *now*."""
    (engine, _, driver), (engine_now, _, driver_now) = kept.partition("/"), now.partition("/")
    return engine == engine_now and (driver == driver_now or UNKNOWN in {driver, driver_now})


def context_to_keep(kept: str, now: str) -> str:
    """Return the context to keep: today's, with the driver that was known where today's is not."""
    return kept if now.endswith(f"/{UNKNOWN}") and same_context(kept, now) else now
