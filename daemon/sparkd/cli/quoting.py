"""Quotes as a person reads them: the telling words of a report, within a line or two. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable

from sparkd.signals.model import Quote

CHARS_MAX = 240
QUOTES_MAX = 8
SOURCE_CHARS_MAX = 32
_MORE = " …"
_TRACEBACK = "Traceback (most recent call last):"
_FRAME = r'File "([^"]+)", line (\d+), in (\w+)'
# The exception that a traceback ends with; the lines of its frames stand before it.
_RAISED = r"(?:^|(?<=\s))(?:[\w.]+\.)?[A-Z]\w*(?:Error|Exception|Exit|Interrupt)\b(?::|$)"


def proof_lines(evidence: Iterable[Quote], cascade: Iterable[Quote]) -> list[str]:
    """Return what a diagnosis quotes, as both an incident and a diagnosis of logs show it."""
    lines = [_line(quote, count) for quote, count in together(evidence)]
    lines += [_line(quote, count, "cascade") for quote, count in together(cascade)]
    return lines[:QUOTES_MAX]


def place(node: str, source: str, printed: str | None) -> str:
    """Return where something was said, and when."""
    where = " ".join(filter(None, (node, short_source(source))))
    return "  ".join(part for part in (where, printed) if part)


def _line(quote: Quote, count: int, *marks: str) -> str:
    marks = (*marks, *([f"{count} alike"] if count > 1 else []))
    said = f"{place(quote.node, quote.source, quote.printed)}  {short(quote.text)}"
    return f"{said}  ({', '.join(marks)})" if marks else said


def short(text: str) -> str:
    """Return the telling words of *text*: of a traceback what it ends with, and in which function."""
    if _TRACEBACK in text:
        text = _of_traceback(text)
    head = text.partition(_MORE + " ")[
        0
    ]  # a long match was quoted with its end; a person reads the beginning
    if len(head) <= CHARS_MAX:
        return head if head == text else head + _MORE
    cut = head[:CHARS_MAX].rpartition(" ")[0] or head[:CHARS_MAX]
    return cut.rstrip() + _MORE


def short_source(name: str) -> str:
    """Return what a log is called, on one line; of a long path only its last part."""
    name = " ".join(name.splitlines())
    path, slash, rest = name.rpartition("/")
    return f"…/{rest}" if slash and path and len(name) > SOURCE_CHARS_MAX else name


def together(quotes: Iterable[Quote]) -> list[tuple[Quote, int]]:
    """Return quotes with how many say the same but for numbers and times, each once, in their order."""
    found: dict[tuple[str, str, str], tuple[Quote, int]] = {}
    for quote in quotes:
        key = (quote.node, quote.source, "".join(c for c in short(quote.text) if not c.isdigit()))
        first, count = found.get(key, (quote, 0))
        found[key] = (first, count + 1)
    return list(found.values())


def _of_traceback(text: str) -> str:
    before, _, rest = text.partition(_TRACEBACK)
    rest = rest.rpartition(_MORE + " ")[2]  # where its middle was left out: its end
    raised = [found.start() for found in re.finditer(_RAISED, rest)]
    frames = list(re.finditer(_FRAME, rest[: raised[-1]] if raised else rest))
    said = rest[raised[-1] :] if raised else ""
    file, line, function = frames[-1].groups() if said and frames else ("", "", "")
    where = f"(in {function}, {file.rpartition('/')[2]}:{line})" if function else ""
    return " ".join(part for part in (before.strip(), where, said) if part) or text
