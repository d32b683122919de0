"""The commands that ask a daemon."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from typing import Any

from sparkd.cli.client import Client, ClientError, Reply, demo_socket
from sparkd.cli.explain_text import explain_text
from sparkd.cli.incident_text import list_text, show_text
from sparkd.cli.layout import safe
from sparkd.cli.sparkctl import SOCKET
from sparkd.cli.status_text import settings_text, status_text

FINE, NOT_FINE, CANNOT = 0, 1, 2
STATUS_VERSION = 1


def run(options: argparse.Namespace) -> int:
    """Ask what the command line says and return the exit status."""
    try:
        return _run(options)
    except ClientError as error:
        print(f"sparkctl: {error}", file=sys.stderr)
        return CANNOT


def _run(options: argparse.Namespace) -> int:
    client = client_of(options)
    match options.command:
        case "status" | "settings":
            return _status(client, options)
        case "explain":
            document = _body(client.get("/explain"))
            _print(document if options.json else explain_text(document, time.time()))
            return FINE
        case "incidents":
            return _incidents(client, options)
    return _verb(client, options)


def client_of(options: argparse.Namespace) -> Client:
    """Return the daemon that the command line names."""
    if options.url:
        return Client(url=options.url)
    if options.demo:
        return Client(path=demo_socket(), demo=True)
    return Client(path=options.socket or SOCKET)


def _status(client: Client, options: argparse.Namespace) -> int:
    document = status_of(client)
    text = settings_text(document) if options.command == "settings" else status_text(document, time.time())
    _print(document if options.json else text)
    if options.command == "settings":
        return FINE
    return FINE if document["serving"] and not document["needs"] else NOT_FINE


def status_of(client: Client) -> dict[str, Any]:
    """Return the daemon's status document. Raises ClientError."""
    document: dict[str, Any] = _body(client.get("/status"))
    if document.get("version") != STATUS_VERSION:
        raise ClientError("sparkctl and sparkd are of different versions: restart sparkd after an upgrade")
    return document


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
