"""What the coordinator keeps across restarts: noted when it changes, proven when it has served."""

from __future__ import annotations

from operator import attrgetter

from sparkd.core.beginning import config_of
from sparkd.core.context import context_to_keep, same_context
from sparkd.core.records import Kept, KeptChanged, SettingsAdopted
from sparkd.core.turn import Turn
from sparkd.sizing.estimate import Observed, learn
from sparkd.sizing.model import Node
from sparkd.words import ENGINE, NOTHING_SAID, EngineMemory, Phase


def served(turn: Turn) -> None:
    """Serving has lasted: the row of failures is over, and these settings are the last known good ones."""
    lead = turn.lead
    if (lead.streak, lead.retrying, lead.unclean, lead.trial) != (0, False, 0, False):
        turn.set_lead(streak=0, retrying=False, unclean=0, trial=False)
    if lead.proven != lead.settings:
        turn.set_lead(proven=lead.settings)
    learn_peaks(turn)


def learn_peaks(turn: Turn) -> None:
    """Let what this start took of this node correct the next estimate; measured is better than typical."""
    lead, member = turn.lead, turn.member
    peaks = lead.watch.peaks
    if member.model is None or member.memory is None or member.baseline_bytes is None:
        return
    if not turn.policy.unified_memory or not peaks or peaks == lead.learned_from:
        return
    if lead.settings.kv_cache_bytes is None and lead.watch.said.kv_cache_bytes is None:
        return  # a version that does not say it: nobody knows what the rest is beside
    if not any(phase in ENGINE for phase, _ in peaks):
        return  # taken over: nobody saw it start
    node = Node(member.memory.total_bytes, member.baseline_bytes)
    request = member.model.request(node, lead.settings, turn.policy.floors)
    learned = learn(request, Observed(peaks, lead.watch.said.kv_cache_bytes), member.model.weights)
    turn.set_lead(learned=learned, learned_from=peaks)


OTHER_CONTEXT = (
    "model, engine, driver, kernel or nodes are others: what was learned with these, else as asked"
)


FACTS = (
    *("context", "proven", "spent", "silences", "forgiven", "unclean", "learned", "others"),
    *("epoch", "generation", "phase", "at", "asked_target", "asked_pause", "climbed", "streak"),
    *("needs", "retry_at_s", "awaits_reboot", "failed", "kept", "watch.said"),
)
"""All of the coordinator that `keep` looks at."""
_facts = attrgetter(*FACTS)


def keep(turn: Turn) -> None:
    """Note what is kept where it changed; where none of it has moved in this step it stands."""
    lead, known = turn.lead, turn.before.coordinator if turn.before is not None else None
    if known is not None and (lead is known or _facts(known) == _facts(lead)):
        return
    escalated = lead.phase is Phase.ESCALATED
    kept = Kept(
        context=context_to_keep(lead.context, turn.policy.context),
        proven=lead.proven,
        spent=tuple(cause for cause, _ in lead.spent),
        silences=lead.silences,
        forgiven=lead.forgiven,
        unclean=lead.unclean,
        learned=lead.learned,
        # What an earlier daemon left stands until this one has ordered something.
        generation=lead.generation if lead.epoch else lead.kept.generation,
        phase=lead.at if lead.epoch else lead.kept.phase,
        target=lead.asked_target,
        paused=lead.asked_pause,
        climbed=lead.climbed,
        streak=lead.streak,
        needs=lead.needs if escalated else "",
        may_pass=escalated and lead.retry_at_s is not None,
        awaits_reboot=escalated and lead.awaits_reboot,
        config=config_of(turn.policy) if escalated else "",
        others=lead.others,
        failed=lead.failed,
        said=_said(turn),
    )
    if kept != lead.kept:
        if lead.kept.context and not same_context(lead.kept.context, kept.context):
            # On disk the settings of the other context still stand as those in force.
            turn.note(SettingsAdopted(settings=lead.settings, reason=OTHER_CONTEXT))
        turn.set_lead(kept=kept)
        turn.note(KeptChanged(kept=kept))


def _said(turn: Turn) -> EngineMemory:
    """Return what the generation has said of its memory once it serves: by then it has said it all."""
    lead = turn.lead
    if lead.epoch and lead.phase is Phase.SERVING:
        return lead.watch.said
    return lead.kept.said if lead.generation == lead.kept.generation or not lead.epoch else NOTHING_SAID
