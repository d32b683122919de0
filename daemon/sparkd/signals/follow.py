"""The phase of an engine, followed over whole logs: what the core does for a live one, without its state.

Per source the last milestone counts; a start after a stop begins anew. Lines that Ray forwards come late and
never lead back.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from sparkd.signals.exceptions import raised_in
from sparkd.signals.frames import inner, phase_of
from sparkd.signals.model import Record
from sparkd.words import Phase


class Fact(Protocol):
    """What a line of the engine's output means; `engines.model.LineFact` is one."""

    @property
    def phase(self) -> Phase | None:
        """The phase that the line shows to have begun."""

    @property
    def kv_cache_bytes(self) -> int | None:
        """KV cache of one rank, where the line gives it."""

    @property
    def rate_tok_s(self) -> float | None:
        """Throughput, where the line gives it."""

    @property
    def port_ready(self) -> bool:
        """Whether the API server says that it is up."""


ReadLine = Callable[[str], Fact | None]

_ORDER = tuple(Phase)
# Frames tell for so many records; later ones belong to something else.
_FRAMES_LAST = 400
# What a start says of itself once, before it can fail of much: said again, another start began.
BEGINS = "non-default args: {"
_PORT = re.compile(r"'port': (\d{1,5})\b")
_TRACEBACK = "Traceback (most recent call last):"
_IDLE = "Running: 0 reqs"
# Who speaks in the log of a rank without a server: its workers, and the process that launches them.
_WORKERS, _LAUNCHER = ("Worker", "RayWorker"), "MainProcess"
_SERVED = (
    '"POST /v1/',
    "Received request ",
    "Added request ",
    "Decode batch",
    "Decode out of memory happened",
    "Prefill batch",
    "Processed prompts: ",
    "Rendering prompts: ",
)


def is_later(phase: Phase | None, before: Phase | None) -> bool:
    """Return whether *phase* is later than *before*; of what stands before the first nothing is known."""
    return phase is not None and before is not None and _ORDER.index(phase) > _ORDER.index(before)


@dataclass(slots=True)
class _Track:
    """One source's way: its phase before the first trouble, whether trouble was seen, and its last frames.

    *begun* tells whether a start said what it begins with, *again* whether another one came after it.
    """

    phase: Phase | None = None
    before: Phase | None = None
    begun: bool = False
    again: bool = False
    troubled: bool = False
    first: Phase | None = None
    frames: Phase | None = None
    frames_at: int = 0
    in_frames: bool = False

    def works(self) -> None:
        """Note that it is at work: trouble that an earlier start had is over."""
        if self.again:
            self.again, self.troubled, self.before = False, False, None

    @property
    def speaks(self) -> bool:
        """Whether the source tells of a phase."""
        return self.phase is not None


