"""Lines of real starts, and the phases that they are known to have gone through."""

import itertools
import pathlib

import pytest

from sparkd.engines.lines import OTHER_TEXTS, PHASE_TEXTS, read_line
from sparkd.engines.model import LineFact
from sparkd.words import GIB, Phase, Sizes

DATA = pathlib.Path(__file__).parent / "data"
STARTED = ["resolving_config", "init_distributed", "loading_weights"]
# As printed. Ray holds lines of other ranks back, so phases of the GPU start come a second time.
TRUTH = {
    "vllm_032_ray_two_nodes": [*STARTED, "allocating_kv_cache", "starting_api"],
    "vllm_032_mp_head": [*STARTED, "allocating_kv_cache", "starting_api"],
    "vllm_032_mp_headless": [*STARTED, "allocating_kv_cache"],
    "vllm_032_compiling": [*STARTED, "compiling", "profiling", "allocating_kv_cache", "starting_api"],
    "vllm_022_gpu": [
        *STARTED,
        "compiling",
        "profiling",
        "allocating_kv_cache",
        "capturing_graphs",
        "starting_api",
    ],
}
LATE = {"vllm_022_gpu": ["init_distributed", "compiling", "profiling", "capturing_graphs"]}


def facts(name):
    lines = (DATA / f"{name}.txt").read_text(encoding="utf-8").splitlines()
    return [fact for fact in map(read_line, lines) if fact is not None]


@pytest.mark.parametrize("name", TRUTH)
def test_phases_in_order(name):
    seen = [str(phase) for phase, _ in itertools.groupby(fact.phase for fact in facts(name) if fact.phase)]
    first = list(dict.fromkeys(seen))
    assert first == TRUTH[name]
    assert len(seen) - len(first) == len(LATE.get(name, []))


@pytest.mark.parametrize("name", [name for name in TRUTH if not name.endswith("headless")])
def test_ready_once_and_last(name):
    found = facts(name)
    assert found[-1] == LineFact(phase=Phase.STARTING_API, port_ready=True)
    assert [fact.port_ready for fact in found].count(True) == 1


def test_shards():
    found = [(fact.done, fact.total) for fact in facts("vllm_032_22_shards") if fact.total]
    assert found == [(0, 22), (5, 22), (10, 22), (15, 22), (20, 22), (22, 22)]


def test_captured_sizes():
    found = [fact for fact in facts("vllm_022_gpu") if fact.phase is Phase.CAPTURING_GRAPHS and fact.total]
    assert found[0].done == 0
    assert {fact.total for fact in found} == {51}
    assert [fact.done for fact in found].count(51) == 3


def test_kv_cache():
    assert [fact.kv_cache_bytes for fact in facts("vllm_022_gpu") if fact.kv_cache_bytes] == [
        round(65.74 * GIB)
    ]
    pinned = facts("vllm_022_serving")[0]
    assert (pinned.phase, pinned.kv_cache_bytes) == (Phase.ALLOCATING_KV_CACHE, 4 * GIB)
    assert pinned.sizes is not None
    assert pinned.sizes.start_free_bytes == 145781927444
    assert [fact.kv_cache_bytes for fact in facts("vllm_032_ray_two_nodes") if fact.kv_cache_bytes] == [GIB]


def test_kv_cache_that_does_not_fit():
    fact = read_line("(Worker_TP0 pid=9) INFO 11-30 [gpu_worker.py:760] Available KV cache memory: -2.26 GiB")
    assert fact is not None
    assert fact.kv_cache_bytes == round(-2.26 * GIB)


def test_throughput():
    rates = [fact.rate_tok_s for fact in facts("vllm_022_serving") if fact.rate_tok_s is not None]
    assert rates[:3] == [493.7, 0.0, 672.7]


def test_bars_of_the_newer_runner():
    bar = "Capturing CUDA graphs (FULL):  33%|███▎      | 17/51 [00:02<00:04,  8.20it/s]"
    assert read_line(bar) == LineFact(phase=Phase.CAPTURING_GRAPHS, done=17, total=51)
    bar = "Capturing prefill CUDA graphs:  50%|█████     | 4/8 [00:02<00:04,  8.20it/s]"
    assert read_line(bar) == LineFact(phase=Phase.CAPTURING_GRAPHS, done=4, total=8)
    bar = "Multi-thread loading shards:   5% Completed | 2/39 [00:36<11:06, 18.01s/it]"
    assert read_line(bar) == LineFact(phase=Phase.LOADING_WEIGHTS, done=2, total=39)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\x00\ufffd",
        '(APIServer pid=1) INFO:     127.0.0.1:57456 - "POST /v1/completions HTTP/1.1" 200 OK',
        "(APIServer pid=1) INFO Received request cmpl-1: prompt: 'Application startup complete.'",
        "(APIServer pid=1) INFO Received request cmpl-1: prompt: 'Starting to load model x'",
        "WARNING [vllm.py:1703] Enforce eager set, disabling torch.compile, CUDAGraphs, and JIT warmup.",
        "RuntimeError: CUDA graphs cannot be captured",
        "Application startup complete. Or so they say",
        "Avg generation throughput: unknown tokens/s",
    ],
)
def test_says_nothing(text):
    assert read_line(text) is None


