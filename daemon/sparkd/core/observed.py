"""What is observed of the running generation: its phase, Ray's table, its health, its answers.

Observations of a generation that is over change nothing.
"""

from __future__ import annotations

from dataclasses import replace

from sparkd.core import events as ev
from sparkd.core import watch
from sparkd.core.state import Watch
from sparkd.core.turn import Concern, Turn
from sparkd.words import ENGINE, EngineMemory, Phase


def phase_seen(turn: Turn, event: ev.PhaseSeen) -> None:
    """Take a phase, or progress within it."""
    seen = _watch_of(turn, event.generation)
    if seen is None:
        return
    known = seen.progress
    phase = event.phase if event.phase is not None else (known.phase if known else None)
    # Progress belongs to the phase that shows it: the shards of a load say nothing of a capture.
    shown = event if event.done is not None or event.phase is not None else known
    progress = shown if shown is None or shown.phase is phase else replace(shown, phase=phase)
    changes = {
        "silences": _with_silence(turn, seen),
        "progress": progress,
        "progress_at_s": turn.now,
        "said": _said(event, seen.said),
        "loading_available_bytes": _loading(turn, event, seen),
        "rate_tok_s": seen.rate_tok_s if event.rate_tok_s is None else event.rate_tok_s,
    }
    same = (
        known is not None
        and known.phase is phase
        and bool(known.done) == bool(progress and progress.done)
        and changes["said"] == seen.said  # which is kept
    )
    turn.change_watch(changes, news=not same)


REQUESTS_LEAST = 1e-6
"""So much of a request in the cache is no measure of a request."""


def _said(event: ev.PhaseSeen, said: EngineMemory) -> EngineMemory:
    """Return what the engine has said of its memory with what the event adds."""
    kv_cache, request = event.kv_cache_bytes or said.kv_cache_bytes, said.request_kv_bytes
    if kv_cache and event.requests and event.requests > REQUESTS_LEAST:
        request = int(kv_cache / event.requests)
    return EngineMemory(
        kv_cache_bytes=kv_cache,
        weights_bytes=event.weights_bytes or said.weights_bytes,
        request_tokens=event.request_tokens or said.request_tokens,
        request_kv_bytes=request,
        sizes=said.sizes.with_news(event.sizes),
    )


def _loading(turn: Turn, event: ev.PhaseSeen, seen: Watch) -> int | None:
    """Return this node's memory when the load began."""
    sample = turn.member.memory
    if seen.loading_available_bytes is None and event.phase is Phase.LOADING_WEIGHTS and sample is not None:
        return sample.available_bytes
    return seen.loading_available_bytes


def _with_silence(turn: Turn, seen: Watch) -> tuple[tuple[Phase, float], ...]:
    """Return the longest silences, with the one that ends now."""
    phase = turn.lead.phase
    if phase not in ENGINE:
        return seen.silences
    silence_s = turn.now - max(turn.lead.phase_since_s, seen.progress_at_s)
    longest = dict(seen.silences)
    longest[phase] = max(longest.get(phase, 0.0), silence_s)
    return tuple(longest.items())


def _watch_of(turn: Turn, generation: int) -> Watch | None:
    """Return the observations of the running generation where the event is about it."""
    if turn.state.coordinator is None or generation != turn.lead.generation:
        return None
    return turn.lead.watch


def membership(turn: Turn, event: ev.MembershipObserved) -> None:
    """Take Ray's table; what did not answer leaves the last one standing."""
    before = _watch_of(turn, event.generation)
    if before is None:
        return
    turn.wake_for(Concern.PROBE, watch.next_membership_s(turn))
    if event.nodes is None:
        turn.set_watch(probing_membership=False, membership_why=event.reason)
        return
    changes = {
        "probing_membership": False,
        "membership_why": event.reason,
        "membership": event,
        "membership_ok_at_s": turn.now,
    }
    same = before.membership is not None and before.membership.nodes == event.nodes
    turn.change_watch(changes, news=not same)


def engine(turn: Turn, event: ev.EngineObserved) -> None:
    """Take health and counters."""
    before = _watch_of(turn, event.generation)
    if before is None:
        return
    tokens = event.tokens_total if event.tokens_total is not None else before.tokens_total
    grew = event.tokens_total is not None and event.tokens_total != before.tokens_total
    busy = (event.running or 0) + (event.waiting or 0) > 0
    known = event.running is not None
    since_s = before.outstanding_since_s
    if known:
        since_s = (since_s if since_s is not None else turn.now) if busy else None
    changes = {
        "probing_engine": False,
        "engine": event,
        "tokens_total": tokens,
        "token_at_s": turn.now if grew else before.token_at_s,
        "worked_at_s": turn.now if grew and before.tokens_total is not None else before.worked_at_s,
        "canary_misses": 0 if grew else before.canary_misses,
        "outstanding_since_s": since_s,
        # What is unknown is not quiet.
        "busy_at_s": turn.now
        if busy or not known or (grew and not _is_canary(turn, before))
        else before.busy_at_s,
    }
    turn.wake_for(Concern.PROBE, watch.next_engine_s(turn))
    turn.change_watch(changes, news=not _same_engine(before, event, since_s, grew=grew))


def _is_canary(turn: Turn, before: Watch) -> bool:
    """Whether tokens that appear now are those of sparkd's own generation."""
    answered_s = before.canary_done_at_s + 2 * turn.policy.engine_every_s
    return before.canary_sent_at_s is not None or turn.now <= answered_s


def _same_engine(before: Watch, event: ev.EngineObserved, since_s: float | None, *, grew: bool) -> bool:
    """Whether nothing is decided otherwise for it; a first token after a canary brings the next one near."""
    known = before.engine
    return (
        known is not None
        and (known.answered, known.healthy) == (event.answered, event.healthy)
        and (known.running is None) == (event.running is None)
        and before.outstanding_since_s == since_s
        and not (grew and before.token_at_s <= before.canary_done_at_s)
    )


def canary(turn: Turn, event: ev.CanaryAnswered) -> None:
    """Take the outcome of a real generation."""
    if _watch_of(turn, event.generation) is None:
        return
    answered = event.ok is True
    turn.set_watch(
        canary_sent_at_s=None,
        canary_done_at_s=turn.now,
        canary_ok=event.ok,
        canary_latency_s=event.latency_s if answered else turn.lead.watch.canary_latency_s,
        canary_why=event.reason,
        canary_misses=0 if answered else turn.lead.watch.canary_misses + (event.ok is False),
        token_at_s=turn.now if answered else turn.lead.watch.token_at_s,
        worked_at_s=turn.now if answered else turn.lead.watch.worked_at_s,
    )
