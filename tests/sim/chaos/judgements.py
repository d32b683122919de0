"""The rules about settings, incidents, budgets and giving up, held against what truly happened."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from sim.chaos import memory, truth
from sparkd.core import events as ev
from sparkd.core.beginning import config_of
from sparkd.core.messages import Intent
from sparkd.core.policy import Policy
from sparkd.core.records import (
    IncidentClosed,
    IncidentOpened,
    PhaseChanged,
    Record,
    Remedied,
    SettingsAdopted,
    Verified,
    WaitingFor,
)
from sparkd.core.remedy import MEMORY, UNDECIDED
from sparkd.signals.causes import cause_info
from sparkd.words import GIB, Backend, CudaGraph, Floors, LoadFormat, Phase, Settings

if TYPE_CHECKING:
    from sim.chaos.daemon import Daemon
    from sim.chaos.world import World

SURVIVES = "processes survive SIGKILL on "
CLIMBS = "climbing back"
LEAKS = "memory is lost with every start on "
AT_FLOOR = "every memory setting is at its floor"
EARLY_S = 0.05
TOLD_TIMES = 6
"""A status may be lost so often in a row: until then a peer's guard counts as it was said last."""
LATEST_S = 2.2
"""What was decided before a person asked may wait so long for the disk."""
KEPT_S, DISK_S = 3.0, 300.0
"""So long after it was asked a wish is on disk, on a healthy one and on one that hangs."""
PHASES = (Phase.LOADING_WEIGHTS, Phase.PROFILING, Phase.CAPTURING_GRAPHS, Phase.SERVING)


def _is_boot(record: Remedied) -> bool:
    """Whether it is the step down after a boot that ended uncleanly: no failure that was seen, no wait."""
    return record.explanation.startswith("counts as")


def _within(settings: Settings, asked: Settings, floors: Floors) -> bool:
    """Return whether every setting lies between its floor and what was asked."""
    share, kv = settings.gpu_memory_utilization, settings.kv_cache_bytes
    tokens, length, seqs = settings.max_num_batched_tokens, settings.max_model_len, settings.max_num_seqs
    least = min(floors.gpu_memory_utilization, asked.gpu_memory_utilization)
    return (
        least <= share <= asked.gpu_memory_utilization
        and (kv in (None, asked.kv_cache_bytes) or kv >= floors.kv_cache_bytes)
        and (kv is None or asked.kv_cache_bytes is None or kv <= asked.kv_cache_bytes)
        and (seqs in (None, asked.max_num_seqs) or seqs >= floors.max_num_seqs)
        and (tokens in (None, asked.max_num_batched_tokens) or tokens >= floors.max_num_batched_tokens)
        and (length == asked.max_model_len or (length or 0) >= floors.max_model_len)
        and (settings.cudagraph is not CudaGraph.NONE or floors.eager_allowed or settings == asked)
    )


def _held_by_others(record: Remedied) -> bool:
    """Memory that something else holds is waited for: no setting has failed."""
    unchanged = record.settings_after == record.settings_before
    return unchanged and record.diagnosis.cause == "startup_free_memory_too_low"


