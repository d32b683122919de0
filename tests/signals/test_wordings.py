"""One cause, in the words of several programs and versions; and what reads nearly the same and is none."""

# ruff: noqa: E501
from __future__ import annotations

import json

import pytest

from signals.wordings import DEAD, DIAGNOSER, LATER, REFUSALS, SERVES, START, cause_of

WORDS = {
    "kv_cache_too_small": [
        "RuntimeError: Not enough memory. Please try increasing --mem-fraction-static. Current value: 0.8",
    ],
    "no_cuda_device": [
        "docker: Error response from daemon: failed to discover GPU vendor from CDI: no known GPU vendor found",
    ],
    "weights_missing_or_corrupt": [
        "ValueError: No supported config format found in /srv/models/m.",
        "llama_model_load: error loading model: tensor 'blk.3.ffn_up.weight' data is not within the file bounds, model is corrupted or incomplete",
    ],
    "bad_cli_argument": [
        "TypeError: Error: --enable-auto-tool-choice and --enable-reasoning cannot be enabled at the same time",
        "ValueError: --api-server-count=2 cannot be used with --headless",
        "ValueError: Cannot use --data-parallel-hybrid-lb with --headless",
        "TypeError: Error: --enable-auto-tool-choice requires --tool-call-parser",
        "ValueError: --data-parallel-rank must be specified when external load balancing is used",
        "AssertionError: --kv-sharing-fast-prefill is incompatible with --enable-lora",
        "ValueError: --max-loras and --lora-modules are mutually exclusive",
        "NotImplementedError: VLLM_USE_V1=1 is not supported with --kv-cache-dtype.",
        "ValueError: Chunked prefill is incompatible with --disable-sliding-window",
        "error: unexpected argument '--modell' found",
        "error: invalid value 'x' for '--port <PORT>': invalid digit found in string",
        "ValueError: Unknown attention backend: 'FLASHX'. Valid options are: FLASH_ATTN, FLASHINFER",
        "ValueError: max_num_batched_tokens (2048) must be greater than or equal to max_num_seqs (4096).",
        "ValueError: --node-rank is required when --nnodes is given",
    ],
    "broken_install": [
        "ImportError: Support for Transformers v4 is deprecated and was removed in vLLM v0.24.0",
        "ImportError: vllm.vllm_flash_attn requires (_vllm_fa2_C or _vllm_fa3_C)",
        "TypeError: Descriptors cannot be created directly.",
        "ImportError: tokenizers 0.13 is no longer supported",
        "ImportError: This modeling file requires transformers>=4.57",
    ],
    "missing_python_dependency": [
        "ImportError: Please install vllm[audio] for audio support.",
        "ImportError: Using `bitsandbytes` 4-bit quantization requires bitsandbytes: `pip install -U bitsandbytes>=0.46.1`",
        "ValueError: Unable to load Ray: No module named 'ray'. Ray is required for multi-node inference, please install Ray with `pip install ray`.",
        "RuntimeError: Sparse Attention Indexer CUDA op requires DeepGEMM",
        "RuntimeError: Sparse Attention Indexer CUDA op requires DeepGEMM support",
        "RuntimeError: DeepGEMM backend is not available or outdated. Please install or update the `deep_gemm` package.",
        "ValueError: the all2all backend needs DeepEP to be installed",
    ],
    "model_unsupported": [
        "ValueError: ModelOpt currently only supports: ['FP8', 'NVFP4'] quantizations in vLLM.",
        "NotImplementedError: No compressed-tensors compatible scheme was found.",
    ],
    "compile_toolchain_missing": [
        "AssertionError: libcuda.so cannot found! Possible files are located at ['/usr/lib/libcuda.so.1'].",
        "/usr/bin/ld: cannot find -lcuda: No such file or directory",
        "cannot find -lcuda: No such file or directory",
        "ld.lld: error: unable to find library -lcudart",
    ],
    "cuda_arch_unsupported": [
        "triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 196608, Hardware limit: 101376. Reducing block sizes or `num_stages` may help.",
        "RuntimeError: The grouped GEMM is not supported on GPUs with compute capability 12.1",
        "OutOfResources: out of resource: tensor memory, Required: 768, Hardware limit: 512.",
        "cutlass.cute.nvgpu.common.OpError: OpError: expects arch to be one of ['sm_120a'], but got Arch.sm_121a",
        "LLVM ERROR: Cannot select: intrinsic %llvm.nvvm.shfl.sync.bfly.i32",
        "RuntimeError: Unsupported CUDA architecture: sm_121",
    ],
    "kernel_oom": [
        "oom-kill: constraint=CONSTRAINT_MEMORY_POLICY, nodemask=7, task=VLLM::EngineCor",
        "oom-kill:constraint=CONSTRAINT_CPUSET,nodemask=0,cpuset=/,mems_allowed=0,task=python3,pid=9635,uid=0",
        "Out of memory: Killed process 9635, UID 1000, (python3) total-vm:9443144kB, anon-rss:5933336kB",
        "kernel: Killed process 9635 (VLLM::EngineCor) total-vm:160958068kB, anon-rss:6548368kB",
    ],
    "gpu_xid": [
        "NVRM: GPU at PCI:0000:01:00: GPU has fallen off the bus.",
        "NVRM: GPU 0000:01:00.0: GPU has fallen off the bus.",
        "NVRM: GPU at 0000:01:00.0 has fallen off the bus.",
    ],
    "cuda_illegal_memory_access": ["ROCm error: unspecified launch failure"],
    "ray_insufficient_resources": [
        "ValueError: Current node has no GPU available. current_node_resource={'CPU': 20.0}."
    ],
    "driver_library_mismatch": [
        "RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 802: system not yet initialized",
        "nvidia-container-cli: requirement error: unsatisfied condition: cuda>=13.0, please update your driver",
    ],
    "os_resource_limit": [
        "RuntimeError: unable to open shared memory object </torch_811_3> in read-write mode: Too many open files (24)",
    ],
    "shm_too_small": [
        "RuntimeError: unable to open shared memory object </torch_811_3> in read-write mode: No space left on device (28)",
    ],
    "disk_full": [
        "ray.exceptions.OutOfDiskError: Local disk is full",
        "The object cannot be created because the local object store is full and the local disk's utilization is over capacity (95% by default).",
        "RuntimeError: [enforce fail at inline_container.cc:672] . unexpected pos 4096 vs 3990",
        "RuntimeError: PytorchStreamWriter failed writing file data/7: file write failed",
        "safetensors_rust.SafetensorError: Error while serializing: I/O error: No space left on device (os error 28)",
        "safetensors_rust.SafetensorError: Error while serializing: IoError(Os { code: 122, message: Disk quota exceeded }) (os error 122)",
    ],
    "hf_network": [
        "Error loading tokenizer: (MaxRetryError('HTTPSConnectionPool(host=\\'huggingface.co\\', port=443): Max retries exceeded",
        "curl: (6) Could not resolve host: huggingface.co",
        "reqwest error: error sending request for url (https://cas-server.xethub.hf.co/x): dns error: failed to lookup address information",
        "urllib3.exceptions.NameResolutionError: HTTPSConnection(host=\"hf.co\", port=443): Failed to resolve 'hf.co'",
    ],
    "memory_guard_kill": [
        'earlyoom[655]: sending SIGTERM to process 9635 uid 1000 "VLLM::Worker_TP": oom_score 996, VmRSS 5494 MiB, cmdline "VLLM::Worker_TP1"',
        'sending SIGKILL to process ... "ray::RayWorkerP": badness 1658',
    ],
    "ray_node_died": [
        "The actor is dead because its owner has died. Owner worker exit type: SYSTEM_ERROR Worker exit detail: Owner's node has crashed.",
        "The node ... has been marked dead because the detector has missed too many heartbeats from it.",
    ],
    "startup_free_memory_too_low": [
        "ValueError: Free memory on device cuda:0 (58.33-58.44/63.98 GiB) on startup is less than desired GPU memory utilization (0.92, 58.87 GiB)."
    ],
    "worker_process_died": [
        "Segfault encountered",
        "!!!!!!! Segfault encountered !!!!!!!",
        "VllmWorker-1 died unexpectedly, exit code None",
        "Worker proc VllmWorker-1 died unexpectedly (exit code: -11), shutting down executor.",
    ],
}
ROWS = [(line, cause) for words in (WORDS, REFUSALS) for cause, lines in words.items() for line in lines]
ALL = pytest.mark.parametrize(("line", "cause"), ROWS)


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


