"""From the evidence of a memory failure to the next settings: which setting, and by how much.

The cause and phase pick the setting, the evidence picks the amount (`core.need`), the least harmful comes
first, and one relaunch should be enough: settings that together free the amount are changed together. The
table for people is docs/ladder.md; a test holds the two together.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from sparkd.core import rungs
from sparkd.core.need import Known, Need, gib, need_of
from sparkd.core.policy import Policy
from sparkd.core.room import fit_free_memory, foresee, make_room, spend
from sparkd.core.rungs import Draft, Step
from sparkd.core.spikes import LEAST_REST_BYTES
from sparkd.signals.model import Diagnosis
from sparkd.words import GIB, Backend, Floors, LoadFormat, Phase, Settings

HOST_CAUSES = (
    "ray_oom_kill",
    "kernel_oom",
    "cgroup_oom",
    "uma_host_exhaustion",
    "memory_guard_kill",
    "host_memory_pressure",
)
"""The node's memory ran out; on a discrete GPU that is not the memory of the KV cache."""

LEAST_BYTES = GIB // 2
"""A step frees at least this: below it lies the difference from start to start. Where the cause is not one
of memory (a second NCCL failure, unknown) nothing measures the amount: then what typically still comes."""

KV_LOSS_MAX = 0.25
"""Above this share of the KV cache, smaller steps and fewer graphs cost users less than the cache (reasoned:
a quarter of the concurrency against a slower prefill; `make bench-policy` shows what is kept)."""

HALVINGS_LEAST = 2
"""Of the tokens of a step after a kill while profiling: the peak was still rising, and how far is not
known."""

LARGER_STEPS = 4
"""So often a larger step is looked for when the settings found have failed before: a bound, each one takes as
much more as another failure would."""

Rule = Callable[[Settings, Need, Diagnosis, Floors], Step]


def step_down(diagnosis: Diagnosis, known: Known, policy: Policy, failed: tuple[Settings, ...] = ()) -> Step:
    """Return the next settings and their explanation, None where the ladder ends.

    Settings in *failed* are not tried again: where the rules lead to them, a larger step is taken.
    """
    for more in range(LARGER_STEPS):
        found = _step(diagnosis, replace(known, repeats=known.repeats + more), policy)
        if found is None:
            return None
        if found[0] != known.settings and found[0] not in failed:
            return found
    return None


def _step(diagnosis: Diagnosis, known: Known, policy: Policy) -> Step:
    settings, said = known.settings, ""
    need = need_of(diagnosis, known, settings, policy)
    if _monitor_in_the_way(diagnosis, need, policy):
        settings, said = rungs.loosen_monitor(settings, policy)
        need = need_of(diagnosis, known, settings, policy)
    lowered = rule_for(diagnosis, policy)(settings, need, diagnosis, policy.floors)
    if lowered is None:
        return (settings, said) if said and diagnosis.cause == "ray_oom_kill" else None
    return lowered[0], " · ".join(filter(None, (said, lowered[1])))


def _monitor_in_the_way(diagnosis: Diagnosis, need: Need, policy: Policy) -> bool:
    """It killed, or its threshold would keep the next start below what the node has."""
    if policy.backend is not Backend.RAY:
        return False
    if diagnosis.cause == "startup_free_memory_too_low":
        return policy.unified_memory
    if diagnosis.cause == "kv_cache_too_small":
        return policy.unified_memory and need.free_bytes > 0
    return diagnosis.cause == "ray_oom_kill"


def rule_for(diagnosis: Diagnosis, policy: Policy) -> Rule:
    """Return the rule for a cause in a phase."""
    if diagnosis.cause in CAUSES:
        return CAUSES[diagnosis.cause]
    if not reaches(diagnosis, policy):
        return spare_the_host
    return PHASES.get(diagnosis.phase, free_bytes)


def load_lightly(settings: Settings, need: Need, _diagnosis: Diagnosis, floors: Floors) -> Step:
    """While loading only weights and page cache count: read lazily, and fit the share for what comes."""
    draft = Draft(settings).try_(rungs.lazy_load, need, floors).try_(rungs.fit_share, need, floors)
    draft = draft.try_(rungs.fit_pin, need, floors)
    if not draft.said or (settings.load_format is LoadFormat.LAZY and _at_its_end(settings, need)):
        return None
    return foresee(draft, need, floors).step


def _at_its_end(settings: Settings, need: Need) -> bool:
    """Whether another kill shows that the share is not what counts: what it sizes comes later than this."""
    return need.known.repeats > 0 and settings == need.known.settings


def shrink_steps(settings: Settings, need: Need, _diagnosis: Diagnosis, floors: Floors) -> Step:
    """The activation peak of the profiling run: halve the tokens of a step until it fits."""
    draft, before = Draft(settings), None
    while draft is not before and not _small_enough(len(draft.said), need):
        before, draft = draft, draft.try_(rungs.lower_batched_tokens, need, floors)
    if not draft.said:
        draft = draft.try_(rungs.lower_graphs, need, floors)
    if not draft.said and _at_its_end(settings, need):
        return None
    draft = draft.try_(rungs.fit_share, need, floors).try_(rungs.fit_pin, need, floors)
    return foresee(draft, need, floors).step if draft.said else None


