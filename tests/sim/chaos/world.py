"""The world of one seed: machines, daemons with real cores, broker, network, the engine, and time.

One heap of events; nothing sleeps, nothing reads a clock, and every chance comes from the seed.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sim.chaos import faults
from sim.chaos.broker import Broker, Session
from sim.chaos.checkers import Checkers
from sim.chaos.daemon import Daemon
from sim.chaos.engine import Engine
from sim.chaos.machine import Machine, Tree
from sim.chaos.network import Network
from sim.chaos.plan import Plan
from sparkd.core import events as ev
from sparkd.core.messages import GuardSeen, Intent
from sparkd.core.records import PhaseChanged, Record
from sparkd.words import Backend, Phase, UnitName

if TYPE_CHECKING:
    import hashlib

    from sparkd.core.policy import Policy
    from sparkd.core.state import State

SESSION_S = (2.0, 9.0)
"""So long either side of a session bears silence before it gives it up."""
SPIN_MAX = 3000
"""Steps within one second of the world: more is a core that turns in circles."""
OBEYED_S = 240.0
"""So long after a person's stop everything is stopped or given up, whatever the nodes do meanwhile."""
API_S = 40.0
TOKEN_BYTES, CANARY_TOKENS = 1 << 19, 8
RESTART_S = (1.0, 15.0)


class Violation(Exception):  # noqa: N818 - it is what is looked for, not what went wrong
    """A rule that does not hold."""

    def __init__(self, rule: str, text: str, at_s: float) -> None:
        super().__init__(rule, text, at_s)
        self.rule, self.text, self.at_s = rule, text, at_s


