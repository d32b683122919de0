"""Sizing asked before a launch: what the model's files and the nodes' memory say against the settings.

The numbers are typical where nothing was measured (docs/sizing.md), so they never stand against what was
seen: settings that have served here, and those that a failure's evidence chose, are launched as they are.
Where only typical amounts speak against a plan and nothing fits within the floors, it is tried all the same:
a wrong guess must not keep a model from serving. What is unknown changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from sparkd.core import guards, incident, rungs
from sparkd.core.policy import UnfitPlan
from sparkd.core.records import PlanDoubted, SettingsAdopted
from sparkd.core.turn import Turn
from sparkd.sizing.advice import Advice, plan_for
from sparkd.sizing.model import Node, Source
from sparkd.sizing.verdict import Failure, Judged
from sparkd.words import Backend, Settings, differing


@dataclass(frozen=True, slots=True)
class Unfit:
    """A plan that the numbers reject.

    Attributes:
        node: the first on which it would fail.
        failure: what would end it.
        fitting: settings that fit every node; None = none within the floors.
        certain: nothing fits, and already what was counted and measured is too much.
        held: less is free than the settings ask for: others may give it back.
        advice: what only a person can do, and the settings that fit, as sentences.
    """

    node: str
    failure: Failure
    fitting: Settings | None
    certain: bool
    held: bool
    advice: str


def admit(turn: Turn) -> bool:
    """Ask sizing; return whether the settings in force, or others that it chose, may be launched."""
    found = unfit(turn, turn.lead.settings)
    if found is None:
        return True
    why = _kept(turn)
    if why:
        _note(turn, found, "launched", why)
        return True
    better = _better(turn, found)
    if turn.policy.unfit_plan is UnfitPlan.ADJUST and better is not None:
        _adjust(turn, found, better)
        return True
    if turn.policy.unfit_plan is UnfitPlan.ADJUST and not found.certain:
        _note(turn, found, "launched", "nothing fits, but the amounts are typical ones: it is tried")
        return True
    _refuse(turn, found)
    return False


def rejects(turn: Turn, settings: Settings) -> bool:
    """Return whether a launch of *settings* that is nobody's order is better left alone."""
    return turn.policy.unfit_plan is not UnfitPlan.WARN and unfit(turn, settings) is not None


def unfit(turn: Turn, settings: Settings) -> Unfit | None:
    """Return what speaks against *settings*, None = nothing, as far as anything is known."""
    now, first = settings, None
    for name, node in _nodes(turn):
        advice = _advice(turn, node, now)
        if advice is None or not advice.asked.failures:
            continue
        first = first or (name, advice)
        if advice.fitting is None:
            return _unfit(*first, None, f"on {name}: {advice.only_you or 'no settings are known to fit'}")
        now = advice.fitting.settings
    if first is None:
        return None
    return _unfit(*first, now, f"settings that fit: {_said(settings, now)}")


def _nodes(turn: Turn) -> tuple[tuple[str, Node], ...]:
    """Return every node's memory as far as it is known; where the engine runs, as it was before it."""
    if not turn.policy.unified_memory:
        return ()  # the device's own memory is known to nobody before vLLM tells it
    member, guarded = turn.member, guards.enforce(turn.state, turn.policy)
    guard = turn.policy.guard_floor_bytes if guarded else None
    free = member.memory.available_bytes if member.memory else None
    total = member.memory.total_bytes if member.memory else None
    known = [(turn.state.node, total, member.baseline_bytes if member.ran else free)]
    known += [
        (peer.node, said.total_bytes, said.baseline_bytes if member.ran else said.available_bytes)
        for peer in turn.state.peers
        if (said := peer.status) is not None
    ]
    return tuple([(name, Node(size, left, guard_floor_bytes=guard)) for name, size, left in known if size])


def _advice(turn: Turn, node: Node, settings: Settings) -> Advice | None:
    """Ask for one node; where it would fail, what fits has Ray's monitor loosened: that costs nothing."""
    model, policy = turn.member.model, guards.in_force(turn.state, turn.policy)
    if model is None:
        return None
    learned = turn.lead.learned
    asked = plan_for(model.request(node, settings, policy.floors, learned), model.weights)
    loose, _ = rungs.loosen_monitor(settings, policy)
    if not asked.asked.failures or policy.backend is not Backend.RAY or loose == settings:
        return asked
    freed = plan_for(model.request(node, loose, policy.floors, learned), model.weights)
    fitting = freed.fitting if freed.asked.failures else freed.asked
    return replace(asked, fitting=fitting, only_you=freed.only_you)


def _unfit(node: str, advice: Advice, fitting: Settings | None, text: str) -> Unfit:
    """Name what would fail first; where nothing fits, what surely would."""
    asked = advice.asked
    sure = [failure for failure in asked.failures if _certain(asked, failure)] if fitting is None else []
    held = any(failure.cause == "startup_free_memory_too_low" for failure in asked.failures)
    return Unfit(node, (sure or asked.failures)[0], fitting, bool(sure), held, text)


def _certain(judged: Judged, failure: Failure) -> bool:
    """Whether a phase is too much already without any typical amount, or vLLM itself refuses the split."""
    if failure.cause == "bad_configuration":
        return True
    parts = next((need.parts for need in judged.needs if need.phase is failure.phase), ())
    known = sum(part.bytes for part in parts if part.source is not Source.DECLARED)
    return known - (judged.sizes.weights.bytes - judged.sizes.weights.least_bytes) > judged.limit.bytes


def _kept(turn: Turn) -> str:
    """Return why the settings are launched all the same; empty where the numbers decide."""
    lead = turn.lead
    if turn.policy.unfit_plan is UnfitPlan.WARN:
        return "recovery.unfit_plan only warns"
    if lead.settings in (lead.proven, lead.verified):
        return "these settings have served here"
    if lead.incident is not None:
        return "a failure's evidence chose these settings"
    return ""


def _better(turn: Turn, found: Unfit) -> Settings | None:
    """Return what served before, else what fits; nothing that has failed for memory."""
    for settings in (turn.lead.proven, found.fitting):
        if settings is not None and settings not in turn.lead.failed:
            return settings
    return None


def _adjust(turn: Turn, found: Unfit, better: Settings) -> None:
    changed = _said(turn.lead.settings, better)
    why = "those that served before" if better == turn.lead.proven else "settings that fit"
    _note(turn, found, "adjusted", f"{why}: {changed}")
    reason = f"before the launch, {found.node}: {found.failure.text}; {why}: {changed}"
    turn.set_lead(settings=better, trial=False)
    turn.note(SettingsAdopted(settings=better, reason=reason))


def _refuse(turn: Turn, found: Unfit) -> None:
    """Give up before anything was started; what others hold may be given back, so that is tried again."""
    why = f"not launched, {found.node}: {found.failure.text}"
    _note(turn, found, "refused", found.advice)
    incident.open_incident(turn, why, turn.state.seen.generation)
    incident.name_cause(turn, found.failure.cause)
    incident.escalate(turn, why, found.advice, may_pass=found.held)


def _note(turn: Turn, found: Unfit, action: str, why: str) -> None:
    failure = found.failure
    text = f"{failure.text}; {why}"
    turn.note(
        PlanDoubted(found.node, failure.phase, failure.cause, failure.over_bytes, action=action, text=text)
    )


def _said(before: Settings, after: Settings) -> str:
    """Return what differs, as a person writes it into the configuration."""
    return ", ".join(
        f"{name} {_value(getattr(before, name))} -> {_value(getattr(after, name))}"
        for name in differing(before, after)
    )


def _value(value: object) -> str:
    return "vLLM's own" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
