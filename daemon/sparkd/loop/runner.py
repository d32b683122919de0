"""The single writer: queue -> step -> records durable -> commands -> one timer.

Inputs before timers: what is queued is drained before a deadline fires. A gap between the loop's own turns
(stopped, suspended, swapping) is told to the core first, so that our own stall never looks like a peer's
silence. The loop is the only place that holds the state; everybody else gets values.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

import structlog

from sparkd.core.commands import Command, PublishIntent, StartUnit
from sparkd.core.events import Event, LoopStalled, TimerFired
from sparkd.core.policy import Policy
from sparkd.core.records import DURABLE, Record
from sparkd.core.state import State
from sparkd.core.step import Step, next_deadline, step
from sparkd.ports import Clock, Store

log = structlog.get_logger()

TURN_S = 1.0
"""Longest sleep of the loop: a turn is due at least so often, which makes a stall visible."""
STALL_S = 2.0
"""Turns further apart than TURN_S + STALL_S are a stall of this daemon."""
STORE_PATIENCE_S = 2.0
"""Longest wait for records to be durable before the step's commands run all the same."""
BEGUN_TURNS = 2
"""Turns of the event loop until a command is on its way: its own task, and the one that sends for it."""
BATCH_MAX = 1000
"""Events that one step takes at most."""
QUEUE_MAX = 20_000
"""Events that may wait; beyond it the newest are dropped and counted (a flood, not a working daemon)."""


class Execute(Protocol):
    """Carries out a command without blocking; its outcome comes back through `emit`."""

    def __call__(self, command: Command) -> None:
        """Start carrying out *command*."""


Observer = Callable[[State, Sequence[Record], float], None]
Stepped = Callable[[float, float], None]
"""Told of every step that was carried out: how long it took, its records included and without what others do
until its commands are begun, and how late it ran; both in seconds."""


class Loop:
    """Runs the core."""

    def __init__(
        self,
        state: State,
        policy: Policy,
        *,
        clock: Clock,
        store: Store,
        execute: Execute,
        observe: Observer,
        stepped: Stepped,
    ) -> None:
        self.state = state
        self.policy = policy
        self.dropped = 0
        self._clock = clock
        self._store = store
        self._execute = execute
        self._observe = observe
        self._stepped = stepped
        self._queue: deque[tuple[Event, float]] = deque()
        self._writing: set[asyncio.Future[None]] = set()
        self._woken = asyncio.Event()
        self._alive_at_s = clock.now()

    def emit(self, event: Event) -> None:
        """Queue an event; called from the loop's own thread, never blocks."""
        if len(self._queue) >= QUEUE_MAX:
            self.dropped += 1
            return
        self._queue.append((event, self._clock.now()))
        self._woken.set()

    @property
    def age_s(self) -> float:
        """Seconds since the loop's last turn."""
        return self._clock.now() - self._alive_at_s

    async def run(self) -> None:
        """Turn until cancelled."""
        while True:
            await self._sleep()
            await self._turn()

    async def _sleep(self) -> None:
        """Wait for an event, the core's deadline, or the end of the turn."""
        deadline_s = next_deadline(self.state)
        left_s = TURN_S if deadline_s is None else min(TURN_S, max(0.0, deadline_s - self._clock.now()))
        if self._queue:
            return
        try:
            async with asyncio.timeout(left_s):
                await self._woken.wait()
        except TimeoutError:
            pass

    async def _turn(self) -> None:
        """Fold all that waits, then decide once; a deadline is judged only when nothing waits."""
        events, due_s = self._taken()
        deadline_s = next_deadline(self.state)
        if not events and deadline_s is not None and deadline_s <= self._clock.now():
            events, due_s = [TimerFired()], deadline_s
        if events:
            await self._step(events, due_s)

    def _taken(self) -> tuple[list[Event], float]:
        """Return what waits, our own stall first, and when the first of it came."""
        now = self._clock.now()
        gap_s = now - self._alive_at_s
        self._alive_at_s = now
        events: list[Event] = []
        if gap_s > TURN_S + STALL_S:
            log.warning("loop stalled", gap_s=round(gap_s, 1))
            events.append(LoopStalled(gap_s=gap_s))
        due_s = self._queue[0][1] if self._queue else now
        while self._queue and len(events) < BATCH_MAX:
            events.append(self._queue.popleft()[0])
        if not self._queue:
            self._woken.clear()
        return events, due_s

    async def _step(self, events: Sequence[Event], due_s: float) -> None:
        begun_s = self._clock.now()
        result = step(self.state, events, begun_s, self.policy)
        self.state = result.state
        try:
            await self._commit(result)
            took_s = self._clock.now() - begun_s
            for _ in range(BEGUN_TURNS if result.commands else 0):
                await asyncio.sleep(0)
        finally:  # told when it is begun, and also where its own command ends this loop meanwhile
            self._observe(result.state, result.records, self._clock.now())
        self._stepped(took_s, begun_s - due_s)

    async def _commit(self, result: Step) -> None:
        """Durable before done: records first, then the effects.

        What only ends things does not wait for the disk: it is slow just when a node runs out of memory,
        and a fence is derived again from what is observed.
        """
        if any(isinstance(record, DURABLE) for record in result.records):
            if any(_starts(command) for command in result.commands):
                await self._persist(result.records)
            else:
                self._persist_later(result.records)
        for command in result.commands:
            self._execute(command)

    def _persist_later(self, records: Sequence[Record]) -> None:
        """The store writes in the order in which it was asked."""
        writing = asyncio.ensure_future(self._store.append(records))
        self._writing.add(writing)
        writing.add_done_callback(self._writing.discard)

    async def flush(self) -> None:
        """Wait until every record that was handed over is on disk."""
        await asyncio.gather(*self._writing, return_exceptions=True)

    async def _persist(self, records: Sequence[Record]) -> None:
        """Wait for the disk, but not for ever: a node under memory pressure must still be fenced.

        What was not on disk in time is written as soon as the disk answers; the peers' statuses carry the
        highest stamp meanwhile.
        """
        writing = asyncio.ensure_future(self._store.append(records))
        self._writing.add(writing)
        writing.add_done_callback(self._writing.discard)
        try:
            async with asyncio.timeout(STORE_PATIENCE_S):
                await asyncio.shield(writing)
        except TimeoutError:
            log.warning("disk does not answer", patience_s=STORE_PATIENCE_S)


def _starts(command: Command) -> bool:
    """Whether a command may make something run, so that its records have to be on disk before it."""
    if isinstance(command, PublishIntent):
        return command.intent.wants_units
    return isinstance(command, StartUnit)
