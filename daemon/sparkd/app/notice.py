"""What the service manager is told of the daemon: that it is up, that it lives, what it does."""

from __future__ import annotations

from sparkd.adapters.notify import Notifier
from sparkd.core.policy import Policy
from sparkd.core.state import State
from sparkd.export.one_line import one_line

EVERY_S = 1.0
"""Steps come in bursts; so often is enough for a WatchdogSec= of many seconds."""


class Notice:
    """Told of every completed step of the loop, which feeds the watchdog: nothing else proves life."""

    def __init__(self, notifier: Notifier) -> None:
        self._notifier = notifier
        self._ready = False
        self._told_at_s = float("-inf")

    def stepped(self, state: State, policy: Policy, now: float) -> None:
        """Tell of a step; up means that this node itself has been looked at, whoever else is there."""
        became = not self._ready and state.member.swept and self._notifier.ready()
        self._ready |= became
        if not became and now - self._told_at_s < EVERY_S:
            return
        self._told_at_s = now
        self._notifier.alive()
        self._notifier.status(one_line(state, policy, now))

    def ending(self, text: str) -> None:
        """Tell that the daemon ends."""
        self._notifier.stopping()
        self._notifier.status(text)
