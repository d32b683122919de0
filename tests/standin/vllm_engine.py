"""The API server's view of EngineCore: requests, their tokens, and the numbers for /metrics."""

import os
import queue
import subprocess
import threading
import time
import zlib
from dataclasses import dataclass, field
from typing import Any

from standin import proc, texts
from standin.knobs import Knobs
from standin.vllm_sizes import Settings

WORDS = ["the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog", "and", "runs", "home"]
NATURAL_END = 24  # tokens after which the pretended model says its end token


@dataclass
class Request:
    """One request on its way: tokens arrive as True (more) or False (last), text and reason follow."""

    id: str
    prompt: str
    prompt_tokens: int
    tokens: int
    reason: str
    began: float = field(default_factory=time.monotonic)
    got: queue.Queue[str] = field(default_factory=queue.Queue)
    produced: int = 0

    def word(self, number: int) -> str:
        """The same prompt gives the same words."""
        start = zlib.crc32(self.prompt.encode()) % len(WORDS)
        return " " + WORDS[(start + number) % len(WORDS)]


@dataclass
class Counters:
    prompt_tokens: int = 0
    generation_tokens: int = 0
    running: int = 0
    kv_usage: float = 0.0
    finished: dict[str, int] = field(default_factory=dict)
    first_token_s: float = 0.0
    e2e_s: float = 0.0
    http: dict[tuple[str, str, str], int] = field(default_factory=dict)


class Engine:
    """Thread-safe: HTTP handlers put requests in, one reader hands the tokens out."""

    def __init__(
        self,
        channel: proc.Channel,
        core: subprocess.Popen[bytes],
        settings: Settings,
        names: list[str],
        knobs: Knobs,
    ) -> None:
        self.channel = channel
        self.core = core
        self.settings = settings
        self.names = names
        self.knobs = knobs
        self.events: queue.Queue[dict[str, Any]] = queue.Queue()
        self.requests: dict[str, Request] = {}
        self.counters = Counters()
        self.started = time.time()
        self.lock = threading.Lock()
        self.dead = False
        self.stopping = False
        self.kv_tokens = 0
        self.concurrency = 0.0
        channel.pump(self._on_message)

    def ready(self, message: dict[str, Any]) -> None:
        self.kv_tokens, self.concurrency = message["kv_tokens"], message["concurrency"]
        threading.Thread(target=self._log_stats, daemon=True).start()

    def wait_end(self) -> str:
        """Until something ends the server: `sigterm`, `dead` (it told us) or `eof` (it did not)."""
        kind = str(self.events.get()["t"])
        self.dead = self.dead or kind != "sigterm"
        self.stopping = kind == "sigterm"
        return kind

    def _on_message(self, message: dict[str, Any] | None) -> None:
        if message is None:
            self.events.put({"t": "eof"})
        elif message["t"] == "out":
            self._on_tokens(message)
        elif message["t"] == "aborted":
            if request := self.requests.pop(message["id"], None):
                self._finish(request, "abort")
        else:
            self.events.put(message)

    def _on_tokens(self, message: dict[str, Any]) -> None:
        with self.lock:
            self.counters.running, self.counters.kv_usage = message["running"], message["usage"]
            for name, last in message["tokens"].items():
                request = self.requests.get(name)
                if request is None:
                    continue
                self._count(request)
                request.got.put("token")
                if last:
                    del self.requests[name]
                    self._finish(request, request.reason)

    def _count(self, request: Request) -> None:
        if request.produced == 0:
            self.counters.prompt_tokens += request.prompt_tokens
            self.counters.first_token_s += time.monotonic() - request.began
        request.produced += 1
        self.counters.generation_tokens += 1

    def _finish(self, request: Request, reason: str) -> None:
        self.counters.finished[reason] = self.counters.finished.get(reason, 0) + 1
        self.counters.e2e_s += time.monotonic() - request.began
        request.got.put(reason)

    def submit(self, prompt: str, body: dict[str, Any]) -> Request:
        """Start a request; the caller has checked the body."""
        asked = body.get("max_tokens") or body.get("max_completion_tokens")
        count = asked or NATURAL_END
        free = body.get("ignore_eos") or body.get("min_tokens")
        reason = "length"
        if not free and count >= NATURAL_END:
            count, reason = NATURAL_END, "stop"
        size = max(1, len(prompt.split()))
        request = Request(os.urandom(8).hex(), prompt, size, count, reason)
        with self.lock:
            self.requests[request.id] = request
        self.channel.send(t="req", id=request.id, tokens=count, prompt_tokens=size)
        return request

    def abort(self, request: Request) -> None:
        """The client hung up."""
        self.requests.pop(request.id, None)
        self.channel.send(t="abort", id=request.id)

    def fail_all(self) -> None:
        with self.lock:
            requests, self.requests = list(self.requests.values()), {}
        for request in requests:
            request.got.put("error")

    def drain(self) -> None:
        """After the stop: whatever EngineCore did not end is aborted."""
        with self.lock:
            requests, self.requests = list(self.requests.values()), {}
        for request in requests:
            self._finish(request, "abort")
        time.sleep(0.05)

    def _log_stats(self) -> None:
        interval = float(os.environ.get("VLLM_LOG_STATS_INTERVAL", "10"))
        before, quiet = (0, 0), True
        while not self.dead:
            time.sleep(interval)
            now = (self.counters.prompt_tokens, self.counters.generation_tokens)
            prompt, generated = ((a - b) / interval for a, b in zip(now, before, strict=True))
            busy = bool(prompt or generated or self.counters.running)
            if busy or not quiet:
                text = (
                    f"Engine 000: Avg prompt throughput: {prompt:.1f} tokens/s, Avg generation throughput: "
                )
                text += f"{generated:.1f} tokens/s, Running: {self.counters.running} reqs, Waiting: 0 reqs, "
                text += "GPU KV "
                text += f"cache usage: {100 * self.counters.kv_usage:.1f}%, Prefix cache hit rate: 0.0%"
                texts.vllm("APIServer", "INFO", "loggers.py:335", text)
            before, quiet = now, not busy
