"""The decision after a failed generation, as a function of what it used: so that it can be made again.

`replay` makes the decisions of a recorded incident with today's code and shows where they differ.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from sparkd.core import remedy, restart
from sparkd.core.policy import Policy
from sparkd.core.remedy import Action, Facts, Remedy
from sparkd.signals.judge import judge
from sparkd.signals.model import Diagnosis, Evidence
from sparkd.words import Settings


@dataclass(frozen=True, slots=True)
class Case:
    """All that a decision uses beside the policy.

    Attributes:
        evidence, facts: what is known of the failure, and of what went before.
        generation: the one that failed.
        at_s: when it is decided, on the clock of `facts.spent`.
        trial: its settings were tried although `proven` ones were known.
        retrying: it was tried by itself after an escalation.
    """

    evidence: Evidence
    facts: Facts
    generation: int
    at_s: float
    trial: bool = False
    proven: Settings | None = None
    retrying: bool = False


def decide(case: Case, policy: Policy) -> tuple[Diagnosis, Remedy]:
    """Return the cause and what follows from it."""
    diagnosis = judge(case.evidence)
    return diagnosis, follow(case, diagnosis, policy)


def follow(case: Case, diagnosis: Diagnosis, policy: Policy) -> Remedy:
    """Return what follows from *diagnosis*, whoever made it."""
    chosen = remedy.choose(diagnosis, case.facts, policy, case.at_s)
    return _weighed(case, diagnosis, chosen, policy)


def _weighed(case: Case, diagnosis: Diagnosis, chosen: Remedy, policy: Policy) -> Remedy:
    """Fit the remedy into what went before: a trial falls back to what worked, a slow retry ends at once."""
    if case.trial and chosen.memory and case.proven not in (None, case.facts.settings):
        text = "the asked settings failed again: back to those that served before"
        wait_s = restart.backoff(case.facts.failures, policy)
        chosen = Remedy(Action.RELAUNCH, case.proven or chosen.settings, text, backoff_s=wait_s, memory=True)
    if chosen.action is not Action.RELAUNCH:
        return chosen
    if case.retrying and not chosen.memory:
        text = f"{diagnosis.cause}: trying again by itself did not help either"
        return replace(chosen, action=Action.ESCALATE, explanation=text, needs=diagnosis.advice or text)
    seed = f"{policy.shared_digest}/{case.generation}"
    return replace(chosen, backoff_s=restart.jittered(chosen.backoff_s, seed, policy))
