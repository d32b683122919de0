"""From the first signal of trouble to verified recovery or escalation.

A failed generation is fenced on every node at once; meanwhile the evidence of every node is drained, and
the decision falls when all of it has been read, at the latest `drain_deadline_s` after the detection. What
comes later is kept for people and changes nothing.
"""

from __future__ import annotations

from dataclasses import replace

from sparkd.core import fence, guards, remedy, restart, unstarted
from sparkd.core.decision import Case, decide
from sparkd.core.evidence import evidence_of
from sparkd.core.records import IncidentClosed, IncidentOpened, Judged, Remedied, SettingsAdopted, Times
from sparkd.core.state import CAUSES_MAX, FAILED_MAX, SIGNALS_MAX, Failure, Incident
from sparkd.core.turn import Turn
from sparkd.signals.causes import cause_info
from sparkd.signals.model import Diagnosis, Evidence, Proof, Signal, UnitExit
from sparkd.signals.repeats import with_one_more
from sparkd.signals.survive import ends_at_once
from sparkd.sizing.sized import Sized
from sparkd.words import LIVE, Phase, Settings, Sizes, UnitName


def note_signal(turn: Turn, signal: Signal) -> None:
    """Keep a signal of the current generation; a fatal one ends it.

    What is wrong with the installation or with a setting ends none by a line of text: it may be a tool's, a
    request's or another program's, and where it is not, the engine's own end follows. A new daemon reads what
    an engine says before it has taken it over: until then whose generation counts is not known.
    """
    lead = turn.lead
    if lead.epoch and not _is_of(signal, lead.generation):
        return
    turn.set_lead(recent=with_one_more(lead.recent, signal)[-SIGNALS_MAX:])
    if lead.failure is not None:
        turn.set_lead(
            failure=replace(lead.failure, signals=with_one_more(lead.failure.signals, signal)[:SIGNALS_MAX])
        )
    elif lead.phase in LIVE and signal.fatal and ends_at_once(signal):
        fail(turn, f"{signal.node or 'the cluster'}: {signal.id}")


def _is_of(signal: Signal, generation: int) -> bool:
    return signal.generation in (0, generation)


def observe_failure(turn: Turn, id_: str, cause: str, text: str, node: str = "") -> None:
    """Make a failure of what the coordinator itself observed; the text is its quote."""
    if turn.lead.phase not in LIVE:
        return
    signal = Signal(
        id=id_,
        cause=cause,
        proof=Proof.PROVES,
        node=node,
        source="sparkd",
        quote=text,
        at_s=turn.now,
        generation=turn.lead.generation,
        fatal=True,
        phase=turn.lead.phase,
    )
    note_signal(turn, signal)


def note_exit(turn: Turn, exit_: UnitExit) -> None:
    """Keep a unit's end; one that nobody ordered ends the generation."""
    if exit_.generation != turn.lead.generation:
        return
    lead = turn.lead
    if lead.failure is not None:
        known = {(e.node, e.unit) for e in lead.failure.exits}
        if (exit_.node, exit_.unit) not in known:
            turn.set_lead(failure=replace(lead.failure, exits=(*lead.failure.exits, exit_)))
    elif lead.phase in LIVE and not exit_.ordered:
        fail(turn, f"{exit_.node}: {exit_.unit} ended ({_how(exit_)})", (exit_,))


def note_unstarted(turn: Turn, node: str, unit: UnitName, reason: str) -> None:
    """What could not be started has not ended: its node's word of why is the evidence."""
    cause, text = unstarted.cause_of(reason), unstarted.text_of(unit, reason)
    observe_failure(turn, unstarted.SIGNAL_ID, cause, text, node=node)


def _how(exit_: UnitExit) -> str:
    if exit_.signal is None and exit_.code is None:
        return "how is not known"
    return f"killed with signal {exit_.signal}" if exit_.signal is not None else f"exit code {exit_.code}"


