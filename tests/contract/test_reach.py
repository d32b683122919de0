"""What a host's own system answers, and what this node receives: against real sockets, files as of sysfs."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

from sparkd.adapters import reach
from sparkd.core.events import Host

LOOPBACK = "127.0.0.1"
CLOSED = 1
NOWHERE = "fe80::1"
"""Link-local without a link: no way leads there."""


def looked(*ways: tuple[str, int]) -> Host:
    return asyncio.run(reach.look(ways, ssh_port=CLOSED))


def test_a_kernel_that_completes_a_handshake_answers_although_no_program_accepts() -> None:
    with socket.socket() as listening:
        listening.bind((LOOPBACK, 0))
        listening.listen(1)

        assert looked((NOWHERE, 1), (LOOPBACK, listening.getsockname()[1])) is Host.PINGS


@pytest.mark.parametrize(("greeting", "host"), [(b"SSH-2.0-x\r\n", Host.REFUSES), (b"220 mail", Host.PINGS)])
def test_a_host_whose_sshd_greets_is_not_wedged_although_its_sparkd_hangs(greeting, host) -> None:
    async def greet(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(greeting)
        writer.close()

    async def look() -> Host:
        async with await asyncio.start_server(greet, LOOPBACK, 0) as sshd:
            port = sshd.sockets[0].getsockname()[1]
            with socket.socket() as hanging:
                hanging.bind((LOOPBACK, 0))
                hanging.listen(1)
                return await reach.look([(LOOPBACK, hanging.getsockname()[1])], ssh_port=port)

    assert asyncio.run(look()) is host


def test_a_kernel_that_refuses_answers() -> None:
    with socket.socket() as unused:
        unused.bind((LOOPBACK, 0))

        assert looked((LOOPBACK, unused.getsockname()[1])) is Host.PINGS


@pytest.mark.parametrize(("pinged", "host"), [(False, Host.SILENT), (None, Host.UNKNOWN), (True, Host.PINGS)])
def test_silent_is_only_what_was_asked_on_every_way(pinged, host, monkeypatch: pytest.MonkeyPatch) -> None:
    async def ping(_host: str) -> bool | None:
        return pinged

    monkeypatch.setattr(reach, "_ping", ping)

    assert looked((NOWHERE, 1), (NOWHERE, 2)) is host


def test_who_has_no_address_is_unknown() -> None:
    assert looked() is Host.UNKNOWN


def test_a_ping_comes_back_or_is_not_allowed() -> None:
    """Which of the two is this machine's setting (net.ipv4.ping_group_range), never a silence."""
    assert asyncio.run(reach._ping(LOOPBACK)) in (True, None)


def test_what_is_received_is_that_of_all_networks_and_of_rdma(tmp_path: Path) -> None:
    counters = {
        "class/net/lo/statistics/rx_bytes": "1000000",
        "class/net/eth0/statistics/rx_bytes": "20\n",
        "class/net/fabric0/statistics/rx_bytes": "3",
        "class/infiniband/rocep1s0f0/ports/1/counters/port_rcv_data": "100",
        "class/infiniband/rocep1s0f1/ports/1/counters/port_rcv_data": "N/A",
    }
    for name, text in counters.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True)
        path.write_text(text, encoding="ascii")

    assert reach.received_bytes(tmp_path) == 23 + 4 * 100
    assert reach.received_bytes(tmp_path / "class") is None
