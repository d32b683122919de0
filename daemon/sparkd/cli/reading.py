"""Logs of any origin → one assessment: what `sparkctl diagnose` does between its files and its text."""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from operator import attrgetter

from sparkd.intake.files import LogFile, NoLogError, UnusableError
from sparkd.intake.heads import is_cut, is_log
from sparkd.intake.heads import lines_of as head_lines
from sparkd.intake.lines import HEAD_BYTES
from sparkd.intake.sieve import Sieve, read_phase
from sparkd.intake.whole import Fragment, Origin, WholeLog
from sparkd.intake.whose import places_of
from sparkd.signals import pasted
from sparkd.signals.assess import Assessment, Assessor
from sparkd.signals.catalogue import Catalogue, of_signatures
from sparkd.signals.causes import NONE
from sparkd.signals.match import Places
from sparkd.signals.model import Proof, Record

OTHER_TEXT = (
    "no line of it looks like a log of vLLM, Ray, the kernel or a collector: give what the program printed "
    "(journalctl -b, docker logs NAME, a folder with its logs)"
)
# So many logs are read side by side, in the order of their times; more are read one after the other.
TOGETHER_MAX = 16


@dataclass(frozen=True, slots=True)
class NamedLog:
    """A log and the node that somebody said it is of."""

    file: LogFile
    node: str | None = None

    @property
    def origin(self) -> Origin:
        """What it is called, and whose it is."""
        return Origin(self.file.name, self.node)


class Diagnoser:
    """Holds what all readings share: the catalogue and the sieve made from it."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        self._sieve = Sieve(catalogue)

    def files(self, logs: Sequence[NamedLog]) -> Assessment:
        """Return what *logs* say together; what cannot be used of them has its `unread` set.

        Raises NoLogError where none can be used, or where nothing wrong is found in what is no log.
        """
        heads = _heads(logs)
        usable = [log for log, _ in heads]
        lines = [head_lines(head) for _, head in heads]
        cut = [is_cut(of_one) for of_one in lines]
        readers = [
            WholeLog(log.origin, self._sieve, cut=is_part) for log, is_part in zip(usable, cut, strict=True)
        ]
        streams = [reader.records(log.file.chunks()) for reader, log in zip(readers, usable, strict=True)]
        places = places_of(
            (log.origin, "\n".join(of_one).encode()) for log, of_one in zip(usable, lines, strict=True)
        )
        alone = heads[0][1] if len(heads) == 1 and len(heads[0][1]) < HEAD_BYTES else None
        whole = None if alone is None else _short(usable[0].origin, _without_rest(alone, is_part=cut[0]))
        found = self._assess(_together(streams), places, readers, whole)
        if found.diagnosis.cause == NONE:
            are_logs = [
                is_log(of_one, self._catalogue) or (len(head) >= HEAD_BYTES and reader.headed)
                for of_one, (_, head), reader in zip(lines, heads, readers, strict=True)
            ]
            _refuse_other_texts(usable, are_logs)
        return found

    def lines(self, lines: Iterable[str], source: str = "log") -> Assessment:
        """Return what the lines of one log say."""
        text = "\n".join(lines).encode("utf-8", "replace")
        origin = Origin(source)
        reader = WholeLog(origin, self._sieve)
        places = places_of([(origin, text[:HEAD_BYTES])])
        return self._assess(reader.records([text]), places, [reader], _short(origin, text))

    def _assess(
        self, records: Iterable[Record], places: Places, readers: Sequence[WholeLog], whole: Record | None
    ) -> Assessment:
        """Return what *records* say; *whole* is all their text, where that is short."""
        assessor = Assessor(self._catalogue, places, read_phase)
        for record in records:
            if isinstance(record, Fragment):
                assessor.catalogue = self._doubting
            assessor.add(record)
            assessor.catalogue = self._catalogue
        found = assessor.finish() if whole is None else assessor.reread(whole)
        noise = Counter(dict(found.noise))
        for reader in readers:
            noise.update(reader.harmless)
        return replace(found, noise=tuple(noise.most_common()), noise_count=noise.total())

    @cached_property
    def _doubting(self) -> Catalogue:
        """The catalogue for what may not be what it looks like: nothing of it proves anything."""
        doubted = (
            replace(s, proof=Proof.SUGGESTS) if s.proof is Proof.PROVES else s
            for s in self._catalogue.signatures
        )
        return of_signatures(doubted)


def _heads(logs: Sequence[NamedLog]) -> list[tuple[NamedLog, bytes]]:
    """Return the logs that can be used with their first bytes. Raises NoLogError where none can."""
    heads, refused = [], []
    for log in logs:
        try:
            heads.append((log, log.file.head()))
        except NoLogError as error:
            refused.append(error)
            if log.file.named:
                log.file.unread = error.unread
    if heads:
        return heads
    if len(refused) == 1:
        raise refused[0]
    raise UnusableError(f"none of the {len(refused)} files is a log that can be read: {refused[0]}")


def _refuse_other_texts(logs: Sequence[NamedLog], are_logs: Sequence[bool]) -> None:
    """Note which of *logs* are other texts: that nothing is wrong in them says nothing.

    Raises NoLogError where all of them are; one that was found in a folder is left out in silence.
    """
    others = [log.file for log, fits in zip(logs, are_logs, strict=True) if not fits]
    for file in others:
        if file.named:
            file.unread = file.unread or file.refuse(OTHER_TEXT).unread
    if len(others) == len(logs):
        raise others[0].refuse(OTHER_TEXT)


def _without_rest(head: bytes, *, is_part: bool) -> bytes:
    return head.partition(b"\n")[2] if is_part else head


def _short(origin: Origin, text: bytes) -> Record | None:
    """Return all of a text that is short enough to have been pasted."""
    if len(text) > pasted.CHARS_MAX or text.count(b"\n") > pasted.LINES_MAX:
        return None
    return Record(origin.source, origin.node or "", text.decode("utf-8", "replace"))


def _together(streams: Sequence[Iterator[Record]]) -> Iterable[Record]:
    """Return records of several logs: of a few in the order of their times, of many log after log."""
    if len(streams) == 1 or len(streams) > TOGETHER_MAX:
        return itertools.chain.from_iterable(streams)
    return heapq.merge(*streams, key=attrgetter("at_s"))
