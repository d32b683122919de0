"""Each rule of the design switched off once, so that the checkers are seen to see.

A mutant replaces functions of the core (or what the sim starts it with) for as long as its context lasts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from sim.chaos import daemon as chaos_daemon
from sim.chaos import silences
from sparkd.core import (
    coordinator,
    decision,
    fence,
    fold,
    keeping,
    ladder,
    launch,
    member,
    membership,
    remedy,
    stopping,
)
from sparkd.core import events as ev
from sparkd.core.events import Path
from sparkd.core.messages import UnitState
from sparkd.core.turn import Turn
from sparkd.signals.causes import UNKNOWN
from sparkd.words import NO_STAMP, Backend, Phase, Stamp

Patch = tuple[Any, str, Any]


@dataclass(frozen=True, slots=True)
class Mutant:
    """What is switched off, how, and which rules may be found broken by it (none = any)."""

    name: str
    patches: Callable[[], list[Patch]]
    rules: tuple[str, ...] = ()


@contextmanager
def applied(mutant: Mutant) -> Iterator[None]:
    """Switch the rule off."""
    before: list[Patch] = []
    try:
        for owner, name, value in mutant.patches():
            if isinstance(owner, dict):
                before.append((owner, name, owner[name]))
                owner[name] = value
            else:
                before.append((owner, name, getattr(owner, name)))
                setattr(owner, name, value)
        yield
    finally:
        for owner, name, value in reversed(before):
            if isinstance(owner, dict):
                owner[name] = value
            else:
                setattr(owner, name, value)


# -- orders --------------------------------------------------------------------------------------


def _instance_ignored() -> list[Patch]:
    plain = membership.refusal

    def refusal(intent, state, policy, *, older):
        everybody = tuple((n, state.instance if n == state.node else i) for n, i in intent.addressees)
        return plain(replace(intent, addressees=everybody), state, policy, older=older)

    return [(membership, "refusal", refusal)]


def _old_stamps_accepted() -> list[Patch]:
    plain = membership.refusal
    return [(membership, "refusal", lambda i, s, p, *, older: plain(i, s, p, older=False))]


def _retained_orders() -> list[Patch]:
    plain = membership.fold_intent
    return [(membership, "fold_intent", lambda turn, event: plain(turn, replace(event, retained=False)))]


def _epoch_not_renewed() -> list[Patch]:
    return [(coordinator, "_renew_epoch", lambda turn: None)]


def _epoch_not_taken() -> list[Patch]:
    def take(turn: Turn) -> None:
        if not turn.lead.epoch:
            turn.set_lead(epoch=1)
            turn.see(Stamp(1, turn.state.seen.generation))

    return [(fence, "take_epoch", take), (coordinator, "_renew_epoch", lambda turn: None)]


def _peers_stamps_unheard() -> list[Patch]:
    plain = membership.fold_status

    def fold_status(turn, event):
        plain(turn, replace(event, status=replace(event.status, seen=NO_STAMP)))

    return [(membership, "fold_status", fold_status)]


def _stale_status_counts() -> list[Patch]:
    plain = membership.fold_status

    def fold_status(turn, event):
        path = event.path if event.retained else Path.HTTP
        plain(turn, replace(event, path=path))

    return [(membership, "fold_status", fold_status)]


def _plan_not_compared() -> list[Patch]:
    plain = membership._peer_missing

    def missing(turn, peer):
        return [reason for reason in plain(turn, peer) if "configuration differs" not in reason]

    return [
        (membership, "_differing_plan", lambda intent, state, policy: None),
        (membership, "_peer_missing", missing),
    ]


# -- the fence -----------------------------------------------------------------------------------


def _fence_inferred() -> list[Patch]:
    plain = fence.is_fenced

    def is_fenced(turn: Turn) -> bool:
        return plain(turn) or turn.now - turn.lead.phase_since_s > 0.5

    return [(fence, "is_fenced", is_fenced)]


def _older_answer_counts() -> list[Patch]:
    return [(fence, "has_applied", lambda turn, peer: peer.status is not None)]


def _root_is_tree() -> list[Patch]:
    plain = fold.FOLDS[ev.UnitExited]

    def exited(turn: Turn, event: ev.UnitExited) -> None:
        plain(turn, event)
        fold.FOLDS[ev.UnitEmptied](turn, ev.UnitEmptied(event.unit, event.generation))

    return [(fold.FOLDS, ev.UnitExited, exited)]


def _unkillable_is_gone() -> list[Patch]:
    def unkillable(turn: Turn, event: ev.UnitUnkillable) -> None:
        fold.FOLDS[ev.UnitEmptied](turn, ev.UnitEmptied(event.unit, event.generation))

    return [(fold.FOLDS, ev.UnitUnkillable, unkillable)]


def _leftovers_ignored() -> list[Patch]:
    plain = chaos_daemon.initial

    def initial(*args):
        state = plain(*args)
        return replace(state, member=replace(state.member, swept=True))

    return [(chaos_daemon, "initial", initial)]


# -- never one rank alone ------------------------------------------------------------------------


def _membership_not_proven() -> list[Patch]:
    return [(launch, "unproven", lambda observed, policy: None)]


def _one_rank_alone() -> list[Patch]:
    plain = fence.demand

    def demand(turn, wanted, grace_s):
        last = turn.policy.nodes[-1][0]
        if turn.policy.backend is Backend.MP:
            wanted = {node: units for node, units in wanted.items() if node != last}
        plain(turn, wanted, grace_s)

    return [(fence, "demand", demand)]


# -- who may end what ----------------------------------------------------------------------------


def _stall_is_silence() -> list[Patch]:
    return [(fold.FOLDS, ev.LoopStalled, lambda turn, event: None)]


def _stop_not_obeyed() -> list[Patch]:
    return [(fold._ASKED, ev.Verb.STOP, {})]


# -- records, budgets, settings ------------------------------------------------------------------


def _stamp_not_on_disk() -> list[Patch]:
    def see(turn: Turn, stamp: Stamp) -> None:
        seen = turn.state.seen
        high = Stamp(max(stamp.epoch, seen.epoch), max(stamp.generation, seen.generation))
        if high != seen:
            turn.set_state(seen=high)

    return [(Turn, "see", see)]


def _no_backoff() -> list[Patch]:
    def over(turn: Turn) -> None:
        fence.demand_nothing(turn, turn.policy.fail_grace_s)
        turn.set_lead(backoff_until_s=None)
        turn.move(Phase.WAITING, "no patience")

    return [(coordinator.PHASES, Phase.BACKING_OFF, over)]


def _no_budget() -> list[Patch]:
    plain = remedy.choose
    return [(remedy, "choose", lambda d, f, p, now: plain(d, replace(f, spent=(), causes=()), p, now))]


def _monitor_always_off() -> list[Patch]:
    plain = ladder.step_down

    def step_down(*args):
        found = plain(*args)
        return found and (replace(found[0], ray_memory_threshold=None), found[1])

    return [(ladder, "step_down", step_down), (launch, "_watched", lambda turn: True)]


def _same_settings_again() -> list[Patch]:
    def unchanged(*args):
        return next(arg.settings for arg in args if hasattr(arg, "settings")), "again"

    return [(ladder, "step_down", unchanged)]


def _canary_believed() -> list[Patch]:
    plain = fold.FOLDS[ev.CanaryAnswered]

    def canary(turn, event):
        plain(turn, replace(event, ok=True))

    return [(fold.FOLDS, ev.CanaryAnswered, canary)]


def _stop_command_forgotten() -> list[Patch]:
    def forgotten(turn, unit, grace_s):
        if unit.state is not UnitState.STOPPING and unit.state is not UnitState.UNKILLABLE:
            member.stop_unit(turn, unit, grace_s)

    return [(member, "end_unit", forgotten)]


def _says_it_once() -> list[Patch]:
    return [(fence, "resend", lambda turn: None)]


# -- what is kept, what is named, what watches ---------------------------------------------------


def _stop_not_kept() -> list[Patch]:
    plain = keeping.Kept
    return [(keeping, "Kept", lambda **kept: plain(**{**kept, "target": None}))]


def _pause_not_kept() -> list[Patch]:
    plain = keeping.Kept
    return [(keeping, "Kept", lambda **kept: plain(**{**kept, "paused": False}))]


def _cause_invented() -> list[Patch]:
    plain = decision.judge

    def judge(evidence):
        found = plain(evidence)
        return replace(found, cause="nccl_timeout") if found.cause == UNKNOWN else found

    return [(decision, "judge", judge)]


def _proof_ignored() -> list[Patch]:
    plain = decision.judge
    return [(decision, "judge", lambda evidence: plain(replace(evidence, signals=())))]


def _lost_guard_overlooked() -> list[Patch]:
    return [(launch, "_watched", lambda turn: True)]


def _down_at_once() -> list[Patch]:
    return [(stopping, "_still_wanted", lambda turn: {})]


MUTANTS: tuple[Mutant, ...] = (
    Mutant("stop_not_kept", _stop_not_kept),
    Mutant("pause_not_kept", _pause_not_kept),
    Mutant("cause_invented", _cause_invented),
    Mutant("proof_ignored", _proof_ignored),
    Mutant("lost_guard_overlooked", _lost_guard_overlooked),
    Mutant("down_at_once", _down_at_once),
    Mutant("instance_ignored", _instance_ignored),
    Mutant("old_stamps_accepted", _old_stamps_accepted),
    Mutant("retained_orders", _retained_orders),
    Mutant("epoch_not_renewed", _epoch_not_renewed),
    Mutant("epoch_not_taken", _epoch_not_taken),
    Mutant("peers_stamps_unheard", _peers_stamps_unheard),
    Mutant("stale_status_counts", _stale_status_counts),
    Mutant("plan_not_compared", _plan_not_compared),
    Mutant("fence_inferred", _fence_inferred),
    Mutant("older_answer_counts", _older_answer_counts),
    Mutant("root_is_tree", _root_is_tree),
    Mutant("unkillable_is_gone", _unkillable_is_gone),
    Mutant("leftovers_ignored", _leftovers_ignored),
    Mutant("membership_not_proven", _membership_not_proven),
    Mutant("one_rank_alone", _one_rank_alone),
    Mutant("always_present", silences.always_present),
    Mutant("will_acts", silences.will_acts),
    Mutant("worker_stops_on_silence", silences.worker_stops_on_silence),
    Mutant("whoever_answers_nothing_is_gone", silences.whoever_answers_nothing_is_gone),
    Mutant("silent_peer_is_leaving", silences.silent_peer_is_leaving),
    Mutant("broker_down_is_failure", silences.broker_down_is_failure),
    Mutant("stall_is_silence", _stall_is_silence),
    Mutant("stop_not_obeyed", _stop_not_obeyed),
    Mutant("stamp_not_on_disk", _stamp_not_on_disk),
    Mutant("no_backoff", _no_backoff),
    Mutant("no_budget", _no_budget),
    Mutant("monitor_always_off", _monitor_always_off),
    Mutant("same_settings_again", _same_settings_again),
    Mutant("canary_believed", _canary_believed),
    Mutant("stop_command_forgotten", _stop_command_forgotten),
    Mutant("says_it_once", _says_it_once),
)
