"""Taking over what runs, question by question: what is taken, where it goes on, who is told again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from core.given import (
    HEAD,
    RAY,
    SERVE,
    WORKER,
    head_state,
    intent_of,
    status_of_worker,
    turn_of,
    unit,
    worker_seen,
)
from sparkd.core.adopt import has_part, is_addressed, is_back, readdress, take_over
from sparkd.core.commands import PublishIntent
from sparkd.core.events import EndedUnit, RunningUnit
from sparkd.core.messages import UnitState, UnitStatus
from sparkd.core.records import Kept
from sparkd.core.turn import Turn
from sparkd.words import Backend, EngineMemory, Phase, Settings, Stamp, UnitName

ASKED = Settings(gpu_memory_utilization=0.8)
STAMP = Stamp(2, 7)


def found(*names: UnitName, settings: Settings = ASKED) -> tuple[RunningUnit, ...]:
    return tuple(RunningUnit(name, STAMP, settings) for name in names)


def part(*names: UnitName, generation: int = 7, state: UnitState = UnitState.RUNNING) -> dict:
    return {"units": tuple(UnitStatus(name, generation, state) for name in names)}


def newborn(
    kept: Phase | Kept = Phase.SERVING,
    units: tuple = (RAY, SERVE),
    status: dict | None = None,
    member: dict | None = None,
    policy: dict | None = None,
    **lead,
) -> Turn:
    """Return a head that has just swept and found *units* of generation 7 running, and the worker's Ray."""
    there = worker_seen(status_of_worker(**{**part(RAY), **(status or {})}), fresh=lead.pop("fresh", True))
    own = {"units": tuple(unit(name) for name in units), "found": found(*units), "intent": None}
    state = head_state(
        lead.pop("phase", Phase.WAITING),
        peer=there,
        member={**own, **(member or {})},
        **{
            "epoch": 0,
            "generation": 0,
            "intent": None,
            "seq": 0,
            "kept": kept if isinstance(kept, Kept) else Kept(generation=7, phase=kept),
            "asked_target": None,
            **lead,
        },
    )
    return turn_of(state, **(policy or {}))


def taken(turn: Turn) -> bool:
    take_over(turn)
    return turn.lead.generation == 7


# -- what is taken -------------------------------------------------------------------------------


def test_a_serving_generation_is_taken_over_in_a_new_epoch_with_the_settings_that_it_runs_with() -> None:
    turn = newborn()
    assert taken(turn)
    assert (turn.lead.epoch, turn.lead.phase, turn.lead.settings) == (3, Phase.VERIFYING, ASKED)
    assert turn.state.seen == Stamp(3, 7)
    assert turn.lead.launched_at_s == turn.now
    assert turn.lead.target is True
    intent = turn.lead.intent
    assert intent is not None
    assert (intent.stamp, dict(intent.wanted)) == (Stamp(3, 7), {HEAD: (RAY, SERVE), WORKER: (RAY,)})


def test_what_an_engine_has_said_of_its_memory_it_will_not_say_again() -> None:
    said = EngineMemory(900, 70, 4096, 300)
    known = newborn(kept=Kept(generation=7, phase=Phase.SERVING, said=said))
    assert taken(known)
    assert known.lead.watch.said == said
    of_another = newborn(kept=Kept(generation=6, phase=Phase.SERVING, said=said))
    assert taken(of_another)
    assert of_another.lead.watch.said == EngineMemory()


def test_what_the_operator_edited_meanwhile_is_remembered_for_the_next_start() -> None:
    turn = newborn(settings=Settings(gpu_memory_utilization=0.7))
    assert taken(turn)
    assert turn.lead.edited == (("gpu_memory_utilization", 0.7),)


def test_the_api_servers_settings_count_before_rays() -> None:
    turn = newborn(member={"found": found(SERVE) + found(RAY, settings=Settings())})
    assert taken(turn)
    assert turn.lead.settings == ASKED


@pytest.mark.parametrize(
    "lead",
    [
        {"epoch": 3},  # something was ordered already
        {"asked_target": False},  # a person asked to stop
        {"phase": Phase.STOPPED},
        {"kept": Kept(generation=7, phase=Phase.FAILING)},
        {"kept": Kept(generation=7, phase=Phase.FENCING)},
        {"kept": Kept(generation=7, phase=Phase.STOPPING)},
    ],
)
def test_nothing_is_taken_over(lead: dict) -> None:
    assert not taken(newborn(**lead))


