"""Waiting in tests: for lines, process ends, a predicate; always with a deadline, never by sleeping."""

import asyncio
import threading
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
INTERVAL_S = 0.02


def wait_until(predicate: Callable[[], T], deadline_s: float = 10.0, what: str = "") -> T:
    """The first true answer of `predicate`; AssertionError after the deadline."""
    end = time.monotonic() + deadline_s
    pause = threading.Event()
    while not (value := predicate()):
        if time.monotonic() > end:
            raise AssertionError(f"not within {deadline_s} s: {what or predicate}")
        pause.wait(INTERVAL_S)
    return value


async def until(true: Callable[[], bool], deadline_s: float = 20.0) -> None:
    """Wait for what another process does and no event tells; TimeoutError after the deadline."""
    async with asyncio.timeout(deadline_s):
        while not true():  # noqa: ASYNC110
            await asyncio.sleep(INTERVAL_S)


class Lines:
    """Lines of a pipe as they come; waiting wakes with each of them."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._changed = threading.Condition()
        self._open = 0

    def follow(self, pipe: object, also: "Lines") -> None:
        """Read a binary pipe to its end in a thread; `also` gets the same lines."""
        targets = (self, also)
        for lines in targets:
            lines.opened(1)

        def run() -> None:
            for raw in pipe:  # type: ignore[attr-defined]
                line = raw.decode("utf-8", "replace").rstrip("\n")
                for lines in targets:
                    lines.add(line)
            for lines in targets:
                lines.opened(-1)

        threading.Thread(target=run, daemon=True).start()

    def opened(self, change: int) -> None:
        """A pipe more, or one less."""
        with self._changed:
            self._open += change
            self._changed.notify_all()

    def add(self, line: str) -> None:
        with self._changed:
            self._lines.append(line)
            self._changed.notify_all()

    def all(self) -> list[str]:
        with self._changed:
            return list(self._lines)

    def text(self) -> str:
        return "\n".join(self.all())

    def wait_for(self, text: str, deadline_s: float = 10.0, since: int = 0) -> str:
        """The first line that contains `text`; AssertionError after the deadline, or when the pipes end."""
        end, at = time.monotonic() + deadline_s, since
        with self._changed:
            while True:
                for line in self._lines[at:]:
                    if text in line:
                        return line
                at = len(self._lines)
                left = end - time.monotonic()
                if self._open == 0 or left <= 0 or not self._changed.wait(left):
                    tail = "\n".join(self._lines[-25:])
                    raise AssertionError(f"no line with {text!r} within {deadline_s} s; the last:\n{tail}")
