"""What the tests of wordings share: a start, an end, and the tables of words with the causes that they tell."""

# ruff: noqa: E501
from __future__ import annotations

from sparkd.cli.reading import Diagnoser
from sparkd.signals.catalogue import packaged_catalogue

DIAGNOSER = Diagnoser(packaged_catalogue())
START = "(EngineCore pid=811) INFO 11-30 04:00:00 [x.py:1] Resolved architecture: Qwen3ForCausalLM"
LATER = "(APIServer pid=700) INFO 11-30 04:03:00 [x.py:1] GPU KV cache size: 1,234,560 tokens"
SERVES = "(APIServer pid=700) INFO:     Application startup complete."
DEAD = "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"
REFUSALS = {
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
"""What older and other engines refuse, and broken installs: cause -> lines."""


def cause_of(*lines: str) -> str:
    return DIAGNOSER.lines(list(lines)).diagnosis.cause
