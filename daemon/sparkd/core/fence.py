"""The fence: every node's explicit answer that an older generation is dead there and its memory back.

Never inferred from a silence or from another node's word. Death is always observed; memory that does not
come back is waited for up to `memory_release_s`, and then the fence is answered all the same: an answer of
its own (`unreleased_generation`), which people are told. The next launch is tried then, but not with less
free than any start takes: that is waited for (`core.scarce`), and where it is a leak, escalated.
A node answers for the intent that it has applied (its sequence number), so an answer to an older question
does not count.
"""

from __future__ import annotations

from collections.abc import Mapping
from operator import attrgetter

from sparkd.core.commands import PublishIntent
from sparkd.core.evolve import evolve
from sparkd.core.membership import WEDGED, addressees, digests, is_present, is_wedged
from sparkd.core.messages import Intent, UnitState
from sparkd.core.state import Peer, State
from sparkd.core.turn import Turn
from sparkd.words import Stamp, UnitName

Wanted = Mapping[str, tuple[UnitName, ...]]


def demand(turn: Turn, wanted: Wanted, grace_s: float) -> None:
    """Make *wanted* the cluster's desired level: a new intent where it differs from the one in force."""
    lead = turn.lead
    stamp = Stamp(lead.epoch, _generation(turn, wanted))
    units = tuple([(node, wanted.get(node, ())) for node, _ in turn.policy.nodes])
    level = stamp, addressees(turn), units, lead.settings, digests(turn)
    if lead.intent is not None and level == _level(lead.intent):
        return
    intent = Intent(
        stamp=stamp,
        seq=lead.seq + 1,
        coordinator=turn.state.instance,
        node=turn.state.node,
        addressees=addressees(turn),
        wanted=units,
        settings=lead.settings,
        shared_digest=turn.policy.shared_digest,
        node_digests=digests(turn),
        phase=lead.phase,
        grace_s=grace_s,
    )
    _publish(turn, intent)


_level = attrgetter("stamp", "addressees", "wanted", "settings", "node_digests")
"""The phase and the grace only inform: they ride along with the next change of level."""


def _generation(turn: Turn, wanted: Wanted) -> int:
    """Units are wanted of the generation that runs; a fence is about everything that anybody ever saw."""
    if any(wanted.values()):
        return turn.lead.generation
    return turn.state.seen.generation


def _publish(turn: Turn, intent: Intent) -> None:
    turn.set_lead(seq=intent.seq, intent=intent)
    turn.set_member(intent=intent, refused=None)
    turn.order(PublishIntent(intent=intent))
    said = {"intent_at_s": turn.now, "intent_seq": intent.seq}
    turn.set_state(published=evolve(turn.state.published, said))


def demand_nothing(turn: Turn, grace_s: float) -> None:
    """Order the fence: nothing may live on any node."""
    demand(turn, {}, grace_s)


def _asked(turn: Turn) -> int:
    """The generation up to which the intent in force asks for death."""
    intent = turn.lead.intent
    return turn.state.seen.generation if intent is None else intent.stamp.generation


def has_applied(turn: Turn, peer: Peer) -> bool:
    """Return whether the peer answers for the intent in force."""
    intent, status = turn.lead.intent, peer.status
    return (
        intent is not None
        and status is not None
        and status.intent_seq == intent.seq
        and status.intent_coordinator == intent.coordinator
    )


def resend(turn: Turn) -> None:
    """Say the intent again to whoever has not applied it: a lost message is only a late one.

    Who refuses is told at the pace of its own word: the reason may go away.
    """
    published, intent = turn.state.published, turn.lead.intent
    if intent is None:
        return
    open_ = [peer for peer in turn.state.peers if not has_applied(turn, peer)]
    if not open_:
        return
    refused = all(peer.status is not None and peer.status.refused is not None for peer in open_)
    every_s = turn.policy.status_every_s if refused else turn.policy.resend_s
    if turn.state.broker and turn.due(published.intent_at_s + every_s):
        turn.set_state(published=evolve(published, {"intent_at_s": turn.now}))
        turn.order(PublishIntent(intent=intent))
        turn.wake(turn.now + every_s)


