"""What the coordinator waits for, until when, and what it would do then: `sparkctl explain`. Pure.

Nothing is decided here and nothing is said twice: deadlines, budgets and remedies are asked of the core's own
functions, with a failure that is only assumed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sparkd.core import fence, launch, release, remedy
from sparkd.core.decision import follow
from sparkd.core.incident import case_of
from sparkd.core.membership import missing, unproven
from sparkd.core.policy import Policy
from sparkd.core.state import NEVER_S, Coordinator, State
from sparkd.core.turn import Turn
from sparkd.core.watch import outstanding_since_s
from sparkd.signals.model import Diagnosis, Evidence
from sparkd.words import ENGINE, LIVE, Phase

VERSION = 1
_NAMES: dict[Phase, str] = {
    Phase.LOADING_WEIGHTS: "loading weights",
    Phase.INIT_DISTRIBUTED: "connecting the ranks",
    Phase.RESOLVING_CONFIG: "reading the configuration",
    Phase.ALLOCATING_KV_CACHE: "allocating the KV cache",
    Phase.CAPTURING_GRAPHS: "capturing CUDA graphs",
    Phase.STARTING_API: "starting the API",
    Phase.BACKING_OFF: "backing off",
    Phase.FORMING: "forming the cluster",
}


@dataclass(frozen=True, slots=True)
class Wait:
    """What is waited for; the end of the wait in seconds from now (None = for ever), and what follows it."""

    what: tuple[str, ...]
    left_s: float | None = None
    then: str = ""


def explain(state: State, policy: Policy, now: float) -> dict[str, Any]:
    """Return what this node waits for and what it would do; times are seconds from now, None = no bound."""
    lead = state.coordinator
    if lead is None:
        return {"version": VERSION, "head": policy.head, "phase": None, "generation": state.seen.generation}
    turn = Turn(state=state, now=now, policy=policy, wakes=list(state.wakes))
    wait = _WAITS.get(lead.phase, _engine)(turn)
    return {
        "version": VERSION,
        "head": policy.head,
        "phase": lead.phase,
        "name": name_of(lead.phase),
        "generation": lead.generation,
        "waits_for": list(wait.what),
        "left_s": None if wait.left_s is None else max(0.0, wait.left_s),
        "then": wait.then,
        "if_memory": _if_memory(turn) if lead.phase in LIVE else None,
        "memory_not_back": [
            {"node": node, "generation": last} for node, last in fence.memory_not_back(state)
        ],
        "budget": _budget(lead, policy, now),
        "needs": lead.needs,
    }


def name_of(phase: Phase) -> str:
    """Return a phase as a person says it."""
    return _NAMES.get(phase, phase.value.replace("_", " "))


def _waiting(turn: Turn) -> Wait:
    until_s = turn.lead.backoff_until_s
    left_s = None if until_s is None else until_s - turn.now
    return Wait(
        turn.lead.waiting or missing(turn),
        left_s,
        "everything is rechecked for ever and costs no budget; then the fence",
    )


def _fencing(turn: Turn) -> Wait:
    then = f"generation {turn.state.seen.generation + 1} starts"
    member, unanswered = turn.member, fence.unanswered(turn)
    if member.emptied_at_s is None or member.fenced_generation >= member.emptied_generation:
        return Wait(unanswered, None, then)
    left_s = release.patient_until_s(turn, member.emptied_at_s) - turn.now
    return Wait(unanswered, left_s, f"without what has not come back by then, {then}")


def _forming(turn: Turn) -> Wait:
    lacking = unproven(turn.lead.watch.membership, turn.policy)
    then = "the start counts as failed, with this as its reason"
    return Wait((lacking[1],) if lacking else (), _left_s(turn), then)


def _left_s(turn: Turn) -> float | None:
    deadline_s = launch.deadline_s(turn)
    return None if deadline_s == NEVER_S else deadline_s - turn.now


def _engine(turn: Turn) -> Wait:
    return Wait((_progress(turn.lead),), _left_s(turn), "it is stuck: the start counts as failed")


def _progress(lead: Coordinator) -> str:
    progress, usual_s = lead.watch.progress, dict(lead.silences).get(lead.phase)
    pace = f" (at most every {usual_s:.0f} s so far)" if usual_s else ""
    if (
        progress is not None
        and progress.done is not None
        and progress.total
        and lead.phase is Phase.LOADING_WEIGHTS
    ):
        return f"shard {min(progress.done + 1, progress.total)} of {progress.total}{pace}"
    return f"any progress of {name_of(lead.phase)}{pace}"


def _verifying(turn: Turn) -> Wait:
    why = turn.lead.watch.canary_why
    text = "a real generation that comes back right" + (f" (last answer: {why})" if why else "")
    return Wait((text,), _left_s(turn), "the start counts as failed")


def _serving(turn: Turn) -> Wait:
    lead, policy = turn.lead, turn.policy
    watch = lead.watch
    asked = [at_s for at_s in (outstanding_since_s(watch), watch.canary_sent_at_s) if at_s is not None]
    if asked:
        left_s = max(watch.token_at_s, min(asked)) + policy.no_progress_s - turn.now
        return Wait(("the next token of what was asked",), left_s, "it is a hang: both nodes are fenced")
    left_s = lead.phase_since_s + policy.cooldown_s - turn.now
    if left_s > 0:
        then = "these settings count as proven, and failures in a row are counted anew"
        return Wait(("the cooldown: it has to serve so long without a failure",), left_s, then)
    return Wait((), None, f"without requests it is asked for a generation every {policy.canary_idle_s:g} s")


def _failing(turn: Turn) -> Wait:
    failure = turn.lead.failure
    left_s = failure.times.detected_s + turn.policy.drain_deadline_s - turn.now if failure else None
    return Wait(("the evidence of every node",), left_s, "it is judged with what there is")


def _backing_off(turn: Turn) -> Wait:
    lead = turn.lead
    cause = lead.incident.causes[-1] if lead.incident and lead.incident.causes else "the failure"
    left_s = None if lead.backoff_until_s is None else lead.backoff_until_s - turn.now
    remedy_text = lead.incident.remedy if lead.incident else ""
    return Wait((f"the wait after {cause}",), left_s, f"the next try: {remedy_text}")


def _escalated(turn: Turn) -> Wait:
    lead = turn.lead
    left_s = None if lead.retry_at_s is None else lead.retry_at_s - turn.now
    if lead.awaits_reboot:
        return Wait(
            (f"a person: {lead.needs}",), None, "it starts by itself when the node is back without it"
        )
    then = "tried again by itself, once" if left_s is not None else "nothing happens by itself"
    return Wait((f"a person: {lead.needs}",), left_s, then)


def _paused(turn: Turn) -> Wait:
    if turn.policy.observe_only:
        return Wait(("nothing: it only observes (recovery.observe_only)",))
    return Wait(("sparkctl resume",), None, f"back to {name_of(turn.lead.paused_from)}")


def _stopping(turn: Turn) -> Wait:
    return Wait(fence.unanswered(turn) if turn.lead.epoch else (), None, "stopped")


def _stopped(turn: Turn) -> Wait:
    return Wait(("sparkctl start", *turn.lead.waiting))


def _idle(turn: Turn) -> Wait:
    why = "a person stopped it" if turn.lead.asked_target is False else "engine.autostart is off"
    return Wait((f"sparkctl start ({why})",))


_WAITS: dict[Phase, Callable[[Turn], Wait]] = {
    Phase.IDLE: _idle,
    Phase.WAITING: _waiting,
    Phase.FENCING: _fencing,
    Phase.FORMING: _forming,
    **dict.fromkeys(ENGINE, _engine),
    Phase.VERIFYING: _verifying,
    Phase.SERVING: _serving,
    Phase.FAILING: _failing,
    Phase.BACKING_OFF: _backing_off,
    Phase.ESCALATED: _escalated,
    Phase.PAUSED: _paused,
    Phase.STOPPING: _stopping,
    Phase.STOPPED: _stopped,
}


def _if_memory(turn: Turn) -> str:
    """Return what would follow if the generation failed now for memory, as far as it can be said before."""
    lead = turn.lead
    assumed = Diagnosis("uma_host_exhaustion", lead.phase, None, False, 1.0, "assumed")
    case = case_of(turn, Evidence(), lead.streak + 1, lead.incident.causes if lead.incident else ())
    chosen = follow(case, assumed, turn.policy)
    return chosen.explanation if chosen.action is remedy.Action.RELAUNCH else f"give up: {chosen.explanation}"


def _budget(lead: Coordinator, policy: Policy, now: float) -> list[dict[str, Any]]:
    """Return, per account that has cost relaunches, how many are left and when the first counts no more.

    What no evidence decides has one account, under `unknown`, whatever it looked like.
    """
    since_s = now - policy.budget_window_s
    spent = [
        (remedy.account_of(cause), at_s)
        for cause, at_s in lead.spent
        if at_s > since_s and cause not in (*remedy.MEMORY, remedy.NCCL_STEP)
    ]
    return [
        {
            "cause": account,
            "left": max(0, remedy.budget_of(account, policy) - [name for name, _ in spent].count(account)),
            "of": remedy.budget_of(account, policy),
            "until_s": min(at_s for name, at_s in spent if name == account) - since_s,
        }
        for account in sorted({name for name, _ in spent})
    ]