class World:
    """Everything outside the cores."""

    def __init__(self, plan: Plan, digest: hashlib._Hash | None = None, *, tracing: bool = False) -> None:
        self.plan, self.digest = plan, digest
        self.now = 0.0
        self.heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self.count = 0
        self.luck = random.Random(plan.seed * 2 + 1)
        self.head = plan.names[0]
        self.net = Network()
        self.broker = Broker(self)
        self.engines: dict[int, Engine] = {}
        self.policies = {name: plan.policy_of(name) for name in plan.names}
        self.machines = {name: Machine(self, name) for name in plan.names}
        self.check = Checkers(self)
        self.healed = False
        self.disturbed_until_s = 0.0
        self.stalled_s = float("-inf")
        self.wrong_answers = self.gcs_silent = self.api_silent = False
        self.wrong_answers_s = self.gcs_silent_s = self.api_silent_s = 0.0
        self.stuck_next: tuple[int, float] | None = None
        self.dies_next: tuple[int, float] | None = None
        self.guards_lost, self.guards_s = dict.fromkeys(plan.names, 0), float("-inf")
        self.edits = self.births = self.damages = 0
        self.phase = Phase.IDLE
        self.steps = 0
        self.sample: list[tuple[State, Sequence[ev.Event], float, Policy]] = []
        self.log: list[tuple[float, str, str]] | None = [] if tracing else None
        self._spin = (0.0, 0)
        for index, name in enumerate(plan.names):
            self.at(index * self.luck.choice((0.0, 1.0, 20.0)), self.start_daemon, name)
        for fault in plan.faults:
            self.at(fault.at_s, faults.apply, self, fault)

    # -- time ------------------------------------------------------------------------------------

    def at(self, delay_s: float, action: Callable[..., None], *args: Any) -> None:
        """Do *action* so much later."""
        self.count += 1
        heapq.heappush(self.heap, (self.now + delay_s, self.count, action, args))

    def unless_healed(self, delay_s: float, action: Callable[[], None]) -> None:
        """End a fault after its span, where the great healing has not ended it before."""
        self.at(delay_s, lambda: None if self.healed else action())

    def run(self, until_s: float, done: Callable[[], bool] | None = None) -> bool:
        """Run until *done* or so late; return whether it came."""
        heap, pop = self.heap, heapq.heappop
        while heap and heap[0][0] <= until_s:
            self.now, _, action, args = pop(heap)
            action(*args)
            if done is not None and done():
                return True
        self.now = max(self.now, until_s)
        return False

    # -- telling ---------------------------------------------------------------------------------

    def violate(self, rule: str, text: str) -> None:
        """A rule does not hold: the world ends here."""
        self.trace("VIOLATION", f"{rule}: {text}")
        raise Violation(rule, text, self.now)

    def trace(self, what: str, text: str) -> None:
        """Keep a line for the transcript."""
        if self.log is not None:
            self.log.append((self.now, what, text))

    def observe(self, daemon: Daemon, records: Sequence[Record]) -> None:
        """Take a step's records, as an exporter does."""
        if daemon.head:
            for record in records:
                if isinstance(record, PhaseChanged):
                    self.phase = record.after
        if self.log is not None:
            for record in records:
                self.trace(daemon.instance, str(record))
        self.check.records(daemon, records)

    def said(self, daemon: Daemon, message: Any) -> None:
        """A daemon says something to its broker."""
        if self.log is not None and isinstance(message, Intent):
            wanted = ", ".join(f"{node} {'+'.join(units) or '-'}" for node, units in message.wanted)
            text = f"intent {message.seq} of {message.stamp.epoch}/{message.stamp.generation}: {wanted}"
            self.trace(daemon.instance, text)

    def told_waiting(self) -> str:
        """Return what the head last said that it waits for."""
        return "waits for " + ("; ".join(self.check.judge.waiting) or "nothing")

    def delivered(self, daemon: Daemon, intent: Intent) -> None:
        """An intent came live to a daemon."""
        self.check.delivered(daemon, intent)

    def count_step(self) -> None:
        """A core that turns in circles is found."""
        second, steps = self._spin
        self._spin = (second, steps + 1) if self.now - second < 1.0 else (self.now, 0)
        if steps > SPIN_MAX:
            self.violate("the core does not turn in circles", f"{steps} steps in a second")

    # -- daemons and machines --------------------------------------------------------------------

    def start_daemon(self, name: str) -> None:
        """Start a daemon where none lives."""
        machine = self.machines[name]
        if not machine.on or machine.daemon is not None:
            return
        if machine.is_head and self.plan.broker_at_head and not self.broker.up:
            self.broker.start("lost")
        self.births += 1
        daemon = machine.daemon = Daemon(self, machine, self.policies[name], self.births)
        if daemon.head:
            self.phase = Phase.IDLE
        self.trace(daemon.instance, f"starts with {machine.disk.kept}")
        self.check.born(daemon)
        daemon.boot()

    def daemon_ended(self, daemon: Daemon) -> None:
        """A daemon ended by itself; its service manager starts it again later."""
        self.trace(daemon.instance, "ends by itself")
        daemon.die(polite=True)
        daemon.machine.daemon = None
        self.at(self.luck.uniform(*RESTART_S), self.start_daemon, daemon.name)

    def crash_daemon(self, daemon: Daemon, span_s: float) -> None:
        """A daemon is gone from one moment to the next; its processes may live on.

        Where the next one can take them over, nothing happened to the engine, unless it was still forming.
        """
        self.trace(daemon.instance, "crashes")
        self.disturbed_until_s = max(self.disturbed_until_s, self.now + span_s)
        if not self.plan.outlives:
            self.blame_node(daemon.name, "its daemon crashed")
        daemon.die()
        daemon.machine.daemon = None
        self.at(span_s, self.start_daemon, daemon.name)

    def power_on(self, name: str) -> None:
        """A node boots."""
        machine = self.machines[name]
        if not machine.on:
            machine.power_on()
            self.at(self.luck.uniform(0.5, 5.0), self.start_daemon, name)

    def ask(self, name: str, verb: ev.Verb) -> None:
        """A person asks the daemon of a node."""
        daemon = self.machines[name].daemon
        if daemon is None:
            return
        self.trace("person", f"{verb} on {name}")
        self.check.asked(daemon, verb)
        if verb is ev.Verb.STOP and daemon.head:
            self.at(OBEYED_S, self.check.obeyed, daemon, self.now)
        if verb in (ev.Verb.STOP, ev.Verb.SHUTDOWN):
            for engine in self.engines.values():
                engine.blame(f"{verb} was asked on {name}")
        daemon.emit(ev.OperatorAsked(verb))

    def blame_node(self, name: str, reason: str) -> None:
        """What happened to a node happened to the engine's part on it, and so to the engine."""
        for engine in self.engines.values():
            if any(node == name and tree.alive for (node, _), tree in engine.trees.items()):
                engine.blame(f"{name}: {reason}")

    def blame_generation(self, generation: int, reason: str) -> None:
        """Something went wrong with a generation, of which there may be no process yet."""
        self.check.excuse(generation, reason)
        engine = self.engines.get(generation)
        if engine is not None:
            engine.blame(reason)

    def take_next(self, name: str) -> int | None:
        """Return the place at which the next generation fails; some faults wait for more than one."""
        planned = getattr(self, name)
        if planned is None:
            return None
        place, until_s = planned
        if self.now >= until_s:
            setattr(self, name, None)
        return place

    def guard_of(self, name: str) -> GuardSeen:
        """Return what is seen of a node's guard: it enforces, or is dead or only observes."""
        enforcing = self.plan.guarded and not self.guards_lost[name]
        return GuardSeen(alive=enforcing, enforcing=enforcing, reason="" if enforcing else "no guard is seen")

    def floor_of(self, name: str) -> int:
        """Return the floor of the guard that enforces on a node, 0 = none; a device's memory has none."""
        enforces = self.plan.unified and self.guard_of(name).enforcing
        return self.policies[name].guard_floor_bytes if enforces else 0

    def guarded(self) -> bool:
        """Return whether every node's guard enforces."""
        return all(self.guard_of(name).enforcing for name in self.plan.names)

    def tell_guard(self, name: str) -> None:
        """A node's daemon looks for its guard once a second."""
        self.guards_s = self.now
        daemon = self.machines[name].daemon
        if daemon is not None:
            daemon.emit(ev.GuardObserved(self.guard_of(name)))

    # -- the network -----------------------------------------------------------------------------

    def sessions_suffer(self, node: str) -> None:
        """The sessions of a node that is cut off are given up after a while."""
        for session in list(self.broker.sessions):
            if session.daemon.name == node:
                self.at(self.luck.uniform(*SESSION_S), self._give_up, session)

    def _give_up(self, session: Session) -> None:
        daemon = session.daemon
        if session.open and not self.net.mqtt(daemon.name):
            self.broker.drop(session, will=True)
            daemon.session_lost(session, "no answer to a ping")

    def mend(self, path: str, node: str, way: str) -> None:
        """One cut is healed."""
        self.net.cut(path, node, way, by=-1)
        if path == "mqtt" and self.net.mqtt(node):
            self._reconnected(node)

    def _reconnected(self, node: str) -> None:
        for session in list(self.broker.sessions):
            if session.daemon.name == node and not session.daemon.dead:
                self.broker.flush(session)
                session.daemon.flush()

    # -- the engine ------------------------------------------------------------------------------

    def tree_started(self, tree: Tree) -> None:
        """A unit's process began to live."""
        self.trace(tree.machine.name, f"{tree.unit} of generation {tree.generation} starts")
        self.check.started(tree)
        engine = self.engines.get(tree.generation)
        if engine is None or (not engine.alive() and (tree.machine.name, tree.unit) in engine.trees):
            engine = self.engines[tree.generation] = Engine(self, tree.generation, tree.settings)
        engine.add(tree)

    def root_ended(self, tree: Tree) -> None:
        """A unit's root ended."""
        self.trace(tree.machine.name, f"{tree.unit} of generation {tree.generation}: its root ended")
        self.engines[tree.generation].root_ended(tree)

    def tree_gone(self, tree: Tree) -> None:
        """A unit's last process is gone."""
        self.trace(tree.machine.name, f"{tree.unit} of generation {tree.generation} is gone")
        engine = self.engines[tree.generation]
        engine.root_ended(tree)
        if self.plan.backend is Backend.MP or tree.unit is UnitName.RAY:
            tree.machine.release(tree.generation)
        elif tree.machine.is_head:
            for machine in self.machines.values():
                machine.release(tree.generation)

    def table(self, generation: int) -> tuple[ev.RayNode, ...] | None:
        """Return Ray's table, as an honest answer."""
        engine = self.engines.get(generation)
        if engine is None:
            return None
        if self.gcs_silent:
            if self.now - self.gcs_silent_s > self.policies[self.head].membership_silence_s / 3:
                engine.blame("Ray's head does not answer")
            return None
        return engine.table()

    def received_bytes(self, name: str) -> int:
        """Return all that a node has received: each token that an engine makes is summed over its nodes."""
        engines = [e for e in self.engines.values() if any(node == name for node, _ in e.trees)]
        tokens = sum(int(e.counters()[2]) + CANARY_TOKENS * e.canaries for e in engines if e.api)
        return tokens * TOKEN_BYTES

    def api_was_silent(self, engine: Engine) -> None:
        """A start that cannot be seen to come up is a failure; what serves is proved by its answers."""
        if not engine.answered_right and self.now - self.api_silent_s > API_S:
            engine.blame("its API does not answer")

    def hog_ends(self, machine: Machine, size: int) -> None:
        """Another program gives its memory back."""
        machine.hogged.append((self.now, machine.hog))
        machine.hog = max(0, machine.hog - size)
        machine.tell_memory()

    # -- healing ---------------------------------------------------------------------------------

    def heal(self) -> None:
        """Everything is mended, and nothing breaks any more."""
        self.trace("world", "heals")
        self.healed = True
        self.disturbed_until_s = self.now + 60.0
        self.wrong_answers = self.gcs_silent = self.api_silent = False
        self.stuck_next = self.dies_next = None
        for name in self.guards_lost:
            self.guards_lost[name] = 0
            self.tell_guard(name)
        self.net.heal()
        if not self.broker.up:
            self.broker.start("kept")
        for name, machine in self.machines.items():
            machine.let_go()
            machine.clear()
            self.broker.hurry(name)
            machine.hogged.append((self.now, machine.hog))
            machine.hog = 0
            self._reconnected(name)
            if machine.daemon is not None:
                machine.daemon.go_on()
            self._same_configuration(name)
            self.at(1.0, self.power_on, name)
            self.at(2.0, self.start_daemon, name)

    def _same_configuration(self, name: str) -> None:
        """A person who edits files one after the other ends with the same everywhere."""
        head, own = self.policies[self.head], self.policies[name]
        keys = ("shared_digest", "settings", "context", "floors", "transient_budget", "unknown_unchanged")
        same = {key: getattr(head, key) for key in keys}
        self.policies[name] = replace(own, **same)
        daemon = self.machines[name].daemon
        if daemon is not None and daemon.policy != self.policies[name]:
            self.ask(name, ev.Verb.SHUTDOWN)
