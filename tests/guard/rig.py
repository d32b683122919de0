"""A guard as a process, with a memory that the test writes and engines that it may kill."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

GIB = 1 << 30
TOTAL = 120 * GIB
DEADLINE_S = 30.0


def until(true: Callable[[], Any], what: str) -> Any:
    """Wait until *true* returns something true; return it."""
    end = time.monotonic() + DEADLINE_S
    while time.monotonic() < end:
        if found := true():
            return found
        time.sleep(0.005)
    raise AssertionError(f"not within {DEADLINE_S} s: {what}")


def lives(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in {"Z", "X"}
    return False


class Engine:
    """Processes in a control group that is a plain directory: `cgroup.procs` is written by the test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.processes: list[subprocess.Popen[bytes]] = []
        folder.mkdir(parents=True, exist_ok=True)
        self.tell()

    def add(self, *argv: str, env: dict[str, str] | None = None) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(argv or ("sleep", "1000"), env=env, start_new_session=True)
        self.processes.append(process)
        self.tell()
        return process

    def tell(self) -> None:
        """A file that is read at once: no half of it may be seen."""
        fresh = self.folder.parent / "fresh"
        fresh.write_text("".join(f"{each.pid}\n" for each in self.processes if each.poll() is None))
        if not (self.folder / "cgroup.procs").exists():
            (self.folder / "cgroup.procs").touch()
        (self.folder / "cgroup.procs").write_bytes(fresh.read_bytes())

    def end(self) -> None:
        for each in self.processes:
            if each.poll() is None:
                each.kill()
            each.wait()


class Rig:
    """One guard, its files below one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.proc, self.status_file, self.state = folder / "proc", folder / "run" / "status", folder / "state"
        self.lease = folder / "floors"
        (self.proc / "pressure").mkdir(parents=True)
        (self.folder / "shm").mkdir()
        self.pressure(0)
        self.memory(60)
        self.engine = Engine(folder / "cgroup" / "engine")
        self.process: subprocess.Popen[str] | None = None

    def memory(self, available: float, free: float | None = None, more: str = "") -> None:
        """Say how many GiB are available and free."""
        lines = {"MemTotal": TOTAL, "MemFree": (available if free is None else free) * GIB}
        lines |= {"MemAvailable": available * GIB}
        text = "".join(f"{name}:{int(value) >> 10:>12} kB\n" for name, value in lines.items()) + more
        with (self.proc / "meminfo").open("r+b" if (self.proc / "meminfo").exists() else "wb") as file:
            file.write(text.encode())

    def pressure(self, full_us: int) -> None:
        kinds = ("some", "full")
        text = "".join(f"{kind} avg10=0.00 avg60=0.00 avg300=0.00 total={full_us:>12}\n" for kind in kinds)
        (self.proc / "pressure" / "memory").write_text(text.replace("total= ", "total=").replace("= ", "="))

    def argv(self, **keys: str) -> list[str]:
        given = {
            "proc_root": str(self.proc),
            "cgroup_root": str(self.folder / "cgroup"),
            "shm_root": str(self.folder / "shm"),
            "docker_root": str(self.folder / "docker"),
            "slice": "/engine",
            "status": str(self.status_file),
            "state_dir": str(self.state),
            "lease": str(self.lease),
            "realtime": "no",
        }
        return [
            sys.executable,
            "-m",
            "sparkd.guard",
            *(f"--{key}={text}" for key, text in (given | keys).items()),
        ]

    def start(self, **keys: str) -> None:
        """Start it, and wait until it has looked around."""
        self.begin(**keys)
        until(lambda: self.status().get("looks", 0) > 5, "the guard looks")
        until(lambda: self.status()["scope"]["members"] == len(self.engine.processes), "it holds its members")

    def begin(self, **keys: str) -> None:
        """Start it."""
        config = self.folder / "guard.conf"
        config.touch()
        self.process = subprocess.Popen(
            [*self.argv(**keys), "--config", str(config)], stderr=subprocess.PIPE, text=True
        )

    def status(self) -> dict[str, Any]:
        with contextlib.suppress(OSError, ValueError):
            found = json.loads(self.status_file.read_text())
            if found["seq"] == found["seq_end"]:
                return dict(found)
        return {}

    def looked(self) -> None:
        """Wait for a status that is newer than the present one."""
        before = self.status().get("seq")
        until(lambda: self.status().get("seq", before) != before, "it tells anew")

    def records(self) -> list[dict[str, Any]]:
        return [json.loads(path.read_text()) for path in sorted(self.state.glob("trip-*.json"))]

    def end(self) -> str:
        """End it in order; return what it said."""
        said = ""
        if self.process is not None:
            if self.process.poll() is None:
                self.process.send_signal(signal.SIGCONT)
                self.process.terminate()
            said = self.process.communicate(timeout=DEADLINE_S)[1]
        self.engine.end()
        return said


@contextlib.contextmanager
def rig(folder: Path) -> Iterator[Rig]:
    """Yield a rig; end everything that it started."""
    made = Rig(folder)
    try:
        yield made
    finally:
        made.end()


def environment(**more: str) -> dict[str, str]:
    """The environment of an engine's process."""
    return {name: text for name, text in os.environ.items() if name != "SPARKD_STAMP"} | more
