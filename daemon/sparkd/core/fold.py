"""Every event folded into the state: what was observed, nothing decided.

An observation that only confirms what is known is set without `news`: it moves a silence
later and leaves everything that was decided as it is.

An event of a generation that is over changes no observation of the one that runs. Decisions follow in
`member` and `coordinator`, from the state alone, so the order of events within a step does not matter.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from sparkd.core import events as ev
from sparkd.core import (
    guards,
    incident,
    leftovers,
    member,
    membership,
    observed,
    offset,
    orphan,
    release,
    scarce,
    unstarted,
    watch,
)
from sparkd.core.messages import Echo, UnitState
from sparkd.core.publish import PROBE_PEER_EVERY_S
from sparkd.core.records import UnitChanged
from sparkd.core.state import CURVE_MAX, REPORTS_MAX, Peer, Unit
from sparkd.core.turn import Concern, Turn
from sparkd.signals.model import MemorySample, Proof, Signal
from sparkd.words import LIVE, UnitName


def fold(turn: Turn, event: ev.Event) -> None:
    """Fold one event."""
    FOLDS[type(event)](turn, event)


def _broker(turn: Turn, event: ev.BrokerChanged) -> None:
    turn.set_state(broker=event.connected, broker_since_s=turn.now, broker_why=event.reason)


def _report(turn: Turn, event: ev.ReportReceived) -> None:
    report = event.report
    peer = turn.state.peer(report.node)
    if peer is None or turn.state.coordinator is None:
        return
    if peer.status is None or peer.status.instance != report.instance:
        turn.drop("report", "other_instance", report.node)
        return
    if report.first_seq > peer.received_seq + 1 and event.path is ev.Path.MQTT:
        return  # a gap: the level in its status tells, and what is missing is fetched
    # What was asked for and is no longer kept there is lost, and must not be waited for.
    new = report.signals[max(0, peer.received_seq + 1 - report.first_seq) :]
    known = offset.of_report(peer.offset, report)
    received_seq = max(peer.received_seq, report.first_seq + len(report.signals) - 1)
    turn.set_peer(peer, received_seq=received_seq, offset=known)
    for signal in new:
        incident.note_signal(turn, offset.placed(known, report, signal))


def _telemetry(turn: Turn, event: ev.TelemetryReceived) -> None:
    telemetry = event.telemetry
    peer = turn.state.peer(telemetry.node)
    if peer is None or peer.status is None or peer.status.instance != telemetry.instance:
        return
    if peer.telemetry is None or peer.telemetry.phase is not telemetry.phase:
        turn.wake_for(Concern.SAY, turn.now)  # the guard's floor follows the phase
    free, sent_s = telemetry.available_bytes, telemetry.sent_s
    unheard = peer.will or not membership.is_heard(turn, peer)
    heard = {
        "telemetry": telemetry,
        "available_bytes": free,
        "curve": _with_sample(peer.curve, turn.now, free),
        "heard_at_s": turn.now,
        "mqtt_at_s": turn.now,
        "offset": offset.of_telemetry(peer.offset, telemetry, turn.state.instance, turn.now),
        "echo": None if sent_s is None else Echo(telemetry.instance, sent_s, turn.now),
        "will": False,
        **membership.HEARD,
    }
    turn.change_peer(peer, heard, news=unheard or scarce.is_crossed(turn, peer.available_bytes, free))


def _will(turn: Turn, event: ev.WillReceived) -> None:
    """A broken connection asks for a probe and proves nothing: until an answer of now nothing new begins.

    Words of before it may still come, late and all at once; only what says it after the will ends the doubt.
    """
    peer = turn.state.peer(event.node)
    if peer is not None and peer.status is not None and peer.status.instance == event.instance:
        turn.set_peer(peer, will=True, probed_at_s=float("-inf"))


def _peer_probed(turn: Turn, event: ev.PeerProbed) -> None:
    peer = turn.state.peer(event.node)
    if peer is None:
        return
    reason = "" if event.reached else event.reason
    turn.wake_for(Concern.SAY, peer.probed_at_s + PROBE_PEER_EVERY_S)
    news = reason != peer.probe_reason
    will = peer.will and not event.reached
    host = orphan.fold_probe(peer, event, turn.now)
    # A silence that goes on is judged at each of its answers.
    silence = host["deserted_since_s"] is not None or peer.deserted_since_s is not None
    news = news or silence or will != peer.will or host["host"] is not peer.host
    turn.set_peer(peer, news=news, probing=False, will=will, probe_reason=reason, **host)


def _unit_started(turn: Turn, event: ev.UnitStarted) -> None:
    unit = member.find_unit(turn, event.unit, event.generation)
    if unit is not None and unit.state is UnitState.STARTING:
        _change(turn, unit, f"pid {event.pid}", state=UnitState.RUNNING, pid=event.pid)


def _unit_start_failed(turn: Turn, event: ev.UnitStartFailed) -> None:
    unit = member.find_unit(turn, event.unit, event.generation)
    if unit is not None and unit.state is not UnitState.GONE:
        _not_started(turn, unit, event.reason)


def _not_started(turn: Turn, unit: Unit, reason: str) -> None:
    """How far the start had come nobody knows: until its end is confirmed the unit may live."""
    if unit.state in (UnitState.STARTING, UnitState.RUNNING):
        _change(turn, unit, reason, state=UnitState.EXITED, reason=reason)
    cause, text = unstarted.cause_of(reason), unstarted.text_of(unit.unit, reason)
    _sees(turn, _own_signal(turn, unstarted.SIGNAL_ID, cause, text, unit.generation))


def _own_signal(turn: Turn, id_: str, cause: str, text: str, generation: int) -> Signal:
    return Signal(id_, cause, Proof.PROVES, turn.state.node, "sparkd", text, turn.now, generation, fatal=True)


def _unit_exited(turn: Turn, event: ev.UnitExited) -> None:
    unit = member.find_unit(turn, event.unit, event.generation)
    if unit is None or (unit.code, unit.signal) != (None, None):
        return
    # Told after its last process was gone, it still says how it ended.
    late = unit.state in (UnitState.STOPPING, UnitState.GONE)
    state = unit.state if late else UnitState.EXITED
    how = f"signal {event.signal}" if event.signal is not None else f"exit code {event.code}"
    _change(turn, unit, how, state=state, code=event.code, signal=event.signal)


ESSENTIAL: tuple[tuple[str, str, bool], ...] = (
    ("raylet", "ray_node_died", False),
    ("gcs_server", "ray_gcs_unreachable", True),
)
"""Processes (comm) without which a node's Ray is dead: name, cause, whether on the head only."""


