"""Whether a host's own system answers where no program on it does, and what this node still receives.

A node that ran out of memory wedges: its kernel answers ping and completes a handshake, and nothing else
does; its sshd greets nobody, which tells it from a node on which sparkd alone hangs. A ping needs no
privilege where `net.ipv4.ping_group_range` holds the daemon's group; elsewhere a host that completes no
handshake is unknown, never silent.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Sequence
from pathlib import Path

from sparkd.core.events import Host

PING_S = 1.0
"""A fabric answers in less than a millisecond, a management network in a few: longer is no answer."""
GREET_S = 2.0
"""An sshd that is well greets at once (RFC 4253, 4.2); one on a machine under load within a second."""
SSH_PORT = 22
_ECHO = {
    socket.AF_INET: (socket.IPPROTO_ICMP, bytes((8, 0, 0, 0, 0, 0, 0, 1)) + b"sparkd"),
    socket.AF_INET6: (socket.IPPROTO_ICMPV6, bytes((128, 0, 0, 0, 0, 0, 0, 1)) + b"sparkd"),
}
"""Echo requests (RFC 792, RFC 4443); the kernel fills in identifier and checksum."""
_WORD_BYTES = 4
"""Unit of InfiniBand's data counters (IB specification, PortRcvData)."""


async def look(ways: Sequence[tuple[str, int]], ssh_port: int = SSH_PORT) -> Host:
    """Return what the system behind *ways* (host, port) says, where none of them brought an answer."""
    said = await asyncio.gather(*(_answers(host, port) for host, port in ways))
    if any(said):
        greeted = await asyncio.gather(*(_greets(host, ssh_port) for host, _ in ways))
        return Host.REFUSES if any(greeted) else Host.PINGS
    return Host.SILENT if said and all(each is False for each in said) else Host.UNKNOWN


async def _answers(host: str, port: int) -> bool | None:
    """Return whether the host's kernel answers; None where it could not be pinged and completes nothing."""
    pinged, shaken = await asyncio.gather(_ping(host), _handshake(host, port))
    return True if shaken else pinged


async def _handshake(host: str, port: int) -> bool:
    """Return whether a connection comes to be: the kernel's doing, also before a program accepts it."""
    try:
        async with asyncio.timeout(PING_S):
            _, writer = await asyncio.open_connection(host, port)
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    writer.close()
    return True


async def _greets(host: str, port: int) -> bool:
    """Return whether the host's sshd greets: a program of it runs."""
    try:
        async with asyncio.timeout(GREET_S):
            reader, writer = await asyncio.open_connection(host, port)
            try:
                return await reader.read(4) == b"SSH-"
            finally:
                writer.close()
    except OSError:
        return False


async def _ping(host: str) -> bool | None:
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(PING_S):
            ((family, _, _, _, address), *_) = await loop.getaddrinfo(host, 0, type=socket.SOCK_DGRAM)
            protocol, echo = _ECHO[family]
            with socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK, protocol) as own:
                own.connect(address)
                await loop.sock_sendall(own, echo)
                return bool(await loop.sock_recv(own, 256))
    except (PermissionError, socket.gaierror, KeyError):
        return None  # nobody asked, so nobody was silent
    except OSError:
        return False


def received_bytes(sys: Path = Path("/sys")) -> int | None:
    """Return what this node has received on all networks since it began, RDMA included; None = unknown."""
    nets = [path for path in sys.glob("class/net/*/statistics/rx_bytes") if path.parts[-3] != "lo"]
    fabrics = sys.glob("class/infiniband/*/ports/*/counters/port_rcv_data")
    counted = [_number(path) for path in nets] + [_number(path, _WORD_BYTES) for path in fabrics]
    known = [count for count in counted if count is not None]
    return sum(known) if known else None


def _number(path: Path, unit: int = 1) -> int | None:
    with contextlib.suppress(OSError, ValueError):
        return unit * int(path.read_text(encoding="ascii"))
    return None
