"""Ray's own table of nodes, asked of its GCS over gRPC without ray and without a protobuf runtime.

The field numbers are those of the descriptors of Ray 2.51.2 and 2.60.0, which agree. A known field in another
wire type means another protocol: the whole answer is then unknown, since a default would say "alive".
The decoder returns or says None for any bytes; it never raises.
"""

from __future__ import annotations

import contextlib
import math
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from sparkd.core.events import MembershipObserved, RayNode

# A healthy GCS answers in 1 to 3 ms; one that is gone must not hold up the next probe.
DEADLINE_S = 2.0
_ANSWER_MAX_BYTES = 16 << 20
_REASON_MAX = 200
_SERVICE = "/ray.rpc.NodeInfoGcsService/"
_HEALTH = "/grpc.health.v1.Health/Check"
_SERVING = b"\x08\x01"  # HealthCheckResponse{status: SERVING}
_OPTIONS = (
    ("grpc.enable_http_proxy", 0),
    ("grpc.service_config_disable_resolution", 1),
    # Not the process-wide pool: a new channel must not inherit an old one's dead connection or its backoff.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_receive_message_length", _ANSWER_MAX_BYTES),
)
_CODES = {
    grpc.StatusCode.UNAVAILABLE: "refused",
    grpc.StatusCode.DEADLINE_EXCEEDED: "deadline",
    grpc.StatusCode.UNAUTHENTICATED: "unauthenticated",
    grpc.StatusCode.PERMISSION_DENIED: "unauthenticated",
}

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_Value = int | float | bytes
_DEATHS = (
    "unspecified",
    "expected_termination",
    "unexpected_termination",
    "autoscaler_drain_preempted",
    "autoscaler_drain_idle",
)
# Field numbers and wire types of GetAllNodeInfoReply, GcsStatus, GcsNodeInfo, NodeDeathInfo, an entry of
# resources_total, CheckAliveReply.
_REPLY = {1: _BYTES, 2: _BYTES}
_STATUS = {1: _VARINT, 2: _BYTES}
_NODE = {1: _BYTES, 2: _BYTES, 5: _VARINT, 7: _VARINT, 11: _BYTES, 25: _VARINT, 29: _BYTES}
_DEATH = {1: _VARINT, 2: _BYTES}
_RESOURCE = {1: _BYTES, 2: _FIXED64}
_ALIVE = {1: _BYTES, 2: _BYTES}


class _WireError(ValueError):
    """The bytes are not the message that they should be."""


@dataclass(frozen=True, slots=True)
class Table:
    """The decoded table; `targets` gives each raylet's gRPC address by node id."""

    nodes: tuple[RayNode, ...]
    targets: Mapping[str, str]


class GcsTable:
    """The port `RayTable` over GCS's gRPC.

    Args:
        address: "ip:port" of GCS on the head, pinned: no resolver, no proxy.
        token_path: file with Ray's token, read at each probe; None = Ray runs without tokens.
        deadline_s: of one probe.
    """

    def __init__(
        self, address: str, *, token_path: Path | None = None, deadline_s: float = DEADLINE_S
    ) -> None:
        self._target = target(address)
        self._token_path = token_path
        self._deadline_s = deadline_s
        self._channel: grpc.aio.Channel | None = None
        self._version: str | None = None
        self._targets: Mapping[str, str] = {}

    async def observe(self, generation: int) -> MembershipObserved:
        """Return the table, or unknown with the reason. Never raises for an outside failure."""
        try:
            table = decode_table(await self._ask("GetAllNodeInfo"))
            if self._version is None:
                with contextlib.suppress(grpc.aio.AioRpcError):
                    self._version = decode_version(await self._ask("CheckAlive"))
        except grpc.aio.AioRpcError as error:
            # A fresh channel connects at once; an old one waits out its backoff, or a dead connection.
            await self.close()
            return MembershipObserved(generation, None, _reason(error))
        except OSError as error:
            return MembershipObserved(generation, None, f"unauthenticated: no token: {error}")
        if isinstance(table, str):
            return MembershipObserved(generation, None, f"bad_answer: {table}", self._version)
        self._targets = table.targets
        return MembershipObserved(generation, table.nodes, "", self._version)

    async def raylet_healthy(self, node_id: str) -> bool | None:
        """Ask a raylet of the last table itself (grpc.health.v1, no token): True, False, None = no answer."""
        where = self._targets.get(node_id)
        if where is None:
            return None
        async with grpc.aio.insecure_channel(where, options=_OPTIONS) as channel:
            try:
                answer: bytes = await channel.unary_unary(_HEALTH)(b"", timeout=self._deadline_s)
            except grpc.aio.AioRpcError as error:
                silent = error.code() in {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED}
                return None if silent else False
        return answer == _SERVING

    async def close(self) -> None:
        """Close the connection; the next probe opens a new one."""
        channel, self._channel, self._version = self._channel, None, None
        if channel is not None:
            await channel.close()

    async def _ask(self, method: str) -> bytes:
        """Call a method with an empty request; raise AioRpcError, or OSError where the token is missing."""
        metadata: list[tuple[str, str]] = []
        if self._token_path is not None:
            token = self._token_path.read_text("ascii", "ignore")
            metadata.append(("authorization", "Bearer " + "".join(filter(str.isprintable, token)).strip()))
        if self._channel is None:
            self._channel = grpc.aio.insecure_channel(self._target, options=_OPTIONS)
        call: Any = self._channel.unary_unary(_SERVICE + method)
        answer: bytes = await call(b"", timeout=self._deadline_s, metadata=metadata)
        return answer


