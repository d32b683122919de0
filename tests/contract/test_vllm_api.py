"""The API client against a server on a real socket, friendly and hostile."""

from __future__ import annotations

import asyncio
import gzip
import json
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from sparkd.adapters import vllm_api as module
from sparkd.adapters.vllm_api import OtherServerError, VllmApi, parse_metrics
from sparkd.core.events import EngineObserved

NAME = "lab/model-1"
RECORDED = (Path(__file__).parent / "data_vllm_metrics.txt").read_text()
GOOD = {
    "model": NAME,
    "choices": [{"text": " four", "finish_reason": "length"}],
    "usage": {"completion_tokens": 4},
}


class Ticks:
    """A clock that moves by a second a look."""

    def __init__(self) -> None:
        self.at = 0.0

    def now(self) -> float:
        self.at += 1.0
        return self.at


class Server:
    """What the API server answers, path by path: (status, body), or a handler."""

    def __init__(self, **paths: object) -> None:
        defaults = {
            "health": (200, ""),
            "metrics": (200, RECORDED),
            "models": (200, {"data": [{"id": NAME}]}),
            "completions": (200, GOOD),
        }
        self.paths = defaults | paths
        self.asked: list[tuple[str, dict[str, str], str]] = []

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.asked.append((request.path, dict(request.headers), await request.text()))
        answer = self.paths[request.path.rpartition("/")[2]]
        if callable(answer):
            return await answer(request)
        status, body = answer
        text = body if isinstance(body, bytes | str) else json.dumps(body)
        return web.Response(status=status, body=text)


async def hang(_: web.Request) -> web.StreamResponse:
    await asyncio.Event().wait()
    raise AssertionError


def serve(server: Server, scenario: Callable[[VllmApi], Awaitable[None]], **options: object) -> None:
    async def whole() -> None:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", server.handle)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        listener = socket.create_server(("127.0.0.1", 0))
        await web.SockSite(runner, listener).start()
        api = VllmApi("0.0.0.0", listener.getsockname()[1], NAME, Ticks(), **options)
        try:
            await asyncio.wait_for(scenario(api), 30)
        finally:
            await api.close()
            await runner.cleanup()

    asyncio.run(whole())


def observe(server: Server, **options: object) -> EngineObserved:
    seen = []

    async def scenario(api: VllmApi) -> None:
        seen.append(await api.observe(3))

    serve(server, scenario, **options)
    return seen[0]


def canary(server: Server, deadline_s: float = 10.0, **options: object) -> tuple[bool | None, str]:
    seen = []

    async def scenario(api: VllmApi) -> None:
        seen.append(await api.canary(3, deadline_s))

    serve(server, scenario, **options)
    assert seen[0].generation == 3 and seen[0].latency_s > 0
    return seen[0].ok, seen[0].reason


def test_a_healthy_engine() -> None:
    assert observe(Server()) == EngineObserved(
        3, answered=True, healthy=True, running=2, waiting=1, tokens_total=1234.0
    )


@pytest.mark.parametrize(
    ("health", "healthy", "reason"),
    [
        ((503, "EngineDeadError"), False, "status_503: EngineDeadError"),
        ((500, "x" * 5000), None, "status_500: " + "x" * 200),
        ((404, ""), None, "status_404: "),
    ],
)
def test_health_other_than_200(health, healthy, reason) -> None:
    observed = observe(Server(health=health))
    assert (observed.answered, observed.healthy, observed.reason) == (True, healthy, reason)
    assert observed.running == 2, "counters are read all the same"


def test_silence_and_refusal_are_no_answer() -> None:
    observed = observe(Server(health=hang), deadline_s=0.1)
    assert observed == EngineObserved(3, answered=False, reason="deadline: no answer in time")

    async def refused() -> EngineObserved:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
        api = VllmApi("127.0.0.1", port, NAME, Ticks())
        try:
            assert (await api.canary(3, 5.0)).ok is False
            return await api.observe(3)
        finally:
            await api.close()

    observed = asyncio.run(refused())
    assert not observed.answered and observed.reason.startswith("refused: ")


@pytest.mark.parametrize(
    ("metrics", "reason"),
    [
        (hang, "no metrics: deadline: no answer in time"),
        ((500, "broken"), ""),
        ((200, b"\xff\xfe\0" * 100), ""),
        ((200, b"a" * (module.BODY_MAX_BYTES + 1)), "no metrics: bad_answer: /metrics says more than"),
    ],
)
def test_bad_metrics_leave_the_counters_unknown(metrics, reason) -> None:
    observed = observe(Server(metrics=metrics), deadline_s=2.0)
    assert observed.healthy is True
    assert (observed.running, observed.waiting, observed.tokens_total) == (None, None, None)
    assert observed.reason.startswith(reason) and bool(observed.reason) == bool(reason)


def test_another_server_on_the_port_is_not_our_health() -> None:
    observed = observe(Server(metrics=(200, RECORDED.replace(NAME, "lab/other"))))
    assert observed.healthy is None and observed.answered
    assert observed.reason == "other_server: it serves lab/other"


