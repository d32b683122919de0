"""What this node says of itself: its status when it changed and as a heartbeat, evidence, telemetry."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sparkd.core.commands import (
    LeaseFloor,
    ProbePeer,
    PublishIncident,
    PublishReport,
    PublishStatus,
    PublishTelemetry,
)
from sparkd.core.evolve import evolve
from sparkd.core.messages import IncidentNotice, MemberStatus, Report, Telemetry, UnitStatus, same_level
from sparkd.core.records import IncidentClosed, IncidentOpened, Record, Remedied
from sparkd.core.state import Peer, State
from sparkd.core.turn import Turn
from sparkd.words import Phase

PROBE_PEER_EVERY_S = 2.0
"""Period of asking a silent peer over HTTP, and of fetching evidence that is missing: a fifth of the default
silence, and as long as one path's deadline (`adapters.peer.DEADLINE_S`)."""


def publish(turn: Turn) -> None:
    """Order whatever is to be said now."""
    if turn.records:
        _incidents(turn)
    _report(turn)
    _status(turn)
    _telemetry(turn)
    _lease(turn)
    for peer in turn.state.peers:
        _probe_peer(turn, peer)


def _incidents(turn: Turn) -> None:
    """Tell people and automations of every turn that an incident has taken in this step."""
    for record in turn.records:
        told = _notice(record)
        if told is not None:
            notice = IncidentNotice(node=turn.state.node, instance=turn.state.instance, **told)
            turn.order(PublishIncident(notice=notice))


def _notice(record: Record) -> dict[str, Any] | None:
    match record:
        case IncidentOpened():
            turned: dict[str, Any] = {"state": "open", "text": record.reason}
        case Remedied(diagnosis=diagnosis):
            turned = {"state": "remedied", "cause": diagnosis.cause, "text": diagnosis.explanation}
            turned["action"] = f"{record.action}: {record.explanation}"
        case IncidentClosed():
            turned = {"state": record.outcome, "cause": record.cause, "needs": record.needs}
        case _:
            return None
    return {"incident": record.incident, "generation": record.generation, **turned}


def status_of(state: State, shared_digest: str, node_digest: str, version: str) -> MemberStatus:
    """Return this node's status as a level."""
    member = state.member
    intent, memory = member.intent, member.memory
    said = {
        "node": state.node,
        "instance": state.instance,
        "seen": state.seen,
        "heard": _heard(state),
        "intent_seq": intent.seq if intent else 0,
        "intent_coordinator": intent.coordinator if intent else "",
        "refused": member.refused,
        "units": tuple(
            [
                UnitStatus(u.unit, u.generation, u.state, u.code, u.signal, u.ordered, u.reason, u.by_hand)
                for u in member.units
            ]
        ),
        "swept": member.swept,
        "emptied_generation": member.emptied_generation,
        "fenced_generation": member.fenced_generation,
        "unreleased_generation": member.unreleased_generation,
        "drained_generation": member.drained_generation,
        "report_seq": member.outbox.last_seq,
        "shared_digest": shared_digest,
        "node_digest": node_digest,
        "ready": member.ready,
        "not_ready": member.not_ready,
        "leaving": member.leaving,
        "unclean_generation": member.unclean_generation,
        "leaking": member.leaking,
        "available_bytes": memory.available_bytes if memory else None,
        "total_bytes": memory.total_bytes if memory else None,
        "baseline_bytes": member.baseline_bytes,
        "lowest_bytes": member.lowest_bytes,
        "pressure_percent": memory.pressure_percent if memory else None,
        "guard": member.guard,
        "version": version,
    }
    return evolve(_SILENT_STATUS, said)


_SILENT_STATUS = MemberStatus(node="", instance="")


def _heard(state: State) -> tuple[tuple[str, str], ...]:
    return tuple([(peer.node, peer.status.instance) for peer in state.peers if peer.status])


def _status(turn: Turn) -> None:
    policy = turn.policy
    published = turn.state.published
    due = turn.due(published.status_at_s + policy.status_every_s)
    if not due and (not turn.news or _says_the_same(turn)):
        return
    status = status_of(turn.state, policy.shared_digest, policy.node_digest, policy.version)
    if due or not same_level(published.level, status):
        turn.set_state(news=False, published=evolve(published, {"level": status, "status_at_s": turn.now}))
        turn.order(PublishStatus(status=status))
        turn.wake(turn.now + policy.status_every_s)


