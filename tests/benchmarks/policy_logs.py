"""What a failed generation leaves to read: the programs' own words, and nothing that only the world knows.

The forms are those of recorded logs (vLLM 0.22 to 0.32, Ray 2.60, the kernel); everything goes through the
daemon's own intake, so that a line that it cannot read is evidence that it does not have.
"""

# ruff: noqa: E501 - the programs' own lines stay whole

from __future__ import annotations

from dataclasses import dataclass, field

from benchmarks.policy_world import GIB, Outcome, Truth
from sparkd.core.phases import is_forward
from sparkd.engines.lines import read_line
from sparkd.intake.pump import Intake
from sparkd.signals.catalogue import packaged_catalogue
from sparkd.signals.judge import judge
from sparkd.signals.match import Places
from sparkd.signals.model import Curve, Diagnosis, Evidence, Signal, UnitExit
from sparkd.words import NO_SIZES, CudaGraph, Phase, Settings, Sizes, UnitName

NODE = "spark-a"
ENDED_S = 100.0
CATALOGUE = packaged_catalogue()
PLACES = Places(addresses={"10.77.0.1": NODE}, ranks={0: NODE}, head=NODE)
CORE = "(EngineCore pid=30578) "
WORKER = CORE + "\x1b[36m(RayWorkerProc pid=30852)\x1b[0m (Worker_TP0 pid=30852) "
INFO = "INFO 11-30 02:28:%02d "
FRAMES = {
    Phase.LOADING_WEIGHTS: ("gpu_model_runner.py", 5040, "load_model"),
    Phase.PROFILING: ("gpu_worker.py", 683, "determine_available_memory"),
    Phase.ALLOCATING_KV_CACHE: ("gpu_model_runner.py", 6865, "_allocate_kv_cache_tensors"),
    Phase.CAPTURING_GRAPHS: ("gpu_model_runner.py", 5700, "capture_model"),
    Phase.STARTING_API: ("gpu_model_runner.py", 5710, "compile_or_warm_up_model"),
    Phase.SERVING: ("gpu_worker.py", 890, "execute_model"),
}
DIED_RAY = (
    f"{CORE}ERROR 11-30 02:29:00 [ray_executor_v2.py:420] RayWorkerProc rank=[0] died unexpectedly, "
    "shutting down executor."
)
DIED_LOCAL = (
    f"{CORE}ERROR 11-30 02:29:00 [multiproc_executor.py:281] Worker proc VllmWorker-0 died unexpectedly "
    "(exit code: -9), shutting down executor."
)
KERNEL = (
    "Out of memory: Killed process 9635 ({task}) total-vm:152428800kB, anon-rss:2509949kB, "
    "file-rss:262144kB, shmem-rss:0kB, UID:1000 pgtables:8192kB oom_score_adj:1000"
)
DRIVER = (
    "NVRM: nvCheckOkFailedNoLog: Check failed: Out of memory [NV_ERR_NO_MEMORY] (0x00000051) returned from "
    "_memdescAllocInternal(pMemDesc) @ mem_desc.c:1359\nsystemd-journald[512]: Under memory pressure, flushing caches."
)
NO_BLOCKS = "No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine."
TRIPS = (
    "Error in memory profiling. Initial free memory {before:.2f} GiB, current free memory {after:.2f} GiB. This "
    "happens when other processes sharing the same container release GPU memory while vLLM is profiling."
)
ORDER = (
    Phase.INIT_DISTRIBUTED,
    Phase.LOADING_WEIGHTS,
    Phase.PROFILING,
    Phase.ALLOCATING_KV_CACHE,
    Phase.CAPTURING_GRAPHS,
    Phase.STARTING_API,
    Phase.SERVING,
)


@dataclass
class Heard:
    """What the daemon knows of a generation that ended."""

    signals: list[Signal] = field(default_factory=list)
    phase: Phase = Phase.INIT_DISTRIBUTED
    kv_cache_bytes: int | None = None
    kv_requests: float | None = None
    request_tokens: int | None = None
    weights_bytes: int | None = None
    sizes: Sizes = NO_SIZES
    exits: tuple[UnitExit, ...] = ()


