"""One step in the making: the state so far, what goes out, and the next deadlines.

A turn lives inside one call of `step` and nowhere else; to the outside the step stays a pure function.

What changes the state is *news*: everything is decided anew. An observation that only confirms what is
known (a heartbeat, a counter that grew) is set with `news=False`: it moves silences later, so nothing needs
to be decided before the deadlines that stand.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from sparkd.core.commands import Command
from sparkd.core.evolve import evolve
from sparkd.core.phases import check_move
from sparkd.core.policy import Policy
from sparkd.core.records import MessageDropped, PhaseChanged, Record, StampAdvanced
from sparkd.core.state import NEVER_S, Coordinator, Member, Peer, State
from sparkd.words import Phase, Stamp

LEAP_MAX = 1 << 40
"""A stamp that is further ahead is damage: a generation a millisecond for 34 years. Believed, it would bring
the numbers to the wire's bound (2 to the 53rd), where no coordinator could take the next one and say it."""


class Concern(IntEnum):
    """The parts of a step, each with a deadline of its own."""

    DECIDE = 0
    MEMBER = 1
    PROBE = 2
    SAY = 3


_FIRST = int(Concern.DECIDE)


@dataclass(slots=True)
class Draft:
    """The state in the making; `news`: something changed that decisions depend on."""

    state: State
    news: bool

    @property
    def member(self) -> Member:
        """This node's member."""
        return self.state.member

    @property
    def lead(self) -> Coordinator:
        """The coordinator's part; only asked where there is one."""
        lead = self.state.coordinator
        if lead is None:
            raise LookupError("this node does not coordinate")
        return lead

    def set_state(self, *, news: bool = True, **changes: Any) -> None:
        """Replace fields of the state; not *news* where they only move silences later."""
        self.news = self.news or news
        self.state = evolve(self.state, changes)

    def set_member(self, *, news: bool = True, **changes: Any) -> None:
        """Replace fields of the member."""
        self.news = self.news or news
        self.state = evolve(self.state, {"member": evolve(self.state.member, changes)})

    def set_lead(self, *, news: bool = True, **changes: Any) -> None:
        """Replace fields of the coordinator."""
        self.news = self.news or news
        self.state = evolve(self.state, {"coordinator": evolve(self.lead, changes)})

    def set_watch(self, *, news: bool = True, **changes: Any) -> None:
        """Replace fields of what is observed of the running generation."""
        self.change_watch(changes, news=news)

    def change_watch(self, changes: dict[str, Any], *, news: bool) -> None:
        """Do as `set_watch`, for a caller that has many changes as a dictionary."""
        lead = self.lead
        self.news = self.news or news
        self.state = evolve(self.state, {"coordinator": evolve(lead, {"watch": evolve(lead.watch, changes)})})

    def set_peer(self, peer: Peer, *, news: bool = True, **changes: Any) -> None:
        """Replace fields of a peer."""
        self.change_peer(peer, changes, news=news)

    def change_peer(self, peer: Peer, changes: dict[str, Any], *, news: bool) -> None:
        """Do as `set_peer`, for a caller that has many changes as a dictionary."""
        new, node = evolve(peer, changes), peer.node
        peers = self.state.peers
        peers = (new,) if len(peers) == 1 else tuple([new if p.node == node else p for p in peers])
        self.news = self.news or news
        self.state = evolve(self.state, {"peers": peers})


@dataclass(slots=True, init=False)
class Turn(Draft):
    """Accumulates one step. `before`: the state that it began with, None = nothing was looked at yet."""

    now: float
    policy: Policy
    before: State | None
    commands: list[Command]
    records: list[Record]
    wakes: list[float]
    concern: int

    def __init__(
        self,
        state: State,
        now: float,
        policy: Policy,
        before: State | None = None,
        wakes: Sequence[float] = (),
    ) -> None:
        # By hand: one is made in every step, and what a dataclass makes for lists costs as much as a fold.
        self.state, self.news = state, False
        self.now, self.policy, self.before = now, policy, before
        self.commands, self.records = [], []
        self.wakes, self.concern = list(wakes), _FIRST

    def order(self, command: Command) -> None:
        """Add a command."""
        self.commands.append(command)

    def note(self, record: Record) -> None:
        """Add a record."""
        self.records.append(record)

    def drop(self, kind: str, reason: str, sender: str = "") -> None:
        """Note a message that is not acted upon."""
        self.note(MessageDropped(kind=kind, reason=reason, sender=sender))

    def wake(self, at_s: float) -> None:
        """Ask that what is being decided is decided again at *at_s* at the latest."""
        self.wake_for(self.concern, at_s)

    def wake_for(self, concern: int, at_s: float) -> None:
        """Ask that *concern* is looked at at *at_s* at the latest."""
        self.wakes[concern] = min(self.wakes[concern], at_s)

    def finish(self, state: State) -> State:
        """Return the state that the step leads to from *state*, with its deadlines.

        A copy that this turn has made is nobody else's yet: it is completed in place.
        """
        wakes = tuple(self.wakes)
        if wakes != state.wakes:
            if self.state is state:
                self.state = evolve(state, {"wakes": wakes})
            else:
                self.state.__dict__["wakes"] = wakes
        return self.state

    def begin(self, concern: int) -> None:
        """Begin a part of the step; its deadlines are found anew."""
        self.concern = concern
        self.wakes[concern] = NEVER_S

    def due(self, at_s: float) -> bool:
        """Return whether *at_s* has come; where it has not, be stepped again then."""
        if self.now >= at_s:
            return True
        wakes, concern = self.wakes, self.concern
        if at_s < wakes[concern]:  # noqa: PLR1730 - asked so often that the call of min counts
            wakes[concern] = at_s
        return False

    def see(self, stamp: Stamp) -> None:
        """Raise the highest stamp ever seen; one that no cluster can have come to is damage, and is told."""
        seen = self.state.seen
        if stamp.epoch <= seen.epoch and stamp.generation <= seen.generation:
            return
        if stamp.epoch - seen.epoch > LEAP_MAX or stamp.generation - seen.generation > LEAP_MAX:
            self.drop("stamp", "beyond_any_history")
            return
        high = Stamp(max(stamp.epoch, seen.epoch), max(stamp.generation, seen.generation))
        self.set_state(seen=high)
        self.note(StampAdvanced(seen=high))

    def move(self, after: Phase, reason: str) -> None:
        """Move the coordinator to another phase, with the reason; an illegal move raises."""
        before = self.lead.phase
        check_move(before, after)
        self.note(
            PhaseChanged(
                generation=self.lead.generation,
                before=before,
                after=after,
                reason=reason,
                spent_s=self.now - self.lead.phase_since_s,
            )
        )
        self.set_lead(phase=after, phase_since_s=self.now)
