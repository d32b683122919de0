"""What happens around sparkd: power, networks, the broker, replayed and foreign messages, a clock."""

from __future__ import annotations

import pathlib
import time
from collections.abc import Callable

import paho.mqtt.client as paho

from lab import netns
from lab import nodes as n
from lab.nodes import Nodes
from lab.nspawn import NodeError
from lab.scenarios import Result
from lab.systemd_pair import Machine

BROKER = ("192.168.200.12", 1883)
BROKER_STATE = "/var/lib/mosquitto/mosquitto.db"
BOOTED_S = 90.0
"""From a power loss to serving: a boot takes seconds here, a start too."""
FAKETIME = "*/faketime/libfaketime.so.1"
Message = tuple[str, bytes, bool]


# -- power


def power_loss(*names: str) -> Callable[[Nodes, Result], None]:
    """Return the scenario in which these nodes lose their power and come back, the last one first.

    Of a worker's the head tells the cause; a head that was away itself has seen nothing.
    """

    def scenario(nodes: Nodes, result: Result) -> None:
        machines = [getattr(nodes, name) for name in names]

        def inject() -> None:
            for machine in machines:
                n.unplug(machine)
            if len(machines) == 1 and names[0] == "worker":
                nodes.pair.until(lambda said: not said["serving"], 60.0)
            for machine in reversed(machines):
                n.plug(machine)

        judged = n.recovers if machines == [nodes.worker] else n.comes_back
        judged(nodes, result, inject, within_s=BOOTED_S, most=2)
        counted(nodes, result)

    scenario.__name__ = "power_loss_" + "_and_".join(names)
    scenario.__doc__ = f"The {' and the '.join(names)} lose power and get it back; nobody types anything."
    return scenario


def counted(nodes: Nodes, result: Result) -> None:
    """A boot after an unclean end counts against the settings that ran, and the status says what changed."""
    changed = nodes.said()["settings"]["changed"]
    if result.ok and (result.settings_after == result.settings_before or not changed):
        causes = [(found["cause"], found["outcome"]) for found in nodes.incidents()[:2]]
        result.ok, result.note = False, f"not counted against the settings: changed {changed}, {causes}"


def reboot(*names: str) -> Callable[[Nodes, Result], None]:
    """Return the scenario in which these nodes are rebooted in order: no incident, and it serves again."""

    def scenario(nodes: Nodes, result: Result) -> None:
        before = n.Before.of(nodes)
        machines = [getattr(nodes, name) for name in names]
        for machine in machines:
            machine.box.shut_down()
        if nodes.head not in machines:
            nodes.phase("waiting")
        for machine in reversed(machines):
            n.plug(machine)
        began = time.monotonic()
        said = nodes.pair.until(
            lambda now: now["serving"] and now["generation"] > before.generation, BOOTED_S
        )
        result.serving_s = round(time.monotonic() - began, 1)
        new = [found["cause"] for found in nodes.incidents() if found["incident"] > before.incidents]
        result.cause, result.ok = "none", not new and said["generation"] == before.generation + 1
        result.note = "" if result.ok else f"incidents {new}, generation {said['generation']}"

    scenario.__name__ = "reboot_" + "_and_".join(names)
    scenario.__doc__ = f"The {' and the '.join(names)} are rebooted in order."
    return scenario


def broker_late(nodes: Nodes, result: Result) -> None:
    """Both nodes boot without a broker, which comes 15 s later: nothing starts before, then it serves."""
    before = n.Before.of(nodes)
    nodes.head.systemctl("disable", "mosquitto")
    try:
        for machine in nodes.pair.machines:
            machine.box.shut_down()
        for machine in nodes.pair.machines:
            n.plug(machine)
    finally:
        nodes.head.systemctl("enable", "mosquitto")
    nodes.pair.until(lambda said: said["waiting"], 30.0)
    started = netns.wait_until(lambda: any(nodes.engines()), 10.0)
    began = time.monotonic()
    nodes.head.systemctl("start", "mosquitto")
    nodes.serving()
    result.serving_s = round(time.monotonic() - began, 1)
    new = [found["cause"] for found in nodes.incidents() if found["incident"] > before.incidents]
    result.cause, result.ok = "none", not started and not new
    result.note = "" if result.ok else f"started without a broker: {started}, incidents {new}"


