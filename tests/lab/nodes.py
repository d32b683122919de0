"""Two nodes with real units as a scenario of the lab needs them: injured, watched, brought back.

Rules of this file:
- Both nodes are booted once. After every scenario the cluster is brought back to serving; where that fails,
  the nodes are put together anew, so that one row's failure is not the next one's.
- What is left of a dead generation is looked for after every scenario: in the engine's control groups, and by
  the mark of every process of the node.
- A request that a client lost is counted by the client, never inferred.
"""

from __future__ import annotations

import contextlib
import dataclasses
import http.client
import json
import os
import pathlib
import signal
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

from lab import load, netns, systemd_pair
from lab.faults import inspect
from lab.nspawn import NodeError
from lab.scenarios import Result
from lab.systemd_pair import Machine

START_S = 60.0
"""Longest that a start of the stand-in engine may take here, the fence before it included."""
FAULTS = "/srv/standin/faults.json"
KERNEL = "/srv/lab/kmsg"
CONFIG = f"""
backoff_base_s = 0.2
backoff_max_s = 2
cooldown_s = 5
transient_budget = 100
unknown_unchanged = 100
unclean_boots_max = 100
[timeouts]
membership_every_s = 0.5
engine_every_s = 0.5
verify_deadline_s = 30
canary_idle_s = 10
no_progress_s = 40
[paths]
kernel_log = "{KERNEL}"
"""
DAEMONS = ("head", "worker")


class Nodes:
    """The pair, and what scenarios do to it."""

    def __init__(self, pair: systemd_pair.Pair) -> None:
        self.pair = pair
        self.head, self.worker = pair.machines

    # -- what it says

    def said(self) -> dict[str, Any]:
        """Return the head's status. Raises OSError."""
        return self.head.status()

    def serving(self, within_s: float = START_S) -> dict[str, Any]:
        """Return the head's status once it serves and no incident is open."""
        return self.pair.until_serving(within_s)

    def phase(self, phase: str, within_s: float = START_S) -> dict[str, Any]:
        """Return the head's status once it is in that phase."""
        return self.pair.until(lambda said: said["phase"] == phase, within_s)

    def incidents(self) -> list[dict[str, Any]]:
        """Return the head's incidents, newest first."""
        return list(ask(self.head, "GET", "/incidents"))

    def verb(self, verb: str) -> None:
        """Ask as `sparkctl` does."""
        ask(self.head, "POST", "/verb", {"verb": verb, "by": "lab"})

    def engines(self) -> list[tuple[int, ...]]:
        """Return the engine's processes on both nodes, by control group."""
        return [machine.engine() for machine in self.pair.machines]

    def dead_processes(self) -> list[str]:
        """Return every process of a generation that is not the present one, as `node/pid/generation`.

        What has not become the engine yet has no mark: it runs the order of the present.
        """
        said = self.said()
        present = str(said["generation"]) if any(self.engines()) else ""
        found = []
        for machine in self.pair.machines:
            every = [inspect(pid) for pid in {*machine.engine(), *machine.stamped()}]
            for process in filter(None, every):
                generation = (process.stamp or "///").split("/")[2]
                if generation != present and not process.begins:
                    found.append(f"{machine.box.name}/{process.pid}/{generation or 'unmarked'}")
        return sorted(found)

    # -- what is done to it

    def arm(self, *faults: dict[str, Any]) -> None:
        """Arm faults of the stand-in on both nodes, none = disarm."""
        for machine in self.pair.machines:
            new = machine.box.write(f"{FAULTS}.new", json.dumps({"faults": list(faults)}))
            new.replace(new.with_suffix(""))

    @contextlib.contextmanager
    def client(self) -> Iterator[load.Report]:
        """Two clients that ask again and again for as long as the block lasts."""
        target = load.Target(self.head.network, "192.168.200.12", max_tokens=8)
        with load.load(target, streams=2, max_requests=1_000_000, max_s=600.0) as report:
            answered(report)
            yield report
            answered(report)

    def processes(self, machine: Machine, word: str) -> list[int]:
        """Return the node's engine processes whose title has the word."""
        return [pid for pid in machine.engine() if (found := inspect(pid)) and word in found.title]

    # -- bringing it back

    def calm(self) -> None:
        """Bring it back to serving, whatever the scenario has left. Raises NodeError."""
        self.arm()
        for machine in self.pair.machines:
            connect(machine)
            if not machine.box.leader:
                machine.box.boot()
        self.head.systemctl("start", "mosquitto")
        for machine in self.pair.machines:
            machine.systemctl("start", "sparkd", "sparkd.target")
        said = self.pair.until(lambda said: said["phase"] is not None, START_S)
        if said["phase"] in {"stopped", "stopping", "escalated"}:
            self.verb("start")
        elif said["phase"] == "paused":
            self.verb("resume")
        self.serving()


