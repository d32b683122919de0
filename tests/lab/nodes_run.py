"""The scenarios on two nodes of systemd-nspawn, in their order, each with what has to come of it."""

from __future__ import annotations

import contextlib
import http.client
import json
import pathlib
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator

from lab import netns
from lab import nodes_daemons as daemons
from lab import nodes_harm as harm
from lab import nodes_world as world
from lab.engine_env import REPOSITORY
from lab.nodes import Nodes, ask, nodes
from lab.nspawn import NodeError
from lab.scenarios import Result

Scenario = Callable[[Nodes, Result], None]
FABRIC, MANAGEMENT = netns.FABRIC, netns.MANAGEMENT
FAILURES = (
    NodeError,
    OSError,
    LookupError,
    ValueError,
    http.client.HTTPException,
    subprocess.SubprocessError,
)

ORDER: tuple[tuple[Scenario, str | None], ...] = (
    (daemons.first_start, "none"),
    *((scenario, "none") for scenario in daemons.SERVING),
    *((scenario, "none") for scenario in daemons.STARTING),
    (daemons.both_while_failing, None),
    (daemons.head_while_failing, None),
    (daemons.two_under_one_name, "none"),
    (daemons.stands_still, "none"),
    *((scenario, "none") for scenario in daemons.BY_HAND),
    (world.broker_killed, "none"),
    (world.broker_away, "none"),
    (world.broker_rolled_back, "none"),
    (world.replayed, "none"),
    (world.wrong_key, "none"),
    (world.clock_steps, "none"),
    (world.partition(5.0, MANAGEMENT), "none"),
    (world.partition(5.0, FABRIC), "none"),
    (world.partition(5.0, FABRIC, MANAGEMENT), "none"),
    (world.partition(60.0, FABRIC), "ray_node_died"),
    (world.partition(60.0, FABRIC, MANAGEMENT), "ray_node_died"),
    (harm.full_disk, "worker_process_died"),
    (harm.kernel_kills, "cgroup_oom"),
    (harm.state_harmed("worker", "wiped"), "none"),
    (harm.state_harmed("head", "wiped"), "none"),
    (harm.state_harmed("head", "damaged"), "none"),
    (harm.does_not_die, "killed_unspecified"),
    (world.reboot("worker"), "none"),
    (world.reboot("head", "worker"), "none"),
    (world.broker_late, "none"),
    (world.power_loss("worker"), "ray_node_died|worker_process_died|peer_lost"),
    (world.power_loss("head"), None),
    (world.power_loss("head", "worker"), None),
)


def name_of(scenario: Scenario) -> str:
    """Return the row's name."""
    return f"nodes_{scenario.__name__}"


KEPT = REPOSITORY / "build" / "lab-nodes"
"""What a row that is not ok leaves: the head's newest incident, and the journal of both nodes."""

NAMES = tuple(name_of(scenario) for scenario, _ in ORDER)


def lived(chosen: set[str] | None, said: Callable[[Result, float], None]) -> Iterator[Result]:
    """Live through the scenarios that are chosen (None = all); the first start is always one of them."""
    shutil.rmtree(KEPT, ignore_errors=True)
    with contextlib.ExitStack() as stack:
        where = stack.enter_context(nodes())
        for scenario, expected in ORDER:
            name = name_of(scenario)
            if chosen is not None and name not in chosen and scenario is not daemons.first_start:
                continue
            result = Result(scenario=name, engine="stand-in", expected_cause=expected)
            began = time.monotonic()
            one(where, scenario, result)
            said(result, time.monotonic() - began)
            yield result
            if result.ok or scenario in daemons.STARTING[:-1]:
                continue
            if not calmed(where, result):
                stack.close()
                where = stack.enter_context(nodes())
                daemons.first_start(where, Result(scenario=name))


def one(where: Nodes, scenario: Scenario, result: Result) -> None:
    """Live through one scenario, and look for what it has left."""
    try:
        scenario(where, result)
        result.dead_processes = where.dead_processes()
    except FAILURES as error:
        result.ok, result.note = False, f"{type(error).__name__}: {error}"
    if result.dead_processes:
        result.ok, result.note = False, f"left: {result.dead_processes} {result.note}"
    if not result.ok:
        keep(where, KEPT / result.scenario)


def keep(where: Nodes, folder: pathlib.Path) -> None:
    """Keep what tells why a row is not ok, as far as the nodes still answer."""
    folder.mkdir(parents=True, exist_ok=True)
    for machine in where.pair.machines:
        with contextlib.suppress(*FAILURES):
            told = machine.box.run("journalctl", "--no-pager", "-o", "short-iso-precise", "-n", "4000").stdout
            (folder / f"{machine.box.name}.log").write_text(told, encoding="utf-8")
    with contextlib.suppress(*FAILURES):
        newest = where.incidents()[0]["incident"]
        document = ask(where.head, "GET", f"/incidents/{newest}")
        (folder / "incident.json").write_text(json.dumps(document, indent=1), encoding="utf-8")


def calmed(where: Nodes, result: Result) -> bool:
    """Bring it back after a failure; False where that cannot be done."""
    try:
        where.calm()
    except FAILURES as error:
        result.note += f"; not brought back: {type(error).__name__}: {error}"
        return False
    return True
