"""The state of a daemon that has just started: what it remembers, as far as that still says something."""

from __future__ import annotations

from dataclasses import dataclass, field

from sparkd.core.context import same_context
from sparkd.core.edited import settings_in_force, within
from sparkd.core.leak import leaks
from sparkd.core.learned import recall
from sparkd.core.policy import Policy
from sparkd.core.records import InContext, Kept
from sparkd.core.restart import backoff
from sparkd.core.state import Coordinator, Member, Peer, State
from sparkd.words import NO_STAMP, Phase, Settings, Stamp


@dataclass(frozen=True, slots=True)
class Remembered:
    """What survives a restart of the daemon, read from disk before the first step.

    `unclean_generation`: what ran when an earlier boot ended; `returned`: as in `Member`, of this boot;
    `unrested`: something ran in this boot and has not been noted as resting; `ran_at_s`: since when, None =
    nobody knows.
    """

    seen: Stamp = NO_STAMP
    incidents: int = 0
    settings: Settings | None = None
    asked: Settings | None = None
    kept: Kept = field(default_factory=Kept)
    unclean_generation: int = 0
    returned: tuple[int, ...] = ()
    unrested: bool = False
    ran_at_s: float | None = None


def initial(policy: Policy, instance: str, remembered: Remembered, now: float) -> State:
    """Return the state of a daemon that has just started."""
    member = Member(
        unclean_generation=remembered.unclean_generation,
        returned=remembered.returned,
        leaking=leaks(remembered.returned, policy),
        ran=remembered.unrested,
        ran_at_s=remembered.ran_at_s,
    )
    return State(
        node=policy.node,
        instance=instance,
        member=member,
        peers=tuple(Peer(node=name) for name, _ in policy.nodes if name != policy.node),
        coordinator=_coordinator(policy, remembered, now) if policy.is_head else None,
        seen=remembered.seen,
        head=policy.head,
    )


def config_of(policy: Policy) -> str:
    """Return a name of what is configured on the head: another one once a person has edited anything."""
    return f"{policy.shared_digest} {policy.node_digest}"


def _coordinator(policy: Policy, remembered: Remembered, now: float) -> Coordinator:
    """Take over what was kept, as far as it still says something; budgets count on from now."""
    kept = remembered.kept
    last = InContext(
        kept.context, remembered.settings, remembered.asked, kept.proven, kept.silences, kept.learned
    )
    known, others = recall(last, kept.others, policy.context)
    asked, floors = policy.settings, policy.floors
    same = same_context(kept.context, policy.context) and remembered.asked in {None, asked}
    proven = known.proven if known.asked == asked else None
    escalated = bool(kept.needs) and kept.config == config_of(policy) and not policy.observe_only
    settings = within(settings_in_force(known.settings, known.asked, asked), asked, floors)
    retry_at_s = now + policy.escalated_retry_s if escalated and kept.may_pass else None
    return Coordinator(
        phase=Phase.ESCALATED if escalated else Phase.IDLE,
        needs=kept.needs if escalated else "",
        retry_at_s=retry_at_s,
        awaits_reboot=escalated and kept.awaits_reboot,
        streak=kept.streak if same else 0,
        climbed=kept.climbed and same,
        # Nobody knows how much of the wait has passed: it is waited for anew.
        backoff_until_s=now + backoff(kept.streak, policy) if same and kept.phase in _WAITED else None,
        phase_since_s=now,
        target=policy.autostart if kept.target is None else kept.target,
        asked_target=kept.target,
        asked_pause=kept.paused,
        settings=settings,
        # Of a disk that was damaged, what is in force may be among them: then it is tried once more.
        failed=tuple([each for each in kept.failed if each != settings]) if same else (),
        incidents=remembered.incidents,
        spent=tuple((cause, now) for cause in kept.spent),
        pause_wanted=policy.observe_only or kept.paused,
        proven=proven if proven is not None and within(proven, asked, floors) == proven else None,
        silences=known.silences,
        learned=known.learned,
        context=known.context,
        others=others,
        forgiven=kept.forgiven,
        unclean=kept.unclean,
        kept=kept,
    )


_WAITED = (Phase.FAILING, Phase.BACKING_OFF)