def read(
    truth: Truth, settings: Settings, outcome: Outcome, memory: Curve | None = None
) -> tuple[Diagnosis, Heard]:
    """Read a generation's logs, and what was measured of the node's memory, as the daemon does, and judge."""
    heard = Heard()
    intake = Intake(NODE, CATALOGUE, read_line, PLACES)
    _feed(intake, "serve log", UnitName.SERVE, _started(truth, settings, outcome), at_s=10.0, heard=heard)
    for source, unit, text in _last_words(truth, settings, outcome):
        _feed(intake, source, unit, text, at_s=100.0, heard=heard)
    code, number = (0, None) if outcome.killer in {"ray", "kernel", "driver"} else (1, None)
    if outcome.killer in {"guard", "silent"}:
        code, number = None, 9
    if outcome.phase is Phase.SERVING:
        heard.phase = Phase.SERVING  # the core's own phase: a verified start
    heard.exits = (UnitExit(NODE, UnitName.SERVE, 1, ENDED_S + 0.6, code=code, signal=number),)
    batch = intake.end_all(1, 101.0)
    heard.signals.extend(batch.signals)
    evidence = Evidence(
        signals=tuple(heard.signals),
        exits=heard.exits,
        phase=heard.phase,
        nodes=(NODE,),
        head=NODE,
        kv_cache_bytes=heard.kv_cache_bytes,
        memory=() if memory is None else (memory,),
    )
    return judge(evidence), heard


def _feed(
    intake: Intake, source: str, unit: UnitName | None, text: str, *, at_s: float, heard: Heard
) -> None:
    batch = intake.feed(source, unit, 1 if unit else 0, (text + "\n").encode(), at_s)
    more = intake.tick(at_s + 0.4)
    heard.signals.extend((*batch.signals, *more.signals))
    for fact in (*batch.phases, *more.phases):
        if fact.phase is not None and is_forward(heard.phase, fact.phase):
            heard.phase = fact.phase
        heard.kv_cache_bytes = fact.kv_cache_bytes or heard.kv_cache_bytes
        heard.weights_bytes = fact.weights_bytes or heard.weights_bytes
        heard.request_tokens = fact.request_tokens or heard.request_tokens
        heard.kv_requests = fact.requests or heard.kv_requests
        heard.sizes = heard.sizes.with_news(fact.sizes)


def _started(truth: Truth, settings: Settings, outcome: Outcome) -> str:
    """The lines up to the failing phase."""
    reached = ORDER.index(outcome.phase)
    lines = [f"{CORE}{INFO % 1}[core.py:131] Initializing a V1 LLM engine (v0.32.0) with config: ..."]
    parts = (_loading, _profiling, _cache, _capturing, _api)
    for number, part in enumerate(parts, start=1):
        if number > reached:
            break
        lines += part(truth, settings, outcome, done=number < reached)
    return "\n".join(lines)


def _loading(truth: Truth, _settings: Settings, outcome: Outcome, *, done: bool) -> list[str]:
    lines = [f"{WORKER}{INFO % 8}[gpu_model_runner.py:5037] Starting to load model /srv/models/m..."]
    read_, shards = (48, 48) if done else outcome.shards
    percent = int(100 * read_ / shards)
    bar = f"Loading safetensors checkpoint shards: {percent:3d}% Completed | {read_}/{shards} [01:00<00:10,  1.20s/it]"
    files = f"Filesystem type for checkpoints: EXT4. Checkpoint size: {truth.weights * truth.tensor_ranks:.2f} GiB. Available RAM: 90.00 GiB."
    lines.append(f"{WORKER}{INFO % 8}[weight_utils.py:1108] {files}")
    lines.append(WORKER + bar)
    if done:
        lines.append(f"{WORKER}{INFO % 9}[default_loader.py:501] Loading weights took 61.20 seconds")
        size = f"Model loading took {truth.weights:.2f} GiB memory and 63.273305 seconds"
        lines.append(f"{WORKER}{INFO % 9}[gpu_model_runner.py:5132] {size}")
    return lines


