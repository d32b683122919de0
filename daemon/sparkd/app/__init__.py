"""The composition root: the only place that knows everything. Nothing is decided here."""

from __future__ import annotations

from sparkd.app.daemon import AppError, Daemon
from sparkd.config import EX_CONFIG, Loaded

__all__ = ["EX_CONFIG", "AppError", "run"]


async def run(loaded: Loaded) -> int:
    """Run the daemon of one node; return its exit code. Raises AppError."""
    return await Daemon(loaded).run()
