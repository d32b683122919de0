"""Logs of any origin → one assessment: what `sparkctl diagnose` does between its files and its text."""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter

from sparkd.intake.files import HEAD_BYTES, LogFile, UnusableError
from sparkd.intake.sieve import Sieve, read_phase
from sparkd.intake.whole import Origin, WholeLog
from sparkd.intake.whose import places_of
from sparkd.signals import pasted
from sparkd.signals.assess import Assessment, Assessor
from sparkd.signals.catalogue import Catalogue
from sparkd.signals.match import Places
from sparkd.signals.model import Record

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
        """Return what *logs* say together. Raises UnusableError where a named file, or all, are no logs."""
        heads, usable, refused = [], [], []
        for log in logs:
            try:
                heads.append((log.origin, log.file.head()))
                usable.append(log)
            except UnusableError as error:
                if log.file.named:
                    raise
                refused.append(str(error))
        if not usable:
            raise UnusableError(
                refused[0] if len(refused) == 1 else "none of the files is a log that can be read"
            )
        readers = [WholeLog(log.origin, self._sieve) for log in usable]
        streams = [reader.records(log.file.chunks()) for reader, log in zip(readers, usable, strict=True)]
        whole = _short(*heads[0]) if len(heads) == 1 and len(heads[0][1]) < HEAD_BYTES else None
        return self._assess(_together(streams), places_of(heads), readers, whole)

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
            assessor.add(record)
        found = assessor.finish() if whole is None else assessor.reread(whole)
        noise = Counter(dict(found.noise))
        for reader in readers:
            noise.update(reader.harmless)
        return replace(found, noise=tuple(noise.most_common()), noise_count=noise.total())


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
