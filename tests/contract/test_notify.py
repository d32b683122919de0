"""sd_notify: what is said, and that nobody listening is no error."""

from __future__ import annotations

import socket

import pytest

from sparkd.adapters.notify import STATUS_MAX, Notifier


@pytest.fixture(params=["path", "abstract"])
def heard(request, tmp_path):
    address = (
        str(tmp_path / "notify") if request.param == "path" else f"@sparkd-test-{tmp_path.name}-{id(request)}"
    )
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as way:
        way.bind(address.replace("@", "\0", 1) if address[0] == "@" else address)
        way.settimeout(10)
        yield way, Notifier.of({"NOTIFY_SOCKET": address})


def test_what_is_said(heard) -> None:
    way, notifier = heard
    notifier.ready()
    notifier.status("loading weights\n8 of 39")
    notifier.status("loading weights 8 of 39")
    notifier.alive()
    notifier.stopping()
    said = [way.recv(1000).decode() for _ in range(4)]
    assert said == ["READY=1", "STATUS=loading weights 8 of 39", "WATCHDOG=1", "STOPPING=1"]


def test_a_status_is_one_line_of_bounded_length(heard) -> None:
    way, notifier = heard
    notifier.status("x" * 10_000)
    assert way.recv(20_000).decode() == "STATUS=" + "x" * STATUS_MAX


@pytest.mark.parametrize("environ", [{}, {"NOTIFY_SOCKET": ""}, {"NOTIFY_SOCKET": "/no/such/socket"}])
def test_nobody_listens(environ) -> None:
    notifier = Notifier.of(environ)
    notifier.ready()
    notifier.alive()
    notifier.status("x")