def target(address: str) -> str:
    """Return the gRPC target for "host:port"; an IP address is used as it is, without a resolver."""
    host, _, port = address.rpartition(":")
    try:
        ip = ip_address(host.strip("[]"))
    except ValueError:
        return f"dns:///{address}"
    return f"ipv4:{ip}:{port}" if ip.version == 4 else f"ipv6:[{ip}]:{port}"


def decode_table(data: bytes) -> Table | str:
    """Return the table in a GetAllNodeInfoReply, or why it is none."""
    try:
        reply = _message(data, _REPLY)
        status = _message(_bytes(reply, 1), _STATUS)
        if _int(status, 1) != 0:
            return f"GCS says {_int(status, 1)}: {_text(status, 2)}"
        nodes, targets = [], {}
        for raw in reply.get(2, ()):
            fields = _message(raw, _NODE) if isinstance(raw, bytes) else {}
            node = _node(fields)
            nodes.append(node)
            if 0 < _int(fields, 5) < 65536:
                targets[node.node_id] = target(f"{node.address}:{_int(fields, 5)}")
    except _WireError as error:
        return str(error)
    return Table(tuple(nodes), targets)


def decode_version(data: bytes) -> str | None:
    """Return Ray's version from a CheckAliveReply, None where it is none."""
    try:
        return _text(_message(data, _ALIVE), 2) or None
    except _WireError:
        return None


def _node(fields: Mapping[int, list[_Value]]) -> RayNode:
    node_id, address = _bytes(fields, 1).hex(), _text(fields, 2)
    if not node_id or not address:
        raise _WireError("a node without id or address")
    death = _message(_bytes(fields, 29), _DEATH)
    reason = _int(death, 1)
    name = _DEATHS[reason] if reason < len(_DEATHS) else f"reason_{reason}"
    return RayNode(
        address=address,
        alive=_int(fields, 7) == 0,
        is_head=_int(fields, 25) == 1,
        node_id=node_id,
        resources=tuple(_resource(raw) for raw in fields.get(11, ()) if isinstance(raw, bytes)),
        death_reason=f"{name}: {_text(death, 2)}" if death else "",
    )


def _resource(raw: bytes) -> tuple[str, float]:
    entry = _message(raw, _RESOURCE)
    amount = float(entry.get(2, [0.0])[-1])
    if not math.isfinite(amount):
        raise _WireError("a resource that is no number")
    return _text(entry, 1), amount


def _message(data: bytes, kinds: Mapping[int, int]) -> dict[int, list[_Value]]:
    """Return the values of the known fields by number; unknown fields are passed over."""
    found: dict[int, list[_Value]] = {}
    for number, kind, value in _fields(data):
        if number not in kinds:
            continue
        if kinds[number] != kind:
            raise _WireError(f"field {number} has wire type {kind}")
        found.setdefault(number, []).append(value)
    return found


def _fields(data: bytes) -> Iterator[tuple[int, int, _Value]]:
    """Yield (number, wire type, value) of every field."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        number, kind = key >> 3, key & 7
        value: _Value
        if kind == _VARINT:
            value, at = _varint(data, at)
        elif kind in {_FIXED64, _FIXED32}:
            size = 8 if kind == _FIXED64 else 4
            value = struct.unpack("<d" if size == 8 else "<f", _cut(data, at, size))[0]
            at += size
        elif kind == _BYTES:
            size, at = _varint(data, at)
            value = _cut(data, at, size)
            at += size
        else:
            raise _WireError(f"wire type {kind}")
        if number == 0:
            raise _WireError("field 0")
        yield number, kind, value


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a base-128 number and where it ends; at most ten bytes, as protobuf has it."""
    value = 0
    for index, byte in enumerate(data[at : at + 10]):
        value |= (byte & 127) << (7 * index)
        if byte < 128:
            return value, at + index + 1
    raise _WireError("a number without end")


def _cut(data: bytes, at: int, size: int) -> bytes:
    if at + size > len(data):
        raise _WireError("cut off")
    return data[at : at + size]


def _int(fields: Mapping[int, list[_Value]], number: int) -> int:
    """Return a number field, 0 where it is absent, as proto3 has it."""
    return int(fields.get(number, [0])[-1])


def _bytes(fields: Mapping[int, list[_Value]], number: int) -> bytes:
    value = fields.get(number, [b""])[-1]
    return value if isinstance(value, bytes) else b""


def _text(fields: Mapping[int, list[_Value]], number: int) -> str:
    return _bytes(fields, number).decode("utf-8", "replace")


def _reason(error: grpc.aio.AioRpcError) -> str:
    """Return the failure as code and text, on one line."""
    text = " ".join((error.details() or error.code().name).split())
    return f"{_CODES.get(error.code(), 'bad_answer')}: {text[:_REASON_MAX]}"
