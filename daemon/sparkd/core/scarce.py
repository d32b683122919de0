"""The least that must be free before any launch, also where nothing is known of the model's sizes.

It is a precondition like a missing peer: waited for as long as it takes, and it costs no budget. What is free
beyond it, and whether a plan fits into that, is for the sizes to say (`core.fitting`).
"""

from __future__ import annotations

from sparkd.core import guards
from sparkd.core.messages import UnitState
from sparkd.core.state import Peer
from sparkd.core.turn import Turn
from sparkd.sizing.declared import START_LEAST_BYTES
from sparkd.sizing.verdict import gib
from sparkd.words import Phase


def scarce(turn: Turn) -> tuple[str, ...]:
    """Return, as sentences, the nodes on which not even vLLM's processes have room; unknown is no reason."""
    floor = _floor(turn)
    least = START_LEAST_BYTES + floor
    wanted = f"vLLM's processes alone take at least {gib(START_LEAST_BYTES)}"
    wanted += f", and the memory guard keeps {gib(floor)} free" if floor else ""
    return tuple(
        f"{node}: less than {gib(least)} of memory are free ({wanted}): end what holds it (sparkctl memory)"
        for node, free in [(turn.state.node, _own(turn)), *((p.node, _of(p)) for p in turn.state.peers)]
        if free is not None and free < least
    )


def is_crossed(turn: Turn, before: int | None, after: int | None) -> bool:
    """Return whether a reading ends or begins what a waiting coordinator waits for: then it decides anew."""
    lead = turn.state.coordinator
    if lead is None or lead.phase is not Phase.WAITING or before == after:
        return False
    least = START_LEAST_BYTES + _floor(turn)
    return (before is not None and before < least) != (after is not None and after < least)


def is_own_crossed(turn: Turn, available_bytes: int) -> bool:
    """The same of a reading of this node."""
    known = turn.member.memory
    return is_crossed(turn, known.available_bytes if known is not None else None, available_bytes)


def _floor(turn: Turn) -> int:
    """What the memory guards keep free, where they enforce."""
    return (turn.policy.guard_floor_bytes or 0) if guards.enforce(turn.state, turn.policy) else 0


def _own(turn: Turn) -> int | None:
    """What is free here; None = unknown, or an engine holds it, or held it, and the fence waits for it."""
    member = turn.member
    if member.memory is None or member.fenced_generation < member.emptied_generation:
        return None
    if any(unit.alive for unit in member.units):
        return None
    return member.memory.available_bytes


def _of(peer: Peer) -> int | None:
    """The same of a peer, by its newest word."""
    status = peer.status
    if status is None or status.fenced_generation < status.emptied_generation:
        return None
    if any(unit.state is not UnitState.GONE for unit in status.units):
        return None
    return peer.available_bytes