# -- the broker


def broker_killed(nodes: Nodes, result: Result) -> None:
    """The broker is killed; its own unit brings it back."""
    before = nodes.head.shown("mosquitto", "MainPID")

    def inject() -> None:
        nodes.head.systemctl("kill", "-s", "KILL", "mosquitto")
        if not netns.wait_until(lambda: nodes.head.shown("mosquitto", "MainPID") not in {"0", before}, 20.0):
            raise NodeError("the broker's unit does not bring it back")

    n.unnoticed(nodes, result, inject, holds=heard_by_mqtt)


def broker_away(nodes: Nodes, result: Result) -> None:
    """The broker is away for 15 s, longer than a peer's silence: what serves goes on, and it is said."""

    def inject() -> None:
        nodes.head.systemctl("stop", "mosquitto")
        nodes.pair.until(lambda said: said["nodes"][0]["broker"] is False and said["serving"], 30.0)
        netns.wait_until(lambda: not nodes.said()["serving"], 15.0)
        nodes.head.systemctl("start", "mosquitto")

    n.unnoticed(nodes, result, inject, holds=heard_by_mqtt)


def broker_rolled_back(nodes: Nodes, result: Result) -> None:
    """The broker comes back with what it held a generation ago, an intent of then included."""
    keep, back = f"cp {BROKER_STATE} /run/lab-broker", f"install -o mosquitto /run/lab-broker {BROKER_STATE}"
    nodes.head.systemctl("stop", "mosquitto")
    nodes.head.box.run("sh", "-c", keep)
    nodes.head.systemctl("start", "mosquitto")
    nodes.serving()
    restarted(nodes)

    def inject() -> None:
        nodes.head.systemctl("stop", "mosquitto")
        nodes.head.box.run("sh", "-c", back)
        nodes.head.systemctl("start", "mosquitto")

    n.unnoticed(nodes, result, inject, holds=heard_by_mqtt)


def heard_by_mqtt(said: dict[str, object]) -> bool:
    """Whether the head hears the worker over the broker."""
    return bool(said["nodes"][1]["mqtt"])  # type: ignore[index]


def restarted(nodes: Nodes) -> None:
    """Have the engine stopped and started by the operator: a new generation."""
    nodes.verb("stop")
    nodes.phase("stopped")
    nodes.verb("start")
    nodes.serving()


# -- networks


def partition(seconds: float, *interfaces: str) -> Callable[[Nodes, Result], None]:
    """Return the scenario in which cables of the worker are out for a while; it ends as the row expects."""
    which = (
        "both"
        if len(interfaces) > 1
        else {netns.FABRIC: "fabric", netns.MANAGEMENT: "management"}[interfaces[0]]
    )

    def scenario(nodes: Nodes, result: Result) -> None:
        def inject() -> None:
            n.disconnect(nodes.worker, *interfaces)
            try:
                netns.wait_until(lambda: False, seconds)
            finally:
                n.connect(nodes.worker)

        if result.expected_cause == "none":
            n.unnoticed(nodes, result, inject, holds=heard_by_mqtt)
        else:
            n.recovers(nodes, result, inject, most=2)

    scenario.__name__ = f"partition_{which}_{seconds:.0f}s"
    scenario.__doc__ = f"The {which} path(s) of the worker are cut for {seconds:.0f} s."
    return scenario


# -- words that must not count


def replayed(nodes: Nodes, result: Result) -> None:
    """Everything that was said over the broker during a stop and a start is said once more."""
    heard = nodes.head.network.call(lambda: recorded(lambda: restarted(nodes)))
    dropped = drops(nodes.worker)

    def inject() -> None:
        nodes.head.network.call(lambda: said_again(heard))
        if not netns.wait_until(lambda: drops(nodes.worker) > dropped, 20.0):
            raise NodeError(f"the worker dropped nothing of {len(heard)} replayed messages")

    n.unnoticed(nodes, result, inject, holds=heard_by_mqtt)


def drops(machine: Machine) -> float:
    """Return how many messages a node's daemon has dropped."""
    text = machine.network.http_get("http://127.0.0.1:9760/metrics").body.decode()
    rows = [line for line in text.splitlines() if line.startswith("sparkd_messages_dropped_total{")]
    return sum(float(line.rsplit(" ", 1)[1]) for line in rows)


