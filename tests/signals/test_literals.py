"""Every alternative of a pattern is reachable: a literal of its signature stands in what it matches."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from re import _constants as c  # type: ignore[attr-defined]
from re import _parser  # type: ignore[attr-defined]
from typing import Any

import pytest

from sparkd.signals.catalogue import Signature, packaged_catalogue

ANYTHING = "\0"
FORMS_MAX = 4000
FEW_CHARS = 3
REPEATS = {c.MAX_REPEAT, c.MIN_REPEAT, c.POSSESSIVE_REPEAT}
NOWHERE = {c.AT, c.ASSERT, c.ASSERT_NOT}


def forms(items: Iterable[tuple[Any, Any]]) -> list[str]:
    """Return the shortest texts of each way through a parsed pattern."""
    found = [""]
    for kind, value in items:
        found = list(islice((a + b for a in found for b in forms_of(kind, value)), FORMS_MAX))
    return found


def forms_of(kind: Any, value: Any) -> list[str]:
    if kind is c.LITERAL:
        return [chr(value)]
    if kind is c.SUBPATTERN:
        return forms(value[3])
    if kind is c.BRANCH:
        return [form for branch in value[1] for form in forms(branch)]
    if kind in REPEATS:
        least, most, body = value
        if least == 0:
            return ["", *forms(body)] if most == 1 else [ANYTHING]
        return [form + ANYTHING for form in forms(body)]
    if kind is c.IN and len(value) <= FEW_CHARS and all(k is c.LITERAL for k, _ in value):
        return [chr(code) for _, code in value]
    return [""] if kind in NOWHERE else [ANYTHING]


@pytest.mark.parametrize("signature", packaged_catalogue().signatures, ids=lambda signature: signature.id)
def test_an_alternative_has_a_literal(signature: Signature) -> None:
    """A pattern is tried only where a literal stands: an alternative without one would be dead letters."""
    unreachable = [
        form.replace(ANYTHING, "…")
        for form in forms(_parser.parse(signature.source))
        if not any(literal in form for literal in signature.literals)
    ]
    assert unreachable == []
