"""Protobuf by hand: only what GCS answers and health checks need, no protobuf package."""

import struct
from collections.abc import Iterator
from typing import Any

HEALTH_SERVING = b"\x08\x01"
DEATH_REASONS = {"EXPECTED_TERMINATION": 1, "UNEXPECTED_TERMINATION": 2}


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def key(number: int, wire: int) -> bytes:
    return varint(number << 3 | wire)


def integer(number: int, value: int) -> bytes:
    """Proto3 leaves out a zero."""
    return key(number, 0) + varint(value) if value else b""


def blob(number: int, value: bytes) -> bytes:
    return key(number, 2) + varint(len(value)) + value


def text(number: int, value: str) -> bytes:
    return blob(number, value.encode()) if value else b""


def double(number: int, value: float) -> bytes:
    return key(number, 1) + struct.pack("<d", value) if value else b""


def fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Decode one message: (field number, int | bytes | float)."""
    at = 0
    while at < len(data):
        head, at = _read_varint(data, at)
        number, wire = head >> 3, head & 7
        if wire == 0:
            value, at = _read_varint(data, at)
        elif wire == 2:
            size, at = _read_varint(data, at)
            value, at = data[at : at + size], at + size
        elif wire == 1:
            value, at = struct.unpack("<d", data[at : at + 8])[0], at + 8
        else:
            raise ValueError(f"wire type {wire}")
        yield number, value


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value, at


def node_info(node: dict[str, Any]) -> bytes:
    """GcsNodeInfo; field numbers as in Ray 2.51 to 2.60."""
    out = blob(1, bytes.fromhex(node["node_id"])) + text(2, node["address"]) + text(3, node["raylet_socket"])
    out += text(4, node["store_socket"]) + integer(5, node["port"]) + integer(6, node["object_port"])
    out += (
        integer(7, 0 if node["alive"] else 1) + text(8, node["hostname"]) + integer(9, node["metrics_port"])
    )
    for name, amount in node["resources"].items():
        out += blob(11, text(1, name) + double(2, amount))
    out += text(12, node["name"]) + integer(23, node["start_ms"]) + integer(24, node["end_ms"])
    out += integer(25, int(node["head"]))
    out += blob(26, text(1, "ray.io/node-id") + text(2, node["node_id"]))
    if death := node["death"]:
        out += blob(29, integer(1, DEATH_REASONS[death[0]]) + text(2, death[1]))
    return out + text(32, node["temp_dir"]) + text(33, node["session_dir"])


def all_nodes_reply(nodes: list[dict[str, Any]]) -> bytes:
    """GetAllNodeInfoReply: an OK status is an empty GcsStatus."""
    return blob(1, b"") + b"".join(blob(2, node_info(node)) for node in nodes)


def check_alive_reply(version: str, alive: list[bool]) -> bytes:
    packed = blob(3, b"".join(varint(int(x)) for x in alive)) if alive else b""
    return blob(1, b"") + text(2, version) + packed
