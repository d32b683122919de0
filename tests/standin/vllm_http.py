"""The HTTP side: a thread a connection, keep-alive, the routes that a supervisor and its clients use."""

import json
import socket
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from standin import texts, vllm_metrics
from standin.vllm_engine import Engine, Request

REASONS = {200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed"}
REASONS |= {500: "Internal Server Error", 503: "Service Unavailable"}
UNCOUNTED = {"/metrics", "/health", "/ping", "/version", "/load"}


class RefusedError(Exception):
    """An error answer: status, type, message, parameter."""

    def __init__(self, code: int, kind: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.body = {"error": {"message": message, "type": kind, "param": param, "code": code}}


class HttpServer(ThreadingHTTPServer):
    """Serves on a socket that is bound already."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, sock: socket.socket, engine: Engine) -> None:
        super().__init__(sock.getsockname(), Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = sock
        self.engine = engine
        self.server_activate()

    def close(self) -> None:
        self.shutdown()
        self.server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hung up is nothing to report."""


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    server: HttpServer

    @property
    def engine(self) -> Engine:
        return self.server.engine

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        """Access lines are written by `_said`, as uvicorn writes them."""

    def _said(self, code: int) -> None:
        host, port = self.client_address[:2]
        texts.emit(
            f'INFO:     {host}:{port} - "{self.command} {self.path} HTTP/1.1" {code} {REASONS.get(code, "")}'
        )
        handler = self.path.partition("?")[0]
        if handler not in UNCOUNTED:
            key = (handler if code != 404 else "none", self.command, f"{code // 100}xx")
            self.engine.counters.http[key] = self.engine.counters.http.get(key, 0) + 1

    def _answer(self, code: int, body: Any = None, kind: str = "application/json") -> None:
        data = b"" if body is None else body.encode() if isinstance(body, str) else json.dumps(body).encode()
        self.send_response(code)
        self.send_header("content-length", str(len(data)))
        if data:
            self.send_header("content-type", kind)
        self.end_headers()
        self.wfile.write(data)
        self._said(code)

    # -- routes

    def do_GET(self) -> None:
        routes: dict[str, Callable[[], None]] = {
            "/health": self._health,
            "/ping": self._health,
            "/version": lambda: self._answer(200, {"version": self.engine.knobs.vllm_version}),
            "/load": lambda: self._answer(200, {"server_load": 0}),
            "/v1/models": self._models,
            "/metrics": lambda: self._answer(
                200, vllm_metrics.render(self.engine), "text/plain; version=1.0.0"
            ),
            "/kv_event_sources": lambda: self._answer(200, {}),
        }
        route = routes.get(self.path.partition("?")[0])
        if route is None:
            self._answer(404, {"detail": "Not Found"})
        else:
            route()

    def do_POST(self) -> None:
        length = int(self.headers.get("content-length") or 0)
        raw = self.rfile.read(length)
        path = self.path.partition("?")[0]
        if path == "/ping":
            self._health()
        elif path in {"/v1/completions", "/v1/chat/completions"}:
            try:
                self._complete(raw, chat=path.endswith("chat/completions"))
            except RefusedError as error:
                self._answer(error.code, error.body)
        else:
            self._answer(404, {"detail": "Not Found"})

    def _health(self) -> None:
        self._answer(503 if self.engine.dead else 200)

    def _models(self) -> None:
        permission = {
            "id": "modelperm-standin",
            "object": "model_permission",
            "created": int(self.engine.started),
        }
        permission |= {"allow_create_engine": False, "allow_sampling": True, "allow_logprobs": True}
        permission |= {"allow_search_indices": False, "allow_view": True, "allow_fine_tuning": False}
        permission |= {"organization": "*", "group": None, "is_blocking": False}
        cards = [
            {"id": name, "object": "model", "created": int(self.engine.started), "owned_by": "vllm"}
            | {"root": self.engine.settings.model, "parent": None}
            | {"max_model_len": self.engine.settings.max_model_len, "permission": [permission]}
            for name in self.engine.names
        ]
        self._answer(200, {"object": "list", "data": cards})

    # -- completions

    def _read(self, raw: bytes, *, chat: bool) -> tuple[str, dict[str, Any]]:
        """The prompt and the checked body."""
        try:
            body = json.loads(raw)
            prompt = _chat_prompt(body["messages"]) if chat else _prompt(body["prompt"])
        except (ValueError, KeyError, TypeError) as error:
            raise RefusedError(400, "BadRequestError", f"1 validation error: {error!r}") from None
        name, limit = body.get("model"), self.engine.settings.max_model_len
        if name is not None and name not in self.engine.names:
            text = f"The model `{name}` does not exist. Valid aliases: {', '.join(self.engine.names)}"
            raise RefusedError(404, "NotFoundError", text, "model")
        asked = body.get("max_tokens") or 0
        if asked > limit:
            text = f"max_tokens={asked} cannot be greater than max_model_len={limit}. Please request fewer "
            text += "output "
            text += f"tokens. (parameter=max_tokens, value={asked})"
            raise RefusedError(400, "BadRequestError", text, "max_tokens")
        if not chat and not asked:
            body["max_tokens"] = 16
        return prompt, body

    def _complete(self, raw: bytes, *, chat: bool) -> None:
        prompt, body = self._read(raw, chat=chat)
        if self.engine.stopping or self.engine.dead:
            raise RefusedError(500, "InternalServerError", "cannot schedule new futures after shutdown")
        request = self.engine.submit(prompt, body)
        if body.get("stream"):
            self._stream(request, body, chat=chat)
            return
        words, reason = [], "error"
        while (got := request.got.get()) == "token":
            words.append(request.word(len(words)))
        reason = got
        if reason == "error":
            text = "EngineCore encountered an issue. See stack trace (above) for the root cause."
            raise RefusedError(500, "InternalServerError", text)
        self._answer(200, self._whole(request, "".join(words), reason, chat=chat))

    def _head(self, request: Request, *, chat: bool, chunk: bool) -> dict[str, Any]:
        kind = ("chat.completion.chunk" if chunk else "chat.completion") if chat else "text_completion"
        name = ("chatcmpl-" if chat else "cmpl-") + request.id
        return {"id": name, "object": kind, "created": int(time.time()), "model": self.engine.names[0]}

    def _whole(self, request: Request, text: str, reason: str, *, chat: bool) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": 0, "logprobs": None, "finish_reason": reason, "stop_reason": None}
        choice |= {"token_ids": None, "routed_experts": None}
        if chat:
            message = {
                "role": "assistant",
                "content": text,
                "refusal": None,
                "annotations": None,
                "audio": None,
            }
            choice["message"] = message | {"function_call": None, "reasoning": None}
        else:
            choice |= {"text": text, "prompt_logprobs": None, "prompt_token_ids": None}
        answer = self._head(request, chat=chat, chunk=False) | {"choices": [choice], "service_tier": None}
        version = self.engine.knobs.vllm_version
        answer |= {"system_fingerprint": f"vllm-{version}-standin", "usage": _usage(request)}
        if chat:
            answer |= {"prompt_logprobs": None, "prompt_token_ids": None, "prompt_text": None}
        return answer | {"kv_transfer_params": None, "ec_transfer_params": None, "metrics": None}

    def _stream(self, request: Request, body: dict[str, Any], *, chat: bool) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream; charset=utf-8")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        self._said(200)
        try:
            for piece in self._pieces(request, body, chat=chat):
                self._chunk(f"data: {piece}\n\n".encode())
            self._chunk(b"")
        except OSError:
            self.engine.abort(request)
            self.close_connection = True

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()

    def _pieces(self, request: Request, body: dict[str, Any], *, chat: bool) -> Iterator[str]:
        """The events of one stream, [DONE] last."""
        head, number = self._head(request, chat=chat, chunk=True), 0

        def event(text: str, reason: str | None) -> str:
            choice: dict[str, Any] = {
                "index": 0,
                "logprobs": None,
                "finish_reason": reason,
                "stop_reason": None,
            }
            choice |= {"delta": {"content": text}} if chat else {"text": text}
            return json.dumps(head | {"choices": [choice], "usage": None})

        if chat:
            first = {
                "index": 0,
                "delta": {"role": "assistant", "content": ""},
                "logprobs": None,
                "finish_reason": None,
            }
            yield json.dumps(head | {"choices": [first]})
        while (got := request.got.get()) == "token":
            yield event(request.word(number), None)
            number += 1
        if got == "error":
            text = "EngineCore encountered an issue. See stack trace (above) for the root cause."
            yield json.dumps(RefusedError(500, "InternalServerError", text).body)
        else:
            yield event("", got)
            if (body.get("stream_options") or {}).get("include_usage"):
                yield json.dumps(head | {"choices": [], "usage": _usage(request)})
        yield "[DONE]"


def _usage(request: Request) -> dict[str, Any]:
    total = request.prompt_tokens + request.produced
    counts = {
        "prompt_tokens": request.prompt_tokens,
        "total_tokens": total,
        "completion_tokens": request.produced,
    }
    return counts | {"prompt_tokens_details": None, "completion_tokens_details": None}


def _prompt(prompt: Any) -> str:
    return prompt if isinstance(prompt, str) else " ".join(map(str, prompt))


def _chat_prompt(messages: list[dict[str, Any]]) -> str:
    return "\n".join(f"{message['role']}: {message['content']}" for message in messages)