def test_a_real_generation() -> None:
    server = Server()
    assert canary(server, api_key="k") == (True, "")
    path, headers, body = server.asked[-1]
    assert path == "/v1/completions"
    assert headers["Authorization"] == "Bearer k"
    asked = json.loads(body)
    assert (asked["model"], asked["max_tokens"], asked["temperature"]) == (NAME, 4, 0)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"model": "lab/other"}, "wrong_model: lab/other"),
        ({"usage": {"completion_tokens": 0}}, "no_tokens"),
        ({"usage": {"completion_tokens": True}}, "no_tokens"),
        ({"usage": {"completion_tokens": "4"}}, "no_tokens"),
        ({"usage": None}, "no_tokens"),
        ({"choices": []}, "no_tokens"),
        ({"choices": ["text"]}, "no_tokens"),
        ({"choices": {"0": 1}}, "no_tokens"),
        ({"choices": [{"text": "x", "finish_reason": "abort"}]}, "aborted"),
        ({"choices": [{"text": "x", "finish_reason": None}]}, "aborted"),
        ({"choices": [{"text": "x"}]}, "aborted"),
    ],
)
def test_a_wrong_generation_says_why(change, reason) -> None:
    ok, why = canary(Server(completions=(200, GOOD | change)))
    assert ok is False and why.startswith(reason)


@pytest.mark.parametrize(
    ("completions", "reason"),
    [
        ((500, "cannot schedule\nnew futures"), "status_500: cannot schedule new futures"),
        ((200, b"not json"), "bad_answer"),
        ((200, b"[]"), "bad_answer"),
        ((200, b"[" * 100_000), "bad_answer"),
        ((200, b"\xff\xfe\xfa"), "bad_answer"),
        ((200, b"9" * 100_000), "bad_answer"),
        ((200, b""), "bad_answer"),
        ((200, b" " * (module.BODY_MAX_BYTES + 1)), "bad_answer: /v1/completions says more than"),
        ((302, ""), "status_302"),
    ],
)
def test_a_hostile_answer_is_a_failure_and_no_exception(completions, reason) -> None:
    ok, why = canary(Server(completions=completions))
    assert ok is False and why.startswith(reason)


def test_redirects_and_compressed_bodies_are_not_followed() -> None:
    async def redirect(_: web.Request) -> web.Response:
        return web.Response(status=307, headers={"Location": "/health"})

    async def bomb(_: web.Request) -> web.Response:
        return web.Response(
            body=gzip.compress(json.dumps(GOOD).encode()), headers={"Content-Encoding": "gzip"}
        )

    server = Server(completions=redirect)
    assert canary(server)[0] is False
    assert [path for path, _, _ in server.asked] == ["/v1/models", "/v1/completions"]
    assert canary(Server(completions=bomb))[0] is False


def test_a_connection_cut_in_the_middle_is_a_failure() -> None:
    async def cut(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": "1000"})
        await response.prepare(request)
        await response.write(b'{"model"')
        request.transport.abort()
        return response

    ok, why = canary(Server(completions=cut))
    assert ok is False and why.startswith("connection_lost: ")


@pytest.mark.parametrize("late", ["models", "completions"])
def test_the_deadline_is_unknown_and_not_wrong(late) -> None:
    assert canary(Server(**{late: hang}), 0.2) == (None, "deadline: no answer in time")


def test_a_server_of_another_model_is_named_before_it_is_asked() -> None:
    server = Server(models=(200, {"data": [{"id": "lab/other"}, "x", {"id": ["x"]}]}))
    ok, why = canary(server)
    assert ok is False and why.startswith("other_server: it serves lab/other")
    assert [path for path, _, _ in server.asked] == ["/v1/models"]


def test_a_server_that_does_not_list_its_models_is_asked_all_the_same() -> None:
    assert canary(Server(models=(401, "Unauthorized"))) == (True, "")


def test_a_proxy_of_the_environment_is_not_used(monkeypatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    assert observe(Server()).healthy is True


def test_counters_are_summed_over_labels_and_doubtful_ones_left_out() -> None:
    text = f"""
# HELP vllm:num_requests_running x
vllm:num_requests_running{{engine="0",model_name="{NAME}"}} 1.0
vllm:num_requests_running{{engine="1",model_name="{NAME}"}} 2.0 1700000000
vllm:num_requests_running{{engine="2",model_name="other"}} 9.0
vllm:num_requests_running_by_reason{{model_name="{NAME}"}} 9.0
vllm:num_requests_waiting{{model_name="{NAME}"}} NaN
vllm:generation_tokens_total 7e3
"""
    counters = parse_metrics(text, NAME)
    assert counters == {"vllm:num_requests_running": 3.0, "vllm:generation_tokens_total": 7000.0}
    for value in ("-1", "+Inf", "many"):
        assert parse_metrics(f"vllm:num_requests_running {value}", NAME) == {}


def test_escaped_names_are_compared_unescaped() -> None:
    line = 'vllm:num_requests_running{model_name="a\\"b\\\\c}",engine="0"} 4'
    assert parse_metrics(line, 'a"b\\c}') == {"vllm:num_requests_running": 4.0}


@given(st.text(max_size=400))
def test_parsing_metrics_never_fails_otherwise(text) -> None:
    for whole in (text, f"vllm:num_requests_running{{{text}}} 1", f"vllm:num_requests_running {text}"):
        with suppress(OtherServerError):
            parse_metrics(whole, NAME)