def _unit_surveyed(turn: Turn, event: ev.UnitSurveyed) -> None:
    """What is missing before we end anything did not end by our hand: that is evidence."""
    unit = member.find_unit(turn, event.unit, event.generation)
    if event.unit is not UnitName.RAY or unit is None or not unit.established:
        return
    for name, cause, head_only in ESSENTIAL:
        if name not in event.names and (turn.policy.is_head or not head_only):
            text = f"{name} of generation {event.generation} was dead before sparkd ended anything"
            _sees(turn, _own_signal(turn, f"observed_{name}_dead", cause, text, event.generation))


def _unit_stopped_by_hand(turn: Turn, event: ev.UnitStoppedByHand) -> None:
    unit = member.find_unit(turn, event.unit, event.generation)
    if unit is not None and not unit.ordered:
        _change(turn, unit, "stopped by hand", ordered=True, by_hand=True)


def _unit_emptied(turn: Turn, event: ev.UnitEmptied) -> None:
    unit = member.find_unit(turn, event.unit, event.generation)
    if unit is not None and unit.state is not UnitState.GONE:
        _change(turn, unit, "no process left", state=UnitState.GONE)


def _unit_unkillable(turn: Turn, event: ev.UnitUnkillable) -> None:
    unit = member.find_unit(turn, event.unit, event.generation)
    if unit is not None and unit.state is not UnitState.GONE:
        text = f"pids {', '.join(map(str, event.pids))} survive SIGKILL"
        _change(turn, unit, text, state=UnitState.UNKILLABLE, reason=text)


def _change(turn: Turn, unit: Unit, detail: str, **changes: Any) -> None:
    new = replace(unit, since_s=turn.now, **changes)
    member.set_unit(turn, new)
    turn.note(UnitChanged(unit=new.unit, generation=new.generation, state=new.state, detail=detail))


def _drained(turn: Turn, event: ev.SourcesDrained) -> None:
    """Only what is still asked for counts: meanwhile another unit of the generation may have been started."""
    if event.generation <= turn.member.draining_generation:
        turn.set_member(drained_generation=max(turn.member.drained_generation, event.generation))


def _signal_seen(turn: Turn, event: ev.SignalSeen) -> None:
    if guards.is_of_what_ran(turn.state, event.signal):
        _sees(turn, event.signal)


