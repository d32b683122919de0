"""A member whose head is gone: the one case in which a worker ends its own part.

Never because a daemon is silent: the head's *host* has to be silent on every path (no word of the broker,
no HTTP, no ping, no handshake), without a break, and the engine has to show no activity: nothing comes in on
this node's networks, which no step over two nodes can do without. What could not be asked is not silent, and
what could not be counted is not quiet. A head that answers ping and nothing else is wedged: it is waited for.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sparkd.core import member
from sparkd.core.events import Host, PeerProbed
from sparkd.core.policy import Policy
from sparkd.core.state import Peer
from sparkd.core.turn import Turn
from sparkd.signals.model import Proof, Signal
from sparkd.words import LIVE, Phase

SIGNAL_ID = "observed_head_silent"
QUIET_BYTES_PER_S = 1 << 17
"""Less than this is no engine's: one token over two ranks moves two sums of the hidden state a layer (0.5 MiB
for 32 layers of 4096 in 16 bits). What else a node hears (ARP, monitoring) stays below it."""

GAP_MAX_S = 15.0
"""Between two answers farther apart nobody knows what was: a silence begins anew. A silent host is asked
every 5 s (two paths of 2 s, a ping of 1 s); and the canary of an idle engine (4 tokens, 2 MiB) stands out of
what is quiet within it."""

STARTING = frozenset(LIVE[: LIVE.index(Phase.VERIFYING)])
"""Phases in which an engine may be quiet for minutes: before its first canary."""

UNASKED: dict[str, Any] = {"received": None, "deserted_since_s": None}
"""What is known of a silence where nobody could ask, or was not there to: it begins anew."""


def fold_probe(peer: Peer, event: PeerProbed, now: float) -> dict[str, object]:
    """Return what a probe changes of what is known of the peer's host."""
    silent = not event.reached and event.host is Host.SILENT
    before = peer.received
    quiet = before is not None and event.received_bytes is not None and _is_quiet(before, event, now)
    since_s = peer.deserted_since_s if peer.deserted_since_s is not None else now
    return {
        "host": Host.UNKNOWN if event.reached else event.host,
        "received": None if event.received_bytes is None else (now, event.received_bytes),
        # The first count is one to compare with; it says nothing yet.
        "deserted_since_s": since_s if silent and quiet else None,
    }


def _is_quiet(before: tuple[float, int], event: PeerProbed, now: float) -> bool:
    at_s, count = before
    if event.received_bytes is None or now - at_s > GAP_MAX_S:
        return False
    return 0 <= event.received_bytes - count <= QUIET_BYTES_PER_S * (now - at_s)


def end_deserted(turn: Turn) -> None:
    """End this worker's part of a generation whose head's host is gone; once begun, whole."""
    if turn.state.coordinator is not None or turn.policy.observe_only:
        return
    units = member.alive(turn)
    if not units:
        return
    generation = max(unit.generation for unit in units)
    if turn.member.deserted_generation < generation and not _note_deserted(turn, generation):
        return
    for unit in units:
        if unit.generation <= turn.member.deserted_generation:
            member.end_unit(turn, unit, turn.policy.stop_grace_s)


def _note_deserted(turn: Turn, generation: int) -> bool:
    """Return whether the head has been gone for as long as a hang is borne; then say so, once.

    By the last answer, not by the clock: what was not asked since is not known.
    """
    head = turn.state.peer(turn.policy.head)
    if head is None or head.deserted_since_s is None or head.received is None:
        return False
    limit_s = _borne_s(head, turn.policy)
    if limit_s is None or head.received[0] < head.deserted_since_s + limit_s:
        return False
    text = (
        f"the host of {turn.policy.head} was silent on every path and nothing was received for "
        f"{limit_s:g} s: {turn.state.node} ended its part of generation {generation}"
    )
    source, node = "sparkd", turn.policy.head
    made = Signal(SIGNAL_ID, "peer_lost", Proof.PROVES, node, source, text, turn.now, generation, fatal=True)
    outbox = turn.member.outbox
    turn.set_member(deserted_generation=generation, outbox=replace(outbox, signals=(*outbox.signals, made)))
    return True


def _borne_s(head: Peer, policy: Policy) -> float | None:
    """Return for how long a silence is borne, by the head's last word; None = it says nothing.

    An engine that serves is tried when it is idle. One that starts reads its weights without a byte of the
    network: of it a silence says something only when the budgets of all phases of a start are over.
    """
    phase = head.telemetry.phase if head.telemetry is not None else None
    if phase is Phase.PAUSED:  # an idle engine is not tried in a pause
        return None
    if phase in STARTING:
        return policy.no_progress_s + sum(
            limit_s for name, limit_s in policy.phase_budget_s if name in STARTING
        )
    return policy.no_progress_s
