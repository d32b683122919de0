"""The head's judgement: what the cluster shall do next, one function a phase.

Runs to a fixed point within a step: a phase whose condition holds already is left at once, so an event
never waits for another one to be acted upon.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from sparkd.core import (
    adopt,
    by_hand,
    fence,
    fitting,
    guards,
    incident,
    keeping,
    launch,
    stopping,
    told,
    unclean,
    watch,
)
from sparkd.core.membership import are_present, leaking, missing
from sparkd.core.messages import ENDED, UnitStatus
from sparkd.core.records import SettingsAdopted
from sparkd.core.scarce import scarce
from sparkd.core.state import Peer, Unit
from sparkd.core.turn import Turn
from sparkd.signals.model import UnitExit
from sparkd.words import ENGINE, LIVE, Phase, Stamp

RESTING = (Phase.STOPPING, Phase.STOPPED)

MOVES_MAX = 8
"""More moves in one step than any chain of the table needs: a bound, not a schedule."""


def decide(turn: Turn) -> None:
    """Order what the cluster needs now."""
    _renew_epoch(turn)
    for _ in range(MOVES_MAX):
        before = turn.lead.phase
        adopt.take_over(turn)
        _note_peers(turn)
        _obey(turn)
        phase = turn.lead.phase
        PHASES[phase](turn)
        if turn.lead.phase is before:
            break
    if turn.lead.restart_wanted:
        turn.set_lead(restart_wanted=False)


def _renew_epoch(turn: Turn) -> None:
    """An epoch that somebody else has seen beyond ours means that we were wiped or another one decided."""
    seen = turn.state.seen
    if turn.lead.epoch and seen.epoch > turn.lead.epoch:
        turn.set_lead(epoch=seen.epoch + 1)
        turn.see(Stamp(seen.epoch + 1, seen.generation))


_HOLDING = frozenset({*LIVE, Phase.FAILING})


def _note_peers(turn: Turn) -> None:
    """Take from the levels what ends a generation: exits, and peers that came back without their part."""
    lead, state = turn.lead, turn.state
    intent = lead.intent
    if lead.phase not in _HOLDING:
        return
    _note_exits(turn, state.node, state.member.units)
    for peer in state.peers:
        if not peer.fresh or peer.status is None:
            continue
        if intent is None or adopt.is_addressed(intent, peer):
            _note_exits(turn, peer.node, peer.status.units)
        elif peer.status.swept and not adopt.is_back(intent, peer):
            _note_lost_part(turn, peer)
    if turn.lead.phase in LIVE and intent is not None:
        adopt.readdress(turn, intent)


def _note_lost_part(turn: Turn, peer: Peer) -> None:
    generation = turn.lead.generation
    text = f"sparkd of {peer.node} was started anew and its part of generation {generation} does not run"
    incident.observe_failure(turn, "observed_daemon_lost", "peer_lost", text, node=peer.node)


def _note_exits(turn: Turn, node: str, units: Sequence[Unit | UnitStatus]) -> None:
    """An end is a level too: it is noted as long as it stands there, once a failure."""
    generation = turn.lead.generation
    for unit in units:
        if unit.generation == generation and _is_ended(unit):
            _note_exit(turn, node, unit)


def _is_ended(unit: Unit | UnitStatus) -> bool:
    return unit.state in ENDED or unit.code is not None or unit.signal is not None


def _note_exit(turn: Turn, node: str, unit: Unit | UnitStatus) -> None:
    if unit.reason and unit.code is None and unit.signal is None:
        incident.note_unstarted(turn, node, unit.unit, unit.reason)
    else:
        exit_ = UnitExit(
            node=node,
            unit=unit.unit,
            generation=unit.generation,
            at_s=turn.now,
            code=unit.code,
            signal=unit.signal,
            ordered=unit.ordered,
        )
        incident.note_exit(turn, exit_)


def _obey(turn: Turn) -> None:
    """What a person or a leaving node asks goes before what the phase would do."""
    if turn.policy.observe_only and not turn.lead.shutdown:
        _observe(turn)
        return
    if by_hand.is_told_late(turn):
        by_hand.take_for_pause(turn)
    lead = turn.lead
    phase, live = lead.phase, lead.phase in LIVE
    resting = RESTING if lead.stop_wanted else (*RESTING, Phase.IDLE)
    if not lead.target and lead.at not in resting:
        turn.move(Phase.STOPPING, "asked to stop")
    elif live and (name := by_hand.stopped(turn)):
        _rest(turn, f"{name} was stopped by hand")
    elif live and (leaving := _leaving(turn)):
        turn.move(Phase.FENCING, f"{leaving} is leaving")
    elif lead.pause_wanted and phase in by_hand.PAUSABLE and not _is_stopped(turn):
        turn.set_lead(paused_from=phase, waiting=())
        turn.move(Phase.PAUSED, "asked to pause")


def _is_stopped(turn: Turn) -> bool:
    """A new daemon that knows of a stop has nothing to pause: what still runs is ended."""
    return turn.lead.phase is Phase.IDLE and turn.lead.asked_target is False


def _observe(turn: Turn) -> None:
    """Who only observes orders nothing, whatever was asked."""
    if turn.lead.phase is Phase.IDLE:
        turn.set_lead(paused_from=Phase.IDLE)
        turn.move(Phase.PAUSED, "it only observes")


def _rest(turn: Turn, reason: str) -> None:
    """Somebody is at work here: watch and report until he says that sparkd may go on."""
    by_hand.take_for_pause(turn)
    if turn.lead.phase is Phase.SERVING:
        turn.set_lead(paused_from=Phase.WAITING)
        turn.move(Phase.PAUSED, reason)
    else:
        turn.move(Phase.FENCING, reason)


def _leaving(turn: Turn) -> str | None:
    for peer in turn.state.peers:
        if peer.fresh and peer.status is not None and peer.status.leaving:
            return peer.node
    return None


def _idle(turn: Turn) -> None:
    if turn.lead.target:
        if turn.lead.restart_wanted:
            _try_asked(turn, STARTED_ANEW)
        turn.move(Phase.WAITING, "start wanted")
    elif turn.lead.asked_target is False and turn.member.swept:
        stopping.end_what_is_found(turn, turn.policy.stop_grace_s)


def _waiting(turn: Turn) -> None:
    if turn.lead.intent is not None and turn.lead.intent.wants_units:
        fence.demand_nothing(turn, turn.policy.stop_grace_s)  # after a pause: nothing is wanted from here on
    if nodes := fence.unkillable(turn):
        _await_reboot(turn, SURVIVE, nodes)
        return
    absent = missing(turn) + _last_failure(turn)
    lost = () if turn.lead.leaks_forgiven else leaking(turn)
    # What a leak has taken nobody holds: it is not asked for, and not waited for.
    reasons = absent if lost else absent + scarce(turn)
    told.waiting_for(turn, reasons)
    if reasons:
        return
    if lost:
        _await_reboot(turn, "memory is lost with every start on", lost)
    elif unclean.admit(turn):
        fence.take_epoch(turn)
        turn.move(Phase.FENCING, "every precondition is there")


def _last_failure(turn: Turn) -> tuple[str, ...]:
    """The wait after a failure goes on in the next daemon."""
    until_s = turn.lead.backoff_until_s
    if until_s is None:
        return ()
    if not turn.due(until_s):
        return ("the wait after the last failure (sparkctl start ends it)",)
    turn.set_lead(backoff_until_s=None)
    return ()


def _await_reboot(turn: Turn, what: str, nodes: tuple[str, ...]) -> None:
    """Escalate what only a reboot ends; that it was done is seen, and then it goes on by itself."""
    names = ", ".join(nodes)
    incident.escalate(turn, f"{what} {names}", f"reboot {names}; it goes on by itself then", reboot=True)


SURVIVE = "processes survive SIGKILL on"


def _is_rebooted(turn: Turn) -> bool:
    """Whether every node is heard, and none shows any more what a reboot was to end."""
    swept = turn.member.swept and are_present(turn)
    return swept and not fence.unkillable(turn) and not leaking(turn)


def _fencing(turn: Turn) -> None:
    fence.demand_nothing(turn, turn.policy.stop_grace_s)
    incident.note_fence_times(turn)
    if nodes := fence.unkillable(turn):
        _await_reboot(turn, SURVIVE, nodes)
    elif fence.is_fenced(turn):
        _launch(turn)
    elif missing(turn):
        turn.move(Phase.WAITING, "a precondition went away")
    else:
        told.waiting_for(turn, fence.unanswered(turn))


def _launch(turn: Turn) -> None:
    if turn.lead.pause_wanted:
        turn.move(Phase.WAITING, "everything is fenced, a pause is wanted")
    elif missing(turn) or scarce(turn):
        turn.move(Phase.WAITING, "a precondition went away")
    else:
        launch.begin(turn)


def _forming(turn: Turn) -> None:
    launch.form(turn)


def _starting(turn: Turn) -> None:
    launch.follow(turn)


def _verifying(turn: Turn) -> None:
    launch.verify(turn)


def _serving(turn: Turn) -> None:
    watch.check_ray(turn)
    if turn.lead.phase is Phase.SERVING:
        watch.check_serving(turn)
    if turn.lead.phase is Phase.SERVING:
        if turn.due(turn.lead.phase_since_s + turn.policy.cooldown_s):
            keeping.served(turn)
        _climb(turn)


STARTED_ANEW = "started anew by the operator: the asked settings are tried once"


def _climb(turn: Turn) -> None:
    """Leave degraded settings for the asked ones, where the operator wants it, in a quiet moment."""
    lead, policy = turn.lead, turn.policy
    if policy.climb_after_s <= 0 or lead.proven is None or lead.climbed:
        return
    asked = guards.asked(turn.state, policy)
    # Whether Ray's monitor watches costs nobody anything: nothing that serves is ended for it.
    if lead.settings == replace(asked, ray_memory_threshold=lead.settings.ray_memory_threshold):
        return
    if lead.watch.engine is None or lead.watch.engine.running is None:
        return  # nobody knows whether it is quiet
    quiet_at_s = max(lead.phase_since_s + policy.climb_after_s, lead.watch.busy_at_s + policy.climb_idle_s)
    if lead.watch.outstanding_since_s is not None or not turn.due(quiet_at_s):
        return
    turn.set_lead(climbed=True)
    if fitting.rejects(turn, asked):
        return  # what serves is not ended for a plan that the numbers reject
    reason = f"climbing back: nobody has asked for {policy.climb_idle_s:g} s, the asked settings are tried"
    _try_asked(turn, reason)
    turn.move(Phase.FENCING, reason)


def _try_asked(turn: Turn, reason: str) -> None:
    """Take the asked settings; those that served before are what a memory failure falls back to."""
    turn.set_lead(edited=())
    lead, asked = turn.lead, guards.asked(turn.state, turn.policy)
    if lead.settings == asked:
        return
    served = lead.settings if lead.verified == lead.settings else None
    turn.set_lead(settings=asked, trial=True, failed=(), proven=lead.proven or served)
    turn.note(SettingsAdopted(settings=asked, reason=reason))


def _failing(turn: Turn) -> None:
    """A unit that a person stopped takes others with it: those ends are his doing, too."""
    if name := by_hand.stopped(turn):
        by_hand.take_for_pause(turn)
        turn.move(Phase.BACKING_OFF, f"{name} was stopped by hand")
    else:
        incident.failing(turn)


def _backing_off(turn: Turn) -> None:
    fence.demand_nothing(turn, turn.policy.fail_grace_s)
    incident.note_fence_times(turn)
    until_s = turn.lead.backoff_until_s
    if until_s is None or turn.due(until_s):
        turn.set_lead(backoff_until_s=None)
        turn.move(Phase.WAITING, "the wait is over")


def _escalated(turn: Turn) -> None:
    """Nothing runs; what may pass is tried again slowly, the rest when a person says so."""
    stopping.end_what_is_found(turn, turn.policy.fail_grace_s)
    retry_at_s = turn.lead.retry_at_s
    if turn.lead.restart_wanted:
        turn.set_lead(retry_at_s=None, restart_wanted=False)
        _try_asked(turn, STARTED_ANEW)
        turn.move(Phase.WAITING, "asked to start again")
    elif retry_at_s is not None and turn.due(retry_at_s):
        turn.set_lead(retry_at_s=None, retrying=True)
        turn.move(Phase.WAITING, "it may have passed: tried again")
    elif turn.lead.awaits_reboot and _is_rebooted(turn):
        turn.set_lead(needs="")
        turn.move(Phase.WAITING, "what a reboot was to end is gone")


def _stopped(turn: Turn) -> None:
    if turn.lead.target:
        _try_asked(turn, STARTED_ANEW)
        turn.move(Phase.WAITING, "start asked")
    elif turn.lead.shutdown and turn.state.leaving_since_s is None:
        turn.set_state(leaving_since_s=turn.now)
    else:
        stopping.end_what_is_found(turn, turn.policy.stop_grace_s)
        left = fence.not_emptied(turn) if turn.lead.epoch else ()
        told.waiting_for(turn, tuple(f"{node}: what runs there ends as soon as it is heard" for node in left))


def _paused(turn: Turn) -> None:
    """Watch and report, change nothing; back to where the pause came from."""
    if not turn.lead.pause_wanted:
        watch.renew(turn)
        # What a person has stopped by hand is not served on with: it is started anew.
        turn.move(Phase.WAITING if by_hand.stopped(turn) else turn.lead.paused_from, "resumed")


PHASES: dict[Phase, Callable[[Turn], None]] = {
    Phase.IDLE: _idle,
    Phase.WAITING: _waiting,
    Phase.FENCING: _fencing,
    Phase.FORMING: _forming,
    **dict.fromkeys(ENGINE, _starting),
    Phase.VERIFYING: _verifying,
    Phase.SERVING: _serving,
    Phase.FAILING: _failing,
    Phase.BACKING_OFF: _backing_off,
    Phase.STOPPING: stopping.stop,
    Phase.STOPPED: _stopped,
    Phase.PAUSED: _paused,
    Phase.ESCALATED: _escalated,
}
