"""Other programs in the engine's log are not the engine, wherever their lines stand."""

from __future__ import annotations

import pytest

from sparkd.cli.reading import Diagnoser
from sparkd.signals import foreigners
from sparkd.signals.catalogue import packaged_catalogue

DIAGNOSER = Diagnoser(packaged_catalogue())
SERVING = [
    "INFO 11-30 04:00:00 [x.py:1] Resolved architecture: Qwen3ForCausalLM",
    "INFO:     Application startup complete.",
    "INFO 11-30 04:10:00 [loggers.py:1] Avg generation throughput: 21.0 tokens/s, Running: 1 reqs",
]
FAILURES = [
    "ModuleNotFoundError: No module named 'pandas'",
    "OSError: [Errno 98] Address already in use",
    "Fatal Python error: Segmentation fault",
    "PermissionError: [Errno 13] Permission denied: '/data/x'",
    "Killed",
    "INFO:     Shutting down",
    "error: something else went wrong",
    "Error: listen EADDRINUSE: address already in use :::3000",
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB.",
    "RuntimeError: CUDA error: an illegal memory access was encountered",
    "RuntimeError: CUDA error: device-side assert triggered",
]
UNITS = [
    "open-webui",
    "web-server",
    "code-server",
    "node-app",
    "api-gateway",
    "gray-proxy",
    "headscale",
    "python3",
]
PREFIXES = {
    "journal": "Nov 30 04:1{minute}:00 spark-a {unit}[{pid}]: ",
    "compose": "{unit}-1  | ",
}


def collected(prefix: str, unit: str, lines: list[str], minute: int = 0) -> list[str]:
    return [PREFIXES[prefix].format(unit=unit, minute=minute, pid=100 + minute) + line for line in lines]


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize("failure", FAILURES)
def test_another_program_that_fails_is_not_the_engine(prefix: str, failure: str, unit: str) -> None:
    engine = collected(prefix, "vllm", SERVING)
    other = collected(prefix, unit, [failure], 5)
    assert DIAGNOSER.lines([*engine, *other]).diagnosis.cause == "none"
    assert DIAGNOSER.lines([*other, *engine[:1]]).diagnosis.cause == "none"


@pytest.mark.parametrize(
    "unit", ["vllm", "ray-head", "systemd", "kernel", "serve.sh", "worker", "vllm_worker-2"]
)
def test_what_belongs_to_the_engine_is_heard(unit: str) -> None:
    engine = collected("journal", "vllm", SERVING)
    died = collected("journal", unit, ["Fatal Python error: Segmentation fault"], 5)
    assert DIAGNOSER.lines([*engine, *died]).diagnosis.cause == "worker_process_died"


def test_without_an_engine_any_program_is_the_subject() -> None:
    lines = collected("journal", "open-webui", ["Fatal Python error: Segmentation fault"])
    assert DIAGNOSER.lines(lines).diagnosis.cause == "worker_process_died"


def test_what_tells_of_the_node_is_heard_of_anybody() -> None:
    engine = collected("journal", "vllm", SERVING)
    other = collected(
        "journal", "comfyui", ["NVRM: Xid (PCI:000f:01:00): 79, GPU has fallen off the bus."], 5
    )
    assert DIAGNOSER.lines([*engine, *other]).diagnosis.cause == "gpu_xid"


def test_files_are_no_units() -> None:
    assert foreigners.of(["my serve.log"], ["my serve.log", "my raylet.out", "my notes"]) == ()
    assert foreigners.of(["a.log vllm"], ["a.log nginx", "b.log nginx", "a.log kernel"]) == ("a.log nginx",)
