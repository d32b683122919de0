"""The second path: a peer's signed HTTP view, asked and answered over real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import aiohttp
import pytest

from ports import free_port
from sparkd.adapters import reach
from sparkd.adapters.peer import HttpPeerView, PeerAddress
from sparkd.api.peerview import PeerViewServer
from sparkd.core.events import Host
from sparkd.core.messages import Report
from sparkd.ports import PeerUnreachableError
from sparkd.wire import peerview
from sparkd.wire.envelope import SIZE_MAX
from wire.brokers import DEADLINE_S, LOOPBACK, HandClock
from wire.samples import CLUSTER, HEAD, INSTANCE, KEY, NOW, REPORT, SIGNAL, STATUS, WORKER, encoder_of

Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def server(reports: Callable[[int], Report | None] = lambda _: None, **changed: Any) -> PeerViewServer:
    options = {"key": KEY, "cluster": CLUSTER, "node": WORKER, "instance": INSTANCE, "clock": HandClock()}
    return PeerViewServer(**options | {"status": lambda: STATUS, "reports": reports} | changed)


def client(*ports: int, **changed: Any) -> HttpPeerView:
    paths = ("fabric", "management")
    addresses = tuple(PeerAddress(path, LOOPBACK, port) for path, port in zip(paths, ports, strict=False))
    options = {"key": KEY, "cluster": CLUSTER, "peers": {WORKER: addresses}, "clock": HandClock()}
    return HttpPeerView(**options | changed)


def run(view: PeerViewServer, test: Callable[[int], Awaitable[None]]) -> None:
    """Run *test* with the port of *view*."""

    async def served() -> None:
        (port,) = await view.start([(LOOPBACK, 0)])
        try:
            await test(port)
        finally:
            await view.stop()

    asyncio.run(served())


def run_raw(answer: Answer, test: Callable[[int], Awaitable[None]]) -> None:
    """Run *test* with the port of a server that answers any connection with *answer*."""

    async def served() -> None:
        tasks: set[asyncio.Task[None]] = set()

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            tasks.add(asyncio.current_task())
            try:
                await answer(reader, writer)
            except ConnectionError:
                return
            finally:
                writer.close()

        raw = await asyncio.start_server(accept, LOOPBACK, 0)
        async with raw:
            await test(raw.sockets[0].getsockname()[1])
        if tasks:
            await asyncio.wait(tasks, timeout=DEADLINE_S)

    asyncio.run(served())


def answering(head: bytes, body: bytes = b"") -> Answer:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(head + b"\r\n\r\n" + body)
        await writer.drain()

    return answer


async def why(view: HttpPeerView, node: str = WORKER) -> str:
    with pytest.raises(PeerUnreachableError) as caught:
        await view.status(node)
    return str(caught.value)


async def get(
    port: int, target: str, headers: dict[str, str] | None = None, method: str = "GET"
) -> tuple[int, bytes]:
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, f"http://{LOOPBACK}:{port}{target}", headers=headers) as response,
    ):
        return response.status, await response.read()


def signed(target: str, node: str = WORKER) -> dict[str, str]:
    return {peerview.MAC_HEADER: peerview.request_mac(KEY, node, target)}


def test_the_status_is_answered() -> None:
    """A peer's status comes back as it is now."""

    async def test(port: int) -> None:
        assert await client(port).status(WORKER) == STATUS

    run(server(), test)


def test_evidence_is_answered_from_a_number_on() -> None:
    """The server is asked for exactly what is missing; ages are translated with both clocks."""
    asked: list[int] = []

    def reports(first_seq: int) -> Report | None:
        asked.append(first_seq)
        return replace(REPORT, first_seq=first_seq) if first_seq < 10 else None

    async def test(port: int) -> None:
        clock = HandClock()
        clock.now_s = 100.0
        view = client(port, clock=clock)
        report = await view.reports(WORKER, 4)
        assert (report.first_seq, report.signals[0].at_s) == (4, SIGNAL.at_s - NOW + 100.0)
        assert await view.reports(WORKER, 10) is None
        assert asked == [4, 10]

    run(server(reports), test)