def _profiling(truth: Truth, settings: Settings, _outcome: Outcome, *, done: bool) -> list[str]:
    lines = [f"{WORKER}{INFO % 20}[backends.py:1148] Dynamo bytecode transform time: 4.90 s"]
    lines.append(f"{WORKER}{INFO % 25}[monitor.py:53] torch.compile took 15.52 s in total")
    if done:
        lines.append(f"{WORKER}{INFO % 25}[monitor.py:81] Initial profiling/warmup run took 0.30 s")
    elif settings.cudagraph is not CudaGraph.NONE:
        lines.append(
            f"{WORKER}{INFO % 26}[gpu_model_runner.py:6681] Profiling CUDA graph memory: PIECEWISE=16 (largest=16)"
        )
    if done and settings.kv_cache_bytes is None and settings.cudagraph is not CudaGraph.NONE:
        lines += _estimated(truth, settings)
    return lines


def _estimated(truth: Truth, settings: Settings) -> list[str]:
    """The estimate of the graphs, and whether it is left free (`VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS`)."""
    estimate = truth.graphs(settings) * truth.graph_estimate
    share = settings.gpu_memory_utilization
    other = estimate / truth.device_total
    said = (
        f"enabled (default since v0.21.0). The current --gpu-memory-utilization={share:.4f} is equivalent to "
        f"--gpu-memory-utilization={share - other:.4f} without CUDA graph memory profiling."
    )
    if not truth.estimates_graphs:
        said = "disabled (VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS=0). Without it, CUDA graph memory is not accounted for."
    return [
        f"{WORKER}{INFO % 26}[gpu_model_runner.py:6475] Estimated CUDA graph memory: {estimate:.2f} GiB total",
        f"{WORKER}{INFO % 26}[gpu_worker.py:774] CUDA graph memory profiling is {said}",
    ]


def _cache(truth: Truth, settings: Settings, outcome: Outcome, *, done: bool) -> list[str]:
    if settings.kv_cache_bytes is not None:
        text = f"Initial free memory {_start_free(truth, outcome):.2f} GiB, reserved {outcome.kv:.2f} GiB memory for KV Cache as specified by kv_cache_memory_bytes config"
    else:
        text = f"Available KV cache memory: {outcome.kv:.2f} GiB"
    lines = [f"{WORKER}{INFO % 26}[gpu_worker.py:760] {text}"]
    if done or outcome.killer in {"torch", "ray", "guard", "kernel", "driver", "silent"}:
        lines.append(
            f"{CORE}{INFO % 26}[kv_cache_utils.py:2327] GPU KV cache size: {outcome.kv_tokens:,} tokens"
        )
        length = truth.length(settings)
        text = f"Maximum concurrency for {length:,} tokens per request: {outcome.kv_tokens / length:.2f}x"
        lines.append(f"{CORE}{INFO % 27}[kv_cache_utils.py:2328] {text}")
    return lines


def _start_free(truth: Truth, outcome: Outcome) -> float:
    """What vLLM's first snapshot found free: on unified memory what is available on the node."""
    return (truth.memory_total if truth.unified else truth.device_total) - outcome.held


def _capturing(truth: Truth, settings: Settings, outcome: Outcome, *, done: bool) -> list[str]:
    if settings.cudagraph is CudaGraph.NONE:
        return _budget(truth, settings, outcome) if done else []
    count = 35 if done else outcome.captured
    bar = f"Capturing CUDA graphs (PIECEWISE): {int(100 * count / 35):3d}%|███       | {count}/35 [00:03<00:04,  9.40it/s]"
    lines = [WORKER + bar]
    if done:
        lines.append(
            f"{WORKER}{INFO % 40}[gpu_model_runner.py:6661] Graph capturing finished in 12 secs, took {truth.graphs(settings):.2f} GiB"
        )
        lines += _budget(truth, settings, outcome)
    return lines