HARMLESS = [
    "spark-b:321:321 [0] NCCL INFO ncclOsDlopen(libnccl-env.so) failed: libnccl-env.so: cannot open shared object file: No such file or directory",
    "spark-b:321:321 [1] NCCL INFO ENV/Plugin: Could not find: libnccl-env.so",
    "[2026-11-30 04:10:00] spark-b:321:321 [0] ras/client_support.cc:181 NCCL WARN Call to bind failed: Address already in use",
    "spark-b:321:321 [0] NCCL INFO RAS failed to establish a client listening socket at localhost:28028",
    "WARNING 11-30 04:00:00 [x.py:1] --swap-space cannot be used with --headless and is ignored",
    "INFO 11-30 04:00:00 [x.py:1] --disable-log-stats is required when --headless is given, setting it",
    "WARNING 11-30 04:00:00 [x.py:1] Prefix caching is not supported with --enable-x and is turned off",
    "WARNING 11-30 04:00:00 [x.py:1] The fused kernel is not supported on GPUs with compute capability 12.1; using another",
    "usage: --project NAME (cannot be used with --plan)",
    "INFO 11-30 04:00:00 [x.py:1] MoE backend requires DeepGEMM; using Triton",
    "WARNING 11-30 04:00:00 [x.py:1] FP8 only supports per-tensor quantization here; falling back",
    "mlx5_core 0000:01:00.0: mlx5_cmd_out_err:838:(pid 7): ACCESS_REG(0x805) op_mod(0x1) failed, status bad operation(0x2), syndrome (0x305684), err(-22)",
    "Runtime error during autotuning: OutOfResources: out of resource: shared memory, Required: 196608, Hardware limit: 101376. Ignoring this choice.",
    "ERROR: --user and --target can not be used together",
    "Segfault encountered by others was mended in the last version",
    "earlyoom[655]: low memory! at or below SIGTERM limits: mem 10.00%, swap 10.00%",
    "[   12.1] infiniband rocep1s0f0: add_roce_gid GID add failed port=1 index=0",
]


