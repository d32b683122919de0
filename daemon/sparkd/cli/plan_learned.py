"""What earlier starts taught, for `sparkctl plan`: asked of the daemon, whose store nobody else may open.

It is used for this node's own configuration only: another model, layout or node has taught nothing here.
"""

from __future__ import annotations

import argparse

from sparkd.cli.asking import client_of, status_of
from sparkd.cli.client import ClientError
from sparkd.sizing.model import Learned
from sparkd.words import Phase

USED = "corrected by what this node's own starts of this model have measured"


def learned_of(options: argparse.Namespace) -> tuple[Learned | None, str]:
    """Return what was learned, and what is to be said of it; an empty text where nothing was asked."""
    why = _another(options)
    if why:
        return None, f"measured peaks are not used: {why}" if options.socket or options.demo else ""
    try:
        document = status_of(client_of(options))
        return _read(document.get("learned_peaks"), document)
    except ClientError as error:
        return None, f"measured peaks are not used: {str(error).splitlines()[0]}"


def _another(options: argparse.Namespace) -> str:
    """Return why this is not the plan that the daemon measures; empty where it is."""
    if options.model is not None:
        return "MODEL_DIR is not the model that is configured"
    if options.config is not None and not (options.socket or options.demo):
        return "--config FILE is not what the daemon runs"
    if options.node_memory is not None:
        return "--node-memory is another node"
    if any(entry.startswith("engine.") for entry in options.set):
        return "--set engine.… is another engine"
    return ""


def _read(peaks: object, document: dict[str, object]) -> tuple[Learned | None, str]:
    if not isinstance(peaks, dict):
        head = document["role"] == "head"
        where = "no start of this model has been measured yet" if head else "ask on the head, which has them"
        return None, f"measured peaks are not used: {where}"
    try:
        by_phase = tuple((Phase(name), int(delta)) for name, delta in peaks["by_phase"].items())
        return Learned(int(peaks["kv_cache_bytes"]), by_phase), USED
    except (KeyError, TypeError, ValueError, AttributeError):
        return None, "measured peaks are not used: sparkctl and sparkd are of different versions"
