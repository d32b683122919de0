"""A peer's signed HTTP view, asked by this node: `ports.PeerView`, the second path.

The fabric address is tried first, then the management address, each with its own deadline and on a
connection of its own: an answer proves that the peer's daemon answers *now* on that path. What does not
verify is no answer. Nothing is followed, decompressed or read beyond the size of one frame.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

import aiohttp

from sparkd.core.events import Host
from sparkd.core.messages import MemberStatus, Report
from sparkd.ports import Clock, PeerUnreachableError
from sparkd.wire import peerview
from sparkd.wire.codec import Decoder, Message
from sparkd.wire.envelope import SIZE_MAX
from sparkd.wire.refusal import WireError
from sparkd.wire.topics import Kind

DEADLINE_S = 2.0


@dataclass(frozen=True, slots=True)
class PeerAddress:
    """One way to a peer: its name ("fabric", "management"), where the peer listens."""

    path: str
    host: str
    port: int


async def _unknown(_ways: Sequence[tuple[str, int]]) -> Host:
    return Host.UNKNOWN


class HttpPeerView:
    """Asks peers over HTTP."""

    def __init__(
        self,
        *,
        key: bytes,
        cluster: str,
        peers: Mapping[str, tuple[PeerAddress, ...]],
        clock: Clock,
        deadline_s: float = DEADLINE_S,
        look: Callable[[Sequence[tuple[str, int]]], Awaitable[Host]] = _unknown,
        received: Callable[[], int | None] = lambda: None,
    ) -> None:
        """Prepare; connections are made when a peer is asked.

        Args:
            key: the cluster key.
            cluster: the cluster's name.
            peers: the addresses of every other node, in the order in which they are tried.
            clock: for the ages in reports.
            deadline_s: longest wait for one path.
            look: asks a host's own system where no path answered.
            received: counts what this node has received.
        """
        self._key = key
        self._peers = dict(peers)
        self._decoder = Decoder(key, cluster, tuple(peers))
        self._clock = clock
        self._deadline_s = deadline_s
        self._look, self._received = look, received

    async def status(self, node: str) -> MemberStatus:
        """Return the status of *node*, asked now. Raises PeerUnreachableError with what each path said."""
        message = await self._ask(node, peerview.status_target, Kind.STATUS)
        if not isinstance(message, MemberStatus):
            raise PeerUnreachableError(f"{node} answered something else")
        return message

    async def reports(self, node: str, first_seq: int) -> Report | None:
        """Return evidence of *node* from *first_seq* on, as much as one answer holds; None = there is none.

        Raises:
            PeerUnreachableError: no path answered, with what each said.
        """
        message = await self._ask(node, lambda nonce: peerview.reports_target(first_seq, nonce), Kind.REPORT)
        if not isinstance(message, Report):
            raise PeerUnreachableError(f"{node} answered something else")
        return message if message.signals else None

    async def _ask(self, node: str, target_of: Callable[[str], str], kind: Kind) -> Message:
        addresses = self._peers.get(node)
        if not addresses:
            raise PeerUnreachableError(f"no address of {node} is configured")
        said: list[str] = []
        for address in addresses:
            target = target_of(secrets.token_hex(16))
            try:
                frame = await self._get(node, address, target)
                context = peerview.answer_context(node, target)
                return self._decoder.answer(context, frame, kind, node, self._clock.now())
            except (aiohttp.ClientError, OSError, WireError, _RefusedError) as error:
                said.append(f"{address.path} {address.host}:{address.port}: {self._why(error)}")
        refused = any("connection refused" in each for each in said)
        ways = [(address.host, address.port) for address in addresses]
        host = Host.REFUSES if refused else await self._look(ways)
        raise PeerUnreachableError("; ".join(said), host)

    def received_bytes(self) -> int | None:
        """Return all that this node has received on its networks so far, None = unknown."""
        return self._received()

    async def _get(self, node: str, address: PeerAddress, target: str) -> bytes:
        host = f"[{address.host}]" if ":" in address.host else address.host
        url = f"http://{host}:{address.port}{target}"
        headers = {peerview.MAC_HEADER: peerview.request_mac(self._key, node, target)}
        timeout = aiohttp.ClientTimeout(total=self._deadline_s)
        connector = aiohttp.TCPConnector(force_close=True, limit=1)
        async with (
            aiohttp.ClientSession(connector=connector, timeout=timeout, auto_decompress=False) as session,
            session.get(url, headers=headers, allow_redirects=False) as response,
        ):
            if response.status != 200:
                raise _RefusedError(_refusal(response.status))
            return await _bounded(response.content)

    def _why(self, error: Exception) -> str:
        match error:
            case TimeoutError():
                return f"no answer within {self._deadline_s:g} s"
            case WireError():
                return f"an answer that does not hold ({error})"
            case aiohttp.ClientConnectorError():
                code = error.os_error.errno
                return os.strerror(code).lower() if code is not None else str(error.os_error)
            case _:
                return str(error) or type(error).__name__


class _RefusedError(Exception):
    """The peer answered, but not with what was asked."""


def _refusal(status: int) -> str:
    if status in (401, 403):
        return "refused this request's signature (another cluster key, or another node lives there)"
    return f"answered with HTTP status {status}"


async def _bounded(content: aiohttp.StreamReader) -> bytes:
    """Return the whole body, or raise where it is larger than a frame can be."""
    body = bytearray()
    while chunk := await content.read(SIZE_MAX + 1 - len(body)):
        body += chunk
        if len(body) > SIZE_MAX:
            raise _RefusedError(f"an answer of more than {SIZE_MAX} bytes")
    return bytes(body)
