"""This node's signed view for its peers: HTTP on the node's fabric and management addresses.

Two questions, both GET: `/peer/status` and `/peer/reports?from=N`, each with a nonce. A request without the
cluster key's signature gets no answer but 403, and a nonce is answered once: what was recorded on the wire
cannot be asked again. The answer is signed for that very question (`wire.peerview`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence

import structlog
from aiohttp import web

from sparkd.core.messages import MemberStatus, Report
from sparkd.ports import Clock
from sparkd.wire import peerview
from sparkd.wire.codec import Encoder, Message, split
from sparkd.wire.refusal import WireError

NONCES_MAX = 4096
HEADER_BYTES_MAX = 4096
BODY_BYTES_MAX = 1024
SHUTDOWN_S = 1.0

log = structlog.get_logger()


class PeerViewServer:
    """Answers peers from two callables that give what this node would publish now."""

    def __init__(
        self,
        *,
        key: bytes,
        cluster: str,
        node: str,
        instance: str,
        clock: Clock,
        status: Callable[[], MemberStatus],
        reports: Callable[[int], Report | None],
    ) -> None:
        """Prepare the view; `start` listens.

        Args:
            key: the cluster key.
            cluster: the cluster's name.
            node: this node.
            instance: this daemon's instance.
            clock: for the ages in reports.
            status: gives the node's current status.
            reports: gives the evidence from a sequence number on, None = there is none.

        Raises:
            ValueError: a name or the key is unusable.
        """
        self._key = key
        self._node = node
        self._instance = instance
        self._encoder = Encoder(key, cluster, node, instance)
        self._clock = clock
        self._status = status
        self._reports = reports
        self._nonces: OrderedDict[str, None] = OrderedDict()
        self._runner: web.AppRunner | None = None

    def application(self) -> web.Application:
        """Return the routes as an application of their own."""
        app = web.Application(client_max_size=BODY_BYTES_MAX)
        app.router.add_get(peerview.STATUS_PATH, self._get_status, allow_head=False)
        app.router.add_get(peerview.REPORTS_PATH, self._get_reports, allow_head=False)
        return app

    async def start(self, addresses: Sequence[tuple[str, int]]) -> tuple[int, ...]:
        """Listen on *addresses* (host, port; port 0 = any free one); return the ports.

        Raises:
            OSError: an address cannot be listened on; none is then.
        """
        runner = web.AppRunner(
            self.application(),
            access_log=None,
            handle_signals=False,
            shutdown_timeout=SHUTDOWN_S,
            max_line_size=HEADER_BYTES_MAX,
            max_field_size=HEADER_BYTES_MAX,
        )
        await runner.setup()
        try:
            for host, port in addresses:
                await web.TCPSite(runner, host, port).start()
        except OSError:
            await runner.cleanup()
            raise
        self._runner = runner
        ports = tuple(int(address[1]) for address in runner.addresses)
        log.info("peer_view_started", addresses=[host for host, _ in addresses], ports=list(ports))
        return ports

    async def stop(self) -> None:
        """Stop listening. May be called in any state."""
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()

    async def _get_status(self, request: web.Request) -> web.Response:
        self._admit(request)
        return self._answer(request, self._status())

    async def _get_reports(self, request: web.Request) -> web.Response:
        self._admit(request)
        first_seq = peerview.first_seq_of(request.query.get("from", ""))
        if first_seq is None:
            raise web.HTTPBadRequest(text="from: a sequence number is expected\n")
        found = self._reports(first_seq)
        report = found if found is not None else Report(self._node, self._instance, first_seq, ())
        return self._answer(request, next(split(report)))

    def _admit(self, request: web.Request) -> None:
        """Let only a signed request with a new nonce pass."""
        given = request.headers.get(peerview.MAC_HEADER, "")
        if not peerview.is_request(self._key, self._node, request.raw_path, given):
            raise web.HTTPForbidden(text="not signed with this cluster's key for this node\n")
        nonce = request.query.get("nonce", "")
        if not peerview.is_nonce(nonce) or nonce in self._nonces:
            raise web.HTTPBadRequest(text="nonce: 32 hex digits that were not used before are expected\n")
        self._nonces[nonce] = None
        if len(self._nonces) > NONCES_MAX:
            self._nonces.popitem(last=False)

    def _answer(self, request: web.Request, message: Message) -> web.Response:
        context = peerview.answer_context(self._node, request.raw_path)
        try:
            frame = self._encoder.frame(context, message, self._clock.now())
        except WireError as refused:
            log.warning("peer_view_not_sayable", reason=str(refused))
            raise web.HTTPInternalServerError(text="what this node has to say is out of bounds\n") from None
        return web.Response(body=frame, content_type="application/octet-stream")
