"""What vLLM refuses by itself: too little free memory at the start, a KV cache too small for one request.

No process was killed and the numbers are in the refusal, so the amount is known; what is not known is
whether the node has room for what comes after the refusal. Both are looked at in one step, or a second load
is lost.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from sparkd.core import rungs
from sparkd.core.need import Need, gib
from sparkd.core.rungs import Draft, Step
from sparkd.core.spikes import BESIDE_WEIGHTS_BYTES, NOISE_BYTES, transient_bytes
from sparkd.signals.model import Diagnosis
from sparkd.words import GIB, Floors, Settings

CARE = 1.25
"""What is foreseen of a step and the graphs is typical; a start that is refused for a little costs a whole
load, a quarter more of two or three GiB costs a few requests at once."""

REQUEST_BYTES = 4 * GIB
"""A request of full length whose KV cache nobody knows: 32768 tokens of 128 KiB (Llama 3 8B: keys
and values of 32 layers, 8 heads of 128, 2 bytes)."""

NOISE_MAX_BYTES = int(0.9 * GIB)
"""The whole range of what was free over fresh boots (`NOISE_BYTES`): so far one start is from another."""

NOISE_SHARE = 0.1
"""That much of the cache may go for certainty beyond `NOISE_BYTES`."""

REFUSALS_MAX = 3
"""So many times within one incident no KV cache was large enough: no setting makes the room. One step gives a
share back, one shortens the context; a third refusal says that neither was it."""

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
    draft = draft.try_(rungs.fit_pin, need, floors).try_(rungs.unpin, need, floors)
    return foresee(draft, need, floors).step


def foresee(draft: Draft, need: Need, floors: Floors) -> Draft:
    """Where the weights are known, see the next refusal coming: too small a KV cache.

    A cache that is foreseen below the floor is refused however short the context: then smaller steps and
    fewer graphs go to their ends, and where that is not enough the cache is pinned at the floor: that it will
    not fit is a guess, the refusal is not.
    """
    pinned = draft.settings.kv_cache_bytes
    if pinned is not None:
        return _fit_pinned(draft, pinned, need, floors)
    if need.weights_bytes is None or not need.total_bytes:
        return draft
    one = need.known.request_kv_bytes or REQUEST_BYTES
    for rung in _GENTLE:
        if _foreseen_kv(draft.settings, need) < one:
            draft = draft.try_(rung, need, floors)
    if not need.known.request_kv_bytes or not need.known.request_tokens:
        return draft
    draft = _above_the_floor(draft, need, floors)
    if draft.settings.kv_cache_bytes is not None:
        return _fit_pinned(draft, draft.settings.kv_cache_bytes, need, floors)
    share = _foreseen_kv(draft.settings, need) / one
    if share >= 1:
        return draft
    return draft.take(rungs.fit_context(draft.settings, need.known.request_tokens * share, floors))


def _above_the_floor(draft: Draft, need: Need, floors: Floors) -> Draft:
    """Do what it takes that the smallest cache that serves within the floors is there."""
    one, tokens = need.known.request_kv_bytes or REQUEST_BYTES, need.known.request_tokens or 1
    shortest = one * min(tokens, floors.max_model_len) // tokens
    smallest = max(floors.kv_cache_bytes, int(1.05 * shortest) + PINNED_NOISE_BYTES)
    least = min(smallest, one)
    for rung in (rungs.lower_batched_tokens, rungs.lower_graphs):
        before = None
        while draft is not before and _foreseen_kv(draft.settings, need) < least:
            before, draft = draft, draft.try_(rung, need, floors)
    if _foreseen_kv(draft.settings, need) >= least:
        return draft
    typical = _foreseen_kv(draft.settings, need, care=1.0, noise=0)
    return draft.take(rungs.pin_at(draft.settings, max(smallest, typical)))


def _fit_pinned(draft: Draft, pinned: int, need: Need, floors: Floors) -> Draft:
    """A cache of a fixed size is as large as it is: the context goes with it."""
    one, tokens = need.known.request_kv_bytes, need.known.request_tokens
    share = (pinned - PINNED_NOISE_BYTES) / one if one else 1.0
    if share >= 1 or not tokens:
        return draft
    return draft.take(rungs.fit_context(draft.settings, tokens * share / 1.02, floors))


def _foreseen_kv(settings: Settings, need: Need, care: float = CARE, noise: int = 2 * NOISE_BYTES) -> int:
    """Return the KV cache that vLLM will make of its share, on the careful side."""
    share = int(settings.gpu_memory_utilization * need.total_bytes)
    step = int(care * transient_bytes(settings)) + rungs.step_beyond(settings, need)
    beside = BESIDE_WEIGHTS_BYTES + step + noise
    return share - (need.weights_bytes or 0) - beside


def _noise(cache_bytes: float) -> int:
    """Return how much smaller the cache may be next time: of a large one certainty costs little."""
    return int(max(NOISE_BYTES, min(NOISE_MAX_BYTES, NOISE_SHARE * cache_bytes)))


PINNED_NOISE_BYTES = 1 << 26
"""A cache of a fixed size is the same at every start, but for its rounding to blocks: 64 MiB is more than a
block of 16 tokens in any of the models that were read."""


@dataclass(frozen=True, slots=True)
class _Room:
    """What a KV cache is wanted for, and what there is; `taken`: what the next start should leave of it.

    `tokens`: what the engine says that fits; `token_bytes`: what one of them needs, 0 = unknown.
    """

    wanted: float
    available: float
    tokens: float
    token_bytes: float = 0.0
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
    room = _Room(
        wanted, available or 0.0, diagnosis.quantity("estimated_tokens") or 0.0, _token_bytes(diagnosis, need)
    )
    careful = _room_within(settings, replace(room, taken=need.free_bytes), need, floors)
    if careful is not None and careful.left_bytes <= 0:
        return careful.step
    bold = _room_within(settings, room, replace(need, share_bytes=None), floors)
    better = bold if careful is None or (bold is not None and bold.left_bytes <= 0) else careful
    return better.step if better is not None else None


def _token_bytes(diagnosis: Diagnosis, need: Need) -> float:
    """Return the KV cache that one token needs, as the refusal or an earlier start said; 0 = unknown."""
    wanted, tokens = diagnosis.quantity("needed_bytes"), diagnosis.quantity("wanted_tokens")
    if wanted is None or not tokens:
        wanted, tokens = need.known.request_kv_bytes, need.known.request_tokens
    return wanted / tokens if wanted and tokens else 0.0


def _room_within(settings: Settings, room: _Room, need: Need, floors: Floors) -> Draft | None:
    """Return what makes the room, with what is still missing; None where nothing helps."""
    pinned = settings.kv_cache_bytes is not None
    noise = PINNED_NOISE_BYTES if pinned else _noise(room.available) * (1 + need.known.repeats)
    left = room.available - room.taken
    start = Draft(settings, int(room.wanted - left) + noise).take(rungs.fit_share(settings, need, floors))
    if settings.kv_cache_bytes is not None and room.taken > 0:
        start = start.take(rungs.lower_kv(start.settings, need, floors))
    gentle = start
    for rung in _GENTLE if settings.kv_cache_bytes is None else ():
        gentle = gentle.try_(rung, need, floors) if gentle.left_bytes > 0 else gentle
    if gentle.left_bytes <= 0:
        return gentle if gentle.said else None
    if room.tokens and left > noise:
        tokens = room.tokens * (left - noise) / room.available
        fits = rungs.fit_context(start.settings, tokens, floors)
        if fits is not None:
            return start.take(fits, start.left_bytes)
    return _all_that_helps(start, room, need, floors)


def _all_that_helps(start: Draft, room: _Room, need: Need, floors: Floors) -> Draft | None:
    """What the node has room for, steps and graphs to their ends, the context, then half of the way back."""
    draft, known = _given_back(start, room, need, floors), need.known
    if start.settings.kv_cache_bytes is None:
        draft = spend(draft, need, floors, (rungs.lower_batched_tokens, rungs.lower_graphs))
    if draft.left_bytes > 0 and room.token_bytes:
        fits = rungs.fit_context(draft.settings, (room.wanted - draft.left_bytes) / room.token_bytes, floors)
        draft = draft.take(fits, draft.left_bytes if fits is not None else 0)
    if draft.left_bytes > 0 and need.share_bytes is None and known.refusals <= 1:
        more = replace(need, free_bytes=draft.left_bytes)
        draft = draft.take(rungs.give_back_share(draft.settings, more, floors))
    return draft if len(draft.said) > len(start.said) else None


def _given_back(draft: Draft, room: _Room, need: Need, floors: Floors) -> Draft:
    """Give back of vLLM's share what the node has room for: what took it, another program's, may be gone."""
    if need.share_bytes is None:
        return draft
    unsaid = max(0, (need.known.request_kv_bytes or REQUEST_BYTES) - int(room.wanted))
    missing = replace(need, free_bytes=draft.left_bytes + unsaid)
    found = rungs.give_back_share(draft.settings, missing, floors)
    if found is None:
        return draft
    more = found[0].gpu_memory_utilization - draft.settings.gpu_memory_utilization
    return draft.take(found, int(more * need.total_bytes))


def spend(draft: Draft, need: Need, floors: Floors, order: tuple[rungs.Rung, ...]) -> Draft:
    """Go down one rung after the other, each to its end, until the amount is freed."""
    for rung in order:
        before = None
        while draft.left_bytes > 0 and draft is not before:
            before, draft = draft, draft.try_(rung, need, floors)
    return draft
