"""An exception of the engine's own code is told by where its trace ends."""

import pytest

from sparkd.engines.lines import read_line
from sparkd.intake.sieve import Sieve
from sparkd.intake.whole import Origin, WholeLog
from sparkd.signals.assess import assess
from sparkd.signals.catalogue import packaged_catalogue
from sparkd.signals.model import Diagnosis
from sparkd.signals.slips import is_engines_own

CATALOGUE = packaged_catalogue()
SIEVE = Sieve(CATALOGUE)
PLACE = "(EngineCore pid=7) ERROR 11-30 04:10:01 [core.py:340] "


def trace(*frames: tuple[str, str], raised: str) -> str:
    lines = ["Traceback (most recent call last):"]
    for path, function in frames:
        lines += [f'  File "{path}", line 12, in {function}', "    call()"]
    return "\n".join([*lines, raised])


def diagnosed(text: str) -> Diagnosis:
    block = "".join(f"{PLACE}{line}\n" for line in text.splitlines()).encode()
    return assess(WholeLog(Origin("log"), SIEVE).records([block]), CATALOGUE, read_line=read_line).diagnosis


BUSY = ("/srv/lib/site-packages/vllm/v1/engine/core.py", "run_busy_loop")
OWN = [
    ("/srv/lib/site-packages/vllm/v1/core/sched/scheduler.py", "_update", "KeyError: '57-a63eca87'"),
    ("/home/me/vllm/vllm/core/scheduler.py", "_schedule_running", "AssertionError"),
    (
        "/srv/sglang/python/sglang/srt/managers/model_runner.py",
        "replay",
        "IndexError: list index out of range",
    ),
    ("/srv/lib/site-packages/vllm/distributed/tpu.py", "__init__", "ZeroDivisionError: division by zero"),
    (
        "/srv/lib/site-packages/vllm/model_executor/models/utils.py",
        "_merge",
        "ValueError: Attempted to assign 330 multimodal tokens to 332 placeholders",
    ),
    (
        "/srv/lib/site-packages/vllm/v1/worker/gpu_model_runner.py",
        "sample_tokens",
        "RuntimeError: shape mismatch: value tensor of shape [5] cannot be broadcast to shape [1, 8]",
    ),
]
OTHERS = [
    ("/srv/lib/site-packages/vllm/v1/worker/gpu_worker.py", "profile_run", "KeyError: 'layers.0.mlp'"),
    ("/srv/lib/site-packages/vllm/model_executor/models/llama.py", "load_weights", "KeyError: 'absmax'"),
    ("/srv/lib/site-packages/vllm/model_executor/model_loader/weight_utils.py", "get", "AssertionError"),
    ("/srv/lib/site-packages/vllm/v1/executor/multiproc_executor.py", "result", "KeyError: 'a'"),
    ("/srv/lib/site-packages/vllm/entrypoints/openai/api_server.py", "build", "AssertionError"),
    ("/srv/lib/site-packages/vllm/platforms/interface.py", "capability", "NotImplementedError"),
    ("/srv/lib/site-packages/vllm/compilation/compiler.py", "compile", "AssertionError: no hash"),
    ("/srv/vllm/.venv/lib/python3.12/site-packages/torch/nn/module.py", "__getattr__", "AttributeError: a"),
    ("/srv/lib/python3.12/json/decoder.py", "raw_decode", "KeyError: 'a'"),
    ("/srv/sglang/python/sglang/srt/managers/scheduler.py", "run_scheduler_process", "OSError: no memory"),
    ("/srv/lib/site-packages/vllm/v1/worker/gpu_worker.py", "profile", "ValueError: a request of mine"),
    ("/home/me/serve.py", "main", "TypeError: Worker.run() got an unexpected keyword argument 'x'"),
    (
        "/srv/lib/site-packages/vllm/config/parallel.py",
        "__post_init__",
        "TypeError: f() takes 1 positional argument but 2 were given",
    ),
]


@pytest.mark.parametrize(("path", "function", "raised"), OWN)
def test_its_own_code_names_it(path: str, function: str, raised: str) -> None:
    found = diagnosed(trace(BUSY, (path, function), raised=raised))
    assert (found.cause, found.confidence) == ("engine_internal_error", 0.6)
    assert raised[:30] in found.explanation
    assert "broken_install" in found.candidates


@pytest.mark.parametrize(("path", "function", "raised"), OTHERS)
def test_what_meets_others_leaves_it_unknown(path: str, function: str, raised: str) -> None:
    assert diagnosed(trace(BUSY, (path, function), raised=raised)).cause == "unknown"


@pytest.mark.parametrize(
    ("raised", "own"),
    [
        ("TypeError: Worker.__init__() got an unexpected keyword argument 'cache_config'", True),
        ("TypeError: ScheduleBatch.extend() missing 1 required positional argument: 'bias'", True),
        ("TypeError: capture() takes 2 positional arguments but 3 were given", True),
        ("TypeError: EngineArgs.__init__() got an unexpected keyword argument 'tensor_size'", False),
        ("TypeError: LLM.__init__() got an unexpected keyword argument 'x'", False),
        ("TypeError: not a string", False),
        ("KeyError: 'a'", False),
    ],
)
def test_without_a_trace_only_a_call_that_its_function_does_not_take(raised: str, own: bool) -> None:
    assert is_engines_own(raised, raised) == own


def test_a_root_elsewhere_still_wins() -> None:
    own = trace(BUSY, (OWN[0][0], OWN[0][1]), raised=OWN[0][2])
    lost = (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity"
    )
    assert diagnosed(f"{lost} of 119.70 GiB of which 1.25 GiB is free.\n{own}").cause == "cuda_oom"
