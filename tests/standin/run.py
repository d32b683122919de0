"""Start programs for tests, read them, ask them, and leave none of their processes behind."""

import contextlib
import json
import os
import signal
import subprocess
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from standin.wait import Lines, wait_until

BIN = str(Path(Path(__file__).resolve().parent, "bin"))


def stat(pid: int) -> tuple[str, int, int, str]:
    """(comm, parent, session, state); OSError when it is gone."""
    with Path(f"/proc/{pid}/stat").open(encoding="utf-8", errors="replace") as file:
        head, _, tail = file.read().rpartition(")")
    fields = tail.split()
    return head.partition("(")[2], int(fields[1]), int(fields[3]), fields[0]


def alive(pid: int) -> bool:
    """Running: neither gone nor a zombie."""
    try:
        return stat(pid)[3] not in {"Z", "X"}
    except (OSError, IndexError):
        return False


def processes() -> dict[int, tuple[str, int, int, str]]:
    found = {}
    for name in [entry.name for entry in Path("/proc").iterdir()]:
        if name.isdigit():
            with contextlib.suppress(OSError, IndexError, ValueError):
                found[int(name)] = stat(int(name))
    return found


def title(pid: int) -> str:
    """The command line, without what a title pads it with."""
    try:
        with Path(f"/proc/{pid}/cmdline").open("rb") as file:
            return file.read().rstrip(b"\0 ").replace(b"\0", b" ").decode("utf-8", "replace")
    except OSError:
        return ""


class Program:
    """One started program: its lines, its tree, its end."""

    def __init__(self, command: list[str], environment: Mapping[str, str], cwd: str | None = None) -> None:
        self.process = subprocess.Popen(
            command,
            env=dict(environment),
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        self.out, self.err, self.both = Lines(), Lines(), Lines()
        self.out.follow(self.process.stdout, self.both)
        self.err.follow(self.process.stderr, self.both)
        self._seen: set[int] = {self.process.pid}

    @property
    def pid(self) -> int:
        return self.process.pid

    def tree(self) -> dict[int, str]:
        """Descendants, and whatever shares our session (orphans do): pid -> title."""
        table, found = processes(), {self.pid, *self._seen}
        grown = True
        while grown:
            grown = False
            for pid, (_, parent, session, _) in table.items():
                if pid not in found and (parent in found or session == self.pid):
                    found.add(pid)
                    grown = True
        self._seen = {pid for pid in found if pid in table}
        return {pid: title(pid) for pid in self._seen if pid != self.pid and alive(pid)}

    def child(self, name: str, deadline_s: float = 10.0) -> int:
        """The pid of the descendant whose title or kernel name contains `name`."""

        def find() -> int:
            for pid, shown in self.tree().items():
                with contextlib.suppress(OSError):
                    if name in shown or name in stat(pid)[0]:
                        return pid
            return 0

        return wait_until(find, deadline_s, f"no process named {name}; there are {self.tree()}")

    def wait_exit(self, deadline_s: float = 10.0) -> int:
        try:
            return self.process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            tail = "\n".join(self.both.all()[-25:])
            raise AssertionError(f"still running after {deadline_s} s; the last lines:\n{tail}") from None

    def kill(self, number: int = signal.SIGKILL) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def clean(self) -> None:
        """Kill everything of this program by pid and wait for the end of each."""
        victims = set(self.tree()) | {self.pid}
        for pid in victims:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()
        victims = set(self.tree())  # a dying raylet's workers, a child that was just being started
        for pid in victims:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not any(map(alive, victims)), 10, "processes that survive SIGKILL")
        for pipe in (self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()


def get(url: str, body: Any = None, timeout: float = 5.0) -> tuple[int, str]:
    """(status, text); 0 when nothing answers."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"})  # noqa: S310 - our own
    try:
        with urllib.request.urlopen(request, timeout=timeout) as answer:  # noqa: S310 - our own
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()
    except OSError:
        return 0, ""


def metric(page: str, name: str) -> float:
    """The value of the first series of a name."""
    for line in page.split("\n"):
        if line.startswith((name + "{", name + " ")):
            return float(line.rpartition(" ")[2])
    raise AssertionError(f"no series {name}")
