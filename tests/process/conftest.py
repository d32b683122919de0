"""Real daemons with the stand-in engine; whatever a test leaves is stopped and checked for."""

from __future__ import annotations

import asyncio
import os
import signal
import uuid
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cluster import stamped_processes
from standin_cluster import Standin, make

Told = Callable[[Standin], Awaitable[None]]
Live = Callable[..., Standin]


@contextmanager
def stage(directory: Path) -> Iterator[Live]:
    """Give a function that runs a story on a fresh cluster and takes everything down after it."""
    names: list[str] = []

    def run(
        story: Told, *, prepare: Callable[[Standin], None] | None = None, start: bool = True, **options: Any
    ) -> Standin:
        """Run *story*; *prepare* comes before the daemons, which the story starts itself without *start*."""
        name = f"t{uuid.uuid4().hex[:8]}"
        names.append(name)
        standin = make(directory / name, name, **options)

        async def told() -> None:
            try:
                if prepare is not None:
                    prepare(standin)
                if start:
                    await standin.cluster.start()
                await story(standin)
            finally:
                await standin.cluster.stop()
                standin.forget()

        asyncio.run(told())
        assert not stamped_processes(name)
        return standin

    try:
        yield run
    finally:
        for name in names:
            for pid in stamped_processes(name):
                os.kill(pid, signal.SIGKILL)


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Live]:
    """Return a function that runs a story on a fresh cluster and takes everything down after it."""
    with stage(tmp_path) as run:
        yield run


@pytest.fixture(scope="module")
def lived(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """The same for a life that several tests look back at."""
    with stage(tmp_path_factory.mktemp("lived")) as run:
        yield run
