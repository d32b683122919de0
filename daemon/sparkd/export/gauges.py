"""A state as metric families: made anew at every scrape from one frozen state. Pure.

Unknown is NaN: the series is there and says that nothing is known; a comparison with it is false, so no
alert fires on it, and no sum counts it as zero. Counters have no NaN: an unknown one is absent.
For a memory setting NaN is "the engine's own default", and +Inf is "Ray's monitor off" (no share kills).
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from sparkd.core import guards
from sparkd.core.events import EngineObserved
from sparkd.core.policy import Policy
from sparkd.core.state import Coordinator, State
from sparkd.export import facts
from sparkd.words import CudaGraph, LoadFormat, Phase, Settings

UNKNOWN = float("nan")
UNKNOWN_PHASE = "unknown"
_GRAPH_LEVELS = {CudaGraph.NONE: 0.0, CudaGraph.REDUCED: 1.0, CudaGraph.PIECEWISE: 2.0, CudaGraph.FULL: 3.0}
_SETTINGS = (
    ("ray_memory_threshold_ratio", "Share of memory above which Ray kills a worker; +Inf = monitor off."),
    ("gpu_memory_utilization_ratio", "Share of the device's memory that the engine may use."),
    ("kv_cache_bytes", "Size of one rank's KV cache; NaN = engine's default."),
    ("max_num_batched_tokens", "Most tokens of one engine step; NaN = engine's default."),
    ("max_num_seqs", "Most requests of one engine step; NaN = engine's default."),
    ("cudagraph_level", "CUDA graph capture: 0 none, 1 reduced, 2 piecewise, 3 full."),
    ("max_model_len_tokens", "Longest context; NaN = engine's default."),
    ("load_lazy", "1 where weights are read without filling the page cache ahead."),
)


def families(state: State, policy: Policy, now: float) -> Iterator[Metric]:
    """Yield every metric that is a fold of the state, in the order of docs/metrics.md.

    Args:
        state: the newest state.
        policy: the policy in force.
        now: monotonic seconds of the state's clock.
    """
    yield from _where(state, now)
    yield from _progress(state, policy, now)
    yield from _settings(state, policy)
    yield from _memory(state, policy, now)
    yield from _ray(state, policy)
    yield from _peers(state, policy, now)
    yield from _engine(state)
    yield from _operator(state, now)


def _number(value: float | None) -> float:
    return UNKNOWN if value is None else float(value)


def _gauge(name: str, text: str, value: float | None) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"sparkd_{name}", text, value=_number(value))


def _where(state: State, now: float) -> Iterator[Metric]:
    coordinator = state.coordinator
    phase = facts.phase_of(state)
    states = GaugeMetricFamily(
        "sparkd_phase",
        "1 for the phase in which the cluster is; a worker repeats the head's.",
        labels=["phase"],
    )
    for name in (*Phase, UNKNOWN_PHASE):
        states.add_metric([name], float(name == (phase or UNKNOWN_PHASE)))
    yield states
    spent_s = None if coordinator is None else now - coordinator.phase_since_s
    yield _gauge("phase_seconds", "Time spent in the phase so far; known on the head.", spent_s)
    yield _gauge("coordinator", "1 on the node that coordinates (the head).", float(coordinator is not None))
    yield _gauge("generation", "Number of the newest start of the engine.", facts.generation_of(state))
    yield _gauge("epoch", "Epoch of the highest stamp seen.", state.seen.epoch)


def _progress(state: State, policy: Policy, now: float) -> Iterator[Metric]:
    coordinator = state.coordinator
    progress = None if coordinator is None else facts.progress_of(coordinator, policy, now)
    done = None if progress is None else progress.done
    total = None if progress is None else progress.total
    left = None if progress is None else progress.stuck_in_s
    yield _gauge("progress_done_items", "Items of the phase that are done (shards, captured sizes).", done)
    yield _gauge("progress_expected_items", "Items that the phase has in all.", total)
    yield _gauge("progress_stuck_in_seconds", "Time until this silence counts as stuck.", left)


def setting_numbers(settings: Settings | None) -> tuple[float, ...]:
    """Return the settings as numbers, in the order of their metrics; all NaN where they are unknown."""
    if settings is None:
        return tuple(UNKNOWN for _ in _SETTINGS)
    threshold = settings.ray_memory_threshold
    return (
        float("inf") if threshold is None else threshold,
        settings.gpu_memory_utilization,
        _number(settings.kv_cache_bytes),
        _number(settings.max_num_batched_tokens),
        _number(settings.max_num_seqs),
        _GRAPH_LEVELS[settings.cudagraph],
        _number(settings.max_model_len),
        float(settings.load_format is LoadFormat.LAZY),
    )


def _settings(state: State, policy: Policy) -> Iterator[Metric]:
    settings = facts.settings_of(state)
    wanted = guards.asked(state, policy)
    asked, in_force = setting_numbers(wanted), setting_numbers(settings)
    for (name, text), before, current in zip(_SETTINGS, asked, in_force, strict=True):
        family = GaugeMetricFamily(f"sparkd_setting_{name}", text, labels=["which"])
        family.add_metric(["asked"], before)
        family.add_metric(["in_force"], current)
        yield family
    differing = None if settings is None else len(facts.changed(wanted, settings))
    yield _gauge("settings_changed", "Memory settings in force that differ from those asked for.", differing)
    measured = facts.said_of(state).kv_cache_bytes
    yield _gauge("kv_cache_measured_bytes", "KV cache of one rank as the engine reported it.", measured)


def _memory(state: State, policy: Policy, now: float) -> Iterator[Metric]:
    available = _per_node("memory_available_bytes", "Memory available on the node.")
    total = _per_node("memory_size_bytes", "Memory of the node.")
    pressure = _per_node("memory_pressure_ratio", "PSI `some avg10` of memory, 0 to 1.")
    floor = _per_node("memory_floor_bytes", "Floor below which the memory guard acts; NaN = no guard seen.")
    for name, _ in policy.nodes:
        memory = facts.memory_of(state, name, policy, now)
        percent = memory.pressure_percent
        available.add_metric([name], _number(memory.available_bytes))
        total.add_metric([name], _number(memory.total_bytes))
        pressure.add_metric([name], UNKNOWN if percent is None else percent / 100)
        guard = facts.guard_of(state, name, policy, now)
        floor.add_metric([name], _number(guard.floor_bytes if guard else None))
    yield from (available, total, pressure, floor)
    sample = state.member.memory
    swap = None if sample is None else sample.swap_used_bytes
    yield _gauge("swap_used_bytes", "Swap in use on this node.", swap)


def _per_node(name: str, text: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"sparkd_{name}", text, labels=["node"])


def _ray(state: State, policy: Policy) -> Iterator[Metric]:
    yield _gauge("ray_nodes_alive", "Nodes that Ray lists as alive.", facts.ray_nodes_alive(state))
    yield _gauge("nodes_expected", "Nodes of the cluster as configured.", len(policy.nodes))


def _peers(state: State, policy: Policy, now: float) -> Iterator[Metric]:
    reachable = GaugeMetricFamily(
        "sparkd_peer_reachable", "1 where the peer was heard lately by this path.", labels=["node", "path"]
    )
    for peer in state.peers:
        by_mqtt = facts.heard_by_mqtt(state, peer, policy, now)
        reachable.add_metric([peer.node, "mqtt"], _number(by_mqtt))
        reachable.add_metric([peer.node, "http"], _number(facts.heard_by_http(peer, policy, now)))
    yield reachable
    yield _gauge("broker_connected", "1 while the session with the broker is up.", state.broker)
    guarded = facts.guards_enforce(state, policy, now)
    yield _gauge("guard_enforcing", "1 while every node's memory guard enforces.", guarded)


def _engine(state: State) -> Iterator[Metric]:
    watch = facts.watch_of(state)
    engine = watch.engine or EngineObserved(generation=0, answered=False)
    phase = facts.phase_of(state)
    verified = None if phase is None else phase is Phase.SERVING
    yield _gauge("engine_verified", "1 while serving, which a real generation has proved.", verified)
    yield _gauge("engine_healthy", "1 where the engine's health check says so.", engine.healthy)
    yield _gauge("engine_running_requests", "Requests in the engine's batch.", engine.running)
    yield _gauge("engine_waiting_requests", "Requests that wait in the engine.", engine.waiting)
    yield _gauge("engine_throughput_tokens_per_second", "Rate that the engine reports.", watch.rate_tok_s)
    tokens = CounterMetricFamily("sparkd_engine_tokens", "Tokens that this generation has produced.")
    if watch.tokens_total is not None:
        tokens.add_metric([], watch.tokens_total)
    yield tokens
    yield _gauge("canary_ok", "1 where the last real generation came back right.", watch.canary_ok)
    yield _gauge("canary_latency_seconds", "How long the last real generation took.", watch.canary_latency_s)


def _operator(state: State, now: float) -> Iterator[Metric]:
    lead = state.coordinator
    needed = waiting = opened = left_s = None
    if lead is not None:
        needed, waiting, opened = bool(lead.needs), len(lead.waiting), lead.incident is not None
        left_s = _left(lead, now)
    yield _gauge("needs_operator", "1 where only a person can go on; the status says what to do.", needed)
    yield _gauge("waiting_reasons", "Preconditions that are missing.", waiting)
    yield _gauge("incident_open", "1 while an incident is open.", opened)
    yield _gauge("backoff_left_seconds", "Time until the relaunch; 0 = none is due.", left_s)


def _left(lead: Coordinator, now: float) -> float:
    if lead.phase is not Phase.BACKING_OFF or lead.backoff_until_s is None:
        return 0.0
    return max(0.0, lead.backoff_until_s - now)
