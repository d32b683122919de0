"""One daemon: the real core inside a loop as `sparkd.loop.runner` turns it, on a clock of its own.

Inputs before timers, our own stall first, records on disk before what starts something, commands as tasks
that die with the daemon and stand still while it is stopped.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from sim.chaos import effects
from sim.chaos.broker import SILENCE_S, Session
from sim.chaos.post import Letter, Post, PostRefusedError, event_of
from sparkd.core import commands as co
from sparkd.core import events as ev
from sparkd.core import step as stepping
from sparkd.core.beginning import initial
from sparkd.core.messages import Intent, MemberStatus, Report, Telemetry
from sparkd.core.policy import Policy
from sparkd.core.records import DURABLE
from sparkd.core.step import Step, next_deadline
from sparkd.wire.shapes import Will
from sparkd.wire.topics import Kind

if TYPE_CHECKING:
    from sim.chaos.machine import Machine
    from sim.chaos.world import World

SAMPLED_EVERY = 7
"""Every so many steps one is kept, to be done again when the core's speed is measured (`run`)."""
STALL_S = 3.0
PATIENCE_S = 2.0
REPORTS_MAX = 64
RECONNECT_S = (0.2, 2.0)
STARTS = (co.StartUnit,)


class Daemon:
    """One instance, from its start to its end."""

    def __init__(self, world: World, machine: Machine, policy: Policy, number: int) -> None:
        self.world, self.machine, self.policy = world, machine, policy
        self.name = policy.node
        self.instance = f"{policy.node}-{number}"
        self.born_s = world.now
        self.dead = self.stopped = self.ended = False
        self.stopped_at_s = 0.0
        self.said_s = world.now
        self.head = policy.is_head
        self.state = initial(policy, self.instance, machine.disk.load(), self.clock())
        self.post = Post(self.name, self.instance, world.plan.names, codec=world.plan.codec)
        self.session: Session | None = None
        self._connections = 0
        self._levels: dict[type, Any] = {}
        self._owed: list[Any] = []
        self._inbox: list[ev.Event] = []
        self._frozen: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self._gap_s = 0.0
        self._turning = False
        self._busy_until_s = 0.0
        self._timer_s = float("inf")

    # -- time ------------------------------------------------------------------------------------

    def clock(self) -> float:
        """Return this daemon's own monotonic seconds."""
        return self.machine.clock()

    def later(self, delay_s: float, action: Callable[..., None], *args: Any) -> None:
        """Do *action* so much later, where this daemon lives then; while it is stopped, when it goes on."""
        self.world.at(delay_s, self._task, action, args)

    def _task(self, action: Callable[..., None], args: tuple[Any, ...]) -> None:
        if self.dead:
            return
        if self.stopped:
            self._frozen.append((action, args))
        else:
            action(*args)

    # -- the loop --------------------------------------------------------------------------------

    def boot(self) -> None:
        """Begin: a first reading of the memory, the first try to connect."""
        self.emit(self.machine.sample())
        self.emit(ev.GuardObserved(self.world.guard_of(self.name)))
        self.later(self.world.luck.uniform(0.0, 0.5), self._connect)
        self.later(30.0 + self.world.luck.uniform(0.0, 30.0), self._read_memory)

    def _read_memory(self) -> None:
        self.emit(self.machine.sample())
        self.later(60.0, self._read_memory)

    def emit(self, event: ev.Event) -> None:
        """Queue an event."""
        if self.dead:
            return
        self._inbox.append(event)
        if not self._turning and not self.stopped:
            self._turning = True
            self.world.at(max(0.002, self._busy_until_s - self.world.now), self._turn)

    def _turn(self) -> None:
        """Fold all that waits, our own stall first; a deadline is judged only when nothing waits."""
        self._turning = False
        if self.dead or self.stopped:
            return
        if self.world.now < self._busy_until_s:
            self._turning = True
            self.world.at(self._busy_until_s - self.world.now, self._turn)
            return
        events, self._inbox = self._inbox, []
        if self._gap_s > STALL_S:
            events.insert(0, ev.LoopStalled(gap_s=self._gap_s))
        self._gap_s = 0.0
        due_s = next_deadline(self.state)
        if not events and due_s is not None and due_s <= self.clock():
            events = [ev.TimerFired()]
        if events:
            self._step(events)
        self._arm()

    def _step(self, events: Sequence[ev.Event]) -> None:
        world = self.world
        world.steps += 1
        inputs = self.state, events, self.clock(), self.policy
        try:
            result = stepping.step(*inputs)
        except Exception:  # noqa: BLE001 - whatever it raises is what is looked for
            world.violate("the step raised nothing", traceback.format_exc(limit=-4))
            return
        if world.steps % SAMPLED_EVERY == 0:
            world.sample.append(inputs)
        world.count_step()
        self.state = result.state
        self._commit(result)

    def _commit(self, result: Step) -> None:
        durable = False
        for record in result.records:
            if isinstance(record, DURABLE):
                durable = True
        if durable and (self._dies("before records") or self._persist(result)):
            return
        if durable and self._dies("before commands"):
            return
        self._carry_out(result)

    def _dies(self, where: str) -> bool:
        """Crash here, where that is what was planned for this node."""
        planned = self.machine.dies_in
        if planned is None or planned[0] != where or self.dead:
            return self.dead
        self.machine.dies_in = None
        self.world.crash_daemon(self, planned[1])
        return True

    def _persist(self, result: Step) -> bool:
        """Hand the records to the disk; return whether what follows has to wait for it."""
        spent_s = self.machine.disk_latency()
        disk = self.machine.disk
        disk.begin(result.records, self.policy.settings)
        self.world.at(spent_s, self._written, disk, len(disk.pending))
        if not any(map(_starts, result.commands)):
            return False
        wait_s = min(spent_s + 1e-4, PATIENCE_S)
        self._busy_until_s = self.world.now + wait_s
        self.later(wait_s, self._carry_out, result)
        return True

    def _written(self, disk: Any, _count: int) -> None:
        if not self.dead:
            disk.finish()

    def _carry_out(self, result: Step) -> None:
        world = self.world
        if result.records:
            world.observe(self, result.records)
        for command in result.commands:
            if world.digest is not None:
                world.digest.update(f"{self.instance} {world.now:.6f} {command!r}\n".encode())
            effects.carry_out(self, command)
            if self.machine.dies_in is not None and self._dies("between commands"):
                return

    def _arm(self) -> None:
        due_s = next_deadline(self.state)
        if due_s is None or self.dead:
            return
        at_s = max(self.machine.world_time(due_s), self._busy_until_s, self.world.now) + 1e-6
        if at_s < self._timer_s:
            self._timer_s = at_s
            self.world.at(at_s - self.world.now, self._fire, at_s)

    def _fire(self, at_s: float) -> None:
        if self._timer_s == at_s:
            self._timer_s = float("inf")
        if self.dead or self.stopped or self._turning:
            return
        due_s = next_deadline(self.state)
        if due_s is not None and due_s <= self.clock():
            self._turn()
        else:
            self._arm()

    # -- stopped, ended --------------------------------------------------------------------------

    def stall(self) -> None:
        """SIGSTOP."""
        if self.stopped or self.dead:
            return
        self.stopped, self.stopped_at_s = True, self.world.now
        if self.session is not None:
            self.world.at(SILENCE_S, self._missed, self.session)

    def _missed(self, session: Session) -> None:
        if self.stopped and not self.dead:
            self.world.broker.drop(session, will=True)

    def go_on(self) -> None:
        """SIGCONT: what was queued comes before any timer."""
        if not self.stopped or self.dead:
            return
        self.stopped = False
        self._gap_s += self.world.now - self.stopped_at_s
        self.world.stalled_s = self.world.now
        frozen, self._frozen = self._frozen, []
        for action, args in frozen:
            action(*args)
        if self.session is not None and not self.session.open:
            self.session_lost(self.session, "connection lost")
        self._turning = True
        self.world.at(0.001, self._turn)

    def die(self, *, polite: bool = False, at_once: bool = True) -> None:
        """End: by itself, killed, or with its machine (then the broker learns it by the silence)."""
        if self.dead:
            return
        self.dead = True
        self.world.check.deaths[self.instance] = self.world.now
        if self.head and self.world.plan.broker_at_head:
            self.world.broker.stop()
        self.world.check.left(self, self.machine.disk.crash(self.world.luck))
        session = self.session
        if session is not None and (polite or at_once):
            self.world.broker.drop(session, will=not polite)
        elif session is not None:
            self.world.at(SILENCE_S, lambda: self.world.broker.drop(session, will=True))

    # -- the session with the broker -------------------------------------------------------------

    def _connect(self) -> None:
        broker = self.world.broker
        if self.session is not None:
            return
        if not broker.reachable(self):
            self.later(self.world.luck.uniform(*RECONNECT_S), self._connect)
            return
        self._connections += 1
        will = self.post.seal(Will(self.name, self.instance, self._connections), self.clock(), self.world.now)
        self.session = broker.connect(self, will)
        self.emit(ev.BrokerChanged(connected=True))
        owed, self._owed = self._owed, []
        for message in (*self._levels.values(), *owed):
            self._say(message)

    def session_lost(self, session: Session, reason: str) -> None:
        """The connection is gone: say so, and try again."""
        if self.dead or self.stopped or self.session is not session:
            return
        self.session = None
        self.emit(ev.BrokerChanged(connected=False, reason=reason))
        self.later(self.world.luck.uniform(*RECONNECT_S), self._connect)

    def publish(self, message: MemberStatus | Intent | Report | Telemetry) -> None:
        """Say *message*; without a session levels wait, evidence waits bounded, telemetry is dropped."""
        if isinstance(message, MemberStatus | Intent):
            self._levels[type(message)] = message
        session = self.session
        if session is not None and session.open and self.world.net.mqtt(self.name):
            self._say(message)
        elif isinstance(message, Report):
            self._owed = [*self._owed[1 - REPORTS_MAX :], message]

    def flush(self) -> None:
        """The way is whole again within one session: what could not be sent goes out."""
        owed, self._owed = self._owed, []
        for message in (*self._levels.values(), *owed):
            self._say(message)

    def _say(self, message: Any) -> None:
        try:
            letter = self.post.seal(message, self.clock(), self.world.now)
        except PostRefusedError as refused:
            self.world.violate("every message passes the wire", str(refused))
            return
        self.said_s = self.world.now
        self.world.said(self, message)
        self.world.broker.publish(self, letter)

    def receive(self, letter: Letter, retained: bool) -> None:
        """Take a letter of another daemon, or of this node's past where it is retained."""
        if self.dead or letter.instance == self.instance or (letter.node == self.name and not retained):
            return
        try:
            message = self.post.open(letter, self.clock())
        except PostRefusedError as refused:
            self.world.violate("every message passes the wire", str(refused))
            return
        if message is not None:
            if not retained and letter.kind is not Kind.WILL:
                self.world.check.presence.word(self, letter.node)
            if isinstance(message, Intent) and not retained:
                self.world.delivered(self, message)
            self.emit(event_of(message, retained=retained))


def _starts(command: co.Command) -> bool:
    if isinstance(command, co.PublishIntent):
        return any(units for _, units in command.intent.wanted)
    return isinstance(command, STARTS)
