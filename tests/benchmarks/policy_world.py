"""Simulated engines that run out of memory: the world of `make bench-policy`.

An independent model: nothing here is imported from the ladder, and no number of it is known to the ladder.
All sizes are GiB. The ranges come from public reports: graphs of 0.36, 1.7 and 8.35 GiB (gpustack/runner#251,
AEON-7/vllm-ultimate-dgx-spark#9, vllm#49475) and their estimate being too small (vllm#57475) or much too
large (vllm#50780); activation peaks of 0.4 to 1.7 GiB (vllm#10511, #14447) with outliers of tens
(vllm#12126, #46307); 5.6 GiB of the host's use by vLLM outside of its accounting
(MiaAI-Lab/GLM-5.3-Flash-EXL3-2x-DGX-Sparks#118), 8 to 9 GiB used at the snapshot on some kits (#47 there);
1.4 GiB over its own budget at the end of a start (vllm#51590).

What is simulated, in this order (vLLM 0.32 as read in `gpu_worker.py`): the check of free memory, weights
with their page-cache spike, the profiling run, the KV cache, graph capture, the start of the API, serving
with growth. On unified memory everything is one pool, of which Ray's monitor, the guard and the kernel each
allow a part; on a discrete GPU there are two.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field, replace

from sparkd.words import CudaGraph, Floors, LoadFormat, Phase, Settings

GIB = 1 << 30
EPSILON = 1e-9
DEFAULT_BATCHED, DEFAULT_SEQS = 2048, 256
PHYSICAL_RESERVE = 0.6
"""What the kernel and the driver keep: beyond it an allocation fails or the OOM killer comes."""
LAYERS = 48
GUARD_FLOOR = 3.0
"""The guard's floor, as the daemon gives it to the guard (`Policy.guard_floor_bytes`)."""
GRAPH_SHARE = {CudaGraph.FULL: 1.0, CudaGraph.PIECEWISE: 0.55, CudaGraph.REDUCED: 0.15, CudaGraph.NONE: 0.0}
RAMP = {
    Phase.LOADING_WEIGHTS: 1.6,
    Phase.PROFILING: 4.0,
    Phase.ALLOCATING_KV_CACHE: 12.0,
    Phase.CAPTURING_GRAPHS: 0.35,
    Phase.STARTING_API: 0.3,
    Phase.SERVING: 0.05,
}
"""How fast memory is taken, GiB a second: how far a kill overshoots its threshold, how old a sample is."""


@dataclass(frozen=True)
class Truth:
    """One case: the machine, the model, and all that no policy may see."""

    seed: str
    unified: bool
    asked: Settings
    floors: Floors
    guard: bool
    ray: bool
    memory_total: float
    device_total: float
    node_used: float
    device_used: float
    ranks: int
    host_at_snapshot: float
    host_growth_start: float
    host_growth_late: float
    weights: float
    load_spike: float
    lazy_share: float
    other_device: float
    activation_base: float
    activation_per_1k: float
    per_seq_mib: float
    graphs_full: float
    graph_estimate: float
    estimates_graphs: bool
    capture_workspace: float
    growth: float
    kv_per_1k_tokens: float
    model_len: int
    silent_share: tuple[float, float] = (0.5, 0.3)
    neighbour_once: float = 0.0
    hog_once: float = 0.0
    profiling_trips_once: bool = False

    @property
    def tensor_ranks(self) -> int:
        """Over how many ranks the weights are split: two unified nodes, or all GPUs of a discrete one."""
        return 2 if self.unified else self.ranks

    def batched(self, settings: Settings) -> int:
        return settings.max_num_batched_tokens or DEFAULT_BATCHED

    def seqs(self, settings: Settings) -> int:
        return settings.max_num_seqs or DEFAULT_SEQS

    def length(self, settings: Settings) -> int:
        return min(settings.max_model_len or self.model_len, self.model_len)

    def activation(self, settings: Settings) -> float:
        """The transient peak of one step of full size."""
        logits = self.per_seq_mib * self.seqs(settings) / 1024
        return self.activation_base + self.activation_per_1k * self.batched(settings) / 1024 + logits

    def graphs(self, settings: Settings) -> float:
        """What the captured graphs hold in the end."""
        sizes = min(1.0, (2 * self.seqs(settings) / 512) ** 0.5)
        return self.graphs_full * sizes * GRAPH_SHARE[settings.cudagraph]

    def needed_kv(self, settings: Settings) -> float:
        """What one request of full length needs."""
        return self.kv_per_1k_tokens * self.length(settings) / 1024


