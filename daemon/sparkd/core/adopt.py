"""Taking over an engine that an earlier daemon of this cluster started and that still runs.

A daemon's restart, upgrade or crash is no reason to touch what serves. The new coordinator takes a new epoch
and keeps the generation. What the earlier one had learned of it is not believed but observed anew: an engine
that was served is verified again, one that was starting is followed from where it was.

Only the newest generation that anybody has seen is taken over, and only where the head's own part of it runs
whole: a part alone is fenced like every leftover. A peer that is not heard is not waited for, since a real
generation proves its part, too; one that is heard without its part ends the generation.
"""

from __future__ import annotations

from sparkd.core import fence, launch
from sparkd.core.messages import Intent, UnitState
from sparkd.core.state import Peer, Watch
from sparkd.core.turn import Turn
from sparkd.words import ENGINE, NOTHING_SAID, EngineMemory, Phase, Settings, Stamp, UnitName, differing

FROM = (Phase.IDLE, Phase.WAITING, Phase.PAUSED)
"""Where a coordinator can be that has not ordered anything yet."""


def take_over(turn: Turn) -> None:
    """Take over what runs, where nothing has been ordered yet and nothing speaks against it."""
    lead = turn.lead
    stopped = lead.asked_target is False
    if lead.epoch or lead.phase not in FROM or stopped or not turn.member.found:
        return
    generation = _newest(turn)
    after = _phase_of(turn, generation)
    if after is None or any(_speaks_against(turn, peer, generation, after) for peer in turn.state.peers):
        return
    _adopt(turn, generation, after)


def _newest(turn: Turn) -> int:
    """Return the newest generation: what this head itself led last, else what anybody has seen.

    After both nodes lost their disks, a broker's old messages can tell of generations of an earlier life.
    """
    own = turn.lead.kept.generation
    runs = any(unit.generation == own and unit.alive for unit in turn.member.units)
    return own if own and runs else turn.state.seen.generation


def _phase_of(turn: Turn, generation: int) -> Phase | None:
    """Return where the generation goes on, None = it cannot."""
    living = {
        u.unit for u in turn.member.units if u.generation == generation and u.state is UnitState.RUNNING
    }
    if any(u.alive and (u.generation != generation or u.unit not in living) for u in turn.member.units):
        return None  # something older, or something that is ending, lives beside it
    kept = turn.lead.kept
    known = kept.phase if kept.generation == generation else None
    whole = living >= set(launch.running(turn.policy)[turn.state.node])
    if not whole:
        return Phase.FORMING if living and known is Phase.FORMING else None
    if known in (Phase.VERIFYING, Phase.SERVING, Phase.PAUSED):
        return Phase.VERIFYING
    if known in (Phase.FAILING, Phase.FENCING, Phase.STOPPING):
        return None  # its end was ordered
    return known if known in ENGINE else Phase.RESOLVING_CONFIG


def _speaks_against(turn: Turn, peer: Peer, generation: int, after: Phase) -> bool:
    """A peer that is heard and whose part is not there, or not known yet."""
    status, forming = peer.status, after is Phase.FORMING
    if status is None or not peer.fresh:
        return forming  # what is half there can only go on with everybody
    wanted = () if forming else launch.running(turn.policy)[peer.node]
    return not status.swept or not has_part(peer, generation, wanted)


def has_part(peer: Peer, generation: int, wanted: tuple[UnitName, ...]) -> bool:
    """Return whether the units *wanted* of a generation run on *peer*."""
    units = peer.status.units if peer.status is not None else ()
    working = (UnitState.STARTING, UnitState.RUNNING)
    return set(wanted) <= {u.unit for u in units if u.generation == generation and u.state in working}


def _adopt(turn: Turn, generation: int, after: Phase) -> None:
    settings, in_force = _settings(turn), turn.lead.settings
    turn.set_lead(
        target=True,
        epoch=turn.state.seen.epoch + 1,
        generation=generation,
        settings=settings,
        edited=tuple((name, getattr(in_force, name)) for name in differing(settings, in_force)),
        watch=Watch(
            said=_said(turn, generation),
            progress_at_s=turn.now,
            membership_ok_at_s=turn.now,
            token_at_s=turn.now,
        ),
        waiting=(),
        backoff_until_s=None,
        launched_at_s=turn.now,
    )
    turn.see(Stamp(turn.lead.epoch, generation))
    if turn.lead.phase is Phase.PAUSED:
        turn.set_lead(paused_from=after)
    else:
        turn.move(after, f"generation {generation} runs on: taken over from an earlier daemon")
    wanted = _forming(turn, generation) if after is Phase.FORMING else launch.running(turn.policy)
    fence.demand(turn, wanted, turn.policy.stop_grace_s)


def _forming(turn: Turn, generation: int) -> fence.Wanted:
    """Return what a half formed generation wants: the head's Ray, and every node's where one has begun."""
    begun = any(has_part(peer, generation, (UnitName.RAY,)) for peer in turn.state.peers)
    names = [name for name, _ in turn.policy.nodes] if begun else [turn.policy.head]
    return dict.fromkeys(names, (UnitName.RAY,))


def _said(turn: Turn, generation: int) -> EngineMemory:
    """Return what the engine said of its memory to an earlier daemon: it will not say it again."""
    kept = turn.lead.kept
    return kept.said if kept.generation == generation else NOTHING_SAID


def _settings(turn: Turn) -> Settings:
    """Return what the engine was started with: the API's unit says it, Ray's where only that runs yet."""
    order = list(UnitName)
    return max(turn.member.found, key=lambda found: order.index(found.unit)).settings


def readdress(turn: Turn, intent: Intent) -> None:
    """Say what runs again to daemons that were started anew, and in the epoch in force.

    Nothing is said while the part of one of them is not known to run: until then it is not addressed.
    """
    known = [peer for peer in turn.state.peers if peer.status is not None]
    if intent.stamp.epoch == turn.lead.epoch and all(is_addressed(intent, peer) for peer in known):
        return
    if intent.wants_units and all(is_addressed(intent, peer) or is_back(intent, peer) for peer in known):
        fence.demand(turn, dict(intent.wanted), turn.policy.stop_grace_s)


def is_addressed(intent: Intent, peer: Peer) -> bool:
    """Return whether *intent* names the daemon that runs on *peer* now."""
    return peer.status is not None and intent.instance_of(peer.node) == peer.status.instance


def is_back(intent: Intent, peer: Peer) -> bool:
    """Return whether the peer's new daemon has found its part of the generation running."""
    status = peer.status
    swept = status is not None and peer.fresh and status.swept
    return swept and has_part(peer, intent.stamp.generation, intent.units_of(peer.node))
