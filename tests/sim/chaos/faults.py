"""What each fault does to the world, and how it ends. `world.disturb` keeps what is under way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from sim.chaos.plan import DISKS, Fault
from sim.chaos.post import LEVELS
from sparkd.core import events as ev
from sparkd.words import UnitName

if TYPE_CHECKING:
    from sim.chaos.disk import Disk
    from sim.chaos.world import World

ECHOES, ECHO_S = 6, 90.0
FABRIC_S = (2.0, 20.0)
"""So long NCCL bears a fabric that is cut."""


def apply(world: World, fault: Fault) -> None:
    """Let *fault* happen now."""
    if world.healed:
        return
    world.trace("fault", f"{fault.kind} {fault.node} {fault.span_s:g} s {fault.value}")
    if fault.kind != "daemon_stall" or fault.node != world.head:
        # The head's own stall excuses nothing: it must not look like a silence of others.
        world.disturbed_until_s = max(world.disturbed_until_s, world.now + fault.span_s)
    APPLY[fault.kind](world, fault)


def _broker_down(world: World, fault: Fault) -> None:
    if world.broker.up:
        world.broker.stop()
        world.unless_healed(fault.span_s, lambda: world.broker.start(fault.value))


def _broker_lag(world: World, fault: Fault) -> None:
    """Nothing comes through to a node, and then all of it, in any order of its senders."""
    world.broker.lagging[fault.node] = world.broker.lagging.get(fault.node, 0) + 1
    world.unless_healed(fault.span_s, lambda: world.broker.catch_up(fault.node))


def _cut(world: World, path: str, fault: Fault, way: str) -> None:
    world.net.cut(path, fault.node, way)
    world.unless_healed(fault.span_s, lambda: world.mend(path, fault.node, way))
    if path == "mqtt":
        world.sessions_suffer(fault.node)


def _mqtt_cut(world: World, fault: Fault) -> None:
    _cut(world, "mqtt", fault, fault.value)


def _http_cut(world: World, fault: Fault) -> None:
    """The peers' view does not answer on one network or on both; the fabric itself carries on."""
    network, way = fault.value
    for path in ("fabric", "management") if network == "all" else (network,):
        _cut(world, path, fault, way)


def _fabric_cut(world: World, fault: Fault) -> None:
    _cut(world, "fabric", fault, fault.value)
    _break_collectives(world, fault)


def _break_collectives(world: World, fault: Fault) -> None:
    after_s = world.luck.uniform(*FABRIC_S)
    if after_s < fault.span_s:
        world.unless_healed(after_s, lambda: _collectives_broke(world, fault.node))


def _collectives_broke(world: World, node: str) -> None:
    for engine in world.engines.values():
        if engine.alive() and not engine.over and engine.place >= 1:
            engine.hang("the fabric was cut")
            if world.luck.random() < 0.5:
                engine.fail_at(node, "nccl_timeout")


def _isolate(world: World, fault: Fault) -> None:
    for path in ("mqtt", "fabric", "management"):
        _cut(world, path, fault, fault.value)
    _break_collectives(world, fault)


def _daemon_crash(world: World, fault: Fault) -> None:
    machine = world.machines[fault.node]
    if machine.daemon is None:
        return
    world.crash_daemon(machine.daemon, fault.span_s)
    if fault.value == "die":
        for tree in list(machine.trees):
            tree.kill()


def _crash_in_step(world: World, fault: Fault) -> None:
    world.machines[fault.node].dies_in = (fault.value, fault.span_s)


def _old_words(world: World, fault: Fault) -> None:
    """What the head orders in its last moments comes long after its successor has begun to decide."""
    daemon = world.machines[world.head].daemon
    if daemon is None or fault.node == world.head:
        return
    world.broker.late[daemon.instance, fault.node] = world.now + fault.span_s
    _kill_unit(world, replace(fault, node=world.head))
    crash = replace(fault, node=world.head, span_s=0.5, value="live")
    world.unless_healed(world.luck.uniform(0.1, 6.0), lambda: _daemon_crash(world, crash))


def _daemon_end(world: World, fault: Fault) -> None:
    world.ask(fault.node, ev.Verb.SHUTDOWN)


def _daemon_stall(world: World, fault: Fault) -> None:
    daemon = world.machines[fault.node].daemon
    if daemon is not None:
        daemon.stall()
        world.unless_healed(fault.span_s, daemon.go_on)


def _power_loss(world: World, fault: Fault) -> None:
    machine = world.machines[fault.node]
    if not machine.on:
        return
    world.blame_node(fault.node, "its power was lost")
    machine.lose_power(fault.value)
    world.at(fault.span_s, world.power_on, fault.node)


