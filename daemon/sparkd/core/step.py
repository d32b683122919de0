"""The core's one function: step(state, events, now, policy) -> Step.

Pure: the same state, events, time and policy give the same step, under any hash seed. A step folds every
event that waits (inputs before timers: no deadline is judged while an answer is queued), lets the member
and the coordinator decide from the state alone, says what is to be said, and checks the invariants. The
caller makes the records durable before it carries out what starts something, and steps again at
`next_deadline(state)` at the latest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sparkd.core import coordinator, member, publish, told
from sparkd.core.commands import Command
from sparkd.core.events import Event
from sparkd.core.fold import fold
from sparkd.core.invariants import check
from sparkd.core.policy import Policy
from sparkd.core.records import InvariantBroken, Record
from sparkd.core.state import State
from sparkd.core.turn import Turn


@dataclass(frozen=True, slots=True)
class Step:
    """What the events led to: the new state, effects in their order, facts in their order."""

    state: State
    commands: tuple[Command, ...]
    records: tuple[Record, ...]


def step(state: State, events: Sequence[Event], now: float, policy: Policy) -> Step:
    """Return what *events*, in their order, lead to at *now* (monotonic seconds)."""
    turn = Turn(state=state, now=now, policy=policy)
    for event in events:
        fold(turn, event)
    if state.coordinator is not None:
        coordinator.decide(turn)
    member.decide(turn)
    if state.coordinator is not None:
        # The member's answer to a new intent may be there at once: nothing waits for another event.
        coordinator.decide(turn)
        coordinator.resend(turn)
    told.tell(turn)
    publish.publish(turn)
    for rule in check(turn.state, policy):
        turn.note(InvariantBroken(rule=rule))
    turn.set_state(wake_at_s=turn.wake_at_s)
    return Step(turn.state, tuple(turn.commands), tuple(turn.records))


def next_deadline(state: State) -> float | None:
    """Return the monotonic time of the next step without an event, None = none is needed."""
    return state.wake_at_s
