"""Memory of a dead generation that comes back: measured, never assumed after a pause.

It is back when what is available is what it was before the start, but for a tolerance. It is enough where it
has stopped rising and holds all that the plan's numbers ask for. The driver may give it back later than the
processes end, and slowly: while it still rises nobody goes on at the deadline. Where it has stopped and not
all of it is there, or nobody knows, that is an answer of its own, and said; the launch after it is judged by
what there is (`core.fitting`), and a fall with every start is a leak (`core.leak`).
"""

from __future__ import annotations

from sparkd.core.records import MemoryNotBack
from sparkd.core.state import Member
from sparkd.core.turn import Turn
from sparkd.signals.model import MemorySample
from sparkd.sizing.model import Node
from sparkd.sizing.verdict import Outcome, judge

RISE_BYTES = 1 << 27
"""A smaller rise is the system's own coming and going: half of what counts as a fall (`core.leak`)."""
FLAT_S = 3.0
"""So long without a rise: it has stopped. Readings come twice a second, so six in a row have shown none."""
PATIENCE = 4
"""So many times the deadline a rise is waited for (2 minutes by default): a bound against a reading that
creeps for another reason; 110 GiB come back in seconds where the driver gives them back at all."""


def is_over(turn: Turn, emptied_at_s: float) -> bool:
    """Return whether the wait is over: all is back, or enough, or what is missing has stopped coming."""
    if _is_back(turn) or _is_enough(turn, emptied_at_s):
        return True
    if not turn.due(patient_until_s(turn, emptied_at_s)):
        return False
    _tell(turn, emptied_at_s)
    return True


def patient_until_s(turn: Turn, emptied_at_s: float) -> float:
    """Return until when the memory is waited for where nothing more of it comes."""
    release_s = turn.policy.memory_release_s
    rising_until_s = min(turn.member.rose_at_s + FLAT_S, emptied_at_s + PATIENCE * release_s)
    return max(emptied_at_s + release_s, rising_until_s)


def lacks_reading(member: Member) -> bool:
    """Return whether the memory is waited for, and the newest reading is of before the end."""
    return member.fenced_generation < member.emptied_generation and _sample_since(member) is None


def note_rise(turn: Turn, available_bytes: int) -> None:
    """Take a reading of the memory while it is waited for."""
    if available_bytes > turn.member.rose_bytes + RISE_BYTES:
        turn.set_member(news=False, rose_bytes=available_bytes, rose_at_s=turn.now)


def _is_back(turn: Turn) -> bool:
    """Whether it was measured back. What was there before a start is unknown where nobody had measured."""
    if not turn.member.ran:
        return True  # nothing was started here
    before, sample = _available_before(turn), _sample_since(turn.member)
    if before is None or sample is None:
        return False
    return sample.available_bytes >= before - turn.policy.memory_tolerance_bytes


def _is_enough(turn: Turn, emptied_at_s: float) -> bool:
    """Whether no more comes, and the numbers find room for these settings; what is unknown is waited for."""
    member, sample = turn.member, _sample_since(turn.member)
    if member.intent is None or member.model is None or sample is None or not turn.policy.unified_memory:
        return False
    flat_s = max(emptied_at_s, member.rose_at_s) + FLAT_S
    if not turn.due(flat_s) or sample.at_s < flat_s:
        return False
    guarded = member.guard is not None and member.guard.enforcing
    floor = turn.policy.guard_floor_bytes if guarded else None
    node = Node(sample.total_bytes, sample.available_bytes, guard_floor_bytes=floor)
    learned = turn.state.coordinator.learned if turn.state.coordinator else None  # of the head's own node
    asked = member.model.request(node, member.intent.settings, turn.policy.floors, learned)
    return judge(asked, member.model.weights).outcome is Outcome.FITS


def _available_before(turn: Turn) -> int | None:
    """Return what was available before the newest start, of an earlier daemon, too; None = unknown."""
    member = turn.member
    if member.baseline_bytes is not None or not member.returned:
        return member.baseline_bytes
    return member.returned[-1]


def _sample_since(member: Member) -> MemorySample | None:
    """Return the newest reading, None where it is of before the end."""
    sample, since_s = member.memory, member.emptied_at_s
    return sample if sample is not None and since_s is not None and sample.at_s >= since_s else None


def _tell(turn: Turn, emptied_at_s: float) -> None:
    """The wait is over: the fence is answered, but not with what was not measured."""
    before, sample = _available_before(turn), _sample_since(turn.member)
    lacking = None if before is None or sample is None else before - sample.available_bytes
    generation = turn.member.emptied_generation
    turn.set_member(unreleased_generation=generation)
    turn.note(MemoryNotBack(generation, turn.now - emptied_at_s, lacking))
