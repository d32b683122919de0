"""Every class as other versions, collectors and reporters print it: prefixed, wrapped, joined, cut."""

from __future__ import annotations

import textwrap
from collections.abc import Callable

import pytest

from signals.cases import CASES, VARIANTS, Case
from sparkd.cli.reading import Diagnoser
from sparkd.signals.catalogue import packaged_catalogue
from sparkd.signals.causes import BY_TRACE, CAUSES
from sparkd.signals.model import Diagnosis

DIAGNOSER = Diagnoser(packaged_catalogue())
Change = Callable[[list[str]], list[str]]
# Classes that hardly differ in words.
FEW = {"ray_auth_refused", "cuda_fork_reinit", "uma_host_exhaustion", "clean_shutdown", "host_overheated"}
OBSERVED_ONLY = {"host_memory_pressure", *BY_TRACE}
# What a page makes of these cannot be told apart from something else.
LOST = {
    "column 80": {"ibv_modify_qp failed", "Finished server process", "Using the loopback"},
    "words": {"NV_ERR_NO_MEMORY", "Finished server process", "Using the loopback"},
    "joined": {"NV_ERR_NO_MEMORY", "Finished server process", "> "},
}
# What a page wrapped is understood in a short text only, and so is what fails in words that no signature has.
SHORT_ONLY = (
    "Tried to",
    "than desired GPU memory utilization (0.9,",
    "on startup is less than",
    "KV cache is needed, which is",
    "unhandled system",
    "socketStartConnect: Connect",
    "vendor err 129 ( Recv )",
    "> RuntimeError: Version mismatch:",
    "Connection closed by",
    "does not recognize this",
    "in forked",
    "fatal: something broke",
    'File "/srv/x.py", line 7, in <module>',
    "DESTROY_EQ(0x302) timeout. Will cause a leak of a command resource",
)
LONG = [c for c in (*VARIANTS, *CASES) if not any(line.endswith(SHORT_ONLY) for line in c.lines)]
DULL = [f"INFO 11-30 05:00:00 [x.py:1] dull line {number}" for number in range(600)]
HARMLESS = "ERROR 11-30 04:00:00 [usage_lib.py:1] a thing that does not matter happened"


def diagnosed(lines: list[str]) -> Diagnosis:
    return DIAGNOSER.lines(lines).diagnosis


def prefixed(prefix: str) -> Change:
    return lambda lines: [prefix + line for line in lines]


def at_column(lines: list[str]) -> list[str]:
    return [line[at : at + 80] for line in lines for at in range(0, len(line), 80)]


def at_words(lines: list[str]) -> list[str]:
    wrap = textwrap.TextWrapper(72, break_long_words=False, break_on_hyphens=False)
    return [part for line in lines for part in wrap.wrap(line)]


COLLECTED: dict[str, Change] = {
    "plain": list,
    "kubernetes": prefixed("2026-11-30T04:10:00.123456789Z stderr F "),
    "journal": prefixed("Nov 30 04:10:00 spark-b vllm[4101]: "),
    "vllm": prefixed("(EngineCore_DP0 pid=811) "),
    "code block": lambda lines: ["```", *lines, "```"],
    "quote": prefixed("> "),
}
WRAPPED: dict[str, Change] = {
    "column 80": at_column,
    "words": at_words,
    "joined": lambda lines: [" ".join(line.strip() for line in lines)],
}
ALL = pytest.mark.parametrize("case", VARIANTS, ids=lambda case: case.name)


def test_every_class_has_six() -> None:
    for cause in set(CAUSES) - FEW - OBSERVED_ONLY:
        both = [case for case in (*VARIANTS, *CASES) if case.cause == cause]
        assert len(both) >= 6, cause


@pytest.mark.parametrize("change", COLLECTED)
@ALL
def test_collected(case: Case, change: str) -> None:
    quoted = case.lines[0].startswith("> ") and change not in {"plain", "code block", "quote"}
    if not quoted:
        assert diagnosed(COLLECTED[change](case.lines)).cause == case.cause


@pytest.mark.parametrize("change", WRAPPED)
@ALL
def test_wrapped(case: Case, change: str) -> None:
    if not any(words in line for words in LOST[change] for line in case.lines):
        assert diagnosed(WRAPPED[change](case.lines)).cause == case.cause


@ALL
def test_after_another_error(case: Case) -> None:
    found = diagnosed([HARMLESS, *case.lines])
    assert found.cause == case.cause or (case.cause, found.cause) == ("none", "unknown")


