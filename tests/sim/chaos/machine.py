"""A node as it truly is: power, clock, memory, process trees. Daemons come and go on it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sim.chaos.disk import Disk
from sparkd.core import commands as co
from sparkd.core import events as ev
from sparkd.signals.model import MemorySample, Signal
from sparkd.words import UnitName

if TYPE_CHECKING:
    from sim.chaos.daemon import Daemon
    from sim.chaos.world import World

SAMPLE_AFTER_S = 0.6
READINGS_MAX = 2000
"""The real pump reads twice a second; here it reads when something has changed."""


HOG_S = 200.0
"""What another program used so lately explains a decision."""


class Tree:
    """One unit's processes. `root`: its root lives; `alive`: any process of it lives."""

    __slots__ = (
        "alive",
        "doomed",
        "generation",
        "machine",
        "ordered",
        "owner",
        "pid",
        "raylet",
        "root",
        "settings",
        "since_s",
        "stamp",
        "unit",
    )

    def __init__(self, machine: Machine, owner: Daemon, command: co.StartUnit, pid: int) -> None:
        self.machine, self.owner = machine, owner
        self.unit, self.stamp, self.generation = command.unit, command.stamp, command.stamp.generation
        self.settings = command.settings
        self.since_s = machine.world.now
        self.pid = pid
        self.root = self.alive = self.raylet = True
        self.doomed = self.ordered = False

    def names(self) -> tuple[str, ...]:
        """Return the names of its processes."""
        if self.unit is UnitName.SERVE:
            return ("VLLM::EngineCore", "vllm")
        gcs = ("gcs_server",) if self.machine.is_head else ()
        return (*gcs, *(("raylet",) if self.raylet else ()))

    def terminate(self) -> None:
        """SIGTERM: some processes go at once, some slowly, some leave children, some never."""
        machine, luck = self.machine, self.machine.world.luck
        if machine.manner == "lying" and self.alive:
            machine.world.at(luck.uniform(0.01, 0.5), self.end_root, None, 15, False)
        elif machine.manner == "" and self.alive:
            machine.world.at(luck.uniform(0.02, 1.5), self.end_root, None, 15, True)

    def kill(self) -> None:
        """SIGKILL: nothing survives it but what the kernel holds."""
        if not self.alive:
            return
        self.doomed = True
        if self.machine.manner == "held":
            return
        self.end_root(None, 9, clean=False)
        self.machine.world.at(self.machine.world.luck.uniform(0.005, 0.1), self.vanish)

    def end_root(self, code: int | None, signal: int | None, clean: bool) -> None:
        """The root ends; *clean*: its children follow it by themselves."""
        if not self.root or (self.machine.manner == "held" and signal == 15):
            return
        self.root = False
        world = self.machine.world
        self.owner.later(0.005, self.owner.emit, ev.UnitExited(self.unit, self.generation, code, signal))
        world.root_ended(self)
        if clean:
            world.at(world.luck.choice((0.02, 0.3, 1.0)) * world.luck.random(), self.vanish)

    def vanish(self) -> None:
        """The last process is gone."""
        if not self.alive or self.machine.manner == "held":
            return
        self.root = self.alive = False
        self.owner.later(0.01, self.owner.emit, ev.UnitEmptied(self.unit, self.generation))
        self.machine.emptied(self)


