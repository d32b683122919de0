"""Logs of any origin → one assessment: what `sparkctl diagnose` does between its files and its text."""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from sparkd.intake import rotated
from sparkd.intake.clock import clock_of
from sparkd.intake.files import CHUNK_BYTES, LogFile, NoLogError, UnusableError
from sparkd.intake.heads import is_cut, is_log, is_mostly_log, is_page, is_talk
from sparkd.intake.heads import lines_of as head_lines
from sparkd.intake.lines import HEAD_BYTES
from sparkd.intake.opening import allow
from sparkd.intake.sieve import Sieve, read_phase
from sparkd.intake.turns import ONE, Span, Turns, span_of, turns_of
from sparkd.intake.whole import Fragment, Origin, WholeLog
from sparkd.intake.whose import places_of
from sparkd.signals import pasted, several
from sparkd.signals.assess import Assessment, Assessor
from sparkd.signals.catalogue import Catalogue, of_signatures
from sparkd.signals.causes import NONE, UNKNOWN
from sparkd.signals.match import Places
from sparkd.signals.model import Proof, Record

OTHER_TEXT = (
    "no line of it looks like a log of vLLM, Ray, the kernel or a collector: give what the program printed "
    "(journalctl -b, docker logs NAME, a folder with its logs)"
)
# What is called so and reads as no log is none, and is passed over where nobody named it.
PAGES = frozenset(
    ".md .rst .adoc .html .htm .py .sh .toml .yaml .yml README LICENSE CHANGELOG".split()  # noqa: SIM905
)
# A record, and whether it may not be what it looks like.
_Heard = tuple[Record, bool]
# All logs are read side by side, in the order of their times: all hold so much, each of them at least a head.
TOGETHER_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class NamedLog:
    """A log and the node that somebody said it is of."""

    file: LogFile
    node: str | None = None

    @property
    def origin(self) -> Origin:
        """What it is called, and whose it is."""
        return Origin(self.file.name, self.node)


@dataclass(frozen=True, slots=True)
class _Text:
    """One text, of which the beginning was looked at.

    *cut* tells that its first line is the rest of one, *talk* that it is a talk, of which nothing happened.
    """

    origin: Origin
    head: bytes
    lines: Sequence[str]
    reader: WholeLog
    cut: bool
    is_log: bool
    talk: bool

    @property
    def is_whole(self) -> bool:
        """Whether nothing comes after the head."""
        return len(self.head) < HEAD_BYTES

    @property
    def first_s(self) -> float | None:
        """The time of its first line that has one, None where none has."""
        return clock_of(self.lines).first_s

    @property
    def reads_as_log(self) -> bool:
        """Whether it is a log, as its head or what was read behind its head shows."""
        return self.is_log or (not self.is_whole and self.reader.headed)

    def records(self, chunks: Iterable[bytes]) -> Iterator[_Heard]:
        """Yield the records, each with whether it is doubted.

        What stands in prose is quoted, of whatever; behind a long head of prose a log may follow.
        """
        for record in () if self.talk and self.is_whole else self.reader.records(chunks):
            quoted = not self.is_log and (self.is_whole or not (record.level or record.process))
            told = replace(record, file=self.origin.file) if self.origin.file else record
            yield told, quoted or isinstance(record, Fragment)

    def short(self) -> Record | None:
        """Return all of a text that is short enough to have been pasted."""
        text = self.head.partition(b"\n")[2] if self.cut else self.head
        if (
            self.talk
            or not self.is_whole
            or len(text) > pasted.CHARS_MAX
            or text.count(b"\n") > pasted.LINES_MAX
        ):
            return None
        return Record(self.origin.source, self.origin.node or "", text.decode("utf-8", "replace"))