def test_table_has_no_text_twice():
    texts = [text for text, _ in (*PHASE_TEXTS, *OTHER_TEXTS)]
    assert len(set(texts)) == len(texts)


@pytest.mark.parametrize(
    ("text", "fact"),
    [
        (
            "Model loading took 14.99 GiB memory and 5.312 seconds",
            LineFact(Phase.LOADING_WEIGHTS, weights_bytes=round(14.99 * GIB)),
        ),
        (
            "Model loading took 61.5 GiB and 700.1 seconds",
            LineFact(Phase.LOADING_WEIGHTS, weights_bytes=round(61.5 * GIB)),
        ),
        (
            "Loading model weights took 7.6 GB",
            LineFact(Phase.LOADING_WEIGHTS, weights_bytes=round(7.6 * GIB)),
        ),
        (
            "GPU KV cache size: 390,528 tokens, Maximum concurrency for 32,768 tokens per request: 11.92x",
            LineFact(Phase.ALLOCATING_KV_CACHE, request_tokens=32768, requests=11.92),
        ),
    ],
)
def test_sizes_are_read(text: str, fact: LineFact) -> None:
    assert read_line(text) == fact


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        (
            "Filesystem type for checkpoints: EXT4. Checkpoint size: 148.00 GiB. Available RAM: 90.00 GiB.",
            Sizes(checkpoint_bytes=148 * GIB),
        ),
        ("Estimated CUDA graph memory: 0.50 GiB total", Sizes(graphs_bytes=GIB // 2)),
        ("Estimated CUDA graph memory: -0.25 GiB total", Sizes(graphs_bytes=0)),
        ("CUDA graph memory profiling is enabled (default since v0.21.0). The", Sizes(graphs_counted=True)),
        ("CUDA graph memory profiling is disabled (VLLM_MEMORY_PROFILER", Sizes(graphs_counted=False)),
        ("Graph capturing finished in 12 secs, took 1.50 GiB", Sizes(captured_bytes=3 * GIB // 2)),
        (
            "Free memory on device (112.00/119.50 GiB) on startup. Desired GPU memory utilization is (0.9",
            Sizes(start_free_bytes=112 * GIB, device_bytes=239 * GIB // 2),
        ),
    ],
)
def test_what_the_engine_says_of_its_memory(text: str, sizes: Sizes) -> None:
    fact = read_line(f"(Worker_TP0 pid=9) INFO 11-30 [gpu_worker.py:760] {text}")
    assert fact is not None
    assert fact.sizes == sizes


def test_news_of_sizes_add_to_what_is_known_and_unknown_takes_nothing_away() -> None:
    known = Sizes(checkpoint_bytes=GIB, graphs_counted=True).with_news(Sizes(graphs_counted=False))
    assert known == Sizes(checkpoint_bytes=GIB, graphs_counted=False)
    assert known.with_news(None) == known


@pytest.mark.parametrize(
    "text",
    [
        "Avg generation throughput: ... tokens/s",
        "Available KV cache memory: . GiB",
        "Available KV cache memory: 1.2.3 GiB",
        f"Available KV cache memory: {'9' * 400} GiB",
        f"Model loading took {'9' * 400} GiB",
        "Maximum concurrency for , tokens per request: 2.0x",
        f"Maximum concurrency for {'9' * 5000} tokens per request: 2.0x",
        f"Loading safetensors checkpoint shards: 1% |# | {'1' * 5000}/{'9' * 5000} [00:01",
        "Graph capturing finished in 3 secs, took -. GiB",
        "Checkpoint size: .. GiB",
        "Free memory on device cuda:0 (./. GiB) on startup. Desired GPU",
    ],
)
def test_a_number_that_nobody_can_read_is_no_fact_and_no_error(text: str) -> None:
    fact = read_line(text)
    assert fact is None or (fact.rate_tok_s, fact.kv_cache_bytes, fact.done) == (None, None, None)
