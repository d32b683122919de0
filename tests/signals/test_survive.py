"""What an engine lived through is no cause; what ended it stays one, whatever its API server still prints."""

from __future__ import annotations

import pytest

from sparkd.engines.lines import read_line
from sparkd.signals.assess import assess
from sparkd.signals.catalogue import packaged_catalogue
from sparkd.signals.model import Record

CATALOGUE = packaged_catalogue()
READY = "INFO:     Application startup complete."
ANSWER = 'INFO:     10.0.0.8:1 - "POST /v1/chat/completions HTTP/1.1" 200 OK'
RATE = "Engine 000: Avg generation throughput: 21.0 tokens/s, Running: 1 reqs"
DIED = "Worker proc VllmWorker-1 died unexpectedly, shutting down executor."
CORE = "EngineCore encountered a fatal error.\nTraceback (most recent call last):\nKeyError: 'a'"
CONFIG = "Resolved architecture: Qwen3ForCausalLM"
PASSED = [
    "ValueError: This model's maximum context length is 2048 tokens. However, you requested 5000 tokens",
    "FileNotFoundError: [Errno 2] No such file or directory: '/x.png'",
    "python3[811]: segfault at 18 ip 00007f1c4a2b1c3d sp 00007ffd2c error 4 in libc.so.6[7f1c4a000000+b]",
    "NVRM: Xid (PCI:000f:01:00): 13, pid=4711, name=python3, Graphics Exception",
    "OSError: [Errno 98] Address already in use",
    "Error in inspecting model architecture 'Qwen3ForCausalLM'",
]


def cause(*timed: tuple[float, str, str]) -> str:
    records = [Record(source, "a", text, at_s=at_s) for at_s, source, text in timed]
    return assess(records, CATALOGUE, read_line=read_line).diagnosis.cause


@pytest.mark.parametrize("text", PASSED)
@pytest.mark.parametrize("work", [ANSWER, READY])
def test_work_acquits_what_was_said_before_it(text: str, work: str) -> None:
    assert cause((0.0, "log", CONFIG), (1.0, "log", text), (20.0, "log", work)) == "none"


def test_a_rate_tells_of_the_seconds_before_it() -> None:
    segfault = PASSED[2]
    assert cause((0.0, "log", segfault), (3.0, "log", RATE)) == "worker_process_died"
    assert cause((0.0, "log", segfault), (3.0, "log", RATE), (13.5, "log", RATE)) == "none"


def test_the_clocks_of_two_logs_are_no_order() -> None:
    assert cause((0.0, "kernel", PASSED[2]), (3.0, "log", ANSWER)) == "worker_process_died"
    assert cause((0.0, "kernel", PASSED[2]), (30.0, "log", ANSWER)) == "none"


def test_what_the_engine_says_of_its_end_is_not_acquitted() -> None:
    assert cause((0.0, "log", DIED), (1.0, "log", ANSWER)) == "worker_process_died"
    assert cause((0.0, "log", CORE), (1.0, "log", ANSWER)) != "none"


@pytest.mark.parametrize(
    "text",
    [
        "thermal thermal_zone0: critical temperature reached, shutting down",
        "reboot: HARDWARE PROTECTION shutdown (Temperature too high)",
    ],
)
def test_what_still_answers_on_a_node_that_shuts_itself_down_acquits_nothing(text: str) -> None:
    works = [(20.0, "log", ANSWER), (21.0, "log", RATE), (40.0, "log", RATE)]
    assert cause((0.0, "log", RATE), (1.0, "kernel", text), *works) == "host_overheated"


RAY_KILL = (
    "Killing 1 worker(s), kill details: Memory on the node (IP: 10.77.0.1, ID: d9) was 9.48GB used / 23.54GB "
    "limit (0.402601) OOM kill reason: Memory usage 10123583488B exceeded threshold of 10110426112B (40.0% "
    "of 25276063744B limit)"
)


def test_a_kill_minutes_before_the_last_work_ended_something_else() -> None:
    died = (200.0, "log", DIED)
    assert cause((199.0, "raylet", RAY_KILL), (150.0, "log", ANSWER), died) == "ray_oom_kill"
    assert cause((0.0, "raylet", RAY_KILL), (150.0, "log", ANSWER), died) == "worker_process_died"
    assert cause((0.0, "raylet", RAY_KILL), (30.0, "log", ANSWER), died) == "ray_oom_kill"


def test_what_ended_an_earlier_start_stays_until_a_later_one_has_served() -> None:
    failed = [(0.0, "log", CONFIG), (0.5, "log", READY), (1.0, "log", PASSED[5])]
    assert cause(*failed, (2.0, "log", CONFIG)) == "broken_install"
    assert cause(*failed, (2.0, "log", CONFIG), (9.0, "log", READY)) == "none"


def test_the_tail_of_a_stop_is_a_stop() -> None:
    dead = (
        "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace (above)"
    )
    stopped = "[shutdown] API server: engine client stopped"
    assert cause((0.0, "log", dead), (0.1, "log", stopped)) == "clean_shutdown"
    assert cause((0.0, "log", DIED), (0.1, "log", dead), (0.2, "log", stopped)) == "worker_process_died"


