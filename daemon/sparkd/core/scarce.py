"""The least that must be free before any launch, also where nothing is known of the model's sizes.

It is a precondition like a missing peer: waited for as long as it takes, and it costs no budget. What is free
beyond it, and whether a plan fits into that, is for the sizes to say (`core.fitting`).
"""

from __future__ import annotations

from sparkd.core import guards
from sparkd.core.messages import UnitState
from sparkd.core.state import Peer
from sparkd.core.turn import Turn
from sparkd.sizing.declared import LEAST_BYTES
from sparkd.sizing.verdict import gib


def scarce(turn: Turn) -> tuple[str, ...]:
    """Return, as sentences, the nodes on which not even vLLM's processes have room; unknown is no reason."""
    guarded = guards.enforce(turn.state, turn.policy)
    floor = (turn.policy.guard_floor_bytes or 0) if guarded else 0
    wanted = f"vLLM's processes alone take {gib(LEAST_BYTES)}"
    wanted += f", and the memory guard keeps {gib(floor)} free" if floor else ""
    return tuple(
        f"{node}: less than {gib(LEAST_BYTES + floor)} of memory are free ({wanted}): end what holds it "
        "(sparkctl memory)"
        for node, free in [(turn.state.node, _own(turn)), *((p.node, _of(p)) for p in turn.state.peers)]
        if free is not None and free < LEAST_BYTES + floor
    )


def _own(turn: Turn) -> int | None:
    """What is free here; None = unknown, or an engine holds it that is to be fenced first."""
    member = turn.member
    if member.memory is None or any(unit.alive for unit in member.units):
        return None
    return member.memory.available_bytes


def _of(peer: Peer) -> int | None:
    """The same of a peer: telemetry tells it every second, its status only where something else changed."""
    status = peer.status
    if status is None or any(unit.state is not UnitState.GONE for unit in status.units):
        return None
    return peer.curve[-1][1] if peer.curve else status.available_bytes
