"""From a diagnosis to what is changed and done, or a reasoned "nothing".

One rule a family of causes. The result always says why; budgets are per cause, so a flapping network does
not use up what a memory failure may need.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from sparkd.core import ladder
from sparkd.core.policy import Policy
from sparkd.core.restart import Spent, backoff, spent_on
from sparkd.signals.causes import cause_info
from sparkd.signals.model import Diagnosis
from sparkd.words import Settings

MEMORY = (
    "ray_oom_kill",
    "kernel_oom",
    "cgroup_oom",
    "uma_host_exhaustion",
    "cuda_oom",
    "startup_free_memory_too_low",
    "kv_cache_too_small",
)
NCCL = (
    "nccl_init_failure",
    "nccl_socket_connect",
    "nccl_remote_error",
    "nccl_timeout",
    "ib_roce_error",
    "gloo_connect_failure",
    "c10d_connect_timeout",
)
UNDECIDED = ("unknown", "killed_unspecified", "engine_dead_unspecified")


class Action(StrEnum):
    """What follows a failed generation."""

    RELAUNCH = "relaunch"
    ESCALATE = "escalate"


@dataclass(frozen=True, slots=True)
class Facts:
    """What a remedy may use beside the diagnosis. `causes`: of the earlier failures of this incident."""

    settings: Settings
    failures: int
    spent: Spent
    kv_cache_bytes: int | None
    total_bytes: int | None
    causes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Remedy:
    """What to change and do. `needs`: what only a person can do, when it escalates."""

    action: Action
    settings: Settings
    explanation: str
    backoff_s: float = 0.0
    needs: str = ""


def choose(diagnosis: Diagnosis, facts: Facts, policy: Policy, now: float) -> Remedy:
    """Return the remedy for *diagnosis* and its reason."""
    cause = diagnosis.cause
    if cause in MEMORY:
        return _memory(diagnosis, facts, policy)
    # A start that takes longer than the window allows still may not be tried for ever.
    used = max(spent_on(cause, facts.spent, policy, now), facts.causes.count(cause))
    if cause in UNDECIDED:
        return _undecided(diagnosis, facts, policy, used)
    if cause_info(cause).permanent:
        return _escalate(facts, diagnosis, f"{cause} does not go away by a restart")
    if used >= policy.transient_budget:
        text = f"{used} relaunches for {cause} did not help"
        return _escalate(facts, diagnosis, text)
    if cause in NCCL and used >= 1:
        return _second_nccl(diagnosis, facts, policy)
    return _relaunch(facts, policy, facts.settings, f"{cause} can pass: relaunch with unchanged settings")


def _memory(diagnosis: Diagnosis, facts: Facts, policy: Policy) -> Remedy:
    lowered = _lower(diagnosis, facts, policy)
    if lowered is None:
        return _escalate(facts, diagnosis, "every memory setting is at its floor")
    return _relaunch(facts, policy, *lowered)


def _lower(diagnosis: Diagnosis, facts: Facts, policy: Policy) -> tuple[Settings, str] | None:
    need = ladder.need_of(diagnosis, facts.kv_cache_bytes, facts.total_bytes, policy)
    if diagnosis.cause == "ray_oom_kill":
        return ladder.after_ray_kill(facts.settings, need, policy)
    if diagnosis.cause == "startup_free_memory_too_low":
        fitted = ladder.fit_free_memory(facts.settings, diagnosis, policy)
        return fitted or ladder.lower_utilization(facts.settings, need, policy.floors)
    if diagnosis.cause == "kv_cache_too_small":
        fitted = ladder.fit_context(facts.settings, diagnosis, policy)
        return fitted or ladder.raise_kv_share(facts.settings, need, policy.floors)
    return ladder.step_down(facts.settings, need, policy.floors)


def _undecided(diagnosis: Diagnosis, facts: Facts, policy: Policy, used: int) -> Remedy:
    if used < policy.unknown_unchanged:
        text = f"no evidence decides the cause: unchanged relaunch {used + 1} of {policy.unknown_unchanged}"
        return _relaunch(facts, policy, facts.settings, text)
    lowered = _one_step(diagnosis, facts, policy) if used == policy.unknown_unchanged else None
    if lowered is None:
        return _escalate(facts, diagnosis, f"{used} relaunches without a cause that evidence decides")
    return _relaunch(facts, policy, lowered[0], f"cause still unknown, one memory step: {lowered[1]}")


def _second_nccl(diagnosis: Diagnosis, facts: Facts, policy: Policy) -> Remedy:
    lowered = _one_step(diagnosis, facts, policy)
    if lowered is None:
        return _relaunch(facts, policy, facts.settings, f"{diagnosis.cause} again, memory at its floor")
    return _relaunch(facts, policy, lowered[0], f"{diagnosis.cause} again, one memory step: {lowered[1]}")


def _one_step(diagnosis: Diagnosis, facts: Facts, policy: Policy) -> tuple[Settings, str] | None:
    need = ladder.need_of(diagnosis, facts.kv_cache_bytes, facts.total_bytes, policy)
    return ladder.lower_kv(facts.settings, need, policy.floors)


def _relaunch(facts: Facts, policy: Policy, settings: Settings, explanation: str) -> Remedy:
    wait_s = backoff(facts.failures, policy)
    return Remedy(Action.RELAUNCH, settings, explanation, backoff_s=wait_s)


def _escalate(facts: Facts, diagnosis: Diagnosis, why: str) -> Remedy:
    needs = diagnosis.advice or cause_info(diagnosis.cause).advice or why
    return Remedy(Action.ESCALATE, facts.settings, why, needs=needs)
