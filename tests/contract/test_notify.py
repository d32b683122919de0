"""sd_notify: what is said, and that nobody listening is no error."""

from __future__ import annotations

import os
import resource
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress

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


@contextmanager
def no_descriptor_left() -> Iterator[None]:
    """What a process has when its limit is reached: every number below it is taken."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest_free = os.dup(0)
    os.close(lowest_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, limits[1]))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            os.dup(0)
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_without_a_descriptor_left_it_is_lost_and_said_again_by_the_next(heard) -> None:
    """Who feeds the watchdog fences as well: nothing that is told may end it."""
    way, notifier = heard
    with no_descriptor_left():
        notifier.ready()
        notifier.alive()
        notifier.status("fencing")
        notifier.stopping()
    notifier.alive()
    notifier.status("fencing")
    assert [way.recv(1000).decode() for _ in range(2)] == ["WATCHDOG=1", "STATUS=fencing"]


def test_what_is_no_text_is_sent_all_the_same(heard) -> None:
    """A path of other bytes, in an error's words."""
    way, notifier = heard
    notifier.status("no \udcff here")
    assert way.recv(1000).decode() == "STATUS=no ? here"


def fill(way: socket.socket) -> None:
    """Leave no room where systemd listens."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as others:
        others.setblocking(False)
        others.connect(way.getsockname())
        with suppress(BlockingIOError):
            while True:
                others.send(b"STATUS=busy")


def test_up_is_not_lost_where_systemd_is_busy(heard) -> None:
    """Said once by a unit of the engine, it waits for room; the daemon, which may not, says it again."""
    way, notifier = heard
    fill(way)
    assert not notifier.ready()
    with ThreadPoolExecutor(1) as pool:
        said = pool.submit(notifier.ready, 10.0)
        while way.recv(1000) != b"READY=1":
            pass
        assert said.result(10)


def test_who_has_no_systemd_has_said_it() -> None:
    assert Notifier.of({}).ready()
    assert not Notifier.of({"NOTIFY_SOCKET": "/no/such/socket"}).ready()
