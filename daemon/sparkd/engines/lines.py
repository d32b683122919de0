"""What a line of the engine's output means for the phase, as data.

Rules of this file:
- Match on text, never on a file's line number: those change with every release.
- A line tells only what it says. Lines come late and out of order through Ray; who folds them decides.
- Most lines say nothing: finding that out costs a few substring searches and no regular expression.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from sparkd.engines.model import LineFact
from sparkd.words import GIB, Phase, Sizes

# (text, phase), vLLM 0.6 to 0.32, in the order of a start; the first text that is in the line counts.
PHASE_TEXTS: tuple[tuple[str, Phase], ...] = (
    ("Initializing a V1 LLM engine", Phase.INIT_DISTRIBUTED),
    ("Initializing a V0 LLM engine", Phase.INIT_DISTRIBUTED),
    ("Initializing an LLM engine (v", Phase.INIT_DISTRIBUTED),
    ("non-default args: {", Phase.RESOLVING_CONFIG),
    ("Resolved architecture: ", Phase.RESOLVING_CONFIG),
    ("Using max model len ", Phase.RESOLVING_CONFIG),
    ("Connecting to existing Ray cluster", Phase.INIT_DISTRIBUTED),
    ("Connected to Ray cluster", Phase.INIT_DISTRIBUTED),
    ("Creating a new placement group", Phase.INIT_DISTRIBUTED),
    ("Waiting for creating a placement group", Phase.INIT_DISTRIBUTED),
    ("DP group leader: node_rank=", Phase.INIT_DISTRIBUTED),
    ("headless multiproc executor, with head node", Phase.INIT_DISTRIBUTED),
    (" distributed_init_method=", Phase.INIT_DISTRIBUTED),
    (" is assigned as DP rank ", Phase.INIT_DISTRIBUTED),
    ("vLLM is using nccl==", Phase.INIT_DISTRIBUTED),
    ("Starting to load model ", Phase.LOADING_WEIGHTS),
    (" Checkpoint size: ", Phase.LOADING_WEIGHTS),
    ("Loading weights took ", Phase.LOADING_WEIGHTS),
    ("Model loading took ", Phase.LOADING_WEIGHTS),
    ("Loading model weights took ", Phase.LOADING_WEIGHTS),
    ("Dynamo bytecode transform time", Phase.COMPILING),
    ("Cache the graph of compile range", Phase.COMPILING),
    ("Compiling a graph for compile range", Phase.COMPILING),
    ("torch.compile took ", Phase.COMPILING),
    ("saved AOT compiled function to ", Phase.COMPILING),
    ("Directly load AOT compilation from ", Phase.COMPILING),
    ("Directly load the compiled graph(s)", Phase.COMPILING),
    ("Warming up model for the compilation", Phase.COMPILING),
    ("Initial profiling/warmup run took ", Phase.PROFILING),
    ("Profiling CUDA graph memory: ", Phase.PROFILING),
    ("Estimated CUDA graph memory: ", Phase.PROFILING),
    ("Memory profiling takes ", Phase.PROFILING),
    ("PU KV cache size: ", Phase.ALLOCATING_KV_CACHE),
    ("# GPU blocks: ", Phase.ALLOCATING_KV_CACHE),
    ("Capturing the model for CUDA graphs", Phase.CAPTURING_GRAPHS),
    ("Capturing cudagraphs for decoding", Phase.CAPTURING_GRAPHS),
    ("Graph capturing finished in ", Phase.CAPTURING_GRAPHS),
    ("CUDA graph pool memory: ", Phase.CAPTURING_GRAPHS),
    ("init engine (profile, create kv cache", Phase.STARTING_API),
    ("Starting vLLM server on ", Phase.STARTING_API),
    ("Available routes are:", Phase.STARTING_API),
    ("Started server process [", Phase.STARTING_API),
    ("Waiting for application startup.", Phase.STARTING_API),
)
# The same of SGLang 0.4 to 0.5, for logs that somebody gives.
OTHER_TEXTS: tuple[tuple[str, Phase], ...] = (
    ("Init torch distributed begin", Phase.INIT_DISTRIBUTED),
    ("Load weight begin", Phase.LOADING_WEIGHTS),
    ("Load weight end", Phase.LOADING_WEIGHTS),
    ("KV Cache is allocated", Phase.ALLOCATING_KV_CACHE),
    ("Memory pool end", Phase.ALLOCATING_KV_CACHE),
    ("Capture cuda graph begin", Phase.CAPTURING_GRAPHS),
    ("Capture cuda graph end", Phase.CAPTURING_GRAPHS),
)
# A logged request quotes what a user wrote: nothing in it is the engine's word.
QUOTING = ("Received request ", "Generated response ")

Reader = Callable[[str], LineFact | None]

# Every number is one that can be read, and of a size that a machine can have.
_N = r"\d{1,6}(?:\.\d{1,20})?"
_BAR = re.compile(r"\|\s*(\d{1,9})/(\d{1,9}) \[")
_KV = re.compile(rf"Available KV cache memory: (-?{_N}) GiB")
_KV_PINNED = re.compile(rf"reserved ({_N}) GiB memory for KV Cache")
_KV_CPU = re.compile(rf"\(({_N})/{_N}\) GiB for KV cache")
# vLLM prints GiB here, and has called them GB.
_WEIGHTS = re.compile(rf"(?:Model loading|Loading model weights) took ({_N}) Gi?B")
_REQUESTS = re.compile(rf"Maximum concurrency for (\d[\d,]{{0,13}}) tokens per request: ({_N})x")
_CHECKPOINT = re.compile(rf"Checkpoint size: ({_N}) GiB")
_ESTIMATED = re.compile(rf"Estimated CUDA graph memory: (-?{_N}) GiB total")
_CAPTURED = re.compile(rf"Graph capturing finished in .* took (-?{_N}) GiB")
_START_FREE = re.compile(rf"Initial free memory ({_N}) GiB, reserved")
_BUDGET = re.compile(rf"Free memory on device [^(]*\(({_N})/({_N}) GiB\) on startup\. Desired ")
_RATE = re.compile(rf"Avg generation throughput: ({_N}) tokens/s")


def _bar(phase: Phase) -> Reader:
    """A bar's line has its numbers; the same words elsewhere show no progress."""

    def read(text: str) -> LineFact | None:
        found = _BAR.search(text)
        return LineFact(phase=phase, done=int(found[1]), total=int(found[2])) if found else None

    return read


