"""The engine of one generation as it truly is, over all nodes: it walks, serves, hangs, dies.

`blames` is the truth against which sparkd's decisions are held: what of it really went wrong, as the world
did it. An engine without blame is healthy, and must not be stopped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sim.chaos import memory
from sparkd.core import events as ev
from sparkd.signals.model import Proof, Quantity, Signal
from sparkd.words import Backend, Phase, Settings, UnitName

if TYPE_CHECKING:
    from sim.chaos.machine import Tree
    from sim.chaos.world import World

P = Phase
SHARDS = 4
RENDEZVOUS_S = 60.0
WALK: tuple[tuple[Phase, float, float, int], ...] = (
    (P.RESOLVING_CONFIG, 0.5, 4.0, 0),
    (P.INIT_DISTRIBUTED, 1.0, 8.0, 0),
    *((P.LOADING_WEIGHTS, 1.0, 10.0, shard) for shard in range(1, SHARDS + 1)),
    (P.COMPILING, 1.0, 20.0, 0),
    (P.PROFILING, 1.0, 8.0, 0),
    (P.ALLOCATING_KV_CACHE, 0.5, 3.0, 0),
    (P.CAPTURING_GRAPHS, 2.0, 15.0, 0),
    (P.STARTING_API, 0.5, 3.0, 0),
)
GROW_EVERY_S = 97.0
SHOWN_FIRST = 0.9
"""How often a phase's line is written before what ends it there."""
BUSY_S = 150.0
"""People ask for so long, and then nobody asks for so long."""


def _asked_for(found: memory.Shortage, total: int) -> dict[str, float]:
    return {"requested_bytes": found.missing, "free_bytes": 0, "total_bytes": total}


