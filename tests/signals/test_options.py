"""What an engine refuses of its options is told by where it was raised, or by the setting that it names."""

# ruff: noqa: E501
from __future__ import annotations

import pytest

from sparkd.cli.reading import Diagnoser
from sparkd.signals.catalogue import packaged_catalogue

DIAGNOSER = Diagnoser(packaged_catalogue())
SITE = "/srv/venv/lib/python3.12/site-packages"
PLACES = {
    "a part": f"{SITE}/vllm/config/parallel.py",
    "one file": f"{SITE}/vllm/config.py",
    "arguments": f"{SITE}/vllm/engine/arg_utils.py",
    "sglang": "/srv/sglang/python/sglang/srt/server_args.py",
    "tensorrt": f"{SITE}/tensorrt_llm/llmapi/llm_args.py",
}
SERVES = "(APIServer pid=700) INFO:     Application startup complete."
SETTINGS = [
    "ValueError: Chunked MM input disabled but max_tokens_per_mm_item (2496) is larger than max_num_batched_tokens (2048). Please increase max_num_batched_tokens.",
    "ValueError: block_size (1568) must be <= max_num_batched_tokens (1024)",
    "ValueError: api_server_count can't be set in headless mode",
    "ValueError: data_parallel_size_local must be > 0 in headless mode",
    "ValueError: LoRA rank 64 is greater than max_lora_rank 16.",
    "ValueError: GPU memory utilization must be less than 1.0. Got 1.5.",
    "ValueError: tensor_parallel_size must be a positive integer",
    "ValueError: --grpc-port must be between 0 and 65535",
    "ValueError: Unknown speculative decoding method: foo",
    "ValueError: VLLM_RAY_DP_PACK_STRATEGY=x is not supported",
]


def raised(path: str, *words: str, prefix: str = "(APIServer pid=700) ") -> list[str]:
    lines = [
        "Traceback (most recent call last):",
        '  File "/srv/venv/bin/vllm", line 10, in <module>',
        "    sys.exit(main())",
        "             ^^^^^^",
        f'  File "{path}", line 512, in _verify',
        "    raise ValueError(",
        *words,
    ]
    return [prefix + line for line in lines]


def cause_of(*lines: str) -> str:
    return DIAGNOSER.lines(list(lines)).diagnosis.cause


@pytest.mark.parametrize("path", PLACES.values(), ids=PLACES)
@pytest.mark.parametrize("kind", ["ValueError", "NotImplementedError", "AssertionError"])
@pytest.mark.parametrize("prefix", ["", "(APIServer pid=700) ", "2026-11-30T04:10:00.1Z stderr F "])
def test_what_the_code_of_the_options_raises_is_a_refused_option(path: str, kind: str, prefix: str) -> None:
    lines = raised(path, f"{kind}: something of ranks that nobody foresaw", prefix=prefix)
    assert cause_of(*lines) == "bad_cli_argument"


@pytest.mark.parametrize(
    "words",
    [
        "TypeError: 'NoneType' object is not iterable",
        "TypeError: verify() takes 1 positional argument but 2 were given",
        "AttributeError: 'X' object has no attribute 'y'",
        "KeyError: 'rope_type'",
    ],
)
def test_a_slip_of_that_code_is_nobodys_option(words: str) -> None:
    assert cause_of(*raised(PLACES["a part"], words)) == "unknown"


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        (
            "ValueError: Model architectures ['FooForCausalLM'] are not supported for now.",
            "model_unsupported",
        ),
        (
            "OSError: We couldn't connect to 'https://huggingface.co' to load the files, and couldn't find them in the cached files.",
            "hf_network",
        ),
        ("RuntimeError: Failed to infer device type", "no_cuda_device"),
    ],
)
def test_a_cause_with_words_of_its_own_stands_higher(words: str, cause: str) -> None:
    assert cause_of(*raised(PLACES["a part"], words)) == cause


def test_what_is_raised_further_in_is_not_of_the_options() -> None:
    inner = [
        f'  File "{SITE}/transformers/models/auto.py", line 7, in from_pretrained',
        "ValueError: something that is not there",
    ]
    assert cause_of(*raised(PLACES["a part"], *inner)) == "unknown"


