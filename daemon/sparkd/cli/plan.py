"""`sparkctl plan`: what a model and its settings need, phase by phase, before anything is started.

Exit status: 0 = it fits, 1 = it does not (or vLLM would refuse), 2 = nothing can be said: the model's
architecture is not known, or the model, the configuration or the memory cannot be read.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from sparkd.adapters.clock import MonotonicClock
from sparkd.adapters.meminfo import MemInfo
from sparkd.adapters.model_headers import ModelHeadersError, read_checkpoint
from sparkd.cli.client import demo_config
from sparkd.cli.layout import safe
from sparkd.cli.plan_learned import learned_of
from sparkd.cli.plan_text import document, plan_text
from sparkd.config.asked import Asked, layout_of, on_cpu, read_asked, sizing_options
from sparkd.config.errors import suggestion
from sparkd.config.forms import parse_bytes
from sparkd.config.model import DELIMITER
from sparkd.config.refusal import ConfigError
from sparkd.config.served import PREFIX
from sparkd.config.sources import variables
from sparkd.sizing.advice import plan_for
from sparkd.sizing.model import Learned, Node, Request
from sparkd.sizing.verdict import Outcome

FITS, DOES_NOT_FIT, CANNOT_SAY = 0, 1, 2
CONFIG = "/etc/sparkd/sparkd.toml"
STATUS: Mapping[Outcome, int] = {
    Outcome.FITS: FITS,
    Outcome.TOO_LARGE: DOES_NOT_FIT,
    Outcome.REFUSED: DOES_NOT_FIT,
    Outcome.UNKNOWN: CANNOT_SAY,
}


class PlanError(Exception):
    """What is asked cannot be planned; the text says what to give instead."""


def run(options: argparse.Namespace) -> int:
    """Plan what the command line says and return the exit status."""
    try:
        asked = read_asked(_config(options), _environment(options.set))
        folder = Path(options.model or asked.engine.model)
        learned, said = learned_of(options, asked)
        request = _request(asked, folder, _node(asked, options), learned)
    except ConfigError as error:
        lines = _as_given(error.lines, options.set)
    except (PlanError, ModelHeadersError) as error:
        lines = (str(error),)
    else:
        advice = plan_for(request)
        if options.json:
            told = document(folder, request, advice) | {"learned": said or None}
            print(json.dumps(told, ensure_ascii=False, indent=2))
        else:
            print(safe("\n".join([plan_text(folder, request, advice), *([f"note: {said}"] if said else [])])))
        return STATUS[advice.asked.outcome]
    for line in lines:
        print(f"sparkctl: {safe(line)}", file=sys.stderr)
    return CANNOT_SAY


def _config(options: argparse.Namespace) -> str | None:
    """Without --config: the defaults for a model that is named, this node's configuration otherwise."""
    if options.config is not None or options.model is not None:
        return None if options.config is None else str(options.config)
    if options.demo:
        demo = demo_config()
        if not demo.exists():
            raise PlanError(f"{demo} is not there: start it: make demo")
        return str(demo)
    if not os.access(CONFIG, os.R_OK):
        raise PlanError(f"{CONFIG} cannot be read: give --config FILE, or the folder of a model")
    return CONFIG


def _environment(given: list[str]) -> dict[str, str]:
    """Return the environment with what --set gives, as the variables that set the same keys."""
    environment, known = dict(os.environ), variables()
    for entry in given:
        key, mark, value = entry.partition("=")
        if not (mark and key.rpartition(".")[2]):
            raise PlanError(f"--set {entry}: wanted is KEY=VALUE, for example gpu_memory_utilization=0.85")
        variable = _variable(key)
        if variable not in known:
            near = suggestion(key, [_key(each) for each in known])
            raise PlanError(f"--set {entry}: sets no key{near} (a key of [settings], or section.key)")
        environment[variable] = value
    return environment


def _variable(key: str) -> str:
    path = key.split(".") if "." in key else ["settings", key]
    return PREFIX + DELIMITER.join(path).upper()


def _key(variable: str) -> str:
    key = variable.removeprefix(PREFIX).replace(DELIMITER, ".").lower()
    return key.removeprefix("settings.")


def _as_given(lines: Sequence[str], given: Sequence[str]) -> tuple[str, ...]:
    """Return the complaints with --set where it, not the environment, gave the value."""
    options = {
        f"environment {_variable(key)}:": f"--set {key}:" for key, _, _ in (e.partition("=") for e in given)
    }
    found = []
    for line in lines:
        place = next((place for place in options if line.startswith(place)), "")
        found.append(options.get(place, "") + line.removeprefix(place))
    return tuple(found)


def _node(asked: Asked, options: argparse.Namespace) -> Node:
    total, available = _bytes(options, "node_memory"), _bytes(options, "node_available")
    pooled = asked.unified_memory or on_cpu(asked.engine)
    if total is None and not pooled:
        raise PlanError("recovery.unified_memory is false: give the memory of one GPU, --node-memory 80GiB")
    if total is None:
        sample = MemInfo(MonotonicClock()).read()
        if sample is None:
            raise PlanError("this system does not say how much memory it has: give --node-memory")
        total = sample.total_bytes
        available = sample.available_bytes if available is None else available
    if available is not None and available > total:
        raise PlanError(f"--node-available: {available} bytes are more than the node has ({total})")
    return Node(total, available, unified=pooled)


def _bytes(options: argparse.Namespace, name: str) -> int | None:
    given = getattr(options, name)
    if given is None:
        return None
    option = f"--{name.replace('_', '-')}"
    try:
        value = int(str(parse_bytes(given)))
    except ValueError as error:
        told = (
            str(error) if "GiB" in str(error) else 'must be a number of bytes, or a text such as "119.7GiB"'
        )
        raise PlanError(f"{option} {given}: {told}") from error
    if value < 1:
        raise PlanError(f"{option} {given}: must be more than 0")
    return value


def _request(asked: Asked, folder: Path, node: Node, learned: Learned | None) -> Request:
    return Request(
        checkpoint=read_checkpoint(folder),
        node=node,
        settings=asked.settings,
        layout=layout_of(asked.engine),
        options=sizing_options(asked.engine, unified_memory=asked.unified_memory),
        floors=asked.floors,
        learned=learned,
    )
