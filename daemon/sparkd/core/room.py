"""What vLLM refuses by itself: too little free memory at the start, a KV cache too small for one request.

No process was killed and the numbers are in the refusal, so the amount is known; what is not known is
whether the node has room for what comes after the refusal. Both are looked at in one step, or a second load
is lost.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from sparkd.core import rungs
from sparkd.core.need import Need, gib
from sparkd.core.policy import Floors
from sparkd.core.rungs import Draft, Step
from sparkd.core.spikes import BESIDE_WEIGHTS_BYTES, NOISE_BYTES, transient_bytes
from sparkd.signals.model import Diagnosis
from sparkd.words import Settings

CARE = 1.25
"""What is foreseen of a step and the graphs is typical; a start that is refused for a little costs a whole
load."""

REFUSALS_MAX = 3
"""So many times within one incident no KV cache was large enough: no setting makes the room."""

_GENTLE = (rungs.halve_above_default, rungs.halve_above_default, rungs.to_piecewise)


def fit_free_memory(settings: Settings, need: Need, diagnosis: Diagnosis, floors: Floors) -> Step:
    """Ask for no more than was free at the start, and than leaves room for what comes beside the share."""
    free, total = diagnosis.quantity("free_bytes"), diagnosis.quantity("total_bytes")
    if not free or not total:
        return rungs.lower_utilization(settings, need, floors)
    shares = [(free - NOISE_BYTES) / total]
    if need.share_bytes is not None:
        shares.append(need.share_bytes / total)
    step = rungs.lower_share_to(settings, min(shares), floors)
    if step is None:
        return None
    draft = Draft(step[0], said=(f"{step[1]}: {gib(free)} were free",))
    if settings.kv_cache_bytes is not None and need.known.weights_bytes is not None and need.free_bytes > 0:
        draft = draft.take(rungs.lower_kv(draft.settings, need, floors))
    return foresee(draft, need, floors).step


def foresee(draft: Draft, need: Need, floors: Floors) -> Draft:
    """Where weights and request are known, see the next refusal coming: too small a KV cache."""
    one, tokens = need.known.request_kv_bytes, need.known.request_tokens
    if need.known.weights_bytes is None or not one or not tokens or draft.settings.kv_cache_bytes is not None:
        return draft
    for rung in _GENTLE:
        if _foreseen_kv(draft.settings, need) < one:
            draft = draft.try_(rung, need, floors)
    share = _foreseen_kv(draft.settings, need) / one
    return draft if share >= 1 else draft.take(rungs.fit_context(draft.settings, tokens * share, floors))


def _foreseen_kv(settings: Settings, need: Need) -> int:
    """Return the KV cache that vLLM will make of its share, on the careful side."""
    share = int(settings.gpu_memory_utilization * need.total_bytes)
    beside = BESIDE_WEIGHTS_BYTES + int(CARE * transient_bytes(settings)) + 2 * NOISE_BYTES
    return share - (need.known.weights_bytes or 0) - beside


PINNED_NOISE_BYTES = 1 << 26
"""A cache of a fixed size is the same at every start, but for its rounding to blocks."""


@dataclass(frozen=True, slots=True)
class _Room:
    """What a KV cache is wanted for, and what there is; `taken`: what the next start should leave of it."""

    wanted: float
    available: float
    tokens: float
    taken: float = 0.0


def make_room(settings: Settings, need: Need, diagnosis: Diagnosis, floors: Floors) -> Step:
    """A KV cache too small for one request: gentle steps where they suffice, else less context."""
    if need.known.refusals >= REFUSALS_MAX:
        return None
    available = diagnosis.quantity("available_bytes")
    if available is None:
        available = diagnosis.quantity("kv_cache_bytes")
    wanted = diagnosis.quantity("needed_bytes")
    if wanted is None:
        wanted = float(max(floors.kv_cache_bytes, need.known.request_kv_bytes or 0))
    room = _Room(wanted, available or 0.0, diagnosis.quantity("estimated_tokens") or 0.0)
    careful = _room_within(settings, replace(room, taken=need.free_bytes), need, floors)
    return careful or _room_within(settings, room, replace(need, share_bytes=None), floors)


def _room_within(settings: Settings, room: _Room, need: Need, floors: Floors) -> Step:
    pinned = settings.kv_cache_bytes is not None
    noise = PINNED_NOISE_BYTES if pinned else NOISE_BYTES * (1 + need.known.repeats)
    left = room.available - room.taken
    start = Draft(settings, int(room.wanted - left) + noise).take(rungs.fit_share(settings, need, floors))
    if settings.kv_cache_bytes is not None and room.taken > 0:
        start = start.take(rungs.lower_kv(start.settings, need, floors))
    gentle = start
    for rung in _GENTLE if settings.kv_cache_bytes is None else ():
        gentle = gentle.try_(rung, need, floors) if gentle.left_bytes > 0 else gentle
    if gentle.left_bytes <= 0:
        return gentle.step
    if room.tokens and left > noise:
        tokens = room.tokens * (left - noise) / room.available
        fits = rungs.fit_context(start.settings, tokens, floors)
        if fits is not None:
            return start.take(fits).step
    return _all_that_helps(start, need, floors)


def _all_that_helps(start: Draft, need: Need, floors: Floors) -> Step:
    """Steps and graphs as far as they go, then the context, then what an earlier step took too much."""
    draft, known = start, need.known
    if start.settings.kv_cache_bytes is None:
        draft = spend(start, need, floors, (rungs.lower_batched_tokens, rungs.lower_graphs))
    if draft.left_bytes > 0 and known.request_tokens and known.request_kv_bytes:
        share = 1 - draft.left_bytes / known.request_kv_bytes
        draft = draft.take(rungs.fit_context(draft.settings, known.request_tokens * share, floors))
    if draft.left_bytes > 0 and need.share_bytes is None and known.refusals <= 1:
        more = replace(need, free_bytes=draft.left_bytes)
        draft = draft.take(rungs.give_back_share(draft.settings, more, floors))
    return draft.step if len(draft.said) > len(start.said) else None


def spend(draft: Draft, need: Need, floors: Floors, order: tuple[rungs.Rung, ...]) -> Draft:
    """Go down one rung after the other, each to its end, until the amount is freed."""
    for rung in order:
        before = None
        while draft.left_bytes > 0 and draft is not before:
            before, draft = draft, draft.try_(rung, need, floors)
    return draft
