"""From a fenced cluster to a verified generation: form, follow the phases, prove it by a real generation.

Nothing waits for a fixed time. Ray's head first, then the workers, then proof that exactly the configured
addresses joined with their GPUs, then serve. Each phase is bounded by its silence, not by its length.
"""

from __future__ import annotations

from dataclasses import replace

from sparkd.core import decision, fence, fitting, guards, incident, keeping, watch
from sparkd.core.membership import head_joined, unproven
from sparkd.core.need import RAISED_THRESHOLD
from sparkd.core.phases import is_forward
from sparkd.core.policy import Policy
from sparkd.core.records import SettingsAdopted, Verified
from sparkd.core.remedy import Action
from sparkd.core.state import NEVER_BEFORE_S, NEVER_S, Watch
from sparkd.core.turn import Turn
from sparkd.signals.model import Diagnosis, Evidence
from sparkd.words import ENGINE, Backend, Phase, Stamp, UnitName

VERIFY_PAUSE_S = 1.0
"""Between two tries of the verifying generation: a port that has just opened may refuse one."""


def begin(turn: Turn) -> None:
    """Name a new generation and begin to form it."""
    _apply_edits(turn)
    if not _watched(turn) or not fitting.admit(turn):
        return
    lead = turn.lead
    generation = turn.state.seen.generation + 1
    turn.see(Stamp(lead.epoch, generation))
    if lead.incident is not None:
        turn.set_lead(incident=replace(lead.incident, relaunches=lead.incident.relaunches + 1))
    if lead.failure is not None:
        times = replace(lead.failure.times, launched_s=turn.now)
        if turn.lead.incident is not None:
            turn.set_lead(incident=replace(turn.lead.incident, times=times))
    turn.set_lead(
        generation=generation,
        watch=Watch(progress_at_s=turn.now, membership_ok_at_s=turn.now, token_at_s=turn.now),
        recent=(),
        failure=None,
        waiting=(),
        needs="",
        leaks_forgiven=False,
        unguarded=not guards.enforce(turn.state, turn.policy),
        launched_at_s=turn.now,
    )
    turn.move(Phase.FORMING, "every node is fenced")


def _apply_edits(turn: Turn) -> None:
    """What the operator edited while an engine of before ran on is in force from this generation on."""
    if turn.lead.edited:
        settings = replace(turn.lead.settings, **dict(turn.lead.edited))
        turn.set_lead(settings=settings, edited=())
        turn.note(SettingsAdopted(settings=settings, reason="as edited while the engine ran on"))


MONITOR_OFF = "every node's guard enforces: Ray's memory monitor is off"
MONITOR_AGAIN = "a guard no longer enforces: Ray's memory monitor watches again"


def _watched(turn: Turn) -> bool:
    """Fit Ray's monitor to the guards as they are now; return whether a launch may follow.

    What failed with the monitor on is not tried again: one step down from it, as after that failure.
    """
    settings, policy = turn.lead.settings, guards.in_force(turn.state, turn.policy)
    if policy.guard_enforcing:
        _leave_to_guards(turn)
        return True
    if settings.ray_memory_threshold is not None:
        return True
    watched = replace(settings, ray_memory_threshold=RAISED_THRESHOLD)
    if watched in turn.lead.failed:
        assumed = Diagnosis("uma_host_exhaustion", None, None, False, 1.0, MONITOR_AGAIN)
        case = incident.case_of(turn, Evidence(), 1)
        case = replace(case, facts=replace(case.facts, settings=watched))
        chosen = decision.follow(case, assumed, policy)
        if chosen.action is Action.ESCALATE:
            incident.escalate(turn, f"{MONITOR_AGAIN}, and {chosen.explanation}", chosen.needs)
            return False
        watched = chosen.settings
    turn.set_lead(settings=watched)
    turn.note(SettingsAdopted(settings=watched, reason=MONITOR_AGAIN))
    return True


def _leave_to_guards(turn: Turn) -> None:
    """Ray's monitor goes off where that is asked for: what the guards watch, nobody else has to."""
    settings = turn.lead.settings
    off = replace(settings, ray_memory_threshold=guards.asked(turn.state, turn.policy).ray_memory_threshold)
    if off.ray_memory_threshold is None and off not in (settings, *turn.lead.failed):
        turn.set_lead(settings=off)
        turn.note(SettingsAdopted(settings=off, reason=MONITOR_OFF))


def form(turn: Turn) -> None:
    """Raise Ray stage by stage until its membership is proven; the mp backend has nothing to form."""
    names = [name for name, _ in turn.policy.nodes]
    grace_s = turn.policy.stop_grace_s
    if turn.policy.backend is Backend.MP:
        turn.move(Phase.RESOLVING_CONFIG, "every rank starts")
        fence.demand(turn, running(turn.policy), grace_s)
        return
    observed = turn.lead.watch.membership
    joined = names if head_joined(observed, turn.policy) else [turn.policy.head, *_wanted_already(turn)]
    fence.demand(turn, dict.fromkeys(joined, (UnitName.RAY,)), grace_s)
    lacking = unproven(observed, turn.policy)
    if lacking is None:
        turn.move(Phase.RESOLVING_CONFIG, f"{len(names)} of {len(names)} Ray nodes, addresses as configured")
        fence.demand(turn, running(turn.policy), grace_s)
    elif turn.due(deadline_s(turn)):
        _fail_forming(turn, *lacking)


def _wanted_already(turn: Turn) -> tuple[str, ...]:
    """Return the nodes whose Ray this generation has asked for: it is not taken back while one waits."""
    intent = turn.lead.intent
    if intent is None or intent.stamp.generation != turn.lead.generation:
        return ()
    return tuple(name for name, units in intent.wanted if units)


