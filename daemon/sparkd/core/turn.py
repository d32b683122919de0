"""One step in the making: the state so far, what goes out, and the earliest deadline.

A turn lives inside one call of `step` and nowhere else; to the outside the step stays a pure function.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from sparkd.core.commands import Command
from sparkd.core.phases import check_move
from sparkd.core.policy import Policy
from sparkd.core.records import MessageDropped, PhaseChanged, Record, StampAdvanced
from sparkd.core.state import Coordinator, Member, Peer, State, Watch
from sparkd.words import Phase, Stamp


@dataclass(slots=True)
class Turn:
    """Accumulates one step."""

    state: State
    now: float
    policy: Policy
    commands: list[Command] = field(default_factory=list)
    records: list[Record] = field(default_factory=list)
    wake_at_s: float | None = None

    @property
    def member(self) -> Member:
        """This node's member."""
        return self.state.member

    @property
    def lead(self) -> Coordinator:
        """The coordinator's part; only asked where there is one."""
        if self.state.coordinator is None:
            raise LookupError("this node does not coordinate")
        return self.state.coordinator

    def set_state(self, **changes: Any) -> None:
        """Replace fields of the state."""
        self.state = replace(self.state, **changes)

    def set_member(self, **changes: Any) -> None:
        """Replace fields of the member."""
        self.set_state(member=replace(self.member, **changes))

    def set_lead(self, **changes: Any) -> None:
        """Replace fields of the coordinator."""
        self.set_state(coordinator=replace(self.lead, **changes))

    def set_watch(self, **changes: Any) -> None:
        """Replace fields of what is observed of the running generation."""
        watch: Watch = replace(self.lead.watch, **changes)
        self.set_lead(watch=watch)

    def set_peer(self, peer: Peer, **changes: Any) -> None:
        """Replace fields of a peer."""
        new = replace(peer, **changes)
        self.set_state(peers=tuple(new if p.node == peer.node else p for p in self.state.peers))

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
        """Ask to be stepped again at *at_s* at the latest."""
        self.wake_at_s = at_s if self.wake_at_s is None else min(self.wake_at_s, at_s)

    def due(self, at_s: float) -> bool:
        """Return whether *at_s* has come; where it has not, be stepped again then."""
        if self.now >= at_s:
            return True
        self.wake(at_s)
        return False

    def see(self, stamp: Stamp) -> None:
        """Raise the highest stamp ever seen."""
        seen = self.state.seen
        high = Stamp(max(stamp.epoch, seen.epoch), max(stamp.generation, seen.generation))
        if high != seen:
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