@pytest.mark.parametrize("line", SETTINGS)
@pytest.mark.parametrize("prefix", ["", "(EngineCore pid=811) ERROR 11-30 04:00:00 [core.py:1] "])
def test_a_setting_that_is_named_with_what_is_wrong_of_it_was_refused(line: str, prefix: str) -> None:
    assert cause_of(prefix + line) == "bad_cli_argument"


@pytest.mark.parametrize("line", SETTINGS)
def test_a_server_that_goes_on_was_refused_nothing(line: str) -> None:
    assert (
        cause_of(SERVES, line, '(APIServer pid=700) INFO: 1.1.1.1:1 - "POST /v1/completions HTTP/1.1" 200 OK')
        == "none"
    )


@pytest.mark.parametrize(
    "line",
    [
        "INFO 11-30 04:00:00 [x.py:1] max_num_batched_tokens must be at least 2048 for this model, raised",
        "WARNING 11-30 04:00:00 [x.py:1] block_size is not supported by this backend; using 16",
        "ValueError: No valid attention backend found for cuda with (kv_cache_dtype=fp8, block_size=64). Reasons: {FLASH_ATTN: [kv_cache_dtype not supported]}",
    ],
)
def test_what_only_names_a_setting_refuses_none(line: str) -> None:
    assert cause_of(line) in {"none", "unknown"}


REFUSED = [
    "ValueError: This model's maximum context length is 2048 tokens. However, you requested 2297 tokens (1797 in the messages, 500 in the completion).",
    "ValueError: The decoder prompt (length 5000) is longer than the maximum model length of 2048.",
    "ValueError: The prompt (total length 9000) is too long to fit into the model (context length 4096).",
    "ValueError: At most 1 image(s) may be provided in one request.",
    "ValueError: Token id 151936 is out of vocabulary",
]
STOPPED = [
    "INFO 11-30 04:20:00 [launcher.py:80] Shutting down FastAPI HTTP server.",
    "INFO:     Shutting down",
]


@pytest.mark.parametrize("line", REFUSED)
def test_a_request_that_is_refused_ends_no_server_and_explains_no_stop(line: str) -> None:
    report = [
        "ERROR 11-30 04:10:00 [serving_chat.py:203] Error in preprocessing prompt inputs",
        "ERROR 11-30 04:10:00 [serving_chat.py:203] Traceback (most recent call last):",
        f'ERROR 11-30 04:10:00 [serving_chat.py:203]   File "{SITE}/vllm/entrypoints/openai/serving_chat.py", line 188, in create_chat_completion',
        f"ERROR 11-30 04:10:00 [serving_chat.py:203] {line}",
    ]
    assert cause_of(SERVES, *report) == "none"
    assert cause_of(SERVES, *report, *STOPPED) == "clean_shutdown"


ENDS = [
    "Exception: the answer of the node was not read",
    "queue.Empty",
    "subprocess.TimeoutExpired: Command 'ray status' timed out after 30 seconds",
]


@pytest.mark.parametrize("end", ENDS)
def test_a_request_that_is_refused_takes_no_other_trace_with_it(end: str) -> None:
    """A trace is over with its last line, also where that is an exception of no known kind."""
    other = [
        "Traceback (most recent call last):",
        '  File "/srv/serve.py", line 12, in main',
        "    ask()",
        end,
    ]
    later = ["INFO 11-30 04:11:00 [x.py:1] something else", REFUSED[0]]
    assert cause_of(*other) == cause_of(*other, *later) == "unknown"


@pytest.mark.parametrize(
    ("route", "cause"), [("chat/completions", "none"), ("tokenize", "unknown"), ("models/load", "unknown")]
)
def test_only_an_answer_that_needs_the_engine_shows_that_it_works_again(route: str, cause: str) -> None:
    loud = "RuntimeError: something that nobody knows went wrong"
    answered = f'(APIServer pid=700) INFO: 1.1.1.1:1 - "POST /v1/{route} HTTP/1.1" 200 OK'
    assert cause_of(SERVES, loud, answered) == cause