@pytest.mark.parametrize(
    "member",
    [
        {"found": ()},  # nothing ran when this daemon looked
        {"units": (unit(SERVE),)},  # a part
        {"units": (unit(RAY), unit(SERVE), unit(RAY, generation=6))},
        {"units": (unit(RAY), unit(SERVE, UnitState.STOPPING))},
        {"units": (unit(RAY, UnitState.UNKILLABLE, 6), unit(RAY), unit(SERVE))},
    ],
)
def test_a_part_or_what_has_something_else_beside_it_is_not_taken_over(member: dict) -> None:
    assert not taken(newborn(member=member))


def test_what_is_over_beside_it_does_not_matter() -> None:
    gone = unit(SERVE, UnitState.GONE, 6)
    assert taken(newborn(member={"units": (gone, unit(RAY), unit(SERVE))}))


# -- what ended while nobody led -----------------------------------------------------------------


def ended(**how) -> dict:
    """A member whose serve has ended and whose Ray runs on."""
    over = EndedUnit(SERVE, STAMP, ASKED, **how)
    by_hand = bool(how.get("by_hand"))
    gone = unit(SERVE, UnitState.GONE, signal=how.get("signal"), ordered=by_hand, by_hand=by_hand)
    return {"units": (unit(RAY), gone), "found": found(RAY), "ended": (over,)}


@pytest.mark.parametrize("kept", [Phase.SERVING, Phase.VERIFYING, Phase.LOADING_WEIGHTS, Phase.FORMING])
@pytest.mark.parametrize("how", [{"signal": 9}, {"signal": 15, "by_hand": True}, {}])
def test_what_ended_here_while_nobody_led_is_taken_over_and_nothing_is_ordered(
    kept: Phase, how: dict
) -> None:
    turn = newborn(kept, member=ended(**how))
    assert taken(turn)
    assert turn.lead.phase is (Phase.VERIFYING if kept is Phase.SERVING else kept)
    assert (turn.lead.epoch, turn.lead.settings, turn.lead.intent) == (3, ASKED, None)


def test_what_ended_on_a_peer_while_nobody_led_is_taken_over() -> None:
    over = {"units": (UnitStatus(RAY, 7, UnitState.GONE, signal=9),)}
    turn = newborn(status=over)
    assert taken(turn)
    assert turn.lead.intent is None
    alone = newborn(units=(), status=over, settings=Settings(max_num_seqs=3))
    assert taken(alone)
    assert alone.lead.settings == Settings(max_num_seqs=3)


@pytest.mark.parametrize(
    "changes",
    [
        {"kept": Phase.FAILING},  # its end was ordered
        {"kept": Kept()},
        {"kept": Kept(generation=6, phase=Phase.SERVING)},
        {"member": {**ended(signal=9), "unclean_generation": 7}},  # the node went down
        {"status": {"unclean_generation": 7}},
        {"member": {**ended(signal=9), "swept": False}},
        {"member": {**ended(signal=9), "units": (unit(SERVE, UnitState.GONE, ordered=True),)}},
    ],
)
def test_an_end_that_says_nothing_is_not_taken_over(changes: dict) -> None:
    assert not taken(newborn(**{"member": ended(signal=9), **changes}))


# -- which generation is the newest --------------------------------------------------------------


def test_what_this_head_led_last_is_the_newest_where_it_runs() -> None:
    assert taken(newborn(seen=Stamp(2, 9)))


def test_without_a_record_of_its_own_the_newest_seen_has_to_run() -> None:
    assert taken(newborn(Kept()))
    assert not taken(newborn(Kept(), seen=Stamp(2, 9)))


def test_a_record_of_a_generation_that_does_not_run_tells_nothing() -> None:
    turn = newborn(Kept(generation=5, phase=Phase.FAILING))
    assert taken(turn)
    assert turn.lead.phase is Phase.RESOLVING_CONFIG


# -- where it goes on ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kept", "after"),
    [
        (Phase.VERIFYING, Phase.VERIFYING),
        (Phase.SERVING, Phase.VERIFYING),
        (Phase.CAPTURING_GRAPHS, Phase.CAPTURING_GRAPHS),
        (Phase.LOADING_WEIGHTS, Phase.LOADING_WEIGHTS),
        (Phase.FORMING, Phase.RESOLVING_CONFIG),
        (Phase.IDLE, Phase.RESOLVING_CONFIG),
    ],
)
def test_the_phase_that_was_kept_says_where_it_goes_on(kept: Phase, after: Phase) -> None:
    turn = newborn(kept)
    assert taken(turn)
    assert turn.lead.phase is after


