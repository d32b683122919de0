"""Whole logs without a daemon: phases are followed, unknown exceptions are evidence, bursts count."""

from __future__ import annotations

import time

import pytest

from sparkd.engines.lines import read_line
from sparkd.signals.assess import Assessment, assess
from sparkd.signals.catalogue import packaged_catalogue
from sparkd.signals.exceptions import raised_in
from sparkd.signals.frames import phase_of
from sparkd.signals.match import Places
from sparkd.signals.model import Record
from sparkd.signals.precedence import BURST
from sparkd.words import Phase

CATALOGUE = packaged_catalogue()
DRIVER = (
    "NVRM: nvCheckOkFailedNoLog: Check failed: Out of memory [NV_ERR_NO_MEMORY] (0x00000051) returned from x"
)
PRESSURE = "Under memory pressure, flushing caches."
WAITS = "No available shared memory broadcast block found in 60 seconds. This typically happens when"
LOADS = "Loading safetensors checkpoint shards:  40% Completed | 8/20 [01:44<02:36, 13.0s/it]"
READY = "INFO:     Application startup complete."
RATE = "Engine 000: Avg generation throughput: 21.0 tokens/s, Running: 1 reqs"
DIED = "Worker proc VllmWorker-1 died unexpectedly, shutting down executor."
CONFIG = "Resolved architecture: Qwen3ForCausalLM"


def assessed(*texts: str, node: str = "a", level: str = "") -> Assessment:
    records = [Record("log", node, text, level=level) for text in texts]
    return assess(records, CATALOGUE, read_line=read_line)


@pytest.mark.parametrize(
    ("lines", "phase"),
    [
        ([DIED], None),
        ([LOADS, DIED], Phase.LOADING_WEIGHTS),
        ([LOADS, READY, DIED], Phase.SERVING),
        ([LOADS, RATE, DIED, LOADS], Phase.SERVING),
        ([READY, DIED, CONFIG, LOADS], Phase.SERVING),
        ([READY, CONFIG, LOADS, DIED], Phase.LOADING_WEIGHTS),
        (['INFO:     10.0.0.8:1 - "POST /v1/completions HTTP/1.1" 200 OK', DIED], Phase.SERVING),
    ],
)
def test_the_phase_is_the_last_before_the_trouble(lines: list[str], phase: Phase | None) -> None:
    found = assessed(*lines).diagnosis
    assert (found.cause, found.phase) == ("worker_process_died", phase)


def test_a_ranks_late_lines_do_not_lead_back() -> None:
    late = Record("log", "a", "Starting to load model /srv/m...", address="10.77.0.2")
    records = [Record("log", "a", LOADS), Record("log", "a", READY), late, Record("log", "a", DIED)]
    assert assess(records, CATALOGUE, read_line=read_line).diagnosis.phase is Phase.SERVING


@pytest.mark.parametrize(
    ("lines", "cause"),
    [
        ([LOADS, WAITS, LOADS], "none"),
        ([LOADS, WAITS, READY], "none"),
        ([READY, WAITS], "none"),
        ([READY, WAITS, WAITS], "engine_hang"),
        ([READY, WAITS, WAITS, "Avg generation throughput: 0.0 tokens/s, Running: 1 reqs"], "engine_hang"),
        ([READY, WAITS, WAITS, RATE], "none"),
        ([READY, WAITS, WAITS, RATE, WAITS], "none"),
        ([WAITS], "unknown"),
        ([WAITS, "INFO:     Shutting down"], "clean_shutdown"),
        ([READY, WAITS, "TimeoutError: RPC call to execute_model timed out."], "engine_hang"),
    ],
)
def test_the_same_line_is_healthy_in_one_phase_and_a_hang_in_another(lines: list[str], cause: str) -> None:
    assert assessed(*lines).diagnosis.cause == cause


LOOPBACK = (
    "[W1130 01:52:07.1 ProcessGroupGloo.cpp:512] Warning: Unable to resolve hostname to a (local) address. "
    "Using the loopback address as fallback."
)
FORWARDED = "(RayWorkerWrapper pid=1978, ip=10.77.0.2) " + LOOPBACK


@pytest.mark.parametrize(
    ("lines", "cause"),
    [
        ([LOOPBACK], "none"),
        ([LOOPBACK, "[Gloo] Rank 0 is connected to 0 peer ranks."], "none"),
        ([LOOPBACK, LOADS], "none"),
        ([LOOPBACK, READY, "INFO:     Shutting down"], "clean_shutdown"),
        ([LOOPBACK, "INFO:     Shutting down"], "clean_shutdown"),
        ([FORWARDED, "INFO:     Shutting down"], "clean_shutdown"),
        ([FORWARDED, LOADS], "none"),
        ([FORWARDED], "gloo_connect_failure"),
    ],
)
def test_a_fallback_that_hurts_nobody_is_no_cause(lines: list[str], cause: str) -> None:
    records = [Record("log", "", line) for line in lines]
    assert assess(records, CATALOGUE, Places(open=True), read_line).diagnosis.cause == cause


