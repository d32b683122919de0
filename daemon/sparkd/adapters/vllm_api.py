"""vLLM's API server, asked from outside: health, counters, and one real generation.

Two vLLM servers can share a port without an error (SO_REUSEPORT), and `/health` then answers from either. The
model's name can tell them apart; each question opens a connection of its own, so that the wrong one is met
sooner or later. Bodies are bounded, nothing is decompressed, redirects and proxies are not followed.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import Mapping
from typing import Any

import aiohttp

from sparkd.core.events import CanaryAnswered, EngineObserved
from sparkd.ports import Clock

# A healthy server answers in milliseconds; under load /metrics has taken most of a second.
DEADLINE_S = 2.0
# One engine's /metrics is about 100 kB.
BODY_MAX_BYTES = 4 << 20
CANARY_TOKENS = 4
_QUOTE_MAX = 200

_RUNNING, _WAITING = "vllm:num_requests_running", "vllm:num_requests_waiting"
_TOKENS = "vllm:generation_tokens_total"
_SAMPLE = re.compile(r"(vllm:\w+)(?:\{(.*)\})?[ \t]+(\S+)")
_MODEL = re.compile(r'(?:^|,)\s*model_name="((?:[^"\\]|\\.)*)"')
_ESCAPE = re.compile(r"\\(.)")


class OtherServerError(ValueError):
    """What answers serves another model."""


class VllmApi:
    """The port `Api` over HTTP.

    Args:
        host, port: where the API server listens; a wildcard address is asked on the loopback.
        served_name: the name under which the model must be offered.
        clock: measures the canary's latency.
        api_key: the server's key, where it has one.
        deadline_s: of one observation.
    """

    def __init__(
        self,
        host: str,
        port: int,
        served_name: str,
        clock: Clock,
        *,
        api_key: str | None = None,
        deadline_s: float = DEADLINE_S,
    ) -> None:
        host = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104
        self._url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        self._served_name = served_name
        self._clock = clock
        self._headers = {"Accept-Encoding": "identity"}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"
        self._deadline_s = deadline_s
        self._session: aiohttp.ClientSession | None = None

    async def observe(self, generation: int) -> EngineObserved:
        """Return health and counters, each unknown where it did not answer."""
        try:
            async with asyncio.timeout(self._deadline_s):
                status, body = await self._ask("GET", "/health")
        except (TimeoutError, aiohttp.ClientError, ValueError, OSError) as error:
            return EngineObserved(generation, answered=False, reason=_failure(error))
        healthy = {200: True, 503: False}.get(status)
        reason = "" if healthy else f"status_{status}: {_quote(body)}"
        counters: dict[str, float] = {}
        try:
            async with asyncio.timeout(self._deadline_s):
                status, body = await self._ask("GET", "/metrics")
            if status == 200:
                counters = parse_metrics(body.decode("utf-8", "replace"), self._served_name)
        except OtherServerError as error:
            healthy, reason = None, _failure(error)
        except (TimeoutError, aiohttp.ClientError, ValueError, OSError) as error:
            reason = reason or f"no metrics: {_failure(error)}"
        return EngineObserved(
            generation,
            answered=True,
            healthy=healthy,
            running=_whole(counters.get(_RUNNING)),
            waiting=_whole(counters.get(_WAITING)),
            tokens_total=counters.get(_TOKENS),
            reason=reason,
        )

    async def canary(self, generation: int, deadline_s: float) -> CanaryAnswered:
        """Ask for one real generation and check the answer."""
        begin = self._clock.now()
        try:
            async with asyncio.timeout(deadline_s):
                reason = await self._wrong_server() or await self._generate()
        except TimeoutError as error:
            ok, reason = None, _failure(error)
        except (aiohttp.ClientError, ValueError, OSError) as error:
            ok, reason = False, _failure(error)
        else:
            ok = not reason
        return CanaryAnswered(generation, ok, self._clock.now() - begin, reason)

    async def close(self) -> None:
        """Close the session."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _wrong_server(self) -> str:
        """Return why the server is not ours, empty where it is or does not say."""
        status, body = await self._ask("GET", "/v1/models")
        if status != 200:
            return ""
        names = [entry.get("id") for entry in _objects(_object(body).get("data"))]
        if self._served_name in names:
            return ""
        return f"other_server: it serves {_quote(', '.join(map(str, names)).encode())}"

    async def _generate(self) -> str:
        """Return why the generation is wrong, empty where it is right."""
        question = {"model": self._served_name, "prompt": "One, two, three,", "max_tokens": CANARY_TOKENS}
        status, body = await self._ask("POST", "/v1/completions", {**question, "temperature": 0})
        if status != 200:
            return f"status_{status}: {_quote(body)}"
        return judge_completion(_object(body), self._served_name)

    async def _ask(
        self, method: str, path: str, question: Mapping[str, object] | None = None
    ) -> tuple[int, bytes]:
        """Return status and body. Raises ValueError where the body is longer than bounded."""
        if self._session is None or self._session.closed:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(force_close=True, limit=8),
                cookie_jar=aiohttp.DummyCookieJar(),
                headers=self._headers,
                auto_decompress=False,
                timeout=aiohttp.ClientTimeout(total=None),
            )
        async with self._session.request(
            method, self._url + path, json=question, allow_redirects=False
        ) as response:
            body = bytearray()
            async for chunk in response.content.iter_any():
                body += chunk
                if len(body) > BODY_MAX_BYTES:
                    raise ValueError(f"{path} says more than {BODY_MAX_BYTES} bytes")
            return response.status, bytes(body)