def _dark(world: World, fault: Fault) -> None:
    """The head's host is gone for longer than a hang is borne: nobody reaches it on any path.

    Where only its addresses are (a firewall, a wrong route), the ranks still speak by RDMA.
    """
    if fault.value == "addresses":
        for path in ("mqtt", "fabric", "management"):
            _cut(world, path, replace(fault, node=world.head), "both")
        return
    head = replace(fault, node=world.head, value="kept" if fault.value == "power" else "both")
    (_power_loss if fault.value == "power" else _isolate)(world, head)


def _full_disk(world: World, fault: Fault) -> None:
    """Nothing that takes new blocks is written: what was kept before stays."""
    disk = world.machines[fault.node].disk
    disk.full, world.damages = True, world.damages + 1
    world.unless_healed(fault.span_s, lambda: _room_again(world, disk))


def _room_again(world: World, disk: Disk) -> None:
    disk.full, world.damages = False, world.damages + 1


def _blackout(world: World, fault: Fault) -> None:
    """Every node at once; sometimes nobody remembers anything, and old words are about when they are back."""
    old = [letter for letter in world.broker.tape if letter.kind in LEVELS]
    nothing = world.luck.random() < 0.5
    for name in world.plan.names:
        disk = "lost" if nothing else world.luck.choice(DISKS)
        _power_loss(world, replace(fault, node=name, value=disk))
    if nothing:
        world.broker.retained.clear()
    for _ in range(ECHOES if old else 0):
        node, letter = world.luck.choice(world.plan.names), world.luck.choice(old)
        after_s = fault.span_s + world.luck.uniform(1.0, ECHO_S)
        world.unless_healed(after_s, lambda n=node, old=letter: world.broker.echo(n, old))


def _kill_unit(world: World, fault: Fault) -> None:
    trees = [tree for tree in world.machines[fault.node].trees if tree.root]
    if trees:
        tree = world.luck.choice(trees)
        code = int(fault.value[-1]) if isinstance(fault.value, str) else None
        tree.end_root(code, None if code is not None else fault.value, clean=world.luck.random() < 0.6)


def _kill_at_phase(world: World, fault: Fault) -> None:
    world.dies_next = (fault.value, world.now + fault.span_s)


def _stuck_phase(world: World, fault: Fault) -> None:
    world.stuck_next = (fault.value, world.now + fault.span_s)


def _by_hand(world: World, fault: Fault) -> None:
    """A person stops a unit with the service manager's own tools."""
    for tree in world.machines[fault.node].trees:
        if tree.root:
            world.engines[tree.generation].blame("stopped by hand")
            tree.owner.emit(ev.UnitStoppedByHand(tree.unit, tree.generation))
            tree.end_root(None, 15, clean=True)
            return


def _raylet_dead(world: World, fault: Fault) -> None:
    for tree in world.machines[fault.node].trees:
        if tree.unit is UnitName.RAY and tree.alive:
            tree.raylet = False
            engine = world.engines[tree.generation]
            engine.blame(f"the raylet of {fault.node} died")
            engine.broken("a raylet died")


def _hang(world: World, _fault: Fault) -> None:
    for engine in world.engines.values():
        if engine.alive():
            engine.hang("it hangs")


def _level(name: str, off: object = False) -> Callable[[World, Fault], None]:
    """Return a fault that sets a level of its machine for its span."""

    def set_level(world: World, fault: Fault) -> None:
        machine = world.machines[fault.node]
        setattr(machine, name, True if fault.value is None else fault.value)
        world.unless_healed(fault.span_s, lambda: setattr(machine, name, off))

    return set_level


def _manner(world: World, fault: Fault) -> None:
    machine = world.machines[fault.node]
    machine.manner = fault.value
    world.unless_healed(fault.span_s, machine.let_go)


def _world_level(name: str) -> Callable[[World, Fault], None]:
    def set_level(world: World, fault: Fault) -> None:
        if not getattr(world, name):
            setattr(world, name, True)
            setattr(world, f"{name}_s", world.now)
        world.unless_healed(fault.span_s, lambda: setattr(world, name, False))

    return set_level


def _memory_hog(world: World, fault: Fault) -> None:
    machine = world.machines[fault.node]
    size = int(world.plan.total * fault.value)
    machine.hog += size
    world.unless_healed(fault.span_s, lambda: world.hog_ends(machine, size))
    machine.tell_memory()
    for engine in world.engines.values():
        if engine.alive() and engine.place >= 0 and not engine.over:
            engine.check_memory()


