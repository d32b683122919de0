"""What a healthy engine, node or tool prints, alone: words that look like trouble and are none."""

# ruff: noqa: E501
from __future__ import annotations

import pytest

from sparkd.cli.reading import Diagnoser
from sparkd.signals.catalogue import packaged_catalogue

DIAGNOSER = Diagnoser(packaged_catalogue())
HARMLESS = [
    "WARNING 11-30 04:00:00 [cuda.py:1] Failed to import from vllm._C with ModuleNotFoundError(\"No module named 'vllm._C'\")",
    "WARNING 11-30 04:00:00 [x.py:1] Skipped a way: RuntimeError: CUDA error: no kernel image is available for execution on the device",
    "WARNING 11-30 04:00:00 [autotuner.py:1] [Autotuner]: Failed when profiling runner=x tactic=14: CUDA out of memory. Tried to allocate 2.00 GiB",
    "2026-11-30 04:00:00,000 - INFO - autotuner.py:674 - flashinfer.jit: [Autotuner]: Skipping tactic 3, due to failure: CUDA error: out of memory",
    "2026-11-30 04:00:00,000 WARNING services.py:1 -- WARNING: The object store is using /tmp instead of /dev/shm because /dev/shm has only 67108864 bytes available. You may be able to free up space by deleting files in /dev/shm.",
    "spark-a:1:2 [0] NCCL INFO Call to ibv_reg_dmabuf_mr failed",
    "spark-a:1:2 [0] NCCL INFO NET/Plugin: Could not find: libnccl-net.so. Using internal network plugin.",
    "[    5.1] mlx5_core 0000:01:00.0: Port module event: module 0, Cable unplugged\n[   12.1] mlx5_core 0000:01:00.0: Port module event: module 0, Cable plugged",
    "Nov 30 04:00:00 spark-a earlyoom[655]: sending SIGTERM when mem <= 10.00% and swap <= 10.00%,",
    "Nov 30 04:00:00 spark-a kernel: Linux version 6.17.0-1029-nvidia (buildd@x) #29-Ubuntu SMP",
    "-- Boot 3f4c0720014fcf5f28c0e88640edb7bd --",
    "WARNING 11-30 04:00:00 [model.py:1] The model has a long context length (131072). This may cause OOM errors during the initial memory profiling phase",
    "WARNING 11-30 04:00:00 [scheduler.py:1] Sequence group 1 is preempted because there is not enough KV cache space.",
    "[2026-03-07 21:49:33 TP13] Decode out of memory happened. #retracted_reqs: 1, #new_token_ratio: 0.1474 -> 0.1845",
]


@pytest.mark.parametrize("text", HARMLESS)
def test_a_harmless_text_has_no_cause(text: str) -> None:
    assert DIAGNOSER.lines(text.split("\n")).diagnosis.cause == "none"


@pytest.mark.parametrize("name", ["vllm/vllm-openai:v0.12", "ray-head"])
def test_a_list_of_containers_tells_only_of_those_that_it_names(name: str) -> None:
    row = '{}   {}   "cmd"   2 days ago   {}             '
    running = row.format("4f3c", "vllm/vllm-openai", "Up 2 days")
    ended = row.format("1a2b", "{}", "Exited (137) 8 days ago")
    assert DIAGNOSER.lines([running, ended.format("postgres:16")]).diagnosis.cause in {"none", "unknown"}
    assert DIAGNOSER.lines([ended.format(name)]).diagnosis.cause == "killed_unspecified"


def test_what_is_only_warned_of_explains_a_failure_that_says_no_more() -> None:
    warned = "WARNING 11-30 04:00:00 [x.py:1] could not read: SafetensorError: HeaderTooLarge"
    dead = "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"
    assert DIAGNOSER.lines([warned]).diagnosis.cause == "none"
    assert DIAGNOSER.lines([warned, dead]).diagnosis.cause == "weights_missing_or_corrupt"


def test_a_short_word_is_not_found_across_a_blank() -> None:
    """A text is read once more without its blanks: what then stands in the middle of words is no word."""
    fault = "[WARN] GPU-1: XID: Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_WRITE"
    assert DIAGNOSER.lines([fault]).diagnosis.cause == "none"
    assert DIAGNOSER.lines(["spawn failed: EACCES"]).diagnosis.cause == "permission_denied"


def test_the_words_that_raise_an_interruption_are_no_interruption() -> None:
    frame = '    raise KeyboardInterrupt("MQLLMEngine terminated")'
    assert DIAGNOSER.lines([frame]).diagnosis.cause != "clean_shutdown"
    assert DIAGNOSER.lines(["KeyboardInterrupt"]).diagnosis.cause == "clean_shutdown"


REFUSED = '{{"error":{{"message":"{}","type":"BadRequestError","param":"max_tokens","code":{}}}}}'


@pytest.mark.parametrize(("code", "cause"), [(400, "none"), (404, "none"), (500, "unknown")])
def test_a_request_that_is_refused_is_the_clients_mistake(code: int, cause: str) -> None:
    said = ["INFO 11-30 04:00:00 [launcher.py:1] Starting vLLM API server", REFUSED.format("too long", code)]
    assert DIAGNOSER.lines(said).diagnosis.cause == cause


def test_what_a_refusal_says_is_heard() -> None:
    said = REFUSED.format("default chat template is no longer allowed", 400)
    assert DIAGNOSER.lines([said]).diagnosis.cause == "tokenizer_or_template_error"


def test_one_line_that_says_two_things_is_quoted_once() -> None:
    found = DIAGNOSER.lines(["a", "Killed"])
    assert [quote.text for quote in found.diagnosis.evidence] == ["Killed"]
    assert found.diagnosis.cascade == ()
    assert len(found.weighed) > 1
