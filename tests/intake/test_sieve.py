"""The fast way through a log finds what the slow one finds."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkd.engines.lines import read_line
from sparkd.intake.records import OPENERS, Reader
from sparkd.intake.sieve import PHASE_WORDS, Hits, Sieve, Sifter, read_phase
from sparkd.intake.whole import Origin, WholeLog
from sparkd.signals.assess import Assessment, Assessor
from sparkd.signals.catalogue import packaged_catalogue
from sparkd.signals.follow import _SERVED
from sparkd.signals.model import Proof

CATALOGUE = packaged_catalogue()
SIEVE = Sieve(CATALOGUE)
EXAMPLES = [e for s in CATALOGUE.signatures for e in s.examples if s.proof is not Proof.NOISE]
NOISE = ["nanobind: leaked 4 instances!", "Got negative used memory for cgroup -1, setting it to zero"]


class EveryLine:
    """The slow way: every line matters, nothing is only counted."""

    def hits(self, block: bytes) -> Hits:
        starts = [0, *(at + 1 for at, byte in enumerate(block[:-1]) if byte == 10)]
        return Hits(starts, [])

    def harmless_id(self, word: int) -> str:
        raise AssertionError(word)


def assess(data: bytes, finder, chunk: int = 1 << 20) -> Assessment:
    log = WholeLog(Origin("log"), finder)
    assessor = Assessor(CATALOGUE, read_line=read_line)
    for record in log.records(data[at : at + chunk] for at in range(0, len(data), chunk)):
        assessor.add(record)
    found = assessor.finish()
    noise = Counter(dict(found.noise)) + log.harmless
    return found, noise


def wrapped(text: str) -> str:
    return "\n".join(
        "(EngineCore pid=1) ERROR 11-30 01:58:34 [core.py:1] " + line for line in text.split("\n")
    )


lines = st.one_of(
    st.sampled_from(
        [
            "(APIServer pid=7) INFO 11-30 01:58:30 [a.py:1] ordinary",
            "(APIServer pid=7) INFO 11-30 01:58:31 [api_utils.py:286] non-default args: {'model': 'x'}",
            'INFO:     10.77.0.1:42744 - "GET /health HTTP/1.1" 200 OK',
            'INFO:     10.77.0.1:42744 - "POST /v1/completions HTTP/1.1" 200 OK',
            "Loading safetensors checkpoint shards:  45% Completed | 10/22 [00:00<00:00, 44.05it/s]",
            "(Worker_TP1 pid=9) INFO 11-30 01:58:33 [g.py:1] Available KV cache memory: 49.1 GiB",
            "(Worker_TP1 pid=9) Traceback (most recent call last):",
            '(Worker_TP1 pid=9)   File "/x.py", line 5, in capture_model',
            "(Worker_TP1 pid=9) KeyError: 'a'",
            "Traceback (most recent call last):",
            '  File "/x.py", line 7, in profile_run',
            "ValueError: no",
            "2026-11-30T01:58:35Z spark-b kernel: ordinary",
            *NOISE,
        ]
    ),
    st.sampled_from(EXAMPLES),
    st.sampled_from(EXAMPLES).map(wrapped),
    st.text(max_size=30).map(lambda text: text.replace("\0", "")),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(lines, max_size=40), st.integers(0, 300), st.sampled_from([97, 4096, 1 << 20]))
def test_the_fast_way_finds_what_the_slow_one_finds(some: list[str], filler: int, chunk: int) -> None:
    quiet = "(APIServer pid=7) INFO 11-30 01:58:32 [b.py:2] nothing of note\n" * filler
    middle = len(some) // 2
    text = "\n".join([*some[:middle], quiet, *some[middle:]])
    data = text.encode("utf-8", "replace")
    fast, fast_noise = assess(data, SIEVE, chunk)
    slow, slow_noise = assess(data, EveryLine())
    assert fast.diagnosis == slow.diagnosis
    assert [(w.signal.id, w.signal.quote, w.verdict) for w in fast.weighed] == [
        (w.signal.id, w.signal.quote, w.verdict) for w in slow.weighed
    ]
    assert fast_noise == slow_noise


def test_only_lines_that_matter_are_read() -> None:
    reader = Reader("log", "a", 1)
    sifter = Sifter(SIEVE, lambda: reader.waiting)
    block = b"ordinary\n" * 1000 + b"nanobind: leaked 4\nUsing max model len 8\n" * 500 + b"x\n"
    assert len(list(sifter.lines(block))) == 1, "of a phase the newest line"
    assert sifter.harmless.total() == 500


def test_a_report_is_read_to_its_end() -> None:
    reader = Reader("log", "a", 1)
    sifter = Sifter(SIEVE, lambda: reader.waiting)
    block = b"x\nTraceback (most recent call last):\n  frame\nKeyError: 1\ndone\nmore\n"
    seen = []
    for _, line in sifter.lines(block):
        seen.append(line)
        reader.feed([line.decode()], 1.0)
    assert seen[0].startswith(b"Traceback")
    assert seen[-1] == b"done"


@pytest.mark.parametrize("opener", OPENERS)
def test_every_opener_is_a_word(opener: str) -> None:
    assert SIEVE.hits(f"a {opener} b\n".encode()).offsets


def test_what_follows_the_phase_is_among_the_words() -> None:
    assert set(_SERVED) <= set(PHASE_WORDS)


@given(st.one_of(st.sampled_from(PHASE_WORDS), st.text(max_size=40)), st.text(max_size=20))
def test_the_quick_reading_of_a_phase_is_the_reading(word: str, rest: str) -> None:
    for text in (word + rest, rest + word, f"{word} | 3/4 [ {rest}"):
        assert read_phase(text) == read_line(text)