def _kv_cache(pattern: re.Pattern[str]) -> Reader:
    """Bytes of one rank, from GiB with two digits; negative where nothing is left."""

    def read(text: str) -> LineFact | None:
        found = pattern.search(text)
        if found is None:
            return None
        return LineFact(phase=Phase.ALLOCATING_KV_CACHE, kv_cache_bytes=round(float(found[1]) * GIB))

    return read


def _weights(text: str) -> LineFact | None:
    found = _WEIGHTS.search(text)
    if found is None:
        return None
    return LineFact(phase=Phase.LOADING_WEIGHTS, weights_bytes=round(float(found[1]) * GIB))


def _requests(text: str) -> LineFact | None:
    found = _REQUESTS.search(text)
    if found is None:
        return None
    tokens, requests = int(found[1].replace(",", "")), float(found[2])
    return LineFact(phase=Phase.ALLOCATING_KV_CACHE, request_tokens=tokens, requests=requests)


def _size(pattern: re.Pattern[str], phase: Phase, made: Callable[[int], Sizes]) -> Reader:
    """One amount that the engine prints in GiB; negative ones are noise of its measuring."""

    def read(text: str) -> LineFact | None:
        found = pattern.search(text)
        if found is None:
            return None
        return LineFact(phase=phase, sizes=made(max(0, round(float(found[1]) * GIB))))

    return read


def _kv_pinned(text: str) -> LineFact | None:
    """A cache of fixed size: the line also tells what was free at the start."""
    fact, free = _kv_cache(_KV_PINNED)(text), _START_FREE.search(text)
    if fact is None or free is None:
        return fact
    return replace(fact, sizes=Sizes(start_free_bytes=round(float(free[1]) * GIB)))


def _budget(text: str) -> LineFact | None:
    """After the capture: what was free at the start, and of what."""
    found = _BUDGET.search(text)
    if found is None:
        return None
    free, total = (round(float(value) * GIB) for value in found.groups())
    sizes = Sizes(start_free_bytes=free, device_bytes=total)
    return LineFact(phase=Phase.CAPTURING_GRAPHS, sizes=sizes)


def _counted(text: str) -> LineFact | None:
    """Whether the graphs' estimate was left free; "disabled" is a warning that advises to enable it."""
    return LineFact(sizes=Sizes(graphs_counted="profiling is enabled" in text))


def _rate(text: str) -> LineFact | None:
    found = _RATE.search(text)
    return LineFact(rate_tok_s=float(found[1])) if found else None


def _ready(text: str) -> LineFact | None:
    """Uvicorn's own line ends with these words."""
    if not text.rstrip().endswith("Application startup complete."):
        return None
    return LineFact(phase=Phase.STARTING_API, port_ready=True)


# (text, reader): lines that carry a number, or are more than a phase.
NUMBER_TEXTS: tuple[tuple[str, Reader], ...] = (
    (" checkpoint shards: ", _bar(Phase.LOADING_WEIGHTS)),
    ("Loading safetensors using ", _bar(Phase.LOADING_WEIGHTS)),
    ("Multi-thread loading shards", _bar(Phase.LOADING_WEIGHTS)),
    (" CUDA graphs", _bar(Phase.CAPTURING_GRAPHS)),
    ("Available KV cache memory: ", _kv_cache(_KV)),
    ("GiB memory for KV Cache as specified", _kv_pinned),
    (" GiB for KV cache on node", _kv_cache(_KV_CPU)),
    ("Model loading took ", _weights),
    ("Loading model weights took ", _weights),
    ("Maximum concurrency for ", _requests),
    (
        " Checkpoint size: ",
        _size(_CHECKPOINT, Phase.LOADING_WEIGHTS, lambda size: Sizes(checkpoint_bytes=size)),
    ),
    (
        "Estimated CUDA graph memory: ",
        _size(_ESTIMATED, Phase.PROFILING, lambda size: Sizes(graphs_bytes=size)),
    ),
    (
        "Graph capturing finished in ",
        _size(_CAPTURED, Phase.CAPTURING_GRAPHS, lambda size: Sizes(captured_bytes=size)),
    ),
    (" on startup. Desired GPU", _budget),
    ("CUDA graph memory profiling is ", _counted),
    ("Avg generation throughput: ", _rate),
    ("Application startup complete.", _ready),
)

# One table, one pass: what carries a number comes first, for it also shows its phase.
_TEXTS: tuple[tuple[str, Reader | LineFact], ...] = (
    *NUMBER_TEXTS,
    *((text, LineFact(phase=phase)) for text, phase in (*PHASE_TEXTS, *OTHER_TEXTS)),
)


def read_line(text: str) -> LineFact | None:
    """Return what one line (ANSI codes removed) says of the engine's phase, None where it says nothing."""
    for needle, meaning in _TEXTS:
        if needle not in text:
            continue
        fact = meaning if isinstance(meaning, LineFact) else meaning(text)
        if fact is not None:
            return None if any(quoting in text for quoting in QUOTING) else fact
    return None
