"""Seed -> plan: the cluster's shape, its policy, and a list of faults with their times.

All that the seed decides ahead stands in the plan, so that a violation can be shrunk by leaving out faults.
What is left to chance in the run (delays, losses, exits) comes from generators seeded by the same number.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from sparkd.core.need import RAISED_THRESHOLD
from sparkd.core.policy import Policy
from sparkd.words import ENGINE, GIB, Backend, CudaGraph, Floors, Phase, Settings

MONITOR_OFF_SHARE = 0.5
"""In so many worlds Ray's monitor is wanted off, as by default."""
OUTLIVES_SHARE = 0.4
"""Share of the worlds in which units outlive their daemon (as under systemd): the next takes them over."""
VARIED_SHARE, VARIED_FROM = 0.7, 2000
"""Share of the worlds whose operators have set more than times, and that meet more than the usual faults:
of the seeds beyond the fixed ones, in which each rule that is switched off was found."""
DISCRETE_SHARE = 0.2
"""Share of the worlds in which the GPUs have a memory of their own."""
CODEC_SHARE = 0.06
"""Share of the worlds in which every message passes the real wire codec."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One piece of bad luck (or a person): from *at_s* on, for *span_s* where it lasts."""

    at_s: float
    kind: str
    node: str
    span_s: float = 0.0
    value: Any = None


@dataclass(frozen=True, slots=True)
class Load:
    """What the engine needs, one rank, in bytes; the core is never told."""

    weights: int
    cache: int
    activation: int
    spike: int
    per_token: int
    model_len: int
    growth: int
    leak: int


@dataclass(frozen=True, slots=True)
class Noise:
    """How the broker treats messages."""

    loss: float = 0.0
    twice: float = 0.0
    delay_s: float = 0.02
    ordered: bool = True
    straggle: float = 0.0


@dataclass(frozen=True, slots=True)
class Plan:
    """A world before it runs."""

    seed: int
    names: tuple[str, ...]
    backend: Backend
    codec: bool
    broker_at_head: bool
    total: int
    system: int
    load: Load
    noise: Noise
    policy: dict[str, Any]
    oom: str
    safety_s: float
    outlives: bool = False
    guarded: bool = False
    unified: bool = True
    faults: tuple[Fault, ...] = field(default=())

    def without(self, faults: tuple[Fault, ...]) -> Plan:
        """Return the plan with these faults only."""
        return replace(self, faults=faults)

    def policy_of(self, name: str) -> Policy:
        """Return the policy of one node's daemon."""
        nodes = tuple((node, f"192.168.200.{10 + i}") for i, node in enumerate(self.names))
        return Policy(
            node=name,
            head=self.names[0],
            nodes=nodes,
            backend=self.backend,
            shared_digest="plan-0",
            node_digest=f"node-{name}-0",
            version="chaos",
            **self.policy,
        )


def draw(seed: int) -> Plan:
    """Return the plan of *seed*."""
    rng = random.Random(seed)
    count = rng.choices((2, 3, 4, 5, 6, 7, 8), (60, 14, 10, 5, 4, 3, 4))[0]
    names = tuple(f"n{i}" for i in range(count))
    total = int(rng.choice((64, 119.7, 119.7, 96)) * GIB)
    system = int(rng.uniform(2.5, 6.0) * GIB)
    backend = rng.choice((Backend.RAY, Backend.RAY, Backend.MP))
    load = _load(rng, total)
    plan = Plan(
        seed=seed,
        names=names,
        backend=backend,
        codec=rng.random() < CODEC_SHARE,
        broker_at_head=rng.random() < 0.5,
        total=total,
        system=system,
        load=load,
        noise=_noise(rng),
        policy=_policy(rng, count, load),
        oom=rng.choice(("kernel", "cuda", "kernel_lost")),
        safety_s=rng.uniform(300.0, 1300.0) * (1.0 if count < 4 else 0.6),
    )
    plan = replace(plan, guarded=plan.policy.pop("guarded"))
    if random.Random(f"monitor {seed}").random() < MONITOR_OFF_SHARE:
        plan.policy["ray_monitor_off_asked"] = True
        plan.policy["settings"] = replace(plan.policy["settings"], ray_memory_threshold=RAISED_THRESHOLD)
    outlives = random.Random(f"outlives {seed}").random() < OUTLIVES_SHARE
    plan = replace(plan, faults=_faults(rng, plan), outlives=outlives)
    variety = random.Random(f"variety {seed}")
    varied = seed >= VARIED_FROM and variety.random() < VARIED_SHARE
    return _varied(variety, plan) if varied else plan


