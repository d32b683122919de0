"""What older and other engines say of the same refusals, broken installs and ordinary ends."""

# ruff: noqa: E501
from __future__ import annotations

import pytest

from signals.wordings import LATER, SERVES, START, cause_of


@pytest.mark.parametrize(
    "line",
    [
        "INFO 11-30 04:00:00 [x.py:1] Free memory on device (105.2/119.7 GiB) on startup. Desired GPU memory utilization is (0.85, 101.7 GiB).",
        "WARNING 11-30 04:00:00 [x.py:1] FooForCausalLM does not support LoRA in its vision tower, which is left out",
        "INFO 11-30 04:00:00 [x.py:1] at most 12.0 GiB KV cache is needed for one request",
        "spark-a:319:379 [0] NCCL INFO Channel 00 : 0[0] -> 1[1] via SHM/direct/direct",
    ],
)
def test_what_reads_nearly_so_and_ends_nothing_is_no_cause(line: str) -> None:
    assert cause_of(START, line, LATER, SERVES) == "none"


@pytest.mark.parametrize("words", ["num_head_qo % 16 == 0", "self.total_num_heads % tp_size == 0"])
@pytest.mark.parametrize("marks", [[], ["           ^^^^^^^^^^^^^^^^^^^^^"]])
def test_heads_that_the_ranks_do_not_divide(words: str, marks: list[str]) -> None:
    trace = ["Traceback (most recent call last):", '  File "/srv/aiter/ops/attention.py", line 812, in get']
    lines = [*trace, f"    assert {words}", *marks, "AssertionError", "EngineCore failed to start."]
    assert cause_of(*lines) == "bad_cli_argument"
    assert cause_of(*trace, "    assert page_size % 16 == 0", *marks, "AssertionError") == "unknown"


@pytest.mark.parametrize("owner", ["vllm/model_executor/models/mixtral", "sglang/srt/models/llama"])
def test_a_field_that_the_models_class_misses_in_its_configuration(owner: str) -> None:
    lines = [
        "Traceback (most recent call last):",
        f'  File "/srv/{owner}.py", line 416, in __init__',
        "    num_experts=config.num_local_experts,",
        '  File "/srv/transformers/configuration_utils.py", line 265, in __getattribute__',
        "    return super().__getattribute__(key)",
        "AttributeError: 'MistralConfig' object has no attribute 'num_local_experts'",
    ]
    assert cause_of(*lines) == "model_unsupported"


ENDS = [
    "slurmstepd: error: *** JOB 6753 ON node04 CANCELLED AT 2026-01-07T10:29:37 DUE TO TIME LIMIT ***",
    "slurmstepd: error: *** STEP 6753.0 ON node04 CANCELLED AT 2026-01-07T10:29:37 DUE TO PREEMPTION ***",
    "slurmstepd: error: *** JOB 6753 ON node04 CANCELLED AT 2026-01-07T10:29:37 ***",
    "=>> PBS: job killed: walltime 3618 exceeded limit 3600",
    "TERM_RUNLIMIT: job killed after reaching LSF run time limit.",
    "dockerd: Container 0f3a9b12 failed to exit within 10s of signal 15 - using the force",
    "dockerd: Container 0f3a9b12 failed to exit within 10 seconds of signal 15 - using the force",
]


@pytest.mark.parametrize("line", ENDS)
def test_who_gave_the_time_and_took_it_stopped_the_engine(line: str) -> None:
    killed = "vllm-1 exited with code 137"
    assert cause_of(START, LATER, SERVES, line) == "clean_shutdown"
    assert cause_of(START, LATER, SERVES, line, killed) == "clean_shutdown"
    assert cause_of(START, LATER, SERVES, killed) == "killed_unspecified"


def test_a_job_that_a_node_failed_is_no_stop() -> None:
    line = (
        "slurmstepd: error: *** JOB 6753 ON node04 CANCELLED AT 2026-01-07T10:29:37 DUE TO NODE FAILURE ***"
    )
    assert cause_of(START, LATER, SERVES, line) != "clean_shutdown"


def terminated(last: str) -> list[str]:
    return [
        START,
        "Traceback (most recent call last):",
        '  File "uvloop/loop.pyx", line 379, in uvloop.loop.Loop._ceval_process_signals',
        '  File "/srv/vllm/entrypoints/openai/api_server.py", line 1775, in signal_handler',
        '    raise KeyboardInterrupt("terminated")',
        last,
    ]


def test_a_server_that_a_sigterm_meets_in_its_start_was_stopped() -> None:
    """A person who interrupts a start waits before it: that may be a start that hangs."""
    assert cause_of(*terminated("KeyboardInterrupt: terminated")) == "clean_shutdown"
    assert cause_of(*terminated("KeyboardInterrupt")[:1], "KeyboardInterrupt") != "clean_shutdown"


def test_the_watchdog_of_another_service_tells_nothing_of_the_engine() -> None:
    line = "systemd[1]: {}.service: Watchdog timeout (limit 6min)!"
    assert cause_of(line.format("vllm")) == "engine_hang"
    assert cause_of(line.format("backup-pool")) != "engine_hang"
