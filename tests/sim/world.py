"""A cluster in virtual time: the real core of every node, wired to a small simulated outside.

Nothing here sleeps and nothing is random: the same script gives the same story. The outside is a broker
with a delay, processes that start and end, Ray's table, an engine that walks through its phases, memory.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from sparkd.core import commands as co
from sparkd.core import events as ev
from sparkd.core.beginning import Remembered, initial
from sparkd.core.messages import GuardSeen, IncidentNotice
from sparkd.core.policy import Policy
from sparkd.core.publish import reports_from, status_of
from sparkd.core.records import InvariantBroken, Kept, KeptChanged, PhaseChanged, Record, SettingsAdopted
from sparkd.core.state import AT_ONCE, State
from sparkd.core.step import Step, next_deadline, step
from sparkd.signals.model import MemorySample, Proof, Quantity, Signal
from sparkd.sizing.sized import Sized
from sparkd.words import GIB, Backend, Phase, Settings, Stamp, UnitName

NODES = (("spark-a", "192.168.200.12"), ("spark-b", "192.168.200.13"))
TOTAL_BYTES = int(119.7 * GIB)
ENFORCING = GuardSeen(alive=True, enforcing=True, floor_bytes=3 * GIB, leased=True)
OBSERVING = GuardSeen(alive=True, floor_bytes=3 * GIB, reason="it only observes")
UNSEEN = GuardSeen(reason="no guard is seen")

# Of each story: the first steps, and some of the long quiet rest, are compared with all that was left out.
CHECKED_STEPS, CHECKED_EVERY = 1500, 17

START_PHASES: tuple[tuple[Phase, float], ...] = (
    (Phase.INIT_DISTRIBUTED, 5.0),
    (Phase.LOADING_WEIGHTS, 10.0),
    (Phase.PROFILING, 20.0),
    (Phase.CAPTURING_GRAPHS, 30.0),
    (Phase.STARTING_API, 40.0),
)


def make_policy(node: str, **changes: object) -> Policy:
    """Return a policy of the two-node cluster with short waits."""
    base = Policy(
        node=node,
        head="spark-a",
        nodes=NODES,
        settings=Settings(),
        shared_digest="shared",
        node_digest=f"digest-{node}",
        backoff_base_s=0.0,
        memory_release_s=5.0,
    )
    return replace(base, **changes)


@dataclass
class Proc:
    """A simulated unit: `dead_at` its root ended; its tree is emptied by StopUnit."""

    unit: UnitName
    stamp: Stamp
    settings: Settings
    alive: bool = True
    ready: bool = False


@dataclass
class Sim:
    """One node: its daemon's state and its processes."""

    name: str
    policy: Policy
    state: State
    instance_count: int = 1
    up: bool = True
    procs: dict[UnitName, Proc] = field(default_factory=dict)
    available_bytes: int = TOTAL_BYTES - 5 * GIB
    records: list[Record] = field(default_factory=list)
    wake_token: int = 0


