"""What people are told of the surroundings: peers that come and go, the session with the broker.

Levels, not edges: the state keeps what was last told, and one record follows every change, whatever event
brought it. Nothing is decided by it.
"""

from __future__ import annotations

from sparkd.core.membership import WEDGED, is_present, is_wedged
from sparkd.core.records import PeerChanged, SessionChanged, WaitingFor
from sparkd.core.state import Peer
from sparkd.core.turn import Turn


def tell(turn: Turn) -> None:
    """Note what differs from what was last told."""
    _session(turn)
    for peer in turn.state.peers:
        _peer(turn, peer)


def _session(turn: Turn) -> None:
    state = turn.state
    connected, why = state.broker, state.broker_why
    if connected == state.told_session or (not connected and not why):
        return  # no session before the first try is nothing to tell
    turn.set_state(told_session=connected)
    turn.note(SessionChanged(connected=connected, reason="connected" if connected else why))


def _peer(turn: Turn, peer: Peer) -> None:
    present = is_present(turn, peer)
    if not present and peer.told_present is False and (wedged := is_wedged(turn, peer)) != peer.told_wedged:
        turn.set_peer(peer, told_wedged=wedged)
        turn.note(PeerChanged(peer.node, present=False, reason=WEDGED if wedged else "no longer wedged"))
        return
    if present == peer.told_present or (not present and _may_still_come(turn, peer)):
        return
    reason = "heard through the broker" if present else _why_absent(turn, peer)
    turn.set_peer(peer, told_present=present, told_wedged=False)
    turn.note(PeerChanged(node=peer.node, present=present, reason=reason))


def _may_still_come(turn: Turn, peer: Peer) -> bool:
    """At a start every peer is absent: that is news when the session has stood (or failed) for a while."""
    if peer.told_present is not None:
        return False
    return turn.state.told_session is None or not turn.due(
        turn.state.broker_since_s + turn.policy.peer_silence_s
    )


def _why_absent(turn: Turn, peer: Peer) -> str:
    status = peer.status
    if status is None or peer.heard_at_s == float("-inf"):
        return "never heard since this daemon's start"
    if status.leaving:
        return "its sparkd has left"
    if not peer.fresh:
        return "it is heard, but has not heard this daemon"
    silence = f"nothing heard through the broker for {turn.policy.peer_silence_s:g} s"
    return silence if turn.state.broker else f"{silence}, the session with it is gone"


def waiting_for(turn: Turn, reasons: tuple[str, ...]) -> None:
    """Note what the coordinator waits for, where it changed."""
    if reasons != turn.lead.waiting:
        turn.set_lead(waiting=reasons)
        turn.note(WaitingFor(reasons=reasons))
