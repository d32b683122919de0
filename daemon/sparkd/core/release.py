"""Memory of a dead generation that comes back: measured, never assumed after a pause.

It is back when what is available is what it was before the start, but for a tolerance. The driver may give it
back later than the processes end, and slowly: while it still rises nobody goes on at the deadline. Where it
has stopped and not all of it is there, that is said; the launch after it is judged by what there is
(`core.fitting`), and a fall with every start is a leak (`core.leak`).
"""

from __future__ import annotations

from sparkd.core.records import MemoryKept
from sparkd.core.turn import Turn

RISE_BYTES = 1 << 27
"""A smaller rise is the system's own coming and going."""
FLAT_S = 3.0
"""So long without a rise: it has stopped."""
PATIENCE = 4
"""So many times the deadline a rise is waited for: no engine's memory takes longer."""


def is_over(turn: Turn, emptied_at_s: float) -> bool:
    """Return whether the wait is over: all is back, or what is missing has stopped coming."""
    if _is_back(turn, emptied_at_s):
        return True
    release_s, rose_at_s = turn.policy.memory_release_s, turn.member.rose_at_s
    if not turn.due(emptied_at_s + release_s):
        return False
    if not turn.due(min(rose_at_s + FLAT_S, emptied_at_s + PATIENCE * release_s)):
        return False
    _tell(turn, emptied_at_s)
    return True


def note_rise(turn: Turn, available_bytes: int) -> None:
    """Take a reading of the memory while it is waited for."""
    if available_bytes > turn.member.rose_bytes + RISE_BYTES:
        turn.set_member(news=False, rose_bytes=available_bytes, rose_at_s=turn.now)


def _is_back(turn: Turn, emptied_at_s: float) -> bool:
    member = turn.member
    if member.baseline_bytes is None:
        return True  # nothing was started here
    sample = member.memory
    if sample is None or sample.at_s < emptied_at_s:
        return False
    return sample.available_bytes >= member.baseline_bytes - turn.policy.memory_tolerance_bytes


def _tell(turn: Turn, emptied_at_s: float) -> None:
    member = turn.member
    if member.baseline_bytes is not None and member.memory is not None:
        missing = member.baseline_bytes - member.memory.available_bytes
        turn.note(MemoryKept(member.emptied_generation, missing, waited_s=turn.now - emptied_at_s))
