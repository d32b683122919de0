"""Asking a daemon: HTTP over its operator socket, or over the address of its page. Standard library only.

Everything that can go wrong ends in one `ClientError`, whose text says what to type next.
"""

from __future__ import annotations

import http.client
import json
import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

DEMO_SOCKET = Path("build/demo/spark-a/run/sparkd.sock")
DEMO_CONFIG = Path("build/demo/sparkd.toml")
TIMEOUT_S = 10.0
_START = "start it: sudo systemctl start sparkd (its log: journalctl -u sparkd -n 50), or sparkd run"
_START_DEMO = "start it: make demo"


class ClientError(Exception):
    """The daemon could not be asked."""


class NobodyListensError(ClientError):
    """No daemon runs there: its socket is not there, or refuses every connection."""


class NotAllowedError(ClientError):
    """A daemon may run there, and who asks may not know."""


@dataclass(frozen=True, slots=True)
class Reply:
    """HTTP status and parsed body."""

    status: int
    body: Any

    @property
    def error(self) -> str:
        """What the daemon said was wrong."""
        return str(self.body.get("error", self.body)) if isinstance(self.body, dict) else str(self.body)


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


@dataclass(frozen=True, slots=True)
class Client:
    """One daemon, by its socket or by its URL (exactly one of them).

    Attributes:
        path: the operator socket.
        url: the address of the page: tells the status, takes no orders.
        demo: the daemon is the demo's; only for the advice.
    """

    path: Path | None = None
    url: str | None = None
    demo: bool = False

    def get(self, target: str) -> Reply:
        """Return what the daemon says of *target*. Raises ClientError."""
        return self._ask("GET", target, None)

    def post(self, target: str, body: dict[str, Any]) -> Reply:
        """Hand *body* to the daemon. Raises ClientError."""
        return self._ask("POST", target, json.dumps(body))

    def _ask(self, method: str, target: str, body: str | None) -> Reply:
        if self.url is not None and not (method == "GET" and target == "/status"):
            raise ClientError(
                "--url answers status, settings and memory only: for this, run sparkctl on the node itself"
            )
        connection = self._connection()
        try:
            connection.request(method, target, body, {"Content-Type": "application/json", **_login(self.url)})
            reply = connection.getresponse()
            return Reply(reply.status, _parsed(reply.read()))
        except (OSError, http.client.HTTPException) as error:
            raise _kind(error)(self._advice(error)) from error
        finally:
            connection.close()

    def _connection(self) -> http.client.HTTPConnection:
        if self.path is not None:
            return _UnixConnection(self.path, TIMEOUT_S)
        try:
            parts = urlsplit(self.url or "")
            host, port = parts.hostname, parts.port
        except ValueError as error:
            raise ClientError(f"--url {self.url}: {error}") from error
        if parts.scheme not in {"http", "https"} or not host:
            raise ClientError(f"--url {self.url}: wanted is http://ADDRESS:PORT")
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        return kind(host, port, timeout=TIMEOUT_S)

    def _advice(self, error: Exception) -> str:
        where = self.path or self.url
        start = _START_DEMO if self.demo else _START
        match error:
            case FileNotFoundError():
                return f"no sparkd runs here: {where} does not exist\n  {start}"
            case PermissionError():
                return (
                    f"you may not talk to sparkd: {where} belongs to its group\n"
                    "  join it: sudo usermod -aG sparkd $USER, then log in again"
                )
            case ConnectionRefusedError():
                return f"sparkd does not run any more: nobody listens on {where}\n  {start}"
            case TimeoutError():
                return (
                    f"sparkd did not answer within {TIMEOUT_S:g} s on {where}\n"
                    "  look at its log: journalctl -u sparkd -n 50"
                )
        return f"cannot ask sparkd on {where}: {error}\n  {start}"


def _kind(error: Exception) -> type[ClientError]:
    match error:
        case FileNotFoundError() | ConnectionRefusedError():
            return NobodyListensError
        case PermissionError():
            return NotAllowedError
    return ClientError


def demo_socket() -> Path:
    """Return the demo's socket: below the current directory, else below the project's."""
    return _demo(DEMO_SOCKET)


def demo_config() -> Path:
    """Return the demo's configuration, found likewise."""
    return _demo(DEMO_CONFIG)


def _demo(path: Path) -> Path:
    here = Path.cwd() / path
    return here if here.exists() else Path(__file__).resolve().parents[3] / path


def _login(url: str | None) -> dict[str, str]:
    token = os.environ.get("SPARKD_TOKEN")
    return {"Authorization": f"Bearer {token}"} if url is not None and token else {}


def _parsed(content: bytes) -> Any:
    try:
        return json.loads(content)
    except ValueError:
        return {"error": content[:200].decode("utf-8", "replace")}
