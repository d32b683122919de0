"""`sparkctl memory`: the memory of every node, drawn anew each second; one look where nobody watches.

What was seen before it was started is not known to it: its curves begin with it.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import deque

from sparkd.adapters.gpu_processes import GpuProcesses
from sparkd.adapters.unit_memory import use_by_unit
from sparkd.cli.asking import CANNOT, FINE, client_of, status_of
from sparkd.cli.client import Client, ClientError
from sparkd.cli.layout import safe
from sparkd.cli.memory_text import Here, Look, memory_text

EVERY_S = 1.0
HERE_EVERY_S = 5.0
"""So often the driver is asked: a child process each time."""
KEPT_S = 300.0
"""The curves are so long."""
_HOME, _REST = "\x1b[H", "\x1b[J"


def run(options: argparse.Namespace) -> int:
    """Draw until it is interrupted, or once; return the exit status."""
    client = client_of(options)
    try:
        if options.json:
            document = status_of(client)
            print(json.dumps({"nodes": document["nodes"], "held": document["held"]}, indent=2))
        elif options.once or not sys.stdout.isatty():
            print(safe(memory_text(status_of(client), {}, looked_here(options, GpuProcesses()))))
        else:
            watch(client, options)
    except ClientError as error:
        print(f"sparkctl: {error}", file=sys.stderr)
        return CANNOT
    except KeyboardInterrupt:
        print()
    return FINE


def looked_here(options: argparse.Namespace, gpus: GpuProcesses) -> Here | None:
    """Return what this node shows of itself, None where the daemon that is asked may be another node's."""
    if options.url or options.demo:
        return None
    seen = gpus.read()
    names = tuple((f"{process.name} ({process.pid})", process.used_bytes) for process in seen.processes)
    return Here(use_by_unit(), names, seen.why)


def watch(client: Client, options: argparse.Namespace) -> None:
    """Draw for ever. Raises ClientError where the daemon does not answer, KeyboardInterrupt at the end."""
    looks: dict[str, deque[Look]] = {}
    gpus, here, again_s = GpuProcesses(), None, 0.0
    print("\x1b[2J", end="")
    while True:
        document = status_of(client)
        now = time.monotonic()
        for node in document["nodes"]:
            if node["available_bytes"] is not None:
                kept = looks.setdefault(node["node"], deque(maxlen=int(KEPT_S / EVERY_S)))
                kept.append((now, node["available_bytes"]))
        if now >= again_s:
            here, again_s = looked_here(options, gpus), now + HERE_EVERY_S
        past = {name: tuple(kept) for name, kept in looks.items()}
        text = safe(memory_text(document, past, here))
        lines = "".join(f"{line}\x1b[K\n" for line in [*text.splitlines(), "", "every second; Ctrl-C ends"])
        print(f"{_HOME}{lines}{_REST}", end="", flush=True)
        time.sleep(EVERY_S)