def test_much_evidence_is_answered_in_parts() -> None:
    """An answer holds one frame; what is missing then is asked for next."""
    everything = replace(REPORT, signals=(replace(SIGNAL, quote="x" * 900),) * 150)

    def reports(first_seq: int) -> Report | None:
        left = everything.signals[first_seq - 1 :]
        return replace(everything, first_seq=first_seq, signals=left) if left else None

    async def test(port: int) -> None:
        view, received = client(port), 0
        while (report := await view.reports(WORKER, received + 1)) is not None:
            assert report.first_seq == received + 1
            received += len(report.signals)
        assert received == 150

    run(server(reports), test)


def test_the_management_path_is_tried_next() -> None:
    """A fabric that is down does not make a peer unreachable."""

    async def test(port: int) -> None:
        assert await client(free_port(), port).status(WORKER) == STATUS

    run(server(), test)


def test_every_path_is_told() -> None:
    """Where none answers, the reason says what each said."""

    async def test() -> None:
        one, two = free_port(), free_port()
        said = await why(client(one, two))
        assert said == (
            f"fabric {LOOPBACK}:{one}: connection refused; management {LOOPBACK}:{two}: connection refused"
        )
        with pytest.raises(PeerUnreachableError) as caught:
            await client(one, two).status(WORKER)
        assert caught.value.host is Host.REFUSES
        assert await why(client(), "spark-9") == "no address of spark-9 is configured"

    asyncio.run(test())


def test_a_peer_that_says_nothing_is_a_deadline() -> None:
    """A wedged peer accepts, or not even that, and never answers."""

    async def silent(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await reader.read()

    async def test(port: int) -> None:
        assert (await why(client(port, deadline_s=0.1))).endswith("no answer within 0.1 s")
        with pytest.raises(PeerUnreachableError) as caught:
            await client(port, deadline_s=0.1, look=reach.look).status(WORKER)
        assert caught.value.host is Host.PINGS

    run_raw(silent, test)


def test_a_slow_answer_is_a_deadline() -> None:
    """The deadline is for the whole answer: dripping does not prolong it."""

    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc")
        await reader.read(-1)

    async def test(port: int) -> None:
        assert (await why(client(port, deadline_s=0.1))).endswith("no answer within 0.1 s")

    run_raw(drip, test)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (answering(b"HTTP/1.1 302 Found\r\nLocation: /peer/status\r\nContent-Length: 0"), "HTTP status 302"),
        (answering(b"HTTP/1.1 500 No\r\nContent-Length: 0"), "HTTP status 500"),
        (answering(b"HTTP/1.1 403 No\r\nContent-Length: 0"), "refused this request's signature"),
        (answering(b"HTTP/1.1 200 OK\r\nContent-Length: 5", b"hello"), "not_signed"),
        (answering(b"HTTP/1.1 200 OK\r\nContent-Length: 70000", b"x" * 70000), f"more than {SIZE_MAX} bytes"),
        (answering(b"HTTP/1.1 200 OK", b"x" * (1 << 20)), f"more than {SIZE_MAX} bytes"),
        (answering(b"SSH-2.0-OpenSSH_9.6"), "Expected HTTP/"),
        (answering(b"HTTP/1.1 200 OK\r\nX: " + b"y" * 100000), "8190"),
    ],
)
def test_strange_answers_are_no_answer(answer: Answer, said: str) -> None:
    """Nothing is followed, read without end, or believed without its signature."""

    async def test(port: int) -> None:
        assert said in await why(client(port))

    run_raw(answer, test)


def test_an_old_answer_is_no_answer() -> None:
    """The answer is signed for the question and its nonce: a recorded one does not hold."""
    target = peerview.status_target("0" * 32)
    frame = encoder_of(STATUS).frame(peerview.answer_context(WORKER, target), STATUS, NOW)

    async def test(port: int) -> None:
        assert "bad_mac" in await why(client(port))

    run_raw(answering(b"HTTP/1.1 200 OK\r\nContent-Length: %d" % len(frame), frame), test)


