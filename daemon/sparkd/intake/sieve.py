"""Which lines of a block matter: found by one pass over its bytes, without looking at each line.

A line matters when a word of the catalogue, of the engine's phases or of the beginning of a report stands
in it, or while a report is open. All other lines give no signal and change no record: leaving them out
changes nothing but the time (a property test holds it).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from ahocorasick_rs import AhoCorasick, BytesAhoCorasick, Implementation

from sparkd.engines.lines import NUMBER_TEXTS, OTHER_TEXTS, PHASE_TEXTS, read_line
from sparkd.engines.model import LineFact
from sparkd.intake.flood import thinned
from sparkd.intake.records import OPENERS
from sparkd.signals.catalogue import Catalogue
from sparkd.signals.exceptions import KINDS

# What shows the engine's phase (`engines.lines`, `signals.follow`): of each only the newest counts.
PHASE_WORDS = (
    *(text for text, _ in (*NUMBER_TEXTS, *PHASE_TEXTS, *OTHER_TEXTS)),
    '"POST /v1/',
    "Received request ",
    "Added request ",
    "Decode batch",
    "Decode out of memory happened",
    "Prefill batch",
    "Processed prompts: ",
    "Rendering prompts: ",
)
# The size of the KV cache: each counts, since one that is not above zero changes nothing.
KV_WORDS = (
    "Available KV cache memory: ",
    "GiB memory for KV Cache as specified",
    " GiB for KV cache on node",
)
# What is evidence without a signature: an exception that nobody knows (in each form that
# `exceptions.raised_in` sees), and the frames above one.
EXCEPTIONS = tuple(kind + end for kind in KINDS for end in (":", "\n", "):", ")\n"))
SLOW_BYTES_MAX = 1 << 20
FRAMES = ('", line ',)


class Hits(NamedTuple):
    """Where words stand in a block.

    Attributes:
        offsets: places that make their lines matter, ascending by line.
        harmless: (place, word) of what is only counted, ascending.
    """

    offsets: list[int]
    harmless: list[tuple[int, int]]


class Finder(Protocol):
    """Finds the places of a block that make their lines matter."""

    def hits(self, block: bytes) -> Hits:
        """Return the places."""
        ...

    def harmless_id(self, word: int) -> str:
        """Return the signature that knows *word* to be harmless."""
        ...


class Sieve:
    """Finds the words of *catalogue*, of reports, and of phases."""

    def __init__(self, catalogue: Catalogue) -> None:
        words = dict.fromkeys((*EXCEPTIONS, *OPENERS, *FRAMES, *KV_WORDS, *catalogue.telling_literals))
        harmless = [text for text in catalogue.literals if text not in words]
        phases = [text for text in dict.fromkeys(PHASE_WORDS) if text not in words and text not in harmless]
        self._harmless, self._phases = len(words), len(words) + len(harmless)
        self._ids = [catalogue.candidates(text)[0].id for text in harmless]
        self._needles = [needle.encode() for needle in (*words, *harmless, *phases)]
        self._finder = BytesAhoCorasick(self._needles, implementation=Implementation.NoncontiguousNFA)
        self._slow_bytes = 0

    def hits(self, block: bytes) -> Hits:
        """Return where words begin.

        Of each phase word only the last place before a telling line is given: the newest counts, and a log
        of a served day has millions of lines that say "serving". A line with a harmless word is hardly
        telling: it is read for the rest that it may say, but no phase is told apart for it.

        Words overlap ("# GPU blocks: " begins "# GPU blocks: 0,"): all are found, ordered by their ends.
        Lines stand in their order, the places within one line in any.
        """
        found: list[int] = []
        mixed: list[int] = []
        harmless: list[tuple[int, int]] = []
        phases: dict[int, int] = {}
        first_harmless, first_phase = self._harmless, self._phases
        for word, start, _ in self._finder_for(block).find_matches_as_indexes(block, overlapping=True):
            if word >= first_phase:
                phases[word] = start
            elif word >= first_harmless:
                harmless.append((start, word))
            elif harmless and _in_line(block, harmless, start):
                if word:
                    mixed.append(start)
            elif not phases and not mixed:
                found.append(start)
            else:
                found += sorted((*mixed, *phases.values(), start))
                mixed.clear()
                phases.clear()
        return Hits(found + sorted((*mixed, *phases.values())), sorted(harmless))

    def _finder_for(self, block: bytes) -> BytesAhoCorasick:
        """Return the automaton; building the fast one costs what the slow one takes for a megabyte."""
        if self._slow_bytes <= SLOW_BYTES_MAX < self._slow_bytes + len(block):
            self._finder = BytesAhoCorasick(self._needles, implementation=Implementation.DFA)
        self._slow_bytes = min(SLOW_BYTES_MAX + 1, self._slow_bytes + len(block))
        return self._finder

    def harmless_id(self, word: int) -> str:
        """Return the signature that knows *word* to be harmless."""
        return self._ids[word - self._harmless]


def _in_line(block: bytes, harmless: list[tuple[int, int]], place: int) -> bool:
    """Return whether the last harmless word stands in the line of *place*."""
    return block.find(b"\n", harmless[-1][0], place) < 0


@dataclass(slots=True)
class Sifter:
    """Goes through one source's blocks by the lines that matter, and counts the harmless ones it skips.

    *waiting* tells whether a report is open; it is asked after each line has been dealt with.
    """

    finder: Finder
    waiting: Callable[[], bool]
    harmless: Counter[str] = field(default_factory=Counter)

    def lines(self, block: bytes) -> Iterator[tuple[int, bytes]]:
        """Yield offset and bytes of the lines of *block* that matter."""
        hits = self.finder.hits(block)
        read, flood = thinned(block, hits.offsets)
        offsets = iter(read)
        position, end = 0, len(block)
        hit = next(offsets, end)
        while position < end:
            if position in flood or not self.waiting():
                while hit < position:
                    hit = next(offsets, end)
                begin = end if hit >= end else block.rfind(b"\n", position, hit) + 1 or position
                self._count(block, hits.harmless, position, begin)
                if begin >= end:
                    return
                position = begin
            stop = block.find(b"\n", position)
            stop = end if stop < 0 else stop
            if stop > position:
                yield position, block[position:stop]
            position = stop + 1

    def _count(self, block: bytes, harmless: list[tuple[int, int]], begin: int, end: int) -> None:
        """Count the lines from *begin* to *end* that have a harmless word, each once."""
        if not harmless or begin >= end:
            return
        last = -1
        for place, word in harmless[bisect_left(harmless, (begin, 0)) : bisect_left(harmless, (end, 0))]:
            if last < 0 or block.find(b"\n", last, place) >= 0:
                self.harmless[self.finder.harmless_id(word)] += 1
            last = place


_phase_finder = AhoCorasick(PHASE_WORDS)


def read_phase(text: str) -> LineFact | None:
    """Return what `engines.lines.read_line` returns, sooner where that is nothing."""
    return read_line(text) if _phase_finder.find_matches_as_indexes(text) else None
