"""What older and other engines say of the same refusals, broken installs and ordinary ends."""

# ruff: noqa: E501
from __future__ import annotations

import pytest

from sparkd.cli.reading import Diagnoser
from sparkd.signals.catalogue import packaged_catalogue

DIAGNOSER = Diagnoser(packaged_catalogue())
START = "(EngineCore pid=811) INFO 11-30 04:00:00 [x.py:1] Resolved architecture: Qwen3ForCausalLM"
LATER = "(APIServer pid=700) INFO 11-30 04:03:00 [x.py:1] GPU KV cache size: 1,234,560 tokens"
SERVES = "(APIServer pid=700) INFO:     Application startup complete."
DEAD = "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"
WORDS = {
    "broken_install": [
        *(
            f"RuntimeError: Tried to instantiate class '{name}', but it does not exist! Ensure that it is registered via torch::class_"
            for name in ("_core_C.ScalarType", "_C.ScalarType", "_moe_C.Workspace")
        ),
        "ValueError: bad marshal data (unknown type code)",
        "ValueError: bad marshal data (digit out of range in long)",
        "EOFError: marshal data too short",
        "ImportError: bad magic number in 'vllm': b'\\x03\\xf3\\r\\n'",
        "NameError: name 'vllm_ops' is not defined",
        "NameError: name 'cache_ops' is not defined",
        "TypeError: type 'array.array' is not subscriptable",
        "TypeError: 'type' object is not subscriptable",
        "TypeError: 'ABCMeta' object is not subscriptable",
        "TypeError: unsupported operand type(s) for |: 'type' and 'NoneType'",
        "ERROR: Package 'flashinfer' requires a different Python: 3.9.2 not in '>=3.10'",
    ],
    "bad_cli_argument": [
        "ValueError: Model QWenLMHeadModel does not support LoRA, but LoRA is enabled. Support for this model may be added in the future.",
        "ValueError: FooForCausalLM does not support LoRA yet.",
        "AttributeError: Model FooForCausalLM does not support BitsAndBytes quantization yet. No 'packed_modules_mapping' found.",
        "NotImplementedError: Pipeline parallelism is not supported for this model. Supported models implement the `SupportsPP` interface.",
        "AssertionError: local_world_size (16) must be less than or equal to the number of visible devices (8).",
        "AssertionError: DP adjusted local rank 11 is out of bounds. ",
        "RuntimeError: Failed to allocate memory for batch_prefill_tmp_v with size 450494464 and alignment 16 in AlignedAllocator",
        "RuntimeError: Buffer overflow when allocating memory for batch_prefill_tmp_v with size 450494464 and alignment 16, but only 402653184 bytes available in AlignedAllocator. Increase the workspace buffer size.",
        "FileNotFoundError: [Errno 2] No such file or directory: '/srv/run/<stdin>'",
    ],
    "model_unsupported": [
        "KeyError: 'model.layers.0.attention.wqkv.qweight'",
        "KeyError: 'layers.47.mlp.experts.w2_weight.weight_scale_inv'",
        "KeyError: 'lm_head.linear.weight'",
    ],
    "kv_cache_too_small": [
        "RuntimeError: Not enought memory. Please try to increase --mem-fraction-static.",
        "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.",
        "ValueError: To serve at least one request with the model's max seq len (8192), 2.0 GiB KV cache is needed ... estimated maximum model length is 1856.",
    ],
    "startup_free_memory_too_low": [
        "ValueError: Free memory on device (3.96/79.18 GiB)... reduce GPU memory used by other processes.",
        "ValueError: The memory capacity is unbalanced. Some GPUs may be occupied by other processes. pre_model_load_memory=10.2, local_gpu_memory=70.1, local_gpu_memory * 0.9=63.1",
    ],
    "shm_too_small": [
        "spark-a:319:379 [0] include/shm.h:48 NCCL WARN Error while creating shared memory segment nccl-shm-recv-183375136c5888b6-0-2-3 (size 9637888)",
        "spark-a:319:379 [0] include/shm.h:48 NCCL WARN Error while attaching to shared memory segment /nccl-Kx1b2f (size 9637888)",
    ],
    "kernel_oom": [
        "oom-kill: ... global_oom, task_memcg=/system.slice/docker-7228.scope, task=VLLM::EngineCor, pid=4007",
    ],
}
ROWS = [(line, cause) for cause, lines in WORDS.items() for line in lines]
ALL = pytest.mark.parametrize(("line", "cause"), ROWS)


def cause_of(*lines: str) -> str:
    return DIAGNOSER.lines(list(lines)).diagnosis.cause


@ALL
@pytest.mark.parametrize("prefix", ["", "2026-11-30T04:10:00.123456789Z stderr F ", "(Worker_TP0 pid=905) "])
def test_the_words_of_others_are_understood(prefix: str, line: str, cause: str) -> None:
    assert cause_of(prefix + line) == cause


@ALL
def test_they_are_the_cause_of_the_end_that_follows(line: str, cause: str) -> None:
    assert cause_of(START, line, DEAD) == cause


@ALL
def test_a_line_that_is_cut_is_never_another_cause(line: str, cause: str) -> None:
    told = {cause_of(line[:length]) for length in range(len(line) // 2, len(line), 3)}
    assert told <= {cause, "unknown", "none"}


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
