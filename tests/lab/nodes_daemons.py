"""What must go unnoticed: sparkd itself is killed, restarted, stopped, doubled, in every phase of a start."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lab import nodes as n
from lab.nodes import Nodes
from lab.nspawn import NodeError
from lab.scenarios import Result
from lab.systemd_pair import Machine

HELD = (
    "forming",
    "resolving_config",
    "init_distributed",
    "loading_weights",
    "compiling",
    "profiling",
    "allocating_kv_cache",
    "capturing_graphs",
    "starting_api",
    "verifying",
)
"""Phases in which a start is held while the daemons are replaced, in the order of a start."""
STANDS_STILL_S = 30.0
"""WatchdogSec= of sparkd.service."""


def first_start(nodes: Nodes, result: Result) -> None:
    """Both daemons are started as an operator starts them."""
    nodes.pair.start()
    said = nodes.serving(120.0)
    result.settings_before = result.settings_after = said["settings"]["in_force"]
    result.cause = "none"
    result.ok = said["generation"] == 1


def replaced(machine: Machine, how: str) -> None:
    """Replace the node's daemon: `restart` in order, or SIGKILL."""
    before = n.daemon_pid(machine)
    if how == "restart":
        machine.systemctl("restart", "sparkd")
    else:
        n.kill_daemon(machine)
    n.until_replaced(machine, before)


def while_serving(node: str, how: str) -> Callable[[Nodes, Result], None]:
    """Return the scenario that replaces one node's daemon while clients are served."""

    def scenario(nodes: Nodes, result: Result) -> None:
        machine, epoch = getattr(nodes, node), nodes.serving()["epoch"] + (node == "head")
        n.unnoticed(nodes, result, lambda: replaced(machine, how), holds=lambda said: said["epoch"] >= epoch)

    scenario.__name__ = f"sparkd_{how.lower()}_{node}"
    scenario.__doc__ = f"{how} of the {node}'s sparkd while it serves."
    return scenario


def while_starting(phase: str) -> Callable[[Nodes, Result], None]:
    """Return the scenario that replaces daemons in one phase of a start, which is held there meanwhile.

    One start goes through all of them. In each, SIGKILL of one node's and restart of the other's at once;
    whose is killed takes turns, from phase to phase and from start to start.
    """

    def scenario(nodes: Nodes, result: Result) -> None:
        if phase == HELD[0]:
            nodes.verb("stop")
            nodes.phase("stopped")
            nodes.arm(hold(phase))
            nodes.verb("start")
        later = HELD[HELD.index(phase) + 1 :][:1]
        try:
            generation = replaced_in(nodes, phase)
        finally:
            nodes.arm(*(hold(following) for following in later))
        said = nodes.phase(later[0]) if later else nodes.serving()
        result.cause, result.ok = "none", said["generation"] == generation
        result.note = "" if result.ok else f"generation {said['generation']} instead of {generation}"

    scenario.__name__ = f"sparkd_replaced_in_{phase}"
    scenario.__doc__ = f"SIGKILL and restart of the daemons in {phase}."
    return scenario


def replaced_in(nodes: Nodes, phase: str) -> int:
    """Replace both daemons in a phase that is held; return the generation, which has to be the same after."""
    said = nodes.pair.until(lambda now: now["phase"] == phase and every_unit_runs(now), n.START_S)
    generation = int(said["generation"])
    turn = (HELD.index(phase) + generation) % 2
    killed, restarted = nodes.pair.machines[turn], nodes.pair.machines[1 - turn]
    pids = {machine: n.daemon_pid(machine) for machine in nodes.pair.machines}
    n.kill_daemon(killed)
    restarted.systemctl("restart", "sparkd")
    for machine, pid in pids.items():
        n.until_replaced(machine, pid)
    still(nodes, phase, generation)
    return generation


def every_unit_runs(said: dict[str, Any]) -> bool:
    """Whether what is started has become the engine: a start that nobody awaits any more is taken back."""
    states = {state for node in said["nodes"] for state in (node["units"] or {}).values()}
    return every_node_heard(said) and {"running"} <= states <= {"running", "gone"}


def hold(phase: str) -> dict[str, str]:
    """Return the stand-in's fault that holds a start in a phase."""
    return {"kind": "hold", "phase": "serving" if phase == "verifying" else phase}


def still(nodes: Nodes, phase: str, generation: int) -> None:
    """Wait until the coordinator says that it is where it was. Raises NodeError."""
    said = nodes.pair.until(lambda now: now["phase"] == phase and every_node_heard(now), n.START_S)
    if said["generation"] != generation:
        raise NodeError(f"generation {said['generation']} in place of {generation}: {nodes.incidents()[:1]}")


def every_node_heard(said: dict[str, Any]) -> bool:
    """Whether the head knows what runs on each node."""
    return all(node["units"] is not None for node in said["nodes"])