@dataclass(frozen=True)
class Noise:
    """What differs from start to start."""

    host: float
    load: float
    profile: float
    overshoot: float
    sample_lag: float
    pick: float


@dataclass(frozen=True)
class Outcome:
    """How one generation ended. `killer`: empty where it serves."""

    killer: str = ""
    phase: Phase = Phase.SERVING
    used: float = 0.0
    sampled_used: float = 0.0
    threshold: float = 0.0
    total: float = 0.0
    requested: float = 0.0
    free: float = 0.0
    kv: float | None = None
    kv_tokens: int = 0
    shards: tuple[int, int] = (48, 48)
    captured: int = 0
    snapshot: float = 0.0
    held: float = 0.0

    @property
    def serves(self) -> bool:
        return not self.killer


@dataclass
class Run:
    """One generation of *truth* with *settings*, step by step."""

    truth: Truth
    settings: Settings
    noise: Noise
    attempt: int
    used: float = 0.0
    device: float = 0.0
    seen: float = 0.0
    held: float = 0.0
    kv: float | None = None
    outcome: Outcome | None = field(default=None)

    def go(self) -> Outcome:
        steps = (self.start, self.load, self.profile, self.cache, self.capture, self.serve)
        for step in steps:
            step()
            if self.outcome is not None:
                return self.outcome
        return Outcome(kv=self.kv, used=self.used)

    # -- the steps -------------------------------------------------------------------------------

    def start(self) -> None:
        truth = self.truth
        once = self.attempt == 0
        self.used = truth.node_used + truth.host_at_snapshot + self.noise.host
        self.used += truth.neighbour_once if once and truth.unified else 0.0
        self.device = self.used if truth.unified else truth.device_used
        self.device += truth.neighbour_once if once and not truth.unified else 0.0
        self.seen, self.held = self.used, self.device
        total = truth.device_total
        free = (truth.memory_total if truth.unified else total) - self.device
        if free < self.settings.gpu_memory_utilization * total:
            self.end("free_check", Phase.INIT_DISTRIBUTED, free=free, total=total)

    def load(self) -> None:
        truth = self.truth
        lazy = truth.lazy_share if self.settings.load_format is LoadFormat.LAZY else 1.0
        spike = truth.load_spike * lazy * (1 + self.noise.load)
        if truth.unified:
            self.rise(Phase.LOADING_WEIGHTS, truth.weights + truth.other_device, spike)
        else:
            self.rise_host(Phase.LOADING_WEIGHTS, truth.host_growth_start, spike * truth.ranks)
            self.rise_device(Phase.LOADING_WEIGHTS, truth.weights + truth.other_device, 0.0)

    def profile(self) -> None:
        truth = self.truth
        if truth.profiling_trips_once and self.attempt == 0:
            free = truth.memory_total - self.used
            self.end("profiling_trips", Phase.PROFILING, free=free + 3.1, total=free)
            return
        peak = truth.activation(self.settings)
        if truth.unified:
            self.rise(Phase.PROFILING, truth.host_growth_start, peak)
        else:
            self.rise_device(Phase.PROFILING, 0.0, peak)

    def sized_kv(self) -> float:
        """What vLLM makes of its share; on unified memory the host's growth meanwhile is taken from it."""
        truth, settings = self.truth, self.settings
        if settings.kv_cache_bytes is not None:
            return settings.kv_cache_bytes / GIB
        share = settings.gpu_memory_utilization * truth.device_total
        share -= truth.weights + truth.other_device + truth.activation(settings)
        share -= (truth.host_growth_start if truth.unified else 0.0) + self.noise.profile
        estimated = truth.graphs(settings) * truth.graph_estimate if truth.estimates_graphs else 0.0
        return share - estimated

    def cache(self) -> None:
        truth, settings = self.truth, self.settings
        self.kv = round(self.sized_kv(), 2)
        if self.kv <= 0:
            self.end("no_kv", Phase.ALLOCATING_KV_CACHE)
            return
        if self.kv < truth.needed_kv(settings):
            self.end("kv_small", Phase.ALLOCATING_KV_CACHE)
            return
        self.grow(Phase.ALLOCATING_KV_CACHE, self.kv, 0.0)

    def capture(self) -> None:
        truth, settings = self.truth, self.settings
        if settings.cudagraph is CudaGraph.NONE:
            self.grow(Phase.CAPTURING_GRAPHS, 0.0, 0.3 * truth.activation(settings))
            return
        step = min(512, truth.batched(settings)) / truth.batched(settings) * truth.activation(settings)
        self.grow(Phase.CAPTURING_GRAPHS, truth.graphs(settings), truth.capture_workspace + step)

    def serve(self) -> None:
        truth = self.truth
        hog = truth.hog_once if self.attempt == 0 else 0.0
        if truth.unified:
            self.rise(Phase.STARTING_API, truth.host_growth_late, 0.0)
            self.rise(Phase.SERVING, truth.growth, truth.activation(self.settings) + hog)
        else:
            self.rise_host(Phase.STARTING_API, truth.host_growth_late, 0.0)
            self.rise_device(Phase.SERVING, truth.growth * 0.5, truth.activation(self.settings))
            self.rise_host(Phase.SERVING, truth.growth * 0.5, hog)

    # -- memory ----------------------------------------------------------------------------------

    def grow(self, phase: Phase, stays: float, spike: float) -> None:
        (self.rise if self.truth.unified else self.rise_device)(phase, stays, spike)

    def rise(self, phase: Phase, stays: float, spike: float) -> None:
        """One pool: the lowest of the limits acts first."""
        if self.outcome is None:
            self.used = self._rise(
                phase, self.used, stays, spike, total=self.truth.memory_total, limits=self._limits(phase)
            )

    def rise_host(self, phase: Phase, stays: float, spike: float) -> None:
        if self.outcome is None:
            limits = [limit for limit in self._limits(phase) if limit[1] != "torch"]
            self.used = self._rise(
                phase, self.used, stays, spike, total=self.truth.memory_total, limits=limits
            )

    def rise_device(self, phase: Phase, stays: float, spike: float) -> None:
        if self.outcome is None:
            total = self.truth.device_total
            self.device = self._rise(
                phase, self.device, stays, spike, total=total, limits=[(total - 0.35, "torch")]
            )

    def _limits(self, phase: Phase) -> list[tuple[float, str]]:
        truth = self.truth
        limits = [(truth.memory_total - PHYSICAL_RESERVE, self._physical(phase))]
        if truth.ray and self.settings.ray_memory_threshold is not None:
            limits.append((truth.memory_total * self.settings.ray_memory_threshold, "ray"))
        if truth.guard:
            limits.append((truth.memory_total - GUARD_FLOOR, "guard"))
        return limits

    def _physical(self, phase: Phase) -> str:
        """Who speaks when the pool is empty: torch, the kernel, the driver, or nobody."""
        torch, kernel = self.truth.silent_share
        if phase is Phase.LOADING_WEIGHTS:
            torch /= 2
        if self.noise.pick < torch and self.truth.unified:
            return "torch"
        if self.noise.pick < torch + kernel or not self.truth.unified:
            return "kernel"
        return "driver" if self.noise.pick < 0.9 else "silent"

    def _rise(
        self,
        phase: Phase,
        level: float,
        stays: float,
        spike: float,
        *,
        total: float,
        limits: list[tuple[float, str]],
    ) -> float:
        limit, killer = min(limits)
        peak = level + stays + spike
        if peak > limit:
            self._killed(phase, level, peak, limit=limit, killer=killer, total=total)
        return level + stays

    def _killed(
        self, phase: Phase, level: float, peak: float, *, limit: float, killer: str, total: float
    ) -> None:
        """The reading is at the limit or a little above, never the peak; a sample is up to a second old."""
        over = RAMP[phase] * self.noise.overshoot * (0.25 if killer == "ray" else 0.05)
        used = max(level, min(peak, limit + over))
        sampled = max(level, used - RAMP[phase] * self.noise.sample_lag)
        chunk = min(max(peak - limit, 0.02) * 0.6 + 0.02, 2.5) if killer == "torch" else 0.0
        if chunk and phase is Phase.ALLOCATING_KV_CACHE:
            chunk = (self.kv or 0.0) / LAYERS  # one tensor a layer
        progress = max(0.0, min(0.99, (limit - level) / max(peak - level, EPSILON)))
        self.end(
            killer,
            phase,
            used=used,
            sampled_used=sampled,
            threshold=limit,
            total=total,
            requested=chunk,
            free=max(0.0, chunk * (0.1 + 0.8 * self.noise.overshoot) - 0.01),
            shards=(int(48 * progress), 48),
            captured=int(35 * progress),
        )

    def end(self, killer: str, phase: Phase, **values: object) -> None:
        tokens = 0
        if self.kv is not None:
            tokens = int(self.kv / self.truth.kv_per_1k_tokens * 1024)
        snapshot = 0.0 if phase is Phase.INIT_DISTRIBUTED else self.seen
        self.outcome = Outcome(
            killer=killer,
            phase=phase,
            kv=self.kv,
            kv_tokens=tokens,
            snapshot=snapshot,
            held=self.held,
            **values,
        )