@pytest.mark.parametrize("line", HARMLESS)
def test_what_reads_nearly_so_and_ends_nothing_is_no_cause(line: str) -> None:
    assert cause_of(START, line, LATER, SERVES) == "none"


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("misc/socket.cc:600 NCCL WARN Call to bind failed: Address already in use", "port_in_use"),
        (
            "safetensors_rust.SafetensorError: Error while deserializing header: HeaderTooLarge",
            "weights_missing_or_corrupt",
        ),
        (
            "ImportError: libcudart.so.12: cannot open shared object file: No such file or directory",
            "broken_install",
        ),
        ("ModuleNotFoundError: No module named 'deep_gemm'", "missing_python_dependency"),
        (
            "Owner worker exit type: INTENDED_USER_EXIT Worker exit detail: Owner's worker process has exited.",
            "none",
        ),
        ('earlyoom[655]: sending SIGTERM to process ... "firefox": badness 900', "none"),
    ],
)
def test_the_neighbours_keep_their_cause(line: str, cause: str) -> None:
    assert cause_of(START, line) == cause


@pytest.mark.parametrize("first", [0, 1])
def test_a_refused_gid_is_the_subject_of_a_kernel_log_alone(first: int) -> None:
    lines = [
        "[    9.863871] mlx5_core 0000:01:00.0: mlx5_cmd_out_err:803:(pid 1440): SET_ROCE_ADDRESS(0x761) op_mod(0x0) failed, status bad parameter(0x3), syndrome (0x63c66), err(-22)",
        "[    9.881250] infiniband mlx5_2: add_roce_gid GID add failed port=1 index=0",
    ]
    assert cause_of(*lines[first:], *lines[:first]) == "ib_roce_error"


