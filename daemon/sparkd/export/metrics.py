"""The metrics of one daemon, fed by frozen values alone: a state a step, the records of a step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Info,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from sparkd.core.policy import Policy
from sparkd.core.records import (
    IncidentClosed,
    IncidentOpened,
    InvariantBroken,
    MessageDropped,
    Record,
    Remedied,
    Verified,
)
from sparkd.core.state import State
from sparkd.export.gauges import families
from sparkd.export.stages import STAGES, recovery_s, stages_of

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OUTCOMES = ("recovered", "escalated", "paused", "stopped", "waiting")
_RECOVERY_BUCKETS = (5, 10, 30, 60, 120, 300, 600, 900, 1200, 1800, 3600, 7200)
_STEP_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 2.5)
_UNKNOWN = float("nan")

# Prometheus does not use them in the text format; they would double the number of counters.
disable_created_metrics()  # type: ignore[no-untyped-call]


class _Latest(Collector):
    """Gauges of the newest state, made when they are asked for."""

    def __init__(self) -> None:
        self.seen: tuple[State, Policy, float] | None = None

    def collect(self) -> Iterable[Metric]:
        return () if self.seen is None else families(*self.seen)


class Metrics:
    """An `Exporter` with its own registry. Not thread-safe: fed and read in the loop's thread."""

    def __init__(self, version: str, node: str, causes: Sequence[str] = ()) -> None:
        """Make the registry.

        Args:
            version: of sparkd.
            node: this node's name.
            causes: the known causes: their counters start at 0, so that a first increase is seen.
        """
        self.registry = CollectorRegistry()
        self._latest = _Latest()
        self.registry.register(self._latest)
        self._counted = _Counted(self.registry, causes)
        self._loop = _Loop(self.registry)
        build = Info("sparkd_build", "Version of sparkd and this node's name.", registry=self.registry)
        build.info({"version": version, "node": node})

    def update(self, state: State, policy: Policy, now: float) -> None:
        """Take the state after a step. Costs nothing until the next scrape.

        Args:
            state: the newest state.
            policy: the policy in force.
            now: monotonic seconds of the step.
        """
        self._latest.seen = (state, policy, now)

    def records(self, records: Sequence[Record]) -> None:
        """Count the records of one step."""
        for record in records:
            self._counted.take(record)

    def stepped(self, duration_s: float, lag_s: float) -> None:
        """Take one step of the loop: how long it took, and how late it ran."""
        self._loop.duration.observe(duration_s)
        self._loop.lag.set(lag_s)

    def store(self, *, troubled: bool, queued: int) -> None:
        """Take whether the state directory can be written, and how many records wait for it."""
        self._loop.store_ok.set(not troubled)
        self._loop.store_queued.set(queued)

    def handler_failed(self, handler: str) -> None:
        """Count an HTTP request that ended in an error of sparkd."""
        self._loop.handler_errors.labels(handler).inc()

    def text(self) -> bytes:
        """Return the exposition in Prometheus's text format (see CONTENT_TYPE)."""
        return generate_latest(self.registry)


class _Loop:
    """Metrics of the daemon itself."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.duration = Histogram(
            "sparkd_loop_step_seconds",
            "How long one step of the loop took, to its last command.",
            buckets=_STEP_BUCKETS,
            registry=registry,
        )
        self.lag = _unknown_gauge("sparkd_loop_lag_seconds", "How late the last step ran.", registry)
        self.store_ok = _unknown_gauge(
            "sparkd_store_writable", "1 while the state directory can be written.", registry
        )
        self.store_queued = _unknown_gauge(
            "sparkd_store_queued_records", "Records that wait in memory for the disk.", registry
        )
        self.handler_errors = Counter(
            "sparkd_http_handler_errors_total",
            "HTTP requests that ended in an error of sparkd.",
            ["handler"],
            registry=registry,
        )


def _unknown_gauge(name: str, text: str, registry: CollectorRegistry) -> Gauge:
    gauge = Gauge(name, text, registry=registry)
    gauge.set(_UNKNOWN)
    return gauge


class _Counted:
    """Metrics that count what happened."""

    def __init__(self, registry: CollectorRegistry, causes: Sequence[str]) -> None:
        self._incidents = Counter(
            "sparkd_incidents_total", "Incidents that are over.", ["cause", "outcome"], registry=registry
        )
        self._relaunches = Counter(
            "sparkd_relaunches_total", "Relaunches decided on, by their cause.", ["cause"], registry=registry
        )
        self._dropped = Counter(
            "sparkd_messages_dropped_total",
            "Messages not acted upon.",
            ["kind", "reason"],
            registry=registry,
        )
        self._broken = Counter(
            "sparkd_invariants_broken_total",
            "Defects that sparkd found in itself.",
            ["rule"],
            registry=registry,
        )
        self._starts = Counter(
            "sparkd_verified_starts_total", "Generations that came to serve.", registry=registry
        )
        self._recovery = Histogram(
            "sparkd_recovery_seconds",
            "From the first evidence to verified serving.",
            buckets=_RECOVERY_BUCKETS,
            registry=registry,
        )
        self._lasts = _Lasts(registry)
        self._first: tuple[int, float | None] = (0, None)
        for cause in causes:
            self._relaunches.labels(cause)
            self._incidents.labels(cause, "recovered")
            self._incidents.labels(cause, "escalated")

    def take(self, record: Record) -> None:
        match record:
            case IncidentOpened(incident=number):
                self._first = (number, None)
            case Remedied():
                self._remedied(record)
            case IncidentClosed():
                self._closed(record)
            case MessageDropped(kind=kind, reason=reason):
                self._dropped.labels(kind, reason).inc()
            case InvariantBroken(rule=rule):
                self._broken.labels(rule).inc()
            case Verified(start_s=start_s):
                self._starts.inc()
                self._lasts.start.set(start_s)

    def _remedied(self, record: Remedied) -> None:
        if self._first_of(record.incident) is None:
            self._first = (record.incident, record.times.detected_s)
        if record.action == "relaunch":
            self._relaunches.labels(record.diagnosis.cause).inc()

    def _closed(self, record: IncidentClosed) -> None:
        self._incidents.labels(record.cause, record.outcome).inc()
        times: dict[str, Any] = asdict(record.times)
        # An incident may have failed more than once; its recovery counts from its first evidence.
        first_s = self._first_of(record.incident)
        spent_s = recovery_s(times if first_s is None else {**times, "detected_s": first_s})
        if record.outcome != "recovered" or spent_s is None:
            return
        self._recovery.observe(spent_s)
        self._lasts.recovery.set(spent_s)
        self._lasts.stages_are(dict(stages_of(times)))

    def _first_of(self, incident: int) -> float | None:
        number, detected_s = self._first
        return detected_s if number == incident else None


class _Lasts:
    """Gauges of the newest start and of the newest recovery; NaN before there was one."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.recovery = _unknown_gauge("sparkd_recovery_last_seconds", "The newest recovery.", registry)
        self.start = _unknown_gauge(
            "sparkd_start_last_seconds", "The newest start, from launch to verified serving.", registry
        )
        self._stages = Gauge(
            "sparkd_recovery_stage_seconds",
            "Stages of the newest recovery, each from the one before it.",
            ["stage"],
            registry=registry,
        )
        self.stages_are({})

    def stages_are(self, spent: dict[str, float]) -> None:
        for stage in STAGES:
            self._stages.labels(stage).set(spent.get(stage, _UNKNOWN))