def _budget(truth: Truth, settings: Settings, outcome: Outcome) -> list[str]:
    """What vLLM says after the capture of how it made its KV cache, where it sized it itself."""
    if settings.kv_cache_bytes is not None:
        return []
    estimate = truth.graphs(settings) * truth.graph_estimate if truth.estimates_graphs else 0.0
    share = settings.gpu_memory_utilization
    peak = truth.activation(settings) + estimate
    consumed = share * truth.device_total - (outcome.kv or 0.0) - peak
    text = (
        f"Free memory on device ({_start_free(truth, outcome):.2f}/{truth.device_total:.2f} GiB) on startup. Desired GPU "
        f"memory utilization is ({share}, {share * truth.device_total:.2f} GiB). Actual usage is {consumed:.2f} GiB for "
        f"consumed memory (weights + non-torch), {peak:.2f} GiB for peak activation, and {truth.graphs(settings):.2f} GiB "
        "for CUDAGraph memory. Replace gpu_memory_utilization config with `--kv-cache-memory=1` (0.00 GiB) to fit into "
        f"requested memory. Current kv cache memory in use is {outcome.kv:.2f} GiB."
    )
    return [f"{WORKER}{INFO % 41}[gpu_worker.py:1034] {text}"]


def _api(_truth: Truth, _settings: Settings, _outcome: Outcome, *, done: bool) -> list[str]:
    text = "init engine (profile, create kv cache, warmup model) took 44.78 s (compilation: 24.84 s)"
    lines = [f"{CORE}{INFO % 45}[core.py:402] {text}"]
    if done:
        lines.append("(APIServer pid=24876) INFO:     Application startup complete.")
    return lines


def _last_words(truth: Truth, settings: Settings, outcome: Outcome) -> list[tuple[str, UnitName | None, str]]:
    """(source, unit, text) of the end."""
    task = "ray::RayWorkerPr" if truth.ray else "VLLM::Worker_TP"
    died = DIED_RAY if truth.ray else DIED_LOCAL
    said: dict[str, tuple[tuple[str, UnitName | None, str], ...]] = {
        "kernel": (("kernel", None, KERNEL.format(task=task)), ("serve log", UnitName.SERVE, died)),
        "driver": (("kernel", None, DRIVER), ("serve log", UnitName.SERVE, died)),
        "guard": (),
        "silent": (),
    }
    if outcome.killer == "ray":
        return [("raylet.out", UnitName.RAY, _ray_report(outcome)), ("serve log", UnitName.SERVE, died)]
    if outcome.killer in said:
        return list(said[outcome.killer])
    return [("serve log", UnitName.SERVE, _error(truth, settings, outcome))]


def _error(truth: Truth, settings: Settings, outcome: Outcome) -> str:
    """The exception of an engine that ended itself."""
    if outcome.killer == "free_check":
        return _raised("ValueError", _free_text(settings, outcome), "request_memory")
    if outcome.killer == "no_kv":
        return _raised("ValueError", NO_BLOCKS, "_check_enough_kv_cache_memory")
    if outcome.killer == "kv_small":
        return _raised("ValueError", _small_text(truth, settings, outcome), "_check_enough_kv_cache_memory")
    if outcome.killer == "profiling_trips":
        text = TRIPS.format(before=outcome.total, after=outcome.free)
        return _raised("AssertionError", text, "determine_available_memory")
    return _torch(outcome)


def _raised(kind: str, text: str, where: str) -> str:
    head = f"{CORE}ERROR 11-30 02:28:27 [core.py:1165] "
    frames = (
        "EngineCore failed to start.",
        "Traceback (most recent call last):",
        '  File "/srv/vllm/v1/engine/core.py", line 1139, in run_engine_core',
        "    engine_core = EngineCoreProc(*args, engine_index=dp_rank, **kwargs)",
        f'  File "/srv/vllm/v1/core/x.py", line 700, in {where}',
        f"{kind}: {text}",
    )
    return "\n".join(head + line for line in frames)


