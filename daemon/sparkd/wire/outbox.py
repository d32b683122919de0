"""What waits to be sent: bounded, oldest first, an intent before everything else.

Status, intent and telemetry are levels: only the newest of each waits, in the place of the one that it
replaces. Reports wait up to a number; one that is lost is a gap that the coordinator fetches over HTTP.
Turns of incidents are for people: each waits up to a number, too, and the oldest goes first.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from sparkd.core.messages import IncidentNotice, Report
from sparkd.wire.codec import Said, kind_of
from sparkd.wire.topics import RETAINED, Kind

REPORTS_MAX = 64


@dataclass(frozen=True, slots=True, eq=False)
class Waiting:
    """A message that waits, in its place. Told from others by identity: the same may be said twice."""

    name: str
    message: Said


class Outbox:
    """The messages of one session after another."""

    def __init__(self) -> None:
        self._waiting: dict[str, Waiting] = {}
        self._retained: dict[str, Said] = {}
        self._up = False

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, message: Said) -> bool:
        """Take *message*; return False where an older one of its kind was dropped to make room for it.

        Telemetry is worth nothing later: without a session it is not kept.
        """
        kind = kind_of(message)
        if isinstance(message, Report):
            return self._put_one_of(kind, f"{kind} {message.first_seq}", message)
        if isinstance(message, IncidentNotice):
            return self._put_one_of(
                kind, f"{kind} {message.incident} {message.generation} {message.state}", message
            )
        if kind in RETAINED:
            self._retained[kind] = message
        if kind is not Kind.TELEMETRY or self._up:
            self._add(kind, message)
        return True

    def _put_one_of(self, kind: Kind, name: str, message: Said) -> bool:
        names = [w.name for w in self._waiting.values() if kind_of(w.message) is kind]
        full = len(names) >= REPORTS_MAX and name not in names
        if full:
            del self._waiting[names[0]]
        self._add(name, message)
        return not full

    def _add(self, name: str, message: Said) -> None:
        self._waiting[name] = Waiting(name, message)

    def connected(self) -> None:
        """Queue anew everything that brokers retain: this one may have forgotten it."""
        self._up = True
        for name, message in self._retained.items():
            self._add(name, message)

    def disconnected(self) -> None:
        """Drop what is worth nothing later."""
        self._up = False
        self._waiting.pop(Kind.TELEMETRY, None)

    def next(self, sent: Collection[Waiting] = ()) -> Waiting | None:
        """Return the next to be sent that is not *sent* yet; it waits until it is `done`. None = nothing."""
        intent = self._waiting.get(Kind.INTENT)
        if intent is not None and intent not in sent:
            return intent
        return next((waiting for waiting in self._waiting.values() if waiting not in sent), None)

    def done(self, sent: Waiting) -> None:
        """Forget what was *sent*, unless something newer has taken its place meanwhile."""
        if self._waiting.get(sent.name) is sent:
            del self._waiting[sent.name]