def _sees(turn: Turn, signal: Signal) -> None:
    """A coordinator notes it at once; a worker numbers it and sends it there."""
    if turn.state.coordinator is not None:
        incident.note_signal(turn, signal)
        return
    outbox = turn.member.outbox
    signals = (*outbox.signals, signal)
    over = max(0, len(signals) - REPORTS_MAX)
    turn.set_member(outbox=replace(outbox, signals=signals[over:], first_seq=outbox.first_seq + over))


def _memory(turn: Turn, event: ev.MemoryObserved) -> None:
    before = turn.member
    lowest = before.lowest_bytes
    if lowest is not None and before.ran:
        lowest = min(lowest, event.sample.available_bytes)
    _note_peak(turn, event.sample)
    waited_for = before.fenced_generation < before.emptied_generation
    if waited_for:
        release.note_rise(turn, event.sample.available_bytes)
    curve = _with_sample(before.curve, turn.now, event.sample.available_bytes)
    news = waited_for or scarce.is_own_crossed(turn, event.sample.available_bytes)
    turn.set_member(news=news, memory=event.sample, curve=curve, lowest_bytes=lowest)


def _with_sample(
    curve: tuple[tuple[float, int], ...], now: float, available_bytes: int | None
) -> tuple[tuple[float, int], ...]:
    """Return the last samples with one more; what is unknown is none."""
    return curve if available_bytes is None else (*curve[1 - CURVE_MAX :], (now, available_bytes))


PEAK_STEP_BYTES = 1 << 26
"""Peaks are kept in steps of so much: each new one is a record on disk, and it is an eighth of what differs
from start to start (`ladder.LEAST_BYTES`)."""