def noise_of(truth: Truth, attempt: int) -> Noise:
    """The noise of the n-th start: the same for every policy."""
    rng = random.Random(f"{truth.seed}/{attempt}")
    return Noise(
        host=rng.gauss(0.0, 0.25),
        load=rng.gauss(0.0, 0.15),
        profile=rng.gauss(0.0, 0.15),
        overshoot=rng.random(),
        sample_lag=rng.random(),
        pick=rng.random(),
    )


def run(truth: Truth, settings: Settings, attempt: int) -> Outcome:
    """Run one generation."""
    return Run(truth, settings, noise_of(truth, attempt), attempt).go()


# -- cases ---------------------------------------------------------------------------------------


def lognormal(rng: random.Random, median: float, sigma: float, low: float, high: float) -> float:
    return min(high, max(low, median * math.exp(rng.gauss(0.0, sigma))))


KINDS = (
    ("load", 0.11),
    ("profile", 0.09),
    ("cache", 0.17),
    ("capture", 0.2),
    ("serve", 0.2),
    ("free_check", 0.12),
    ("kv_small", 0.06),
    ("no_kv", 0.03),
    ("passing", 0.02),
)
"""Which failures are wanted, so that every phase occurs; a share of the cases each."""
KIND_OF = {
    Phase.LOADING_WEIGHTS: "load",
    Phase.PROFILING: "profile",
    Phase.ALLOCATING_KV_CACHE: "cache",
    Phase.CAPTURING_GRAPHS: "capture",
    Phase.STARTING_API: "serve",
    Phase.SERVING: "serve",
}


