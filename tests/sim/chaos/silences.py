"""Rules about who is there and who is gone, switched off."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sparkd.core import coordinator, fence, fold, incident, member, membership, orphan, stopping, told
from sparkd.core import events as ev
from sparkd.core.state import Peer
from sparkd.core.turn import Turn

Patch = tuple[Any, str, Any]


def will_acts() -> list[Patch]:
    plain = fold.FOLDS[ev.WillReceived]

    def will(turn: Turn, event: ev.WillReceived) -> None:
        plain(turn, event)
        if turn.state.coordinator is not None:
            text = f"the broker says that {event.node} is gone"
            incident.observe_failure(turn, "observed_will", "peer_lost", text, node=event.node)

    return [(fold.FOLDS, ev.WillReceived, will)]


def worker_stops_on_silence() -> list[Patch]:
    plain = member.decide

    def decide(turn: Turn) -> None:
        plain(turn)
        head = turn.state.peer(turn.policy.head)
        if head is not None and turn.now - head.mqtt_at_s > 3 * turn.policy.peer_silence_s:
            for unit in member.alive(turn):
                member.end_unit(turn, unit, turn.policy.stop_grace_s)

    return [(member, "decide", decide), (member, "is_touched", lambda settled, state: True)]


def whoever_answers_nothing_is_gone() -> list[Patch]:
    """A daemon that is away, and a host that only answers ping, are taken for a host that is gone."""
    plain = orphan.fold_probe

    def fold_probe(peer, event, now):
        return plain(peer, replace(event, host=ev.Host.SILENT), now)

    return [(orphan, "fold_probe", fold_probe)]


def always_present() -> list[Patch]:
    def present(_turn: Turn, peer: Peer) -> bool:
        return peer.status is not None

    return [(module, "is_present", present) for module in (membership, stopping, fence, told)]


def silent_peer_is_leaving() -> list[Patch]:
    plain = coordinator._leaving

    def leaving(turn: Turn) -> str | None:
        silent = [peer.node for peer in turn.state.peers if not membership.is_present(turn, peer)]
        return plain(turn) or next(iter(silent), None)

    return [(coordinator, "_leaving", leaving)]


def broker_down_is_failure() -> list[Patch]:
    plain = fold.FOLDS[ev.BrokerChanged]

    def broker(turn: Turn, event: ev.BrokerChanged) -> None:
        plain(turn, event)
        if turn.state.coordinator is not None and not event.connected:
            incident.observe_failure(turn, "observed_broker", "peer_lost", "the broker is gone")

    return [(fold.FOLDS, ev.BrokerChanged, broker)]