def _free_text(settings: Settings, outcome: Outcome) -> str:
    share = settings.gpu_memory_utilization
    return (
        f"Free memory on device cuda:0 ({outcome.free:.2f}/{outcome.total:.2f} GiB) on startup is less than desired GPU "
        f"memory utilization ({share:g}, {share * outcome.total:.2f} GiB). Decrease GPU memory utilization or reduce GPU "
        "memory used by other processes."
    )


def _small_text(truth: Truth, settings: Settings, outcome: Outcome) -> str:
    length, needed = truth.length(settings), truth.needed_kv(settings)
    fits = int(max(outcome.kv or 0.0, 0.0) / truth.kv_per_1k_tokens * 1024) // 16 * 16
    return (
        f"To serve at least one request with the model's max seq len ({length}), ({needed:.2f} GiB KV cache is needed, "
        f"which is larger than the available KV cache memory ({outcome.kv:.2f} GiB). Based on the available memory, the "
        f"estimated maximum model length is {fits}. Try increasing `gpu_memory_utilization` or decreasing "
        "`max_model_len` when initializing the engine."
    )


def _torch(outcome: Outcome) -> str:
    file, line, where = FRAMES[outcome.phase]
    text = (
        f"CUDA out of memory. Tried to allocate {_amount(outcome.requested)}. GPU 0 has a total capacity of "
        f"{outcome.total:.2f} GiB of which {_amount(outcome.free)} is free. Including non-PyTorch memory, this process has "
        f"{outcome.used * 0.9:.2f} GiB memory in use."
    )
    head = f"{WORKER}ERROR 11-30 02:28:27 [multiproc_executor.py:962] "
    frames = (
        "WorkerProc hit an exception.",
        "Traceback (most recent call last):",
        '  File "/srv/vllm/v1/executor/multiproc_executor.py", line 957, in worker_busy_loop',
        f'  File "/srv/vllm/v1/worker/{file}", line {line}, in {where}',
        f"torch.OutOfMemoryError: {text}",
    )
    relayed = _raised(
        "RuntimeError",
        f"Worker failed with error '{text}', please check the stack trace above for the root cause",
        "get_response",
    )
    return relayed + "\n" + "\n".join(head + line for line in frames)


def _amount(gib: float) -> str:
    return f"{gib:.2f} GiB" if gib >= 1 else f"{gib * 1024:.2f} MiB"


def _ray_report(outcome: Outcome) -> str:
    used, total, limit = (int(value * GIB) for value in (outcome.used, outcome.total, outcome.threshold))
    return f"""[2026-11-30 02:21:51,737 I 24402 24402] (raylet) threshold_memory_monitor.cc:128: Node memory usage above threshold, used: {used}, threshold_bytes: {limit}, total bytes: {total}, threshold fraction: {limit / total:.6f}
[2026-11-30 02:21:51,738 I 24402 24402] (raylet) node_manager.cc:3199: Killing 1 worker(s), kill details: Memory on the node (IP: 10.77.0.1, ID: 0c167e25dfbce52e70092f6644f2aab95373e93573c4aab5b955d8cb) was {outcome.used:.2f}GB used / {outcome.total:.2f}GB limit ({outcome.used / outcome.total:.6f})
OOM kill reason: Memory usage {used}B exceeded threshold of {limit}B ({100 * limit / total:.1f}% of {total}B limit)
Object store memory usage: [- objects spillable: 0
- bytes spillable: 0]
Ray killed 1 worker(s) based on the killing policy
Considered workers: [
Selected to kill: (Actor(be77b582e9077db236df676301000000): job ID=01000000, lease ID=01000000e99690684e7e5321, task name=vllm_Worker_1796005128289922256_TP0:RayWorkerProc.__init__, required resources={{GPU: 1}}, pid=9635, actual memory used=1.44GB, worker ID=e5ce6fb41263e1a4)
]
Top 10 memory users: PID	MEM(GB)	COMMAND
26543	{1.57:.2f}	ray::RayWorkerProc.run
 suggestions: Refer to the documentation on how to address the out of memory issue: https://docs.ray.io/en/latest/."""
