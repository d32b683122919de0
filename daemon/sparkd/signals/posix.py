"""Python's patterns as POSIX extended ones: what `LC_ALL=C grep -E -f` understands, line by line.

What POSIX cannot say is dropped, so that at least the same lines match: looks around and anchors (a line of a
log has a prefix that a record has lost) vanish, non-greedy becomes greedy. Of a pattern that spans lines the
piece with the most text stays. Characters beyond ASCII stand as their bytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from re import _constants as c  # type: ignore[attr-defined]  # the parser is the one that `re` itself uses
from re import _parser  # type: ignore[attr-defined]
from typing import Any

REPEAT_MAX = 8
"""Beyond it a repetition is open at its upper end: grep would build a state for each count."""
_GAP = "\0"
"""Where a line may end within a pattern."""
_SPECIAL = frozenset("\\.[]{}()*+?^$|")
_SETS = {
    c.CATEGORY_DIGIT: "0-9",
    c.CATEGORY_SPACE: "[:space:]",
    c.CATEGORY_WORD: "[:alnum:]_",
}
# A class of everything (`[\s\S]`) cannot be written otherwise; the opposites within a larger class are that.
_OPPOSITES = {
    c.CATEGORY_NOT_DIGIT: "[^0-9]",
    c.CATEGORY_NOT_SPACE: "[^[:space:]]",
    c.CATEGORY_NOT_WORD: "[^[:alnum:]_]",
}
_EDGES = {c.AT_BOUNDARY: r"\b", c.AT_NON_BOUNDARY: r"\B"}
_REPEATS = frozenset({c.MAX_REPEAT, c.MIN_REPEAT, c.POSSESSIVE_REPEAT})
_NEWLINE = 10


def to_ere(pattern: re.Pattern[str]) -> str:
    """Return *pattern* for grep: it matches a line of every text that *pattern* matches."""
    parsed = _parser.parse(pattern.pattern, pattern.flags)
    return _best(_sequence(_trimmed(parsed), pattern.flags))


def _trimmed(items: Iterable[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """Return *items* without what may be absent at the end: whether a line matches does not hang on it.

    It makes the difference between seconds and minutes: grep keeps a state for each way to be within `.*`.
    """
    kept = list(items)
    while kept:
        kind, value = kept[-1]
        if kind in _REPEATS and value[0] == 0:
            kept.pop()
            continue
        if kind in _REPEATS:
            kept[-1] = (kind, (value[0], value[0], value[2]))
        elif kind is c.BRANCH:
            branches = [_trimmed(branch) for branch in value[1]]
            kept[-1] = (kind, (value[0], branches))
        elif kind is c.SUBPATTERN:
            kept[-1] = (kind, (*value[:3], _trimmed(value[3])))
        break
    return kept


def _best(text: str) -> str:
    """Return the most telling piece between gaps."""
    return max(text.split(_GAP), key=_told)


def _told(piece: str) -> int:
    """Return about how many characters a piece prescribes."""
    return len(re.sub(r"\[[^\]]*(?:\[:\w+:\][^\]]*)*\]|\([^()]*\)\?|.[*?]|\{[\d,]+\}|[|()+.\\]", "", piece))


def _sequence(items: Iterable[tuple[Any, Any]], flags: int) -> str:
    return "".join(_item(kind, value, flags) for kind, value in items)


def _item(kind: Any, value: Any, flags: int) -> str:
    """Return one node of a parsed pattern; of looks around nothing is left."""
    if kind is c.LITERAL:
        return _literal(value, flags)
    if kind is c.NOT_LITERAL:
        return _set([(c.NEGATE, None), (c.LITERAL, value)], flags)
    if kind is c.IN:
        return _set(value, flags)
    if kind is c.ANY:
        return _GAP if flags & re.DOTALL else "."
    if kind is c.AT:
        return _EDGES.get(value, "")
    if kind is c.BRANCH:
        return _group([_sequence(branch, flags) for branch in value[1]])
    if kind is c.SUBPATTERN:
        _, added, removed, body = value
        return _group([_sequence(body, (flags | added) & ~removed)])
    if kind is c.ATOMIC_GROUP:
        return _group([_sequence(value, flags)])
    if kind in _REPEATS:
        return _repeat(value, flags)
    return ".*" if kind is c.GROUPREF else ""


def _literal(code: int, flags: int) -> str:
    if code == _NEWLINE:
        return _GAP
    char = chr(code)
    if flags & re.IGNORECASE and char.isalpha() and char.isascii():
        return f"[{char.lower()}{char.upper()}]"
    return f"\\{char}" if char in _SPECIAL else char


def _group(branches: Sequence[str]) -> str:
    if not any(_GAP in branch for branch in branches):
        text = "|".join(branches)
        return f"({text})" if text else ""
    # Of a group that spans lines each branch's best piece stays, with an end of line possible around it.
    return f"{_GAP}({'|'.join(_best(branch) for branch in branches)}){_GAP}"


def _repeat(value: tuple[Any, Any, Sequence[tuple[Any, Any]]], flags: int) -> str:
    least, most, body = value
    text = _sequence(body, flags)
    if _GAP in text:
        return text if least else _GAP
    if not text:
        return ""
    if least == most == 1:
        return text
    alone = len(body) == 1 and body[0][0] not in _REPEATS and text.isascii()
    text = text if alone else f"({text})"
    if (least, most) == (0, 1):
        return f"{text}?"
    if most is c.MAXREPEAT or most > REPEAT_MAX:
        return text + {0: "*", 1: "+"}.get(least, f"{{{least},}}")
    return f"{text}{{{least}}}" if least == most else f"{text}{{{least},{most}}}"


def _set(items: Sequence[tuple[Any, Any]], flags: int) -> str:
    r"""Return a bracket expression; one that is everything (`[\s\S]`) may be the end of a line."""
    negated = items[0][0] is c.NEGATE
    parts: list[str] = []
    wide: list[str] = []
    for kind, value in items[negated:]:
        if kind is c.CATEGORY and value in _OPPOSITES:
            wide.append(_OPPOSITES[value])
        elif kind is c.CATEGORY:
            parts.append(_SETS[value])
        elif kind is c.RANGE:
            parts += _ranges(value[0], value[1], flags)
        elif value != _NEWLINE:
            parts += _ranges(value, value, flags)
    if wide:
        return _with_opposites(parts, wide, negated=negated)
    return _bracket(parts, negated=negated)


def _with_opposites(parts: Sequence[str], wide: Sequence[str], *, negated: bool) -> str:
    if negated:  # neither the rest nor what is no space: what remains of the class itself
        return _bracket([_SETS[k] for k, text in _OPPOSITE_SETS.items() if text == wide[0]], negated=False)
    if not parts:
        return wide[0]
    return _GAP if _is_everything(parts, wide) else f"({_bracket(parts, negated=False)}|{'|'.join(wide)})"


_OPPOSITE_SETS = {
    c.CATEGORY_DIGIT: _OPPOSITES[c.CATEGORY_NOT_DIGIT],
    c.CATEGORY_SPACE: _OPPOSITES[c.CATEGORY_NOT_SPACE],
    c.CATEGORY_WORD: _OPPOSITES[c.CATEGORY_NOT_WORD],
}


def _is_everything(parts: Sequence[str], wide: Sequence[str]) -> bool:
    return any(_OPPOSITE_SETS[kind] in wide and text in parts for kind, text in _SETS.items())


def _ranges(first: int, last: int, flags: int) -> list[str]:
    chars = [chr(first)] if first == last else [f"{chr(first)}-{chr(last)}"]
    if flags & re.IGNORECASE:
        chars += [other for char in chars for other in (char.lower(), char.upper()) if other != char]
    return chars


def _bracket(parts: Sequence[str], *, negated: bool) -> str:
    """Return the set; in it `]` stands first, `-` and `^` last, and longer characters beside it."""
    first = "]" if "]" in parts else ""
    last = "".join(char for char in "^-" if char in parts)
    inner = [p for p in parts if p not in {"]", "^", "-"}]
    plain = "".join(part for part in inner if part.isascii())
    longer = [part for part in inner if not part.isascii()]
    text = first + plain + last
    if negated:
        return f"[^{text}]" if text else "."
    if text == "^":
        return r"\^"
    brackets = [f"[{text}]"] if text else []
    return brackets[0] if not longer else f"({'|'.join([*brackets, *longer])})"
