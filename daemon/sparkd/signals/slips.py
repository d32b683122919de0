"""Whether an exception that no signature knows is an error in the engine's own code: its trace tells.

A KeyError alone is as often a weight without a name, a proxy or a damaged cache: of 21 in logs of public
reports 10 were the engine's. Where the innermost frame stands in the engine's own code, and not in what reads
weights, settings or the platform, all of some twenty were. So the trace names the cause, the words do not.
"""

from __future__ import annotations

import re

from sparkd.signals.exceptions import is_slip

_FRAME = re.compile(r'File "([^"\n]{1,400})", line \d{1,6}, in (\S{1,120})')
_PACKAGES = ("/vllm/", "/sglang/srt/")
# What meets files, settings, devices and other packages: an error there is seldom its own.
_MEETS_OTHERS = re.compile(
    r"(?:v1/)?(?:entrypoints/|platforms/|compilation/|utils|config|executor/|usage/|plugins/|lora/)"
    r"|transformers_utils/|third_party/|server_args|_custom_ops"
    r"|model_executor/(?:model_loader/|kernels/|layers/quantization/)"
    r"|\S{0,200}(?:(?:site|dist)-packages|/lib/python)"
)
_OF_WEIGHTS = re.compile(r"load|weight|verify")
# A part of the model that the engine's class of it does not have: the files' fault as often as the engine's.
_MODEL_PART = re.compile(r"^KeyError: ['\"](?:\w{1,60}\.){1,12}\w{1,60}['\"]$")
# Sizes that do not fit one another while a model or a worker computes.
_SIZES = re.compile(
    r"^(?:Runtime|Value)Error: [^\n]{0,200}(?:\bshapes?\b|size of tensor|placeholders\b|probability tensor)"
)
_COMPUTES = re.compile(r"(?:model_executor/)?models/|v1/worker/|v1/sample/|worker/|managers/|layers/sampler")
# A call that its function does not take, where no trace is in view: both are the engine's, unless a person's
# script called.
_WRONG_CALL = re.compile(
    r"^TypeError: (?!(?:Async)?EngineArgs|(?:Async)?LLM\b|SamplingParams)[A-Za-z_][\w.]{0,120}\(\) "
    r"(?:got an unexpected keyword argument|missing \d{1,2} required (?:positional|keyword-only) argument"
    r"|takes \d{1,2} positional arguments? but)"
)


def is_engines_own(text: str, raised: str) -> bool:
    """Return whether the exception *raised*, with which the trace *text* ends, is the engine's own error."""
    frames = _FRAME.findall(text)
    if not frames:
        return _WRONG_CALL.match(raised) is not None
    path, function = frames[-1]
    inside = _inside(path)
    if inside is None or _OF_WEIGHTS.search(function):
        return False
    if _SIZES.match(raised):
        return _COMPUTES.match(inside) is not None
    return is_slip(raised) and not _MODEL_PART.match(raised) and _MEETS_OTHERS.match(inside) is None


def _inside(path: str) -> str | None:
    """Return a file as the engine's package names it, None where it stands outside."""
    package = next((name for name in _PACKAGES if name in path), None)
    return None if package is None else path.rpartition(package)[2]
