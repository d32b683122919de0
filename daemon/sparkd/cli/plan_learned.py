"""What earlier starts taught, for `sparkctl plan`: asked of the daemon, or read from what the last one kept.

It is read only where none runs: what a daemon writes to meanwhile cannot be copied as of one moment.
It is used for this node's own configuration only: another model, layout or node has taught nothing here.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from sparkd.adapters import machine
from sparkd.cli.asking import client_of, status_of
from sparkd.cli.client import Client, ClientError, NobodyListensError, NotAllowedError
from sparkd.config.asked import Asked
from sparkd.core.context import same_context
from sparkd.engines.digest import context_of
from sparkd.sizing.model import Learned
from sparkd.store.offline import kept_at
from sparkd.store.view import HistoryUnreadableError
from sparkd.words import Phase

USED = "corrected by what this node's own starts of this model have measured"
KEPT = f"{USED}, as the last daemon kept it (none answers now)"
AS_ROOT = "root may: sudo sparkctl plan"
NEXT_START = "if it is damaged, the next sudo systemctl start sparkd moves it aside"
_NOT = "measured peaks are not used"


def learned_of(options: argparse.Namespace, asked: Asked) -> tuple[Learned | None, str]:
    """Return what was learned, and what is to be said of it; an empty text where nothing was asked."""
    why = _another(options)
    if why:
        return None, f"{_NOT}: {why}" if options.socket or options.demo else ""
    named = options.socket or options.url or options.demo
    try:
        document = status_of(client_of(options) if named else Client(path=Path(asked.socket)))
        return _read(document.get("learned_peaks"), document)
    except NotAllowedError as error:
        return None, f"{_NOT}: {_first(error)} ({AS_ROOT})"
    except NobodyListensError as error:
        if named:
            return None, f"{_NOT}: {_first(error)}"  # the daemon that is named may be another node's
        return _kept(asked, _first(error))
    except ClientError as error:  # one runs, and writes what it keeps: only its own word is whole
        return None, f"{_NOT}: {'; '.join(map(str.strip, str(error).splitlines()))}"


def _first(error: ClientError) -> str:
    return str(error).splitlines()[0]


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
        return None, f"{_NOT}: {where}"
    try:
        by_phase = tuple((Phase(name), int(delta)) for name, delta in peaks["by_phase"].items())
        step, graphs = int(peaks["step_bytes"]), int(peaks["graphs_bytes"])
        return Learned(int(peaks["kv_cache_bytes"]), by_phase, step, graphs), USED
    except (KeyError, TypeError, ValueError, AttributeError):
        return None, f"{_NOT}: sparkctl and sparkd are of different versions"


def _kept(asked: Asked, silent: str) -> tuple[Learned | None, str]:
    """Return what stands in the store for this model, engine, driver, kernel and these nodes."""
    try:
        kept = kept_at(Path(asked.state_dir))
    except HistoryUnreadableError as error:
        advice = AS_ROOT if isinstance(error.__cause__, PermissionError) else NEXT_START
        return None, f"{_NOT}: {silent}, and {error} ({advice})"
    context = context_of(asked.engine, asked.nodes, machine.kernel_release(), machine.driver_version())
    known = (
        () if kept is None else ((kept.context, kept.learned), *((o.context, o.learned) for o in kept.others))
    )
    for with_what, learned in known:
        if learned is not None and same_context(with_what, context):
            return learned, KEPT
    return None, (
        f"{_NOT}: {silent}, and {asked.state_dir} has none of this model, engine, driver, kernel and nodes"
    )
