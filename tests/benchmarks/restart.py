"""How soon the next process runs after one has died: systemd alone, supervisord, and sparkd on two nodes.

Run: make bench-restart [ARGS="--runs 20"]. Root, Linux. On two nodes of systemd-nspawn; the three take turns,
each with the same engine, a shell script that says its start into a FIFO and sleeps. Measured from the death
of the process (its pidfd) to the first word of the next. sparkd restarts the whole group: it fences both
nodes and has them agree, over mosquitto; its backoff and its window for evidence are (nearly) nothing here.

The last line is JSON: medians in milliseconds.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import signal
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

from lab import netns, nspawn, systemd_pair
from lab.faults import inspect
from sparkd.adapters.cgroups import Groups

DEADLINE_S = 30.0
SETTLED_S = 1.0
"""Between two runs: longer than any of the three holds a program for too young."""
FOLDER = "/srv/bench"
ENGINE = """#!/bin/sh
echo up > {fifo}
exec sleep infinity
"""
PLAIN = """[Service]
ExecStart={folder}/plain
Restart=always
RestartSec=0
[Unit]
StartLimitIntervalSec=0
"""
SUPERVISED = """[Service]
ExecStart=/usr/bin/supervisord --nodaemon --configuration={folder}/supervisord.conf
"""
SUPERVISORD = """[supervisord]
user=root
logfile=/dev/null
logfile_maxbytes=0
pidfile=/run/bench-supervisord.pid
[program:engine]
command={folder}/supervised
autorestart=true
startsecs=0
startretries=1000000
"""
CONFIG = """
backoff_base_s = 0
backoff_max_s = 1
jitter_share = 0
transient_budget = 100
unknown_unchanged = 100
budget_window_s = 10
[timeouts]
drain_deadline_s = 0.001
"""
GROUPS = {
    "systemd": "/system.slice/bench-plain.service",
    "supervisord": "/system.slice/bench-supervised.service",
    "sparkd": "/sparkd.slice/sparkd-engine.slice/sparkd-serve.service",
}
PROGRAMS = {"systemd": "plain", "supervisord": "supervised", "sparkd": "vllm"}


def missing() -> str:
    """Return why it cannot be measured here, empty where it can."""
    if why := systemd_pair.missing():
        return why
    return "" if Path("/usr/bin/supervisord").exists() else "no supervisord: apt-get install supervisor"


def prepare(box: nspawn.Node) -> None:
    """Put the three engines and their units into a node that is not booted yet."""
    for name, program in PROGRAMS.items():
        text = ENGINE.format(fifo=f"{FOLDER}/{name}.fifo")
        box.write(f"{FOLDER}/{program}", text, 0o755)
        os.mkfifo(box.path(f"{FOLDER}/{name}.fifo"))
        box.path(f"{FOLDER}/{name}.fifo").chmod(0o666)
    box.write(f"{FOLDER}/supervisord.conf", SUPERVISORD.format(folder=FOLDER))
    box.write("/etc/systemd/system/bench-plain.service", PLAIN.format(folder=FOLDER))
    box.write("/etc/systemd/system/bench-supervised.service", SUPERVISED.format(folder=FOLDER))


class Contestant:
    """One of the three: its engine on the head, and the way on which that says its start."""

    def __init__(self, name: str, machine: systemd_pair.Machine) -> None:
        self.name = name
        self._groups = Groups(nspawn.group_roots(machine.box))
        fifo = machine.box.path(f"{FOLDER}/{name}.fifo")
        self._words = os.open(fifo, os.O_RDWR | os.O_NONBLOCK)  # for writing, too, so that it never ends

    def pid(self) -> int | None:
        """Return the engine's process, None where it does not run."""
        found = filter(None, map(inspect, self._groups.pids(GROUPS[self.name])))
        return next((process.pid for process in found if "sleep" in process.title), None)

    def await_up(self) -> None:
        """Wait until the engine runs, and forget what it has said. Raises NodeError."""
        if not netns.wait_until(lambda: self.pid() is not None, DEADLINE_S * 3):
            raise nspawn.NodeError(f"the engine of {self.name} does not run")
        if select.select([self._words], [], [], 0)[0]:
            os.read(self._words, 4096)

    def run(self) -> float:
        """Kill the engine; return the milliseconds from its death to the next one's first word."""
        pid = self.pid()
        if pid is None:
            raise nspawn.NodeError(f"the engine of {self.name} has ended by itself")
        process = os.pidfd_open(pid)
        try:
            signal.pidfd_send_signal(process, signal.SIGKILL)
            select.select([process], [], [], DEADLINE_S)
            died_s = time.monotonic()
            if not select.select([self._words], [], [], DEADLINE_S)[0]:
                raise nspawn.NodeError(f"{self.name} started no other engine within {DEADLINE_S} s")
            took_s = time.monotonic() - died_s
        finally:
            os.close(process)
        return took_s * 1000


def measure(runs: int, say: Callable[[str], None]) -> dict[str, list[float]]:
    """Return the milliseconds of every run."""
    with systemd_pair.pair(CONFIG, backend="mp", programs=FOLDER, prepare=prepare) as pair:
        contestants = [Contestant(name, pair.head) for name in GROUPS]
        worker = Contestant("sparkd", pair.worker)
        pair.head.systemctl("start", "bench-plain", "bench-supervised")
        pair.start()
        taken: dict[str, list[float]] = {name: [] for name in GROUPS}
        for number in range(runs):
            for contestant in contestants:
                for each in (*contestants, worker):
                    each.await_up()
                netns.wait_until(lambda: False, SETTLED_S)
                taken[contestant.name].append(contestant.run())
            say(f"{number + 1}: " + ", ".join(f"{name} {found[-1]:.0f} ms" for name, found in taken.items()))
        return taken


def main() -> int:
    parser = argparse.ArgumentParser(prog="make bench-restart")
    parser.add_argument("--runs", type=int, default=20)
    options = parser.parse_args()
    if why := missing():
        print(f"make bench-restart: {why}", file=sys.stderr)
        return 2
    taken = measure(options.runs, lambda text: print(text, flush=True))
    medians = {f"{name}_ms": round(statistics.median(found), 1) for name, found in taken.items()}
    print(json.dumps({"runs": options.runs, **medians}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
