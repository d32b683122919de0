"""The parts under any order of events: a worker's member, and the coordinator's account of relaunches.

The machines keep their own truth (which processes live, what was ordered) and compare.
"""

from __future__ import annotations

from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sim.world import TOTAL_BYTES, make_policy
from sparkd.core import commands as co
from sparkd.core import events as ev
from sparkd.core.beginning import Remembered, initial
from sparkd.core.messages import Intent
from sparkd.core.records import InvariantBroken
from sparkd.core.restart import backoff, jittered, spend, spent_on
from sparkd.core.step import step
from sparkd.signals.model import MemorySample
from sparkd.words import GIB, Phase, Settings, Stamp, UnitName

RAY, SERVE = UnitName.RAY, UnitName.SERVE
UNITS = st.sampled_from(UnitName)
WANTED = st.sampled_from([(), (RAY,), (RAY, SERVE)])


class Member(RuleBasedStateMachine):
    """A worker's member: whatever comes in whatever order, it starts nothing beside something older."""

    @initialize()
    def boot(self) -> None:
        self.policy = make_policy("spark-b")
        self.state = initial(self.policy, "b#1", Remembered(), 0.0)
        self.now = 0.0
        self.living: set[tuple[UnitName, int]] = set()
        self.ever: set[tuple[UnitName, int]] = set()
        self.wanted: dict[int, tuple[UnitName, ...]] = {}
        self.seq = 0
        self.newest = 0
        self.tell(ev.BrokerChanged(connected=True))

    def tell(self, *events: ev.Event) -> None:
        result = step(self.state, events, self.now, self.policy)
        self.state = result.state
        assert not [r for r in result.records if isinstance(r, InvariantBroken)], result.records
        for command in result.commands:
            self.obey(command)

    def obey(self, command: co.Command) -> None:
        if isinstance(command, co.StartUnit):
            started = (command.unit, command.stamp.generation)
            assert self.state.member.swept, "started before leftovers were looked for"
            assert started not in self.ever, "the same unit of a generation started twice"
            assert all(generation == started[1] for _, generation in self.living), "beside an older one"
            assert command.unit in self.wanted.get(started[1], ()), "nobody wanted it"
            self.living.add(started)
            self.ever.add(started)

    @rule(survivors=st.booleans())
    def sweep(self, survivors: bool) -> None:
        if self.state.member.sweeping:
            self.tell(ev.LeftoversSwept((), ()) if not survivors else ev.CommandFailed("SweepLeftovers", "x"))

    @rule(wanted=WANTED, newer=st.booleans(), how=st.sampled_from(["", "", "", "", "late", "other", "kept"]))
    def intent(self, wanted, newer: bool, how: str) -> None:
        late, mine, retained = how == "late", how != "other", how == "kept"
        generation = self.newest + newer if not late else max(0, self.newest - 1)
        self.seq += 1
        intent = Intent(
            stamp=Stamp(1, generation),
            seq=self.seq,
            coordinator="a#1",
            node="spark-a",
            addressees=(("spark-b", "b#1" if mine else "b#0"),),
            wanted=(("spark-a", ()), ("spark-b", wanted)),
            settings=Settings(),
            shared_digest="shared",
            node_digests=(("spark-b", "digest-spark-b"),),
            phase=Phase.FORMING if wanted else Phase.FENCING,
            grace_s=1.0,
        )
        before = self.state.member.intent
        self.newest = max(self.newest, generation)
        if mine and not retained and generation == self.newest:
            self.wanted[generation] = (*self.wanted.get(generation, ()), *wanted)
        self.tell(ev.IntentReceived(intent, retained))
        if not mine or retained:
            assert self.state.member.intent == before, "an order for somebody else was obeyed"

    @rule(unit=UNITS, code=st.integers(0, 1))
    def exits(self, unit: UnitName, code: int) -> None:
        for living in [entry for entry in self.living if entry[0] is unit]:
            self.tell(ev.UnitExited(*living, code=code))

    @rule(unit=UNITS)
    def is_empty(self, unit: UnitName) -> None:
        for dead in [entry for entry in self.living if entry[0] is unit]:
            self.living.discard(dead)
            self.tell(ev.UnitEmptied(*dead))

    @rule(unit=UNITS, generation=st.integers(0, 5))
    def late_news(self, unit: UnitName, generation: int) -> None:
        if (unit, generation) not in self.living:
            self.tell(ev.UnitExited(unit, generation, code=0), ev.UnitEmptied(unit, generation))

    @rule(free=st.integers(1, 100))
    def memory(self, free: int) -> None:
        self.tell(ev.MemoryObserved(MemorySample(self.now, free * GIB, TOTAL_BYTES)))

    @rule(span_s=st.sampled_from([0.1, 1.0, 30.0, 400.0]))
    def time(self, span_s: float) -> None:
        self.now += span_s
        self.tell(ev.TimerFired())

    @rule()
    def drained(self) -> None:
        self.tell(ev.SourcesDrained(self.state.member.draining_generation))

    @invariant()
    def answers_are_true(self) -> None:
        member = self.state.member
        assert all(generation > member.emptied_generation for _, generation in self.living)
        assert member.fenced_generation <= member.emptied_generation

    @precondition(lambda self: not self.living)
    @rule()
    def a_fence_is_answered_in_the_end(self) -> None:
        """With nothing alive and leftovers looked for, the next fence is answered within its deadline."""
        if not self.state.member.swept:
            return
        self.intent((), True, "")
        self.time(self.policy.memory_release_s + 1)
        assert self.state.member.fenced_generation == self.newest


class Account(RuleBasedStateMachine):
    """Relaunches per cause within a window, against a plain list of what was spent."""

    def __init__(self) -> None:
        super().__init__()
        self.policy = replace(make_policy("spark-a"), budget_window_s=100.0)
        self.spent: tuple[tuple[str, float], ...] = ()
        self.plain: list[tuple[str, float]] = []
        self.now = 0.0

    @rule(cause=st.sampled_from("abc"))
    def relaunch(self, cause: str) -> None:
        self.spent = spend(cause, self.spent, self.policy, self.now)
        self.plain.append((cause, self.now))

    @rule(span_s=st.floats(0.0, 80.0))
    def time(self, span_s: float) -> None:
        self.now += span_s

    @invariant()
    def counts_what_lies_within_the_window(self) -> None:
        for cause in "abc":
            expected = sum(1 for c, at_s in self.plain if c == cause and at_s > self.now - 100.0)
            assert spent_on(cause, self.spent, self.policy, self.now) == expected

    @invariant()
    def waits_stay_within_bounds(self) -> None:
        policy = replace(self.policy, backoff_base_s=10.0)
        waits = [backoff(n, policy) for n in range(1, len(self.plain) + 3)]
        assert waits == sorted(waits)
        assert all(10.0 <= wait_s <= policy.backoff_max_s for wait_s in waits)
        assert all(w <= jittered(w, str(n), policy) <= 1.1 * w for n, w in enumerate(waits))


QUICK = settings(max_examples=60, stateful_step_count=40)
TestMember = Member.TestCase
TestMember.settings = QUICK
TestAccount = Account.TestCase
TestAccount.settings = QUICK
