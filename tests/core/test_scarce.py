"""The floor that needs no sizes: a node on which not even the engine's processes have room."""

from __future__ import annotations

from dataclasses import replace

import pytest

from core.given import HEAD, NOW, POLICY, WORKER, head_state, status_of_worker, turn_of, unit, worker_seen
from sparkd.core import coordinator
from sparkd.core.events import GuardSeen, MemoryObserved, Path, StatusReceived, TelemetryReceived
from sparkd.core.fold import fold
from sparkd.core.messages import Telemetry, UnitState, UnitStatus
from sparkd.core.records import PhaseChanged, WaitingFor
from sparkd.core.scarce import scarce
from sparkd.core.step import step
from sparkd.signals.model import MemorySample
from sparkd.sizing.declared import START_LEAST_BYTES
from sparkd.words import GIB, Phase, UnitName

TOTAL = 120 * GIB
PLENTY = 100 * GIB


def asked(free=PLENTY, worker=PLENTY, *, phase=Phase.WAITING, member=None, status=None, policy=None, **lead):
    """Return the turn of a cluster whose nodes have so much free, and whose models nobody sized."""
    own = {"memory": None if free is None else MemorySample(NOW, free, TOTAL), **(member or {})}
    said = status_of_worker(available_bytes=worker, total_bytes=TOTAL, **(status or {}))
    state = head_state(phase, member=own, peer=worker_seen(said, available_bytes=worker), **lead)
    return turn_of(state, **(policy or {}))


@pytest.mark.parametrize(
    ("free", "held"), [(0, True), (START_LEAST_BYTES - 1, True), (START_LEAST_BYTES, False), (None, False)]
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
        f"{HEAD}: less than 1.0 GiB of memory are free (vLLM's processes alone take at least 1.0 GiB): end "
        "what holds it (sparkctl memory)"
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


def test_each_node_counts_and_what_is_unknown_does_not() -> None:
    assert [line.split(":")[0] for line in scarce(asked(0, 0))] == [HEAD, WORKER]
    assert scarce(asked(None, None)) == ()


def test_a_leak_is_escalated_where_it_has_taken_all_that_a_start_needs() -> None:
    """Nobody holds what is lost: it is never waited for, but where a person wanted one more start."""
    leaks = {"member": {"leaking": True}, "status": {"leaking": True}}
    turn = asked(GIB // 2, GIB // 2, **leaks)
    coordinator.decide(turn)
    assert turn.lead.phase is Phase.ESCALATED
    assert turn.lead.needs == f"reboot {HEAD}, {WORKER}; it goes on by itself then"
    assert not any("end what holds it" in reason for reason in turn.lead.waiting)

    forgiven = asked(GIB // 2, **leaks, leaks_forgiven=True)
    coordinator.decide(forgiven)
    assert forgiven.lead.phase is Phase.WAITING and "end what holds it" in forgiven.lead.waiting[0]
    delayed = asked(GIB // 2, **leaks, backoff_until_s=NOW + 9)
    coordinator.decide(delayed)
    assert delayed.lead.phase is Phase.WAITING
    assert delayed.lead.waiting == ("the wait after the last failure (sparkctl start ends it)",)


def telemetry(free: int | None) -> TelemetryReceived:
    said = Telemetry(WORKER, "b#1", Phase.WAITING, 7, available_bytes=free, total_bytes=TOTAL)
    return TelemetryReceived(telemetry=said)


def status(free: int | None, path: Path = Path.MQTT) -> StatusReceived:
    return StatusReceived(status_of_worker(available_bytes=free, total_bytes=TOTAL), path=path)


@pytest.mark.parametrize("path", Path)
@pytest.mark.parametrize("first", [0, PLENTY])
def test_the_newest_word_of_a_peer_counts_whichever_brings_it(first, path) -> None:
    """A worker that is fenced says so with its memory back, a second before its next telemetry."""
    second = PLENTY - first
    for words in ((telemetry(first), status(second, path)), (status(first, path), telemetry(second))):
        turn = asked()
        for word in words:
            fold(turn, word)
        assert bool(scarce(turn)) is (second == 0)


@pytest.mark.parametrize("word", [telemetry(None), status(None)])
def test_what_a_peer_no_longer_knows_is_not_what_it_knew_last(word) -> None:
    turn = asked(worker=0)
    fold(turn, word)
    assert scarce(turn) == ()


def own(free: int) -> MemoryObserved:
    return MemoryObserved(sample=MemorySample(NOW, free, TOTAL))


@pytest.mark.parametrize("word", [own, telemetry, status])
def test_the_reading_that_ends_the_wait_is_acted_upon_at_once(word) -> None:
    """No other one is news: a reading comes twice a second, a telemetry every second."""
    for free, decided in ((START_LEAST_BYTES - 1, False), (START_LEAST_BYTES, True)):
        turn = asked(0, 0)
        fold(turn, word(free))
        assert turn.news is decided
    serving = asked(0, 0, phase=Phase.SERVING)
    fold(serving, word(PLENTY))
    assert not serving.news


def test_a_cluster_that_waits_for_memory_goes_on_in_the_step_that_hears_of_it() -> None:
    waits = step(asked(worker=0).state, (), NOW, POLICY).state
    assert waits.coordinator is not None and waits.coordinator.phase is Phase.WAITING
    goes_on = step(waits, (telemetry(PLENTY),), NOW + 0.5, POLICY).state
    assert goes_on.coordinator is not None and goes_on.coordinator.phase is Phase.FENCING


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
    awaited = {"emptied_generation": 7, "fenced_generation": 6}
    assert scarce(asked(0, 0, member=mine | awaited, status=gone | awaited)) == (), "it is coming back"