def _kind_of(outcome: Outcome) -> str:
    own = {"free_check", "kv_small", "no_kv", "profiling_trips"}
    return outcome.killer if outcome.killer in own else KIND_OF[outcome.phase]


def make_case(seed: str) -> Truth:
    """Draw until the asked settings fail in the wanted way; the weights stay, so that all sizes occur.

    Where that size never fails that way, any failure is taken.
    """
    rng = random.Random(seed)
    unified = rng.random() < 0.8
    size = rng.random()
    kind = rng.choices([name for name, _ in KINDS], [weight for _, weight in KINDS])[0]
    other = None
    for number in range(4000):
        truth = _draw(rng, f"{seed}/{number}", unified, size, passing=kind == "passing")
        outcome = run(truth, truth.asked, 0)
        if outcome.serves:
            continue
        if kind in {"passing", outcome.killer, _kind_of(outcome)}:
            return truth
        other = other or truth
        if number > 600:
            return other
    raise AssertionError(f"no failing case for {seed}")


def _draw(rng: random.Random, seed: str, unified: bool, size: float, *, passing: bool) -> Truth:
    spark = 119.7
    memory = spark if unified else rng.choice((62.5, 125.6, 251.8, 503.6))
    device = rng.choice((spark, spark, 121.69)) if unified else rng.choice((23.6, 44.5, 79.2, 94.5, 139.8))
    weights = 8 + size * 102 if unified else min(8 + size * 102, rng.uniform(0.35, 0.88) * device)
    ranks = 1 if unified else rng.choice((1, 1, 2, 4))
    guard = rng.random() < 0.4
    ray = rng.random() < 0.65
    pressed = not unified and rng.random() < 0.4
    estimates = rng.random() < 0.8
    logits = rng.choice((0.25, 0.5, 1.2))
    activation = min(
        1.5, lognormal(rng, 0.20, 0.6, 0.05, 1.2) * (rng.choice((4, 8)) if rng.random() < 0.04 else 1)
    )
    truth = Truth(
        seed=seed,
        unified=unified,
        asked=_asked(rng, ray, guard),
        floors=Floors(eager_allowed=rng.random() < 0.9),
        guard=guard,
        ray=ray,
        memory_total=memory,
        device_total=device,
        node_used=rng.uniform(0.6, 0.92) * memory if pressed else lognormal(rng, 3.6, 0.4, 2.2, 10.0),
        device_used=0.0 if unified else lognormal(rng, 0.5, 0.6, 0.0, 4.0),
        ranks=ranks,
        host_at_snapshot=(rng.uniform(0.9, 2.2) if ray else 0.2) + rng.uniform(1.4, 3.2) * ranks,
        host_growth_start=rng.uniform(0.2, 1.6),
        host_growth_late=rng.uniform(0.1, 1.2),
        weights=weights,
        load_spike=lognormal(rng, 2.4, 0.6, 0.4, 12.0),
        lazy_share=rng.uniform(0.15, 0.45),
        other_device=rng.uniform(0.5, 2.2),
        activation_base=rng.uniform(0.15, 0.7),
        activation_per_1k=activation,
        per_seq_mib=logits,
        graphs_full=lognormal(rng, 1.3, 0.65, 0.2, 8.0),
        graph_estimate=lognormal(rng, 0.95, 0.35, 0.3, 4.0),
        estimates_graphs=estimates,
        capture_workspace=rng.uniform(0.05, 0.9),
        growth=lognormal(rng, 0.8, 0.6, 0.1, 4.0),
        kv_per_1k_tokens=lognormal(rng, 0.07, 0.7, 0.015, 0.35),
        model_len=rng.choice((8192, 32768, 40960, 131072, 262144)),
    )
    return _with_passing_trouble(rng, truth) if passing else truth


