"""The core's one function: step(state, events, now, policy) -> Step.

Pure: the same state, events, time and policy give the same step, under any hash seed. A step folds every
event that waits (inputs before timers: no deadline is judged while an answer is queued), lets the member
and the coordinator decide from the state alone, asks what is due to be asked, says what is to be said, and
checks the invariants. Where no event was news, only the concerns whose deadline has come are looked at.
The caller makes the records durable before it carries out what starts something, and steps again at
`next_deadline(state)` at the latest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sparkd.core import coordinator, fence, keeping, member, orphan, publish, told, watch
from sparkd.core.commands import Command
from sparkd.core.events import Event
from sparkd.core.fold import fold
from sparkd.core.invariants import check
from sparkd.core.policy import Policy
from sparkd.core.records import InvariantBroken, Record
from sparkd.core.state import AT_ONCE, NEVER_S, State
from sparkd.core.turn import Concern, Turn

_DECIDE, _MEMBER, _PROBE, _SAY = map(int, Concern)  # lists are indexed quicker by plain ints


class Step(NamedTuple):
    """What the events led to: the new state, effects in their order, facts in their order."""

    state: State
    commands: tuple[Command, ...]
    records: tuple[Record, ...]


def step(state: State, events: Sequence[Event], now: float, policy: Policy) -> Step:
    """Return what *events*, in their order, lead to at *now* (monotonic seconds)."""
    before = None if state.wakes == AT_ONCE else state
    turn = Turn(state, now, policy, before, state.wakes)
    for event in events:
        fold(turn, event)
    if turn.news or min(turn.wakes) <= now:
        _follow(turn)
    return Step(turn.finish(state), tuple(turn.commands), tuple(turn.records))


def _follow(turn: Turn) -> None:
    """Do what follows from the news, or what is due."""
    now, wakes = turn.now, turn.wakes
    if turn.news or wakes[_DECIDE] <= now or wakes[_MEMBER] <= now:
        _decide(turn)
    if turn.news or wakes[_PROBE] <= now:
        turn.begin(_PROBE)
        watch.probe(turn)
    if turn.news or wakes[_SAY] <= now:
        turn.begin(_SAY)
        publish.publish(turn)
    if turn.news:
        if turn.state.coordinator is not None:
            keeping.keep(turn)
        for rule in check(turn.state, turn.policy, turn.before):
            turn.note(InvariantBroken(rule=rule))


def next_deadline(state: State) -> float | None:
    """Return the monotonic time of the next step without an event, None = none is needed."""
    at_s = min(state.wakes)
    return None if at_s == NEVER_S else at_s


ROUNDS_MAX = 6
"""More rounds than orders and answers on one node can chain: a bound, not a schedule."""


def _decide(turn: Turn) -> None:
    """Let coordinator and member answer each other until neither has anything to add.

    Nothing that can be decided now waits for another event. A member that has settled is left in peace until
    something that it looks at is touched, or its deadline comes.
    """
    leads = turn.state.coordinator is not None
    settled = turn.before if turn.wakes[_MEMBER] > turn.now else None
    turn.begin(_DECIDE)
    for _ in range(ROUNDS_MAX):
        if leads:
            coordinator.decide(turn)
        coordinated = turn.state
        if settled is None or member.is_touched(settled, coordinated):
            turn.begin(_MEMBER)
            member.decide(turn)
            turn.concern, settled = _DECIDE, coordinated
        orphan.end_deserted(turn)
        if turn.state is coordinated:
            break
    else:
        turn.wake_for(_MEMBER, turn.now)
    if leads:
        fence.resend(turn)
    told.tell(turn)
