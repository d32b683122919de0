"""What a service tells systemd: sd_notify(3), datagrams to $NOTIFY_SOCKET. Silent where there is none.

A message is sent or lost, never waited for: what it says is said again by the next one. Except for READY:
without it systemd holds the service for starting for ever, so who says it learns whether it was taken.
Light to import (the engine's start waits for it): `socket` alone would take longer than all the rest.
"""

from __future__ import annotations

import _socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

STATUS_MAX = 500
"""Characters of a status; systemctl shows it in one line."""


class Notifier:
    """The way to systemd of one service."""

    def __init__(self, address: str | None) -> None:
        """Take the socket's address, a path or `@name` of the abstract namespace; None = nobody listens."""
        self._address = (
            None if not address else address.replace("@", "\0", 1) if address[0] == "@" else address
        )
        self._said = ""

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Notifier:
        """Return the one of this process's environment."""
        return cls(environ.get("NOTIFY_SOCKET"))

    def ready(self, wait_s: float = 0.0) -> bool:
        """The service is up; return False where that was not taken within *wait_s* seconds: say it again."""
        return self._address is None or self._send("READY=1", wait_s)

    def status(self, text: str) -> None:
        """Show *text* in `systemctl status`; said only where it has changed."""
        line = " ".join(text.split())[:STATUS_MAX]
        if line != self._said and self._send(f"STATUS={line}"):
            self._said = line

    def alive(self) -> None:
        """Feed the watchdog."""
        self._send("WATCHDOG=1")

    def stopping(self) -> None:
        """The service has begun to end by itself."""
        self._send("STOPPING=1")

    def _send(self, text: str, wait_s: float = 0.0) -> bool:
        """Return whether it was sent; without a descriptor left it is lost like any other, never raised."""
        if self._address is None:
            return False
        try:
            way = _socket.socket(_socket.AF_UNIX, _socket.SOCK_DGRAM | _socket.SOCK_CLOEXEC)
        except OSError:
            return False
        try:
            way.settimeout(wait_s)
            way.sendto(text.encode("utf-8", "replace"), self._address)
        except OSError:
            return False
        finally:
            way.close()
        return True