MEETS = "world_size=2 rank=0 local_rank=0 distributed_init_method=tcp://{}:29501 backend=gloo"
SPREAD = (0.0, "a.log", MEETS.format("10.77.0.1"))
ALONE = (0.0, "a.log", MEETS.format("127.0.0.1"))
WAITS = (60.0, "a.log", "TimeoutError: RPC call to execute_model timed out.")


def test_a_spread_engine_that_waits_for_a_killed_node_lost_it() -> None:
    killed = (5.0, "b.log", "# EXIT CODE 137")
    assert cause(SPREAD, killed, WAITS) == "peer_lost"
    assert cause(ALONE, killed, WAITS) == "engine_hang"


def test_without_a_word_of_the_other_node_nothing_tells_a_hang_from_a_loss() -> None:
    records = [Record(source, "a", text, at_s=at_s) for at_s, source, text in (SPREAD, WAITS)]
    found = assess(records, CATALOGUE, read_line=read_line).diagnosis
    assert (found.cause, found.candidates[:2]) == ("unknown", ("engine_hang", "peer_lost"))
    assert "hangs" in found.explanation
    assert cause(ALONE, WAITS) == "engine_hang"
    # Another node that speaks afterwards was there; Ray tells of those that are not.
    closed = "recvValue failed on SocketImpl(fd=79): Failed to recv, got 0 bytes"
    assert cause(SPREAD, WAITS, (61.0, "b.log", closed)) == "engine_hang"
    ray = "Connected to Ray cluster."
    assert cause(SPREAD, (1.0, "a.log", ray), WAITS) == "engine_hang"


MODULE = "ModuleNotFoundError: No module named 'pandas'"
GAVE_UP = "vllm-1 exited with code 1"


def test_what_only_a_start_can_end_of_does_not_end_an_engine_that_served() -> None:
    served = [(0.0, "log", CONFIG), (1.0, "log", READY), (2.0, "log", RATE)]
    assert cause(*served, (20.0, "log", MODULE)) == "unknown"
    # Unless the engine then ends, or began anew, or it is another log's.
    assert cause(*served, (20.0, "log", MODULE), (21.0, "log", CORE)) == "missing_python_dependency"
    assert cause(*served, (20.0, "log", MODULE), (21.0, "log", GAVE_UP)) == "missing_python_dependency"
    assert cause(*served, (19.0, "log", CONFIG), (20.0, "log", MODULE)) == "missing_python_dependency"
    assert cause(*served, (20.0, "other log", MODULE)) == "missing_python_dependency"
    # What can go wrong later, too, and a port, which is taken after the server says that it is up.
    full = "OSError: [Errno 28] No space left on device: '/var/cache/vllm/x'"
    assert cause(*served, (20.0, "log", full)) == "disk_full"
    assert cause(*served, (20.0, "log", PASSED[4])) == "port_in_use"


def test_a_service_that_answers_again_was_only_starting() -> None:
    down, up = "+4s /api/gcs_healthz 503 1.3s", "+9s /api/gcs_healthz 200 0.004s"
    assert cause((0.0, "watch", down)) == "ray_gcs_unreachable"
    assert cause((0.0, "watch", down), (5.0, "watch", up)) == "none"
    assert cause((0.0, "watch", up), (5.0, "watch", down)) == "ray_gcs_unreachable"


@pytest.mark.parametrize("lived", [7, 8, 9, 50])
def test_the_last_of_many_is_the_one_that_counts(lived: int) -> None:
    oom = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB."
    times = [(100.0 * n, "log", text) for n in range(lived) for text in (oom, RATE)]
    rates = [(100.0 * n + after, "log", RATE) for n in range(lived) for after in (30.0, 60.0)]
    start = [(-9.0, "log", CONFIG), (-8.0, "log", READY)]
    passed = sorted([*times, *rates], key=lambda row: row[0])
    end = (
        100.0 * lived,
        "log",
        f"EngineCore encountered a fatal error.\nTraceback (most recent call last):\n{oom}",
    )
    assert cause(*start, *passed) == "none"
    assert cause(*start, *passed, end) == "cuda_oom"


OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB."
KV = "Available KV cache memory: {0} GiB"


@pytest.mark.parametrize(
    ("first", "second", "expected"), [("40.0", "65.7", 40.0), ("", "65.7", None), ("40.0", "40.0", 40.0)]
)
def test_the_numbers_of_a_failed_run_are_its_own(first: str, second: str, expected: float | None) -> None:
    loading = "Starting to load model /srv/models/m..."
    texts = [CONFIG, KV.format(first) if first else loading, OOM, CONFIG, KV.format(second)]
    records = [Record("log", "a", text, at_s=20.0 * at) for at, text in enumerate(texts)]
    found = assess(records, CATALOGUE, read_line=read_line).diagnosis
    size = found.quantity("kv_cache_bytes")
    assert (found.cause, size and size / (1 << 30)) == ("cuda_oom", expected and pytest.approx(expected))
    last = [CONFIG, KV.format(second), READY, CONFIG, KV.format("40.0"), OOM]
    records = [Record("log", "a", text, at_s=20.0 * at) for at, text in enumerate(last)]
    size = assess(records, CATALOGUE, read_line=read_line).diagnosis.quantity("kv_cache_bytes")
    assert size == pytest.approx(40.0 * (1 << 30))