def both_while_failing(nodes: Nodes, result: Result) -> None:
    """The engine's worker is killed, and in the same moment both daemons are: their successors tell of it."""

    def inject() -> None:
        pids = {machine: n.daemon_pid(machine) for machine in nodes.pair.machines}
        n.kill(*nodes.processes(nodes.worker, "ray::RayWorkerProc"))
        for machine in nodes.pair.machines:
            n.kill_daemon(machine)
        for machine, pid in pids.items():
            n.until_replaced(machine, pid)

    n.comes_back(nodes, result, inject)
    if result.ok and result.cause == "none":
        result.ok, result.note = False, "no incident tells of it"


def head_while_failing(nodes: Nodes, result: Result) -> None:
    """The head's daemon is killed in the moment in which it fences a failed generation."""

    def inject() -> None:
        pid, generation = n.daemon_pid(nodes.head), nodes.said()["generation"]
        n.kill(*nodes.processes(nodes.head, "vllm serve"))
        nodes.pair.until(lambda said: not said["serving"] or said["generation"] > generation, 20.0)
        n.kill_daemon(nodes.head)
        n.until_replaced(nodes.head, pid)

    n.comes_back(nodes, result, inject)


def stands_still(nodes: Nodes, result: Result) -> None:
    """SIGSTOP of the head's sparkd: the watchdog replaces it, clients do not notice."""
    epoch = nodes.serving()["epoch"] + 1
    before = n.daemon_pid(nodes.head)

    def inject() -> None:
        n.kill_daemon(nodes.head, "STOP")
        n.until_replaced(nodes.head, before, STANDS_STILL_S * 3)

    n.unnoticed(nodes, result, inject, holds=lambda said: said["epoch"] >= epoch)


def stopped_by_hand(node: str, unit: str) -> Callable[[Nodes, Result], None]:
    """Return the scenario in which a person stops a unit while its node's daemon is away: a pause.

    Of a worker's the head has seen an end before it learns whose hand it was: an incident that ends so.
    """

    def scenario(nodes: Nodes, result: Result) -> None:
        machine, before = getattr(nodes, node), nodes.serving()
        incidents = len(nodes.incidents())
        machine.systemctl("stop", "sparkd")
        machine.systemctl("stop", unit)
        machine.systemctl("start", "sparkd")
        nodes.phase("paused")
        left = nodes.dead_processes()
        nodes.verb("resume")
        after = nodes.serving()
        every = nodes.incidents()
        new = [found["outcome"] for found in every[: len(every) - incidents] if found["outcome"] != "stopped"]
        result.cause = "none"
        result.ok = not left and not new and after["generation"] > before["generation"]
        result.note = "" if result.ok else f"left {left}, incidents {new}, generation {after['generation']}"

    scenario.__name__ = f"unit_stopped_while_away_{node}"
    scenario.__doc__ = (
        f"systemctl stop {unit} while the {node}'s daemon is away: it stays stopped until resume."
    )
    return scenario


TWIN = """
sed -e 's/192.168.200.13/10.10.0.99/; s/10.10.0.13/10.10.0.98/' /etc/sparkd/sparkd.toml > /run/lab-twin.toml
for address in 10.10.0.98 10.10.0.99; do ip addr add $address/32 dev lo; done
SPARKD_PATHS__STATE_DIR=/run/lab-twin/state SPARKD_PATHS__RUN_DIR=/run/lab-twin/run \
SPARKD_PATHS__LOG_DIR=/run/lab-twin/log SPARKD_API__PORT=9770 \
    timeout 60 /opt/sparkd/bin/sparkd run --config /run/lab-twin.toml --node spark-b --credentials /etc/sparkd
code=$?
for address in 10.10.0.98 10.10.0.99; do ip addr del $address/32 dev lo; done
exit $code
"""
SECOND = """
SPARKD_PATHS__STATE_DIR=/run/lab-second/state SPARKD_PATHS__RUN_DIR=/run/lab-second/run \
SPARKD_PATHS__LOG_DIR=/run/lab-second/log \
    timeout 60 /opt/sparkd/bin/sparkd run --config /etc/sparkd/sparkd.toml --credentials /etc/sparkd
"""


def two_under_one_name(nodes: Nodes, result: Result) -> None:
    """A second spark-b on the same machine, and one on another machine: both end with 78 at once."""
    codes = []

    def inject() -> None:
        for machine, script in ((nodes.worker, SECOND), (nodes.head, TWIN)):
            done = machine.box.run("sh", "-c", script, check=False, timeout_s=90.0)
            codes.append((done.returncode, done.stderr[-300:]))

    n.unnoticed(nodes, result, inject, holds=lambda _: True)
    wrong = [found for found in codes if found[0] != 78]
    result.ok = result.ok and not wrong
    result.note += f"exit codes {[code for code, _ in codes]} {wrong}" if wrong else ""


SERVING = [while_serving(node, how) for node in n.DAEMONS for how in ("restart", "SIGKILL")]
STARTING = [while_starting(phase) for phase in HELD]
BY_HAND = [stopped_by_hand("head", "sparkd-serve"), stopped_by_hand("worker", "sparkd-ray")]
