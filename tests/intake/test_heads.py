"""What the head of a text tells: whether it is a log, and whether its first line was cut."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from sparkd.intake.heads import is_cut, is_log, is_talk, lines_of
from sparkd.signals.catalogue import packaged_catalogue

CATALOGUE = packaged_catalogue()
DATA = Path(__file__).parents[1] / "signals" / "data"
PROSE = "# A page\n\nIt tells how to start.\n\n    vllm serve MODEL\n\n| a | b |\n|---|---|\n| 1 | 2 |\n"


@pytest.mark.parametrize("path", sorted(DATA.glob("*.gz")), ids=lambda path: path.name)
def test_every_recorded_log_is_one(path: Path) -> None:
    lines = lines_of(gzip.decompress(path.read_bytes())[: 1 << 16])
    assert is_log(lines, CATALOGUE)
    assert not is_cut(lines)


@pytest.mark.parametrize(
    "text",
    [
        "INFO 11-30 01:58:01 [a.py:1] starting",
        "INFO:     Application startup complete.",
        "Nov 30 01:58:01 spark-a kernel: ordinary",
        "[   12.345678] ordinary",
        "2026-11-30T01:58:01.123456789Z ordinary",
        '{"log":"ordinary\\n","stream":"stderr","time":"2026-11-30T01:58:01Z"}',
        "Loading safetensors checkpoint shards:  45% Completed | 10/22 [00:00<00:00, 44.05it/s]",
        "nanobind: leaked 4 instances!",
        "\x1b[36m(EngineCore pid=1)\x1b[0m ordinary",
    ],
)
def test_one_line_is_enough_to_be_a_log(text: str) -> None:
    assert is_log(lines_of(text.encode()), CATALOGUE)


@pytest.mark.parametrize(
    "text",
    [
        'time=2026-11-30T04:00:00.000Z level=INFO source=routes.go:1238 msg="server config"',
        '[GIN] 2026/11/30 - 04:00:03 | 200 |  2.1s | 127.0.0.1 | POST "/api/chat"',
        "srv  update_slots: all slots are idle",
        "llama_model_loader: loaded meta data with 33 key-value pairs",
        "[11/30/2026-04:00:00] [TRT-LLM] [I] Loading checkpoint shards",
    ],
)
def test_the_log_of_another_engine_is_one(text: str) -> None:
    assert is_log(lines_of(text.encode()), CATALOGUE)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "hello\n",
        PROSE,
        PROSE * 20 + "INFO 11-30 01:58:01 [a.py:1] as it would say\n",
        "a,b,c\n1,2,3\n2026-11-30T01:58:01Z,5,6\n",
        "0.5\t200\n1.0\t503\n",
        '{\n  "name": "x",\n  "version": 1\n}\n',
        "import os\n\n\ndef main():\n    print(os.name)\n",
        "root:x:0:0:root:/root:/bin/bash\n",
        "# HELP vllm:num_requests_running running\nvllm:num_requests_running 0.0\n",
    ],
)
def test_other_texts_are_none(text: str) -> None:
    assert not is_log(lines_of(text.encode()), CATALOGUE)


HEADED = [f"(APIServer pid=7) INFO 11-30 01:58:{n:02d} [a.py:1] ordinary" for n in range(20)]
STAMPED = [f"Nov 30 01:58:{n:02d} spark-a vllm[7]: ordinary" for n in range(20)]


@pytest.mark.parametrize("rest", [HEADED, STAMPED])
@pytest.mark.parametrize(
    "first", ["of memory. Tried to allocate 512.00 MiB", "gineCore pid=3) ERROR 11-30 01:58:00 [a.py:1] x"]
)
def test_a_line_without_the_head_that_all_others_have_was_cut(rest: list[str], first: str) -> None:
    assert is_cut([first, *rest])
    assert not is_cut([first, *rest[:5]]), "too few to know"
    assert not is_cut([first, *rest[:9], *["plain"] * 9]), "others have none, either"


@pytest.mark.parametrize("first", [HEADED[0], "Traceback (most recent call last):", '  File "x.py", line 1'])
def test_a_line_that_begins_something_is_whole(first: str) -> None:
    assert not is_cut([first, *HEADED])


@pytest.mark.parametrize(
    "text",
    [
        "User: why?\nAssistant: `CUDA out of memory. Tried to allocate 2.00 GiB` means so\nUser: thanks\n",
        "**Human:** why?\n\n**Assistant:** torch.OutOfMemoryError: CUDA out of memory\n",
        '{"role": "user", "content": "why"}\n{"role": "assistant", "content": "NCCL error: unhandled"}\n',
        '{"role":"assistant","content":"RuntimeError: CUDA out of memory"}\n',
        "<|im_start|>user\nwhy<|im_end|>\n<|im_start|>assistant\nEngineCore failed to start.<|im_end|>\n",
    ],
)
def test_a_talk_is_none_until_a_log_is_pasted_into_it(text: str) -> None:
    assert is_talk(lines_of(text.encode()))
    assert not is_talk(lines_of(f"{text}ERROR 11-30 01:58:01 [a.py:1] EngineCore failed to start.".encode()))


@pytest.mark.parametrize(
    "text",
    ["User: root\nCUDA out of memory\n", "model: loading\n", "AI: ready\nCUDA out of memory. Tried\n"],
)
def test_a_word_before_a_colon_is_no_talk(text: str) -> None:
    assert not is_talk(lines_of(text.encode()))
