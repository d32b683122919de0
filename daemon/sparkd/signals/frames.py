"""The phase that a traceback tells: functions of the engine that stand for a phase, vLLM 0.6 to 0.3x."""

from __future__ import annotations

import re

from sparkd.words import Phase

# A frame (as a notebook prints it, too), the method of a collective call, and how the V0 engine names the
# method that failed.
_NAMES = re.compile(
    r"(?:, in | line \d+ in |(?:executing|processing) method '?"
    r"|(?:collective_rpc|_run_workers)\(\s*[\"']|\.py\]\(\S{0,200}\) in )(\w+)"
)
# Innermost first: what stands further up wins, since its callers stand below.
_PHASES: tuple[tuple[Phase, frozenset[str]], ...] = (
    (Phase.PROFILING, frozenset({"profile_cudagraph_memory"})),
    (
        Phase.CAPTURING_GRAPHS,
        frozenset(
            {
                "capture_model",
                "_capture_cudagraphs",
                "capture_graphs",
                "capture_graph",
                "capture_one_batch_size",
                "init_cuda_graphs",
                "_warm_up_model",
                "warm_up_model",
                "compile_or_warm_up_model",
                "kernel_warmup",
                "warmup_kernels",
                "_dummy_sampler_run",
            }
        ),
    ),
    (
        Phase.PROFILING,
        frozenset(
            {
                "profile_run",
                "determine_available_memory",
                "determine_num_available_blocks",
                "profile_num_available_blocks",
            }
        ),
    ),
    (
        Phase.ALLOCATING_KV_CACHE,
        frozenset(
            {
                "initialize_from_config",
                "initialize_kv_cache",
                "initialize_kv_cache_tensors",
                "_allocate_kv_cache",
                "_allocate_kv_cache_tensors",
                "allocate_gpu_cache",
                "initialize_cache",
                "_init_cache_engine",
                "init_cache_engine",
                "init_memory_pool",
                "get_kv_cache_configs",
                "get_kv_cache_config",
                "check_enough_kv_cache_memory",
                "_check_enough_kv_cache_memory",
                "raise_if_cache_size_invalid",
            }
        ),
    ),
    (
        Phase.LOADING_WEIGHTS,
        frozenset(
            {
                "load_model",
                "load_weights",
                "create_weights",
                "initialize_model",
                "_initialize_model",
                "process_weights_after_loading",
                "get_all_weights",
                "safetensors_weights_iterator",
            }
        ),
    ),
    (
        Phase.INIT_DISTRIBUTED,
        frozenset(
            {
                "init_device",
                "init_worker_distributed_environment",
                "init_distributed_environment",
                "init_process_group",
                "init_torch_distributed",
                "PyNcclCommunicator",
                "ensure_model_parallel_initialized",
                "initialize_model_parallel",
                "initialize_ray_cluster",
                "_init_workers_ray",
                "_wait_until_pg_ready",
            }
        ),
    ),
    (
        Phase.SERVING,
        frozenset(
            {
                "execute_model",
                "sample_tokens",
                "_process_engine_step",
                "start_worker_execution_loop",
                "step_with_batch_queue",
                "step_async",
                "run_engine_loop",
                "execute_model_async",
                "_driver_execute_model",
                "run_busy_loop",
                "engine_step",
                "_handle_client_request",
                "add_lora",
                "exposed_step",
                "forward_batch_generation",
                "forward_thread_func",
                "forward_thread_func_",
                "listen_for_disconnect",
                "run_asgi",
                "output_handler",
                "create_chat_completion",
                "create_completion",
                "completion_stream_generator",
                "chat_completion_full_generator",
                "chat_completion_stream_generator",
                "event_loop_normal",
                "event_loop_overlap",
                "forward_decode_batch",
                "forward_fill_batch",
                "forward_prefill_batch",
                "run_batch",
            }
        ),
    ),
    (
        Phase.RESOLVING_CONFIG,
        frozenset(
            {
                "create_engine_config",
                "create_model_config",
                "get_config",
                "inspect_model_cls",
                "resolve_model_cls",
                "_get_and_verify_max_len",
                "_verify_quantization",
                "verify_with_parallel_config",
                "verify_max_model_len",
                "maybe_pull_model_tokenizer_for_s3",
            }
        ),
    ),
)
_INDUCTOR = "torch._inductor.exc."
_COMPILERS = ("compile_fx", "_dynamo/convert_frame", "torch/_inductor/codecache", "_call_user_compiler")


def phase_of(text: str) -> Phase | None:
    """Return the phase that the frames in *text* tell, None where it has none that tell."""
    names = set(_NAMES.findall(text))
    if not names:  # torch names its own part where the frames were cut away
        return Phase.COMPILING if _INDUCTOR in text else None
    found = next((phase for phase, functions in _PHASES if not names.isdisjoint(functions)), None)
    if found in {Phase.PROFILING, Phase.CAPTURING_GRAPHS, None} and _compiles(text):
        return Phase.COMPILING
    return found


def inner(one: Phase, other: Phase) -> Phase:
    """Return of two phases of one traceback the one that is nearer to the device."""
    order = [phase for phase, _ in _PHASES]
    return min(one, other, key=order.index) if {one, other} <= set(order) else other


def _compiles(text: str) -> bool:
    """Return whether a compiler was at work; what runs out of memory there was being profiled."""
    return "out of memory" not in text and any(name in text for name in _COMPILERS)
