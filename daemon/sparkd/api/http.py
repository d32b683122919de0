"""What the daemon tells over HTTP: read-only, for Prometheus, for checks of life, and for people.

Handlers call what they are given and decide nothing. No login on loopback; elsewhere a token is demanded.
"""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import structlog
from aiohttp import web

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class Views:
    """What the handlers ask. Each answers from memory, at once.

    Attributes:
        metrics: the exposition in Prometheus's text format.
        status: the status document.
        page: the status page, HTML.
        ready: whether a verified engine serves, and the reason.
        step_age_s: seconds since the loop's last step.
        failed: told the name of a handler that failed.
    """

    metrics: Callable[[], bytes]
    status: Callable[[], dict[str, Any]]
    page: Callable[[], str]
    ready: Callable[[], tuple[bool, str]]
    step_age_s: Callable[[], float]
    failed: Callable[[str], None]


class ExposedWithoutTokenError(Exception):
    """The address is not loopback and no token is set; the text is for the operator (exit code 78)."""


def boundary(failed: Callable[[str], None]) -> Any:
    """Return the middleware that turns a handler's error into a 500, logged and counted."""
    log = structlog.get_logger("sparkd.api")

    @web.middleware
    async def guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            return await handler(request)
        except web.HTTPException:
            raise
        except Exception:  # one of the three places where this is allowed: an HTTP handler
            name = request.match_info.route.resource
            path = name.canonical if name is not None else "unknown"
            failed(path)
            log.exception("handler_failed", handler=path)
            return web.json_response({"error": "sparkd failed to answer; its log says why"}, status=500)

    return guarded


def make_app(views: Views, *, stall_s: float = 15.0, token: str | None = None) -> web.Application:
    """Return the application.

    Args:
        views: what is asked.
        stall_s: a loop that did not step for so long is not healthy.
        token: where given, every path but /healthz wants `Authorization: Bearer <token>`.
    """
    middlewares = [boundary(views.failed)]
    if token is not None:
        middlewares.append(_login(token))
    app = web.Application(middlewares=middlewares, client_max_size=1024)
    routes = _Routes(views, stall_s)
    app.add_routes(
        [
            web.get("/", routes.page),
            web.get("/metrics", routes.metrics),
            web.get("/healthz", routes.healthz),
            web.get("/readyz", routes.readyz),
            web.get("/status", routes.status),
        ]
    )
    return app


async def listen(
    app: web.Application, host: str = "127.0.0.1", port: int = 9760, *, token: str | None = None
) -> web.AppRunner:
    """Serve *app*; the runner's `cleanup` ends it. Port 0 = any free one (see `runner.addresses`).

    Raises:
        ExposedWithoutTokenError: others could read it and no token is set.
        OSError: the address cannot be had.
    """
    if not _is_loopback(host) and token is None:
        raise ExposedWithoutTokenError(
            f"the page would listen on {host}, which others can reach, without a token: "
            "set a token, or listen on 127.0.0.1"
        )
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
    except OSError:
        await runner.cleanup()
        raise
    return runner


class _Routes:
    """The handlers."""

    def __init__(self, views: Views, stall_s: float) -> None:
        self._views = views
        self._stall_s = stall_s

    async def metrics(self, _: web.Request) -> web.Response:
        return web.Response(body=self._views.metrics(), headers={"Content-Type": METRICS_TYPE})

    async def healthz(self, _: web.Request) -> web.Response:
        age_s = self._views.step_age_s()
        alive = age_s <= self._stall_s
        body = {"alive": alive, "step_age_s": round(age_s, 3), "stall_s": self._stall_s}
        return web.json_response(body, status=200 if alive else 503)

    async def readyz(self, _: web.Request) -> web.Response:
        ready, reason = self._views.ready()
        return web.json_response({"ready": ready, "reason": reason}, status=200 if ready else 503)

    async def status(self, _: web.Request) -> web.Response:
        return web.json_response(self._views.status())

    async def page(self, _: web.Request) -> web.Response:
        headers = {
            "Cache-Control": "no-store",
            "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'",
        }
        return web.Response(text=self._views.page(), content_type="text/html", headers=headers)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _login(token: str) -> Any:
    wanted = f"Bearer {token}".encode()

    @web.middleware
    async def login(request: web.Request, handler: Handler) -> web.StreamResponse:
        given = request.headers.get("Authorization", "").encode("utf-8", "replace")
        if request.path != "/healthz" and not hmac.compare_digest(given, wanted):
            raise web.HTTPUnauthorized(text="a token is needed: Authorization: Bearer …")
        return await handler(request)

    return login
