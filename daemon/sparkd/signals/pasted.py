r"""A short text that somebody pasted, read once more without its line breaks.

It is what `sparkctl diagnose` does where a first reading, line by line, decided nothing. Pages and terminals
wrap lines at any column, join several into one, put blanks between tokens and marks of their own around them.
So blanks and marks are taken out of the text, and out of the catalogue's patterns, and the two are compared.
Each line that begins something (it has a level, or another writer than the line before) stands together with
the lines after it that begin nothing, a few at a time: what stood far apart never meets.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cache

from sparkd.signals import prefix, wrapping
from sparkd.signals.catalogue import Catalogue, Signature, of_signatures
from sparkd.signals.match import NO_PLACES, QUOTE_CHARS, Places, recognise
from sparkd.signals.model import Proof, Record, Signal

LINES_MAX = 400
CHARS_MAX = 1 << 16
# A message is wrapped into so many lines at most; windows overlap by half.
WINDOW = 8
_LITERAL_MIN = 6
# So few characters may stand anywhere where the blanks are gone.
SHORT = 12
_NO_PREFIX = prefix.Prefix("")
QUOTING = ("Received request ", "Generated response ")
_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07]*\x07")
# Where another line begins within a line: the headers of `prefix`, and stamps of the kernel and the journal.
_BEGINS = re.compile(
    r"(?<=\S)\s+(?="
    r"\((?:[A-Za-z_]\w*)(?: \w+)* pid=\d+|\(raylet\)"
    r"|(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) (?:\d{4}-)?\d\d-\d\d \d\d:\d\d:\d\d"
    r"|\[rank\d+\]:|\[[IWEF]\d{3,4} \d\d:\d\d:\d\d|\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d+ [A-Z] \d+ \d+\]"
    r"|\S+:\d+:\d+ \[\d+\] NCCL (?:INFO|WARN)|\[ *\d+\.\d{6}\]"
    r"|(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) [ \d]\d \d\d:\d\d:\d\d \S+ \S+: )"
)
# What a page puts before a line: a quote's mark, a list's, a diff's.
_MARKED = re.compile(r"^(?:\s*(?:>|[-*+] |\d+[.)] |\|))+\s*(?=\S)")
_DROPPED = re.compile(r"[\s*`\u200b\u00a0]+")
_DIGITS = re.compile(r"\d+")
_QUOTES = str.maketrans({"\u2018": "'", "\u2019": "'", "\u201c": '"', "\u201d": '"', "\u2026": "..."})
# Of a pattern: a class that has a blank; a blank, or a mark; each with what repeats it.
_BLANK_CLASS = re.compile(r"\[(\^?)((?:\\.|[^\]\\])* (?:\\.|[^\]\\])*)\]([*+?]|\{\d+(?:,\d*)?\})?\??")
_BLANK = re.compile(r"(?:\\s| |\\\*|`)(?:[*+?]|\{\d+(?:,\d*)?\})?\??")


def signals_of(whole: Record, catalogue: Catalogue, places: Places = NO_PLACES) -> Iterator[Signal]:
    """Yield what the catalogue finds in a text when its line breaks and blanks count for nothing."""
    squeezed = _squeezed(catalogue)
    seen: set[str] = set()
    for record in records(whole, catalogue):
        tight = replace(record, text=squeeze(record.text), level=record.level or "-")
        for signal in recognise(tight, squeezed, places):
            if signal.id in seen:
                continue
            pattern = next(s.pattern for s in squeezed.signatures if s.id == signal.id)
            span = _span(pattern, record.text)
            if span is not None:
                seen.add(signal.id)
                yield replace(signal, quote=_quote(span, record.text))


def _span(pattern: re.Pattern[str], text: str) -> tuple[int, int] | None:
    """Return where *pattern* stands in *text* without its blanks; a short one not in the middle of a word."""
    places = [place for place, char in enumerate(text) if not _DROPPED.match(char)]
    for found in pattern.finditer(squeeze(text)):
        start = places[found.start()] if found.start() < len(places) else 0
        if len(found[0]) > SHORT or start == 0 or not (text[start - 1].isalnum() and text[start].isalnum()):
            return found.span()
    return None


def _quote(span: tuple[int, int], text: str) -> str:
    """Return the lines of *text* in which a span of it without blanks stands."""
    start, end = span
    lines, place = [], 0
    for line in text.split("\n"):
        before, place = place, place + len(squeeze(line))
        if before < end and place > start:
            lines.append(line)
    return " ".join(" ".join(lines).split())[:QUOTE_CHARS]


def records(whole: Record, catalogue: Catalogue) -> Iterator[Record]:
    """Yield windows of a text: lines that begin something, with what follows and begins nothing."""
    block, before = _Block(), ""
    for line in lines_of(whole.text):
        unwrapped = wrapping.unwrap(line)
        parts = prefix.split(unwrapped.body)
        shape = _DIGITS.sub("0", line.removesuffix(parts.body))
        harmless = _is_harmless(parts.body, catalogue)
        if harmless or parts.level or (shape and shape != before):
            yield from block.records(whole)
            node = whole.node or unwrapped.machine or ""
            block = _Block(parts.body.startswith(QUOTING)) if harmless else _Block(first=parts, node=node)
        before = shape or before
        if not harmless:
            block.lines.append(parts.body)
    yield from block.records(whole)


@dataclass(slots=True)
class _Block:
    """Lines that may be one message.

    Attributes:
        quoting: they go on with what a user wrote: nothing in them is the engine's word.
        first: the prefix of the first; node: where it was written.
    """

    quoting: bool = False
    first: prefix.Prefix = _NO_PREFIX
    node: str = ""
    lines: list[str] = field(default_factory=list)

    def records(self, whole: Record) -> Iterator[Record]:
        """Yield windows of the lines; what follows a line that only informs may be no part of it."""
        if self.quoting:
            return
        yield from self._windows(self.lines, self.first, whole)
        if self.first.level and not self.first.loud and len(self.lines) > 1:
            yield from self._windows(self.lines[1:], _NO_PREFIX, whole)

    def _windows(self, lines: list[str], first: prefix.Prefix, whole: Record) -> Iterator[Record]:
        for start in range(0, max(1, len(lines) - WINDOW // 2), WINDOW // 2):
            part = "\n".join(lines[start : start + WINDOW])
            if part:
                yield replace(
                    whole,
                    text=part,
                    node=self.node or whole.node,
                    printed=first.printed,
                    process=first.process,
                    level=first.level,
                    address=first.address,
                    rank=first.rank,
                )


def lines_of(text: str) -> Iterator[str]:
    """Yield the lines that were pasted: without the page's marks, and apart where several stand in one."""
    text = html.unescape(_ANSI.sub("", text)).translate(_QUOTES)
    for line in text.splitlines()[:LINES_MAX]:
        bare = _MARKED.sub("", line).strip().strip("`*")
        yield from (part for part in _BEGINS.split(bare) if part)


