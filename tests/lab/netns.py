"""Two nodes on one machine: a pair of network namespaces with a fabric and a management link between them.

    with pair() as (a, b):
        subprocess.Popen([*a.enter(), "vllm", "serve", ...])
        a.http("GET", "http://192.168.200.12:8000/health").status

Rules of this file:
- Nothing is added to the machine's own namespace: no address, route or interface of it can collide.
- A namespace's name tells which process owns it (its id and start time), so a run can remove what dead runs
  left and never touches a living one. There is no other record.
- Leaving `pair()` removes both namespaces and kills what still runs in them, also on an exception, SIGINT
  or SIGTERM.
"""

import contextlib
import ctypes
import dataclasses
import http.client
import itertools
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

PREFIX = "sparkd-lab"
FABRIC = "fab0"
MANAGEMENT = "mgmt0"
ADDRESSES = {"spark-a": ("192.168.200.12", "10.10.0.12"), "spark-b": ("192.168.200.13", "10.10.0.13")}
NAMESPACES = pathlib.Path("/run/netns")
CLONE_NEWNET = 0x40000000
HANDLED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_libc = ctypes.CDLL(None, use_errno=True)
_sequence = itertools.count()
T = TypeVar("T")


class NetnsError(Exception):
    """The namespaces cannot be had; the text says what to type."""


@dataclasses.dataclass(frozen=True)
class Answer:
    """What an HTTP server inside a namespace answered."""

    status: int
    body: bytes


@dataclasses.dataclass(frozen=True)
class Node:
    """One namespace: a machine of the pair, as far as the network can tell."""

    name: str
    namespace: str
    fabric_address: str
    management_address: str

    def enter(self) -> list[str]:
        """What goes before a command so that it runs on this node (with this node's /sys/class/net)."""
        return ["ip", "netns", "exec", self.namespace]

    def link(self, state: str, interface: str = FABRIC) -> None:
        """Set an interface `up` or `down`; down, the other end loses its carrier too, like a pulled cable."""
        ip("-n", self.namespace, "link", "set", interface, state)

    def link_down(self, interface: str = FABRIC) -> None:
        self.link("down", interface)

    def link_up(self, interface: str = FABRIC) -> None:
        self.link("up", interface)

    def pids(self) -> list[int]:
        """Every process inside."""
        return [int(pid) for pid in ip("netns", "pids", self.namespace).split()]

    def connect(self, host: str, port: int, timeout_s: float = 5.0) -> socket.socket:
        """A TCP connection made inside the namespace, usable from anywhere: a socket keeps its namespace."""
        return self.call(lambda: socket.create_connection((host, port), timeout_s))

    def call(self, function: Callable[[], T]) -> T:
        """Run a function inside the namespace: in a thread of its own, for only the thread changes place."""
        outcome: list[T] = []
        failure: list[BaseException] = []

        def inside() -> None:
            try:
                enter_namespace(self.namespace)
                outcome.append(function())
            except BaseException as error:  # noqa: BLE001  carried to the caller's thread
                failure.append(error)

        thread = threading.Thread(target=inside, name=f"in-{self.name}")
        thread.start()
        thread.join()
        if failure:
            raise failure[0]
        return outcome[0]

    def http(
        self,
        method: str,
        url: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float = 5.0,
    ) -> Answer:
        """One request made inside the namespace, without proxies; raises OSError when nobody answers."""
        parts = urllib.parse.urlsplit(url)
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port or 80, timeout=timeout_s)
        connection.sock = self.connect(connection.host, connection.port, timeout_s)
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        try:
            connection.request(method, path, body, dict(headers or {}))
            response = connection.getresponse()
            return Answer(response.status, response.read())
        except http.client.HTTPException as error:
            raise OSError(f"no proper HTTP answer from {url}: {error!r}") from error
        finally:
            connection.close()

    def http_get(self, url: str, timeout_s: float = 5.0) -> Answer:
        return self.http("GET", url, timeout_s=timeout_s)


