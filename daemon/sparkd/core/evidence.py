"""What the coordinator knows of a failed generation, as a judgement wants it.

The same that `signals.assess` collects of files: what was said, what was seen at work, who was heard. What it
means is told in one place for both, `signals.judge`.
"""

from __future__ import annotations

from sparkd.core.membership import is_heard
from sparkd.core.offset import pair_error_s
from sparkd.core.phases import is_forward
from sparkd.core.state import NEVER_BEFORE_S, Failure
from sparkd.core.turn import Turn
from sparkd.signals.model import Curve, Evidence, Heard, Work
from sparkd.signals.precedence import OWN_SOURCE
from sparkd.words import ENGINE, LIVE, Backend, Phase


def evidence_of(turn: Turn, failure: Failure) -> Evidence:
    """Return all that a judgement of *failure* may use."""
    nodes, worked_at_s = tuple(name for name, _ in turn.policy.nodes), _worked_at_s(turn)
    return Evidence(
        signals=failure.signals,
        exits=failure.exits,
        phase=_reached(turn, failure),
        nodes=nodes,
        head=turn.policy.head,
        kv_cache_bytes=failure.kv_cache_bytes,
        fence_at_s=failure.times.fence_ordered_s,
        works=_works(turn),
        steps=_steps(turn, failure),
        worked_at_s=worked_at_s,
        alive_at_s=worked_at_s,
        heard=_heard(turn),
        order_error_s=pair_error_s(failure.signals),
        memory=_memory(turn),
        spread=len(nodes) > 1,
        on_ray=turn.policy.backend is Backend.RAY,
    )


def _works(turn: Turn) -> tuple[Work, ...]:
    """Return when the engine was last seen to make tokens; nothing where it has made none."""
    worked_s = turn.lead.watch.worked_at_s
    return () if worked_s == NEVER_BEFORE_S else (Work(turn.policy.head, OWN_SOURCE, worked_s),)


def _worked_at_s(turn: Turn) -> float | None:
    """Return when the engine last made tokens, or said that nobody waits for any."""
    watch = turn.lead.watch
    engine = watch.engine
    is_idle = engine is not None and engine.running == 0 and not engine.waiting
    at_s = max(watch.worked_at_s, watch.probed_engine_at_s if is_idle else NEVER_BEFORE_S)
    return None if at_s == NEVER_BEFORE_S else at_s


def _steps(turn: Turn, failure: Failure) -> tuple[Work, ...]:
    """Return when the start last went forward: it outlived what was said before."""
    first = LIVE.index(ENGINE[0])
    if failure.phase not in LIVE or LIVE.index(failure.phase) <= first:
        return ()
    return (Work(turn.policy.head, OWN_SOURCE, failure.phase_since_s),)


def _heard(turn: Turn) -> tuple[Heard, ...]:
    """Return until when each peer's daemon was heard: a node that it speaks of is not lost."""
    return tuple(
        Heard(peer.node, OWN_SOURCE, 0.0, turn.now if is_heard(turn, peer) else peer.heard_at_s)
        for peer in turn.state.peers
        if peer.heard_at_s != NEVER_BEFORE_S
    )


def _memory(turn: Turn) -> tuple[Curve, ...]:
    """Return every node's memory since the launch: what was short before was another's doing."""
    member, floor = turn.member, turn.policy.guard_floor_bytes
    began_s = turn.lead.launched_at_s or 0.0
    total = member.memory.total_bytes if member.memory else None
    own = Curve(turn.state.node, total, floor, _since(member.curve, began_s), member.lowest_bytes)
    peers = [(peer, peer.status) for peer in turn.state.peers if peer.status is not None]
    return (
        own,
        *(Curve(p.node, s.total_bytes, floor, _since(p.curve, began_s), s.lowest_bytes) for p, s in peers),
    )


def _since(curve: tuple[tuple[float, int], ...], began_s: float) -> tuple[tuple[float, int], ...]:
    return tuple(sample for sample in curve if sample[0] >= began_s)


def _reached(turn: Turn, failure: Failure) -> Phase:
    """The phase that the generation had reached: its last lines may be read after the failure was seen."""
    progress = turn.lead.watch.progress
    shown = progress.phase if progress is not None else None
    if failure.phase in ENGINE and shown is not None and is_forward(failure.phase, shown):
        return shown
    return failure.phase
