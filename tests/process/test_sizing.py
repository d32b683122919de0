"""A plan that the model's own files say cannot fit: nothing is started, and a person learns why."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from sizing.large import large
from sparkd.adapters.clock import MonotonicClock
from sparkd.adapters.meminfo import MemInfo
from sparkd.words import GIB
from standin_cluster import Standin, is_event

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]


def write_sparse(folder: Path, gib_a_rank: float) -> None:
    """A model whose headers are true and whose data are holes: it takes no disk."""
    for old in folder.iterdir():
        old.unlink()
    checkpoint = large(gib_a_rank)
    (folder / "config.json").write_text(json.dumps(checkpoint.config))
    table, end = {}, 0
    for tensor in checkpoint.tensors:
        entry = {"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": [end, end + tensor.bytes]}
        table[tensor.name] = entry
        end += tensor.bytes
    header = json.dumps(table).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + end)
    for file in folder.iterdir():
        os.utime(file, (time.time() - 3600,) * 2)


def test_weights_beyond_the_nodes_memory_are_not_loaded(live: Callable[..., Standin]) -> None:
    memory = MemInfo(MonotonicClock()).read()
    assert memory is not None
    weights = round(1.2 * memory.total_bytes / GIB)

    async def story(standin: Standin) -> None:
        head = standin.cluster.head
        doubted = await head.wait(is_event("plan_doubted"), 40)
        assert (doubted["action"], doubted["phase"]) == ("refused", "loading_weights")
        assert doubted["over_bytes"] > 0.2 * memory.total_bytes
        assert "mostly" not in doubted["text"] and "weights" in doubted["text"]
        await standin.cluster.phase("escalated", 10)
        status = await head.status()
        assert status["phase"] == "escalated"
        assert "no setting makes room while loading" in status["needs"]
        assert not [e for e in head.events if e["event"] == "unit_changed"], "nothing was started"

    live(story, prepare=lambda standin: write_sparse(standin.directory / "model", weights))
