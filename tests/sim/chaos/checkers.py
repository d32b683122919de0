"""What must hold, held against the world's truth: processes, orders as they were delivered, real trouble.

Nothing here looks into a core's state: only at what it ordered, said and recorded, and at what truly lives.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

from sim.chaos.judgements import Judgements
from sim.chaos.presence import Presence
from sparkd.core import commands as co
from sparkd.core import events as ev
from sparkd.core.messages import Intent, MemberStatus
from sparkd.core.records import InvariantBroken, Record
from sparkd.words import NO_STAMP, Backend, Phase, Stamp, UnitName

if TYPE_CHECKING:
    from sim.chaos.daemon import Daemon
    from sim.chaos.engine import Engine
    from sim.chaos.machine import Tree
    from sim.chaos.world import World

PATIENCE_S = 2.0
"""`loop.runner.STORE_PATIENCE_S`: a disk that does not answer is not waited for for ever."""
SETTLE_S = 60.0
DELIVERED_MAX = 400


class Checkers:
    """The rules about processes and orders; those about settings and incidents stand in `judgements`."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.judge = Judgements(world)
        self.presence = Presence(world)
        self.intents: dict[tuple[str, int], Intent] = {}
        self.by_stamp: defaultdict[Stamp, list[Intent]] = defaultdict(list)
        self.heard: defaultdict[str, list[Intent]] = defaultdict(list)
        self.started_at: dict[tuple[str, UnitName, int], int] = {}
        self.applied: dict[str, tuple[str, int]] = {}
        self.epochs: dict[str, tuple[int, str]] = {}
        self.generations: dict[int, str] = {}
        self.deaths: dict[str, float] = {}
        self.seen: dict[str, Stamp] = {}
        self.leaving: set[str] = set()
        self.owners: dict[int, str] = {}
        self.dark: dict[tuple[str, str], float] = {}
        self.forgetful = False
        self.remembered = (0, 0)

    # -- what is told ----------------------------------------------------------------------------

    def born(self, daemon: Daemon) -> None:
        """A daemon starts: what its node's disk has forgotten, it may do again."""
        if daemon.head and any(epoch > daemon.machine.disk.kept.seen.epoch for epoch in self.owners):
            self.forgetful = True
        known = self.epochs.get(daemon.name)
        if known is not None and daemon.machine.disk.kept.seen.epoch < known[0]:
            del self.epochs[daemon.name]
        if daemon.head:
            known = [machine.disk.kept.seen.generation for machine in self.world.machines.values()]
            self.remembered = (max(known), self.world.damages)
            self.judge.head_born(daemon)

    def asked(self, daemon: Daemon, verb: ev.Verb) -> None:
        """A person asked."""
        if verb is ev.Verb.SHUTDOWN:
            self.leaving.add(daemon.instance)
        if daemon.head:
            self.judge.asked(daemon, verb)
            self.judge.last_asked_s = self.world.now

    def excuse(self, generation: int, reason: str) -> None:
        """Something truly went wrong with a generation that has no process yet."""
        self.judge.excused[generation] = reason

    def delivered(self, daemon: Daemon, intent: Intent) -> None:
        """An intent came live to a daemon."""
        heard = self.heard[daemon.instance]
        if not heard or heard[-1] is not intent:
            heard.append(intent)
            if len(heard) > DELIVERED_MAX:
                self.world.violate("orders are said in measure", f"{daemon.instance} was told {len(heard)}")

    def records(self, daemon: Daemon, records: Sequence[Record]) -> None:
        """Records of one step."""
        for record in records:
            if isinstance(record, InvariantBroken):
                self.world.violate("the core's own invariants hold", record.rule)
        self.presence.records(daemon, records)
        if daemon.head:
            self.judge.records(daemon, records)

    def left(self, daemon: Daemon, records: Sequence[Record]) -> None:
        """What a daemon decided and told nobody: it is on its disk, so the next one goes on with it."""
        if daemon.head:
            self.judge.left(records)

    # -- orders ----------------------------------------------------------------------------------

    def ordered(self, daemon: Daemon, intent: Intent) -> None:
        """A coordinator says an intent, perhaps again."""
        key = (intent.coordinator, intent.seq)
        if key in self.intents:
            return
        self.intents[key] = intent
        self.by_stamp[intent.stamp].append(intent)
        self.heard[daemon.instance].append(intent)
        wanting = any(units for _, units in intent.wanted)
        if intent.stamp.epoch < self.seen.get(daemon.instance, NO_STAMP).epoch:
            text = (
                f"{daemon.instance} orders in {intent.stamp} after it has seen {self.seen[daemon.instance]}"
            )
            self.world.violate("a coordinator decides in the highest epoch", text)
        if wanting:
            self._durable(daemon, intent.stamp, "an intent that wants units")
            self._shape(intent)
        if wanting and self.generations.get(intent.stamp.generation) != intent.coordinator:
            if self._runs(intent.stamp.generation):
                self.generations[intent.stamp.generation] = intent.coordinator  # taken over
            else:
                self._first(daemon, intent)

    def _runs(self, generation: int) -> bool:
        """Whether units of it may have outlived the daemon that started them, and still live."""
        engine = self.world.engines.get(generation) if self.world.plan.outlives else None
        return engine is not None and any(tree.alive for tree in engine.trees.values())

    def _durable(self, daemon: Daemon, stamp: Stamp, what: str) -> None:
        machine = daemon.machine
        kept = machine.disk.kept.seen
        if kept.epoch >= stamp.epoch and kept.generation >= stamp.generation:
            return
        if machine.disk_s < PATIENCE_S and not machine.disk.pending:
            text = f"{what} of {stamp} before it was on disk ({kept}) at {daemon.instance}"
            self.world.violate("records are durable before commands", text)

    def _first(self, daemon: Daemon, intent: Intent) -> None:
        """A generation is named: nobody who could say so knows it, and everybody it is for lives."""
        generation = intent.stamp.generation
        owner = self.generations.get(generation, intent.coordinator)
        self.generations[generation] = intent.coordinator
        remembered = generation <= self.remembered[0] and self.remembered[1] == self.world.damages
        if owner != intent.coordinator and remembered:
            text = f"{generation} by {intent.coordinator}, after {owner}"
            self.world.violate("a generation is never named twice", text)
        self.judge.launched(daemon, intent)
        self._addressees_live(daemon, intent)

    def _addressees_live(self, daemon: Daemon, intent: Intent) -> None:
        """Nothing is ordered of a daemon that has been dead for longer than its silence may last."""
        world = self.world
        quiet_s = world.policies[daemon.name].peer_silence_s + 5.0 + 2 * world.plan.noise.delay_s
        for node, instance in intent.addressees:
            there = world.machines[node].daemon
            lives = there is not None and there.instance == instance
            said_s = there.said_s if lives else self.deaths.get(instance, world.now)
            gone_s = 0.0 if node == daemon.name else world.now - said_s
            if gone_s > quiet_s * 1.05 and world.now - world.stalled_s > quiet_s:
                text = f"generation {intent.stamp.generation} is for {instance}, silent for {gone_s:.1f} s"
                world.violate("nothing is ordered of somebody who is not there", text)

    def _shape(self, intent: Intent) -> None:
        """Never one rank alone: up and down in order, else all or nothing."""
        names = self.world.plan.names
        head, workers = names[0], names[1:]
        wanted = {node: units for node, units in intent.wanted if units}
        ray, serve = UnitName.RAY, UnitName.SERVE
        if self.world.plan.backend is Backend.MP:
            full = all(wanted.get(node) == (serve,) for node in names)
            fine = full or (intent.phase is Phase.STOPPING and head not in wanted)
        elif serve in wanted.get(head, ()):
            fine = all(wanted.get(node) == (ray,) for node in workers)
        else:
            whole = all(wanted.get(node) == (ray,) for node in workers)
            first = wanted == {head: (ray,)}
            fine = intent.phase is Phase.STOPPING or whole or first
        if not fine or any(serve in wanted.get(node, ()) and ray in wanted[node] for node in workers):
            self.world.violate("never one rank alone", f"{intent.phase} wants {intent.wanted}")

    def status(self, daemon: Daemon, status: MemberStatus) -> None:
        """A worker says what it has applied."""
        key = (status.intent_coordinator, status.intent_seq)
        before = self.applied.get(daemon.instance)
        had_seen, self.seen[daemon.instance] = self.seen.get(daemon.instance, NO_STAMP), status.seen
        if daemon.head or key == before or not status.intent_seq:
            return
        self.applied[daemon.instance] = key
        intent = self.intents.get(key)
        if intent is None:
            self.world.violate("only what was ordered is applied", f"{daemon.instance} applied {key}")
            return
        if intent.instance_of(daemon.name) != daemon.instance:
            text = f"{daemon.instance} applied an intent for {intent.instance_of(daemon.name)}"
            self.world.violate("nobody acts on an order for another instance", text)
        if intent not in self.heard[daemon.instance]:
            self.world.violate("retained messages never order", f"{daemon.instance} applied {key}")
        if before is not None and before[0] == key[0] and before[1] > key[1]:
            self.world.violate("nobody acts on an old order", f"{daemon.instance}: {before} -> {key}")
        if intent.stamp < had_seen:
            text = f"{daemon.instance} obeys {intent.stamp} after it has seen {had_seen}"
            self.world.violate("nobody acts on an old stamp", text)
        self._newer(daemon, intent)

    def _newer(self, daemon: Daemon, intent: Intent) -> None:
        """Epochs grow: an order of an older coordinator is not obeyed after one of a newer."""
        epoch, coordinator = intent.stamp.epoch, intent.coordinator
        known = self.epochs.get(daemon.name)
        if known is not None and epoch < known[0]:
            text = f"{daemon.instance} obeys epoch {epoch} of {coordinator} after {known[0]} of {known[1]}"
            self.world.violate("nobody acts on an old epoch", text)
        self.epochs[daemon.name] = (epoch, coordinator)
        if any(units for _, units in intent.wanted) and not self.forgetful:
            owner = self.owners.setdefault(epoch, coordinator)
            if owner != coordinator:
                text = f"{daemon.instance} obeys {coordinator} in epoch {epoch}, which is that of {owner}"
                self.world.violate("an epoch belongs to one coordinator", text)

    def obeyed(self, daemon: Daemon, asked_s: float) -> None:
        """A while after a person's stop: it is done, where that daemon lives and nobody asked otherwise."""
        same = self.world.machines[daemon.name].daemon is daemon and not daemon.stopped
        still = self.judge.last_asked_s == asked_s and self.judge.last_verb is ev.Verb.STOP
        undisturbed = same and still and self.world.stalled_s < asked_s
        if undisturbed and self.world.phase is not Phase.STOPPED:
            self.world.violate("what a person asks is done", f"{self.world.phase} long after a stop")

    # -- units -----------------------------------------------------------------------------------

    def ordered_start(self, daemon: Daemon, command: co.StartUnit) -> None:
        """A member starts a unit: exactly as a live order for this very instance wants it."""
        stamp, unit = command.stamp, command.unit
        if daemon.policy.observe_only:
            self.world.violate("who only observes changes nothing", f"{daemon.instance} starts {unit}")
        heard = self.heard[daemon.instance]
        orders = [
            i for i in heard if i.stamp == stamp and i.instance_of(daemon.name) == daemon.instance
            and unit in i.units_of(daemon.name) and i.settings == command.settings
        ]  # fmt: skip
        if not orders:
            text = f"{daemon.instance} starts {unit} of {stamp} without a live order for it"
            self.world.violate("nobody acts on an order for another instance", text)
        if all(order.phase is Phase.STOPPING for order in orders):
            text = f"{daemon.instance} starts {unit} of {stamp} for an intent that stops"
            self.world.violate("a stop starts nothing", text)
        self._durable(daemon, stamp, f"{unit}")
        policy, order = daemon.policy, orders[-1]
        if (order.shared_digest, dict(order.node_digests).get(daemon.name)) != (
            policy.shared_digest,
            policy.node_digest,
        ):
            self.world.violate(
                "a node starts only what it renders itself", f"{daemon.instance}: {unit} of {stamp}"
            )
        self.started_at[daemon.instance, unit, stamp.generation] = heard.index(orders[-1])
        self.judge.settings_started(command.settings)

    def started(self, tree: Tree) -> None:
        """A process lives from now on: nothing else of another generation may, anywhere."""
        world = self.world
        for machine in world.machines.values():
            for other in machine.trees:
                if other.alive and other.generation != tree.generation:
                    where = "beside" if machine is tree.machine else f"before {machine.name} was fenced of"
                    text = f"{tree.unit} {tree.generation} on {tree.machine.name} {where} {other.generation}"
                    world.violate("one generation at a time", text)
        if world.plan.backend is Backend.RAY:
            self._in_order(tree)

    def _in_order(self, tree: Tree) -> None:
        engine = self.world.engines.get(tree.generation)
        there = engine.trees if engine is not None else {}
        head = self.world.head
        needed = self.world.plan.names if tree.unit is UnitName.SERVE else (head,)
        for node in needed:
            if (node, UnitName.RAY) not in there and (node, UnitName.RAY) != (tree.machine.name, tree.unit):
                text = f"{tree.unit} of {tree.generation} starts on {tree.machine.name}, no Ray on {node}"
                self.world.violate("never one rank alone", text)

    def ordered_stop(self, daemon: Daemon, command: co.StopUnit, tree: Tree | None) -> None:
        """A member ends a unit: because it was ordered to, and not an engine that is well."""
        if tree is None or not tree.alive:
            return
        if daemon.policy.observe_only:
            self.world.violate("who only observes changes nothing", f"{daemon.instance} ends {command.unit}")
        if daemon.instance not in self.leaving:
            self._stop_was_ordered(daemon, command)
        engine = self.world.engines[tree.generation]
        self._down_in_order(daemon, command, engine)
        if engine.blames or tree.generation in self.judge.excused:
            return
        disturbed = engine.since_s - SETTLE_S < self.world.disturbed_until_s
        if not engine.complete() and disturbed:
            engine.blame("disturbed before it was complete")
            return
        text = f"{daemon.instance} ends {tree.unit} of {tree.generation} in {engine.phase}: nothing was wrong"
        self.world.violate("a healthy engine is never stopped", text)

    def _down_in_order(self, daemon: Daemon, command: co.StopUnit, engine: Engine) -> None:
        """In a quiet stop no Ray ends while the head still serves from it."""
        world, heard = self.world, self.heard[daemon.instance]
        if command.unit is not UnitName.RAY or not heard or heard[-1].phase is not Phase.STOPPING:
            return
        serve = engine.trees.get((world.head, UnitName.SERVE))
        quiet = world.now > world.disturbed_until_s
        early = world.now - self.judge.last_asked_s < daemon.policy.stop_grace_s
        if quiet and early and serve is not None and serve.root:
            text = f"{daemon.instance} ends Ray of {command.generation}, its serve lives"
            world.violate("down in order", text)

    def _is_deserted(self, daemon: Daemon, command: co.StopUnit) -> bool:
        """A worker whose head's host is gone on every path, and whose engine does nothing, ends its part."""
        world, engine = self.world, self.world.engines[command.generation]
        since_s = self.dark.get((daemon.instance, world.head), world.now)
        gone = not daemon.head and world.now - since_s >= 0.95 * daemon.policy.no_progress_s
        if gone and (engine.hung or not engine.whole()):
            engine.blame(f"{daemon.name} ended its part: its head's host was gone")
        return any("ended its part" in blame for blame in engine.blames)

    def _stop_was_ordered(self, daemon: Daemon, command: co.StopUnit) -> None:
        since = self.started_at.get((daemon.instance, command.unit, command.generation), 0)
        for intent in self.heard[daemon.instance][since:]:
            same = intent.stamp.generation == command.generation
            if not same or command.unit not in intent.units_of(daemon.name):
                return
        if self._is_deserted(daemon, command):
            return
        text = f"{daemon.instance} ends {command.unit} of {command.generation} without an order"
        self.world.violate("a worker never stops its member by itself", text)
