"""A unit that a person has stopped: he is at work here, which is a pause and no failure."""

from __future__ import annotations

from sparkd.core import incident
from sparkd.core.turn import Turn
from sparkd.words import LIVE, Phase

PAUSABLE = (Phase.IDLE, Phase.WAITING, Phase.BACKING_OFF, Phase.SERVING)
"""Safe points: nothing is half done there."""


def is_told_late(turn: Turn) -> bool:
    """Whether the failure that was seen was a stop by hand, as a daemon that was away says now.

    The next generation's fence may wait for just this daemon; nothing of it is started before that. An
    incident without a failure (a boot that ended uncleanly) is about something else: the stop was told
    before, and a person has said since that sparkd may go on.
    """
    lead = turn.lead
    before = lead.phase is Phase.FENCING or (lead.phase in PAUSABLE and lead.phase not in LIVE)
    return before and lead.failure is not None and stopped(turn) is not None


def take_for_pause(turn: Turn) -> None:
    """Watch and report from the next safe point on, until he says that sparkd may go on."""
    turn.set_lead(pause_wanted=True, asked_pause=True)
    incident.close(turn, "stopped")


def stopped(turn: Turn) -> str | None:
    """Return whose unit of this generation a person has stopped, as it is told; None = nobody's."""
    state, generation = turn.state, turn.lead.generation
    for unit in state.member.units:
        if unit.by_hand and unit.generation == generation:
            return f"{state.node}'s {unit.unit}"
    for peer in state.peers:
        if peer.fresh and peer.status is not None:
            for part in peer.status.units:
                if part.by_hand and part.generation == generation:
                    return f"{peer.node}'s {part.unit}"
    return None