class World:
    """The cluster and its clock. Script it with `at`, run it with `run_until`."""

    def __init__(
        self, nodes: tuple[str, ...] = ("spark-a", "spark-b"), *, guarded: bool = False, **policy: object
    ) -> None:
        self.now = 0.0
        self.heap: list[tuple[float, int, Callable[[], None]]] = []
        self.count = 0
        self.steps = 0
        self.notices: list[IncidentNotice] = []
        self.evictions: list[tuple[str, int]] = []
        self.leases: list[tuple[float, str, Phase, int]] = []
        self.broker = True
        self.delay_s = 0.01
        self.model_ready = dict.fromkeys(nodes, True)
        self.model: Sized | None = None  # what the model's files say
        self.guards = dict.fromkeys(nodes, ENFORCING if guarded else UNSEEN)
        self.hung = False
        self.says_cache = True
        self.outlives = False  # whether units outlive their daemon, as under systemd
        self.ray_addresses: dict[str, str] = dict(NODES)
        self.never_joins: set[str] = set()
        self.on_serve: Callable[[Sim, Proc], bool] | None = None
        self.hosts: dict[str, ev.Host] = {}  # of those whose daemon does not answer
        self.received_bytes: int | None = 0
        self.retained: dict[tuple[str, str], object] = {}
        self.nodes = {name: self._new_node(name, policy, 1, Remembered()) for name in nodes}
        for node in self.nodes.values():
            self.at(0.0, lambda node=node: self._boot(node))

    # -- the clock -------------------------------------------------------------------------------

    def at(self, delay_s: float, action: Callable[[], None]) -> None:
        """Do *action* so much later."""
        self.count += 1
        heapq.heappush(self.heap, (self.now + delay_s, self.count, action))

    def run_until(self, done: Callable[[], bool], limit_s: float = 600.0) -> float:
        """Run until *done*; return the virtual time that it took. Fails where it does not come."""
        start = self.now
        while not done():
            if not self.heap or self.heap[0][0] > start + limit_s:
                raise AssertionError(f"not reached in {limit_s} s; the story so far:\n{self.story()}")
            self.now, _, action = heapq.heappop(self.heap)
            action()
        return self.now - start

    def run_for(self, span_s: float) -> None:
        """Run for so long."""
        end = self.now + span_s
        while self.heap and self.heap[0][0] <= end:
            self.now, _, action = heapq.heappop(self.heap)
            action()
        self.now = end

    # -- reading ---------------------------------------------------------------------------------

    @property
    def head(self) -> Sim:
        """The coordinating node."""
        return self.nodes["spark-a"]

    @property
    def phase(self) -> Phase:
        """The coordinator's phase."""
        return self.head.state.coordinator.phase

    @property
    def generation(self) -> int:
        """The newest generation."""
        return self.head.state.seen.generation

    def records(self, kind: type[Record]) -> list:
        """Return the head's records of one kind."""
        return [r for r in self.head.records if isinstance(r, kind)]

    def story(self) -> str:
        """Return the phase changes, one a line."""
        lines = [f"{r.before} -> {r.after} (g{r.generation}): {r.reason}" for r in self.records(PhaseChanged)]
        lead = self.head.state.coordinator
        return "\n".join([*lines, f"now: {lead.phase} waiting {lead.waiting} needs {lead.needs!r}"])

    # -- nodes -----------------------------------------------------------------------------------

    def _new_node(self, name: str, changes: dict, count: int, remembered: Remembered) -> Sim:
        policy = make_policy(name, **changes)
        state = initial(policy, f"{name}#{count}", remembered, self.now)
        return Sim(name, policy, state, instance_count=count)

    def _boot(self, node: Sim) -> None:
        self.tell(node, ev.MemoryObserved(MemorySample(self.now, node.available_bytes, TOTAL_BYTES)))
        if self.guards[node.name] is not UNSEEN:
            self.tell(node, ev.GuardObserved(self.guards[node.name]))
        if self.broker:
            self.tell(node, ev.BrokerChanged(True))
        for (kind, sender), message in list(self.retained.items()):
            if sender != node.name:
                self._arrive(node, kind, message, retained=True)

    def restart_daemon(self, name: str, *, remember: bool = True, **more: object) -> None:
        """Start a new daemon on the node, with its leftovers; `more` is remembered besides."""
        old = self.nodes[name]
        kept = replace(self.remembered(old), **more) if remember else Remembered()
        state = initial(old.policy, f"{name}#{old.instance_count + 1}", kept, self.now)
        new = replace(old, state=state, instance_count=old.instance_count + 1, up=True)
        self.nodes[name] = new
        self._boot(new)

    def remembered(self, node: Sim) -> Remembered:
        """Return what the node's records have left on its disk."""
        settings = [r.settings for r in node.records if isinstance(r, SettingsAdopted)]
        kept = [r.kept for r in node.records if isinstance(r, KeptChanged)]
        return Remembered(
            seen=node.state.seen,
            settings=settings[-1] if settings else None,
            asked=node.policy.settings if settings else None,
            kept=kept[-1] if kept else Kept(),
        )

    def tell(self, node: Sim, event: ev.Event) -> None:
        """Step the node's core with *event* and carry out what it orders."""
        node = self.nodes[node.name]
        if not node.up:
            return
        result = step(node.state, (event,), self.now, node.policy)
        self._check_economy(node, event, result)
        node.state = result.state
        node.records += result.records
        broken = [r for r in result.records if isinstance(r, InvariantBroken)]
        assert not broken, (broken, event)
        for command in result.commands:
            self._do(node, command)
        self._arm(node)

    def _check_economy(self, node: Sim, event: ev.Event, result: Step) -> None:
        """What a step leaves out because nothing is news or due would have changed nothing."""
        self.steps += 1
        if self.steps > CHECKED_STEPS and self.steps % CHECKED_EVERY:
            return
        everything = step(replace(node.state, wakes=AT_ONCE), (event,), self.now, node.policy)
        assert everything.commands == result.commands, event
        assert everything.records == result.records, event
        assert replace(everything.state, wakes=()) == replace(result.state, wakes=()), event

    def _arm(self, node: Sim) -> None:
        deadline = next_deadline(node.state)
        node.wake_token += 1
        token = node.wake_token
        if deadline is not None:
            self.at(max(0.0, deadline - self.now), lambda: self._fire(node.name, token))

    def _fire(self, name: str, token: int) -> None:
        node = self.nodes[name]
        if node.wake_token == token:
            self.tell(node, ev.TimerFired())

    # -- commands --------------------------------------------------------------------------------

    def _do(self, node: Sim, command: co.Command) -> None:
        getattr(self, f"_do_{type(command).__name__}")(node, command)

    def later(self, node: Sim, delay_s: float, event: ev.Event) -> None:
        """Tell *event* so much later, to the daemon that is there then."""
        self.at(delay_s, lambda: self.tell(node, event))

    def _do_SweepLeftovers(self, node: Sim, _command: co.SweepLeftovers) -> None:  # noqa: N802
        living = [proc for proc in node.procs.values() if proc.alive]
        generations = tuple({proc.stamp.generation for proc in living})
        if self.outlives:
            running = tuple(ev.RunningUnit(proc.unit, proc.stamp, proc.settings) for proc in living)
            self.later(node, 0.1, ev.LeftoversSwept(generations, running=running))
            return
        node.procs.clear()
        self.later(node, 0.1, ev.LeftoversSwept(generations))

    def _do_StartUnit(self, node: Sim, command: co.StartUnit) -> None:  # noqa: N802
        proc = Proc(command.unit, command.stamp, command.settings)
        node.procs[command.unit] = proc
        self.later(node, 0.1, ev.UnitStarted(command.unit, command.stamp.generation, 1000))
        if command.unit is UnitName.SERVE:
            self._walk(node, proc)

    def _walk(self, node: Sim, proc: Proc) -> None:
        for phase, delay_s in START_PHASES:
            self.at(delay_s, lambda phase=phase: self._show(node, proc, phase))

    def _show(self, node: Sim, proc: Proc, phase: Phase) -> None:
        if not proc.alive:
            return
        if phase is Phase.STARTING_API:
            proc.ready = True
        kv = int(49.12 * GIB) if phase is Phase.CAPTURING_GRAPHS and self.says_cache else None
        if proc.settings.kv_cache_bytes is not None and kv is not None:
            kv = proc.settings.kv_cache_bytes
        self.tell(node, ev.PhaseSeen(proc.stamp.generation, phase, kv_cache_bytes=kv))
        if self.on_serve is not None:
            self.on_serve(node, proc, phase)

    def kill(self, name: str, unit: UnitName, code: int | None = None, signal: int | None = 9) -> None:
        """The unit's root ends by itself."""
        node = self.nodes[name]
        proc = node.procs[unit]
        proc.alive = False
        self.tell(node, ev.UnitExited(unit, proc.stamp.generation, code, signal))

    def _do_StopUnit(self, node: Sim, command: co.StopUnit) -> None:  # noqa: N802
        proc = node.procs.get(command.unit)
        if proc is not None and proc.alive:
            proc.alive = False
            self.later(node, 0.2, ev.UnitExited(command.unit, command.generation, None, 15))
        self.later(node, 0.3, ev.UnitEmptied(command.unit, command.generation))
        self.at(0.4, lambda: self._memory(node))

    def _memory(self, node: Sim) -> None:
        sample = MemorySample(self.now, node.available_bytes, TOTAL_BYTES)
        self.tell(node, ev.MemoryObserved(sample))

    def _do_DrainSources(self, node: Sim, command: co.DrainSources) -> None:  # noqa: N802
        self.later(node, 0.05, ev.SourcesDrained(command.generation))

    def _do_CheckModel(self, node: Sim, _command: co.CheckModel) -> None:  # noqa: N802
        ready = self.model_ready[node.name]
        reason = "" if ready else "model files incomplete"
        self.later(node, 0.05, ev.ModelChecked(ready, reason, self.model if ready else None))

    def _do_EvictPages(self, node: Sim, _command: co.EvictPages) -> None:  # noqa: N802
        self.evictions.append((node.name, node.state.member.emptied_generation))

    def _do_ProbeMembership(self, node: Sim, command: co.ProbeMembership) -> None:  # noqa: N802
        head_runs = self._ray_runs("spark-a", command.generation)
        table = tuple(
            ev.RayNode(self.ray_addresses[name], True, name == "spark-a", name, (("GPU", 1.0),))
            for name in self.nodes
            if self._ray_runs(name, command.generation) and name not in self.never_joins
        )
        seen = ev.MembershipObserved(command.generation, table if head_runs else None, "refused")
        self.later(node, 0.02, seen)

    def _ray_runs(self, name: str, generation: int) -> bool:
        proc = self.nodes[name].procs.get(UnitName.RAY)
        return proc is not None and proc.alive and proc.stamp.generation == generation

    def _ready(self) -> bool:
        proc = self.head.procs.get(UnitName.SERVE)
        return proc is not None and proc.alive and proc.ready

    def _do_ProbeEngine(self, node: Sim, command: co.ProbeEngine) -> None:  # noqa: N802
        ready = self._ready()
        seen = ev.EngineObserved(command.generation, ready, ready or None, 0 if ready else None, 0)
        self.later(node, 0.02, seen)

    def _do_SendCanary(self, node: Sim, command: co.SendCanary) -> None:  # noqa: N802
        if self.hung:
            self.later(node, command.deadline_s, ev.CanaryAnswered(command.generation, None, 0.0, "deadline"))
        else:
            ready = self._ready()
            self.later(
                node, 0.4, ev.CanaryAnswered(command.generation, ready, 0.4, "" if ready else "refused")
            )

    def _do_ProbePeer(self, node: Sim, command: co.ProbePeer) -> None:  # noqa: N802
        peer = self.nodes[command.node]
        if peer.up:
            policy = peer.policy
            status = status_of(peer.state, policy.shared_digest, policy.node_digest, policy.version)
            self.later(node, 0.02, ev.StatusReceived(status, ev.Path.HTTP))
            report = reports_from(peer.state, command.reports_from) if command.reports_from else None
            if report is not None:
                self.later(node, 0.02, ev.ReportReceived(report, ev.Path.HTTP))
        host = ev.Host.UNKNOWN if peer.up else self.hosts.get(command.node, ev.Host.REFUSES)
        said = ev.PeerProbed(command.node, peer.up, "" if peer.up else "refused", host, self.received_bytes)
        self.later(node, 0.03, said)

    def _do_PublishStatus(self, node: Sim, command: co.PublishStatus) -> None:  # noqa: N802
        self._send(node, "status", command.status)

    def _do_PublishIntent(self, node: Sim, command: co.PublishIntent) -> None:  # noqa: N802
        self._send(node, "intent", command.intent)

    def _do_PublishReport(self, node: Sim, command: co.PublishReport) -> None:  # noqa: N802
        self._send(node, "report", command.report)

    def _do_PublishTelemetry(self, node: Sim, command: co.PublishTelemetry) -> None:  # noqa: N802
        self._send(node, "telemetry", command.telemetry)

    def _do_PublishIncident(self, node: Sim, command: co.PublishIncident) -> None:  # noqa: N802
        self.notices.append(command.notice)

    def _do_LeaseFloor(self, node: Sim, command: co.LeaseFloor) -> None:  # noqa: N802
        self.leases.append((self.now, node.name, command.phase, command.floor_bytes))

    def _do_EndDaemon(self, node: Sim, _command: co.EndDaemon) -> None:  # noqa: N802
        node.up = False

    def set_guard(self, name: str, guard: GuardSeen) -> None:
        """What the node's memory guard is changes."""
        self.guards[name] = guard
        self.tell(self.nodes[name], ev.GuardObserved(guard))

    # -- the broker ------------------------------------------------------------------------------

    def _send(self, sender: Sim, kind: str, message: object) -> None:
        if not self.broker:
            return
        if kind in {"status", "intent"}:
            self.retained[kind, sender.name] = message
        for node in self.nodes.values():
            if node.name != sender.name:
                self.at(self.delay_s, lambda node=node: self._arrive(node, kind, message))

    def _arrive(self, node: Sim, kind: str, message: object, *, retained: bool = False) -> None:
        made = {
            "status": lambda: ev.StatusReceived(message, ev.Path.MQTT, retained),
            "intent": lambda: ev.IntentReceived(message, retained),
            "report": lambda: ev.ReportReceived(message, ev.Path.MQTT),
            "telemetry": lambda: ev.TelemetryReceived(message),
        }
        self.tell(node, made[kind]())

    def set_broker(self, *, up: bool) -> None:
        """The broker goes or comes; everything retained is published anew."""
        self.broker = up
        for node in list(self.nodes.values()):
            self.tell(node, ev.BrokerChanged(up, "" if up else "connection refused"))

    # -- signals ---------------------------------------------------------------------------------

    def signal(self, name: str, cause: str, *, fatal: bool = True, **quantities: float) -> None:
        """A signal is recognised on the node."""
        node = self.nodes[name]
        made = Signal(
            id=f"test_{cause}",
            cause=cause,
            proof=Proof.PROVES,
            node=name,
            source="raylet.out",
            quote=f"{cause} {quantities}",
            at_s=self.now,
            generation=node.state.seen.generation,
            fatal=fatal,
            quantities=tuple(Quantity(k, v) for k, v in quantities.items()),
        )
        self.tell(node, ev.SignalSeen(made))


def serving(world: World) -> Callable[[], bool]:
    """Return whether the cluster serves, as a condition for `run_until`."""
    return lambda: world.phase is Phase.SERVING


MP = Backend.MP
