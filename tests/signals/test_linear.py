"""No pattern takes more than a time linear in the text: one long line must not hold the daemon up."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

import pytest

from sparkd.signals.catalogue import Signature, packaged_catalogue

CATALOGUE = packaged_catalogue()
SHORT, LONG = 1 << 12, 1 << 14
# A linear pattern takes four times as long for four times the text, a quadratic one sixteen times.
RATIO = 6
FLOOR_S = 0.25
PADS = ("7", ".", "a", " ", "[", "(", "a ", "1.", "vllm", "gcc,", "\n")
SEPARATORS = ("", "1", " ", "\n")


def adversaries(literal: str, size: int) -> Iterator[str]:
    for pad in PADS:
        run = (pad * size)[:size]
        yield run + literal
        yield literal + run
    for separator in SEPARATORS:
        yield ((literal + separator) * size)[:size]


def cpu_s(pattern: re.Pattern[str], text: str) -> float:
    began = time.process_time()
    pattern.search(text)
    return time.process_time() - began


@pytest.mark.parametrize("signature", CATALOGUE.signatures, ids=lambda signature: signature.id)
def test_a_pattern_is_linear(signature: Signature) -> None:
    patterns = [signature.pattern, *(pattern for _, pattern in signature.phases if pattern is not None)]
    for literal in signature.literals:
        texts = zip(adversaries(literal, SHORT), adversaries(literal, LONG), strict=True)
        for short, long in texts:
            for pattern in patterns:
                if cpu_s(pattern, long) <= FLOOR_S:
                    continue
                allowed_s = max(FLOOR_S, RATIO * min(cpu_s(pattern, short) for _ in range(3)))
                assert min(cpu_s(pattern, long) for _ in range(3)) <= allowed_s, (literal, long[:80])
