"""What a daemon's commands do to the simulated outside, and what comes back: the adapters' part."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from sim.chaos.post import Kind, PostRefusedError
from sparkd.core import commands as co
from sparkd.core import events as ev
from sparkd.core.publish import reports_from, status_of

if TYPE_CHECKING:
    from sim.chaos.daemon import Daemon
    from sim.chaos.machine import Tree

KILL_DEADLINE_S = 5.0
SWEEP_GRACE_S = 2.0
HTTP_DEADLINE_S = 2.0
MAY_FAIL = (
    co.SweepLeftovers,
    co.StopUnit,
    co.DrainSources,
    co.CheckModel,
    co.ProbeMembership,
    co.ProbeEngine,
    co.SendCanary,
    co.ProbePeer,
)


def carry_out(daemon: Daemon, command: co.Command) -> None:
    """Begin to carry out *command*."""
    if daemon.dead:
        return
    if daemon.machine.errors and isinstance(command, MAY_FAIL) and daemon.world.luck.random() < 0.3:
        name = type(command).__name__
        daemon.later(0.05, daemon.emit, ev.CommandFailed(command=name, reason="OSError: too many open files"))
        return
    EFFECTS[type(command)](daemon, command)


def _sweep(daemon: Daemon, _command: co.SweepLeftovers) -> None:
    """End what an earlier daemon left; where units outlive daemons, take over those whose root lives."""
    machine = daemon.machine
    left = [tree for tree in machine.trees if tree.alive and tree.owner is not daemon]
    generations = tuple(sorted({tree.generation for tree in left}))
    kept = [tree for tree in left if daemon.world.plan.outlives and tree.root and not tree.ordered]
    for tree in kept:
        tree.owner = daemon
    found = [tree for tree in left if tree not in kept]
    for tree in found:
        tree.terminate()
    running = tuple(ev.RunningUnit(tree.unit, tree.stamp, tree.settings) for tree in kept)
    daemon.later(SWEEP_GRACE_S if found else 0.05, _sweep_hard, daemon, found, generations, running)


Running = tuple[ev.RunningUnit, ...]


def _sweep_hard(daemon: Daemon, found: list[Tree], generations: tuple[int, ...], running: Running) -> None:
    left = [tree for tree in found if tree.alive]
    for tree in left:
        tree.kill()
    daemon.later(KILL_DEADLINE_S if left else 0.0, _swept, daemon, found, generations, running)


def _swept(daemon: Daemon, found: list[Tree], generations: tuple[int, ...], running: Running) -> None:
    survivors = tuple(tree.pid for tree in found if tree.alive)
    if survivors:
        daemon.machine.unkillable_s = daemon.world.now
    daemon.emit(ev.LeftoversSwept(generations, survivors, running))


def _start(daemon: Daemon, command: co.StartUnit) -> None:
    """Forking is one stroke: no order comes between it and the next."""
    daemon.world.check.ordered_start(daemon, command)
    unit, generation = command.unit, command.stamp.generation
    machine = daemon.machine
    if machine.start_fails == "raised":
        daemon.emit(ev.UnitStartFailed(unit, generation, "OSError: no such file"))
        daemon.world.blame_generation(generation, "start failed")
    elif machine.start_fails:
        daemon.emit(ev.CommandFailed("StartUnit", "TimeoutError", unit, generation))
        daemon.world.blame_generation(generation, "start failed")
    else:
        tree = machine.start(daemon, command)
        daemon.emit(ev.UnitStarted(unit, generation, tree.pid))


def _stop(daemon: Daemon, command: co.StopUnit) -> None:
    tree = daemon.machine.tree(command.unit, command.generation)
    daemon.world.check.ordered_stop(daemon, command, tree)
    names = tree.names() if tree is not None and tree.alive else ()
    daemon.emit(ev.UnitSurveyed(command.unit, command.generation, names))
    if tree is None or not tree.alive:
        daemon.later(0.05, daemon.emit, ev.UnitEmptied(command.unit, command.generation))
        return
    tree.ordered = True
    tree.terminate()
    daemon.later(command.grace_s, _stop_hard, daemon, tree)


def _stop_hard(daemon: Daemon, tree: Tree) -> None:
    if tree.alive:
        tree.kill()
        daemon.later(KILL_DEADLINE_S, _stopped, daemon, tree)


def _stopped(daemon: Daemon, tree: Tree) -> None:
    if tree.alive:
        daemon.machine.unkillable_s = daemon.world.now
        daemon.emit(ev.UnitUnkillable(tree.unit, tree.generation, (tree.pid,)))


def _drain(daemon: Daemon, command: co.DrainSources) -> None:
    daemon.later(0.05, _drained, daemon, command.generation)


def _drained(daemon: Daemon, generation: int) -> None:
    daemon.machine.flush_lines(daemon, generation)
    daemon.emit(ev.SourcesDrained(generation))


def _check_model(daemon: Daemon, _command: co.CheckModel) -> None:
    ready = not daemon.machine.model_missing
    answer = ev.ModelChecked(ready, "" if ready else "model files incomplete")
    daemon.later(0.05, daemon.emit, answer)


def _membership(daemon: Daemon, command: co.ProbeMembership) -> None:
    daemon.later(0.02, _observe_membership, daemon, command.generation)


def _observe_membership(daemon: Daemon, generation: int) -> None:
    table = daemon.world.table(generation)
    reason = "" if table is not None else "connection refused"
    daemon.emit(ev.MembershipObserved(generation, table, reason, "2.55"))


def _engine(daemon: Daemon, command: co.ProbeEngine) -> None:
    daemon.later(0.02, _observe_engine, daemon, command.generation)


def _observe_engine(daemon: Daemon, generation: int) -> None:
    engine = daemon.world.engines.get(generation)
    if engine is not None and daemon.world.api_silent:
        daemon.world.api_was_silent(engine)
    if engine is None or not engine.answers() or daemon.world.api_silent:
        daemon.emit(ev.EngineObserved(generation, answered=False, reason="refused"))
        return
    running, waiting, tokens = engine.counters()
    daemon.emit(ev.EngineObserved(generation, True, True, running, waiting, tokens))


def _canary(daemon: Daemon, command: co.SendCanary) -> None:
    engine = daemon.world.engines.get(command.generation)
    if engine is None or not engine.answers():
        answer = ev.CanaryAnswered(command.generation, False, 0.0, "refused")
        daemon.later(0.05, daemon.emit, answer)
    else:
        daemon.later(daemon.world.luck.uniform(0.1, 1.0), _answer, daemon, command)


def _answer(daemon: Daemon, command: co.SendCanary) -> None:
    engine = daemon.world.engines[command.generation]
    if not engine.answers():
        daemon.emit(ev.CanaryAnswered(command.generation, False, 0.5, "connection lost"))
    elif engine.hung:
        answer = ev.CanaryAnswered(command.generation, None, command.deadline_s, "deadline")
        daemon.later(command.deadline_s, daemon.emit, answer)
    elif daemon.world.wrong_answers:
        engine.blame("wrong answers")
        daemon.emit(ev.CanaryAnswered(command.generation, False, 0.5, "not what was asked"))
    else:
        engine.answered_right = True
        engine.canaries += 1
        daemon.emit(ev.CanaryAnswered(command.generation, True, 0.5))


def _probe_peer(daemon: Daemon, command: co.ProbePeer) -> None:
    world, node = daemon.world, command.node
    paths = [path for path in ("fabric", "management") if world.net.talks(path, daemon.name, node)]
    peer = world.machines[node].daemon
    if not paths:
        daemon.later(2 * HTTP_DEADLINE_S, _not_reached, daemon, node, "no answer within 2 s")
    elif not world.machines[node].on:
        daemon.later(2 * HTTP_DEADLINE_S, _not_reached, daemon, node, "no route to host")
    elif peer is None:
        daemon.later(0.05, _not_reached, daemon, node, "connection refused")
    else:
        luck = world.luck
        delay_s = luck.choice((0.01, 0.01, 0.1, 1.0))
        daemon.later(delay_s * luck.random(), _answer_peer, daemon, command, peer, delay_s)


def _not_reached(daemon: Daemon, node: str, reason: str) -> None:
    host, received = _host_of(daemon, node), daemon.world.received_bytes(daemon.name)
    daemon.emit(ev.PeerProbed(node, reached=False, reason=reason, host=host, received_bytes=received))


def _host_of(daemon: Daemon, node: str) -> ev.Host:
    """What the system of a node says: it is off or cut off, its sparkd does not run, or only stands still."""
    world, machine = daemon.world, daemon.world.machines[node]
    if not machine.on or not any(world.net.talks(p, daemon.name, node) for p in ("fabric", "management")):
        world.check.dark.setdefault((daemon.instance, node), world.now)
        return ev.Host.SILENT
    world.check.dark.pop((daemon.instance, node), None)
    return ev.Host.REFUSES if machine.daemon is None else ev.Host.PINGS


def _answer_peer(daemon: Daemon, command: co.ProbePeer, peer: Daemon, delay_s: float) -> None:
    if peer.dead:
        _not_reached(daemon, peer.name, "connection refused")
        return
    if peer.stopped:
        daemon.later(2 * HTTP_DEADLINE_S, _not_reached, daemon, peer.name, "no answer within 2 s")
        return
    policy, now = peer.policy, peer.clock()
    peer.said_s = daemon.world.now  # an answer is a word, whatever the broker carries
    status = status_of(peer.state, policy.shared_digest, policy.node_digest, policy.version)
    said: list[tuple[Any, Kind]] = [(peer.post.answer(status, now), Kind.STATUS)]
    if command.reports_from is not None:
        report = reports_from(peer.state, command.reports_from)
        if report is not None:
            said.append((peer.post.answer(report, now), Kind.REPORT))
    daemon.later(delay_s * daemon.world.luck.random(), _hear_peer, daemon, command.node, said)


def _hear_peer(daemon: Daemon, node: str, said: list[tuple[Any, Kind]]) -> None:
    for frame, kind in said:
        try:
            message = daemon.post.hear(frame, kind, node, daemon.clock())
        except PostRefusedError as refused:
            daemon.world.violate("every message passes the wire", str(refused))
            return
        event = ev.StatusReceived if kind is Kind.STATUS else ev.ReportReceived
        daemon.emit(event(message, ev.Path.HTTP))
    daemon.world.check.dark.pop((daemon.instance, node), None)
    daemon.emit(ev.PeerProbed(node, reached=True))


def _end(daemon: Daemon, _command: co.EndDaemon) -> None:
    daemon.world.daemon_ended(daemon)


def _publish_intent(daemon: Daemon, command: co.PublishIntent) -> None:
    daemon.world.check.ordered(daemon, command.intent)
    daemon.publish(command.intent)


def _publish_status(daemon: Daemon, command: co.PublishStatus) -> None:
    daemon.world.check.status(daemon, command.status)
    daemon.publish(command.status)


def _publish_incident(daemon: Daemon, command: co.PublishIncident) -> None:
    """For people: no daemon reads it, but it must be sayable."""
    try:
        daemon.post.seal(command.notice, daemon.clock(), daemon.world.now)
    except PostRefusedError as refused:
        daemon.world.violate("every message passes the wire", str(refused))


EFFECTS: dict[type, Callable[[Daemon, Any], None]] = {
    co.SweepLeftovers: _sweep,
    co.StartUnit: _start,
    co.StopUnit: _stop,
    co.DrainSources: _drain,
    co.CheckModel: _check_model,
    co.ProbeMembership: _membership,
    co.ProbeEngine: _engine,
    co.SendCanary: _canary,
    co.ProbePeer: _probe_peer,
    co.PublishStatus: _publish_status,
    co.PublishIntent: _publish_intent,
    co.PublishReport: lambda daemon, command: daemon.publish(command.report),
    co.PublishTelemetry: lambda daemon, command: daemon.publish(command.telemetry),
    co.PublishIncident: _publish_incident,
    co.EvictPages: lambda _daemon, _command: None,
    co.LeaseFloor: lambda _daemon, _command: None,
    co.EndDaemon: _end,
}
