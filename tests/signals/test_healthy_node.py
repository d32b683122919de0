"""A healthy node's journal tells of other units, and of sparkd's own: none of it is about the engine."""

from __future__ import annotations

import pytest

from sparkd.cli.reading import Diagnoser
from sparkd.signals.catalogue import packaged_catalogue

DIAGNOSER = Diagnoser(packaged_catalogue())
LINE = "Nov 30 04:{0:02}:{1:02} spark-a {2}: {3}"
SERVING = [
    LINE.format(0, 0, "vllm[100]", "INFO 11-30 04:00:00 [x.py:1] Resolved architecture: Qwen3ForCausalLM"),
    LINE.format(5, 0, "vllm[100]", "INFO:     Application startup complete."),
]
OTHERS = ["sparkd.service", "sparkd-guard.service", "xray.service", "web-server.service", "tray.service"]
ENGINES = ["vllm.service", "my-vllm@0.service", "sparkd-serve.service", "sparkd-ray.service", "ray.service"]


def stopped(unit: str) -> list[str]:
    return [
        LINE.format(11, 0, "systemd[1]", f"Stopping {unit} - something..."),
        LINE.format(11, 1, "systemd[1]", f"{unit}: Deactivated successfully."),
        LINE.format(11, 2, "systemd[1]", f"Stopped {unit} - something."),
    ]


def cause(*lines: str) -> str:
    return DIAGNOSER.lines([*SERVING, *lines]).diagnosis.cause


@pytest.mark.parametrize("unit", OTHERS)
def test_the_stop_of_another_unit_is_none_of_the_engine(unit: str) -> None:
    assert cause(*stopped(unit)) == "none"


@pytest.mark.parametrize("unit", ENGINES)
@pytest.mark.parametrize("line", [0, 1])
def test_the_stop_of_a_unit_of_the_engine_is(unit: str, line: int) -> None:
    assert cause(stopped(unit)[line]) == "clean_shutdown"


def test_the_stop_of_the_whole_is_a_stop_of_the_engine() -> None:
    assert (
        cause(LINE.format(11, 0, "systemd[1]", "Stopped target sparkd.target - all of it."))
        == "clean_shutdown"
    )


@pytest.mark.parametrize("name", ["postgres-server", "xray", "tray-engineer"])
def test_a_container_of_another_name_is_not_the_engine(name: str) -> None:
    row = f'1a2b   {name}   "cmd"   2 days ago   Exited (137) 8 days ago   '
    assert cause(row) != "killed_unspecified"


REQUEST = 'INFO:     10.0.0.8:1 - "POST /v1/completions HTTP/1.1" 200 OK'
SEEN = [
    "mlx5_core 0000:01:00.0 enp1s0f0np0: Link down",
    "mlx5_core 0000:01:00.0: Port module event: module 0, Cable unplugged",
    "NVRM: Xid (PCI:000f:01:00): 13, pid=4321, name=python3, Graphics Exception",
    "nvidia 000f:01:00.0: PCIe Bus Error: severity=Uncorrectable (Non-Fatal), type=Transaction Layer, (R ID)",
    "Out of memory: Killed process 4321 (firefox) total-vm:9000kB, anon-rss:4000kB",
]
REFUSED = [
    "ERROR 11-30 04:07:00 [serving_chat.py:200] Error in preprocessing prompt inputs",
    "ValueError: As of transformers v4.44, default chat template is no longer allowed, provide one",
    'INFO:     10.0.0.8:1 - "POST /v1/chat/completions HTTP/1.1" 400 Bad Request',
]


@pytest.mark.parametrize("text", SEEN)
def test_what_ended_nothing_is_no_cause_beside_an_engine_that_works(text: str) -> None:
    worked = LINE.format(10, 0, "vllm[100]", REQUEST)
    seen = LINE.format(15, 0, "kernel", text)
    assert cause(worked, seen) == "none"
    assert DIAGNOSER.lines([seen]).diagnosis.cause != "none"


@pytest.mark.parametrize(
    "text",
    [
        "NVRM: Xid (PCI:000f:01:00): 13, pid=4321, name=VLLM::Worker_TP, Graphics Exception",
        "NVRM: Xid (PCI:000f:01:00): 79, GPU has fallen off the bus.",
        "Out of memory: Killed process 4321 (VLLM::Worker_TP) total-vm:9000kB, anon-rss:4000kB",
    ],
)
def test_what_ended_a_process_of_the_engine_is(text: str) -> None:
    assert cause(LINE.format(10, 0, "vllm[100]", REQUEST), LINE.format(15, 0, "kernel", text)) != "none"


def test_a_request_that_was_refused_ends_nothing() -> None:
    refused = [LINE.format(10 + at, 0, "vllm[100]", text) for at, text in enumerate(REFUSED)]
    assert cause(*refused) == "tokenizer_or_template_error"
    assert cause(*refused, LINE.format(20, 0, "vllm[100]", REQUEST)) == "none"
