"""The GCS client against a gRPC server of its own kind, and the decoder against any bytes."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import grpc
import grpc.aio
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sparkd.adapters.ray_table import GcsTable, Table, decode_table, decode_version, target
from sparkd.core.events import MembershipObserved, RayNode

HEAD_ID, WORKER_ID = b"\xaa" * 28, b"\xbb" * 28


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def field(number: int, value: bytes | str | float) -> bytes:
    """Encode one field, as protobuf does."""
    if isinstance(value, float):
        return varint(number << 3 | 1) + struct.pack("<d", value)
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


def node(node_id: bytes, address: str, *more: bytes) -> bytes:
    return field(2, field(1, node_id) + field(2, address) + b"".join(more))


GPU = field(11, field(1, "GPU") + field(2, 1.0))
NOISE = field(24, 123) + field(26, field(1, "ray.io/node-id") + field(2, "x")) + field(33, "later")
REPLY = (
    field(1, b"")
    + node(HEAD_ID, "10.0.0.1", field(5, 40001), field(25, 1), GPU, NOISE)
    + node(WORKER_ID, "10.0.0.2", field(7, 1), field(29, field(1, 1) + field(2, "received SIGTERM")))
)
NODES = (
    RayNode("10.0.0.1", True, True, HEAD_ID.hex(), (("GPU", 1.0),)),
    RayNode("10.0.0.2", False, False, WORKER_ID.hex(), (), "expected_termination: received SIGTERM"),
)


class Gcs(grpc.GenericRpcHandler):
    """Answers each method with bytes, a status, or never; remembers what it was told."""

    def __init__(self, **answers: object) -> None:
        self.answers = {
            "GetAllNodeInfo": REPLY,
            "CheckAlive": field(2, "2.60.0"),
            "Check": b"\x08\x01",
        } | answers
        self.asked: list[tuple[str, bytes, dict[str, str]]] = []

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        name = details.method.rpartition("/")[2]
        metadata = dict(details.invocation_metadata)

        async def answer(request: bytes, context: grpc.aio.ServicerContext) -> bytes:
            self.asked.append((details.method, request, metadata))
            reply = self.answers[name]
            if isinstance(reply, grpc.StatusCode):
                await context.abort(reply, "said so\nby the test")
            if reply is None:
                await asyncio.Event().wait()
            return reply

        return grpc.unary_unary_rpc_method_handler(answer)


@asynccontextmanager
async def serving(gcs: Gcs, port: int = 0) -> AsyncIterator[int]:
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((gcs,))
    bound = server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    try:
        yield bound
    finally:
        await server.stop(None)


def ask(gcs: Gcs, scenario: Callable[[GcsTable], Awaitable[None]], **options: object) -> None:
    async def whole() -> None:
        async with serving(gcs) as port:
            table = GcsTable(f"127.0.0.1:{port}", **options)
            try:
                await asyncio.wait_for(scenario(table), 30)
            finally:
                await table.close()

    asyncio.run(whole())


def test_the_table_and_the_version_are_read() -> None:
    gcs = Gcs()

    async def scenario(table: GcsTable) -> None:
        for _ in range(2):
            assert await table.observe(4) == MembershipObserved(4, NODES, "", "2.60.0")

    ask(gcs, scenario)
    methods = [method.rpartition("/")[2] for method, _, _ in gcs.asked]
    assert methods == ["GetAllNodeInfo", "CheckAlive", "GetAllNodeInfo"]
    assert all(method.startswith("/ray.rpc.NodeInfoGcsService/") for method, _, _ in gcs.asked)
    assert all("authorization" not in metadata for _, _, metadata in gcs.asked)


def test_the_token_is_sent(tmp_path) -> None:
    (tmp_path / "token").write_text("secret\n")
    gcs = Gcs()

    async def scenario(table: GcsTable) -> None:
        await table.observe(4)

    ask(gcs, scenario, token_path=tmp_path / "token")
    assert {metadata["authorization"] for _, _, metadata in gcs.asked} == {"Bearer secret"}


def test_a_missing_token_file_is_said(tmp_path) -> None:
    async def scenario(table: GcsTable) -> None:
        observed = await table.observe(4)
        assert observed.nodes is None and observed.reason.startswith("unauthenticated: no token")

    ask(Gcs(), scenario, token_path=tmp_path / "none")


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (grpc.StatusCode.UNAUTHENTICATED, "unauthenticated: said so by the test"),
        (grpc.StatusCode.UNIMPLEMENTED, "bad_answer: said so by the test"),
        (grpc.StatusCode.UNAVAILABLE, "refused: said so by the test"),
        (None, "deadline: "),
        (b"\x0f\xff", "bad_answer: "),
        (field(1, field(1, 14) + field(2, "starting")), "bad_answer: GCS says 14: starting"),
    ],
)
def test_what_is_not_a_table_is_unknown_with_its_reason(reply, reason) -> None:
    async def scenario(table: GcsTable) -> None:
        observed = await table.observe(4)
        assert observed.nodes is None
        assert observed.reason.startswith(reason)

    ask(Gcs(GetAllNodeInfo=reply), scenario, deadline_s=0.5 if reply is None else 10.0)


def test_an_unknown_version_does_not_hide_the_table() -> None:
    async def scenario(table: GcsTable) -> None:
        assert await table.observe(4) == MembershipObserved(4, NODES)

    ask(Gcs(CheckAlive=grpc.StatusCode.UNIMPLEMENTED), scenario)


def test_a_gcs_that_was_refused_is_seen_at_the_next_probe() -> None:
    async def scenario() -> None:
        async with serving(Gcs()) as port:
            pass
        table = GcsTable(f"127.0.0.1:{port}")
        try:
            for _ in range(3):
                observed = await table.observe(1)
                assert observed.nodes is None and observed.reason.startswith("refused: ")
            async with serving(Gcs(), port):
                assert (await table.observe(1)).nodes == NODES
            assert (await table.observe(1)).nodes is None
        finally:
            await table.close()

    asyncio.run(asyncio.wait_for(scenario(), 60))


def test_a_proxy_is_not_used(monkeypatch) -> None:
    for name in ("http_proxy", "https_proxy", "grpc_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")

    async def scenario(table: GcsTable) -> None:
        assert (await table.observe(4)).nodes == NODES

    ask(Gcs(), scenario)


@pytest.mark.parametrize(
    ("check", "healthy"),
    [
        (b"\x08\x01", True),
        (b"\x08\x02", False),
        (b"", False),
        (grpc.StatusCode.UNIMPLEMENTED, False),
        (None, None),
    ],
)
def test_a_raylet_is_asked_itself(check, healthy) -> None:
    async def scenario() -> None:
        async with serving(Gcs(Check=check)) as port:
            reply = node(HEAD_ID, "127.0.0.1", field(5, port)) + node(WORKER_ID, "127.0.0.1")
            async with serving(Gcs(GetAllNodeInfo=reply)) as gcs:
                table = GcsTable(f"127.0.0.1:{gcs}", deadline_s=0.5 if check is None else 10.0)
                assert await table.raylet_healthy(HEAD_ID.hex()) is None, "no table yet"
                await table.observe(1)
                assert await table.raylet_healthy(HEAD_ID.hex()) is healthy
                assert await table.raylet_healthy(WORKER_ID.hex()) is None, "no port in the table"
                await table.close()
        table._targets = {"gone": f"ipv4:127.0.0.1:{port}"}
        assert await table.raylet_healthy("gone") is None

    asyncio.run(asyncio.wait_for(scenario(), 60))


def test_addresses_are_pinned() -> None:
    assert target("10.0.0.1:6379") == "ipv4:10.0.0.1:6379"
    assert target("[fd00::1]:6379") == "ipv6:[fd00::1]:6379"
    assert target("spark-1:6379") == "dns:///spark-1:6379"


@pytest.mark.parametrize(
    "wrong",
    [
        node(b"", "10.0.0.1"),
        node(HEAD_ID, ""),
        node(HEAD_ID, "10.0.0.1", field(7, b"\x01")),
        node(HEAD_ID, "10.0.0.1", field(11, field(1, "GPU") + field(2, float("nan")))),
        node(HEAD_ID, "10.0.0.1", field(11, field(1, "GPU") + field(2, 1))),
        field(2, 1),
        REPLY[:-3],
        field(0, 1),
        b"\x0b\x0c",
    ],
)
def test_a_changed_protocol_is_not_read_as_alive(wrong) -> None:
    assert isinstance(decode_table(wrong), str)


def test_unheard_of_states_and_deaths_are_not_alive() -> None:
    table = decode_table(node(HEAD_ID, "10.0.0.1", field(7, 9), field(29, field(1, 77))))
    assert isinstance(table, Table)
    assert not table.nodes[0].alive
    assert table.nodes[0].death_reason == "reason_77: "


def test_an_empty_reply_is_an_empty_table() -> None:
    assert decode_table(b"") == Table((), {})


@given(st.binary(max_size=300))
@example(b"\xff" * 20)
@example(b"\x12\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01")
def test_decoding_never_raises(data) -> None:
    assert isinstance(decode_table(data), Table | str)
    assert isinstance(decode_version(data), str | None)


@given(st.integers(0, len(REPLY) - 1), st.integers(0, 255), st.integers(0, len(REPLY)))
def test_decoding_a_damaged_table_never_raises(at, byte, end) -> None:
    damaged = bytearray(REPLY)
    damaged[at] = byte
    assert isinstance(decode_table(bytes(damaged[:end])), Table | str)


@given(
    st.lists(
        st.tuples(
            st.binary(min_size=1, max_size=28), st.ip_addresses().map(str), st.booleans(), st.booleans()
        ),
        max_size=5,
    )
)
def test_what_is_encoded_is_decoded(nodes) -> None:
    data = b"".join(
        node(node_id, address, field(7, int(not alive)), field(25, int(head)))
        for node_id, address, alive, head in nodes
    )
    table = decode_table(data)
    assert isinstance(table, Table)
    assert [(bytes.fromhex(n.node_id), n.address, n.alive, n.is_head) for n in table.nodes] == nodes