def enter_namespace(namespace: str) -> None:
    """Move the calling thread."""
    descriptor = os.open(NAMESPACES / namespace, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if _libc.setns(descriptor, CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"setns {namespace}")
    finally:
        os.close(descriptor)


def why_not() -> str | None:
    """Why namespaces cannot be made here, with what to type; None when they can."""
    if not sys.platform.startswith("linux"):
        return "network namespaces need Linux"
    if shutil.which("ip") is None:
        return "there is no `ip` program: apt-get install iproute2"
    if os.geteuid() != 0:
        return f"network namespaces need root: sudo {sys.executable} {' '.join(sys.argv)}"
    return None


def ip(*arguments: str) -> str:
    """Run `ip`; its own words become the error."""
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise NetnsError(f"ip {' '.join(arguments)}: {done.stderr.strip() or done.returncode}")
    return done.stdout


def start_ticks(pid: int) -> int | None:
    """When a process started, in clock ticks since boot; None when there is none: tells a reused id apart."""
    try:
        return int(pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except (OSError, IndexError, ValueError):
        return None


def new_run_id() -> str:
    """Names this process and its n-th pair."""
    pid = os.getpid()
    return f"{pid:x}-{start_ticks(pid):x}-{next(_sequence):x}"


def is_leftover(namespace: str) -> bool:
    """Whether a namespace is of a run whose process is gone."""
    try:
        pid, started, _, _ = namespace.removeprefix(PREFIX + "-").split("-", 3)
        return start_ticks(int(pid, 16)) != int(started, 16)
    except ValueError:
        return False


def cleanup() -> list[str]:
    """Remove what dead runs left, with the processes in it; say what."""
    present = sorted(NAMESPACES.iterdir()) if NAMESPACES.exists() else []
    leftovers = [
        entry.name for entry in present if entry.name.startswith(PREFIX + "-") and is_leftover(entry.name)
    ]
    for namespace in leftovers:
        remove(namespace)
    return leftovers


def remove(namespace: str, deadline_s: float = 10.0) -> None:
    """Kill what runs in a namespace and delete it; the links go with it."""
    if not (NAMESPACES / namespace).exists():
        return
    with contextlib.suppress(NetnsError):
        kill_inside(namespace, deadline_s)
    with contextlib.suppress(NetnsError):
        ip("netns", "delete", namespace)


def kill_inside(namespace: str, deadline_s: float) -> None:
    """SIGKILL until nothing is left or the deadline is over."""

    def empty() -> bool:
        pids = [int(pid) for pid in ip("netns", "pids", namespace).split()]
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return not pids

    wait_until(empty, deadline_s)


def wait_until(predicate: Callable[[], object], deadline_s: float, every_s: float = 0.1) -> bool:
    """Ask until it is true or the deadline is over; tell which."""
    end = time.monotonic() + deadline_s
    while not predicate():
        if time.monotonic() >= end:
            return False
        time.sleep(every_s)
    return True


def plan(run_id: str) -> tuple[Node, Node]:
    """The pair by name; nothing is made yet."""
    nodes = [Node(name, f"{PREFIX}-{run_id}-{name[-1]}", *addresses) for name, addresses in ADDRESSES.items()]
    return nodes[0], nodes[1]


def make(one: Node, other: Node) -> None:
    """Create both and join them."""
    for node in (one, other):
        ip("netns", "add", node.namespace)
    for interface in (FABRIC, MANAGEMENT):
        join(interface, one.namespace, other.namespace)
    for node in (one, other):
        configure(node)


def join(interface: str, one: str, other: str) -> None:
    """A cable: the same interface name at both ends."""
    ip("link", "add", interface, "netns", one, "type", "veth", "peer", "name", interface, "netns", other)


def configure(node: Node) -> None:
    """Addresses, and everything up."""
    inside = ("-n", node.namespace)
    ip(*inside, "address", "add", f"{node.fabric_address}/24", "dev", FABRIC)
    ip(*inside, "address", "add", f"{node.management_address}/24", "dev", MANAGEMENT)
    for interface in ("lo", FABRIC, MANAGEMENT):
        ip(*inside, "link", "set", interface, "up")


def destroy(*nodes: Node) -> None:
    for node in nodes:
        remove(node.namespace)


@contextlib.contextmanager
def pair() -> Iterator[tuple[Node, Node]]:
    """The two nodes for as long as the block runs; SIGTERM leaves it like an exception."""
    reason = why_not()
    if reason:
        raise NetnsError(reason)
    cleanup()
    with leaving_on_signals():
        nodes = plan(new_run_id())
        try:
            make(*nodes)
            yield nodes
        finally:
            with signals_deferred():
                destroy(*nodes)


@contextlib.contextmanager
def leaving_on_signals() -> Iterator[None]:
    """SIGINT, SIGTERM and SIGHUP raise SystemExit in the main thread, the only one that may set handlers."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def leave(number: int, _frame: object) -> None:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, leave) for number in HANDLED}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def signals_deferred() -> Iterator[None]:
    """A second signal waits until the cleaning is done."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


if __name__ == "__main__":
    if why_not():
        sys.exit(why_not())
    print("removed:", ", ".join(cleanup()) or "nothing")
