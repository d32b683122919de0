"""`sparkctl`: the operator's program. Imports little, so that it answers at once.

Exit status: 0 = fine (for `status`: serving, and nobody is needed), 1 = not so or refused, 2 = wrong usage
or the daemon cannot be asked.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sparkd.cli.client import SOCKET, Client, ClientError, Reply, demo_socket
from sparkd.cli.incident_text import list_text, show_text
from sparkd.cli.layout import safe
from sparkd.cli.status_text import settings_text, status_text

FINE, NOT_FINE, CANNOT = 0, 1, 2
STATUS_VERSION = 1
VERBS = {
    "start": "start the engine on the whole cluster",
    "stop": "stop the engine on the whole cluster",
    "pause": "watch and report, change nothing (from the next safe point on)",
    "resume": "end a pause, or try again after an escalation",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return the exit status."""
    options = _parser().parse_args(arguments)
    try:
        return _run(options)
    except ClientError as error:
        print(f"sparkctl: {error}", file=sys.stderr)
        return CANNOT
    except BrokenPipeError:
        # The reader (`head`, a pager) has seen enough. Python's own flush at exit must not complain either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FINE


def _run(options: argparse.Namespace) -> int:
    client = _client(options)
    match options.command:
        case "status" | "settings":
            return _status(client, options)
        case "incidents":
            return _incidents(client, options)
    return _verb(client, options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="sparkctl", description="Ask and steer sparkd.")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--socket", type=Path, help=f"operator socket of a daemon (default {SOCKET})")
    where.add_argument("--url", help="page of a daemon, http://ADDRESS:PORT: only for status and settings")
    where.add_argument("--demo", action="store_true", help="the daemon of `make demo`")
    # Accepted before and after the command; the inner one must not reset the outer one.
    parser.add_argument("--json", action="store_true", help="print JSON")
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="print JSON")
    common.add_argument("--demo", action="store_true", default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser("status", parents=[common], help="what the cluster does, and whether it needs you")
    commands.add_parser("settings", parents=[common], help="memory settings: in force, asked, learned")
    incidents = commands.add_parser("incidents", parents=[common], help="what went wrong, and what was done")
    what = incidents.add_subparsers(dest="what", metavar="list | show N")
    what.add_parser("list", parents=[common], help="the newest incidents")
    show = what.add_parser("show", parents=[common], help="one incident: why, proof, did, then")
    show.add_argument("number", type=int, metavar="N")
    for verb, text in VERBS.items():
        commands.add_parser(verb, parents=[common], help=text)
    return parser


def _client(options: argparse.Namespace) -> Client:
    if options.url:
        return Client(url=options.url)
    if options.demo:
        return Client(path=demo_socket(), demo=True)
    return Client(path=options.socket or SOCKET)


def _status(client: Client, options: argparse.Namespace) -> int:
    document = _body(client.get("/status"))
    if document.get("version") != STATUS_VERSION:
        raise ClientError("sparkctl and sparkd are of different versions: restart sparkd after an upgrade")
    text = settings_text(document) if options.command == "settings" else status_text(document, time.time())
    _print(document if options.json else text)
    if options.command == "settings":
        return FINE
    return FINE if document["serving"] and not document["needs"] else NOT_FINE


def _incidents(client: Client, options: argparse.Namespace) -> int:
    if options.what != "show":
        incidents = _body(client.get("/incidents"))
        _print(incidents if options.json else list_text(incidents, time.time()))
        return FINE
    reply = client.get(f"/incidents/{options.number}")
    if reply.status == 404:
        print(f"sparkctl: {reply.error}; sparkctl incidents lists them", file=sys.stderr)
        return NOT_FINE
    incident = _body(reply)
    _print(incident if options.json else show_text(incident))
    return FINE


def _verb(client: Client, options: argparse.Namespace) -> int:
    by = os.environ.get("SUDO_USER") or os.environ.get("USER") or "unknown"
    reply = client.post("/verb", {"verb": options.command, "by": by})
    if reply.status not in {200, 409}:
        raise ClientError(reply.error)
    _print(reply.body if options.json else str(reply.body["text"]))
    return FINE if reply.body["accepted"] else NOT_FINE


def _body(reply: Reply) -> Any:
    if reply.status != 200:
        raise ClientError(f"sparkd answered {reply.status}: {reply.error}")
    return reply.body


def _print(what: Any) -> None:
    if isinstance(what, str):
        print(safe(what), flush=True)
    else:
        print(json.dumps(what, ensure_ascii=False, indent=2), flush=True)


if __name__ == "__main__":
    sys.exit(main())