def _small_enough(halvings: int, need: Need) -> bool:
    if need.step_share is None or not halvings:
        return halvings >= HALVINGS_LEAST
    return rungs.STEP_FIXED + (1 - rungs.STEP_FIXED) * 0.5**halvings <= need.step_share


def free_bytes(settings: Settings, need: Need, diagnosis: Diagnosis, floors: Floors) -> Step:
    """From the KV cache on: the cache pays, unless that costs more than smaller steps and fewer graphs."""
    measured = diagnosis.cause in (*HOST_CAUSES, "cuda_oom")
    least = LEAST_BYTES if measured else need.rest_bytes
    typical = need.free_bytes <= least
    need = replace(need, free_bytes=max(need.free_bytes, least))
    draft = Draft(settings, need.free_bytes)
    if need.known.cache_bytes is None:
        draft = draft.try_(rungs.lower_utilization, need, floors)
        draft = draft if draft.said else draft.try_(rungs.lower_batched_tokens, need, floors)
        return draft.step if typical else _explained(draft, need)
    if _too_dear(draft, need, floors):
        draft = _beside_the_cache(replace(draft, settings=rungs.pin_kv(settings, need)), need, floors)
    draft = _from_the_cache(draft, need, floors)
    return draft.step if typical else _explained(draft, need)


def _too_dear(draft: Draft, need: Need, floors: Floors) -> bool:
    cache = need.known.cache_bytes or 0
    least = max(floors.kv_cache_bytes, int(1.02 * (need.known.request_kv_bytes or 0)))
    return draft.left_bytes > KV_LOSS_MAX * cache or cache - draft.left_bytes < least


def _beside_the_cache(draft: Draft, need: Need, floors: Floors) -> Draft:
    """Smaller steps, then fewer graphs, until the cache can pay the rest."""
    for rung in (rungs.halve_above_default, rungs.fewer_graphs):
        before = None
        while draft is not before and _too_dear(draft, need, floors):
            before, draft = draft, draft.try_(rung, need, floors)
    return draft


def _from_the_cache(draft: Draft, need: Need, floors: Floors) -> Draft:
    """Let the cache pay, the context with it below what one request needs, and at the floor the rest."""
    if draft.left_bytes <= 0:
        return draft
    known = need.known
    cache = known.cache_bytes or 0
    draft = draft.take(rungs.lower_kv(draft.settings, replace(need, free_bytes=draft.left_bytes), floors))
    left, one, tokens = draft.settings.kv_cache_bytes or cache, known.request_kv_bytes, known.request_tokens
    if one and tokens and left < one:
        draft = draft.take(rungs.fit_context(draft.settings, tokens * left / one / 1.02, floors))
    unpaid = replace(draft, left_bytes=draft.left_bytes - (cache - left))
    return spend(unpaid, need, floors, (rungs.lower_batched_tokens, rungs.lower_graphs))


def _explained(draft: Draft, need: Need) -> Step:
    """The step with the reason of its amount, where one was measured or projected."""
    if draft.step is None:
        return None
    why = _why(need)
    return draft.settings, f"{draft.step[1]} ({why})" if why else draft.step[1]


def _why(need: Need) -> str:
    """Return the amount as a sum: what is to be expected with what is added to be sure, and the limit."""
    aim, peak = gib(need.aim_bytes), need.free_bytes + need.aim_bytes
    if need.read_bytes is not None and (need.projected_bytes or 0) <= need.read_bytes + LEAST_REST_BYTES:
        read, more = gib(need.read_bytes), gib(peak - need.read_bytes)
        return f"{read} were in use, {more} more are to be expected, {aim} should be used"
    if need.projected_bytes is not None:
        held = "from what the node held before and what the engine takes"
        return f"{gib(peak)} are to be expected {held}, {aim} should be used"
    return ""


def spare_the_host(settings: Settings, need: Need, _diagnosis: Diagnosis, floors: Floors) -> Step:
    """The node's own memory ran out and the GPU has its own: only how weights are read can help."""
    return rungs.lazy_load(settings, need, floors)


CAUSES: dict[str, Rule] = {
    "startup_free_memory_too_low": fit_free_memory,
    "kv_cache_too_small": make_room,
}
PHASES: dict[Phase | None, Rule] = {
    Phase.LOADING_WEIGHTS: load_lightly,
    Phase.COMPILING: shrink_steps,
    Phase.PROFILING: shrink_steps,
}


def reaches(diagnosis: Diagnosis, policy: Policy) -> bool:
    """Whether the engine's settings bound the memory that ran out: no host's beside a GPU with its own."""
    return policy.unified_memory or diagnosis.cause not in HOST_CAUSES


def end_of(diagnosis: Diagnosis, policy: Policy) -> str:
    """Return what only a person can do where the ladder ends."""
    if not reaches(diagnosis, policy):
        return "The node's own memory is short, not the GPU's: stop other programs there, or give it more."
    if diagnosis.cause == "kv_cache_too_small":
        return (
            "The weights leave no room for the KV cache: raise settings.gpu_memory_utilization, or use a "
            "smaller or more quantised model, or more nodes."
        )
    if diagnosis.phase is Phase.LOADING_WEIGHTS:
        return "The weights do not fit beside what the node holds: a smaller model or more nodes are needed."
    return "Lower the floors, free memory on the node, or use a smaller model or more nodes."
