"""A node's own part: what it starts, ends and answers, decision by decision (any sequence: test_machines)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from core.given import HEAD, NOW, RAY, SERVE, WORKER, head_state, intent_of, turn_of, unit, worker_state
from sparkd.core import member as m
from sparkd.core.commands import CheckModel, DrainSources, EndDaemon, StartUnit, StopUnit, SweepLeftovers
from sparkd.core.events import MembershipObserved
from sparkd.core.messages import Telemetry, UnitState
from sparkd.core.records import MemberRan, MemberRested, MemoryNotBack, UnitChanged
from sparkd.core.state import Member, Unit
from sparkd.signals.model import MemorySample
from sparkd.words import ENGINE, GIB, Phase, Settings, Stamp

CHECKED = {"checked_at_s": NOW}
WANTS_RAY = intent_of(wanted=((HEAD, (RAY, SERVE)), (WORKER, (RAY,))), settings=Settings(max_num_seqs=4))
WANTS_SERVE = intent_of(wanted=((HEAD, (SERVE,)), (WORKER, (SERVE,))))
GIVES_UP = intent_of(grace_s=0.5)


def decided(now=NOW, policy=None, state=None, **member):
    turn = turn_of(state or worker_state(**{**CHECKED, **member}), now, **(policy or {}))
    m.decide(turn)
    return turn


# -- leftovers -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("member", "orders"),
    [
        ({"swept": False}, [SweepLeftovers()]),
        ({"swept": False, "sweeping": True}, []),
        ({"swept": False, "sweep_after_s": NOW}, [SweepLeftovers()]),
        ({"swept": False, "sweep_after_s": NOW + 1}, []),
        ({"swept": True}, []),
    ],
)
def test_leftovers_are_looked_for_first_and_once(member, orders) -> None:
    turn = decided(**member)

    assert turn.commands == orders
    assert turn.member.sweeping is (bool(orders) or member.get("sweeping", False))


def test_who_only_observes_ends_and_checks_nothing_and_says_so() -> None:
    turn = decided(policy={"observe_only": True}, swept=False, checked_at_s=0.0)

    assert turn.commands == []
    assert (turn.member.ready, turn.member.not_ready) == (False, m.OBSERVES)
    again = decided(policy={"observe_only": True}, state=turn.state)
    assert again.state == turn.state


# -- starting ------------------------------------------------------------------------------------


def test_what_is_wanted_is_started_once_with_the_intents_settings() -> None:
    turn = decided(intent=WANTS_RAY, memory=MemorySample(NOW, 50, 119), ready=True, not_ready="x")

    assert turn.commands == [
        StartUnit(unit=RAY, stamp=Stamp(2, 7), settings=WANTS_RAY.settings),
    ]
    assert turn.member.units == (Unit(RAY, 7, UnitState.STARTING, NOW),)
    assert turn.records == [
        MemberRan(7, (50,), NOW),
        UnitChanged(RAY, 7, UnitState.STARTING),
    ]
    assert (turn.member.ready, turn.member.not_ready, turn.member.checked_at_s) == (None, None, float("-inf"))
    assert decided(state=turn.state).commands == []


def test_the_first_unit_begins_the_run_and_the_second_belongs_to_it() -> None:
    member = {"swept": True, "intent": WANTS_RAY, "checked_at_s": NOW, "memory": MemorySample(NOW, 50, 119)}
    both = turn_of(head_state(member=member))
    m.decide(both)

    assert [c.unit for c in both.commands] == [RAY, SERVE]
    assert [type(r).__name__ for r in both.records] == ["MemberRan", "UnitChanged", "UnitChanged"]


@pytest.mark.parametrize(
    "member",
    [
        {"swept": False, "sweeping": True},
        {"leaving": True},
        {"intent": replace(WANTS_RAY, phase=Phase.STOPPING)},
        {"units": (unit(generation=6, state=UnitState.STOPPING),)},
        {"units": (unit(RAY, UnitState.GONE),)},
        {"units": (unit(RAY, UnitState.EXITED),)},
    ],
)
def test_nothing_is_started_unswept_leaving_stopping_beside_an_older_or_twice(member) -> None:
    turn = decided(**{"intent": WANTS_RAY, "drained_generation": 9, **member})

    assert not [c for c in turn.commands if isinstance(c, StartUnit)]


def test_a_start_takes_back_the_answer_that_nothing_lives_here() -> None:
    said = ("emptied_generation", "fenced_generation", "drained_generation", "draining_generation")
    answered = decided(intent=WANTS_RAY, **dict.fromkeys(said, 7)).member
    older = decided(intent=WANTS_RAY, **dict(zip(said, (4, 3, 2, 5), strict=True))).member

    assert [getattr(answered, name) for name in said] == [6, 6, 6, 6]
    assert [getattr(older, name) for name in said] == [4, 3, 2, 5]


def test_what_is_there_before_a_start_is_the_baseline() -> None:
    row = (9 * GIB, 8 * GIB, 7 * GIB, 6 * GIB)
    sample = MemorySample(NOW, 5 * GIB, 119 * GIB)

    known = decided(intent=WANTS_RAY, memory=sample, returned=row)
    unknown = decided(intent=WANTS_RAY, returned=row, baseline_bytes=3, lowest_bytes=2)

    assert known.records[0] == MemberRan(7, (8 * GIB, 7 * GIB, 6 * GIB, 5 * GIB), NOW)
    member = known.member
    assert (member.baseline_bytes, member.lowest_bytes, member.ran) == (5 * GIB, 5 * GIB, True)
    assert (member.returned, member.leaking) == ((8 * GIB, 7 * GIB, 6 * GIB, 5 * GIB), True)
    assert unknown.records[0] == MemberRan(7, row, NOW)
    assert (unknown.member.baseline_bytes, unknown.member.lowest_bytes) == (None, None)
    assert not decided(intent=WANTS_RAY, memory=sample).member.leaking


# -- ending --------------------------------------------------------------------------------------


def test_what_is_not_wanted_is_ended_at_once_with_the_intents_grace() -> None:
    turn = decided(intent=GIVES_UP, units=(unit(RAY, UnitState.STARTING), unit()))

    assert turn.commands == [StopUnit(RAY, 7, 0.5), StopUnit(SERVE, 7, 0.5)]
    assert [(u.state, u.ordered, u.since_s) for u in turn.member.units] == [
        (UnitState.STOPPING, True, NOW)
    ] * 2


@pytest.mark.parametrize(
    ("units", "ended"),
    [
        ((unit(RAY), unit()), [SERVE]),
        ((unit(RAY), unit(state=UnitState.GONE)), [RAY]),
        ((unit(RAY), unit(state=UnitState.UNKILLABLE)), [RAY]),
        ((unit(RAY, UnitState.UNKILLABLE),), []),
        ((), []),
    ],
)
def test_in_an_ordered_stop_what_was_started_last_ends_first(units, ended) -> None:
    turn = decided(intent=replace(GIVES_UP, phase=Phase.STOPPING), units=units, drained_generation=7)

    assert [c.unit for c in turn.commands if isinstance(c, StopUnit)] == ended


@pytest.mark.parametrize(
    ("intent", "units", "ended"),
    [
        (WANTS_RAY, (unit(RAY),), []),
        (WANTS_RAY, (unit(RAY), unit()), [(SERVE, 7)]),
        (WANTS_RAY, (unit(RAY, generation=6),), [(RAY, 6)]),
        (WANTS_SERVE, (unit(RAY), unit()), [(RAY, 7)]),
    ],
)
def test_only_what_the_intent_names_of_its_own_generation_stays(intent, units, ended) -> None:
    turn = decided(intent=intent, units=units)

    assert [(c.unit, c.generation) for c in turn.commands if isinstance(c, StopUnit)] == ended


def test_an_end_without_an_outcome_is_ordered_again_after_its_grace_and_a_while() -> None:
    stopping = replace(unit(state=UnitState.STOPPING, ordered=True), since_s=NOW)

    early = decided(NOW + 20.499, intent=GIVES_UP, units=(stopping,))
    late = decided(NOW + 20.5, intent=GIVES_UP, units=(stopping,))

    assert [c for c in early.commands if isinstance(c, StopUnit)] == []
    assert min(early.wakes) <= NOW + 20.5
    assert [c for c in late.commands if isinstance(c, StopUnit)] == [StopUnit(SERVE, 7, 0.5)]
    stuck = decided(NOW + 99, intent=GIVES_UP, units=(replace(stopping, state=UnitState.UNKILLABLE),))
    assert [c for c in stuck.commands if isinstance(c, StopUnit)] == []


@pytest.mark.parametrize(
    ("before", "ordered"),
    [
        (unit(), True),
        (unit(state=UnitState.EXITED, code=1), False),
        (unit(state=UnitState.EXITED, ordered=True), True),
    ],
)
def test_an_exit_that_has_happened_stays_one_that_nobody_ordered(before, ordered) -> None:
    (ending,) = decided(intent=GIVES_UP, units=(before,)).member.units

    assert ending == replace(before, state=UnitState.STOPPING, ordered=ordered, since_s=NOW)


def stopped(state) -> bool:
    turn = turn_of(state)
    m.stop_unit(turn, turn.member.units[0], 1.0)
    return turn.member.units[0].established


def test_the_head_knows_by_rays_table_that_ray_had_come_up() -> None:
    one = {"units": (unit(RAY),)}
    before = {"units": (unit(RAY, established=True),)}

    assert not stopped(head_state(member=one))
    assert stopped(head_state(member=one, watch={"membership": MembershipObserved(7, ())}))
    assert stopped(head_state(member=before))


@pytest.mark.parametrize("phase", list(Phase))
def test_a_worker_knows_it_by_the_phase_that_the_head_tells(phase) -> None:
    state = worker_state(units=(unit(RAY),))
    head = replace(state.peers[0], telemetry=Telemetry(HEAD, "a#1", phase, 7))

    up = phase in (*ENGINE, Phase.VERIFYING, Phase.SERVING)
    assert stopped(replace(state, peers=(head,))) is up
    assert not stopped(state)
    assert not stopped(replace(state, peers=()))


# -- what is known of units ----------------------------------------------------------------------


def test_units_are_kept_in_order_and_what_is_over_for_two_generations() -> None:
    gone = [unit(RAY, UnitState.GONE, generation=g) for g in (3, 4, 5)]
    turn = turn_of(worker_state(units=(*gone, unit(SERVE, generation=2))))

    m.set_unit(turn, unit(SERVE, generation=5))
    m.set_unit(turn, unit(RAY, generation=5))

    assert turn.member.units == (
        unit(SERVE, generation=2),
        unit(RAY, UnitState.GONE, generation=4),
        unit(RAY, generation=5),
        unit(SERVE, generation=5),
    )
    assert m.find_unit(turn, SERVE, 5) == unit(SERVE, generation=5)
    assert m.find_unit(turn, SERVE, 4) is None
    assert m.find_unit(turn, RAY, 9) is None


def test_an_older_unit_that_is_told_of_late_is_kept_beside_a_newer_one() -> None:
    turn = turn_of(worker_state(units=(unit(RAY, generation=7),)))

    m.set_unit(turn, unit(RAY, UnitState.GONE, generation=6))
    m.set_unit(turn, unit(RAY, UnitState.GONE, generation=5))

    assert [u.generation for u in turn.member.units] == [6, 7]


# -- reading to the end --------------------------------------------------------------------------

OVER = (unit(RAY, UnitState.GONE), unit(state=UnitState.GONE))


@pytest.mark.parametrize(
    ("member", "drains"),
    [
        ({"units": OVER}, True),
        ({"units": (*OVER[:1], unit())}, False),
        ({"units": (unit(generation=6), *OVER)}, True),
        ({"units": OVER, "draining_generation": 7}, False),
        ({"units": OVER, "drained_generation": 7}, False),
        ({"units": OVER, "draining_generation": 6, "drained_generation": 6}, True),
        ({}, False),
    ],
)
def test_when_the_last_process_is_gone_its_logs_are_read_to_the_end_once(member, drains) -> None:
    turn = decided(**member)

    assert turn.commands == ([DrainSources(generation=7)] if drains else [])
    if drains:
        assert turn.member.draining_generation == 7


# -- the answer to a fence -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("member", "emptied"),
    [
        ({}, 7),
        ({"swept": False, "sweeping": True}, 0),
        ({"intent": None}, 0),
        ({"units": (unit(state=UnitState.STOPPING),)}, 0),
        ({"units": OVER}, 7),
        ({"emptied_generation": 8}, 8),
    ],
)
def test_a_fence_is_answered_when_nothing_lives_here_and_leftovers_were_looked_for(member, emptied) -> None:
    turn = decided(**{"intent": GIVES_UP, "draining_generation": 7, **member})

    assert turn.member.emptied_generation == emptied
    assert (turn.member.emptied_at_s == NOW) is (emptied == 7)


def test_where_units_are_wanted_no_fence_is_answered() -> None:
    wanted = decided(intent=WANTS_RAY, units=OVER, draining_generation=7)

    assert wanted.member.emptied_generation == 0


def test_a_generation_that_never_ran_here_has_nothing_to_read() -> None:
    assert decided(intent=GIVES_UP).member.drained_generation == 7
    assert decided(intent=GIVES_UP, drained_generation=9).member.drained_generation == 9
    assert decided(intent=GIVES_UP, units=OVER, draining_generation=7).member.drained_generation == 0


EMPTY = {
    "emptied_generation": 7,
    "emptied_at_s": NOW - 2.0,
    "fenced_generation": 6,
    "baseline_bytes": 50 * GIB,
    "ran": True,
}


@pytest.mark.parametrize(
    ("member", "now", "back"),
    [
        ({"baseline_bytes": None, "memory": MemorySample(NOW, 49 * GIB, 1)}, NOW, False),
        (
            {"baseline_bytes": None, "returned": (60, 50 * GIB), "memory": MemorySample(NOW, 49 * GIB, 1)},
            NOW,
            True,
        ),
        ({"memory": MemorySample(NOW, 49 * GIB, 1)}, NOW, True),
        ({"memory": MemorySample(NOW, 49 * GIB - 1, 1)}, NOW, False),
        ({"memory": MemorySample(NOW - 2.0, 49 * GIB, 1)}, NOW, True),
        ({"memory": MemorySample(NOW - 2.001, 49 * GIB, 1)}, NOW, False),
        ({}, NOW, False),
        ({}, NOW + 2.999, False),
        ({}, NOW + 3.0, True),
        ({"emptied_at_s": None}, NOW, False),
    ],
)
def test_memory_is_back_when_it_was_measured_or_waited_for_long_enough(member, now, back) -> None:
    turn = decided(now, **{**EMPTY, **member})

    assert turn.member.fenced_generation == (7 if back else 6)
    rested = [MemberRested(7, turn.member.returned)] if back else []
    assert [r for r in turn.records if isinstance(r, MemberRested)] == rested
    assert turn.member.ran is not back


@pytest.mark.parametrize(
    ("member", "lacking"),
    [
        ({}, None),
        ({"memory": MemorySample(NOW - 2.001, 40 * GIB, 1)}, None),
        ({"memory": MemorySample(NOW, 40 * GIB, 1)}, 10 * GIB),
        ({"memory": MemorySample(NOW, 40 * GIB, 1), "baseline_bytes": None}, None),
        (
            {"memory": MemorySample(NOW, 40 * GIB, 1), "baseline_bytes": None, "returned": (41 * GIB + 1,)},
            GIB + 1,
        ),
    ],
)
def test_a_wait_for_memory_that_is_over_is_an_answer_of_its_own(member, lacking) -> None:
    turn = decided(NOW + 3.0, **{**EMPTY, **member})

    assert (turn.member.fenced_generation, turn.member.unreleased_generation) == (7, 7)
    assert [r for r in turn.records if isinstance(r, MemoryNotBack)] == [MemoryNotBack(7, 5.0, lacking)]


def test_memory_that_was_measured_back_is_not_called_missing() -> None:
    turn = decided(NOW + 3.0, **{**EMPTY, "memory": MemorySample(NOW, 49 * GIB, 1)})

    assert (turn.member.fenced_generation, turn.member.unreleased_generation) == (7, 0)
    assert not [r for r in turn.records if isinstance(r, MemoryNotBack)]


def test_what_did_not_run_does_not_rest_and_an_answer_is_given_once() -> None:
    idle = decided(**{**EMPTY, "baseline_bytes": None, "ran": False})
    done = decided(**{**EMPTY, "fenced_generation": 7, "baseline_bytes": None})

    assert (idle.records, idle.member.fenced_generation) == ([], 7)
    assert (done.records, done.member.ran) == ([], True)


# -- the check before a launch -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("member", "policy", "checks"),
    [
        ({"checked_at_s": NOW - 5.0}, {}, True),
        ({"checked_at_s": NOW - 4.999}, {}, False),
        ({"checked_at_s": 0.0, "units": (unit(),)}, {}, False),
        ({"checked_at_s": 0.0, "units": OVER, "drained_generation": 7}, {}, True),
        ({"checked_at_s": 0.0, "leaving": True}, {}, False),
    ],
)
def test_what_a_launch_needs_is_checked_while_nothing_runs(member, policy, checks) -> None:
    turn = decided(policy=policy, **member)

    assert turn.commands == ([CheckModel()] if checks else [])
    assert turn.member.checked_at_s == (NOW if checks else member["checked_at_s"])


# -- leaving -------------------------------------------------------------------------------------


def leaves(since_s, *units, now=NOW, ending=None, **member):
    state = worker_state(**{**CHECKED, "leaving": True, "drained_generation": 9, "units": units, **member})
    return decided(now, state=replace(state, leaving_since_s=since_s, ending_since_s=ending))


def test_a_daemon_that_leaves_ends_when_nothing_lives_here() -> None:
    turn = leaves(NOW, unit(state=UnitState.GONE), ran=True, returned=(3,))

    assert (turn.commands, turn.state.ending_since_s) == ([EndDaemon()], NOW)
    assert turn.records == [MemberRested(7, (3,))]
    assert leaves(NOW, ending=NOW).commands == []
    assert leaves(None).commands == []


def test_an_end_that_had_no_effect_is_ordered_again_in_peace() -> None:
    waits, again = leaves(NOW - 60, ending=NOW - 9.999), leaves(NOW - 60, ending=NOW - 10.0)

    assert (waits.commands, waits.state.ending_since_s) == ([], NOW - 9.999)
    assert min(waits.wakes) <= NOW + 0.001 + 1e-9
    assert (again.commands, again.state.ending_since_s) == ([EndDaemon()], NOW)


def test_what_survives_sigkill_does_not_hold_a_daemon_and_does_not_rest() -> None:
    turn = leaves(NOW, unit(RAY, UnitState.UNKILLABLE), ran=True)

    assert turn.commands == [EndDaemon()]
    assert turn.records == []
    assert leaves(NOW, unit(RAY, UnitState.UNKILLABLE), unit()).commands == []


def test_a_worker_that_leaves_waits_for_the_fence_and_then_ends_its_member_itself() -> None:
    early = leaves(NOW - 5.999, unit(RAY), unit())
    late = leaves(NOW - 6.0, unit(RAY), unit())

    assert (early.commands, early.state.ending_since_s) == ([], None)
    assert min(early.wakes) <= NOW + 0.001 + 1e-9
    assert late.commands == [StopUnit(RAY, 7, 10.0), StopUnit(SERVE, 7, 10.0)]
    assert late.state.ending_since_s is None


def test_what_an_earlier_daemon_left_is_looked_for_before_this_one_ends() -> None:
    waits = leaves(NOW - 5.999, swept=False, sweeping=True)
    over = leaves(NOW - 6.0, swept=False, sweeping=True)

    assert (waits.commands, waits.state.ending_since_s) == ([], None)
    assert over.commands == [EndDaemon()]


@pytest.mark.parametrize(
    ("changes", "touched"),
    [
        ({"member": Member()}, True),
        ({"leaving_since_s": NOW}, True),
        ({"ending_since_s": NOW}, True),
        ({"broker": True, "peers": (), "seen": Stamp(9, 9)}, False),
    ],
)
def test_a_settled_member_is_touched_by_what_it_looks_at(changes, touched) -> None:
    settled = worker_state()

    assert m.is_touched(settled, replace(settled, **changes)) is touched
