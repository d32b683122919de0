"""What the operator decided, frozen: made by `config` at the edge, an argument of every step.

All durations are seconds. Bounds are checked where it is made; here values are only used.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from sparkd.words import GIB, Backend, Floors, Phase, Settings

# A first start after a change of topology may compile for 36 minutes (public report on two Sparks); a load
# is judged by its progress, not by its length. Budgets are learned later; these bound what is unknown.
PHASE_BUDGETS: tuple[tuple[Phase, float], ...] = (
    (Phase.FORMING, 120.0),
    (Phase.RESOLVING_CONFIG, 300.0),
    (Phase.INIT_DISTRIBUTED, 600.0),
    (Phase.LOADING_WEIGHTS, 600.0),
    (Phase.COMPILING, 2400.0),
    (Phase.PROFILING, 1200.0),
    (Phase.ALLOCATING_KV_CACHE, 600.0),
    (Phase.CAPTURING_GRAPHS, 2400.0),
    (Phase.STARTING_API, 300.0),
    (Phase.VERIFYING, 180.0),
)


class UnfitPlan(StrEnum):
    """What becomes of a plan that the numbers reject before its launch."""

    REFUSE = "refuse"
    ADJUST = "adjust"
    WARN = "warn"


@dataclass(frozen=True, slots=True)
class Policy:
    """Everything that `step` may know of the configuration.

    The defaults are chosen so: a period of a second or a few is cheap beside an engine and short beside a
    start; a silence is ten to thirty periods; a hang is borne for twice as long as a quiet engine is left in
    peace; the budgets and the hourly retry are the design's; what is learned later replaces what stands here.

    Attributes:
        node, head: this node and the coordinating one.
        nodes: (name, fabric address) of all nodes, head first.
        backend: the executor; with `Backend.MP` there is no Ray unit.
        gpus: GPUs that every node must offer to Ray.
        settings: the memory settings that the operator asks for.
        floors: the ladder's bounds.
        shared_digest, node_digest: the plan as this node renders it (see `engines.digest`).
        version: this daemon's version.
        guard_enforcing: every node's guard is observed enforcing; put in for each decision (`core.guards`).
        guard_floor_bytes: available memory below which the guard ends the member: it is asked for this floor.
        unified_memory: GPU and node share one memory (DGX Spark); False: the device has its own, and a kill
            for the node's memory is not cured by a smaller KV cache.
        ray_monitor_off_asked: Ray's memory monitor is wanted off; `settings` then holds the highest threshold
            instead, for the monitor may be off only while every guard enforces.
        autostart: start the engine when the daemon starts.
        phase_budget_s: longest silence of progress within a phase.
        stall_s: longest silence of a load that has begun to progress.
        membership_every_s, membership_silence_s: period of Ray's table; how long it may be
            unknown in a running generation.
        engine_every_s: period of /health and /metrics.
        canary_idle_s: a real generation when no token was seen for so long.
        no_progress_s: requests outstanding (or a canary) and no token for so long = hang.
        verify_deadline_s: for the generation that proves a start.
        drain_deadline_s: the decision falls at the latest so long after the failure.
        stop_grace_s: SIGTERM to SIGKILL in an ordered stop; fail_grace_s: the same for a failed generation.
        memory_release_s: longest wait for a dead generation's memory; memory_tolerance_bytes: what may
            be missing.
        peer_silence_s: no word from a peer for so long = absent.
        status_every_s, telemetry_every_s, resend_s: periods of publishing.
        model_check_s: period of the check of what a launch needs while waiting.
        backoff_base_s, backoff_max_s: wait before a relaunch, doubling from the one to the other.
        jitter_share: the wait grows by up to this share of itself, by the generation: clusters that share a
            fault do not come back in step.
        cooldown_s: a generation that has served for so long ends the row of failures that came before it.
        escalated_retry_s: period of trying again by itself after an escalation that time may end; 0 = never.
        observe_only: watch and report, never start or stop anything.
        climb_after_s: degraded settings that have served for so long are left for the asked ones, in a quiet
            moment (nobody has asked for climb_idle_s); 0 = never.
        context: digest of what settings and times are learned with: model, engine, driver, kernel, nodes.
        unclean_boots_max: so many boots in a row after an unclean end: nothing is started any more.
        leak_cycles: so many teardowns in a row with less memory back each time are a leak.
        transient_budget: relaunches for one transient cause within budget_window_s.
        unknown_unchanged: unchanged relaunches for `unknown` before one memory step.
        unfit_plan: what becomes of a plan that the numbers reject before its launch (`core.fitting`).
        margin_share: what a memory step frees beside what the evidence asks for and what typically still
            comes, as a share of the node's memory.
    """

    node: str
    head: str
    nodes: tuple[tuple[str, str], ...]
    backend: Backend = Backend.RAY
    gpus: int = 1
    settings: Settings = field(default_factory=Settings)
    floors: Floors = field(default_factory=Floors)
    shared_digest: str = ""
    node_digest: str = ""
    version: str = ""
    guard_enforcing: bool = False
    guard_floor_bytes: int = 3 * GIB
    unified_memory: bool = True
    ray_monitor_off_asked: bool = False
    autostart: bool = True
    phase_budget_s: tuple[tuple[Phase, float], ...] = PHASE_BUDGETS
    stall_s: float = 180.0
    membership_every_s: float = 1.0
    membership_silence_s: float = 30.0
    engine_every_s: float = 2.0
    canary_idle_s: float = 60.0
    no_progress_s: float = 120.0
    verify_deadline_s: float = 60.0
    drain_deadline_s: float = 2.0
    stop_grace_s: float = 10.0
    fail_grace_s: float = 0.5
    memory_release_s: float = 30.0
    memory_tolerance_bytes: int = GIB
    peer_silence_s: float = 10.0
    status_every_s: float = 5.0
    telemetry_every_s: float = 1.0
    resend_s: float = 1.0
    model_check_s: float = 5.0
    backoff_base_s: float = 10.0
    backoff_max_s: float = 300.0
    jitter_share: float = 0.1
    cooldown_s: float = 600.0
    escalated_retry_s: float = 3600.0
    observe_only: bool = False
    climb_after_s: float = 0.0
    climb_idle_s: float = 600.0
    context: str = ""
    unclean_boots_max: int = 3
    leak_cycles: int = 4
    transient_budget: int = 3
    budget_window_s: float = 3600.0
    unknown_unchanged: int = 2
    unfit_plan: UnfitPlan = UnfitPlan.ADJUST
    margin_share: float = 0.01

    @property
    def is_head(self) -> bool:
        """Whether this node coordinates."""
        return self.node == self.head

    def budget_of(self, phase: Phase) -> float | None:
        """Return the longest silence allowed in *phase*, None where it has no bound."""
        return next((limit for name, limit in self.phase_budget_s if name is phase), None)