def parse_metrics(text: str, served_name: str) -> dict[str, float]:
    """Return the sums over all labels of the three counters; one that is not a right number is left out.

    Raises:
        OtherServerError: they all speak of another model.
    """
    sums: dict[str, float] = {}
    others: set[str] = set()
    for line in text.splitlines():
        match = _SAMPLE.match(line)
        if match is None or match[1] not in {_RUNNING, _WAITING, _TOKENS}:
            continue
        model = _MODEL.search(match[2] or "")
        if model and _ESCAPE.sub(_unescape, model[1]) != served_name:
            others.add(model[1])
            continue
        try:
            value = float(match[3])
        except ValueError:
            value = math.nan
        sums[match[1]] = sums.get(match[1], 0.0) + (value if value >= 0 else math.nan)
    if others and not sums:
        raise OtherServerError(f"it serves {', '.join(sorted(others))}")
    return {name: value for name, value in sums.items() if math.isfinite(value)}


def judge_completion(answer: Mapping[str, Any], served_name: str) -> str:
    """Return why the answer is not a generation by our model, empty where it is."""
    if answer.get("model") != served_name:
        return f"wrong_model: {_quote(str(answer.get('model')).encode())}"
    choices = _objects(answer.get("choices"))
    usage = answer.get("usage")
    tokens = usage.get("completion_tokens") if isinstance(usage, dict) else None
    if not isinstance(tokens, int) or isinstance(tokens, bool) or tokens < 1 or not choices:
        return "no_tokens: the answer holds no generated token"
    finish = choices[0].get("finish_reason")
    if not isinstance(finish, str) or finish in {"", "abort", "error"}:
        return f"aborted: finish_reason is {_quote(str(finish).encode())}"
    return ""


def _object(body: bytes) -> dict[str, Any]:
    """Return a JSON object. Raises ValueError for anything else."""
    try:
        value = json.loads(body)
    except RecursionError as error:
        raise ValueError("JSON nested too deeply") from error
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")  # noqa: TRY004 - an outside answer, not a defect
    return value


def _objects(value: object) -> list[dict[str, Any]]:
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []


def _unescape(match: re.Match[str]) -> str:
    return {"n": "\n"}.get(match[1], match[1])


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)


def _quote(body: bytes) -> str:
    """Return a body shortened to one line."""
    return " ".join(body[: 4 * _QUOTE_MAX].decode("utf-8", "replace").split())[:_QUOTE_MAX]


def _failure(error: Exception) -> str:
    """Return an outside failure as code and text."""
    if isinstance(error, TimeoutError):
        return "deadline: no answer in time"
    if isinstance(error, OtherServerError):
        return f"other_server: {_quote(str(error).encode())}"
    if isinstance(error, (aiohttp.ClientConnectorError, ConnectionRefusedError)):
        return f"refused: {_quote(str(error).encode())}"
    if isinstance(error, aiohttp.ClientError | OSError):
        return f"connection_lost: {_quote((str(error) or type(error).__name__).encode())}"
    return f"bad_answer: {_quote(str(error).encode())}"