class Diagnoser:
    """Holds what all readings share: the catalogue and the sieve made from it."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        self._sieve = Sieve(catalogue)

    def files(self, logs: Sequence[NamedLog]) -> Assessment:
        """Return what *logs* say together; what cannot be used of them has its `unread` set.

        Raises NoLogError where none can be used, or where nothing wrong is found in what is no log.
        """
        begun = [(log, self._begun(origin, head)) for log, origin, head in _with_origins(_heads(logs))]
        usable = _without_pages(begun)
        if not usable:
            raise begun[0][0].file.refuse(OTHER_TEXT)
        texts = [text for _, text in usable]
        found = self._assess(texts, _together(usable), _turns(usable))
        pages = all(_is_page(log.file, text) for log, text in usable)
        if found.diagnosis.cause == NONE or (found.diagnosis.cause == UNKNOWN and pages):
            _refuse_other_texts([log for log, _ in usable], [text.reads_as_log for text in texts])
        return found

    def lines(self, lines: Iterable[str], source: str = "log") -> Assessment:
        """Return what the lines of one log say."""
        return self._lines(lines, source)[0]

    def log(self, lines: Iterable[str]) -> Assessment:
        """Return what lines say. Raises UnusableError where nothing wrong is found in what is no log."""
        found, is_log = self._lines(lines, "log")
        if found.diagnosis.cause == NONE and not is_log:
            raise UnusableError(OTHER_TEXT)
        return found

    def _lines(self, lines: Iterable[str], source: str) -> tuple[Assessment, bool]:
        whole = "\n".join(lines).encode("utf-8", "replace")
        text = self._begun(Origin(source), whole[:HEAD_BYTES])
        return self._assess([text], text.records([whole])), text.reads_as_log

    def _begun(self, origin: Origin, head: bytes) -> _Text:
        lines = head_lines(head)
        cut = is_cut(lines)
        reader = WholeLog(origin, self._sieve, cut=cut)
        talk = is_talk(lines)
        return _Text(
            origin,
            head,
            lines,
            reader,
            cut=cut,
            is_log=not talk and is_log(lines, self._catalogue),
            talk=talk,
        )

    def _assess(self, texts: Sequence[_Text], records: Iterable[_Heard], turns: Turns = ONE) -> Assessment:
        """Return what *records* say, and one text that is short when it is read as a whole."""
        places = _places(texts)
        read = tuple(text.origin.source for text in texts)
        assessors = [Assessor(self._catalogue, places, read_phase, read) for _ in range(turns.count)]
        for record, doubted in records:
            assessor = assessors[turns.of(record)]
            assessor.catalogue = self._doubting if doubted else self._catalogue
            assessor.add(record)
        whole = texts[0].short() if len(texts) == 1 else None
        if whole is None:
            found = several.together([assessor.finish() for assessor in assessors])
        else:
            assessors[0].catalogue = self._catalogue if texts[0].is_log else self._doubting
            found = assessors[0].reread(whole)
        noise = Counter(dict(found.noise))
        for text in texts:
            noise.update(text.reader.harmless)
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


def _with_origins(heads: Sequence[tuple[NamedLog, bytes]]) -> list[tuple[NamedLog, Origin, bytes]]:
    """Return the logs with what each is of; the files of one log one after the other, the oldest first."""
    told = [(_part(log, head), log, head) for log, head in heads]
    whole = {part: files for files in rotated.logs_of(part for part, *_ in told) for part in files}
    names = {part: log.file.name for part, log, _ in told}
    begin = {part: number for number, (part, *_) in reversed(list(enumerate(told)))}

    def place(one: tuple[rotated.Part, NamedLog, bytes]) -> tuple[int, int]:
        files = whole.get(one[0], [one[0]])
        return min(begin[part] for part in files), files.index(one[0])

    return [
        (log, _origin(log, names[whole.get(part, [part])[-1]]), head)
        for part, log, head in sorted(told, key=place)
    ]


def _part(log: NamedLog, head: bytes) -> rotated.Part:
    """Return a file under its own name; what was unpacked lies under another, beside all of its archive."""
    path, name = log.file.path, Path(log.file.name)
    folder = path.parent if path.name == name.name else path.parent / path.name.rpartition("-")[0]
    return rotated.Part(name, (log.node, folder), clock_of(head_lines(head)).first_s)


def _origin(log: NamedLog, source: str) -> Origin:
    return log.origin if source == log.file.name else replace(log.origin, source=source, file=log.file.name)


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


def _without_pages(begun: Sequence[tuple[NamedLog, _Text]]) -> list[tuple[NamedLog, _Text]]:
    """Return the texts without pages that nobody named: what one quotes beside logs is not of these logs."""
    beside = any(text.is_log and not _is_called_a_page(log.file) for log, text in begun)
    quoting = [
        _is_called_a_page(log.file) and not (text.is_log and (is_mostly_log(text.lines) or not beside))
        for log, text in begun
    ]
    kept = [pair for pair, quotes in zip(begun, quoting, strict=True) if pair[0].file.named or not quotes]
    return [(log, _as_called(log.file, text)) for log, text in kept]


def _as_called(file: LogFile, text: _Text) -> _Text:
    """Return a text that is called a page, or written as one, as prose where not most is a log: it quotes."""
    page = text.is_log and (_is_called_a_page(file) or is_page(text.lines))
    if page and not is_mostly_log(text.lines):
        return replace(text, is_log=False)
    return text


def _is_called_a_page(file: LogFile) -> bool:
    return file.path.suffix.lower() in PAGES or file.path.stem.upper() in PAGES


def _is_page(file: LogFile, text: _Text) -> bool:
    """Return whether a text is no log by its name, and reads as none."""
    return not text.is_log and _is_called_a_page(file)


def _places(texts: Sequence[_Text]) -> Places:
    return places_of((text.origin, "\n".join(text.lines).encode()) for text in texts)


def _turns(logs: Sequence[tuple[NamedLog, _Text]]) -> Turns:
    """Return the runs that the logs are of; one where they cannot be told apart."""
    if len(logs) < 2 or any(log.file.once for log, _ in logs):
        return ONE
    spans: list[Span] = []
    for _, group in itertools.groupby(logs, key=lambda pair: (pair[1].origin.source, pair[1].origin.node)):
        parts = list(group)
        (_, first), (newest, _) = parts[0], parts[-1]
        span = first.is_log and span_of(first.origin.source, first.lines, _last_lines(newest.file))
        spans += [span] if span else []
    return turns_of(spans)


def _last_lines(file: LogFile) -> list[str]:
    try:
        return head_lines(file.tail())
    except OSError:
        return []  # told where it is read


def _together(logs: Sequence[tuple[NamedLog, _Text]]) -> Iterator[_Heard]:
    """Yield the records of all *logs* in the order of their times.

    What has no times stands at the end of all that has, at one time: it is as late as what it may explain or
    follow, and no order says which, so the precedence of causes decides.
    """
    allow(len(logs))
    piece_bytes = min(CHUNK_BYTES, max(HEAD_BYTES, TOGETHER_BYTES // len(logs)))
    streams: dict[bool, list[Iterator[_Heard]]] = {True: [], False: []}
    for _, group in itertools.groupby(logs, key=lambda pair: (pair[1].origin.source, pair[1].origin.node)):
        stream, first_s = _joined(list(group), piece_bytes)
        streams[first_s is not None].append(_timed(stream, first_s or 0.0))
    merged = heapq.merge(*streams[True], key=lambda heard: heard[0].at_s)
    yield from _timed(itertools.chain(merged, *streams[False]), 0.0)


def _joined(
    parts: Sequence[tuple[NamedLog, _Text]], piece_bytes: int
) -> tuple[Iterator[_Heard], float | None]:
    """Return the records of the files of one log, and the first time that there is."""
    streams: list[Iterator[_Heard]] = []
    began_s: float | None = None
    last_s = 0.0
    for log, text in parts:
        heard = text.records(log.file.chunks(piece_bytes))
        if text.first_s is not None:
            began_s = text.first_s if began_s is None else began_s
            later_s = rotated.turned_s(last_s, text.first_s)
            last_s = text.first_s + later_s
            heard = _later(heard, later_s) if later_s else heard
        streams.append(heard)
    return itertools.chain.from_iterable(streams), began_s


def _later(stream: Iterable[_Heard], later_s: float) -> Iterator[_Heard]:
    for record, doubted in stream:
        yield replace(record, at_s=record.at_s + later_s) if record.at_s else record, doubted


def _timed(stream: Iterable[_Heard], last_s: float) -> Iterator[_Heard]:
    """Yield records of which those without a time have the latest so far, at first *last_s*."""
    for record, doubted in stream:
        last_s = max(last_s, record.at_s)
        yield record if record.at_s else replace(record, at_s=last_s), doubted