class Judgements:
    """What the coordinator decided."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.excused: dict[int, str] = {}
        self.failed: dict[Settings, str] = {}
        self.adopted: Settings | None = None
        self.incident: int | None = None
        self.failures = 0
        self.relaunches: list[tuple[str, float]] = []
        self.held = ""
        self.not_before_s: float | None = None
        self.verified = self.row = 0
        self.last_verb: ev.Verb | None = None
        self.gave_up = ""
        self.last_asked_s = 0.0
        self.stopped = self.paused = False
        self.wishes_sure_s = 0.0
        self.damages, self.asked_of = 0, ""
        self.waiting: tuple[str, ...] = ()

    def head_born(self, daemon: Daemon) -> None:
        """A new coordinator: its predecessor's incident and account ended with it."""
        kept = daemon.machine.disk.kept
        known = kept.settings == self.adopted and kept.asked == daemon.policy.settings
        if not known or kept.kept.context != daemon.policy.context:
            self.failed.clear()
        self.incident, self.failures, self.not_before_s = None, 0, None
        remembered = daemon.machine.disk.load().kept
        self.row = remembered.streak
        self.relaunches = [(cause, daemon.clock()) for cause in remembered.spent]
        same = remembered.config == config_of(daemon.policy) and not daemon.policy.observe_only
        by_itself = remembered.may_pass or remembered.awaits_reboot
        self.held = remembered.needs if same and not by_itself else ""
        self._wishes_outlast(daemon)

    def _wishes_outlast(self, daemon: Daemon) -> None:
        """A stop and a pause are kept: they outlast the daemon that was asked, where its disk does."""
        kept = daemon.machine.disk.kept.kept
        died_s = self.world.check.deaths.get(self.asked_of, self.world.now)
        sure = died_s > self.wishes_sure_s and self.damages == self.world.damages
        if sure and self.stopped and kept.target is not False:
            self.world.violate("what a person asks is kept", f"a stop is forgotten: {kept}")
        if sure and self.paused and not kept.paused:
            self.world.violate("what a person asks is kept", f"a pause is forgotten: {kept}")
        self.stopped, self.paused = kept.target is False and self.stopped, kept.paused and self.paused
        self.last_verb = ev.Verb.STOP if self.stopped else ev.Verb.PAUSE if self.paused else None

    def asked(self, daemon: Daemon, verb: ev.Verb) -> None:
        """A person may ask for what failed before; who only observes refuses all but its own end."""
        if daemon.policy.observe_only:
            return
        self.last_verb = verb
        if verb in (ev.Verb.START, ev.Verb.STOP):
            self.stopped, self.paused = verb is ev.Verb.STOP, False
        elif verb in (ev.Verb.PAUSE, ev.Verb.RESUME):
            self.paused = verb is ev.Verb.PAUSE
        if verb is not ev.Verb.SHUTDOWN:
            self.damages, self.asked_of = self.world.damages, daemon.instance
            # What waits in a daemon that stands still, or for its disk, is not kept yet; on a full one never.
            late_s = (
                float("inf")
                if daemon.stopped or daemon.machine.disk.full
                else KEPT_S + DISK_S * (daemon.machine.disk_s > 0)
            )
            self.wishes_sure_s = self.world.now + late_s
        if verb in (ev.Verb.START, ev.Verb.RESUME):
            self.held = ""
            self.failed.clear()
            self.relaunches.clear()
            self.row = 0
            self.not_before_s = None

    # -- settings --------------------------------------------------------------------------------

    def settings_started(self, settings: Settings) -> None:
        """A unit starts with *settings*: within bounds, and not those that are known to fail."""
        policy = self.world.policies[self.world.head]
        asked, floors = policy.settings, policy.floors
        if not _within(settings, asked, floors) and self.world.edits == 0:
            self.world.violate("settings stay within the operator's bounds", f"{settings}, asked {asked}")
        if settings in self.failed:
            text = f"{settings} failed before: {self.failed[settings]}"
            self.world.violate("settings that failed for memory are not tried again", text)

    # -- records ---------------------------------------------------------------------------------

    def records(self, daemon: Daemon, records: Sequence[Record]) -> None:
        """The head's records of one step."""
        for record in records:
            match record:
                case IncidentOpened():
                    self._opened(record)
                case Remedied():
                    self._remedied(daemon, record)
                case IncidentClosed():
                    self.incident, self.failures = None, 0
                case SettingsAdopted():
                    self.adopted = record.settings
                    self._climbs(record)
                case Verified():
                    self._verified(record)
                case PhaseChanged():
                    self._moved(record)
                case WaitingFor():
                    self.waiting = record.reasons
                case _:
                    pass

    def left(self, records: Sequence[Record]) -> None:
        """A climb-back that is on disk ends what serves, also where its daemon died before it said so."""
        for record in records:
            if isinstance(record, SettingsAdopted):
                self._climbs(record)

    def _climbs(self, record: SettingsAdopted) -> None:
        """An announced climb-back may end what is well, and try what failed."""
        if record.reason.startswith(CLIMBS):
            self.failed.clear()
            engine = self.world.engines.get(self.verified)
            if engine is not None:
                engine.blame(record.reason)

    def _opened(self, record: IncidentOpened) -> None:
        if self.incident is not None:
            self.world.violate("one incident at a time", f"{record.incident} opens within {self.incident}")
        self.incident = record.incident

    def _verified(self, record: Verified) -> None:
        engine = self.world.engines.get(record.generation)
        if engine is None or not engine.answered_right:
            text = f"generation {record.generation} has never answered right"
            self.world.violate("serving means that a real generation came right", text)
        self.verified = record.generation

    def _moved(self, record: PhaseChanged) -> None:
        if record.after is Phase.ESCALATED:
            self._escalated(record)

    def _remedied(self, daemon: Daemon, record: Remedied) -> None:
        self.failures += 1
        self.row += 1
        self._blamed(record.generation, f"{record.diagnosis.cause} was remedied")
        truth.judged(self.world, daemon, record)
        cause = record.diagnosis.cause
        if record.action != "relaunch":
            return
        if cause_info(cause).permanent:
            self.world.violate("budgets are respected", f"{cause} is permanent and relaunched")
        policy, now = daemon.policy, daemon.clock()
        self._backoff(record, policy)
        self.not_before_s = now + record.backoff_s - EARLY_S
        if not _is_boot(record):
            self._spend(record, now, daemon)
        if cause in MEMORY and not _held_by_others(record):
            self.failed[record.settings_before] = cause

    def _backoff(self, record: Remedied, policy: Policy) -> None:
        """It grows with the failures of the incident at least, with those of the row at most."""
        if (
            record.diagnosis.confidence == 0.0
            and record.backoff_s == 0.0
            and "counts as" in record.explanation
        ):
            return  # a boot that ended uncleanly has waited long enough
        base, most = policy.backoff_base_s, policy.backoff_max_s
        low = min(base * 2 ** (self.failures - 1), most)
        high = min(base * 2 ** (max(self.row, self.failures) - 1), most) * (1 + policy.jitter_share)
        if not low - EARLY_S <= record.backoff_s <= high + EARLY_S:
            text = f"failure {self.failures}: {record.backoff_s:.1f} s, {low:.1f} to {high:.1f} s are due"
            self.world.violate("backoff is respected", text)

    def _spend(self, record: Remedied, now: float, daemon: Daemon) -> None:
        """What nothing decided has one account, but for what counted as of memory: the ladder bounds that."""
        policy, cause = daemon.policy, record.diagnosis.cause
        if cause in MEMORY or record.explanation.startswith("nothing says who ended it"):
            return
        account = "unknown" if cause in UNDECIDED else cause
        self.relaunches.append((account, now))
        since_s = now - policy.budget_window_s
        used = sum(1 for name, at_s in self.relaunches if name == account and at_s > since_s)
        most = policy.unknown_unchanged + 1 if cause in UNDECIDED else policy.transient_budget
        if used > most:
            self.world.violate("budgets are respected", f"{used} relaunches for {cause}, {most} allowed")

    def launched(self, daemon: Daemon, intent: Intent) -> None:
        """A new generation is ordered."""
        if self.held:
            self.world.violate("an escalation outlasts its daemon", f"a person was asked: {self.held}")
        unwatched = intent.settings.ray_memory_threshold is None and not self.world.guarded()
        if unwatched and self.world.now - self.world.guards_s > TOLD_TIMES * daemon.policy.status_every_s:
            self.world.violate("Ray's monitor off only with an enforcing guard", f"{intent.settings}")
        if self.not_before_s is not None and daemon.clock() < self.not_before_s:
            early_s = self.not_before_s - daemon.clock()
            text = f"generation {intent.stamp.generation} is ordered {early_s:.1f} s too early"
            self.world.violate("backoff is respected", text)
        self.not_before_s = None
        decided_before = self.world.now - self.last_asked_s < LATEST_S
        if self.last_verb in (ev.Verb.STOP, ev.Verb.SHUTDOWN) and not decided_before:
            text = f"generation {intent.stamp.generation} is started after {self.last_verb} was asked"
            self.world.violate("what a person stopped stays stopped", text)

    # -- giving up -------------------------------------------------------------------------------

    def _escalated(self, record: PhaseChanged) -> None:
        self.incident, self.failures = None, 0
        self.gave_up = record.reason
        if record.reason.startswith(SURVIVES):
            self._survivors(record.reason[len(SURVIVES) :])
            return
        self._blamed(record.generation, f"escalated: {record.reason}")
        if record.reason.startswith(LEAKS):
            self._leaks(record.reason[len(LEAKS) :])
        if record.reason == AT_FLOOR and self.satisfiable(slack=3 * GIB):
            text = f"generation {record.generation}: smaller settings would do"
            self.world.violate("what is given up is truly hopeless", text)

    def _survivors(self, names: str) -> None:
        for name in names.split(", "):
            if self.world.machines[name].unkillable_s == float("-inf"):
                self.world.violate("escalation tells the truth", f"nothing survived SIGKILL on {name}")

    def _leaks(self, names: str) -> None:
        for name in names.split(", "):
            machine = self.world.machines[name]
            if not machine.leaked and not machine.hog and not machine.hogged:
                self.world.violate("escalation tells the truth", f"no memory is lost on {name}")

    def _blamed(self, generation: int, what: str) -> None:
        engine = self.world.engines.get(generation)
        if generation in self.excused or (engine is not None and engine.blames):
            return
        if engine is None or not engine.complete():
            return  # nobody came: the stop that follows is judged by its own rule
        text = f"generation {generation} had nothing: {what}"
        self.world.violate("a healthy engine is never stopped", text)

    def satisfiable(self, slack: int = 0) -> bool:
        """Return whether the smallest settings that the operator allows fit into every node.

        What the weights need beyond the share that he allows is not sparkd's to take.
        """
        world = self.world
        policy, plan = world.policies[world.head], world.plan
        settings = smallest(policy.settings, policy.floors, guarded=world.guarded())
        if plan.load.weights + slack > policy.settings.gpu_memory_utilization * plan.total:
            return False
        for machine in world.machines.values():
            base = machine.device_base() + (machine.hog_before() if plan.unified else 0)
            if plan.total - base < settings.gpu_memory_utilization * plan.total + slack:
                return False
            for phase in PHASES:
                used = base + memory.need(plan.load, settings, phase, plan.total) + slack
                if phase is Phase.SERVING:
                    used += 2 * plan.load.growth
                ray, guard = plan.backend is Backend.RAY and plan.unified, world.floor_of(machine.name)
                found = memory.shortage(used, plan.total, settings, ray=ray, oom=plan.oom, guard=guard)
                if found is not None:
                    return False
        return memory.one_request(plan.load, settings) + slack <= policy.floors.kv_cache_bytes + slack


def smallest(asked: Settings, floors: Floors, *, guarded: bool) -> Settings:
    """Return the settings at every floor."""
    return replace(
        asked,
        ray_memory_threshold=None if guarded else 0.98,
        gpu_memory_utilization=min(floors.gpu_memory_utilization, asked.gpu_memory_utilization),
        kv_cache_bytes=floors.kv_cache_bytes,
        max_num_batched_tokens=floors.max_num_batched_tokens,
        max_num_seqs=floors.max_num_seqs,
        cudagraph=CudaGraph.NONE if floors.eager_allowed else CudaGraph.REDUCED,
        max_model_len=floors.max_model_len,
        load_format=LoadFormat.LAZY,
    )