def _says_the_same(turn: Turn) -> bool:
    """Whether nothing changed in this step that a status tells; what was news before has been said."""
    before, state = turn.before, turn.state
    return (
        before is not None
        and state.member is before.member
        and state.seen == before.seen
        and (state.peers is before.peers or _heard(state) == _heard(before))
    )


def _report(turn: Turn) -> None:
    outbox = turn.member.outbox
    if outbox.last_seq <= outbox.sent_seq:
        return
    report = reports_from(turn.state, outbox.sent_seq + 1)
    turn.set_member(outbox=replace(outbox, sent_seq=outbox.last_seq))
    if report is not None:
        turn.order(PublishReport(report=report))


def reports_from(state: State, first_seq: int) -> Report | None:
    """Return this instance's evidence from *first_seq* on, as far as it is still kept."""
    outbox = state.member.outbox
    start = max(first_seq, outbox.first_seq)
    signals = outbox.signals[start - outbox.first_seq :]
    if not signals:
        return None
    return Report(node=state.node, instance=state.instance, first_seq=start, signals=signals)


def _telemetry(turn: Turn) -> None:
    published = turn.state.published
    if not turn.due(published.telemetry_at_s + turn.policy.telemetry_every_s):
        return
    turn.set_state(news=False, published=evolve(published, {"telemetry_at_s": turn.now}))
    turn.wake(turn.now + turn.policy.telemetry_every_s)
    if turn.state.broker:
        turn.order(PublishTelemetry(telemetry=_telemetry_of(turn)))


def _telemetry_of(turn: Turn) -> Telemetry:
    memory, lead, guard = turn.member.memory, turn.state.coordinator, turn.member.guard
    progress = lead.watch.progress if lead else None
    said = {
        "node": turn.state.node,
        "instance": turn.state.instance,
        "phase": _phase(turn),
        "generation": _generation(turn),
        "available_bytes": memory.available_bytes if memory else None,
        "total_bytes": memory.total_bytes if memory else None,
        "pressure_percent": memory.pressure_percent if memory else None,
        "done": progress.done if progress else None,
        "total": progress.total if progress else None,
        "floor_bytes": guard.floor_bytes if guard else None,
        "guarded": guard is not None and guard.enforcing,
        "sent_s": turn.now,
        "echoes": tuple([peer.echo for peer in turn.state.peers if peer.echo]),
    }
    return evolve(_SILENT_TELEMETRY, said)


_SILENT_TELEMETRY = Telemetry(node="", instance="", phase=Phase.IDLE, generation=0)


LEASE_EVERY_S = 10.0
"""A third of what a lease lasts: a loop that stood still for some seconds does not lose it."""


def _lease(turn: Turn) -> None:
    """Tell the guard the phase's floor, at once where the phase changed."""
    published, phase = turn.state.published, _phase(turn)
    if not turn.due(published.leased_at_s + LEASE_EVERY_S) and phase is published.leased:
        return
    turn.set_state(news=False, published=evolve(published, {"leased": phase, "leased_at_s": turn.now}))
    turn.wake(turn.now + LEASE_EVERY_S)
    turn.order(LeaseFloor(phase=phase, floor_bytes=turn.policy.guard_floor_bytes))


def _phase(turn: Turn) -> Phase:
    lead = turn.state.coordinator
    return lead.phase if lead is not None else _heads_phase(turn)


def _generation(turn: Turn) -> int:
    if turn.state.coordinator is not None:
        return turn.lead.generation
    intent = turn.member.intent
    return intent.stamp.generation if intent else 0


def _heads_phase(turn: Turn) -> Phase:
    """A worker's phase is the generation's: what the head said last, else what its intent says."""
    head, intent = turn.state.peer(turn.policy.head), turn.member.intent
    if head is not None and head.telemetry is not None:
        return head.telemetry.phase
    return intent.phase if intent else Phase.IDLE


def _probe_peer(turn: Turn, peer: Peer) -> None:
    """The second path: ask a peer that the broker does not bring, and fetch evidence that is missing."""
    state = turn.state
    silent = turn.due(max(peer.mqtt_at_s, state.broker_since_s) + turn.policy.peer_silence_s)
    gap = state.coordinator is not None and _lacks_evidence(peer)
    asks = silent or gap or peer.will
    if not asks or peer.probing or not turn.due(peer.probed_at_s + PROBE_PEER_EVERY_S):
        return
    turn.set_peer(peer, news=False, probing=True, probed_at_s=turn.now)
    turn.order(ProbePeer(node=peer.node, reports_from=peer.received_seq + 1 if gap else None))


def _lacks_evidence(peer: Peer) -> bool:
    return peer.fresh and peer.status is not None and peer.status.report_seq > peer.received_seq
