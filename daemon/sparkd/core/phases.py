"""The phases of a generation, as a literal transition table.

Two rules. Everything that may follow a phase stands here; what is not here raises and changes nothing.
`serving` is entered from `verifying` alone: no probe, log line or operator can skip the real generation
(leaving `paused` returns to what the pause had interrupted). A generation that an earlier daemon started is
taken over from `idle` or `waiting`, into the phase in which it is; in a pause that phase is where it goes on.

Engine phases may be skipped, and an engine may show them in its own order; sparkd moves only forward in
`ENGINE`, so a late or repeated line is progress, never a step back.
"""

from __future__ import annotations

from sparkd.words import ENGINE, Phase

P = Phase


def _engine_moves() -> dict[Phase, tuple[Phase, ...]]:
    """An engine phase may be followed by any later one; every one may fail, be fenced or be stopped."""
    ends = (P.VERIFYING, P.FAILING, P.FENCING, P.STOPPING)
    return {phase: (*ENGINE[index + 1 :], *ends) for index, phase in enumerate(ENGINE)}


ADOPTED = (P.FORMING, *ENGINE, P.VERIFYING)
"""Where a generation that was found running can be."""

TRANSITIONS: dict[Phase, tuple[Phase, ...]] = {
    P.IDLE: (P.WAITING, *ADOPTED, P.STOPPING, P.PAUSED),
    P.WAITING: (P.FENCING, *ADOPTED, P.STOPPING, P.ESCALATED, P.PAUSED),
    P.FENCING: (P.FORMING, P.WAITING, P.STOPPING, P.ESCALATED),
    P.FORMING: (P.RESOLVING_CONFIG, P.FAILING, P.FENCING, P.STOPPING),
    **_engine_moves(),
    P.VERIFYING: (P.SERVING, P.FAILING, P.FENCING, P.STOPPING),
    P.SERVING: (P.FAILING, P.FENCING, P.STOPPING, P.PAUSED),
    P.FAILING: (P.BACKING_OFF, P.ESCALATED, P.STOPPING),
    P.BACKING_OFF: (P.WAITING, P.STOPPING, P.PAUSED),
    P.STOPPING: (P.STOPPED,),
    P.STOPPED: (P.WAITING,),
    P.PAUSED: (P.IDLE, P.WAITING, *ADOPTED, P.BACKING_OFF, P.SERVING, P.STOPPING),
    P.ESCALATED: (P.WAITING, P.STOPPING),
}


class IllegalTransitionError(Exception):
    """A move that the table does not know: a defect of the core."""


def check_move(before: Phase, after: Phase) -> None:
    """Raise IllegalTransitionError unless *after* may follow *before*."""
    if after not in TRANSITIONS[before]:
        raise IllegalTransitionError(f"{before} -> {after}")


def is_forward(before: Phase, after: Phase) -> bool:
    """Return whether *after* is an engine phase that comes later than *before*."""
    if after not in ENGINE:
        return False
    return before not in ENGINE or ENGINE.index(after) > ENGINE.index(before)
