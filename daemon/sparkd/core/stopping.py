"""The way down, in order, and what is ended where nothing shall run."""

from __future__ import annotations

from sparkd.core import fence, incident, member
from sparkd.core.membership import are_present, is_present
from sparkd.core.messages import UnitState
from sparkd.core.state import Peer
from sparkd.core.turn import Turn
from sparkd.words import Backend, Phase, UnitName

KILL_PATIENCE_S = 6.0
"""After SIGKILL a tree is empty or proved unkillable within 5 s (`adapters.children`), and it is said."""


def end_what_is_found(turn: Turn, grace_s: float) -> None:
    """Where nothing shall run, an engine of an earlier coordinator ends as soon as every node is heard."""
    take_epoch_to_stop(turn)
    if turn.lead.epoch:
        fence.demand_nothing(turn, grace_s)


def take_epoch_to_stop(turn: Turn) -> None:
    """A daemon that never started anything may still find an engine that has to end."""
    if not turn.lead.epoch and are_present(turn) and not turn.policy.observe_only:
        fence.take_epoch(turn)


def stop(turn: Turn) -> None:
    """Down in order: serve, then Ray, head first. A node that does not answer is not waited for for ever."""
    take_epoch_to_stop(turn)
    grace_s = turn.policy.stop_grace_s
    stage_s = grace_s + KILL_PATIENCE_S
    patient_until_s = turn.lead.phase_since_s + STOP_STAGES * stage_s
    if turn.lead.epoch:
        in_order = not turn.due(patient_until_s)
        fence.demand(turn, _still_wanted(turn) if in_order else {}, grace_s)
    # What an earlier daemon left has to be looked for first: until then nobody knows what runs here.
    over = fence.is_emptied(turn) if turn.lead.epoch else not fence.somebody_lives(turn)
    over = (turn.member.swept and over) or turn.policy.observe_only
    if over or turn.due(patient_until_s + stage_s):
        _note_stopped(turn)


STOP_STAGES = 3
"""serve, the head's Ray, the workers' Ray: each may need its whole grace and a SIGKILL."""


def _note_stopped(turn: Turn) -> None:
    if nodes := fence.unkillable(turn):
        turn.set_lead(needs=f"reboot {', '.join(nodes)}: processes survive SIGKILL")
    incident.close(turn, "stopped")
    turn.set_lead(stop_wanted=False, waiting=())
    left = fence.not_emptied(turn) if turn.lead.epoch else ()
    turn.move(Phase.STOPPED, f"stopped, but not known of {', '.join(left)}" if left else "stopped as asked")


def _still_wanted(turn: Turn) -> fence.Wanted:
    """Return what stays up while serve, or the head's Ray, goes down: never more than what is up."""
    generation = turn.lead.generation
    head_units = tuple(unit.unit for unit in member.alive(turn) if unit.generation == generation)
    workers = {p.node: _alive_units(p, generation) for p in turn.state.peers if is_present(turn, p)}
    if UnitName.SERVE in head_units or any(UnitName.SERVE in units for units in workers.values()):
        if turn.policy.backend is Backend.MP:
            return {} if UnitName.SERVE not in head_units else workers
        alive = {turn.state.node: head_units, **workers}
        return {node: (UnitName.RAY,) for node, units in alive.items() if UnitName.RAY in units}
    # The head's Ray first: the workers' stays wanted until it is gone.
    return workers if UnitName.RAY in head_units else {}


def _alive_units(peer: Peer, generation: int) -> tuple[UnitName, ...]:
    units = peer.status.units if peer.status else ()
    return tuple(u.unit for u in units if u.state is not UnitState.GONE and u.generation == generation)