@pytest.mark.parametrize("case", LONG, ids=lambda case: case.name)
def test_the_cause_does_not_depend_on_the_length_of_the_log(case: Case) -> None:
    for lines in ([*case.lines, *DULL], [*DULL, *case.lines]):
        assert diagnosed(lines).cause == case.cause


@pytest.mark.parametrize("case", [c for c in CASES if len(c.lines) > 1], ids=lambda case: case.name)
def test_a_piece_of_a_failure_is_never_another_one(case: Case) -> None:
    """One line of it may not decide; it must not decide wrongly, nor say that nothing is wrong."""
    surface = {
        "unknown",
        "none",
        "engine_dead_unspecified",
        "killed_unspecified",
        "nccl_init_failure",
        "peer_lost",
    }
    for line in case.lines:
        found = diagnosed([line]).cause
        assert found in surface | {case.cause} | LEADS_TO.get(case.cause, set()), line


# What one line of such a case says by itself, and rightly.
LEADS_TO = {
    "nccl_socket_connect": {"nccl_remote_error"},
    "nccl_timeout": {"nccl_remote_error"},
    "gpu_xid": {"cuda_illegal_memory_access"},
    "ib_roce_error": {"nccl_remote_error"},
    "worker_process_died": {"nccl_remote_error"},
    "permission_denied": {"worker_process_died"},
    "ray_node_died": {"worker_process_died"},
    "shm_too_small": {"worker_process_died"},
    "cuda_arch_unsupported": {"compile_toolchain_missing"},
    "memory_guard_kill": {"killed_unspecified"},
    "kernel_oom": {"killed_unspecified"},
    "model_unsupported": {"bad_cli_argument"},
}


def test_a_failure_that_nobody_knows_is_not_nothing() -> None:
    for text in (
        "IndexError: list index out of range",
        "fatal: it broke",
        "Traceback (most recent call last):",
    ):
        found = diagnosed([text])
        assert (found.cause, found.confidence) == ("unknown", 0.0)


def test_a_slip_in_the_engines_code_is_a_candidate() -> None:
    found = diagnosed(["KeyError: 'layers.0.mlp'"])
    assert (found.cause, found.candidates[0]) == ("unknown", "engine_internal_error")
    assert not BY_TRACE & {signature.cause for signature in packaged_catalogue().signatures}


def test_an_error_after_which_the_engine_went_on_is_nothing() -> None:
    went_on = "INFO 11-30 04:10:01 [loggers.py:1] Avg generation throughput: 21.0 tokens/s, Running: 1 reqs"
    assert diagnosed([HARMLESS, went_on]).cause == "none"
    assert diagnosed([went_on, HARMLESS]).cause == "unknown"


READY = "INFO:     Application startup complete."


@pytest.mark.parametrize(
    ("lines", "wrong"),
    [
        # A client of a server that is not there, and a queue that is only empty.
        (
            ["requests.exceptions.ConnectionError: HTTPConnectionPool(host='localhost', port=8000): refused"],
            "hf_network",
        ),
        (["zmq.error.Again: Resource temporarily unavailable"], "os_resource_limit"),
        # Advice that is printed with every error of CUDA.
        (
            [
                "RuntimeError: CUDA error: operation not permitted",
                "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.",
            ],
            "device_side_assert",
        ),
        # systemd says of a SIGTERM that it did not send that the result is a signal.
        (
            [
                "vllm.service: Main process exited, code=killed, status=15/TERM",
                "vllm.service: Failed with result 'signal'.",
            ],
            "killed_unspecified",
        ),
        # A request that went wrong, and a retry.
        ([READY, 'INFO:     10.0.0.8:1 - "POST /v1/completions HTTP/1.1" 500 Internal Server Error'], "any"),
        (["'(ReadTimeoutError())' thrown while requesting HEAD https://huggingface.co/x/config.json"], "any"),
        # What a user wrote.
        (
            [
                READY,
                "INFO 11-30 04:10:01 [logger.py:39] Received request c-1: prompt: 'my",
                "CUDA error: out of",
                "memory'",
            ],
            "any",
        ),
        (["spark-a:1:2 [0] NCCL INFO Call to ibv_reg_dmabuf_mr failed, falling back"], "ib_roce_error"),
    ],
)
def test_what_looks_like_a_cause_and_is_none(lines: list[str], wrong: str) -> None:
    found = diagnosed(lines).cause
    assert found in {"none", "unknown"} if wrong == "any" else found != wrong
