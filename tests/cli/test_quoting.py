"""Quotes are the telling words, within a line or two."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkd.cli.quoting import CHARS_MAX, short, short_source, together
from sparkd.signals.model import Quote

FRAMES = (
    'Traceback (most recent call last): File "/env/vllm/v1/engine/core.py", line 14, in run_engine_core '
    'raise ValueError( ^^^^ File "/env/vllm/worker.py", line 920, in load_model model = get_model() ^^^^ '
)
WORDS = "word " * 100


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("Address already in use", "Address already in use"),
        (
            f"EngineCore failed to start. {FRAMES}ValueError: no such shard",
            "EngineCore failed to start. (in load_model, worker.py:920) ValueError: no such shard",
        ),
        (f"{FRAMES}a.b.NoShardError: x", "(in load_model, worker.py:920) a.b.NoShardError: x"),
        (f"EngineCore failed to start. {FRAMES} … ore text of it", "EngineCore failed to start."),
        (
            f'It failed. {FRAMES} … re/x.py", line 3, in call return f() KeyError: 1',
            "It failed. KeyError: 1",
        ),
        (FRAMES, FRAMES),
        (WORDS, ("word " * 48).strip() + " …"),
        ("x" * 500, "x" * CHARS_MAX + " …"),
        ("the beginning of it … and its end", "the beginning of it …"),
    ],
)
def test_the_telling_words(text: str, told: str) -> None:
    assert short(text) == told


@given(st.text(max_size=500), st.sampled_from(["", FRAMES]))
def test_no_quote_is_long_or_lost(text: str, frames: str) -> None:
    told = short(f"{frames}{text}")
    assert len(told) <= CHARS_MAX + 2
    assert bool(told.strip()) == bool(f"{frames}{text}".strip())


def test_a_long_path_is_its_last_part() -> None:
    assert short_source("a/very/long/path/with/many/folders/serve.log") == "…/serve.log"
    assert short_source("session/logs/raylet.out") == "session/logs/raylet.out"
    assert short_source("x" * 99) == "x" * 99


def test_what_differs_in_numbers_only_is_told_once() -> None:
    quotes = [Quote("a", "log", "", f'10.0.0.1:{n} - "POST" 500') for n in (1, 22, 333)]
    quotes.insert(1, Quote("b", "log", "", '10.0.0.1:4 - "POST" 500'))
    assert [(quote.node, count) for quote, count in together(quotes)] == [("a", 3), ("b", 1)]