def _varied(rng: random.Random, plan: Plan) -> Plan:
    """Vary what operators set beside times: budgets, floors, the kind of memory; and more bad luck."""
    policy = plan.policy
    policy["transient_budget"] = rng.choice((0, 1, 3, 3, 3, 8))
    policy["unknown_unchanged"] = rng.choice((0, 1, 2, 2, 2))
    policy["unclean_boots_max"] = rng.choice((1, 3, 3, 3))
    policy["floors"] = replace(
        policy["floors"],
        max_num_seqs=rng.choice((1, 8, 8, 64)),
        max_num_batched_tokens=rng.choice((512, 512, 2048)),
        max_model_len=rng.choice((2048, 2048, 8192)),
        kv_cache_bytes=rng.choice((1, 1, 2)) * GIB,
    )
    policy["settings"] = replace(policy["settings"], max_num_seqs=rng.choice((None, None, 4, 256)))
    policy["unified_memory"] = rng.random() >= DISCRETE_SHARE
    faults = tuple(sorted((*plan.faults, *_more_faults(rng, plan)), key=lambda fault: fault.at_s))
    # A GPU's own memory is no matter of the kernel.
    unified, oom = policy["unified_memory"], plan.oom if policy["unified_memory"] else "cuda"
    return replace(plan, unified=unified, oom=oom, faults=faults)


def _more_faults(rng: random.Random, plan: Plan) -> Iterator[Fault]:
    for _ in range(rng.choice((0, 1, 2, 4))):
        kind, (low, high), values = rng.choice(MORE)
        at_s, node = rng.uniform(0.0, plan.safety_s), rng.choice(plan.names)
        yield Fault(round(at_s, 3), kind, node, round(rng.uniform(low, high), 3), rng.choice(values))


def _load(rng: random.Random, total: int) -> Load:
    return Load(
        weights=int(total * rng.choice((0.15, 0.3, 0.5, 0.6, 0.66))),
        cache=int(rng.choice((0, 2, 6, 20)) * GIB),
        activation=int(rng.uniform(0.5, 4.0) * GIB),
        spike=int(rng.choice((0.3, 1.0, 3.0, 7.0)) * GIB),
        per_token=rng.choice((40_000, 100_000, 200_000)),
        model_len=rng.choice((8192, 32768, 131072)),
        growth=int(rng.choice((0, 0, 0, 0.5, 2.0)) * GIB),
        leak=int(rng.choice((0, 0, 0, 0.2)) * GIB),
    )


def _noise(rng: random.Random) -> Noise:
    if rng.random() < 0.5:
        return Noise(delay_s=rng.choice((0.005, 0.02, 0.1)))
    return Noise(
        loss=rng.choice((0.0, 0.02, 0.1)),
        twice=rng.choice((0.0, 0.05)),
        delay_s=rng.choice((0.02, 0.2, 1.0)),
        ordered=rng.random() < 0.5,
        straggle=rng.choice((0.0, 0.0, 0.05)),
    )