REFUSED = [
    "(APIServer pid=700)     raise VLLMValidationError(",
    "(APIServer pid=700) vllm.exceptions.VLLMValidationError: This model's maximum context length is 32768 tokens.",
]
STOP = [
    "(EngineCore pid=811) INFO 11-30 04:10:15 [core.py:1201] Shutdown initiated (timeout=0)",
    "(EngineCore pid=811) INFO 11-30 04:10:15 [core.py:1224] Shutdown complete",
    "(APIServer pid=700) INFO:     Shutting down",
    "(APIServer pid=700) INFO:     Application shutdown complete.",
]


def test_a_request_that_was_refused_is_not_why_a_server_was_stopped() -> None:
    assert cause_of(SERVES, *REFUSED, *STOP) == "clean_shutdown"
    assert cause_of(SERVES, *REFUSED) == "none"


def test_a_choice_that_the_server_was_not_set_up_for_ends_nothing() -> None:
    line = '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'
    assert cause_of(SERVES, line) == "none"


def test_the_guards_kill_explains_the_worker_that_vanished_in_either_order() -> None:
    kill = 'sending SIGTERM to process ... "VLLM::Worker_TP": badness 996, VmRSS 5494 MiB'
    died = "Worker proc VllmWorker-1 died unexpectedly (exit code: None)"
    assert {cause_of(kill, died), cause_of(died, kill)} == {"memory_guard_kill"}


def test_a_disk_that_ran_full_is_told_though_its_warning_is_wrapped() -> None:
    lines = [
        "[raylet] file_system_monitor.cc:116: /tmp/ray/session_1 is over 95% full, ",
        "available space: 21.7 GB; capacity: 491.5 GB.",
    ]
    dead = "The node ... has been marked dead because the detector has missed too many heartbeats from it."
    assert cause_of(*lines, dead) in {"disk_full", "ray_node_died"}
    assert cause_of(*lines) == "none"


def test_a_kill_whose_victim_was_left_out_is_the_subject_of_a_kernel_log_alone() -> None:
    kill = "Out of memory: Killed process 9635 total-vm:944314492kB anon-rss:593333608kB"
    assert cause_of(kill) == "kernel_oom"
    assert cause_of(START, LATER, SERVES, kill) == "none"


@pytest.mark.parametrize("process", ["python3", "VLLM::Worker"])
def test_a_kill_whose_number_was_left_out(process: str) -> None:
    assert cause_of(f"Memory cgroup out of memory: Killed process ({process}) total-vm:22GB") == "cgroup_oom"
    assert cause_of(f"Out of memory: Killed process ({process}) total-vm:22GB") == "kernel_oom"


def test_a_tuner_that_ignores_a_choice_goes_on_and_one_that_has_none_left_does_not() -> None:
    large = "OutOfResources: out of resource: shared memory, Required: 196608, Hardware limit: 101376"
    tried = [
        "Runtime error during autotuning: ",
        f"{large}. Reducing block sizes may help.. ",
        "Ignoring this choice.",
    ]
    assert cause_of(START, *tried, LATER) == "none"
    failed = "RuntimeError: Failed during autotuning: CUDA error: no kernel image is available for execution on the device"
    assert cause_of(START, failed, DEAD) == "cuda_arch_unsupported"


@pytest.mark.parametrize(
    "line",
    [
        "[2026-11-30 04:10:00,554 E 811 811] (raylet) worker_pool.cc:502: Some workers of the worker process(4611) have not registered within the timeout. The process is still alive, probably it's hanging during start.",
        "Warning  FailedScheduling  2m  default-scheduler  0/2 nodes are available: 2 Insufficient nvidia.com/gpu.",
    ],
)
def test_what_does_not_come_up_is_not_called_well(line: str) -> None:
    assert cause_of(line) == "unknown"


def test_the_agents_of_a_run_that_ends_tell_of_their_store() -> None:
    lines = [
        "The node 'spark-b_811_0' has failed to shutdown the rendezvous 'none'",
        "due to an error of type RendezvousConnectionError.",
    ]
    assert cause_of(*lines) == "peer_lost"
    assert cause_of(" ".join(lines)) == "peer_lost"


@pytest.mark.parametrize(("done", "phase"), [(1940008, "serving"), (2, "init_distributed")])
def test_how_far_the_ranks_had_come_tells_the_phase_of_a_time_out(done: int, phase: str) -> None:
    line = (
        "[rank0] Exception (either an error or timeout) detected by watchdog at work: "
        f"{done + 1}, last enqueued NCCL work: {done + 6}, last completed NCCL work: {done}."
    )
    found = DIAGNOSER.lines([line]).diagnosis
    assert (found.cause, found.phase) == ("nccl_timeout", phase)


