"""Units as child process trees, where there is no systemd.

How the rules are kept:
- **No poll.** Ends are learned through pidfds in the loop's selector. /proc is scanned when something ended
  or is to end. The one timer, `LEARN_EVERY_S`, only learns who belongs to a tree, and reaps.
- **Nobody's status is stolen.** A root is reaped through its own pidfd; an orphan that comes back to the
  daemon, which is a child subreaper, by its pid, and only when its session is not the daemon's. Programs that
  the daemon runs for itself stay in the daemon's session and are never touched.
- **Nobody else is killed.** Only pidfds are killed with a signal, and each was proved after opening to be the
  process that the scan had found (pid and start time).
- **One watcher a tree**, from the root's end or the first order on. It alone tells that the tree is empty,
  and only after a scan that found nobody.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from signal import Signals

import structlog

from sparkd.adapters.proctree import (
    VARIABLE,
    Identity,
    Mark,
    Process,
    become_subreaper,
    catch_up,
    grow,
    lineage,
    off_loop,
    read_name,
    read_process,
    reap,
    snapshot,
    spawn,
    strays,
)
from sparkd.adapters.unittree import UNWATCHED_RETRY_S, Tree
from sparkd.core.events import LeftoversSwept, UnitEmptied, UnitExited, UnitStarted, UnitUnkillable
from sparkd.engines.model import Rendered
from sparkd.ports import Emit
from sparkd.words import UnitName

log = structlog.get_logger(__name__)

# After SIGKILL a process ends within milliseconds unless the kernel holds it (D state).
KILL_DEADLINE_S = 5.0
# Longest life of an unmarked orphan in a session of its own before its unit is known.
LEARN_EVERY_S = 2.0
# A scan of some hundred processes takes about 20 ms; one that hangs met a process whose memory lock is held.
SCAN_DEADLINE_S = 1.0
# What earlier daemons left gets this long to remove its shared memory before SIGKILL.
SWEEP_GRACE_S = 2.0
# The kernel's OOM killer takes the engine before the daemon and sshd, Ray's own workers (1000) first of all.
OOM_SCORE_ADJ = 500


class Children:
    """The port `Units` over child processes.

    Args:
        cluster, node: whose processes these are; another's are never touched.
        log_dir: `<log_dir>/<generation>/<unit>.log` takes a unit's output.
        emit: takes the events, on the loop's thread.
        cwd: working directory of the units.
        oom_score_adj: of a unit's root, inherited by its tree; None leaves the daemon's own.
        kill_deadline_s: SIGKILL to "unkillable".
        proc_root: the proc file system.
    """

    def __init__(
        self,
        cluster: str,
        node: str,
        log_dir: Path,
        emit: Emit,
        *,
        cwd: Path = Path("/"),
        oom_score_adj: int | None = OOM_SCORE_ADJ,
        kill_deadline_s: float = KILL_DEADLINE_S,
        proc_root: Path = Path("/proc"),
    ) -> None:
        self._cluster, self._node = cluster, node
        self._log_dir, self._cwd = log_dir, cwd
        self._emit = emit
        self._oom_score_adj = oom_score_adj
        self._kill_deadline_s = kill_deadline_s
        self._proc = proc_root
        self._trees: dict[tuple[UnitName, int], Tree] = {}
        self._marks: dict[Identity, Mark] = {}
        self._learner: asyncio.Task[None] | None = None
        become_subreaper()

    async def start(self, rendered: Rendered) -> None:
        """Start the unit, once a generation. Raises OSError where it cannot be started at all."""
        key = (rendered.unit, rendered.stamp.generation)
        mark = Mark(self._cluster, self._node, rendered.stamp.generation, rendered.unit.value)
        _verify(rendered, mark)
        running = self._trees.get(key)
        if running and running.root and not running.exited.is_set():
            self._emit(UnitStarted(*key, running.root.pid))
            return
        if running:
            raise OSError(errno.EEXIST, f"{rendered.unit} of generation {key[1]} has been started before")
        if any(unit is rendered.unit and not t.emptied.is_set() for (unit, _), t in self._trees.items()):
            raise OSError(errno.EBUSY, f"an earlier {rendered.unit} is not empty")
        path = self._log_dir / str(key[1]) / f"{rendered.unit}.log"
        # Not in a thread: between the fork and the registration nothing else may run.
        pid, fd = spawn(rendered.argv, dict(rendered.env), self._cwd, path)
        root = _seen(self._proc, pid) or Process(pid, os.getpid(), pid, pid, 0, "Z")
        self._trees = {k: t for k, t in self._trees.items() if k[1] == key[1] or not t.emptied.is_set()}
        tree = self._trees[key] = Tree(lambda found: found == mark, root, fd)
        _raise_oom_score(self._proc, pid, self._oom_score_adj)
        asyncio.get_running_loop().add_reader(fd, self._root_exited, key, tree)
        if self._learner is None or self._learner.done():
            self._learner = asyncio.create_task(self._learn(), name="units-learn")
        log.info("unit_started", unit=rendered.unit.value, generation=key[1], pid=pid)
        self._emit(UnitStarted(*key, pid))

    async def stop(self, unit: UnitName, generation: int, grace_s: float) -> None:
        """End the unit's whole tree, a unit of an earlier daemon too; see `ports.Units.stop`."""
        mark = Mark(self._cluster, self._node, generation, unit.value)
        tree = self._trees.setdefault((unit, generation), Tree(lambda found: found == mark))
        if tree.emptied.is_set():
            self._emit(UnitEmptied(unit, generation))
            return
        self._watch(tree, partial(self._emit, UnitEmptied(unit, generation)))
        survivors = await self._end(tree, grace_s)
        if survivors:
            log.error("unit_unkillable", unit=unit.value, generation=generation, pids=survivors)
            self._emit(UnitUnkillable(unit, generation, survivors))

    async def names(self, unit: UnitName, generation: int) -> tuple[str, ...]:
        """Return the names (comm) of the unit's living processes, sorted; none where it has none."""
        tree = self._trees.get((unit, generation))
        if tree is None or tree.emptied.is_set():
            return ()
        found = self._members(tree, await self._scan())
        return tuple(sorted({read_name(self._proc, process.pid) for process in found} - {""}))

    async def sweep(self) -> LeftoversSwept:
        """Kill what earlier daemons of this node left: another's children cannot be taken over."""
        own = {(unit.value, number) for (unit, number), t in self._trees.items() if not t.emptied.is_set()}
        tree = Tree(lambda mark: self._here(mark) and (mark.unit, mark.generation) not in own)
        found = self._members(tree, await self._scan())
        generations = {p.mark.generation for p in found if p.mark}
        self._watch(tree, lambda: None)
        try:
            survivors = await self._end(tree, SWEEP_GRACE_S)
        finally:
            tree.close()
        if found:
            log.warning("leftovers_swept", generations=sorted(generations), survivors=survivors)
        return LeftoversSwept(tuple(sorted(generations)), survivors)

    async def close(self) -> None:
        """Release resources. Does not end units."""
        tasks = [self._learner, *(tree.watcher for tree in self._trees.values())]
        if self._learner:
            self._learner.cancel()
        for tree in self._trees.values():
            tree.close()
        await asyncio.gather(*(task for task in tasks if task), return_exceptions=True)

    def _root_exited(self, key: tuple[UnitName, int], tree: Tree) -> None:
        code, number = reap(os.P_PIDFD, tree.root_fd)
        asyncio.get_running_loop().remove_reader(tree.root_fd)
        log.info("unit_exited", unit=key[0].value, generation=key[1], code=code, signal=number)
        self._emit(UnitExited(*key, code=code, signal=number))
        tree.exited.set()
        self._watch(tree, partial(self._emit, UnitEmptied(*key)))

    async def _end(self, tree: Tree, grace_s: float) -> tuple[int, ...]:
        """SIGTERM, after *grace_s* SIGKILL; return the pids that survive both."""
        tree.order(Signals.SIGTERM)
        if await tree.emptied_within(grace_s):
            return ()
        tree.order(Signals.SIGKILL)
        if await tree.emptied_within(self._kill_deadline_s):
            return ()
        try:
            survivors = tuple(p.pid for p in self._members(tree, await self._scan()))
        except OSError:
            survivors = tuple(pid for pid, _ in tree.members)
        return () if not survivors and await tree.emptied_within(self._kill_deadline_s) else survivors

    def _watch(self, tree: Tree, emptied: Callable[[], None]) -> None:
        if tree.watcher is None:
            tree.watcher = asyncio.create_task(self._follow(tree, emptied), name="unit-watch")

    async def _follow(self, tree: Tree, emptied: Callable[[], None]) -> None:
        """Watch the tree until a scan finds nobody of it."""
        while True:
            tree.changed.clear()
            try:
                processes = await self._scan()
            except OSError as error:  # not to see is not to be gone
                log.warning("scan_impossible", reason=str(error))
                await tree.wait_blind()
                continue
            found = self._members(tree, processes)
            if not found and tree.exited.is_set():
                break
            if not found:  # the root has ended and is about to be reaped, or it was not seen
                await tree.wait_blind()
                continue
            tree.learn(found)
            fresh = tree.adopt(found, self._proc)
            mine = {p.pid for p in found}
            others = {p.group for p in processes.values() if p.alive and p.pid not in mine}
            tree.groups = frozenset(p.group for p in found if p.group not in others)
            tree.apply()
            # Who forks while being killed is looked for again at once, else only when all known are gone.
            if not tree.members:
                await asyncio.sleep(UNWATCHED_RETRY_S)
            elif not (fresh and tree.signal is Signals.SIGKILL):
                await tree.changed.wait()
        tree.close_root()
        tree.emptied.set()
        emptied()

    def _members(self, tree: Tree, processes: dict[int, Process]) -> tuple[Process, ...]:
        """Return the living processes of the tree."""
        seeds = tree.seeds(processes.values())
        if all(other is tree or other.emptied.is_set() for other in self._trees.values()):
            roots = {t.root.pid for t in self._trees.values() if t.root}
            seeds |= strays(processes, os.getpid(), roots)
        return grow(processes, seeds, self._here, lineage(processes, os.getpid()))

    def _here(self, mark: Mark) -> bool:
        return (mark.cluster, mark.node) == (self._cluster, self._node)

    async def _scan(self) -> dict[int, Process]:
        """Return all processes; without new marks where reading them hangs."""
        try:
            processes = await off_loop(partial(_everybody, self._proc, dict(self._marks)), SCAN_DEADLINE_S)
        except TimeoutError:
            log.warning("scan_hangs", after_s=SCAN_DEADLINE_S)
            processes = _everybody(self._proc, self._marks, read_marks=False)
        self._marks = {p.identity: p.mark for p in processes.values() if p.mark and self._here(p.mark)}
        roots = {t.root.pid for t in self._trees.values() if t.root and not t.exited.is_set()}
        for pid in strays(processes, os.getpid(), roots):
            if not processes[pid].alive:
                reap(os.P_PID, pid)
        return processes

    async def _learn(self) -> None:
        """Learn who belongs to which tree while descent still tells it."""
        while not all(tree.emptied.is_set() for tree in self._trees.values()):
            with contextlib.suppress(OSError):
                processes = await self._scan()
                for tree in self._trees.values():
                    if not tree.emptied.is_set():
                        tree.learn(self._members(tree, processes))
            await asyncio.sleep(LEARN_EVERY_S)


