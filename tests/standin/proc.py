"""Processes: start children, name them as the real ones are named, talk to them in JSON lines."""

import contextlib
import ctypes
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

PR_SET_NAME = 15
PACKAGE = str(Path(__file__).resolve().parent)


def set_title(title: str) -> None:
    """Overwrite argv as setproctitle does (padding with NUL) and set the kernel's 15 letter name."""
    with Path("/proc/self/stat").open(encoding="utf-8") as file:
        fields = file.read().rpartition(")")[2].split()
    start, end = int(fields[45]), int(fields[46])
    room = end - start
    data = title.encode()[: room - 1]
    ctypes.memmove(start, data + b"\0" * (room - len(data)), room)
    set_comm(title)


def set_comm(name: str) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_NAME, name.encode()[:15] + b"\0", 0, 0, 0)


def spawn(role: str, config: dict[str, Any], **options: Any) -> subprocess.Popen[bytes]:
    """Start a child of this package; `options` go to Popen."""
    command = [sys.executable, "-u", str(Path(PACKAGE, "child.py")), role, json.dumps(config)]
    return subprocess.Popen(command, **options)


def die_with_stdin(then: Callable[[], None] | None = None) -> None:
    """Leave when the holder of our standard input is gone: a pipe tells it without polling."""

    def wait() -> None:
        # os.read and not sys.stdin: a thread in the buffered reader would block the exit.
        while os.read(0, 4096):
            pass
        if then is not None:
            then()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


class Channel:
    """JSON lines over a stream socket; sends are atomic, a lost reader is not an error."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._lock = threading.Lock()
        self._file = sock.makefile("rb")

    def send(self, **message: Any) -> bool:
        data = json.dumps(message).encode() + b"\n"
        try:
            with self._lock:
                self.sock.sendall(data)
        except OSError:
            return False
        return True

    def receive(self) -> dict[str, Any] | None:
        """The next message, None at the end."""
        try:
            line = self._file.readline()
        except OSError:
            return None
        return json.loads(line) if line.endswith(b"\n") else None

    def pump(self, put: Callable[[dict[str, Any] | None], None]) -> None:
        """Hand every message to `put` in a thread, None at the end."""

        def run() -> None:
            while (message := self.receive()) is not None:
                put(message)
            put(None)

        threading.Thread(target=run, daemon=True).start()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)
        self.sock.close()


def connect(host: str, port: int, source: str = "") -> Channel:
    """Connect, once; `source` binds the sending side as a node of its own address would."""
    sock = socket.create_connection((host, port), timeout=5, source_address=(source, 0) if source else None)
    sock.settimeout(None)
    return Channel(sock)


def kill_quietly(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
