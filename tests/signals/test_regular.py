"""A pattern that may never end on some text is refused by its shape; one that is only rich is not."""

from __future__ import annotations

import pytest

from sparkd.signals.catalogue import Signature, packaged_catalogue
from sparkd.signals.regular import fault_of

ENDLESS = [
    r"DOWN (( *a*)*)*$",
    r"DOWN (a|aa)+$",
    r"DOWN (a+)+b",
    r"DOWN (.*)*x",
    r"DOWN (\w+\s?)*$",
    r"DOWN ([a-z]+\d?)+$",
    r"DOWN (?:\w\w|\d)+$",
    r"DOWN (?=(a+)+b)",
    r"DOWN (?:a+){0,5000}b",
    r".*DOWN.*=.*x",
    r".*.*.*=",
]
FINE = [
    r"DOWN (?P<port_number>\d+)",
    r"(?:\d+, )+x",
    r"(?:[^,]+,)+",
    r"(?:ab|cd)+",
    r"(?:\.\d+)*",
    r"(?:x{1,4}y)+",
    r".*DOWN.*",
    r"(?:a+b|c+d)",
    r"DOWN(?: \S{1,80}){0,5}",
]


@pytest.mark.parametrize("pattern", ENDLESS)
def test_what_may_never_end_is_refused(pattern: str) -> None:
    assert fault_of(pattern)


@pytest.mark.parametrize("pattern", FINE)
def test_what_ends_is_not(pattern: str) -> None:
    assert not fault_of(pattern)


@pytest.mark.parametrize("signature", packaged_catalogue().signatures, ids=lambda signature: signature.id)
def test_no_packaged_pattern_would_be_refused_of_a_site(signature: Signature) -> None:
    assert not any(
        fault_of(source) for _, source in [(None, signature.source), *signature.phase_sources] if source
    )