def running(policy: Policy) -> fence.Wanted:
    """Return the units of a whole generation, by node: serve on every rank, or over every node's Ray."""
    names = [name for name, _ in policy.nodes]
    if policy.backend is Backend.MP:
        return dict.fromkeys(names, (UnitName.SERVE,))
    return {
        name: (UnitName.RAY, UnitName.SERVE) if name == policy.head else (UnitName.RAY,) for name in names
    }


FORMING_CAUSES = {
    "observed_gcs_unreachable": "ray_gcs_unreachable",
    "observed_membership_wrong_address": "wrong_interface",
    "observed_membership_missing": "ray_insufficient_resources",
}


def _fail_forming(turn: Turn, id_: str, text: str) -> None:
    incident.observe_failure(turn, id_, FORMING_CAUSES[id_], text)


def follow(turn: Turn) -> None:
    """Follow the engine's own phases; notice a start that stands still."""
    _advance(turn)
    watch.check_ray(turn)
    if turn.lead.phase in ENGINE and watch.serve_is_up(turn):
        # Whatever its output says or no longer says: a real generation decides next.
        turn.move(Phase.VERIFYING, "the API server answers")
        return
    _check_budget(turn)


def _advance(turn: Turn) -> None:
    progress = turn.lead.watch.progress
    if progress is not None and progress.phase is not None and is_forward(turn.lead.phase, progress.phase):
        turn.move(progress.phase, "as the engine's output shows")


def _check_budget(turn: Turn) -> None:
    if turn.due(deadline_s(turn)):
        text = f"no progress for {patience_s(turn):g} s in {turn.lead.phase}{_shards(turn)}"
        _forget_pace(turn)
        incident.observe_failure(turn, "observed_phase_stuck", "engine_hang", text)


def _forget_pace(turn: Turn) -> None:
    """What is judged by its own pace may have become slower (a cold cache): the next start has time."""
    kept = tuple((phase, known_s) for phase, known_s in turn.lead.silences if phase is not turn.lead.phase)
    turn.set_lead(silences=kept)


def deadline_s(turn: Turn) -> float:
    """Return when this phase of a start counts as failed if nothing comes; infinite where it has no bound.

    Forming and verifying are bounded by their length, the engine's own phases by their silence.
    """
    lead = turn.lead
    limit_s = patience_s(turn)
    since_s = max(lead.phase_since_s, lead.watch.progress_at_s if lead.phase in ENGINE else NEVER_BEFORE_S)
    return NEVER_S if limit_s is None else since_s + limit_s


STALL_FLOOR_S = 60.0
"""A load that has begun is never called stuck sooner, however fast this model has loaded before: design
section 4 asks for a stalled load to be noticed in a minute."""


def patience_s(turn: Turn) -> float | None:
    """Return the longest silence of progress (or length: `deadline_s`) that is allowed, None = no bound.

    A load that has begun is judged by this model's own pace. Elsewhere what was seen before can only make
    more patient: a cold compile cache looks nothing like a warm one.
    """
    lead, policy = turn.lead, turn.policy
    limit_s = policy.budget_of(lead.phase)
    known_s = dict(lead.silences).get(lead.phase)
    progress = lead.watch.progress
    if lead.phase is Phase.LOADING_WEIGHTS and progress is not None and progress.done:
        return policy.stall_s if known_s is None else min(policy.stall_s, max(STALL_FLOOR_S, 3 * known_s))
    if limit_s is None or known_s is None:
        return limit_s
    return max(limit_s, 2 * known_s)


def _learn_silences(turn: Turn) -> None:
    """Keep what this start has shown of its pace; what was slower before fades."""
    lead = turn.lead
    before, seen = dict(lead.silences), dict(lead.watch.silences)
    names = [phase for phase in ENGINE if phase in before or phase in seen]
    learned = [(name, max(seen.get(name, 0.0), 0.8 * before.get(name, 0.0))) for name in names]
    turn.set_lead(silences=tuple((name, round(silence_s, 3)) for name, silence_s in learned))


def _shards(turn: Turn) -> str:
    progress = turn.lead.watch.progress
    if progress is None or progress.done is None or progress.total is None:
        return ""
    return f" at {progress.done} of {progress.total}"


def verify(turn: Turn) -> None:
    """Only a real generation makes it serving."""
    watch.check_ray(turn)
    if turn.lead.phase is not Phase.VERIFYING:
        return
    seen = turn.lead.watch
    if seen.canary_ok is True:
        _serve(turn)
    elif turn.due(deadline_s(turn)):
        text = f"the verifying generation did not come right: {seen.canary_why or 'no answer'}"
        incident.observe_failure(turn, "observed_canary_failed", "engine_hang", text)
    elif seen.canary_sent_at_s is None and turn.due(seen.canary_done_at_s + VERIFY_PAUSE_S):
        watch.send_canary(turn, turn.policy.verify_deadline_s)


def _serve(turn: Turn) -> None:
    lead = turn.lead
    started_s = lead.launched_at_s if lead.launched_at_s is not None else turn.now
    turn.note(
        Verified(
            generation=turn.lead.generation,
            latency_s=lead.watch.canary_latency_s or 0.0,
            start_s=turn.now - started_s,
        )
    )
    _learn_silences(turn)
    keeping.learn_peaks(turn)
    turn.set_lead(verified=lead.settings)
    turn.move(Phase.SERVING, "verified by a real generation")
    incident.close(turn, "recovered")
    turn.set_watch(token_at_s=turn.now)
