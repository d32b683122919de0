"""Two nodes with real units: systemd, polkit, journal, mosquitto on the head, and the stand-in engine.

    with systemd_pair.pair() as pair:
        pair.start()
        pair.until_serving(60.0)

The nodes are containers (`nspawn`) in the two network namespaces of `netns.pair()`: 192.168.200.12 and .13.
"""

import contextlib
import dataclasses
import importlib.util
import json
import pathlib
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from typing import Any

from lab import netns, nspawn
from sparkd.adapters.cgroups import Groups
from standin_cluster import PROGRAMS, make_model

CONFIG = """
[cluster]
name = "lab"
[[node]]
name = "spark-a"
role = "head"
address = "192.168.200.12"
interface = "fab0"
management_address = "10.10.0.12"
[[node]]
name = "spark-b"
role = "worker"
address = "192.168.200.13"
interface = "fab0"
management_address = "10.10.0.13"
[engine]
model = "/srv/model"
served_name = "lab"
backend = "{backend}"
path = "{programs}:/usr/bin:/bin"
home = "/var/lib/sparkd-engine"
env = {{ SPARKD_STANDIN_PYTHON = "{python}", SPARKD_STANDIN_FAULTS = "/srv/standin/faults.json" }}
[engine.ray]
version = "2.60.0"
num_gpus = 1
health_failures = 6
[engine.vllm]
version = "0.32.0"
[broker]
host = "192.168.200.12"
[recovery]
"""
# One cluster lives through many failures that have nothing to do with each other: no budget is shared.
# Its nodes share the memory of the machine with everything else on it: what goes is no leak.
QUICK = "backoff_base_s = 0.2\nbudget_window_s = 1\nleak_cycles = 100\n"
# As etc/mosquitto has it, but for accounts.
BROKER = "listener 1883 192.168.200.12\nallow_anonymous true\nset_tcp_nodelay true\n"
PAGE = "http://127.0.0.1:9760"
SLICE = "sparkd.slice"
Prepare = Callable[[nspawn.Node], None]


def missing() -> str:
    """Return why there can be no such pair here, with what to type; empty where there can."""
    if why := nspawn.missing() or netns.why_not():
        return why
    if shutil.which("mosquitto") is None and not pathlib.Path("/usr/sbin/mosquitto").exists():
        return "there is no mosquitto: apt-get install mosquitto"
    if not pathlib.Path("/usr/lib/polkit-1/polkitd").exists():
        return "there is no polkit: apt-get install polkitd"
    if importlib.util.find_spec("systemd") is None:
        return "there is no systemd-python: bash tests/systemd_python.sh .venv"
    return ""


@dataclasses.dataclass(frozen=True)
class Machine:
    """One node: its network and its container."""

    network: netns.Node
    box: nspawn.Node

    def systemctl(self, *arguments: str, check: bool = True) -> str:
        return self.box.run("systemctl", *arguments, check=check, timeout_s=150.0).stdout.strip()

    def shown(self, unit: str, name: str) -> str:
        return self.systemctl("show", unit, "--value", f"-p{name}")

    def status(self) -> dict[str, Any]:
        """Return what its page says. Raises OSError."""
        answer = self.network.http_get(f"{PAGE}/status")
        if answer.status != 200:
            raise OSError(f"{self.box.name}: the page answers {answer.status}")
        return dict(json.loads(answer.body))

    def engine(self) -> tuple[int, ...]:
        """Return every process in the engine's slice, by the control group."""
        return Groups(nspawn.group_roots(self.box)).pids(f"/{SLICE}")

    def stamped(self) -> dict[int, str]:
        """Return pid -> generation of every process that has the engine's mark, anywhere in the node."""
        found = {}
        own = pathlib.Path(f"/proc/{self.box.leader}/ns/pid").stat().st_ino
        for entry in pathlib.Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if entry.name.isdigit() and (entry / "ns/pid").stat().st_ino == own:
                    text = (entry / "environ").read_bytes().decode("utf-8", "replace")
                    marks = re.findall(r"SPARKD_STAMP=[^/\0]+/[^/\0]+/(\d+)/", text)
                    found.update({int(entry.name): generation for generation in marks[:1]})
        return found

    def stamps(self) -> set[str]:
        """Return the generations of which any process lives, anywhere in the node."""
        return set(self.stamped().values())


@dataclasses.dataclass(frozen=True)
class Pair:
    """The two nodes, the head first."""

    head: Machine
    worker: Machine

    @property
    def machines(self) -> tuple[Machine, Machine]:
        return (self.head, self.worker)

    def start(self) -> None:
        """Start sparkd on both nodes, as an operator does; return when both say that they are up."""
        for machine in self.machines:
            machine.systemctl("start", "sparkd")

    def until_serving(self, deadline_s: float) -> dict[str, Any]:
        """Wait until the head says that the cluster serves and no incident is open; return what it says."""
        return self.until(lambda said: said["serving"] and not said["incident"], deadline_s)

    def until(self, holds: Any, deadline_s: float) -> dict[str, Any]:
        """Wait until the head's status is as wanted; return it."""
        said: dict[str, Any] = {}

        def asked() -> bool:
            said.clear()
            with contextlib.suppress(OSError):
                said.update(self.head.status())
            return bool(said) and bool(holds(said))

        if not netns.wait_until(asked, deadline_s):
            raise nspawn.NodeError(f"not so within {deadline_s} s: {said}\n{self.told()}")
        return said

    def told(self) -> str:
        """Return the last lines of each node's daemon and of its engine, for whoever has to find out."""
        lines = []
        for machine in self.machines:
            for unit, count in (("sparkd.service", "100"), ("sparkd-*", "20")):
                asked = ("journalctl", "--no-pager", "-n", count, "-u", unit)
                lines += [f"--- {machine.box.name}: {unit}", machine.box.run(*asked, check=False).stdout]
        return "\n".join(lines)


@contextlib.contextmanager
def pair(
    more: str = QUICK,
    *,
    backend: str = "ray",
    programs: str = str(PROGRAMS),
    prepare: Prepare = lambda _: None,
) -> Iterator[Pair]:
    """Two booted nodes with everything in place and the broker up; sparkd is not started yet.

    Args:
        more: goes on where the configuration ends, with further keys of [recovery].
        backend: the engine's.
        programs: the folder with its programs, as the nodes see it.
        prepare: what else is done to a node before it boots.
    """
    if why := missing():
        raise nspawn.NodeError(why)
    with contextlib.ExitStack() as stack:
        networks = stack.enter_context(netns.pair())
        python = sys.executable
        config = (CONFIG + more).format(programs=programs, python=python, backend=backend)
        machines = [stack.enter_context(_machine(network, config, prepare)) for network in networks]
        machines[0].systemctl("start", "mosquitto")
        yield Pair(machines[0], machines[1])


@contextlib.contextmanager
def _machine(network: netns.Node, config: str, prepare: Prepare) -> Iterator[Machine]:
    with nspawn.node(network.name, namespace=network.namespace, boot=False) as box:
        nspawn.install(box, config)
        make_model(box.root / "srv/model")
        faults = box.write("/srv/standin/faults.json", '{"faults": []}')
        faults.parent.chmod(0o777)  # the stand-in counts its starts beside them
        box.write("/etc/mosquitto/conf.d/lab.conf", BROKER)
        prepare(box)
        box.boot()
        yield Machine(network, box)
