"""Who is there and whose word counts: peers, instances, stamps, and the proof of Ray's membership.

Closed without any clock: a status is *fresh* when it names this daemon's own instance as heard (this
instance did not exist before this daemon started), an instance that was seen to be replaced counts again only
where it answers a question of now (HTTP), and an order acts only where it names the addressee's instance.
"""

from __future__ import annotations

from typing import Any

from sparkd.core.events import Host, IntentReceived, MembershipObserved, Path, StatusReceived
from sparkd.core.messages import Intent, MemberStatus, UnitState, same_level
from sparkd.core.offset import UNKNOWN
from sparkd.core.policy import Policy
from sparkd.core.records import PeerChanged
from sparkd.core.scarce import is_crossed
from sparkd.core.state import RETIRED_MAX, Peer, State
from sparkd.core.turn import Turn

HEARD = {"host": Host.UNKNOWN, "deserted_since_s": None}
"""What a peer's word says of its host: that it is there."""


def fold_status(turn: Turn, event: StatusReceived) -> None:
    """Take a peer's status: retained ones raise the stamp and inform; live ones count.

    What the broker kept of this node's own last daemon raises the stamp: a wiped node learns it there.
    """
    status = event.status
    peer = turn.state.peer(status.node)
    if status.node == turn.state.node:
        turn.see(status.seen)
    elif peer is None:
        turn.drop("status", "unknown_node", status.node)
    elif status.instance in peer.retired and event.path is not Path.HTTP:
        turn.drop("status", "retired_instance", status.node)
    elif event.retained:
        turn.see(status.seen)
        if peer.status is None:
            turn.set_peer(peer, status=status)
    else:
        turn.see(status.seen)
        _take_live(turn, peer, event)


def _take_live(turn: Turn, peer: Peer, event: StatusReceived) -> None:
    status = event.status
    before = peer.status
    changed = before is not None and before.instance != status.instance
    by_mqtt = event.path is Path.MQTT
    fresh = not by_mqtt or (turn.state.node, turn.state.instance) in status.heard
    if changed and not fresh:
        # It names an instance of ours that is gone, or none: an old message, or one that is about to be
        # said again. Nothing is given up for it.
        turn.drop("status", "not_fresh", status.node)
        return
    if changed:
        turn.note(PeerChanged(node=status.node, present=True, reason="its sparkd was started anew"))
    changes: dict[str, Any] = {
        "status": status,
        "available_bytes": status.available_bytes,
        "heard_at_s": turn.now,
        "fresh": fresh,
        "will": False,
        **HEARD,
    }
    if by_mqtt:
        # What a probe said is over once the peer is heard: nobody asks again, so nobody knows.
        changes |= {"mqtt_at_s": turn.now, "probe_reason": ""}
    else:
        changes["http_at_s"] = turn.now
    if before is not None and changed:
        changes |= {"retired": _retired(peer, status.instance, before.instance)}
        changes |= {"received_seq": 0, "offset": UNKNOWN, "echo": None}
    same = (
        fresh == peer.fresh
        and not peer.will
        and not is_crossed(turn, peer.available_bytes, status.available_bytes)
        and _is_known(turn, before, status)
        and (not by_mqtt or is_heard(turn, peer))
    )
    turn.change_peer(peer, changes, news=not same)


def _is_known(turn: Turn, before: MemberStatus | None, status: MemberStatus) -> bool:
    """Whether nothing is decided here by what is new in it: only the head looks at others' units."""
    if turn.state.coordinator is None:
        return before is not None and before.instance == status.instance
    return same_level(before, status)


def _retired(peer: Peer, instance: str, replaced: str) -> tuple[str, ...]:
    """Return the instances that are over.

    Of two that a late message has put in the wrong order the one that lives answers for itself: it is asked
    over HTTP as soon as it is not heard any more.
    """
    others = tuple(known for known in peer.retired if known != instance)
    return (*others, replaced)[-RETIRED_MAX:]


def fold_intent(turn: Turn, event: IntentReceived) -> None:
    """Accept an intent as this node's desired level, or say why not."""
    intent = event.intent
    older = intent.stamp < turn.state.seen
    turn.see(intent.stamp)
    if event.retained or turn.state.coordinator is not None:
        return
    reason = refusal(intent, turn.state, turn.policy, older=older)
    if reason == "known":
        return
    if reason is None:
        turn.set_member(intent=intent, refused=None)
        return
    turn.drop("intent", reason, intent.node)
    if intent.instance_of(turn.state.node) == turn.state.instance:
        turn.set_member(refused=reason)


def refusal(intent: Intent, state: State, policy: Policy, *, older: bool) -> str | None:
    """Return why *intent* is not accepted here, None = it is, "known" = it is the one in force."""
    current = state.member.intent
    if intent.node != policy.head:
        return "not_the_coordinator"
    if intent.instance_of(state.node) != state.instance:
        return "other_instance"
    if policy.observe_only:
        return "observe_only"
    if current is not None and current.coordinator == intent.coordinator and intent.seq <= current.seq:
        return "known" if intent.seq == current.seq else "replay"
    if older:
        return "old_stamp"
    return _differing_plan(intent, state, policy)


def _differing_plan(intent: Intent, state: State, policy: Policy) -> str | None:
    if not intent.units_of(state.node):
        return None  # a fence is obeyed whatever the configuration says
    if intent.shared_digest != policy.shared_digest:
        return "plan_differs"
    if dict(intent.node_digests).get(state.node) != policy.node_digest:
        return "rendering_changed"
    return None


def is_heard(turn: Turn, peer: Peer) -> bool:
    """Return whether the peer was heard through the broker lately: another word of it is no news."""
    return turn.now < peer.mqtt_at_s + turn.policy.peer_silence_s