def test_a_wait_that_is_all_that_is_shown_is_neither_a_hang_nor_nothing() -> None:
    wait = "shm_broadcast.py: No available shared memory broadcast block found in 60 seconds"
    found = DIAGNOSER.lines([wait]).diagnosis
    assert (found.cause, found.candidates[0]) == ("unknown", "engine_hang")
    assert cause_of(wait, wait) == "engine_hang"
    assert cause_of(SERVES, wait) == "none"


def ras(*, unresponsive: bool, dead: bool, **form: int) -> list[str]:
    """Return what NCCL tells of two ranks of which one is missing, or of both."""
    lost = unresponsive or dead
    ranks = [{"rank": n, "host": f"10.77.0.{n}", "pid": 7, "cuda_dev": 0, "nvml_dev": 0} for n in range(2)]
    status = {"unresponsive": unresponsive, "considered_dead": dead}
    told = {
        "hash": "0xa1",
        "secondary_hash": "0xb1:0xc1",
        "size": 2,
        "ranks_count": 2 - lost,
        "missing_ranks_count": int(lost),
        "ranks": ranks[: 2 - lost],
        "missing_ranks": [{**ranks[1], "status": status}] * lost,
    }
    whole = {"nccl_version": "2.29.1", "communicators_count": 1, "communicators": [told]}
    return json.dumps(whole, **form).splitlines()  # type: ignore[arg-type]


@pytest.mark.parametrize("form", [{}, {"indent": 2}], ids=["one line", "indented"])
def test_nccls_own_health_is_understood_as_json(form: dict[str, int]) -> None:
    assert cause_of(*ras(unresponsive=False, dead=True, **form)) == "peer_lost"
    assert cause_of(*ras(unresponsive=True, dead=False, **form)) == "nccl_timeout"
    healthy = DIAGNOSER.log(ras(unresponsive=False, dead=False, **form)).diagnosis
    assert healthy.cause == "none"


def test_of_two_brackets_in_a_row_one_is_made() -> None:
    line = "(Worker_TP0 pid=905) ERROR 11-30 04:00:00 [x.py:1] ValueError: Free memory on device (18.52/119.7 GiB) on startup is less than desired GPU memory utilization (0.9, 107.7 GiB)."
    told = DIAGNOSER.lines([line]).diagnosis.explanation
    assert told.endswith("(rank 0, 18.52 of 119.70 GiB free, 107.70 GiB wanted)")


@pytest.mark.parametrize(("code", "cause"), [(-11, "worker_process_died"), (1, "engine_dead_unspecified")])
def test_sglangs_scheduler_that_a_signal_ended(code: int, cause: str) -> None:
    line = f"[2026-11-30 04:49:51] Rank 0 scheduler is dead. Please check if there are relevant logs. Exit code: {code}"
    assert cause_of(line) == cause


STARTS = {
    "loading_weights": "[2026-11-30 04:49:40] Load weight begin. avail mem=110.00 GB",
    "allocating_kv_cache": "[2026-11-30 04:49:44] Memory pool end. avail mem=66.00 GB",
    "capturing_graphs": "[2026-11-30 04:49:45] Capture cuda graph begin. This can take up to several minutes.",
    "serving": "Processed prompts:   3%|3         | 3/100 [00:04<02:11,  1.36s/it]",
}


@pytest.mark.parametrize("last", range(1, len(STARTS) + 1))
def test_a_start_of_sglang_and_a_run_without_a_server_tell_their_phase(last: int) -> None:
    error = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 896.00 MiB."
    found = DIAGNOSER.lines([*list(STARTS.values())[:last], error]).diagnosis
    assert (found.cause, found.phase) == ("cuda_oom", list(STARTS)[last - 1])


def test_what_torchs_compiler_raises_was_compiling_though_its_frames_are_gone() -> None:
    line = "torch._inductor.exc.InductorError: PermissionError: [Errno 13] Permission denied: 'nvcc'"
    assert DIAGNOSER.lines([line]).diagnosis.phase == "compiling"
