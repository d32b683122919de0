"""From a diagnosis to what is changed and done, or a reasoned "nothing".

One rule a family of causes. The result always says why; budgets are per cause, so a flapping network does
not use up what a memory failure may need.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from sparkd.core import ladder
from sparkd.core.need import REFUSALS, Known, gib
from sparkd.core.policy import Policy
from sparkd.core.restart import Spent, backoff, spent_on
from sparkd.signals.causes import UNKNOWN, cause_info
from sparkd.signals.memory import is_exhausted
from sparkd.signals.model import Diagnosis
from sparkd.words import NO_SIZES, Settings, Sizes

MEMORY = (
    "ray_oom_kill",
    "kernel_oom",
    "cgroup_oom",
    "uma_host_exhaustion",
    "memory_guard_kill",
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
NCCL_STEP = "memory_step_for_nccl"
"""What is noted beside the causes of relaunches (`Facts.spent`) where an NCCL failure has taken its step."""
AT_THE_FLOOR = "every memory setting is at its floor"
NOT_THE_ENGINES = "no memory setting of the engine makes room in the node's own memory"
UNDECIDED = (UNKNOWN, "killed_unspecified", "engine_dead_unspecified")


PROVEN = 0.9
"""Confidence from which a cause is taken for proven: a mere suggestion must not end the trying. The judge
gives 0.95 to what is proven and at most 0.6 to what is suggested (`signals.judge`)."""


@dataclass(frozen=True, slots=True)
class NodeMemory:
    """What is known of one node's memory, bytes; None = unknown.

    Attributes: total_bytes; baseline_bytes before the launch; lowest_available_bytes since.
    """

    node: str
    total_bytes: int | None = None
    baseline_bytes: int | None = None
    lowest_available_bytes: int | None = None


class Action(StrEnum):
    """What follows a failed generation."""

    RELAUNCH = "relaunch"
    ESCALATE = "escalate"


@dataclass(frozen=True, slots=True)
class Facts:
    """What a remedy may use beside the diagnosis.

    `causes`: of the earlier failures of this incident; `nodes`: every node's memory, this one's first;
    the guilty one's counts.
    """

    settings: Settings
    failures: int
    spent: Spent
    kv_cache_bytes: int | None
    total_bytes: int | None
    causes: tuple[str, ...] = ()
    baseline_bytes: int | None = None
    lowest_available_bytes: int | None = None
    request_kv_bytes: int | None = None
    request_tokens: int | None = None
    weights_bytes: int | None = None
    loading_available_bytes: int | None = None
    failed: tuple[Settings, ...] = ()
    nodes: tuple[NodeMemory, ...] = ()
    sizes: Sizes = NO_SIZES


@dataclass(frozen=True, slots=True)
class Remedy:
    """What to change and do.

    `needs`: what only a person can do, when it escalates; `memory`: the failure counts as one of memory;
    `once`: the name of a step that is not taken again soon, empty = none.
    """

    action: Action
    settings: Settings
    explanation: str
    backoff_s: float = 0.0
    needs: str = ""
    memory: bool = False
    once: str = ""


def choose(diagnosis: Diagnosis, facts: Facts, policy: Policy, now: float) -> Remedy:
    """Return the remedy for *diagnosis* and its reason."""
    cause = diagnosis.cause
    facts = _comparable(_at(facts, diagnosis.node), diagnosis)
    used = _used(cause, facts, policy, now)
    if _held_by_others(diagnosis, facts, policy):
        return _wait_for_others(diagnosis, facts, policy, used)
    if cause in MEMORY:
        return _memory(diagnosis, facts, policy, used)
    permanent = cause_info(cause).permanent
    if cause in UNDECIDED or (permanent and diagnosis.confidence < PROVEN):
        return _undecided(diagnosis, facts, policy, used)
    if permanent:
        return _escalate(facts, diagnosis, f"{cause} does not go away by a restart")
    if used >= policy.transient_budget:
        text = _used_up(used, f"for {cause} did not help", "recovery.transient_budget")
        return _escalate(facts, diagnosis, text)
    if cause in NCCL and (why := _asks_for_a_step(cause, facts, policy, now)):
        return _nccl_step(diagnosis, facts, policy, why)
    passes = "can pass" if cause_info(cause).transient is not False else "rarely passes by itself"
    return _relaunch(facts, policy, facts.settings, f"{cause} {passes}: relaunch with unchanged settings")


def account_of(cause: str) -> str:
    """Return under which name the relaunches for *cause* are counted: its own, or that of all undecided ones.

    A permanent cause is relaunched only where it is a mere suggestion: then nothing is decided either.
    """
    if cause in MEMORY:
        return cause
    return UNKNOWN if cause in UNDECIDED or cause_info(cause).permanent else cause


def budget_of(account: str, policy: Policy) -> int:
    """Return how many relaunches an account allows; those for memory are bounded by the ladder alone."""
    return policy.unknown_unchanged + 1 if account == UNKNOWN else policy.transient_budget


def _used(cause: str, facts: Facts, policy: Policy, now: float) -> int:
    """Return how many relaunches the account of *cause* has cost.

    A start that takes longer than the window allows still may not be tried for ever.
    """
    account = account_of(cause)
    spent = tuple((account_of(name), at_s) for name, at_s in facts.spent)
    return max(spent_on(account, spent, policy, now), _accounts(facts.causes).count(account))


def _accounts(causes: tuple[str, ...]) -> list[str]:
    return [account_of(cause) for cause in causes]


def _memory(diagnosis: Diagnosis, facts: Facts, policy: Policy, used: int) -> Remedy:
    lowered = _one_step(diagnosis, facts, policy)
    if lowered is None and diagnosis.confidence < PROVEN and used < policy.unknown_unchanged:
        # A mere suggestion does not end the trying; nothing is known of these settings.
        return _undecided(diagnosis, facts, policy, used)
    if lowered is None:
        return _at_the_floor(diagnosis, facts, policy)
    return replace(_relaunch(facts, policy, *lowered), memory=True)


def _held_by_others(diagnosis: Diagnosis, facts: Facts, policy: Policy) -> bool:
    """Whether so little was free at the start that no allowed share could hold the model: it is not ours."""
    free, total = diagnosis.quantity("free_bytes"), diagnosis.quantity("total_bytes")
    if diagnosis.cause != "startup_free_memory_too_low" or free is None or not total:
        return False
    floors = policy.floors
    least = max(floors.gpu_memory_utilization * total, (facts.weights_bytes or 0) + floors.kv_cache_bytes)
    return free < least


def _wait_for_others(diagnosis: Diagnosis, facts: Facts, policy: Policy, used: int) -> Remedy:
    """No setting helps, but what holds the memory may end: tried again unchanged, within a budget."""
    free = gib(diagnosis.quantity("free_bytes") or 0)
    if used < policy.transient_budget:
        text = f"only {free} were free, less than any allowed share: something else holds the memory"
        return _relaunch(facts, policy, facts.settings, f"{text}; tried again unchanged")
    where = diagnosis.node or "the node"
    needs = f"end what holds the memory of {where} (only {free} were free)"
    why = _used_up(used, "found no more memory", "recovery.transient_budget")
    return Remedy(Action.ESCALATE, facts.settings, why, needs=needs)


def _used_up(used: int, what_came: str, key: str) -> str:
    """Return why nothing is tried again; who allows no relaunch has not seen one fail."""
    if not used:
        return f"no relaunch is allowed ({key} = 0)"
    return f"{used} relaunch{'es' if used > 1 else ''} {what_came}"


def _at(facts: Facts, node: str | None) -> Facts:
    """Return the facts with the memory of the guilty node; where nobody is known, of the emptiest.

    What a guilty node does not tell is unknown: no other node's reading stands in for it.
    """
    if not facts.nodes:
        return facts
    known = [n for n in facts.nodes if n.lowest_available_bytes is not None and node in {None, n.node}]
    unknown = NodeMemory(node or "")
    emptiest = min(known, key=lambda n: (n.lowest_available_bytes or 0, n.node), default=unknown)
    return replace(
        facts,
        total_bytes=emptiest.total_bytes or facts.total_bytes,
        baseline_bytes=emptiest.baseline_bytes,
        loading_available_bytes=_when_loading(facts, emptiest),
        lowest_available_bytes=emptiest.lowest_available_bytes,
    )


def _when_loading(facts: Facts, there: NodeMemory) -> int | None:
    """Return what was available on a node when the load began: known of this one, projected for another.

    What a rank takes before it loads (Ray, its processes, a CUDA context) is alike on all nodes; what the
    node held before is its own.
    """
    here, began = facts.nodes[0], facts.loading_available_bytes
    if here.node == there.node or began is None:
        return began
    if here.baseline_bytes is None or there.baseline_bytes is None:
        return None
    return there.baseline_bytes - (here.baseline_bytes - began)


SAME_MEMORY_SHARE = 0.1
"""Ray and the kernel count a node's memory a little differently (Ray's "GB" are GiB, 7 %: design section 6);
a limit or a device is something else."""


def _comparable(facts: Facts, diagnosis: Diagnosis) -> Facts:
    """Return the facts without the node's readings where the diagnosis speaks of another memory's size.

    A container's limit or a GPU of its own is not what was measured on the node.
    """
    total = diagnosis.quantity("total_bytes")
    if not total or not facts.total_bytes or abs(total - facts.total_bytes) <= SAME_MEMORY_SHARE * total:
        return facts
    return replace(
        facts,
        total_bytes=int(total),
        baseline_bytes=None,
        loading_available_bytes=None,
        lowest_available_bytes=None,
    )


def _at_the_floor(diagnosis: Diagnosis, facts: Facts, policy: Policy) -> Remedy:
    needs = diagnosis.advice or cause_info(diagnosis.cause).advice or ladder.end_of(diagnosis, policy)
    why = AT_THE_FLOOR if ladder.reaches(diagnosis, policy) else NOT_THE_ENGINES
    return Remedy(Action.ESCALATE, facts.settings, why, needs=needs, memory=True)


def _known(diagnosis: Diagnosis, facts: Facts, policy: Policy) -> Known:
    return Known(
        settings=facts.settings,
        kv_cache_bytes=facts.kv_cache_bytes,
        request_kv_bytes=facts.request_kv_bytes,
        request_tokens=facts.request_tokens,
        weights_bytes=facts.weights_bytes,
        loading_available_bytes=facts.loading_available_bytes,
        total_bytes=facts.total_bytes,
        baseline_bytes=facts.baseline_bytes,
        lowest_available_bytes=facts.lowest_available_bytes,
        sizes=facts.sizes,
        repeats=_too_much(diagnosis, facts, policy),
        refusals=facts.causes.count("kv_cache_too_small"),
    )


def _too_much(diagnosis: Diagnosis, facts: Facts, policy: Policy) -> int:
    """Return how often settings of the ladder's own were too much: kills after its first step.

    A refusal does not say that they were.
    """
    causes = (*facts.causes, diagnosis.cause)
    kills = set(MEMORY) - set(REFUSALS)
    first = next((i for i, cause in enumerate(causes) if _takes_a_step(cause, causes[:i], policy)), None)
    return 0 if first is None else sum(1 for cause in causes[first + 1 :] if cause in kills)


def _takes_a_step(cause: str, before: tuple[str, ...], policy: Policy) -> bool:
    """Whether a failure after those *before* changed the memory settings: others can pass unchanged."""
    if account_of(cause) == UNKNOWN:
        return _accounts(before).count(UNKNOWN) >= policy.unknown_unchanged
    return cause in MEMORY or (cause in NCCL and sum(name in NCCL for name in before) == 1)


def _undecided(diagnosis: Diagnosis, facts: Facts, policy: Policy, used: int) -> Remedy:
    if used < policy.unknown_unchanged:
        text = f"no evidence decides the cause: unchanged relaunch {used + 1} of {policy.unknown_unchanged}"
        return _relaunch(facts, policy, facts.settings, text)
    lowered = _one_step(diagnosis, facts, policy) if used == policy.unknown_unchanged else None
    if lowered is None:
        why = _used_up(used, "without a cause that evidence decides", "recovery.unknown_unchanged")
        return _escalate(facts, diagnosis, why)
    return _relaunch(facts, policy, lowered[0], f"cause still unknown, one memory step: {lowered[1]}")


def _asks_for_a_step(cause: str, facts: Facts, policy: Policy, now: float) -> str:
    """Return why an NCCL failure is answered with a step in memory, empty = it is not.

    The network's failures have many names and one cause: one step in all, when they come a second time, or at
    once where the node was as empty as a kill leaves it.
    """
    if spent_on(NCCL_STEP, facts.spent, policy, now):
        return ""
    recent = sum(spent_on(name, facts.spent, policy, now) for name in NCCL)
    if max(recent, sum(name in NCCL for name in facts.causes)) == 1:
        return f"{cause} again"
    lowest = facts.lowest_available_bytes
    if not is_exhausted(lowest, facts.total_bytes, policy.guard_floor_bytes):
        return ""
    return f"{cause} with only {gib(lowest or 0)} available on the node"


def _nccl_step(diagnosis: Diagnosis, facts: Facts, policy: Policy, why: str) -> Remedy:
    lowered = _one_step(diagnosis, facts, policy)
    if lowered is None:
        return _relaunch(facts, policy, facts.settings, f"{why}, memory at its floor")
    stepped = _relaunch(facts, policy, lowered[0], f"{why}, one memory step: {lowered[1]}")
    return replace(stepped, once=NCCL_STEP)


def _one_step(diagnosis: Diagnosis, facts: Facts, policy: Policy) -> tuple[Settings, str] | None:
    return ladder.step_down(diagnosis, _known(diagnosis, facts, policy), policy, facts.failed)


def _relaunch(facts: Facts, policy: Policy, settings: Settings, explanation: str) -> Remedy:
    wait_s = backoff(facts.failures, policy)
    return Remedy(Action.RELAUNCH, settings, explanation, backoff_s=wait_s)


def _escalate(facts: Facts, diagnosis: Diagnosis, why: str) -> Remedy:
    advice = diagnosis.advice or cause_info(diagnosis.cause).advice
    needs = (
        advice
        or f"find what is behind {diagnosis.cause} (sparkctl incidents show: the proof, what was tried)"
    )
    return Remedy(Action.ESCALATE, facts.settings, why, needs=needs)