@dataclass(slots=True)
class Follower:
    """Follows the phases of all sources of one assessment.

    Attributes:
        read_line: what a line means.
        kv_cache_bytes: as it was last said; kv_cache_at: the record that said it.
        count: records seen; progress_at: the last of them that shows the engine alive.
        worked_at: the last of them that shows that it does what it is asked to.
        served_at, counted_at: the last that shows it up or answering, and the last that counts tokens.
        stepped_at: the last in which a source went forward to a later phase.
        starts: how often an engine that had begun began anew.
        port: the port of the API that the last start was told.
    """

    read_line: ReadLine
    kv_cache_bytes: int | None = None
    kv_cache_at: int = -1
    count: int = 0
    progress_at: int = -1
    worked_at: int = -1
    served_at: int = -1
    counted_at: int = -1
    stepped_at: int = -1
    starts: int = 0
    port: int | None = None
    _ranks: bool = False
    _heads: bool = False
    _tracks: dict[tuple[str, str], _Track] = field(default_factory=dict)

    def see(self, record: Record) -> None:
        """Take what a record says of the phase."""
        self.count += 1
        text = record.text
        if ", line " in text or " method " in text:
            self._frames(record)
        else:
            self._end_frames(record)
        if "\n" in text:
            return
        fact = self.read_line(text)
        if fact is not None:
            self._fact(record, fact)
        elif any(word in text for word in _SERVED):
            if '" 200 ' in text:
                self.progress_at = self.worked_at = self.served_at = self.count
                self._track(record).works()
            self._move(record, Phase.SERVING)

    def trouble(self, record: Record) -> None:
        """Note that a fatal signal was seen: the phase before it is the one that counts."""
        track = self._track(record)
        if not track.troubled:
            track.troubled, track.before = True, track.phase

    def told_by(self, record: Record) -> Phase | None:
        """Return the phase that the writer of *record* has told of."""
        return self._track(record).phase

    def phase(self) -> Phase | None:
        """Return the furthest phase that was reached before the first trouble."""
        reached = [self._reached(track) for track in self._tracks.values()]
        known = [phase for phase in reached if phase is not None]
        return max(known, key=_ORDER.index, default=None)

    def _reached(self, track: _Track) -> Phase | None:
        """Return a source's phase; a server that answers, even with an error, was up before the trouble."""
        if not track.troubled:
            return track.phase
        was_up = track.before is None and track.phase is Phase.SERVING and not self.starts
        return Phase.SERVING if was_up else track.before

    def speakers(self) -> tuple[str, ...]:
        """Return the sources that have spoken as an engine does: of a phase, or of work."""
        return tuple(source for (_, source), track in self._tracks.items() if track.speaks)

    def frames(self, source: str, node: str) -> Phase | None:
        """Return the phase that the last frames of a source tell, where they stand near."""
        track = self._tracks.get((node, source))
        if track is None or self.count - track.frames_at > _FRAMES_LAST:
            return None
        return track.frames

    def any_frames(self) -> Phase | None:
        """Return the phase that the first frames of any source tell."""
        return next((t.first for t in self._tracks.values() if t.first is not None), None)

    def _track(self, record: Record) -> _Track:
        return self._tracks.setdefault((record.node, record.source), _Track())

    def _frames(self, record: Record) -> None:
        phase = phase_of(record.text)
        if phase is None:
            return
        track = self._track(record)
        track.first = track.first or phase
        if track.frames is None or not track.in_frames or "\n" in record.text:
            track.frames = phase
        else:  # line by line: as in a whole traceback, what is nearer to the device tells more
            track.frames = inner(track.frames, phase)
        track.frames_at = self.count
        track.in_frames = "\n" not in record.text

    def _end_frames(self, record: Record) -> None:
        """Note where frames that came line by line have their end: in an exception, or where others begin.

        Never in a line that says nothing of either: such lines are hardly ever read.
        """
        track = self._tracks.get((record.node, record.source))
        if track is not None and track.in_frames and (_TRACEBACK in record.text or raised_in(record.text)):
            track.in_frames = False

    def _fact(self, record: Record, fact: Fact) -> None:
        if fact.kv_cache_bytes is not None and fact.kv_cache_bytes > 0:
            self.kv_cache_bytes, self.kv_cache_at = fact.kv_cache_bytes, self.count
        if fact.port_ready or fact.rate_tok_s is not None:
            self.progress_at = self.count
            if fact.port_ready or fact.rate_tok_s or _IDLE in record.text:
                self.worked_at = self.count
                self._track(record).works()
            if fact.port_ready:
                self.served_at = self.count
            elif fact.rate_tok_s:
                self.counted_at = self.count
            self._move(record, Phase.SERVING)
        elif fact.phase is not None:
            self._move(record, fact.phase)

    def is_headless(self) -> bool:
        """Return whether only ranks without a server have spoken: that they serve they never say."""
        return self._ranks and not self._heads

    def _move(self, record: Record, phase: Phase) -> None:
        track = self._track(record)
        if record.process.startswith(_WORKERS):
            self._ranks = True
        elif record.process != _LAUNCHER:
            self._heads = True
        if phase is Phase.RESOLVING_CONFIG and not record.address:
            begins = BEGINS in record.text
            again = track.phase not in {None, phase} or (begins and track.begun)
            if again:
                self.starts += 1
                track.again, track.frames = True, None
            track.begun = track.begun or begins
            if begins:
                told = _PORT.search(record.text)
                self.port = int(told[1]) if told else None
        if track.phase is Phase.SERVING and (phase is not Phase.RESOLVING_CONFIG or record.address):
            return
        late = record.address is not None and track.phase is not None
        if record.address is None and is_later(phase, track.phase):
            self.stepped_at = self.count
        if not late or is_later(phase, track.phase):
            track.phase = phase
