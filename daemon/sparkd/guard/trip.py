"""A trip: from the verdict until nothing of the member is left.

Asked to end with SIGTERM, where the slope leaves time for it; killed with SIGKILL when that time is over,
when the hard floor is reached, or at once. Then struck again until the scope is empty, since a process
may fork while it is killed. The whole member at once, always: a gang with a dead rank is dead.
"""

from __future__ import annotations

import resource
import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from sparkd.guard.cgroups import GroupScope
    from sparkd.guard.decide import Floors, Level, Verdict
    from sparkd.guard.members import Member
    from sparkd.guard.tree import TreeScope

    Scope = GroupScope | TreeScope

ROUND_S = 0.02
# After this without an end, who is left counts as unkillable (D state): told, and struck once a second.
UNKILLABLE_S = 10.0
ROUND_SLOW_S = 1.0


class Trip:
    """One trip. Times are monotonic seconds."""

    def __init__(self, verdict: Verdict, level: Level, floors: Floors, now: float) -> None:
        self.code, self.used = verdict.code, verdict.used
        self.level, self.floors = level, floors
        self.at_s = now
        self.fall = 0.0
        self.termed_at_s: float | None = None
        self.killed_at_s: float | None = None
        self.struck_s = 0.0
        self.emptied_at_s: float | None = None
        self.victims: list[Member] = []
        self.pids: set[int] = set()
        self.left: list[Member] = []
        self.faults = 0
        self.next_at_s = now

    def strike(self, scope: Scope, number: int, clock: Any) -> bool:
        """Send *number* to the whole member; return whether there was anybody. No page fault, as counted."""
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        struck = scope.strike(number)
        self.faults += resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
        now = clock()
        if number == signal.SIGTERM:
            self.termed_at_s = now
        elif self.killed_at_s is None:
            self.killed_at_s = now
        self.struck_s = now - self.at_s
        for member in struck:
            if member.pid not in self.pids:
                self.pids.add(member.pid)
                self.victims.append(member)
        return bool(struck)

    def due(self, now: float, available: int, fall: float, term_s: float) -> int:
        """Return the signal that is due now, 0 where none is."""
        if self.killed_at_s is not None:
            return signal.SIGKILL if now >= self.next_at_s else 0
        if self.termed_at_s is None:
            return 0
        left = available - self.floors.hard
        if now - self.termed_at_s >= term_s or left <= 0 or (fall > 0 and left < fall * term_s / 4):
            return signal.SIGKILL
        return 0

    def after_round(self, scope: Scope, now: float) -> bool:
        """Look who is left; return whether that is nobody."""
        self.left = scope.left()
        slow = self.killed_at_s is not None and now - self.killed_at_s > UNKILLABLE_S
        self.next_at_s = now + (ROUND_SLOW_S if slow else ROUND_S)
        if not self.left and self.emptied_at_s is None:
            self.emptied_at_s = now
        return not self.left