def fail(turn: Turn, reason: str, exits: tuple[UnitExit, ...] = ()) -> None:
    """Open the failure and order the fence on every node at once."""
    lead = turn.lead
    failure = Failure(
        generation=turn.lead.generation,
        phase=lead.phase,
        phase_since_s=lead.phase_since_s,
        times=Times(detected_s=turn.now, fence_ordered_s=turn.now),
        # Half is kept for what is still to be read.
        signals=tuple([s for s in lead.recent if _is_of(s, lead.generation)])[-SIGNALS_MAX // 2 :],
        exits=exits,
        kv_cache_bytes=lead.watch.said.kv_cache_bytes,
    )
    turn.set_lead(failure=failure, streak=lead.streak + 1)
    open_incident(turn, reason, turn.lead.generation)
    turn.move(Phase.FAILING, reason)
    fence.demand_nothing(turn, turn.policy.fail_grace_s)


def open_incident(turn: Turn, reason: str, generation: int) -> None:
    """Open an incident where none is, and count the failure of *generation* in it."""
    lead = turn.lead
    if lead.incident is None:
        number = lead.incidents + 1
        turn.set_lead(incident=Incident(number=number, opened_at_s=turn.now), incidents=number)
        turn.note(IncidentOpened(incident=number, generation=generation, phase=lead.phase, reason=reason))
    incident = turn.lead.incident
    if incident is not None:
        turn.set_lead(incident=replace(incident, failures=incident.failures + 1))


def name_cause(turn: Turn, cause: str) -> None:
    """Say what the open incident is about where no generation failed that could be judged."""
    incident = turn.lead.incident
    if incident is not None:
        turn.set_lead(incident=replace(incident, causes=(*incident.causes, cause)[-CAUSES_MAX:]))


def failing(turn: Turn) -> None:
    """Wait for the evidence, then judge and decide once."""
    failure = turn.lead.failure
    fence.demand_nothing(turn, turn.policy.fail_grace_s)
    note_fence_times(turn)
    if failure is None:
        return
    deadline_s = failure.times.detected_s + turn.policy.drain_deadline_s
    if _all_drained(turn, failure.generation) or turn.due(deadline_s):
        _decide(turn)


def _all_drained(turn: Turn, generation: int) -> bool:
    own = turn.member.drained_generation >= generation
    return own and all(
        peer.status is not None
        and peer.status.drained_generation >= generation
        and peer.received_seq >= peer.status.report_seq
        for peer in turn.state.peers
    )


def note_fence_times(turn: Turn) -> None:
    """Note when every node was emptied, and when its memory was back."""
    failure = turn.lead.failure
    if failure is None:
        return
    times = failure.times
    if times.emptied_s is None and fence.is_emptied(turn):
        times = replace(times, emptied_s=turn.now)
    if times.fenced_s is None and fence.is_fenced(turn):
        times = replace(times, fenced_s=turn.now)
    if times is not failure.times:
        turn.set_lead(failure=replace(failure, times=times))


def _decide(turn: Turn) -> None:
    failure, incident = turn.lead.failure, turn.lead.incident
    if failure is None or incident is None:
        return
    case, policy = _case(turn, failure, incident), guards.in_force(turn.state, turn.policy)
    turn.note(Judged(incident=incident.number, case=case, policy=policy))
    _apply(turn, *decide(case, policy))


def _case(turn: Turn, failure: Failure, incident: Incident) -> Case:
    failures = max(incident.failures, turn.lead.streak)
    return case_of(turn, evidence_of(turn, failure), failures, incident.causes)


def case_of(turn: Turn, evidence: Evidence, failures: int, causes: tuple[str, ...] = ()) -> Case:
    """Return what a decision would use now, for *evidence* and so many failures in a row."""
    lead, member, said = turn.lead, turn.member, turn.lead.watch.said
    facts = remedy.Facts(
        settings=lead.settings,
        failures=failures,
        spent=lead.spent,
        kv_cache_bytes=said.kv_cache_bytes,
        total_bytes=member.memory.total_bytes if member.memory else None,
        causes=causes,
        baseline_bytes=member.baseline_bytes,
        lowest_available_bytes=member.lowest_bytes,
        loading_available_bytes=lead.watch.loading_available_bytes,
        weights_bytes=said.weights_bytes,
        request_tokens=said.request_tokens,
        request_kv_bytes=said.request_kv_bytes,
        sizes=said.sizes,
        failed=lead.failed,
        nodes=_memories(turn),
    )
    return Case(
        evidence=evidence,
        facts=_told_by_files(facts, member.model),
        generation=lead.generation,
        at_s=turn.now,
        trial=lead.trial,
        proven=lead.proven,
        retrying=lead.retrying,
    )


def _told_by_files(facts: remedy.Facts, model: Sized | None) -> remedy.Facts:
    """Return the facts with what the model's files tell where the engine has not said it yet."""
    if model is None:
        return facts
    tokens, request = model.longest(facts.settings)
    if request is not None and (facts.request_kv_bytes is None or facts.request_tokens is None):
        facts = replace(facts, request_tokens=tokens, request_kv_bytes=request)
    if facts.weights_bytes is None:
        facts = replace(facts, weights_bytes=model.weights_bytes)
    files = Sizes(checkpoint_bytes=model.checkpoint_bytes)
    return replace(facts, sizes=files.with_news(facts.sizes))


def _memories(turn: Turn) -> tuple[remedy.NodeMemory, ...]:
    member = turn.member
    total = member.memory.total_bytes if member.memory else None
    own = remedy.NodeMemory(turn.state.node, total, member.baseline_bytes, member.lowest_bytes)
    peers = [(peer.node, peer.status) for peer in turn.state.peers if peer.status is not None]
    return (own, *(remedy.NodeMemory(n, s.total_bytes, s.baseline_bytes, s.lowest_bytes) for n, s in peers))


def _apply(turn: Turn, diagnosis: Diagnosis, chosen: remedy.Remedy) -> None:
    lead = turn.lead
    failure, incident = lead.failure, lead.incident
    if failure is None or incident is None:
        return
    times = replace(failure.times, decided_s=turn.now)
    turn.note(
        Remedied(
            incident=incident.number,
            generation=failure.generation,
            diagnosis=diagnosis,
            action=chosen.action,
            explanation=chosen.explanation,
            settings_before=lead.settings,
            settings_after=chosen.settings,
            backoff_s=chosen.backoff_s,
            times=times,
        )
    )
    if chosen.settings != lead.settings:
        turn.note(SettingsAdopted(settings=chosen.settings, reason=chosen.explanation))
    turn.set_lead(
        failure=replace(failure, times=times),
        incident=replace(
            incident,
            diagnosis=diagnosis,
            causes=(*incident.causes, diagnosis.cause)[-CAUSES_MAX:],
            remedy=chosen.explanation,
            times=times,
        ),
        settings=chosen.settings,
    )
    if chosen.settings != lead.settings:
        turn.set_lead(trial=False)
        if chosen.memory:
            give_up(turn, lead.settings)
    _follow(turn, diagnosis, chosen)


def give_up(turn: Turn, settings: Settings) -> None:
    """These settings do not fit: nothing returns to them before the operator says so."""
    lead = turn.lead
    proven = None if lead.proven == settings else lead.proven
    turn.set_lead(failed=(*lead.failed, settings)[-FAILED_MAX:], proven=proven)


def _follow(turn: Turn, diagnosis: Diagnosis, chosen: remedy.Remedy) -> None:
    if chosen.action is remedy.Action.ESCALATE:
        escalate(turn, chosen.explanation, chosen.needs, may_pass=_may_pass(diagnosis, chosen))
        return
    spent = restart.spend(diagnosis.cause, turn.lead.spent, turn.policy, turn.now)
    if chosen.once:
        spent = restart.spend(chosen.once, spent, turn.policy, turn.now)
    turn.set_lead(spent=spent, backoff_until_s=turn.now + chosen.backoff_s)
    turn.move(Phase.BACKING_OFF, f"{diagnosis.cause}: {chosen.explanation}")


def _may_pass(diagnosis: Diagnosis, chosen: remedy.Remedy) -> bool:
    """Return whether time alone may end it: neither a setting that failed nor what a person has to mend."""
    return not chosen.memory and not cause_info(diagnosis.cause).permanent


def escalate(turn: Turn, why: str, needs: str, *, may_pass: bool = False, reboot: bool = False) -> None:
    """Give up, loudly: the reason, and what a person has to do.

    What may pass is tried again, slowly; what a *reboot* ends is gone on with when that was done; all else
    waits for his word.
    """
    pause_s = turn.policy.escalated_retry_s
    retry_at_s = turn.now + pause_s if may_pass and pause_s > 0 else None
    if turn.lead.incident is None:
        open_incident(
            turn, why, turn.lead.generation
        )  # nothing failed, and people have to be told all the same
    by_itself = reboot or retry_at_s is not None
    needs = needs or why if by_itself else _then_start(needs or why)
    close(turn, "escalated", needs)
    turn.set_lead(needs=needs, backoff_until_s=None, retry_at_s=retry_at_s, awaits_reboot=reboot, trial=False)
    turn.move(Phase.ESCALATED, why)


def _then_start(needs: str) -> str:
    """Nothing happens by itself after what a person does: it is said how to go on."""
    return needs if "sparkctl start" in needs else f"{needs.rstrip('.')}; then: sparkctl start"


def close(turn: Turn, outcome: str, needs: str = "") -> None:
    """End the incident, where there is one."""
    lead = turn.lead
    incident, failure = lead.incident, lead.failure
    if incident is None:
        return
    times = failure.times if failure else incident.times or Times(detected_s=incident.opened_at_s)
    if outcome == "recovered":
        times = replace(times, serving_s=turn.now)
    turn.note(
        IncidentClosed(
            incident=incident.number,
            outcome=outcome,
            cause=incident.causes[-1] if incident.causes else "unknown",
            generation=turn.lead.generation,
            relaunches=incident.relaunches,
            times=times,
            needs=needs,
        )
    )
    turn.set_lead(incident=None, failure=None)
