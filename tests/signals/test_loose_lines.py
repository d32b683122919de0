"""A loose line of a start that goes on ended nothing, whatever it says."""

from __future__ import annotations

import pytest

from sparkd.cli.reading import Diagnoser
from sparkd.signals.catalogue import packaged_catalogue

DIAGNOSER = Diagnoser(packaged_catalogue())
CONFIG = "INFO 11-30 04:00:00 [x.py:1] Resolved architecture: Qwen3ForCausalLM"
LATER = [
    "Loading safetensors checkpoint shards:  10% Completed | 1/10 [00:04<02:36, 13.0s/it]",
    "Loading safetensors checkpoint shards: 100% Completed | 10/10 [01:44<00:00, 13.0s/it]",
    "INFO 11-30 04:03:00 [x.py:1] GPU KV cache size: 1,234,560 tokens",
    "Capturing CUDA graphs (mixed prefill-decode, PIECEWISE): 100%|##| 67/67 [00:12<00:00, 5.3it/s]",
]
# (the line, the cause of a start that ends with it)
LOOSE = [
    ("find: '/root/x': Permission denied", None),
    ("mkdir: cannot create directory '/models/x': Permission denied", "permission_denied"),
    ("accept: Too many open files", None),
    ("ulimit -n is low: Too many open files may follow", None),
    ("A module that was compiled using NumPy 1.x cannot be run in NumPy 2.2.6 as it may crash.", None),
    ("ValueError: Config file at '/m/generation_config.json' is not a valid JSON file.", None),
    ("PermissionError: [Errno 13] Permission denied: '/root/.cache/vllm'", "permission_denied"),
    ("bash: /opt/x/bin/vllm: Permission denied", "permission_denied"),
    ("OSError: [Errno 24] Too many open files", "os_resource_limit"),
    ("ModuleNotFoundError: No module named 'pandas'", "missing_python_dependency"),
    ("/bin/sh: 1: gcc: not found", "compile_toolchain_missing"),
    (
        "requests.exceptions.HTTPError: 401 Client Error: Unauthorized for url: https://huggingface.co/x/y",
        "hf_auth",
    ),
    ("OSError: [Errno 98] Address already in use", "port_in_use"),
]
DEAD = "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"


def cause(*lines: str) -> str:
    return DIAGNOSER.lines(list(lines)).diagnosis.cause


@pytest.mark.parametrize(("line", "_cause"), LOOSE)
def test_a_start_that_goes_on_refutes_it(line: str, _cause: str | None) -> None:
    assert cause(CONFIG, line, *LATER) == "none"
    assert cause(CONFIG, LATER[0], line, *LATER[2:]) == "none"


@pytest.mark.parametrize(("line", "named"), LOOSE)
def test_where_the_start_gets_no_further_it_is_the_cause_or_a_warning(line: str, named: str | None) -> None:
    found = DIAGNOSER.lines([CONFIG, LATER[0], line]).diagnosis
    if named:
        assert (found.cause, found.confidence) == (named, 0.95)
    else:
        assert found.cause in {"none", "unknown"}


@pytest.mark.parametrize(("line", "named"), [row for row in LOOSE if row[1]])
def test_it_is_the_cause_where_the_engine_then_ends(line: str, named: str) -> None:
    assert cause(CONFIG, LATER[0], line, DEAD) == named


def test_a_new_start_does_not_refute_what_ended_the_one_before() -> None:
    module = "ModuleNotFoundError: No module named 'pandas'"
    assert cause(CONFIG, LATER[0], module, CONFIG, LATER[0]) == "missing_python_dependency"
