"""Taking over an engine that an earlier daemon of this cluster started and that still runs.

A daemon's restart, upgrade or crash is no reason to touch what serves. The new coordinator takes a new epoch
and keeps the generation. What the earlier one had learned of it is not believed but observed anew: an engine
that was served is verified again, one that was starting is followed from where it was.

Only the newest generation that anybody has seen is taken over, and only where the head's own part of it runs
whole: a part alone is fenced like every leftover. A peer that is not heard is not waited for, since a real
generation proves its part, too; one that is heard without its part ends the generation.

What this head led last and what ended while nobody led is taken over, too: its end is seen then, and is an
incident, or a person's pause, like any other.
"""

from __future__ import annotations

from sparkd.core import fence, launch
from sparkd.core.events import EndedUnit, RunningUnit
from sparkd.core.messages import ENDED, Intent, UnitState, UnitStatus
from sparkd.core.state import Peer, Unit, Watch
from sparkd.core.turn import Turn
from sparkd.words import (
    ENGINE,
    LIVE,
    NOTHING_SAID,
    EngineMemory,
    Phase,
    Settings,
    Stamp,
    UnitName,
    differing,
)

FROM = (Phase.IDLE, Phase.WAITING, Phase.PAUSED)
"""Where a coordinator can be that has not ordered anything yet."""


def take_over(turn: Turn) -> None:
    """Take over what runs, where nothing has been ordered yet and nothing speaks against it."""
    lead = turn.lead
    if lead.epoch or lead.phase not in FROM or lead.asked_target is False or not turn.member.swept:
        return
    if _is_over(turn):
        _enter(turn, lead.kept.generation, _left_in(lead.kept.phase))
        return
    if not turn.member.found:
        return
    generation = _newest(turn)
    after = _phase_of(turn, generation)
    if after is None or any(_speaks_against(turn, peer, generation, after) for peer in turn.state.peers):
        return
    _adopt(turn, generation, after)


def _is_over(turn: Turn) -> bool:
    """Whether a unit of what this head led last has ended meanwhile, here or on a node that is heard.

    A node that went down is another matter (`core.unclean`): what ended with it says nothing of why.
    """
    generation, kept = turn.lead.kept.generation, turn.lead.kept.phase
    said = [peer.status for peer in turn.state.peers if peer.status is not None and peer.fresh]
    if kept not in LIVE or turn.member.unclean_generation >= generation:
        return False
    if any(status.unclean_generation >= generation for status in said):
        return False
    units: list[Unit | UnitStatus] = [*turn.member.units, *(unit for status in said for unit in status.units)]
    over = [u for u in units if u.state in ENDED]
    return any(u.generation == generation and (u.by_hand or not u.ordered) for u in over)


def _left_in(kept: Phase) -> Phase:
    return Phase.VERIFYING if kept is Phase.SERVING else kept


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
    if known in (Phase.VERIFYING, Phase.SERVING):
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
    _enter(turn, generation, after)
    wanted = _forming(turn, generation) if after is Phase.FORMING else launch.running(turn.policy)
    fence.demand(turn, wanted, turn.policy.stop_grace_s)


def _enter(turn: Turn, generation: int, after: Phase) -> None:
    """Make it the generation that this coordinator leads; nothing is ordered yet."""
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
        turn.move(after, f"generation {generation} is taken over from an earlier daemon")


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
    """Return what the engine was started with: the API's unit says it, Ray's where only that was there yet.

    Where only a peer's unit is known, they are those in force.
    """
    order = list(UnitName)
    here: list[RunningUnit | EndedUnit] = [*turn.member.found, *turn.member.ended]
    newest = max((u.stamp.generation for u in here), default=0)
    units = [u for u in here if u.stamp.generation == newest]
    said = max(units, key=lambda found: order.index(found.unit), default=None)
    return turn.lead.settings if said is None else said.settings


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
