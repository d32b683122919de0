"""Whether a pattern can take more than a time that grows with the text: asked of those that a site adds.

Python's engine tries every way to match. Within something repeated without a bound, a repeat without a bound
gives exponentially many ways unless what stands between tells the rounds apart, and so do alternatives that
begin alike; several repeats of any character after each other give a power of the text's length. Such a
pattern is refused by its shape: nothing is tried, no time is measured.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from re import _constants as c  # type: ignore[attr-defined]
from re import _parser  # type: ignore[attr-defined]
from typing import Any

# Repeats up to so often count as bounded.
BOUND = 1000
WIDE_MAX = 2
_REPEATS = frozenset({c.MAX_REPEAT, c.MIN_REPEAT})
_ASSERTS = frozenset({c.AT, c.ASSERT, c.ASSERT_NOT})
_SAMPLE = tuple(map(chr, range(9, 127)))
_Node = tuple[Any, Any]


def fault_of(pattern: str) -> str:
    """Return why *pattern* may take for ever on some text, empty where it does not.

    Raises re.error where it is no pattern.
    """
    parsed = _parser.parse(pattern)
    for body in _repeated(parsed):
        if any(_is_endless(node) for node in _all(body)) and not _has_mark(body):
            return "a repeat within a repeat without a bound"
        if any(kind is c.BRANCH and _overlap(value[1]) for kind, value in _all(body)):
            return "alternatives that begin alike within a repeat without a bound"
    wide = _wide_in_a_row(parsed)
    return f"{wide} repeats of any character without a bound" if wide > WIDE_MAX else ""


def _all(items: Iterable[_Node]) -> Iterator[_Node]:
    """Yield the nodes of a parsed pattern, outer ones first."""
    for kind, value in items:
        yield kind, value
        for body in _bodies(kind, value):
            yield from _all(body)


def _bodies(kind: Any, value: Any) -> list[Any]:
    if kind in _REPEATS:
        return [value[2]]
    if kind is c.SUBPATTERN:
        return [value[3]]
    if kind is c.BRANCH:
        return list(value[1])
    return [value[1]] if kind in {c.ASSERT, c.ASSERT_NOT} else []


def _is_endless(node: _Node) -> bool:
    return node[0] in _REPEATS and node[1][1] > BOUND


def _repeated(items: Iterable[_Node]) -> Iterator[Any]:
    return (value[2] for kind, value in _all(items) if _is_endless((kind, value)))


def _chars(node: _Node) -> frozenset[str]:
    """Return which of the usual characters *node* may begin with; all, where that is not plain."""
    kind, value = node
    if kind is c.LITERAL:
        return frozenset({chr(value)})
    if kind in {c.IN, c.ANY, c.NOT_LITERAL}:
        one = re.compile(_one(kind, value), re.DOTALL) if kind is not c.IN else None
        if one is not None:
            return frozenset(char for char in _SAMPLE if one.fullmatch(char))
        return frozenset(char for char in _SAMPLE if _is_in(char, value))
    bodies = _bodies(kind, value)
    if kind in _ASSERTS or not bodies:
        return frozenset(_SAMPLE)
    return frozenset().union(*(_chars(body[0]) if len(body) else frozenset(_SAMPLE) for body in bodies))


def _one(kind: Any, value: Any) -> str:
    return "." if kind is c.ANY else f"[^{re.escape(chr(value))}]"


_CATEGORIES: dict[Any, Callable[[str], bool]] = {
    c.CATEGORY_DIGIT: str.isdigit,
    c.CATEGORY_SPACE: str.isspace,
    c.CATEGORY_WORD: lambda char: char.isalnum() or char == "_",
    c.CATEGORY_NOT_DIGIT: lambda char: not char.isdigit(),
    c.CATEGORY_NOT_SPACE: lambda char: not char.isspace(),
    c.CATEGORY_NOT_WORD: lambda char: not (char.isalnum() or char == "_"),
}


def _is_in(char: str, members: list[_Node]) -> bool:
    negated = bool(members[0][0] is c.NEGATE)
    return negated != any(_is_member(char, *member) for member in members[negated:])


def _is_member(char: str, kind: Any, value: Any) -> bool:
    if kind is c.LITERAL:
        return bool(ord(char) == value)
    if kind is c.RANGE:
        return bool(value[0] <= ord(char) <= value[1])
    return _CATEGORIES[value](char)


def _has_mark(body: Iterable[_Node]) -> bool:
    """Return whether each round of a repeat has a character that none of its inner repeats takes."""
    nodes = _flat(body)
    taken = frozenset().union(
        *(_chars(value[2][0]) for kind, value in nodes if kind in _REPEATS and len(value[2]))
    )
    plain = all(len(value[2]) == 1 for kind, value in nodes if kind in _REPEATS)
    marks = [node for node in nodes if node[0] in {c.LITERAL, c.IN}]
    return plain and any(_chars(mark).isdisjoint(taken) for mark in marks)


def _flat(body: Iterable[_Node]) -> list[_Node]:
    """Return the nodes of a sequence; a group's own stand in its place."""
    nodes: list[_Node] = []
    for kind, value in body:
        nodes += _flat(value[3]) if kind is c.SUBPATTERN else [(kind, value)]
    return nodes


def _overlap(branches: Iterable[Any]) -> bool:
    seen: frozenset[str] = frozenset()
    for branch in branches:
        first = _chars(branch[0]) if len(branch) else frozenset(_SAMPLE)
        if first & seen:
            return True
        seen |= first
    return False


def _wide_in_a_row(items: Iterable[_Node]) -> int:
    """Return how many endless repeats of any character one way through a pattern has."""
    count = 0
    for kind, value in items:
        inner = max((_wide_in_a_row(body) for body in _bodies(kind, value)), default=0)
        count += inner + (_is_endless((kind, value)) and value[2][0][0] is c.ANY)
    return count
