"""`sparkd files`: what sparkd-files.service runs, as the engine's user. One look at the model's files."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from pathlib import Path

from sparkd.adapters.files_note import Asked, Found, Look, read_asked, read_found, write_found
from sparkd.adapters.model_files import Look as Seen
from sparkd.app.model import local_model
from sparkd.config import EX_CONFIG, ConfigError, Loaded
from sparkd.config.load import load
from sparkd.core.events import ModelChecked
from sparkd.wire.refusal import WireError


def look(path: str, node: str | None, environ: Mapping[str, str]) -> int:
    """Do what the daemon has asked, and note the answer; return the exit code."""
    try:
        loaded = load(path, node, environ, secrets=False)
        run_dir = Path(loaded.paths.run_dir)
        asked = read_asked(run_dir)
        write_found(run_dir, asyncio.run(_found(loaded, run_dir, asked)))
    except (ConfigError, OSError, ValueError, WireError) as error:
        print(f"sparkd files: {error}; sparkd itself starts this where it needs it", file=sys.stderr)
        return EX_CONFIG
    return 0


async def _found(loaded: Loaded, run_dir: Path, asked: Asked) -> Found:
    model = local_model(loaded)
    if asked.evict:
        await model.evict()
    model.looks = _before(run_dir)
    checked = await model.check()
    looks = [
        Look(str(file), seen.size, seen.mtime_ns, seen.short_bytes) for file, seen in model.looks.items()
    ]
    return _answer(asked, checked, tuple(looks))


def _answer(asked: Asked, checked: ModelChecked, looks: tuple[Look, ...]) -> Found:
    model = checked.model
    if model is None:
        return Found(asked.number, checked.ready, checked.reason, looks)
    checkpoint = model.checkpoint
    return Found(
        asked.number,
        checked.ready,
        checked.reason,
        looks,
        file_bytes=checkpoint.file_bytes,
        weights=model.weights,
        config=dict(checkpoint.config),
        quantization=dict(checkpoint.quantization) or None,
    )


def _before(run_dir: Path) -> dict[Path, Seen]:
    """Return what the last look saw: a file that has changed since is still growing."""
    try:
        looks = read_found(run_dir).looks
    except (OSError, ValueError):
        return {}
    return {Path(look.path): Seen(look.size, look.mtime_ns, look.short_bytes) for look in looks}
