"""The one clock: monotonic seconds."""

from __future__ import annotations

import time


class MonotonicClock:
    """Seconds of CLOCK_MONOTONIC: never jump, stand still while the node is suspended."""

    def now(self) -> float:
        """Return monotonic seconds."""
        return time.monotonic()