def _policy(rng: random.Random, count: int, load: Load) -> dict[str, Any]:
    """Waits in the proportions of the defaults, shorter where that saves steps and decides nothing else."""
    slow = 1.0 if count < 4 else 2.0
    telemetry_s = rng.uniform(8.0, 15.0) * slow
    eager = rng.random() < 0.8
    no_progress_s = rng.uniform(60.0, 100.0)
    return {
        "settings": _settings(rng),
        "floors": Floors(gpu_memory_utilization=rng.choice((0.3, 0.5)), eager_allowed=eager),
        "guarded": rng.random() < 0.4,
        "autostart": rng.random() < 0.9,
        "observe_only": rng.random() < 0.02,
        "cooldown_s": rng.choice((100.0, 300.0, 600.0)),
        "escalated_retry_s": rng.choice((0.0, 400.0, 3600.0)),
        "climb_after_s": rng.choice((0.0, 0.0, 0.0, 0.0, 250.0)),
        "climb_idle_s": 60.0,
        "phase_budget_s": _budgets(rng),
        "stall_s": rng.uniform(40.0, 60.0),
        "membership_every_s": rng.uniform(8.0, 15.0) * slow,
        "membership_silence_s": rng.uniform(40.0, 60.0) * slow,
        "engine_every_s": rng.uniform(12.0, 20.0) * slow,
        "canary_idle_s": no_progress_s * rng.uniform(0.4, 0.95),
        "no_progress_s": no_progress_s,
        "verify_deadline_s": rng.uniform(20.0, 40.0),
        "memory_release_s": rng.uniform(5.0, 15.0),
        "peer_silence_s": telemetry_s * rng.uniform(2.6, 3.5),
        "status_every_s": telemetry_s * rng.uniform(1.0, 2.0),
        "telemetry_every_s": telemetry_s,
        "resend_s": rng.uniform(1.0, 3.0),
        "model_check_s": rng.uniform(10.0, 20.0),
        "backoff_base_s": rng.choice((0.0, 2.0, 10.0)),
        "backoff_max_s": rng.choice((20.0, 60.0)),
        "budget_window_s": rng.choice((600.0, 3600.0)),
        "stop_grace_s": rng.choice((3.0, 10.0)),
    }


def _budgets(rng: random.Random) -> tuple[tuple[Phase, float], ...]:
    long_s = rng.uniform(90.0, 150.0)
    return ((Phase.FORMING, 90.0), *((phase, long_s) for phase in ENGINE), (Phase.VERIFYING, 100.0))


def _settings(rng: random.Random) -> Settings:
    return Settings(
        ray_memory_threshold=rng.choice((0.95, 0.95, 0.9, 0.98)),
        gpu_memory_utilization=rng.choice((0.8, 0.85, 0.9, 0.92)),
        kv_cache_bytes=rng.choice((None, None, None, 8 * GIB)),
        max_num_batched_tokens=rng.choice((None, 4096, 8192)),
        cudagraph=rng.choice((CudaGraph.FULL, CudaGraph.FULL, CudaGraph.PIECEWISE)),
        max_model_len=rng.choice((None, None, 16384)),
    )


# -- the faults ----------------------------------------------------------------------------------

DISKS = ("kept", "kept", "lost", "torn", "rolled back")
RETAINED = ("kept", "lost", "rolled back")
NETWORKS = ("fabric", "management", "all")
WAYS = ("both", "both", "up", "down")

GUARD_LOST_SHARE = 0.4
"""So many of the worlds in which guards enforce lose one for a long while."""
PERMANENT = "weights_missing_or_corrupt"

