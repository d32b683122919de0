"""Real daemons with the stand-in engine; whatever a test leaves is stopped and checked for."""

from __future__ import annotations

import asyncio
import os
import signal
import uuid
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster import stamped_processes
from standin_cluster import Standin, make

Told = Callable[[Standin], Awaitable[None]]


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Callable[..., Standin]]:
    """Return a function that runs a story on a fresh cluster and takes everything down after it."""
    names: list[str] = []

    def run(story: Told, **options: Any) -> Standin:
        name = f"t{uuid.uuid4().hex[:8]}"
        names.append(name)
        standin = make(tmp_path / name, name, **options)

        async def told() -> None:
            try:
                await standin.cluster.start()
                await story(standin)
            finally:
                await standin.cluster.stop()
                standin.forget()

        asyncio.run(told())
        assert not stamped_processes(name)
        return standin

    yield run
    for name in names:
        for pid in stamped_processes(name):
            os.kill(pid, signal.SIGKILL)