def _everybody(
    proc_root: Path, marks: Mapping[Identity, Mark], *, read_marks: bool = True
) -> dict[int, Process]:
    processes = snapshot(proc_root, marks, read_marks=read_marks)
    catch_up(proc_root, processes, os.getpid(), read_marks=read_marks)
    return processes


def _seen(proc_root: Path, pid: int) -> Process | None:
    try:
        return read_process(proc_root, pid)
    except OSError:
        return None


def _verify(rendered: Rendered, mark: Mark) -> None:
    """Refuse an environment by which the tree would not be found again."""
    env = dict(rendered.env)
    if not rendered.argv or any("\0" in word for word in (*rendered.argv, *env, *env.values())):
        raise OSError(errno.EINVAL, "the command is empty or holds a zero byte")
    if env.get(VARIABLE) != str(mark):
        raise OSError(errno.EINVAL, f"{VARIABLE} must be {mark}, is {env.get(VARIABLE)}")
    if env.get("SPT_NOENV") != "1":
        log.warning("environment_may_be_overwritten", unit=rendered.unit.value, missing="SPT_NOENV=1")


def _raise_oom_score(proc_root: Path, pid: int, score: int | None) -> None:
    if score is not None:
        with contextlib.suppress(OSError):
            (proc_root / str(pid) / "oom_score_adj").write_text(str(score))