class Machine:
    """One node."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        self.is_head = name == world.plan.names[0]
        self.disk = Disk()
        self.daemon: Daemon | None = None
        self.on = True
        self.trees: list[Tree] = []
        self.boot_s = 0.0
        self.offset_s = world.luck.uniform(0.0, 1e5)
        self.rate = 1.0 + world.luck.choice((0.0, 0.0001, -0.0001, 0.01, -0.01))
        self.wall_s = 1.7e9
        self.leaked = self.hog = 0
        self.hogged: list[tuple[float, int]] = []
        self.waning: list[tuple[float, int]] = []
        self.readings: list[tuple[float, int]] = []
        self.held: dict[int, int] = {}
        self.lines: list[list] = []
        self.pids = 1000
        self.unkillable_s = float("-inf")
        self.clear()

    def clear(self) -> None:
        """Nothing is wrong with it."""
        self.manner = self.start_fails = self.joins = ""
        self.errors = self.model_missing = False
        self.late_s, self.disk.full = 0.0, False
        self.disk_s = self.release_s = 0.0
        self.dies_in: tuple[str, float] | None = None

    # -- time ------------------------------------------------------------------------------------

    def clock(self) -> float:
        """Return its monotonic seconds."""
        return (self.world.now - self.boot_s) * self.rate + self.offset_s

    def world_time(self, local_s: float) -> float:
        """Return the world's time at which its clock shows *local_s*."""
        return (local_s - self.offset_s) / self.rate + self.boot_s

    def disk_latency(self) -> float:
        """Return how long the next write takes."""
        return self.disk_s or self.world.luck.uniform(0.001, 0.02)

    # -- memory ----------------------------------------------------------------------------------

    def base(self) -> int:
        """Return the bytes in use beside the engine."""
        now = self.world.now
        self.waning = [(until_s, size) for until_s, size in self.waning if until_s > now]
        return self.world.plan.system + self.leaked + self.hog + sum(size for _, size in self.waning)

    def device_base(self) -> int:
        """Return what is in use beside the engine where its own memory is: of a GPU of its own, or here."""
        world = self.world
        if world.plan.unified:
            return self.base()
        self.base()
        return self.leaked + sum(size for _, size in self.waning)

    def hog_before(self) -> int:
        """Return what another program used here until just now."""
        return max((size for at_s, size in self.hogged if at_s > self.world.now - HOG_S), default=0)

    def sample(self) -> ev.MemoryObserved:
        """Return a reading."""
        total = self.world.plan.total
        engine = sum(self.held.values()) if self.world.plan.unified else 0
        free = max(0, total - self.base() - engine)
        self.readings.append((self.world.now, free))
        del self.readings[:-READINGS_MAX]
        return ev.MemoryObserved(MemorySample(self.clock(), free, total))

    def tell_memory(self, delay_s: float = SAMPLE_AFTER_S) -> None:
        """Let the daemon read the memory soon."""
        daemon = self.daemon
        if daemon is not None:
            daemon.later(delay_s, lambda: daemon.emit(self.sample()))

    def hold(self, generation: int, size: int) -> None:
        """The engine of *generation* uses so much here."""
        self.held[generation] = size

    def release(self, generation: int) -> None:
        """Its memory comes back, in its own time, less what leaks."""
        size = self.held.pop(generation, 0)
        if size:
            leak = min(size, self.world.plan.load.leak)
            self.leaked += leak
            span_s = self.release_s or self.world.luck.choice((0.1, 0.5, 2.0))
            self.waning.append((self.world.now + span_s, size - leak))
            if self.release_s:
                self.hogged.append((self.world.now + span_s, size - leak))  # it explains a decision as well
            self.tell_memory(span_s + SAMPLE_AFTER_S)

    # -- processes -------------------------------------------------------------------------------

    def tree(self, unit: UnitName, generation: int) -> Tree | None:
        """Return the newest tree of that unit."""
        for tree in reversed(self.trees):
            if tree.unit is unit and tree.generation == generation:
                return tree
        return None

    def start(self, daemon: Daemon, command: co.StartUnit) -> Tree:
        """Fork."""
        self.pids += 1
        self.trees = [
            tree for tree in self.trees if tree.alive or tree.generation >= command.stamp.generation
        ]
        tree = Tree(self, daemon, command, self.pids)
        self.trees.append(tree)
        self.world.tree_started(tree)
        return tree

    def emptied(self, tree: Tree) -> None:
        """A tree's last process is gone."""
        self.world.tree_gone(tree)
        self.tell_memory()

    def let_go(self) -> None:
        """What the kernel held is let go: what was killed dies now."""
        self.manner = ""
        for tree in list(self.trees):
            if tree.alive and tree.doomed:
                tree.end_root(None, 9, clean=False)
                tree.vanish()

    # -- logs ------------------------------------------------------------------------------------

    def log(self, generation: int, event: ev.Event, late_s: float = 0.0) -> None:
        """A line is written, now or later; the daemon reads it a moment after, or when it drains."""
        daemon = self.daemon
        if daemon is None:
            return
        written_s = self.world.now + late_s
        line = [generation, written_s, event]
        self.lines.append(line)
        daemon.later(late_s + self.late_s + self.world.luck.uniform(0.02, 0.3), self._read, daemon, line)

    def _read(self, daemon: Daemon, line: list) -> None:
        if line[2] is not None:
            event, line[2] = line[2], None
            self.lines.remove(line)
            self._proves(daemon, event)
            daemon.emit(_stamped(event, self.clock()))

    def _proves(self, daemon: Daemon, event: ev.Event) -> None:
        """The head has read what proves a cause."""
        if daemon.head and isinstance(event, ev.SignalSeen) and event.signal.fatal:
            engine = self.world.engines.get(event.signal.generation)
            if engine is not None:
                engine.proofs.append((self.world.now, daemon.instance, event.signal.cause))

    def flush_lines(self, daemon: Daemon, generation: int) -> None:
        """Read what is written to its end."""
        now = self.world.now
        for line in list(self.lines):
            if line[0] <= generation and line[1] <= now:
                self._read(daemon, line)

    # -- power -----------------------------------------------------------------------------------

    def lose_power(self, disk: str) -> None:
        """Everything on it is gone at once; its disk may have suffered."""
        if self.daemon is not None:
            self.daemon.die(at_once=False)
            self.daemon = None
        self.on = False
        self.disk.damage(disk, self.world.luck)
        self.world.damages += disk != "kept"
        self.lines = []
        self.waning, self.hog, self.leaked = [], 0, 0
        for tree in self.trees:
            if tree.alive:
                tree.root = tree.alive = False
                self.world.tree_gone(tree)
        self.held.clear()
        self.waning = []
        self.unkillable_s = float("-inf")
        self.manner = ""

    def power_on(self) -> None:
        """A new boot: a new clock."""
        self.on = True
        self.disk.boot += 1
        self.boot_s, self.offset_s = self.world.now, self.world.luck.uniform(5.0, 60.0)


def _stamped(event: ev.Event, now: float) -> ev.Event:
    """A signal's time is that of its reading."""
    if not isinstance(event, ev.SignalSeen):
        return event
    s = event.signal
    made = Signal(
        s.id, s.cause, s.proof, s.node, s.source, s.quote, now, s.generation, s.fatal, s.rank, s.phase,
        s.printed, s.quantities,
    )  # fmt: skip
    return ev.SignalSeen(made)