class Engine:
    """One generation."""

    def __init__(self, world: World, generation: int, settings: Settings) -> None:
        self.world, self.generation, self.settings = world, generation, settings
        self.since_s = world.now
        self.ray = world.plan.backend is Backend.RAY
        self.trees: dict[tuple[str, UnitName], Tree] = {}
        self.joined_s: dict[str, float] = {}
        self.blames: list[str] = []
        self.oddities: list[str] = []
        self.proofs: list[tuple[float, str, str]] = []
        self.phase = Phase.FORMING
        self.place = -1
        self.api = self.hung = self.over = self.answered_right = False
        self.kv: int | None = None
        self.grown = self.canaries = 0
        self.api_s = self.hung_s = 0.0
        self.stuck_at = world.take_next("stuck_next")
        self.dies_at = world.take_next("dies_next")

    # -- truth -----------------------------------------------------------------------------------

    def blame(self, reason: str) -> None:
        """Something of it really went wrong."""
        if not self.blames:
            self.world.trace("blame", f"generation {self.generation}: {reason}")
        self.blames.append(reason)

    def complete(self) -> bool:
        """Return whether every unit of it has been started on every node."""
        names = self.world.plan.names
        if not self.ray:
            return len(self.trees) == len(names)
        return (names[0], UnitName.SERVE) in self.trees and len(self.trees) == len(names) + 1

    def alive(self) -> bool:
        """Return whether any process of it lives."""
        return any(tree.alive for tree in self.trees.values())

    def whole(self) -> bool:
        """Return whether every unit of it lives."""
        return self.complete() and all(tree.root for tree in self.trees.values())

    def answers(self) -> bool:
        """Return whether its API's port answers."""
        serve = self.trees.get((self.world.head, UnitName.SERVE))
        return self.api and serve is not None and serve.root

    def counters(self) -> tuple[int, int, float]:
        """Return requests running and waiting, and tokens so far."""
        now = self.hung_s if self.hung else self.world.now
        rounds, rest_s = divmod(now - self.api_s, 2 * BUSY_S)
        busy_s = rounds * BUSY_S + max(0.0, rest_s - BUSY_S)
        return (3 if rest_s > BUSY_S else 0), 0, 10.0 * busy_s

    # -- start -----------------------------------------------------------------------------------

    def add(self, tree: Tree) -> None:
        """A unit of it was started."""
        node = tree.machine.name
        self.trees[node, tree.unit] = tree
        if tree.unit is UnitName.RAY:
            self.joined_s[node] = self.world.now + self.world.luck.uniform(0.3, 6.0)
        elif not self.ray and len(self.trees) == 1:
            self.world.at(RENDEZVOUS_S, self._rendezvous)
        if self.complete():
            self.world.at(0.1, self._walk, 0)

    def _rendezvous(self) -> None:
        if self.place < 0 and not self.over:
            self.blame("not all ranks came")
            self.fail_at(self.world.head, "c10d_connect_timeout")

    def _walk(self, place: int) -> None:
        if self.over or self.hung or not self.whole():
            if not self.whole():
                self.broken("a unit is missing")
            return
        self.place = place
        phase, low, high, shard = WALK[place]
        if self.phase is not phase:
            self.phase = phase
            self._hold()
        if self.dies_at == place:
            self.blame(f"dies in {phase}")
            self.end_serve(self.world.luck.choice(((1, None), (None, 9), (0, None), (None, 11))))
            return
        if self.stuck_at == place:
            self.hang(f"stuck in {phase}")
        if self.world.luck.random() < SHOWN_FIRST:
            self._show(phase, shard)
            if self._short() or self.hung:
                return
        else:
            if self._short() or self.hung:
                return
            self._show(phase, shard)
        if place + 1 < len(WALK):
            self.world.at(self.world.luck.uniform(low, high), self._walk, place + 1)
        else:
            self.world.at(self.world.luck.uniform(low, high), self._come_up)

    def _show(self, phase: Phase, shard: int) -> None:
        done, total = (shard, SHARDS) if shard else (None, None)
        kv = self.kv if phase is P.ALLOCATING_KV_CACHE else None
        seen = ev.PhaseSeen(self.generation, phase, done, total, kv_cache_bytes=kv)
        self.world.machines[self.world.head].log(self.generation, seen)

    def _come_up(self) -> None:
        if not self.over and not self.hung and self.whole():
            self.api, self.api_s, self.phase = True, self.world.now, P.SERVING
            self._hold()
            if self.world.plan.load.growth:
                self.world.at(GROW_EVERY_S, self._grow)

    def _grow(self) -> None:
        if not self.over and self.alive():
            self.grown += self.world.plan.load.growth // 8
            self._hold()
            if not self._short():
                self.world.at(GROW_EVERY_S, self._grow)

    # -- memory ----------------------------------------------------------------------------------

    def _hold(self) -> None:
        plan = self.world.plan
        size = memory.need(plan.load, self.settings, self.phase, plan.total) + self.grown
        for machine in self.world.machines.values():
            machine.hold(self.generation, size)

    def _short(self) -> bool:
        """Kill what the memory does not suffice for."""
        if self.phase is P.INIT_DISTRIBUTED and self._starts_too_large():
            return True
        if self.phase is P.ALLOCATING_KV_CACHE and self._cache_too_small():
            return True
        return self.check_memory()

    def check_memory(self) -> bool:
        """Return whether some node has too little; then it has killed there."""
        plan = self.world.plan
        for machine in self.world.machines.values():
            used = machine.device_base() + sum(machine.held.values())
            ray, guard = self.ray and plan.unified, self.world.floor_of(machine.name)
            found = memory.shortage(used, plan.total, self.settings, ray=ray, oom=plan.oom, guard=guard)
            if found is not None:
                self._kill_for(machine.name, found)
                return True
        return False

    def _starts_too_large(self) -> bool:
        plan = self.world.plan
        wanted = int(plan.total * self.settings.gpu_memory_utilization)
        for machine in self.world.machines.values():
            free = plan.total - machine.device_base()
            if free < wanted:
                self.blame("too little was free at the start")
                facts = {"free_bytes": free, "total_bytes": plan.total}
                self.fail_at(machine.name, "startup_free_memory_too_low", facts)
                return True
        return False

    def _cache_too_small(self) -> bool:
        plan = self.world.plan
        size = memory.cache(plan.load, self.settings, plan.total)
        self.kv = max(0, size)
        if size >= memory.one_request(plan.load, self.settings):
            return False
        self.blame("the KV cache is too small for one request")
        facts = {"available_bytes": size}
        if size > 0:
            facts["needed_bytes"] = memory.one_request(plan.load, self.settings)
            facts["estimated_tokens"] = size // plan.load.per_token
        self.fail_at(self.world.head, "kv_cache_too_small", facts)
        return True

    def _kill_for(self, node: str, found: memory.Shortage) -> None:
        """What is seen of a kill is a lower bound of the need."""
        luck = self.world.luck
        self.blame(f"{found.cause} on {node}")
        total = self.world.plan.total
        seen = found.limit + int(found.missing * luck.random())
        if found.cause == "ray_oom_kill":
            facts = {"used_bytes": seen, "threshold_bytes": found.limit, "total_bytes": total}
            self.signal(node, found.cause, facts, fatal=True)
        elif found.cause == "memory_guard_kill":
            facts = {"used_bytes": found.used, "total_bytes": total, "available_bytes": total - found.used}
            self.signal(node, found.cause, facts, fatal=True)
            self._whole_member_killed(node)
        elif found.cause == "cuda_oom":
            self.signal(node, found.cause, _asked_for(found, total), fatal=True)
        elif self.world.plan.oom == "kernel" or luck.random() < 0.5:
            self.signal(node, found.cause, {}, fatal=False, late_s=luck.choice((0.0, 0.0, 1.0)))
        self.worker_died(node, (1, None) if found.cause in ("ray_oom_kill", "cuda_oom") else (None, 9))

    def _whole_member_killed(self, node: str) -> None:
        """The guard ends all that the engine has there, at once."""
        for (name, _), tree in list(self.trees.items()):
            if name == node:
                tree.kill()

    # -- trouble ---------------------------------------------------------------------------------

    def signal(
        self, node: str, cause: str, facts: dict[str, float], *, fatal: bool, late_s: float = 0.0
    ) -> None:
        """A line that the catalogue recognises is written on *node*."""
        made = Signal(
            id=f"chaos_{cause}",
            cause=cause,
            proof=Proof.PROVES,
            node=node,
            source="serve log",
            quote=f"{cause} {facts}",
            at_s=0.0,
            generation=self.generation,
            fatal=fatal,
            phase=self.phase if self.phase in (P.LOADING_WEIGHTS, P.CAPTURING_GRAPHS, P.PROFILING) else None,
            quantities=tuple(Quantity(name, float(value)) for name, value in facts.items()),
        )
        self.world.machines[node].log(self.generation, ev.SignalSeen(made), late_s)

    def fail_at(self, node: str, cause: str, facts: dict[str, float] | None = None) -> None:
        """A rank says why, and ends."""
        self.signal(node, cause, facts or {}, fatal=True)
        self.worker_died(node, (1, None))

    def worker_died(self, node: str, how: tuple[int | None, int | None]) -> None:
        """A process of the engine on *node* died: its unit may end of it, the others notice or hang."""
        carrier = self.trees.get((node, UnitName.SERVE))
        if carrier is not None:
            self.world.at(self.world.luck.uniform(0.05, 2.0), carrier.end_root, *how, True)
        self.broken(f"a worker on {node} died")

    def end_serve(self, how: tuple[int | None, int | None]) -> None:
        """The head's serve ends by itself."""
        tree = self.trees.get((self.world.head, UnitName.SERVE))
        if tree is not None:
            tree.end_root(*how, clean=self.world.luck.random() < 0.7)

    def broken(self, reason: str) -> None:
        """It cannot go on: it ends of it, or hangs."""
        if self.over:
            return
        self.over = True
        self.hang(reason)
        if self.world.luck.random() < 0.7:
            self.world.at(self.world.luck.uniform(0.1, 4.0), self.end_serve, (1, None))

    def root_ended(self, tree: Tree) -> None:
        """A unit's root ended, by itself or ordered."""
        if not tree.ordered:
            self.blame(f"{tree.unit} of {tree.machine.name} ended")
        self.broken(f"{tree.unit} of {tree.machine.name} ended")

    def hang(self, reason: str) -> None:
        """It makes no progress any more."""
        self.blame(reason)
        if not self.hung:
            self.hung, self.hung_s = True, self.world.now

    # -- Ray's table -----------------------------------------------------------------------------

    def table(self) -> tuple[ev.RayNode, ...] | None:
        """Return Ray's table of nodes, None where its head does not answer."""
        world, now = self.world, self.world.now
        head = self.trees.get((world.head, UnitName.RAY))
        if head is None or not head.root:
            return None
        rows = []
        for index, name in enumerate(world.plan.names):
            tree = self.trees.get((name, UnitName.RAY))
            joins = world.machines[name].joins
            if joins and self.place < 0:
                self.oddities.append(f"{name} joins as {joins}")
            if tree is None or now < self.joined_s[name] or (joins == "absent" and not self.place >= 0):
                continue
            odd = joins == "address" and self.place < 0
            address = "10.9.9.9" if odd else f"192.168.200.{10 + index}"
            gpus = 0.0 if joins == "gpu" and self.place < 0 else 1.0
            alive = tree.root and tree.raylet
            rows.append(ev.RayNode(address, alive, name == world.head, name, (("GPU", gpus),)))
        return tuple(rows)