def _asked(rng: random.Random, ray: bool, guard: bool) -> Settings:
    threshold = rng.choice((0.95, 0.95, 0.95, 0.9, 0.98)) if ray else 0.95
    if guard and rng.random() < 0.25:
        threshold = None
    kv = int(rng.uniform(4, 60) * GIB) if rng.random() < 0.12 else None
    return Settings(
        ray_memory_threshold=threshold,
        gpu_memory_utilization=rng.choice((0.8, 0.82, 0.85, 0.87, 0.9, 0.9, 0.92, 0.95)),
        kv_cache_bytes=kv,
        max_num_batched_tokens=rng.choice((None, 2048, 4096, 8192, 8192, 16384, 32768)),
        max_num_seqs=rng.choice((None, 32, 64, 128, 256, 512, 1024)),
        cudagraph=rng.choice((CudaGraph.FULL,) * 5 + (CudaGraph.PIECEWISE, CudaGraph.NONE)),
        max_model_len=rng.choice((None, 8192, 16384, 32768, 65536, 131072)),
        load_format=LoadFormat.LAZY if rng.random() < 0.15 else LoadFormat.AUTO,
    )


def _with_passing_trouble(rng: random.Random, truth: Truth) -> Truth:
    """The trouble was another's and is gone at the next start: no setting needs to change."""
    drawn = rng.random()
    if drawn < 0.4 and truth.unified:
        return replace(truth, profiling_trips_once=True)
    if drawn < 0.7:
        return replace(truth, neighbour_once=rng.uniform(10, 60))
    return replace(truth, hog_once=rng.uniform(8, 40))