@pytest.mark.parametrize(
    ("lines", "cause", "confident"),
    [
        ([DRIVER], "none", True),
        ([DRIVER] * BURST, "uma_host_exhaustion", False),
        ([DRIVER, PRESSURE], "uma_host_exhaustion", True),
        ([*[DRIVER] * BURST, "RuntimeError: CUDA error: out of memory"], "cuda_oom", True),
    ],
)
def test_a_lone_line_of_the_driver_is_harmless(lines: list[str], cause: str, *, confident: bool) -> None:
    found = assessed(*lines).diagnosis
    assert (found.cause, found.confidence > 0.9) == (cause, confident)


TRACE = 'Traceback (most recent call last):\n  File "/x/gpu_worker.py", line 7, in {}\n    call()\n{}'


def test_an_exception_that_nobody_knows_is_unknown_and_quoted() -> None:
    found = assessed(
        "EngineCore failed to start.\n" + TRACE.format("load_model", "KeyError: 'layers.0'"),
        "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}",
    )
    assert (found.diagnosis.cause, found.diagnosis.confidence) == ("unknown", 0.0)
    assert found.diagnosis.phase is Phase.LOADING_WEIGHTS
    assert "KeyError: 'layers.0'" in found.diagnosis.explanation
    assert found.diagnosis.candidates
    assert "would decide" in found.diagnosis.advice


def test_frames_line_by_line_tell_the_phase() -> None:
    lines = TRACE.format("determine_available_memory", "RuntimeError: CUDA error: out of memory").split("\n")
    found = assessed(*lines).diagnosis
    assert (found.cause, found.phase) == ("cuda_oom", Phase.PROFILING)


@pytest.mark.parametrize(
    ("text", "raised"),
    [
        ("KeyError: 'a'", "KeyError: 'a'"),
        ("[rank0]: torch.x.SomeError", "torch.x.SomeError"),
        ("ray.exceptions.RayTaskError(ValueError): ray::W.x() (pid=1)", "ValueError: ray::W.x() (pid=1)"),
        ("grpc._channel.ServiceUnavailable: gone", "grpc._channel.ServiceUnavailable: gone"),
        ("psutil.BusFault: at 0x0", "psutil.BusFault: at 0x0"),
        ("EngineDeadError: EngineCore encountered an issue.", None),
        ("RuntimeError: cancelled", None),
        ("an Error: nothing", None),
        ("INFO nothing wrong", None),
    ],
)
def test_what_counts_as_an_exception(text: str, raised: str | None) -> None:
    assert raised_in(text) == raised


@pytest.mark.parametrize(
    ("names", "phase"),
    [
        (["_initialize_kv_caches", "determine_available_memory", "profile_run"], Phase.PROFILING),
        (["compile_or_warm_up_model", "capture_model"], Phase.CAPTURING_GRAPHS),
        (["determine_available_memory", "profile_cudagraph_memory", "capture_model"], Phase.PROFILING),
        (["profile_run", "compile_fx_inner"], Phase.COMPILING),
        (["init_device", "init_worker_distributed_environment"], Phase.INIT_DISTRIBUTED),
        (["run_busy_loop", "execute_model"], Phase.SERVING),
        (["main"], None),
    ],
)
def test_the_innermost_function_that_tells_wins(names: list[str], phase: Phase | None) -> None:
    text = "\n".join(f'  File "/srv/{name}.py", line 3, in {name}' for name in names)
    assert phase_of(text) is phase
    assert phase_of(text.replace(", in ", " in ")) is phase


def test_a_report_keeps_its_meaning_beside_a_harmless_line() -> None:
    leak = "resource_tracker: There appear to be 1 leaked shared_memory objects"
    found = assessed(f"EngineCore failed to start.\nRuntimeError: CUDA error: out of memory\n{leak}")
    assert found.diagnosis.cause == "cuda_oom"
    assert assessed(leak).noise_count == 1


def test_repeats_are_bounded_and_the_first_counts() -> None:
    found = assessed(*[DIED] * 1000)
    assert len(found.weighed) < 20
    assert found.weighed[0].verdict == "root"
    assert {w.verdict for w in found.weighed[1:]} == {"support"}


def test_ugly_text_takes_no_time() -> None:
    ugly = ["A" * 16000 + "Erro", "a." * 8000, "Error: " + "]> " * 5000, "[" * 16000 + "Error"]
    begun = time.perf_counter()
    assessed(*ugly)
    assert time.perf_counter() - begun < 2.0


def test_a_stop_of_an_earlier_start_explains_nothing_of_this_one() -> None:
    stop = "[shutdown] API server: shutdown triggered"
    oom = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB."
    assert assessed(CONFIG, LOADS, READY, stop, CONFIG, LOADS, oom).diagnosis.cause == "cuda_oom"
    assert assessed(CONFIG, LOADS, READY, stop, oom).diagnosis.cause == "clean_shutdown"
    assert assessed(CONFIG, LOADS, READY, stop).diagnosis.cause == "clean_shutdown"


def test_errors_that_nobody_knows_are_told_apart_by_their_nodes() -> None:
    """Two nodes in one file: what the one says last does not hide that the other went on after its own."""
    error = "a thing of which nobody knows happened"
    records = [
        Record("journal", "a", error, at_s=1.0, level="ERROR"),
        Record("journal", "b", f"{error} again", at_s=2.0, level="ERROR"),
    ]
    quotes = {w.signal.quote for w in assess(records, CATALOGUE, read_line=read_line).weighed}
    assert quotes == {error, f"{error} again"}
