"""What a node itself does: the kernel kills, a disk is full, state is lost, a process does not die."""

from __future__ import annotations

import contextlib
import os
import pathlib
import re
import threading
from collections.abc import Callable, Iterator

from lab import netns
from lab import nodes as n
from lab.nodes import Nodes
from lab.nspawn import NodeError
from lab.scenarios import Result
from lab.systemd_pair import Machine

STATE = "/var/lib/sparkd"
SMALL_BYTES = 2 << 20
SQUEEZED_BYTES = 32 << 20
KILLED = re.compile(r"oom-kill:.*oom_memcg=(?P<group>[^,]+).*,pid=(?P<pid>\d+)")


def kernel_kills(nodes: Nodes, result: Result) -> None:
    """The engine's worker grows until the kernel kills it for its control group's memory.

    A node of systemd-nspawn has no kernel log of its own: the records of this kill are handed to the node
    in whose group it was.
    """
    (worker, *_) = nodes.processes(nodes.worker, "ray::RayWorkerProc")
    group = n.own_group("memory", "squeezed")
    try:

        def inject() -> None:
            with handed_on(nodes.worker, group.name) as handed:
                (group / "memory.limit_in_bytes").write_text(str(SQUEEZED_BYTES))
                (group / "cgroup.procs").write_text(str(worker))
                nodes.arm({"kind": "grow", "node": "192.168.200.13", "rank": 1, "times": 1})
                if not handed.wait(20.0):
                    raise NodeError(f"the kernel killed nobody in a group of {SQUEEZED_BYTES} bytes")
                nodes.arm()

        n.recovers(nodes, result, inject)
    finally:
        with contextlib.suppress(OSError):
            group.rmdir()


@contextlib.contextmanager
def handed_on(machine: Machine, group: str) -> Iterator[threading.Event]:
    """Hand the kernel's records of a kill in that group to the node; the event tells that there was one."""
    killed, ended = threading.Event(), threading.Event()
    device = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
    os.lseek(device, 0, os.SEEK_END)

    def follow() -> None:
        pids: set[str] = set()
        with machine.box.path(n.KERNEL).open("ab", buffering=0) as node:
            while not ended.wait(0.02):
                for record in records(device):
                    found = KILLED.search(record)
                    if found and group in found["group"]:
                        pids.add(found["pid"])
                    if any(f"pid={pid}," in record or f"process {pid} " in record for pid in pids):
                        node.write(f"{record}\n".encode())
                    if any(f"process {pid} " in record for pid in pids):
                        killed.set()

    thread = threading.Thread(target=follow, name="kernel-records")
    thread.start()
    try:
        yield killed
    finally:
        ended.set()
        thread.join()
        os.close(device)


def records(device: int) -> Iterator[str]:
    """Return what the kernel has said since the last time."""
    while True:
        try:
            yield os.read(device, 8192).decode("utf-8", "replace").splitlines()[0]
        except BlockingIOError:
            return
        except BrokenPipeError:
            continue


def full_disk(nodes: Nodes, result: Result) -> None:
    """The head's state directory is full when the engine's worker dies: it recovers, and says so."""
    told = []
    with small_disk(nodes.head):
        nodes.serving()
        fill = nodes.head.box.path(f"{STATE}/fill")

        def inject() -> None:
            with contextlib.suppress(OSError), fill.open("wb", buffering=0) as file:
                while True:
                    file.write(bytes(4096))
            n.kill(*nodes.processes(nodes.worker, "ray::RayWorkerProc"))
            nodes.pair.until(lambda said: said["trouble"], 30.0)
            told.append(nodes.said()["trouble"])
            nodes.pair.until(lambda said: said["serving"], n.START_S)
            fill.unlink()
            nodes.pair.until(lambda said: not said["trouble"], 30.0)

        n.recovers(nodes, result, inject)
    result.note += "" if result.ok else f" (told: {told})"


