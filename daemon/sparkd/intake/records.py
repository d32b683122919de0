r"""Lines → records: prefixes taken off, multi-line reports put together.

Each writing process of a source is a stream of its own, since their lines interleave. In a stream these
lines belong together:

* lines of vLLM's ERROR level with the same place and second: one call of its logger (it repeats the prefix
  on each line of a traceback);
* a Python traceback without header, to its last exception, with what is indented below it;
* Ray's report of a kill (about forty lines without prefix), to its suggestions.

Everything else is a record by itself, at once. A report that is longer than the limit continues in a second
record. An open report is closed by the first line that does not belong to it, by silence (of time, or of so
many lines of others), or by the end.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from sparkd.signals import prefix
from sparkd.signals.model import Record
from sparkd.signals.prefix import Prefix

REPORT_LINES_MAX = 400
REPORT_CHARS_MAX = 64 * 1024
STREAMS_MAX = 32
# A report is written in one go; what is silent for so long has ended.
IDLE_S = 0.2
IDLE_LINES = 100

_TRACEBACK = "Traceback (most recent call last):"
_CHAINED = (
    _TRACEBACK,
    "During handling of the above exception",
    "The above exception was the direct cause",
    "  + Exception Group Traceback",
)
_REPORTS = ("kill details:", "running low on memory", "Version mismatch: The cluster was started")
OPENERS = ("ERROR ", "CRITICAL ", "FATAL ", _TRACEBACK, *_REPORTS)
"""Words of which one stands in every line that opens a report."""
_REPORT_ENDS = (" suggestions:", "[state-dump]")


class _Kind(Enum):
    LOGGED = "logged"
    FRAMES = "frames"
    RAISED = "raised"
    REPORT = "report"


@dataclass(slots=True)
class _Open:
    """An unfinished report of one stream."""

    kind: _Kind
    first: Prefix
    at_s: float
    last_s: float
    last_line: int = 0
    lines: list[str] = field(default_factory=list)
    chars: int = 0

    def add(self, text: str, at_s: float, line: int) -> None:
        self.lines.append(text)
        self.chars += len(text)
        self.last_s = at_s
        self.last_line = line

    @property
    def full(self) -> bool:
        return len(self.lines) >= REPORT_LINES_MAX or self.chars >= REPORT_CHARS_MAX


class Reader:
    """Puts one source's lines together to records. Bounded: `STREAMS_MAX` open reports of limited size."""

    def __init__(self, source: str, node: str, generation: int) -> None:
        self._source = source
        self._node = node
        self._generation = generation
        self._open: dict[str, _Open] = {}
        self._count = 0

    def feed(self, lines: list[str], at_s: float) -> list[Record]:
        """Return the records that *lines* complete, each with the time of its first line."""
        found: list[Record] = []
        for line in lines:
            found += self.line(prefix.split(line), at_s)
        return found

    def line(self, line: Prefix, at_s: float) -> list[Record]:
        """Return the records that one line, taken apart, completes."""
        found: list[Record] = []
        self._count += 1
        self._line(line, at_s, found)
        silent = [s for s, report in self._open.items() if self._count - report.last_line > IDLE_LINES]
        found += [self._close(stream) for stream in silent]
        return found

    def tick(self, at_s: float) -> list[Record]:
        """Return the reports that have been silent for `IDLE_S`."""
        quiet = [stream for stream, report in self._open.items() if at_s - report.last_s >= IDLE_S]
        return [self._close(stream) for stream in quiet]

    def flush(self) -> list[Record]:
        """Return every open report: the source has ended."""
        return [self._close(stream) for stream in list(self._open)]

    @property
    def waiting(self) -> bool:
        """Whether a report is open, so that `tick` may give something."""
        return bool(self._open)

    def _line(self, line: Prefix, at_s: float, found: list[Record]) -> None:
        report = self._open.get(line.stream)
        if report is not None and _belongs(report, line):
            report.add(line.body, at_s, self._count)
            report.kind = _kind_after(report.kind, line.body)
            if report.full or (report.kind is _Kind.REPORT and line.body.startswith(_REPORT_ENDS)):
                found.append(self._close(line.stream))
            return
        if report is not None:
            found.append(self._close(line.stream))
        kind = _kind_of(line)
        if kind is None:
            found.append(self._record(line, line.body, at_s))
            return
        if len(self._open) >= STREAMS_MAX:
            found.append(self._close(next(iter(self._open))))
        opened = _Open(kind, line, at_s, at_s)
        opened.add(line.body, at_s, self._count)
        self._open[line.stream] = opened

    def _close(self, stream: str) -> Record:
        report = self._open.pop(stream)
        return self._record(report.first, "\n".join(report.lines), report.at_s)

    def _record(self, line: Prefix, text: str, at_s: float) -> Record:
        return Record(
            source=self._source,
            node=self._node,
            text=text,
            at_s=at_s,
            generation=self._generation,
            printed=line.printed,
            process=line.process,
            level=line.level,
            address=line.address,
            rank=line.rank,
        )


def _kind_of(line: Prefix) -> _Kind | None:
    """Return what *line* opens, None where it stands by itself."""
    if line.loud and line.where:
        return _Kind.LOGGED
    if any(mark in line.body for mark in _REPORTS):
        return _Kind.REPORT
    if line.body.startswith(_TRACEBACK):
        return _Kind.FRAMES
    return None


def _belongs(report: _Open, line: Prefix) -> bool:
    if report.kind is _Kind.LOGGED:
        further = line.printed == report.first.printed or line.body[:1] in {" ", "\t"}
        return line.where == report.first.where and further and line.level == report.first.level
    if line.where:
        return False
    if report.kind is _Kind.REPORT:
        return not line.body.startswith("[state-dump]")
    if report.kind is _Kind.FRAMES:
        return True
    return line.body[:1] in {" ", "\t"} or line.body.startswith(_CHAINED)


def _kind_after(kind: _Kind, body: str) -> _Kind:
    """Return the kind of a report after a further line: a line that is not indented names the exception."""
    if kind in {_Kind.LOGGED, _Kind.REPORT}:
        return kind
    if body.startswith(_CHAINED):
        return _Kind.FRAMES
    if body[:1] in {" ", "\t"}:
        return kind
    return _Kind.RAISED
