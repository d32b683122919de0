"""What earlier daemons have left on this node, as it is found when a daemon starts."""

from __future__ import annotations

from sparkd.core import events as ev
from sparkd.core import member
from sparkd.core.messages import UnitState
from sparkd.core.state import Unit
from sparkd.core.turn import Turn
from sparkd.words import Stamp, UnitName


def fold_swept(turn: Turn, event: ev.LeftoversSwept) -> None:
    """Take what was found as this node's units: what runs, what has ended, what does not die."""
    turn.set_member(sweeping=False, swept=True, found=event.running, ended=event.ended)
    turn.see(Stamp(0, max(event.generations, default=0)))
    for over in event.ended:
        turn.see(over.stamp)
        member.set_unit(turn, _over(over, turn.now))
    for found in event.running:
        turn.see(found.stamp)
        member.set_unit(turn, Unit(found.unit, found.stamp.generation, UnitState.RUNNING, turn.now))
    if event.running:
        member.runs_on(turn)
    if event.survivors:
        generation = max(*event.generations, turn.state.seen.generation, 1)
        pids = ", ".join(map(str, event.survivors))
        unit = Unit(UnitName.SERVE, generation, UnitState.UNKILLABLE, turn.now, reason=f"pids {pids}")
        member.set_unit(turn, unit)


def _over(over: ev.EndedUnit, now: float) -> Unit:
    return Unit(
        over.unit,
        over.stamp.generation,
        UnitState.GONE,
        now,
        code=over.code,
        signal=over.signal,
        ordered=over.by_hand,
        by_hand=over.by_hand,
    )