def _note_peak(turn: Turn, sample: MemorySample) -> None:
    """Keep the most that was in use in each phase of the running generation."""
    lead = turn.state.coordinator
    if lead is None or lead.phase not in LIVE:
        return
    used = -(-(sample.total_bytes - sample.available_bytes) // PEAK_STEP_BYTES) * PEAK_STEP_BYTES
    peaks = dict(lead.watch.peaks)
    if used > peaks.get(lead.phase, 0):
        turn.set_watch(news=False, peaks=tuple((peaks | {lead.phase: used}).items()))


def _guard(turn: Turn, event: ev.GuardObserved) -> None:
    turn.set_member(news=event.guard != turn.member.guard, guard=event.guard)


def _model(turn: Turn, event: ev.ModelChecked) -> None:
    not_ready = None if event.ready else event.reason
    known = turn.member
    news = (known.ready, known.not_ready, known.model) != (event.ready, not_ready, event.model)
    turn.set_member(news=news, ready=event.ready, not_ready=not_ready, model=event.model)


def _operator(turn: Turn, event: ev.OperatorAsked) -> None:
    if turn.state.coordinator is None:
        if event.verb is ev.Verb.SHUTDOWN and turn.state.leaving_since_s is None:
            turn.set_member(leaving=True)
            turn.set_state(leaving_since_s=turn.now)
        return
    if turn.policy.observe_only and event.verb is not ev.Verb.SHUTDOWN:
        return
    turn.set_lead(**_ASKED[event.verb])
    if event.verb in (ev.Verb.START, ev.Verb.RESUME):
        turn.set_lead(needs="", spent=(), streak=0, retrying=False, retry_at_s=None, unclean=0, failed=())
        turn.set_lead(climbed=False, leaks_forgiven=True, backoff_until_s=None)


_RUN = {
    "target": True,
    "asked_target": True,
    "pause_wanted": False,
    "asked_pause": False,
    "restart_wanted": True,
    "stop_wanted": False,
    "shutdown": False,
}
_ASKED: dict[ev.Verb, dict[str, bool]] = {
    ev.Verb.START: _RUN,
    ev.Verb.STOP: {
        "target": False,
        "asked_target": False,
        "pause_wanted": False,
        "asked_pause": False,
        "stop_wanted": True,
    },
    ev.Verb.PAUSE: {"pause_wanted": True, "asked_pause": True},
    ev.Verb.RESUME: {"pause_wanted": False, "asked_pause": False, "restart_wanted": True},
    ev.Verb.SHUTDOWN: {"target": False, "pause_wanted": False, "stop_wanted": True, "shutdown": True},
}


def _stalled(turn: Turn, event: ev.LoopStalled) -> None:
    """Our own stall must not look like another's silence: every silence begins anew."""
    now = turn.now
    turn.set_state(peers=tuple(_renewed(peer, now) for peer in turn.state.peers), broker_since_s=now)
    if turn.state.coordinator is not None:
        watch.renew(turn)
        turn.set_lead(phase_since_s=turn.lead.phase_since_s + event.gap_s)


def _renewed(peer: Peer, now: float) -> Peer:
    if peer.heard_at_s == float("-inf"):
        return replace(peer, **orphan.UNASKED)
    heard_by_mqtt = peer.mqtt_at_s != float("-inf")
    mqtt_at_s = now if heard_by_mqtt else peer.mqtt_at_s
    return replace(peer, heard_at_s=now, mqtt_at_s=mqtt_at_s, **orphan.UNASKED)


def _timer(_turn: Turn, _event: ev.TimerFired) -> None:
    """Deadlines are read from the state; the event only makes the step happen."""


def _command_failed(turn: Turn, event: ev.CommandFailed) -> None:
    """A probe that broke is a probe that did not answer; nothing else is forgotten for it."""
    turn.drop("command", event.reason, event.command)
    if event.command in _BROKEN_PROBES:
        if turn.state.coordinator is not None:
            turn.set_watch(**_BROKEN_PROBES[event.command](turn.now, event.reason))
    elif event.command == "StartUnit":
        _start_broke(turn, event)
    elif event.command == "ProbePeer":
        peers = [replace(peer, probing=False, **orphan.UNASKED) for peer in turn.state.peers]
        turn.set_state(peers=tuple(peers))
    elif event.command == "SweepLeftovers":
        turn.set_member(sweeping=False, sweep_after_s=turn.now + SWEEP_PAUSE_S)
    elif event.command == "DrainSources":
        turn.set_member(drained_generation=turn.member.draining_generation)


def _start_broke(turn: Turn, event: ev.CommandFailed) -> None:
    """A start whose outcome will never come, because its deadline passed, is one that failed."""
    for unit in turn.member.units:
        named = event.unit in {None, unit.unit} and event.generation in {0, unit.generation}
        if named and unit.state is UnitState.STARTING:
            _not_started(turn, unit, event.reason)


SWEEP_PAUSE_S = 2.0
"""Before leftovers are looked for again after it could not be done: a start waits for it, and a bus that is
gone takes a second or two to come back."""
_BROKEN_PROBES: dict[str, Callable[[float, str], dict[str, Any]]] = {
    # Who could not ask has not met a silence of another.
    "ProbeMembership": lambda now, _why: {"probing_membership": False, "membership_ok_at_s": now},
    "ProbeEngine": lambda _now, _why: {"probing_engine": False},
    "SendCanary": lambda now, why: {
        "canary_sent_at_s": None,
        "canary_done_at_s": now,
        "canary_why": why,
    },
}


def _status(turn: Turn, event: ev.StatusReceived) -> None:
    membership.fold_status(turn, event)  # looked up when called: a test can switch its rules off


def _intent(turn: Turn, event: ev.IntentReceived) -> None:
    membership.fold_intent(turn, event)


FOLDS: dict[type, Callable[[Turn, Any], None]] = {
    ev.LeftoversSwept: leftovers.fold_swept,
    ev.BrokerChanged: _broker,
    ev.StatusReceived: _status,
    ev.IntentReceived: _intent,
    ev.ReportReceived: _report,
    ev.TelemetryReceived: _telemetry,
    ev.WillReceived: _will,
    ev.PeerProbed: _peer_probed,
    ev.UnitStarted: _unit_started,
    ev.UnitStartFailed: _unit_start_failed,
    ev.UnitExited: _unit_exited,
    ev.UnitSurveyed: _unit_surveyed,
    ev.UnitStoppedByHand: _unit_stopped_by_hand,
    ev.UnitEmptied: _unit_emptied,
    ev.UnitUnkillable: _unit_unkillable,
    ev.SourcesDrained: _drained,
    ev.PhaseSeen: observed.phase_seen,
    ev.SignalSeen: _signal_seen,
    ev.MembershipObserved: observed.membership,
    ev.EngineObserved: observed.engine,
    ev.CanaryAnswered: observed.canary,
    ev.MemoryObserved: _memory,
    ev.GuardObserved: _guard,
    ev.ModelChecked: _model,
    ev.OperatorAsked: _operator,
    ev.LoopStalled: _stalled,
    ev.TimerFired: _timer,
    ev.CommandFailed: _command_failed,
}