@pytest.mark.parametrize(
    ("kept", "from_"), [(Phase.SERVING, Phase.VERIFYING), (Phase.PROFILING, Phase.PROFILING)]
)
def test_a_paused_head_stays_paused_and_knows_what_runs(kept: Phase, from_: Phase) -> None:
    turn = newborn(kept, phase=Phase.PAUSED)
    assert taken(turn)
    assert (turn.lead.phase, turn.lead.paused_from) == (Phase.PAUSED, from_)


def test_a_half_formed_generation_goes_on_forming_with_whoever_has_begun() -> None:
    both = newborn(Phase.FORMING, units=(RAY,))
    assert taken(both)
    assert both.lead.phase is Phase.FORMING
    assert dict(both.lead.intent.wanted) == {HEAD: (RAY,), WORKER: (RAY,)}

    alone = newborn(Phase.FORMING, units=(RAY,), status={"units": ()})
    assert taken(alone)
    assert dict(alone.lead.intent.wanted) == {HEAD: (RAY,), WORKER: ()}


def test_rays_alone_of_another_phase_is_a_part() -> None:
    assert not taken(newborn(Phase.SERVING, units=(RAY,)))


# -- peers ---------------------------------------------------------------------------------------


def test_a_peer_that_is_not_heard_is_not_waited_for_except_while_forming() -> None:
    assert taken(newborn(fresh=False))
    assert not taken(newborn(Phase.FORMING, units=(RAY,), fresh=False))


@pytest.mark.parametrize(
    "status",
    [{"swept": False}, {"units": ()}, part(RAY, generation=6), part(RAY, state=UnitState.STOPPING)],
)
def test_a_peer_that_is_heard_without_its_part_speaks_against_it(status: dict) -> None:
    assert not taken(newborn(status=status))


def test_a_worker_of_the_native_backend_has_its_rank_to_show() -> None:
    native = {"backend": Backend.MP}
    assert not taken(newborn(units=(SERVE,), policy=native))
    assert taken(newborn(units=(SERVE,), status=part(SERVE), policy=native))


def test_a_part_is_there_while_it_starts_or_runs() -> None:
    for state in UnitState:
        peer = worker_seen(status_of_worker(**part(RAY, state=state)))
        assert has_part(peer, 7, (RAY,)) is (state in (UnitState.STARTING, UnitState.RUNNING))
    assert not has_part(worker_seen(status_of_worker(**part(RAY))), 7, (RAY, SERVE))


# -- daemons that were started anew --------------------------------------------------------------

RUNS = intent_of(wanted=((HEAD, (RAY, SERVE)), (WORKER, (RAY,))))


def leading(status: dict | None = None, intent=RUNS, **lead) -> Turn:
    there = worker_seen(status_of_worker(**{**part(RAY), **(status or {})}))
    return turn_of(head_state(Phase.SERVING, peer=there, intent=intent, **lead))


def said(turn: Turn) -> list[PublishIntent]:
    readdress(turn, turn.lead.intent)
    return [command for command in turn.commands if isinstance(command, PublishIntent)]


def test_whoever_is_addressed_is_told_nothing_again() -> None:
    assert said(leading()) == []


def test_a_new_daemon_with_its_part_is_addressed() -> None:
    (command,) = said(leading({"instance": "b#2"}))
    assert command.intent.instance_of(WORKER) == "b#2"
    assert command.intent.wanted == RUNS.wanted


@pytest.mark.parametrize("status", [{"swept": False}, {"units": ()}, part(RAY, generation=6)])
def test_a_new_daemon_without_its_part_is_not_addressed(status: dict) -> None:
    assert said(leading({"instance": "b#2", **status})) == []


def test_a_new_epoch_is_told_to_whoever_runs_it() -> None:
    (command,) = said(leading(epoch=3))
    assert command.intent.stamp == Stamp(3, 7)


def test_a_fence_is_not_said_again_here() -> None:
    assert said(leading({"instance": "b#2"}, intent=intent_of())) == []


def test_the_questions_about_a_peers_daemon() -> None:
    there = worker_seen(status_of_worker(**part(RAY)))
    assert is_addressed(RUNS, there)
    assert not is_addressed(RUNS, worker_seen(status_of_worker(instance="b#2")))
    assert not is_addressed(RUNS, replace(there, status=None))
    assert is_back(RUNS, there)
    assert not is_back(RUNS, replace(there, fresh=False))
    assert not is_back(RUNS, replace(there, status=None))
