"""The floor that needs no sizes: a node on which not even the engine's processes have room."""

from __future__ import annotations

from dataclasses import replace

import pytest

from core.given import HEAD, NOW, WORKER, head_state, status_of_worker, turn_of, unit, worker_seen
from sparkd.core import coordinator
from sparkd.core.events import GuardSeen
from sparkd.core.messages import UnitState, UnitStatus
from sparkd.core.records import PhaseChanged, WaitingFor
from sparkd.core.scarce import scarce
from sparkd.signals.model import MemorySample
from sparkd.sizing.declared import LEAST_BYTES
from sparkd.words import GIB, Phase, UnitName

TOTAL = 120 * GIB
PLENTY = 100 * GIB


def asked(
    free=PLENTY, worker=PLENTY, *, phase=Phase.WAITING, member=None, status=None, curve=(), policy=None
):
    """Return the turn of a cluster whose nodes have so much free, and whose models nobody sized."""
    own = {"memory": None if free is None else MemorySample(NOW, free, TOTAL), **(member or {})}
    said = status_of_worker(available_bytes=worker, total_bytes=TOTAL, **(status or {}))
    state = head_state(phase, member=own, peer=worker_seen(said, curve=curve))
    return turn_of(state, **(policy or {}))


@pytest.mark.parametrize(
    ("free", "held"), [(0, True), (LEAST_BYTES - 1, True), (LEAST_BYTES, False), (None, False)]
)
def test_a_launch_waits_for_the_least_that_any_engine_takes(free, held) -> None:
    """What is unknown is no reason, and what is waited for is said once, in words that do not move."""
    turn = asked(free)
    coordinator.decide(turn)
    if not held:
        assert turn.lead.phase is Phase.FENCING
        return
    assert turn.lead.phase is Phase.WAITING
    (reason,) = turn.lead.waiting
    assert reason == (
        f"{HEAD}: less than 1.0 GiB of memory are free (vLLM's processes alone take 1.0 GiB): end what holds "
        "it (sparkctl memory)"
    )
    assert [record for record in turn.records if isinstance(record, WaitingFor)] == [WaitingFor((reason,))]


def test_it_is_asked_again_when_everything_is_fenced() -> None:
    """Something else can have taken the memory since."""
    back = {"intent_seq": 3, "intent_coordinator": "a#1", "emptied_generation": 7, "fenced_generation": 7}
    own = {"emptied_generation": 7, "fenced_generation": 7}
    turn = asked(0, phase=Phase.FENCING, member=own, status=back)
    coordinator.decide(turn)
    (moved,) = [record for record in turn.records if isinstance(record, PhaseChanged)]
    assert (moved.after, moved.reason) == (Phase.WAITING, "a precondition went away")


def test_each_node_counts_and_telemetry_is_newer_than_the_status() -> None:
    assert [line.split(":")[0] for line in scarce(asked(0, 0))] == [HEAD, WORKER]
    assert scarce(asked(worker=0, curve=((NOW, PLENTY),))) == ()
    assert len(scarce(asked(curve=((NOW - 1, PLENTY), (NOW, 0))))) == 1


def test_what_the_guard_keeps_free_comes_on_top() -> None:
    guard = GuardSeen(alive=True, enforcing=True)
    turn = asked(
        4 * GIB, member={"guard": guard}, status={"guard": guard}, policy={"guard_floor_bytes": 4 * GIB}
    )
    (reason,) = scarce(turn)
    assert "less than 5.0 GiB" in reason and "the memory guard keeps 4.0 GiB free" in reason
    assert scarce(asked(4 * GIB, policy={"guard_floor_bytes": 4 * GIB})) == (), "no guard enforces"


def test_an_engine_that_is_still_there_is_fenced_first() -> None:
    theirs = {"units": (UnitStatus(UnitName.SERVE, 7, UnitState.RUNNING),)}
    assert scarce(asked(0, 0, member={"units": (unit(),)}, status=theirs)) == ()
    gone = {"units": (UnitStatus(UnitName.SERVE, 7, UnitState.GONE),)}
    mine = {"units": (replace(unit(), state=UnitState.GONE),)}
    assert len(scarce(asked(0, 0, member=mine, status=gone))) == 2
