"""Streams completions from an engine inside a namespace: bounded in streams, requests and time.

Every token is stamped with its arrival, so a report tells the longest silence, not only how many came. Errors
are counted and the first ones are kept; they are the point of a fault's test, so none is raised.
"""

import contextlib
import dataclasses
import http.client
import itertools
import json
import threading
import time
from collections.abc import Iterator

from lab import netns

KEPT_ERRORS = 20


@dataclasses.dataclass(frozen=True)
class Target:
    """Where to send what."""

    node: netns.Node
    host: str
    port: int = 8000
    model: str = "lab"
    max_tokens: int = 64
    timeout_s: float = 20.0


@dataclasses.dataclass
class Report:
    """What came back so far; safe to read while the load runs."""

    requests: int = 0
    completed: int = 0
    errors: int = 0
    first_errors: list[str] = dataclasses.field(default_factory=list)
    token_times: list[float] = dataclasses.field(default_factory=list)
    lock: threading.Lock = dataclasses.field(default_factory=threading.Lock, repr=False)

    @property
    def tokens(self) -> int:
        return len(self.token_times)

    def longest_silence_s(self, since: float, until: float) -> float:
        """The longest time between two tokens in a span of the monotonic clock, its ends included."""
        with self.lock:
            inside = sorted(moment for moment in self.token_times if since <= moment <= until)
        edges = [since, *inside, until]
        return max(later - earlier for earlier, later in itertools.pairwise(edges))

    def add_error(self, text: str) -> None:
        with self.lock:
            self.errors += 1
            self.first_errors += [text] if len(self.first_errors) < KEPT_ERRORS else []


def stream(target: Target, report: Report) -> None:
    """One streamed completion; each data line with text is a token."""
    body = {
        "model": target.model,
        "prompt": "hello world, the quick brown fox",
        "max_tokens": target.max_tokens,
        "ignore_eos": True,
        "stream": True,
    }
    connection = http.client.HTTPConnection(target.host, target.port, timeout=target.timeout_s)
    try:
        connection.sock = target.node.connect(target.host, target.port, target.timeout_s)
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        if response.status != 200:
            report.add_error(f"status {response.status}: {response.read(200)!r}")
            return
        if read_tokens(response, report):
            with report.lock:
                report.completed += 1
        else:
            report.add_error("the stream ended early")
    except (OSError, http.client.HTTPException) as error:
        report.add_error(repr(error))
    finally:
        connection.close()


def read_tokens(response: http.client.HTTPResponse, report: Report) -> bool:
    """Count tokens until the end mark; whether it came."""
    for line in response:
        data = line.strip().removeprefix(b"data: ")
        if data == b"[DONE]":
            return True
        if b'"error"' in data[:12]:
            report.add_error(data[:200].decode(errors="replace"))
        elif data:
            with report.lock:
                report.token_times.append(time.monotonic())
    return False


@contextlib.contextmanager
def load(target: Target, streams: int = 2, max_requests: int = 200, max_s: float = 120.0) -> Iterator[Report]:
    """That many streams at a time while the block runs, at most; after an error each waits a little."""
    report = Report()
    enough = threading.Event()
    end = time.monotonic() + max_s

    def one_stream() -> None:
        while not enough.is_set() and time.monotonic() < end:
            with report.lock:
                if report.requests >= max_requests:
                    return
                report.requests += 1
                before = report.errors
            stream(target, report)
            if report.errors > before:
                enough.wait(0.5)

    threads = [threading.Thread(target=one_stream, name=f"load-{n}", daemon=True) for n in range(streams)]
    for thread in threads:
        thread.start()
    try:
        yield report
    finally:
        enough.set()
        for thread in threads:
            thread.join(target.timeout_s + 5.0)