def test_a_retained_message_is_no_answer() -> None:
    """What was said over MQTT cannot be passed off as an answer."""
    frame = encoder_of(STATUS).encode(STATUS, NOW).payload

    async def test(port: int) -> None:
        assert "bad_mac" in await why(client(port))

    run_raw(answering(b"HTTP/1.1 200 OK\r\nContent-Length: %d" % len(frame), frame), test)


@pytest.mark.parametrize("changed", [{"key": b"another cluster key of 32 bytes."}, {"node": HEAD}])
def test_another_key_or_node_is_told(changed: dict[str, Any]) -> None:
    """A peer with another cluster key, or another node at the address: the reason names both."""

    async def test(port: int) -> None:
        assert "another cluster key, or another node lives there" in await why(client(port))

    run(server(**changed), test)


def test_another_cluster_is_told() -> None:
    """The same key in two clusters does not mix them."""

    async def test(port: int) -> None:
        assert "wrong_cluster" in await why(client(port))

    run(server(cluster="other"), test)


def test_a_stranger_gets_nothing() -> None:
    """Without the signature of this very request for this very node there is no evidence."""
    nonce = "ab" * 16
    target = peerview.reports_target(1, nonce)

    async def test(port: int) -> None:
        for headers in (
            None,
            {peerview.MAC_HEADER: ""},
            {peerview.MAC_HEADER: "0" * 64},
            signed(target, HEAD),
            signed(peerview.status_target(nonce)),
        ):
            status, body = await get(port, target, headers)
            assert (status, b"spark" in body) == (403, False)
        assert (await get(port, target, signed(target)))[0] == 200

    run(server(lambda _: REPORT), test)


def test_a_request_is_answered_once() -> None:
    """A recorded request cannot be asked again."""
    target = peerview.status_target("cd" * 16)

    async def test(port: int) -> None:
        assert [(await get(port, target, signed(target)))[0] for _ in range(2)] == [200, 400]

    run(server(), test)


@pytest.mark.parametrize(
    ("target", "status"),
    [
        ("/peer/status", 400),
        ("/peer/status?nonce=1", 400),
        ("/peer/reports?nonce=" + "0" * 32, 400),
        ("/peer/reports?from=-1&nonce=" + "0" * 32, 400),
        ("/peer/reports?from=" + "9" * 40 + "&nonce=" + "0" * 32, 400),
        ("/peer/orders?nonce=" + "0" * 32, 404),
        ("/", 404),
    ],
)
def test_bad_requests_are_refused(target: str, status: int) -> None:
    """Even signed ones are held to their form."""

    async def test(port: int) -> None:
        assert (await get(port, target, signed(target)))[0] == status

    run(server(), test)


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "HEAD", "OPTIONS"])
def test_nothing_can_be_changed(method: str) -> None:
    """The view is read-only."""
    target = peerview.status_target("0" * 32)

    async def test(port: int) -> None:
        assert (await get(port, target, signed(target), method))[0] == 405

    run(server(), test)


def test_what_is_out_of_bounds_is_not_said() -> None:
    """A status that no peer would take is an error of this node, not an answer."""

    async def test(port: int) -> None:
        assert "HTTP status 500" in await why(client(port))

    run(server(status=lambda: replace(STATUS, report_seq=-1)), test)


def test_nonces_are_bounded(monkeypatch) -> None:
    """However many requests there were, a bounded number is remembered."""
    monkeypatch.setattr("sparkd.api.peerview.NONCES_MAX", 4)
    view = server()

    async def test(port: int) -> None:
        for _ in range(10):
            await client(port).status(WORKER)
        assert len(view._nonces) == 4

    run(view, test)


def test_an_address_in_use_is_an_error() -> None:
    """Listening is all or nothing, and can be tried again."""

    async def test() -> None:
        view, other = server(), server()
        try:
            ports = await view.start([(LOOPBACK, 0), (LOOPBACK, 0)])
            assert len(set(ports)) == 2
            with pytest.raises(OSError, match="address already in use"):
                await other.start([(LOOPBACK, 0), (LOOPBACK, ports[0])])
            await view.stop()
            assert await other.start([(LOOPBACK, ports[0])]) == (ports[0],)
        finally:
            await view.stop()
            await other.stop()

    asyncio.run(test())