def _replay(world: World, fault: Fault) -> None:
    daemon = world.machines[fault.node].daemon
    if daemon is not None and daemon.session is not None:
        world.broker.replay(daemon.session)


def _signal(world: World, fault: Fault) -> None:
    for engine in world.engines.values():
        if engine.alive() and not engine.over and engine.place >= 0:
            if fault.value == "noise":
                engine.oddities.append("host_memory_pressure is said")
                engine.signal(fault.node, "host_memory_pressure", {}, fatal=False)
            else:
                engine.blame(fault.value)
                engine.fail_at(fault.node, fault.value)


def _wall_step(world: World, fault: Fault) -> None:
    world.machines[fault.node].wall_s += fault.value


def _reconfigure(world: World, fault: Fault) -> None:
    """A person edits the configuration and restarts the daemons one after the other."""
    world.edits += 1
    changes = {}
    if fault.value in ("settings", "both"):
        asked = world.policies[world.head].settings
        share = round(min(0.95, max(0.6, asked.gpu_memory_utilization + world.luck.choice((-0.05, 0.02)))), 2)
        changes["settings"] = replace(asked, gpu_memory_utilization=share)
    if fault.value == "floors":
        changes["floors"] = replace(
            world.policies[world.head].floors,
            gpu_memory_utilization=world.luck.choice((0.3, 0.5, 0.7)),
            max_num_seqs=world.luck.choice((1, 8, 32)),
        )
    if fault.value == "budgets":
        changes["transient_budget"] = world.luck.choice((0, 1, 5))
        changes["unknown_unchanged"] = world.luck.choice((0, 2))
    if fault.value in ("digest", "both"):
        changes["shared_digest"] = f"plan-{world.edits}"
        changes["context"] = f"context-{world.edits}"
    for index, name in enumerate(world.plan.names):
        world.at(index * fault.span_s / len(world.plan.names), _edit, world, name, changes)


def _edit(world: World, name: str, changes: dict) -> None:
    if world.healed:
        return
    digest = {"node_digest": f"node-{name}-{world.edits}"} if "shared_digest" in changes else {}
    world.policies[name] = replace(world.policies[name], **changes, **digest)
    world.ask(name, ev.Verb.SHUTDOWN)


def _guard_lost(world: World, fault: Fault) -> None:
    """A guard dies, or only observes: whichever, not every node's is seen to enforce any more."""
    world.guards_lost[fault.node] += 1
    world.tell_guard(fault.node)
    world.unless_healed(fault.span_s, lambda: _guard_back(world, fault.node))


def _guard_back(world: World, node: str) -> None:
    world.guards_lost[node] -= 1
    world.tell_guard(node)


def _verb(world: World, fault: Fault) -> None:
    verb = ev.Verb(fault.value)
    world.ask(world.head, verb)


APPLY: dict[str, Callable[[World, Fault], None]] = {
    "broker_down": _broker_down,
    "broker_lag": _broker_lag,
    "mqtt_cut": _mqtt_cut,
    "http_cut": _http_cut,
    "fabric_cut": _fabric_cut,
    "isolate": _isolate,
    "daemon_crash": _daemon_crash,
    "crash_in_step": _crash_in_step,
    "old_words": _old_words,
    "daemon_end": _daemon_end,
    "daemon_stall": _daemon_stall,
    "power_loss": _power_loss,
    "dark": _dark,
    "full_disk": _full_disk,
    "blackout": _blackout,
    "kill_unit": _kill_unit,
    "kill_at_phase": _kill_at_phase,
    "stuck_phase": _stuck_phase,
    "by_hand": _by_hand,
    "raylet_dead": _raylet_dead,
    "hang": _hang,
    "wrong_answers": _world_level("wrong_answers"),
    "manner": _manner,
    "start_fails": _level("start_fails", ""),
    "adapter_errors": _level("errors"),
    "late_logs": _level("late_s", 0.0),
    "memory_hog": _memory_hog,
    "slow_disk": _level("disk_s", 0.0),
    "slow_release": _level("release_s", 0.0),
    "model_missing": _level("model_missing"),
    "never_joins": _level("joins", ""),
    "gcs_silent": _world_level("gcs_silent"),
    "api_silent": _world_level("api_silent"),
    "replay": _replay,
    "signal": _signal,
    "wall_step": _wall_step,
    "reconfigure": _reconfigure,
    "guard_lost": _guard_lost,
    "verb": _verb,
}
