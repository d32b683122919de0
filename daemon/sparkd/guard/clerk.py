"""A second thread for what may block: reading another process's environment, a slow disk, looking around.

The loop that guards the memory waits for none of it.
"""

from __future__ import annotations

import _thread

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

# Locked memory is taken at once: the usual stack of a thread (8 MiB) is half of what the guard may use.
STACK_BYTES = 256 << 10


class Clerk:
    """Does what it is asked to, one thing after another, each kind at most once at a time."""

    def __init__(self) -> None:
        self._asked: list[tuple[str, Callable[..., None], tuple[object, ...]]] = []
        self._busy = ""
        self._bell = _thread.allocate_lock()
        self._bell.acquire()
        self._started = False

    @property
    def busy(self) -> str:
        """What it is doing, empty where nothing."""
        return self._busy

    def start(self) -> None:
        """Begin."""
        _thread.stack_size(STACK_BYTES)
        _thread.start_new_thread(self._work, ())
        self._started = True

    def ask(self, kind: str, what: Callable[..., None], *arguments: object) -> bool:
        """Have *what* done soon; False where that kind is still being done or waits."""
        if kind == self._busy or any(kind == each[0] for each in self._asked):
            return False
        self._asked.append((kind, what, arguments))
        if self._bell.locked():
            self._bell.release()
        return True

    def _work(self) -> None:
        while True:
            self._bell.acquire()
            self.do_all()

    def do_all(self) -> None:
        """Do what was asked for (tests and an orderly end call it themselves)."""
        while self._asked:
            kind, what, arguments = self._asked.pop(0)
            self._busy = kind
            try:
                what(*arguments)
            finally:
                self._busy = ""