def is_present(turn: Turn, peer: Peer) -> bool:
    """Return whether the peer's daemon can be ordered now: fresh, and heard through the broker lately."""
    silent_at_s = peer.mqtt_at_s + turn.policy.peer_silence_s
    return peer.fresh and peer.status is not None and not turn.due(silent_at_s)


WEDGED = "wedged: its host answers ping, and neither its sparkd nor its sshd does; it may need a power cycle"


def is_wedged(turn: Turn, peer: Peer) -> bool:
    """Return whether the peer's host answers and nothing on it does: neither away nor off."""
    return peer.host is Host.PINGS and not is_present(turn, peer)


def are_present(turn: Turn) -> bool:
    """Return whether every peer is."""
    return all(is_present(turn, peer) for peer in turn.state.peers)


def missing(turn: Turn) -> tuple[str, ...]:
    """Return, as sentences, every precondition of a launch that is not there; none = launch."""
    reasons: list[str] = []
    if not turn.state.broker:
        reasons.append("the broker is not connected")
    reasons += _own_missing(turn)
    for peer in turn.state.peers:
        reasons += _peer_missing(turn, peer)
    return tuple(reasons)


def leaking(turn: Turn) -> tuple[str, ...]:
    """Return the nodes on which every teardown gives back less memory than the one before.

    A boot begins with all of the memory: what a retained word says of it may be over.
    """
    own = [turn.state.node] if turn.member.leaking else []
    peers = [peer for peer in turn.state.peers if peer.fresh]
    return tuple(own + [peer.node for peer in peers if peer.status is not None and peer.status.leaking])


def _own_missing(turn: Turn) -> list[str]:
    member = turn.member
    if not member.swept:
        return [f"{turn.state.node}: looking for processes of an earlier daemon"]
    if any(unit.alive for unit in member.units):
        return []  # looked for after its end: first the fence
    return _not_ready(turn.state.node, ready=member.ready, why=member.not_ready)


def _peer_missing(turn: Turn, peer: Peer) -> list[str]:
    status = peer.status
    if is_wedged(turn, peer):
        return [f"{peer.node}: {WEDGED}"]
    if status is None or not is_present(turn, peer):
        return [f"{peer.node}: its sparkd is not heard"]
    if status.leaving:
        return [f"{peer.node}: its sparkd is leaving"]
    if peer.will:
        return [f"{peer.node}: its session with the broker broke; it is asked whether it is there"]
    if status.shared_digest != turn.policy.shared_digest:
        return [f"{peer.node}: its configuration differs from this node's (compare the files)"]
    if not status.swept:
        return [f"{peer.node}: {status.not_ready or 'looking for processes of an earlier daemon'}"]
    if status.refused is not None and status.refused in ("plan_differs", "rendering_changed"):
        return [f"{peer.node}: refuses the plan: {status.refused}"]
    if any(unit.state is not UnitState.GONE for unit in status.units):
        return []
    return _not_ready(peer.node, ready=status.ready, why=status.not_ready)


def _not_ready(node: str, *, ready: bool | None, why: str | None) -> list[str]:
    if ready:
        return []
    return [f"{node}: {why}" if why else f"{node}: checking the model's files"]


def digests(turn: Turn) -> tuple[tuple[str, str], ...]:
    """Return each node's digest as that node reported it."""
    own = [(turn.state.node, turn.policy.node_digest)]
    return tuple(own + [(peer.node, peer.status.node_digest) for peer in turn.state.peers if peer.status])


def addressees(turn: Turn) -> tuple[tuple[str, str], ...]:
    """Return (node, instance) of everybody who is known."""
    own = [(turn.state.node, turn.state.instance)]
    return tuple(own + [(peer.node, peer.status.instance) for peer in turn.state.peers if peer.status])


def unproven(observed: MembershipObserved | None, policy: Policy) -> tuple[str, str] | None:
    """Return (signal id, sentence) of what Ray's table lacks, None = membership is proven.

    Proven: exactly the configured addresses are alive, each with the GPUs that the plan needs.
    """
    if observed is None or observed.nodes is None:
        why = observed.reason if observed is not None else "not asked yet"
        return "observed_gcs_unreachable", f"Ray's head does not answer: {why}"
    alive = {node.address: node for node in observed.nodes if node.alive}
    names = dict(policy.nodes)
    lacking = [f"{name} ({address})" for name, address in policy.nodes if address not in alive]
    strange = sorted(set(alive) - set(names.values()))
    if strange:
        text = f"Ray registered {', '.join(strange)}, which is no configured address"
        return "observed_membership_wrong_address", text
    if lacking:
        text = f"{len(alive)} of {len(policy.nodes)} Ray nodes joined; missing: {', '.join(lacking)}"
        return "observed_membership_missing", text
    for name, address in policy.nodes:
        gpus = dict(alive[address].resources).get("GPU", 0.0)
        if gpus < policy.gpus:
            return "observed_membership_missing", f"{name} offers {gpus:g} of {policy.gpus} GPU to Ray"
    return None


def head_joined(observed: MembershipObserved | None, policy: Policy) -> bool:
    """Return whether Ray's head runs under its configured address."""
    address = dict(policy.nodes)[policy.head]
    return bool(observed and observed.nodes and any(n.alive and n.address == address for n in observed.nodes))


def lost_nodes(observed: MembershipObserved | None, policy: Policy) -> tuple[str, ...]:
    """Return the names of configured nodes that Ray does not list as alive; none where unknown."""
    if observed is None or observed.nodes is None:
        return ()
    alive = {node.address for node in observed.nodes if node.alive}
    return tuple(name for name, address in policy.nodes if address not in alive)
