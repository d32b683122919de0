"""The fast way through a log finds what the slow one finds."""

import random
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.diagnose import write_log
from sparkd.engines.lines import NUMBER_TEXTS, read_line
from sparkd.intake.pump import Intake
from sparkd.intake.records import OPENERS, Reader
from sparkd.intake.sieve import KV_WORDS, PHASE_WORDS, Hits, Sieve, Sifter, read_phase
from sparkd.intake.whole import Origin, WholeLog
from sparkd.signals.assess import Assessment, Assessor
from sparkd.signals.catalogue import packaged_catalogue
from sparkd.signals.follow import _SERVED
from sparkd.signals.model import Proof
from sparkd.words import UnitName

CATALOGUE = packaged_catalogue()
SIEVE = Sieve(CATALOGUE)
EXAMPLES = [e for s in CATALOGUE.signatures for e in s.examples if s.proof is not Proof.NOISE]
# The share of the lines of a served day in which one word may stand.
COMMON = 0.02
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


# Words of the catalogue and of the phases in one line, side by side or one inside the other.
near_misses = st.builds(
    "{}{}{}{}".format,
    st.sampled_from(["", "(Worker_TP1 pid=9) INFO 11-30 01:58:34 [g.py:1] ", "x "]),
    st.sampled_from([*PHASE_WORDS, *CATALOGUE.telling_literals]),
    st.sampled_from(["", " ", "-1.52 GiB", "3.10 GiB", "0, # CPU blocks: 7"]),
    st.sampled_from(["", *PHASE_WORDS, *CATALOGUE.telling_literals]),
)
KV = [
    f"(Worker_TP{rank} pid=9) INFO 11-30 01:58:34 [g.py:1] {said}"
    for rank in (0, 1)
    for said in (
        "Available KV cache memory: -1.52 GiB",
        "Available KV cache memory: 3.10 GiB",
        "Available KV cache memory: 0.00 GiB",
        "# GPU blocks: 0, # CPU blocks: 2048",
        "# GPU blocks: 512, # CPU blocks: 2048",
    )
]
exceptions = st.builds(
    "{}{}{}{}".format,
    st.sampled_from(["", "(Worker_TP1 pid=9) INFO 11-30 01:58:34 [g.py:1] ", "ray.exceptions.RayTaskError("]),
    st.sampled_from(["", "grpc.", "a_b."]),
    st.sampled_from(["RpcException", "KeyError", "DeviceFault", "EarlyExit", "AnError", "HTTPException"]),
    st.sampled_from(["", ":", ": gone", "):", "): ray::f()", ")", " ", " gone"]),
)
lines = st.one_of(
    near_misses,
    exceptions,
    st.sampled_from(KV),
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


@settings(max_examples=60)
@given(st.lists(lines, max_size=40), st.integers(0, 300), st.sampled_from([97, 4096, 1 << 20]))
def test_the_fast_way_finds_what_the_slow_one_finds(some: list[str], filler: int, chunk: int) -> None:
    quiet = "(APIServer pid=7) INFO 11-30 01:58:34 [b.py:2] nothing of note\n" * filler
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


def test_a_line_without_a_stamp_has_the_time_of_the_line_before_it_in_whatever_block_that_was() -> None:
    """The last line of a block may be the only one that tells the time, and matter for nothing else."""
    died = b"RayWorkerProc rank=[1] died unexpectedly, shutting down executor.\n"
    first = b"(Worker_TP0 pid=9) INFO 11-30 01:58:34 [g.py:1] Available KV cache memory: 3.10 GiB\n"
    data = first + died + b"(APIServer pid=7) INFO 11-30 01:58:30 [a.py:1] ordinary\n" + died
    fast, slow = assess(data, SIEVE, 97)[0], assess(data, EveryLine())[0]
    assert [w.verdict for w in fast.weighed] == [w.verdict for w in slow.weighed] == ["support", "root"]


def test_where_frames_end_no_dull_line_decides() -> None:
    frames = b'  File "/x.py", line 7, in profile_run\n', b'  File "/x.py", line 9, in capture_model\n'
    dull = b"(APIServer pid=7) INFO 11-30 01:58:34 [b.py:2] nothing of note\n"
    raised = b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 512.00 MiB.\n"
    for lines in (frames, (frames[0], dull, frames[1]), (frames[0], raised, dull, frames[1])):
        data = b"".join((*lines, raised))
        assert assess(data, SIEVE)[0].diagnosis == assess(data, EveryLine())[0].diagnosis


PHASE_LINES = "".join(f"a {word}3.1 b\n" for word in PHASE_WORDS).encode()


def test_every_word_of_the_catalogue_is_found_beside_every_phase() -> None:
    for literal in CATALOGUE.telling_literals:
        line = f"a {literal}1 b\n".encode()
        block = PHASE_LINES + line + PHASE_LINES
        begin, end = len(PHASE_LINES), len(PHASE_LINES) + len(line)
        assert any(begin <= at < end for at in SIEVE.hits(block).offsets), literal


@pytest.mark.parametrize(
    "line", [line for line in KV if "TP0" in line and ("-1.52" in line or ": 0," in line)]
)
@pytest.mark.parametrize("other", [line for line in KV if "3.10" in line or ": 512," in line])
def test_what_one_rank_lacks_is_told_though_the_other_has_it(line: str, other: str) -> None:
    for order in ((line, other), (other, line)):
        block = "".join(f"{text}\n" for text in order).encode()
        batch = Intake("a", CATALOGUE, read_line).feed("serve log", UnitName.SERVE, 1, block, 1.0)
        assert [s.id for s in batch.signals] == ["kv_cache_negative"]
        assert assess(block, SIEVE)[0].diagnosis.cause == "kv_cache_too_small"


@pytest.mark.parametrize(
    "line",
    ["grpc.RpcException: gone", "KeyError", "AnException", "ray.exceptions.RayTaskError(KeyError): ray::f()"],
)
def test_an_exception_that_nobody_knows_is_found_whatever_it_is_called(line: str) -> None:
    quiet = "INFO 11-30 01:58:34 [b.py:2] nothing of note\n" * 600
    for text in (f"{line}\n{quiet}", f"{quiet}{line}\n", f"{quiet}{line}"):
        assert assess(text.encode(), SIEVE)[0].diagnosis.cause == "unknown"


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


def test_the_sizes_of_the_kv_cache_are_those_of_the_engines_lines() -> None:
    assert set(KV_WORDS) == {text for text, _ in NUMBER_TEXTS if "KV" in text}


def test_what_follows_the_phase_is_among_the_words() -> None:
    assert set(_SERVED) <= set(PHASE_WORDS)


@given(st.one_of(st.sampled_from(PHASE_WORDS), st.text(max_size=40)), st.text(max_size=20))
def test_the_quick_reading_of_a_phase_is_the_reading(word: str, rest: str) -> None:
    for text in (word + rest, rest + word, f"{word} | 3/4 [ {rest}"):
        assert read_phase(text) == read_line(text)


def test_no_telling_word_is_common_in_a_healthy_log(tmp_path: Path) -> None:
    """A common word sends every such line to the patterns, and the live tail is as slow as they are."""
    log = tmp_path / "day.log"
    write_log(log, 2, random.Random(7))
    text = log.read_text()
    bound = text.count("\n") * COMMON
    assert not {word: n for word in CATALOGUE.telling_literals if (n := text.count(word)) > bound}
