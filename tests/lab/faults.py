"""Real faults for the lab: find a node's processes, stop or kill them, take memory.

Rules of this file:
- A process is named by its id and its start time, and looked at again through a pidfd just before it is
  killed: a reused id is never hit.
- What belongs to a node is told by two independent things:
  `SPARKD_STAMP=<cluster>/<node>/<generation>/<unit>` in a process's environment, and the network namespace
  that it runs in. A program that rewrites its title wipes its environment unless it was started with
  SPT_NOENV=1; the namespace cannot be lost.
"""

import contextlib
import dataclasses
import enum
import json
import os
import pathlib
import select
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

from lab import hog as hog_program
from lab import netns

HOG = pathlib.Path(hog_program.__file__)
PROC = pathlib.Path("/proc")
STAMP = b"SPARKD_STAMP="
UNITS = pathlib.Path(__file__).parents[2] / "units"


def started_by(unit: str) -> list[str]:
    """Return the arguments with which systemd starts a unit, its program among them."""
    lines = (UNITS / unit).read_text(encoding="utf-8").splitlines()
    return next(shlex.split(line.partition("=")[2]) for line in lines if line.startswith("ExecStart="))


# What a unit of the engine is called before it becomes the engine, behind its interpreter.
BEGINNINGS = tuple(" ".join(started_by(f"sparkd-{unit}.service")[1:]) for unit in ("ray", "serve"))


class Role(enum.StrEnum):
    """What a process of the engine is, by its title."""

    WORKER = "worker"
    ENGINE_CORE = "engine_core"
    API_SERVER = "api_server"
    RAYLET = "raylet"
    GCS = "gcs_server"
    RAY_START = "ray_start"
    OTHER = "other"


# The first that is part of the title decides.
TITLES = (
    ("ray::RayWorkerProc", Role.WORKER),
    ("VLLM::Worker", Role.WORKER),
    ("VLLM::EngineCore", Role.ENGINE_CORE),
    ("vllm serve", Role.API_SERVER),
    ("/gcs_server", Role.GCS),
    ("/raylet ", Role.RAYLET),
    ("ray start ", Role.RAY_START),
)


@dataclasses.dataclass(frozen=True)
class Process:
    """One process, as it was when it was found."""

    pid: int
    started: int
    parent: int
    group: int
    session: int
    title: str
    stamp: str | None
    namespace: int

    @property
    def role(self) -> Role:
        return next((role for part, role in TITLES if part in self.title), Role.OTHER)

    @property
    def begins(self) -> bool:
        """Whether it is a unit of the engine that has not become the engine yet: it has no mark."""
        return self.stamp is None and self.title.endswith(BEGINNINGS)

    @property
    def alive(self) -> bool:
        """Whether this very process still runs (a zombie does not)."""
        found = inspect(self.pid)
        return found is not None and found.started == self.started


def inspect(pid: int) -> Process | None:
    """What /proc tells of a process; None when it is gone or a zombie."""
    entry = PROC / str(pid)
    try:
        name_end = (status := (entry / "stat").read_text(errors="replace")).rindex(")")
        fields = status[name_end + 2 :].split()
        title = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        environment = (entry / "environ").read_bytes().split(b"\0")
        namespace = (entry / "ns/net").stat().st_ino
    except (OSError, ValueError):
        return None
    if fields[0] in "ZX":
        return None
    stamp = next((item[len(STAMP) :].decode() for item in environment if item.startswith(STAMP)), None)
    return Process(
        pid=pid,
        started=int(fields[19]),
        parent=int(fields[1]),
        group=int(fields[2]),
        session=int(fields[3]),
        title=title,
        stamp=stamp,
        namespace=namespace,
    )


def every_process() -> list[Process]:
    found = (inspect(int(entry.name)) for entry in PROC.iterdir() if entry.name.isdigit())
    return [process for process in found if process is not None]


def stamped(prefix: str) -> list[Process]:
    """The processes whose stamp begins so: `cluster/node/` or `cluster/node/generation/unit`."""
    return [process for process in every_process() if process.stamp and process.stamp.startswith(prefix)]


def on_node(node: netns.Node, role: Role | None = None) -> list[Process]:
    """The processes in a node's namespace, of one role where asked; unlike a stamp this cannot be wiped."""
    namespace = (netns.NAMESPACES / node.namespace).stat().st_ino
    inside = [process for process in every_process() if process.namespace == namespace]
    return [process for process in inside if role in {None, process.role}]


def send(process: Process, number: signal.Signals) -> bool:
    """Send to exactly this process; False when it is gone."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return False
    try:
        if not process.alive:
            return False
        signal.pidfd_send_signal(descriptor, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(descriptor)
    return True


def kill(*processes: Process) -> int:
    """SIGKILL each; tell how many were there."""
    return sum(send(process, signal.SIGKILL) for process in processes)


@contextlib.contextmanager
def frozen(*processes: Process) -> Iterator[None]:
    """SIGSTOP for as long as the block runs, then SIGCONT."""
    for process in processes:
        send(process, signal.SIGSTOP)
    try:
        yield
    finally:
        for process in processes:
            send(process, signal.SIGCONT)


def gone(*processes: Process, deadline_s: float) -> bool:
    """Whether all have ended within the deadline."""
    return netns.wait_until(lambda: not any(process.alive for process in processes), deadline_s)


@dataclasses.dataclass
class Hog:
    """The running memory hog; `events` are its own words."""

    process: subprocess.Popen[bytes]
    events: list[dict[str, object]] = dataclasses.field(default_factory=list)
    _rest: bytes = b""

    def read(self, wait_s: float) -> None:
        """Take in what it said, waiting at most so long for more."""
        output = self.process.stdout
        if output is None or not select.select([output], [], [], wait_s)[0]:
            return
        *lines, self._rest = (self._rest + os.read(output.fileno(), 65536)).split(b"\n")
        self.events += [json.loads(line) for line in lines]

    def wait_for(self, event: str, deadline_s: float) -> dict[str, object] | None:
        """The first event of that name, or None when it does not come in time or the hog ended."""
        end = time.monotonic() + deadline_s
        while time.monotonic() < end:
            ended = self.process.poll() is not None
            self.read(0.0 if ended else min(0.2, max(0.0, end - time.monotonic())))
            found = next((said for said in self.events if said["event"] == event), None)
            if found or ended:
                return found
        return None

    def stop(self) -> None:
        """Give the memory back now."""
        self.process.kill()
        self.process.wait()
        if self.process.stdout:
            self.process.stdout.close()


@contextlib.contextmanager
def memory_hog(
    available_share: float,
    hold_s: float = 300.0,
    rate_bytes_s: float = float(1 << 30),
    prefix: tuple[str, ...] = (),
) -> Iterator[Hog]:
    """Memory taken until that share of the machine is left, for as long as the block runs at most.

    Start it from a thread that lives on: the hog dies with the thread that made it.
    """
    arguments = [
        *prefix,
        sys.executable,
        str(HOG),
        f"--available-share={available_share}",
        f"--hold-s={hold_s}",
        f"--rate-bytes-s={rate_bytes_s}",
        f"--parent={os.getpid()}",
    ]
    hog = Hog(subprocess.Popen(arguments, stdout=subprocess.PIPE))
    try:
        yield hog
    finally:
        hog.stop()