# kind, weight, (shortest, longest) span in seconds, choices of the value
KINDS: tuple[tuple[str, int, tuple[float, float], tuple[Any, ...]], ...] = (
    ("broker_down", 5, (1.0, 120.0), RETAINED),
    ("broker_lag", 5, (2.0, 60.0), (None,)),
    ("mqtt_cut", 6, (1.0, 120.0), WAYS),
    ("http_cut", 4, (5.0, 120.0), tuple((net, way) for net in NETWORKS for way in WAYS)),
    ("fabric_cut", 2, (1.0, 60.0), WAYS),
    ("isolate", 3, (5.0, 120.0), WAYS),
    ("daemon_crash", 7, (0.2, 90.0), ("live", "live", "die")),
    ("crash_in_step", 4, (0.2, 20.0), ("before records", "before commands", "between commands")),
    ("old_words", 4, (8.0, 50.0), (9, "code 1")),
    ("daemon_end", 3, (1.0, 20.0), (None,)),
    ("daemon_stall", 7, (3.5, 150.0), (None,)),
    ("power_loss", 5, (5.0, 60.0), DISKS),
    ("blackout", 2, (3.0, 30.0), (None,)),
    ("kill_unit", 7, (0.0, 0.0), (9, 15, 11, "code 1", "code 0")),
    ("kill_at_phase", 6, (0.0, 400.0), tuple(range(11))),
    ("by_hand", 2, (0.0, 0.0), (None,)),
    ("raylet_dead", 2, (0.0, 0.0), (None,)),
    ("hang", 4, (0.0, 0.0), (None,)),
    ("stuck_phase", 2, (0.0, 400.0), tuple(range(11))),
    ("wrong_answers", 2, (60.0, 400.0), (None,)),
    ("manner", 8, (20.0, 200.0), ("slow", "lying", "lying", "held")),
    ("start_fails", 2, (1.0, 30.0), ("raised", "failed")),
    ("adapter_errors", 3, (5.0, 60.0), (None,)),
    ("late_logs", 3, (20.0, 200.0), (5.0, 30.0)),
    ("memory_hog", 4, (20.0, 300.0), (0.05, 0.15, 0.3)),
    ("slow_disk", 4, (5.0, 60.0), (0.5, 3.0, 100.0)),
    ("slow_release", 2, (20.0, 200.0), (8.0, 40.0)),
    ("model_missing", 2, (5.0, 90.0), (None,)),
    ("never_joins", 2, (20.0, 150.0), ("absent", "address", "gpu")),
    ("gcs_silent", 2, (5.0, 120.0), (None,)),
    ("api_silent", 2, (5.0, 150.0), (None,)),
    ("replay", 8, (0.0, 0.0), (None,)),
    ("signal", 3, (0.0, 0.0), ("noise", "nccl_timeout", "cuda_illegal_memory_access", PERMANENT)),
    ("wall_step", 1, (0.0, 0.0), (-86400.0, 3600.0)),
    ("reconfigure", 3, (1.0, 60.0), ("settings", "digest", "both")),
    ("guard_lost", 3, (20.0, 400.0), ("dead", "observes")),
    ("verb", 8, (0.0, 0.0), ("start", "stop", "pause", "resume", "pause", "resume", "shutdown")),
)  # fmt: skip

MORE: tuple[tuple[str, tuple[float, float], tuple[Any, ...]], ...] = (
    ("full_disk", (5.0, 300.0), (None,)),
    ("dark", (100.0, 400.0), ("power", "network", "addresses")),
    ("reconfigure", (1.0, 60.0), ("floors", "budgets")),
    ("memory_hog", (100.0, 600.0), (0.1, 0.2)),
    ("guard_lost", (20.0, 400.0), ("dead", "observes")),
)
"""What varied worlds meet beside `KINDS`."""


def _faults(rng: random.Random, plan: Plan) -> tuple[Fault, ...]:
    count = int(rng.choice((0, 3, 6, 12, 20, 36)) * plan.safety_s / 900.0 + rng.choice((0, 1, 1)))
    themes = rng.sample(KINDS, rng.choice((3, 6, len(KINDS))))
    weights = [weight for _, weight, _, _ in themes]
    faults = []
    at_s = 0.0
    for _ in range(count):
        kind, _, (low, high), values = rng.choices(themes, weights)[0]
        at_s = _when(rng, at_s, plan.safety_s)
        span_s = round(rng.uniform(low, high), 3)
        faults.append(Fault(round(at_s, 3), kind, rng.choice(plan.names), span_s, rng.choice(values)))
    if plan.guarded and rng.random() < GUARD_LOST_SHARE:
        faults.append(Fault(rng.uniform(0.0, plan.safety_s), "guard_lost", plan.names[-1], plan.safety_s))
    return tuple(sorted(faults, key=lambda fault: fault.at_s))


def _when(rng: random.Random, last_s: float, end_s: float) -> float:
    """Half of the bad luck follows other bad luck closely: that is where designs break."""
    if rng.random() < 0.5:
        return min(end_s, last_s + rng.choice((0.01, 0.3, 1.0, 5.0, 20.0)) * rng.random())
    return rng.uniform(0.0, end_s)
