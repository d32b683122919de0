"""Boots that ended while a generation ran: a wedge, or power.

Nobody saw why, so it counts against the settings. A node tells which generation ran when an earlier boot
ended without rest. Each such generation is counted once: one step down in memory, as after a memory failure;
so many in a row, and nothing is started any more.
"""

from __future__ import annotations

from sparkd.core import guards, incident, remedy
from sparkd.core.decision import follow
from sparkd.core.records import Remedied, SettingsAdopted, Times
from sparkd.core.turn import Turn
from sparkd.signals.model import Diagnosis, Evidence


def admit(turn: Turn) -> bool:
    """Count an unclean end that was not counted yet; return whether a launch may follow."""
    node, generation = _newest(turn)
    if generation <= turn.lead.forgiven:
        return not _too_often(turn, "a node", turn.lead.forgiven)
    turn.set_lead(forgiven=generation, unclean=turn.lead.unclean + 1)
    reason = _went_down(node, generation)
    incident.open_incident(turn, reason, generation)
    if _too_often(turn, node, generation):
        return False
    return _step_down(turn, node, reason)


def _went_down(node: str, generation: int) -> str:
    return f"{node} went down while generation {generation} ran: a wedge, or power"


def _too_often(turn: Turn, node: str, generation: int) -> bool:
    """Escalate where so many boots in a row ended so: no daemon's restart and no boot makes it less."""
    if turn.lead.unclean < turn.policy.unclean_boots_max:
        return False
    needs = f"find out why {node} goes down ({turn.lead.unclean} times in a row)"
    incident.escalate(turn, _went_down(node, generation), needs)
    return True


def _newest(turn: Turn) -> tuple[str, int]:
    """Return the node of the newest generation that ended uncleanly, and that generation; 0 = none."""
    found = [(turn.state.node, turn.member.unclean_generation)]
    found += [(peer.node, peer.status.unclean_generation) for peer in turn.state.peers if peer.status]
    return max(found, key=lambda entry: entry[1])


def _step_down(turn: Turn, node: str, reason: str) -> bool:
    """Take one step in memory; return whether a launch may follow. Where the ladder ends, a person is needed.

    The same settings again could cost the node's power once more.
    """
    lead = turn.lead
    assumed = Diagnosis("uma_host_exhaustion", None, node, False, 1.0, reason)
    case = incident.case_of(turn, Evidence(), 1)
    chosen = follow(case, assumed, guards.in_force(turn.state, turn.policy))
    known = Diagnosis("unknown", None, node, None, 0.0, reason)
    number = lead.incident.number if lead.incident is not None else 0
    text = f"counts as a memory failure: {chosen.explanation}"
    turn.note(
        Remedied(
            incident=number,
            generation=turn.lead.forgiven,
            diagnosis=known,
            action=chosen.action,
            explanation=text,
            settings_before=lead.settings,
            settings_after=chosen.settings,
            backoff_s=0.0,
            times=Times(detected_s=turn.now, decided_s=turn.now),
        )
    )
    if chosen.action is remedy.Action.ESCALATE:
        incident.escalate(turn, f"{reason}; {text}", chosen.needs)
        return False
    if chosen.settings != lead.settings:
        turn.note(SettingsAdopted(settings=chosen.settings, reason=text))
        turn.set_lead(settings=chosen.settings, trial=False)
        incident.give_up(turn, lead.settings)
    return True
