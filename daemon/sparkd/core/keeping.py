"""What the coordinator keeps across restarts: noted when it changes, proven when it has served."""

from __future__ import annotations

from sparkd.core.context import context_to_keep, same_context
from sparkd.core.records import Kept, KeptChanged, SettingsAdopted
from sparkd.core.turn import Turn


def served(turn: Turn) -> None:
    """Serving has lasted: the row of failures is over, and these settings are the last known good ones."""
    lead = turn.lead
    if (lead.streak, lead.retrying, lead.unclean, lead.trial) != (0, False, 0, False):
        turn.set_lead(streak=0, retrying=False, unclean=0, trial=False, climbed=False)
    if lead.proven != lead.settings:
        turn.set_lead(proven=lead.settings)


OTHER_CONTEXT = (
    "model, engine, driver, kernel or nodes are others: what was learned with these, else as asked"
)


def keep(turn: Turn) -> None:
    """Note what is kept where it changed."""
    lead = turn.lead
    kept = Kept(
        context=context_to_keep(lead.context, turn.policy.context),
        proven=lead.proven,
        spent=tuple(cause for cause, _ in lead.spent),
        silences=lead.silences,
        forgiven=lead.forgiven,
        unclean=lead.unclean,
        # What an earlier daemon left stands until this one has ordered something.
        generation=lead.generation if lead.epoch else lead.kept.generation,
        phase=lead.phase if lead.epoch else lead.kept.phase,
        target=lead.asked_target,
        paused=lead.asked_pause,
        others=lead.others,
    )
    if kept != lead.kept:
        if lead.kept.context and not same_context(lead.kept.context, kept.context):
            # On disk the settings of the other context still stand as those in force.
            turn.note(SettingsAdopted(settings=lead.settings, reason=OTHER_CONTEXT))
        turn.set_lead(kept=kept)
        turn.note(KeptChanged(kept=kept))