def squeeze(text: str) -> str:
    """Return *text* without blanks and marks."""
    return _DROPPED.sub("", text)


def squeeze_pattern(pattern: str) -> str:
    """Return *pattern* for texts without blanks and marks."""
    pattern = _BLANK_CLASS.sub(_without_blank, pattern)
    return _BLANK.sub("", pattern.replace(r"\b", r"(?!\d)"))


def _without_blank(found: re.Match[str]) -> str:
    negated, members, repeat = found[1], found[2].replace(" ", ""), found[3] or ""
    if negated:
        return f"[^{members}]{repeat}" if members else f".{repeat}"
    if not members:
        return ""
    return f"[{members}]{'*' if repeat[:1] in {'*', '+', '{'} else '?'}"


def _is_harmless(line: str, catalogue: Catalogue) -> bool:
    found = recognise(Record("log", "", line, level="-"), catalogue)
    return bool(found) and all(signal.proof is Proof.NOISE for signal in found)


@cache
def _squeezed(catalogue: Catalogue) -> Catalogue:
    return of_signatures(_tight(s) for s in catalogue.signatures if s.proof is not Proof.NOISE)


def _tight(signature: Signature) -> Signature:
    literals = tuple(squeeze(literal) for literal in signature.literals)
    return replace(
        signature,
        literals=tuple(literal for literal in literals if len(literal) >= _LITERAL_MIN),
        source=squeeze_pattern(signature.source),
        phase_sources=tuple(
            (phase, None if source is None else squeeze_pattern(source))
            for phase, source in signature.phase_sources
        ),
    )