def recorded(during: Callable[[], None]) -> list[Message]:
    """Return what is said under sparkd/ while something is done. In a thread of the node's network."""
    heard: list[Message] = []
    client = paho.Client(paho.CallbackAPIVersion.VERSION2, client_id="lab-recorder")
    client.on_message = lambda _c, _u, said: heard.append((said.topic, bytes(said.payload), said.retain))
    client.connect(*BROKER)
    client.subscribe("sparkd/#", qos=1)
    client.loop_start()
    try:
        during()
    finally:
        client.loop_stop()
        client.disconnect()
    return heard


def said_again(heard: list[Message]) -> None:
    """Say it all, in its order, retained where daemons retain. In a thread of the node's network."""
    client = paho.Client(paho.CallbackAPIVersion.VERSION2, client_id="lab-mallory")
    client.connect(*BROKER)
    client.loop_start()
    kept = ("/status", "/intent")
    sent = [client.publish(topic, text, qos=1, retain=topic.endswith(kept)) for topic, text, _ in heard]
    for message in sent:
        message.wait_for_publish(10.0)
    client.loop_stop()
    client.disconnect()


def wrong_key(nodes: Nodes, result: Result) -> None:
    """The worker comes back with another cluster key: nobody hears it, nothing happens, both say so."""
    key = "/etc/sparkd/cluster_key"
    right = nodes.worker.box.path(key).read_text()

    def inject() -> None:
        refused = drops(nodes.head)
        nodes.worker.box.write(key, "f" * 32, 0o600)
        nodes.worker.systemctl("restart", "sparkd")
        if not netns.wait_until(lambda: drops(nodes.head) > refused, 20.0):
            raise NodeError("the head has dropped nothing of a worker with another key")
        said = nodes.pair.until(lambda now: not now["nodes"][1]["mqtt"], 30.0)
        if not said["serving"]:
            raise NodeError(f"a worker that cannot be heard has ended serving: {said['phase']}")
        nodes.worker.box.write(key, right, 0o600)
        nodes.worker.systemctl("restart", "sparkd")

    try:
        n.unnoticed(nodes, result, inject, holds=heard_by_mqtt)
    finally:
        nodes.worker.box.write(key, right, 0o600)


def clock_steps(nodes: Nodes, result: Result) -> None:
    """Sparkd's clock of the day steps by an hour, forth and back, on either node.

    Containers share their machine's clock, so the daemons are given another one by a preloaded library.
    """
    found = sorted(pathlib.Path("/usr/lib").glob(FAKETIME))
    if not found:
        raise NodeError("there is no libfaketime: apt-get install libfaketime")
    offset, drop_in = "/srv/lab/clock", "/run/systemd/system/sparkd.service.d/clock.conf"
    lines = [f"LD_PRELOAD={found[0]}", f"FAKETIME_TIMESTAMP_FILE={offset}", "FAKETIME_NO_CACHE=1"]
    lines += ["FAKETIME_DONT_FAKE_MONOTONIC=1", "FAKETIME_DISABLE_SHM=1"]
    text = "[Service]\n" + "".join(f"Environment={line}\n" for line in lines)
    for machine in nodes.pair.machines:
        machine.box.write(offset, "+0\n")
        machine.box.write(drop_in, text)
    every_daemon_anew(nodes)
    epoch = nodes.serving()["epoch"]

    def inject() -> None:
        for step_s in (3600, -3600, 0):
            for machine, sign in zip(nodes.pair.machines, (1, -1), strict=True):
                machine.box.write(offset, f"{sign * step_s:+d}\n")
            netns.wait_until(lambda: False, 3.0)

    try:
        n.unnoticed(nodes, result, inject, holds=lambda said: said["epoch"] == epoch)
    finally:
        for machine in nodes.pair.machines:
            machine.box.path(drop_in).unlink()
        every_daemon_anew(nodes)


def every_daemon_anew(nodes: Nodes) -> None:
    """Restart both daemons, with their units read again."""
    pids = {machine: n.daemon_pid(machine) for machine in nodes.pair.machines}
    for machine in nodes.pair.machines:
        machine.systemctl("daemon-reload")
        machine.systemctl("restart", "--no-block", "sparkd")
    for machine, pid in pids.items():
        n.until_replaced(machine, pid)
