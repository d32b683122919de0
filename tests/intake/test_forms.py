"""Whatever form journalctl and collectors give a log, what is read of it is the same."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkd.intake.forms import Plain
from sparkd.intake.lines import HEAD_BYTES
from sparkd.intake.sieve import Sieve
from sparkd.intake.whole import Origin, WholeLog
from sparkd.signals.catalogue import packaged_catalogue
from sparkd.signals.model import Record

SIEVE = Sieve(packaged_catalogue())
AT_S = 1_764_467_900
OOM = (
    "(EngineCore pid=31) ERROR 11-30 01:58:20 [core.py:15] torch.OutOfMemoryError: CUDA out of memory. Tried"
)
PORT = "OSError: [Errno 98] Address already in use"
TOLD = [("spark-a", "a: b=c"), ("spark-b", OOM), ("spark-a", "{x}"), ("spark-a", PORT), ("spark-b", "end")]
ENTRIES = [
    {
        "__REALTIME_TIMESTAMP": str((AT_S + n) * 1_000_000),
        "_HOSTNAME": host,
        "SYSLOG_IDENTIFIER": "vllm",
        "_PID": "77",
        "MESSAGE": text,
    }
    for n, (host, text) in enumerate(TOLD)
]


def stamp(entry: dict[str, str]) -> str:
    return f"2025-11-30 01:58:{int(entry['__REALTIME_TIMESTAMP']) // 1_000_000 - AT_S + 20}.000000"


def export(entry: dict[str, str]) -> str:
    return "__CURSOR=s=ab;i=1\n" + "".join(f"{key}={value}\n" for key, value in entry.items()) + "\n"


def binary(entry: dict[str, str]) -> str:
    size = len(entry["MESSAGE"]).to_bytes(8, "little").decode("latin-1")
    return export({**entry, "MESSAGE": ""}).replace("MESSAGE=\n", f"MESSAGE\n{size}{entry['MESSAGE']}\n")


def verbose(entry: dict[str, str]) -> str:
    fields = "".join(f"    {key}={value}\n" for key, value in entry.items() if not key.startswith("__"))
    return f"Sun {stamp(entry)} UTC [s=ab;i=1;b=2]\n{fields}"


def unix(entry: dict[str, str]) -> str:
    seconds = int(entry["__REALTIME_TIMESTAMP"]) / 1e6
    return f"{seconds:.6f} {entry['_HOSTNAME']} vllm[77]: {entry['MESSAGE']}\n"


FORMS: dict[str, Callable[[dict[str, str]], str]] = {
    "json": lambda e: json.dumps(e) + "\n",
    "json-seq": lambda e: "\x1e" + json.dumps(e) + "\n",
    "json-sse": lambda e: f"data: {json.dumps(e)}\n\n",
    "json-pretty": lambda e: json.dumps(e, indent="\t") + "\n",
    "export": export,
    "binary": binary,
    "verbose": verbose,
    "short-unix": unix,
    "short-iso": lambda e: f"{stamp(e).replace(' ', 'T')}Z {e['_HOSTNAME']} vllm[77]: {e['MESSAGE']}\n",
}


def read(text: str, size: int = 1 << 20) -> list[tuple[str, str, str | None]]:
    data = text.encode("utf-8")
    log = WholeLog(Origin("log"), SIEVE)
    records: list[Record] = list(log.records(data[at : at + size] for at in range(0, len(data), size)))
    return [(r.node, r.text, r.printed) for r in records]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("note", ["", "-- Journal begins at Mon 2025-11-03 --\n"])
def test_every_form_gives_the_same_records(form: str, note: str) -> None:
    found = read(note + "".join(map(FORMS[form], ENTRIES)))
    assert found == [
        ("spark-a", "{x}", "2025-11-30T01:58:22.000000Z"),
        ("spark-a", PORT, "2025-11-30T01:58:23.000000Z"),
        ("spark-b", "end", "2025-11-30T01:58:24.000000Z"),
        ("spark-b", OOM.partition("] ")[2], "11-30 01:58:20"),
    ]


@pytest.mark.parametrize("form", FORMS)
def test_an_entry_may_arrive_in_pieces(form: str) -> None:
    """What follows the head of a log is given in pieces."""
    text = "".join(map(FORMS[form], [*ENTRIES[:1] * 2000, *ENTRIES]))
    assert len(text) > HEAD_BYTES
    assert read(text, 997) == read(text)
    assert len(read(text)) == 4


def test_a_message_of_several_lines_is_several_lines() -> None:
    entry = {**ENTRIES[0], "MESSAGE": f"first\n{PORT}"}
    for form in ("json", "json-pretty", "export", "verbose"):
        assert [(node, said) for node, said, _ in read(FORMS[form](entry))] == [("spark-a", PORT)], form


@pytest.mark.parametrize(
    ("line", "printed"),
    [
        (f'2025-11-30T01:58:23+00:00\tvllm.head\t{{"log": "{PORT}"}}', "2025-11-30T01:58:23+00:00"),
        (f'{{"line": "{PORT}", "timestamp": "2025-11-30T01:58:23Z"}}', "2025-11-30T01:58:23Z"),
        (f'{{"textPayload": "{PORT}", "timestamp": "2025-11-30T01:58:23Z"}}', "2025-11-30T01:58:23Z"),
    ],
)
def test_collectors_objects(line: str, printed: str) -> None:
    assert read(line + "\n") == [("", PORT, printed)]


@pytest.mark.parametrize("blank", ["", " ", "\t", "   "])
def test_a_blank_before_a_head_is_no_part_of_a_line(blank: str) -> None:
    said = OOM.partition("] ")[2]
    assert read(f"Nov 30 01:58:23 spark-b vllm[77]: {blank}{OOM}\n") == [("spark-b", said, "11-30 01:58:20")]
    assert read(f"{blank}{OOM}\n") == [("", said, "11-30 01:58:20")]


def test_an_object_that_is_no_entry_stays_as_it_is() -> None:
    text = '{\n  "name": "x",\n  "said": "Address already in use"\n}\n'
    assert Plain().lines(text.encode()).decode() == text


@given(st.text(max_size=200), st.sampled_from([*map(export, ENTRIES[:2]), verbose(ENTRIES[0]), '{\n "a', ""]))
def test_any_text_is_read(text: str, before: str) -> None:
    plain = Plain()
    plain.lines((before + text + "\n").encode("utf-8", "replace"))
    plain.flush()