def is_emptied(turn: Turn) -> bool:
    """Return whether every node has said that no process of the generation or an older one lives."""
    return not not_emptied(turn)


def not_emptied(turn: Turn) -> tuple[str, ...]:
    """Return the nodes that have not said so."""
    generation, member = _asked(turn), turn.member
    own = member.emptied_generation >= generation and not any(u.alive for u in member.units)
    return (
        *(() if own else (turn.state.node,)),
        *(peer.node for peer in turn.state.peers if not _is_empty(turn, peer, generation)),
    )


def _is_empty(turn: Turn, peer: Peer, generation: int) -> bool:
    status = peer.status
    return has_applied(turn, peer) and status is not None and status.emptied_generation >= generation


def is_fenced(turn: Turn) -> bool:
    """Return whether every node is emptied and has its memory back."""
    generation = _asked(turn)
    return (
        is_emptied(turn)
        and turn.member.fenced_generation >= generation
        and all(p.status is not None and p.status.fenced_generation >= generation for p in turn.state.peers)
    )


def somebody_lives(turn: Turn) -> bool:
    """Return whether any node's last word is that a unit lives there, of whichever coordinator."""
    known = [unit.state for peer in turn.state.peers if peer.status for unit in peer.status.units]
    return any(unit.alive for unit in turn.member.units) or any(s is not UnitState.GONE for s in known)


def unanswered(turn: Turn) -> tuple[str, ...]:
    """Return, as sentences, whose answer to the fence is missing."""
    generation, member = _asked(turn), turn.member
    reasons = []
    if member.fenced_generation < generation:
        reasons.append(_unfenced(turn.state.node, member.emptied_generation, generation))
    for peer in turn.state.peers:
        if is_wedged(turn, peer):
            reasons.append(f"{peer.node}: {WEDGED}, so nobody says that its engine is dead")
        elif not is_present(turn, peer):
            reasons.append(f"{peer.node}: its sparkd is not heard, so nobody says that its engine is dead")
        elif not has_applied(turn, peer):
            reasons.append(f"{peer.node}: has not applied the fence yet")
        elif peer.status is not None and peer.status.fenced_generation < generation:
            reasons.append(_unfenced(peer.node, peer.status.emptied_generation, generation))
    return tuple(reasons)


def _unfenced(node: str, emptied: int, generation: int) -> str:
    if emptied < generation:
        return f"{node}: generation {generation} is not dead yet"
    return f"{node}: the memory of generation {generation} is not back yet"


def memory_not_back(state: State) -> tuple[tuple[str, int], ...]:
    """Return (node, generation) where the newest fence was answered because the wait for memory was over."""
    told = [(state.node, state.member.unreleased_generation, state.member.fenced_generation)]
    peers = [(peer.node, peer.status) for peer in state.peers if peer.status is not None]
    told += [(node, said.unreleased_generation, said.fenced_generation) for node, said in peers]
    return tuple((node, lacks) for node, lacks, fenced in told if lacks and lacks == fenced)


def unkillable(turn: Turn) -> tuple[str, ...]:
    """Return the nodes on which processes survive SIGKILL: only a reboot helps.

    A retained word may be of before that reboot: it only informs.
    """
    own = any(unit.state is UnitState.UNKILLABLE for unit in turn.member.units)
    peers = [
        peer.node
        for peer in turn.state.peers
        if peer.status and peer.fresh and any(u.state is UnitState.UNKILLABLE for u in peer.status.units)
    ]
    return tuple(([turn.state.node] if own else []) + peers)


def take_epoch(turn: Turn) -> None:
    """Before the first intent: one more than the highest stamp on disk, in statuses, retained, on units."""
    if turn.lead.epoch:
        return
    seen = turn.state.seen
    turn.set_lead(epoch=seen.epoch + 1)
    turn.see(Stamp(seen.epoch + 1, seen.generation))