@contextlib.contextmanager
def small_disk(machine: Machine) -> Iterator[None]:
    """Keep the node's state on a disk of its own, small, for as long as the block lasts."""
    move = "rm -rf /srv/lab/state && cp -a {0} /srv/lab/state"
    lay = "cp -a /srv/lab/state/. {0}/"
    machine.systemctl("stop", "sparkd")
    machine.box.run("sh", "-c", move.format(STATE))
    machine.box.run("mount", "-t", "tmpfs", "-o", f"size={SMALL_BYTES},mode=0750", "lab-state", STATE)
    machine.box.run("sh", "-c", f"chown sparkd:sparkd {STATE} && {lay.format(STATE)}")
    machine.systemctl("start", "sparkd")
    try:
        yield
    finally:
        machine.systemctl("stop", "sparkd")
        machine.box.run("sh", "-c", move.format(STATE))
        machine.box.run("umount", STATE)
        machine.box.run("sh", "-c", lay.format(STATE))
        machine.systemctl("start", "sparkd")


def state_harmed(node: str, harm: str) -> Callable[[Nodes, Result], None]:
    """Return the scenario in which a node's state is `wiped` or `damaged` while its daemon is away."""
    script = {
        "wiped": f"find {STATE} -mindepth 1 -delete",
        "damaged": f"for f in $(find {STATE} -type f); do head -c $(stat -c %s $f) /dev/urandom > $f; done",
    }[harm]

    def scenario(nodes: Nodes, result: Result) -> None:
        machine, before = getattr(nodes, node), nodes.serving()

        def inject() -> None:
            machine.systemctl("stop", "sparkd")
            machine.box.run("sh", "-c", script)
            machine.systemctl("start", "sparkd")

        epoch = before["epoch"] + (node == "head")
        n.unnoticed(nodes, result, inject, holds=lambda said: said["epoch"] >= epoch)
        n.kill(*nodes.processes(nodes.worker, "ray::RayWorkerProc"))
        after = nodes.pair.until(
            lambda said: said["serving"] and said["generation"] > before["generation"], n.START_S
        )
        result.ok = result.ok and after["generation"] == before["generation"] + 1

    scenario.__name__ = f"state_{harm}_{node}"
    scenario.__doc__ = f"The {node}'s state is {harm}; the next generation is a new one all the same."
    return scenario


def does_not_die(nodes: Nodes, result: Result) -> None:
    """A process outlives SIGKILL: nothing is started beside it, a person is told; gone, it goes on by itself.

    The v1 freezer holds it, as a driver in uninterruptible sleep would.
    """
    before = n.Before.of(nodes)
    (held, *_) = nodes.processes(nodes.worker, "ray::RayWorkerProc")
    with frozen(held):
        n.kill(*nodes.processes(nodes.head, "vllm serve"))
        said = nodes.phase("escalated")
        result.cause = (nodes.incidents() or [{}])[0].get("cause")
        told, beside = said["needs"], nodes.processes(nodes.head, "vllm serve")
        started = netns.wait_until(lambda: nodes.said()["generation"] > before.generation, 5.0)
    nodes.pair.until(lambda now: not any(node["unkillable"] for node in now["nodes"]), 20.0)
    nodes.pair.until(lambda now: now["serving"] and now["generation"] > before.generation, n.START_S)
    named = "spark-b" in str(told) and "reboot" in str(told)
    result.ok = named and not beside and not started and result.cause == result.expected_cause
    result.note = "" if result.ok else f"told {told!r}, beside {beside}, started {started}"


@contextlib.contextmanager
def frozen(pid: int) -> Iterator[None]:
    """Hold a process so that SIGKILL does not end it, for as long as the block lasts."""
    group = n.own_group("freezer", str(pid))
    state: pathlib.Path = group / "freezer.state"
    try:
        (group / "cgroup.procs").write_text(str(pid))
        state.write_text("FROZEN")
        yield
    finally:
        state.write_text("THAWED")
        netns.wait_until(lambda: not (group / "cgroup.procs").read_text(), 5.0)
        with contextlib.suppress(OSError):
            group.rmdir()
