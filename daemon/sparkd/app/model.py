"""The model's files as one configuration names them; what they say of the memory that the model needs."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import structlog

from sparkd.adapters.model_files import LocalModel
from sparkd.adapters.model_headers import ModelHeadersError, read_checkpoint
from sparkd.config import Loaded
from sparkd.config.asked import layout_of, sizing_options
from sparkd.engines.model import Device
from sparkd.sizing.model import Layout, Options
from sparkd.sizing.sized import Sized, sized
from sparkd.words import Backend

log = structlog.get_logger()


def local_model(loaded: Loaded) -> LocalModel:
    """Return the eyes on the model and the programs of this node."""
    spec = loaded.engine
    programs = (spec.vllm_program, *([spec.ray_program] if spec.backend is Backend.RAY else []))
    return LocalModel(spec.model, programs, spec.path, size=partial(_sized, loaded))


def sizing_of(loaded: Loaded) -> tuple[Layout, Options]:
    """Return how the model is served, as sizing asks it."""
    options = sizing_options(loaded.engine, unified_memory=loaded.policy.unified_memory)
    return layout_of(loaded.engine), options


def _sized(loaded: Loaded, folder: Path) -> Sized | None:
    """Return what the model's files say; what cannot be sized is told and launched as it is asked."""
    if loaded.engine.device is Device.CPU:
        return None  # the ranks of a test bed share the node's memory, and have no device
    try:
        checkpoint = read_checkpoint(folder)
    except ModelHeadersError as error:
        log.warning("model not sized", reason=str(error), note="launched as asked; sparkctl plan says more")
        return None
    return sized(checkpoint, *sizing_of(loaded))
