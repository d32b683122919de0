"""A node's state directory: what is on disk, what is on its way there, and what a crash leaves of it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from sparkd.core.beginning import Remembered
from sparkd.core.records import (
    IncidentOpened,
    KeptChanged,
    MemberRan,
    MemberRested,
    Record,
    SettingsAdopted,
    StampAdvanced,
)
from sparkd.words import Settings, Stamp

VERSIONS_MAX = 12


class Disk:
    """Folds records as `store` does; keeps a few older versions to be rolled back to."""

    __slots__ = ("boot", "full", "kept", "kept_boot", "older", "pending", "ran")

    def __init__(self) -> None:
        self.boot, self.full = 0, False
        self.ran: tuple[int, int, tuple[int, ...]] = (0, 0, ())  # generation that ran, boot, memory returned
        self.kept, self.kept_boot = Remembered(), 0
        self.older: list[Remembered] = [self.kept]
        self.pending: list[tuple[Sequence[Record], Settings]] = []

    def begin(self, records: Sequence[Record], asked: Settings) -> None:
        """Take records that are on their way."""
        self.pending.append((records, asked))

    def finish(self) -> None:
        """The oldest write is on disk."""
        if self.pending:
            self._fold(*self.pending.pop(0))

    def _fold(self, records: Sequence[Record], asked: Settings) -> None:
        kept = self.kept
        for record in records:
            if self.full and not isinstance(record, StampAdvanced):
                continue  # the stamp file takes no block: a full disk cannot stop it
            if isinstance(record, StampAdvanced):
                kept = replace(kept, seen=max(kept.seen, record.seen))
            elif isinstance(record, IncidentOpened):
                kept = replace(kept, incidents=record.incident)
            elif isinstance(record, SettingsAdopted):
                kept = replace(kept, settings=record.settings, asked=asked)
            elif isinstance(record, KeptChanged):
                kept, self.kept_boot = replace(kept, kept=record.kept), self.boot
            elif isinstance(record, MemberRan):
                self.ran = (record.generation, self.boot, self.ran[2])
            elif isinstance(record, MemberRested):
                self.ran = (0, self.boot, record.returned)
        if kept is not self.kept:
            self.older = [*self.older[1 - VERSIONS_MAX :], self.kept]
            self.kept = kept

    def load(self) -> Remembered:
        """Return what a daemon that starts in this boot remembers."""
        generation, boot, returned = self.ran
        same = boot == self.boot
        unclean = 0 if same else generation
        kept = self.kept.kept
        if self.kept_boot != self.boot:
            kept = replace(kept, needs="", may_pass=False, config="")
        returned = returned if same else ()
        return replace(self.kept, kept=kept, unclean_generation=unclean, returned=returned)

    def crash(self, rng: random.Random) -> list[Record]:
        """The writer died: of what was on its way a part, in order, has arrived; return it."""
        arrived = self.pending[: rng.randint(0, len(self.pending))]
        for _ in arrived:
            self.finish()
        self.pending.clear()
        return [record for records, _ in arrived for record in records]

    def damage(self, how: str, rng: random.Random) -> None:
        """Lose, tear or roll back what was kept."""
        if how == "lost":
            self.kept, self.ran = Remembered(), (0, 0, ())
        elif how == "torn":
            # Stamp file and history are two files: one of them is damaged and moved aside.
            torn = Remembered(seen=self.kept.seen)
            self.kept = torn if rng.random() < 0.5 else replace(self.kept, seen=_older(self.older, rng))
        elif how == "rolled back":
            self.kept = rng.choice(self.older)


def _older(versions: Sequence[Remembered], rng: random.Random) -> Stamp:
    return rng.choice(versions).seen