def ask(machine: Machine, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
    """Ask a node's daemon over its operator socket. Raises OSError."""
    place = str(machine.box.path("/run/sparkd/sparkd.sock"))
    connection = http.client.HTTPConnection("sparkd", timeout=10.0)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connected:
        connected.settimeout(10.0)
        connected.connect(place)
        connection.sock = connected
        text = None if body is None else json.dumps(body)
        connection.request(method, path, text, {"Content-Type": "application/json"})
        return json.loads(connection.getresponse().read())


def answered(report: load.Report, within_s: float = 20.0) -> None:
    """Wait until the clients have had a further whole answer. Raises NodeError."""
    done = report.completed
    if not netns.wait_until(lambda: report.completed > done, within_s):
        raise NodeError(f"no client is answered within {within_s} s: {report.first_errors[:3]}")


def connect(machine: Machine) -> None:
    """Plug both cables in."""
    for interface in (netns.FABRIC, netns.MANAGEMENT):
        machine.network.link_up(interface)


def disconnect(machine: Machine, *interfaces: str) -> None:
    """Pull cables, all of them where none is named."""
    for interface in interfaces or (netns.FABRIC, netns.MANAGEMENT):
        machine.network.link_down(interface)


def unplug(machine: Machine) -> None:
    """Take a node's power away: nothing more leaves it, then nothing more runs."""
    disconnect(machine)
    machine.box.power_off()


def plug(machine: Machine) -> None:
    """Give it power again; its system starts what is enabled."""
    connect(machine)
    machine.box.boot()


def daemon_pid(machine: Machine) -> str:
    """Return the main pid of the node's daemon, as its systemd says it; "0" where there is none."""
    return machine.shown("sparkd.service", "MainPID")


def until_replaced(machine: Machine, before: str, within_s: float = 60.0) -> None:
    """Wait until another daemon is up. Raises NodeError."""

    def replaced() -> bool:
        up = machine.shown("sparkd.service", "ActiveState") == "active"
        return up and daemon_pid(machine) not in {"0", before}

    if not netns.wait_until(replaced, within_s):
        raise NodeError(f"{machine.box.name}: no other sparkd is up within {within_s} s")


def kill_daemon(machine: Machine, number: str = "KILL") -> None:
    """Have systemd kill the daemon alone."""
    machine.systemctl("kill", "-s", number, "--kill-who=main", "sparkd")


@dataclasses.dataclass
class Before:
    """What must be the same afterwards where nothing was to happen."""

    generation: int
    epoch: int
    incidents: int
    engines: list[tuple[int, ...]]
    at_s: float

    @classmethod
    def of(cls, nodes: Nodes) -> Before:
        """Return it as it is now, serving."""
        said = nodes.serving()
        newest = max((found["incident"] for found in nodes.incidents()), default=0)
        return cls(said["generation"], said["epoch"], newest, nodes.engines(), time.monotonic())


def unnoticed(
    nodes: Nodes, result: Result, inject: Callable[[], None], *, holds: Callable[[dict[str, Any]], bool]
) -> None:
    """Inject beside asking clients; nothing may happen to what serves.

    Args:
        nodes: the nodes.
        result: the row that is filled in.
        inject: what is done.
        holds: what the head's status must come to afterwards, serving.
    """
    before = Before.of(nodes)
    with nodes.client() as report:
        inject()
        said = nodes.pair.until(lambda now: now["serving"] and not now["incident"] and holds(now), START_S)
        answered(report)
    result.cause, result.lost_requests = "none", report.errors
    wrong = {
        "lost": report.first_errors[:2],
        "generation": said["generation"] - before.generation,
        "other processes": nodes.engines() != before.engines,
        "incidents": [found["cause"] for found in nodes.incidents() if found["incident"] > before.incidents],
    }
    result.note = ", ".join(f"{name} {what}" for name, what in wrong.items() if what)
    result.ok = not result.note


def recovers(
    nodes: Nodes, result: Result, inject: Callable[[], None], *, within_s: float = START_S, most: int = 1
) -> None:
    """Inject, and expect one incident with (one of) the expected cause, recovered with few starts."""
    before = Before.of(nodes)
    result.settings_before = nodes.said()["settings"]["in_force"]
    inject()
    nodes.pair.until(lambda now: now["serving"] and now["generation"] > before.generation, within_s)
    said = nodes.serving()
    result.settings_after = said["settings"]["in_force"]
    new = [found for found in nodes.incidents() if found["incident"] > before.incidents]
    fill(result, new[-1] if new else {}, before.at_s)
    wrong = {
        "incidents": [] if len(new) == 1 else [found["cause"] for found in new] or "none",
        "outcome": "" if new and new[-1]["outcome"] == "recovered" else str([f["outcome"] for f in new]),
        "relaunches": said["generation"] - before.generation > most
        and said["generation"] - before.generation,
        "cause": "" if result.cause in (result.expected_cause or "").split("|") else result.cause,
    }
    result.note = ", ".join(f"{name} {what}" for name, what in wrong.items() if what)
    result.ok = not result.note


def comes_back(
    nodes: Nodes, result: Result, inject: Callable[[], None], *, within_s: float = START_S, most: int = 1
) -> None:
    """Inject, and expect it to serve again after at most so many starts, whoever could see why."""
    before = Before.of(nodes)
    result.settings_before = nodes.said()["settings"]["in_force"]
    inject()
    said = nodes.pair.until(
        lambda now: now["serving"] and not now["incident"] and now["generation"] > before.generation, within_s
    )
    result.serving_s = round(time.monotonic() - before.at_s, 2)
    result.settings_after = said["settings"]["in_force"]
    new = [found["cause"] for found in nodes.incidents() if found["incident"] > before.incidents]
    result.cause = new[-1] if new else "none"
    result.ok = said["generation"] <= before.generation + most
    result.note = "" if result.ok else f"{said['generation'] - before.generation} starts, incidents {new}"


def fill(result: Result, incident: dict[str, Any], injected_s: float) -> None:
    """Take cause and times of an incident; both daemons' clocks are this machine's monotonic one."""
    result.cause = incident.get("cause")
    times = incident.get("times") or {}
    detected_s = times.get("detected_s")
    if detected_s is None:
        return
    result.detect_s = round(max(0.0, detected_s - injected_s), 2)
    for name, key in (("fence_s", "emptied_s"), ("decide_s", "decided_s"), ("serving_s", "serving_s")):
        if times.get(key) is not None:
            setattr(result, name, round(times[key] - detected_s, 2))


@contextlib.contextmanager
def nodes() -> Iterator[Nodes]:
    """Two booted nodes that start sparkd, the head its broker too, whenever they boot."""
    with systemd_pair.pair(CONFIG) as pair:
        made = Nodes(pair)
        for machine in pair.machines:
            machine.box.write(KERNEL, "")
            machine.systemctl("enable", "sparkd")
        made.head.systemctl("enable", "mosquitto")
        yield made


def kill(*pids: int) -> None:
    """SIGKILL processes of the nodes, which have to be there. Raises NodeError."""
    if not pids:
        raise NodeError("the process to kill is not there")
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


def own_group(root: str, name: str) -> pathlib.Path:
    """Make a control group of a v1 hierarchy of this machine. Raises NodeError where there is none."""
    place = pathlib.Path("/sys/fs/cgroup") / root
    if not place.is_dir():
        raise NodeError(f"this machine has no v1 hierarchy of {root}")
    group = place / f"sparkd-lab-{os.getpid()}-{name}"
    group.mkdir(exist_ok=True)
    return group
