"""The operator's socket: what `sparkctl` talks to. The file's mode says who may (owner and group)."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiohttp import web

from sparkd.api.http import boundary
from sparkd.core.events import Verb

MODE = 0o660
PATH_BYTES_MAX = 107
INCIDENTS_MAX = 500
VERBS = (Verb.START, Verb.STOP, Verb.PAUSE, Verb.RESUME)


@dataclass(frozen=True, slots=True)
class Answer:
    """What the daemon says to a verb: whether it was taken, and one sentence."""

    accepted: bool
    text: str


@dataclass(frozen=True, slots=True)
class OperatorViews:
    """What the handlers ask.

    Attributes:
        status: the status document.
        explain: what is waited for, until when, and what would follow.
        incidents: summaries of the newest incidents, at most so many.
        incident: one incident in full, None where there is none.
        ask: hand a verb to the loop: (verb, by whom).
        failed: told the name of a handler that failed.
    """

    status: Callable[[], dict[str, Any]]
    explain: Callable[[], dict[str, Any]]
    incidents: Callable[[int], Awaitable[list[dict[str, Any]]]]
    incident: Callable[[int], Awaitable[dict[str, Any] | None]]
    ask: Callable[[Verb, str], Answer]
    failed: Callable[[str], None]


def make_app(views: OperatorViews) -> web.Application:
    """Return the application."""
    app = web.Application(middlewares=[boundary(views.failed)], client_max_size=4096)
    routes = _Routes(views)
    app.add_routes(
        [
            web.get("/status", routes.status),
            web.get("/explain", routes.explain),
            web.get("/incidents", routes.incidents),
            web.get(r"/incidents/{number:\d{1,9}}", routes.incident),
            web.post("/verb", routes.verb),
        ]
    )
    return app


async def listen(app: web.Application, path: Path) -> web.AppRunner:
    """Serve *app* on the unix socket *path*; the runner's `cleanup` ends it.

    A socket that an ended daemon left is replaced: the state directory's lock says that none lives.

    Raises:
        OSError: the socket cannot be made; the text names the path.
    """
    listening = _bind(path)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.SockSite(runner, listening).start()
    return runner


def _bind(path: Path) -> socket.socket:
    if len(os.fsencode(path)) > PATH_BYTES_MAX:
        raise OSError(f"operator socket {path}: the path is longer than {PATH_BYTES_MAX} bytes")
    if path.is_socket():
        path.unlink()
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    # The mode is right from the start: nobody else can connect in between.
    before = os.umask(0o777 & ~MODE)
    try:
        listening.bind(str(path))
    except OSError as error:
        listening.close()
        raise OSError(f"operator socket {path}: {error.strerror}") from error
    finally:
        os.umask(before)
    return listening


class _Routes:
    """The handlers."""

    def __init__(self, views: OperatorViews) -> None:
        self._views = views

    async def status(self, _: web.Request) -> web.Response:
        return web.json_response(self._views.status())

    async def explain(self, _: web.Request) -> web.Response:
        return web.json_response(self._views.explain())

    async def incidents(self, request: web.Request) -> web.Response:
        text = request.query.get("limit", "50")
        if not text.isdecimal() or not 1 <= int(text) <= INCIDENTS_MAX:
            return _refusal(400, f"limit is {text!r}; it must be a number from 1 to {INCIDENTS_MAX}")
        return web.json_response(await self._views.incidents(int(text)))

    async def incident(self, request: web.Request) -> web.Response:
        number = int(request.match_info["number"])
        found = await self._views.incident(number)
        if found is None:
            return _refusal(404, f"there is no incident {number}")
        return web.json_response(found)

    async def verb(self, request: web.Request) -> web.Response:
        try:
            body = await request.json()
            verb = Verb(body["verb"])
            by = str(body.get("by", ""))[:64]
        except (ValueError, KeyError, TypeError, AttributeError):
            verb, by = Verb.SHUTDOWN, ""
        if verb not in VERBS:
            return _refusal(400, f'wanted: {{"verb": one of {", ".join(VERBS)}, "by": who}}')
        answer = self._views.ask(verb, f"{by} (uid {_uid(request)})")
        return web.json_response(
            {"accepted": answer.accepted, "text": answer.text}, status=200 if answer.accepted else 409
        )


def _refusal(status: int, text: str) -> web.Response:
    return web.json_response({"error": text}, status=status)


def _uid(request: web.Request) -> str:
    """Return the user id at the other end as the kernel knows it: what a client says is no proof."""
    peer = request.get_extra_info("socket")
    if peer is None:
        return "unknown"
    said = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return str(struct.unpack("3i", said)[1])
