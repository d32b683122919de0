"""A node's own part: reconcile the units that are wanted with the units that there are.

The member starts a unit only for the intent that it has accepted, only once, and only when nothing older
is alive here. It never restarts anything by itself: an exit is reported, and the coordinator decides.
"""

from __future__ import annotations

from dataclasses import replace

from sparkd.core import release
from sparkd.core.commands import (
    CheckModel,
    DrainSources,
    EndDaemon,
    EvictPages,
    StartUnit,
    StopUnit,
    SweepLeftovers,
)
from sparkd.core.leak import leaks
from sparkd.core.messages import Intent, UnitState
from sparkd.core.records import MemberRan, MemberRested, UnitChanged
from sparkd.core.state import State, Unit
from sparkd.core.turn import Turn
from sparkd.words import ENGINE, Phase, UnitName

LEAVING_PATIENCE_S = 6.0
"""How long a leaving worker waits for the coordinator's fence before it stops its own member: a few resends
(`Policy.resend_s`) of that fence, well within the 90 s that systemd gives a service by default."""


def decide(turn: Turn) -> None:
    """Order what this node's member needs now."""
    _sweep(turn)
    if turn.member.intent is not None:
        _stop_unwanted(turn, turn.member.intent)
        _start_wanted(turn, turn.member.intent)
    _drain(turn)
    _note_empty(turn)
    _note_memory_back(turn)
    _check_model(turn)
    _leave(turn)


def is_touched(settled: State, state: State) -> bool:
    """Return whether anything that `decide` looks at is another than in *settled*, where it had settled."""
    return (
        state.member is not settled.member
        or state.leaving_since_s != settled.leaving_since_s
        or state.ending_since_s != settled.ending_since_s
    )


OBSERVES = "its sparkd only observes (recovery.observe_only)"


def alive(turn: Turn) -> tuple[Unit, ...]:
    """Return the units of which any process may exist, in the order of starting."""
    return tuple([unit for unit in turn.member.units if unit.alive])


def set_unit(turn: Turn, unit: Unit) -> None:
    """Replace (or add) a unit, and forget what is over and older than the newest two generations."""
    others = [u for u in turn.member.units if (u.unit, u.generation) != (unit.unit, unit.generation)]
    newest = max([unit.generation, *(u.generation for u in others)])
    kept = [u for u in [*others, unit] if u.alive or u.generation >= newest - 1]
    order = list(UnitName)
    turn.set_member(units=tuple(sorted(kept, key=lambda u: (u.generation, order.index(u.unit)))))


def find_unit(turn: Turn, unit: UnitName, generation: int) -> Unit | None:
    """Return the record of a unit, None where it was never started here."""
    for known in turn.member.units:
        if known.unit == unit and known.generation == generation:
            return known
    return None


def _sweep(turn: Turn) -> None:
    member = turn.member
    if turn.policy.observe_only:
        if member.not_ready != OBSERVES:
            turn.set_member(ready=False, not_ready=OBSERVES)
        return  # to look for leftovers is to end them
    if not member.swept and not member.sweeping and turn.due(member.sweep_after_s):
        turn.set_member(sweeping=True)
        turn.order(SweepLeftovers())


def _stop_unwanted(turn: Turn, intent: Intent) -> None:
    unwanted = [unit for unit in alive(turn) if not _is_wanted(unit, intent, turn.state.node)]
    if intent.phase is Phase.STOPPING:
        # In order: nobody serves from a cluster that is being taken apart. Last started, first stopped.
        killable = [unit for unit in unwanted if unit.state is not UnitState.UNKILLABLE]
        unwanted = killable[-1:]
    for unit in unwanted:
        end_unit(turn, unit, intent.grace_s)


STOP_AGAIN_S = 20.0
"""A stop without an outcome for so long beyond its grace is ordered again: it is idempotent. An adapter's own
outcomes come within 5 s of SIGKILL, and a command ends by its deadline of 10 s (`loop.executor`)."""


def end_unit(turn: Turn, unit: Unit, grace_s: float) -> None:
    """Order a unit's end, and again where no outcome came; an unkillable one is left to a person."""
    if unit.state is UnitState.UNKILLABLE:
        return
    if unit.state is not UnitState.STOPPING or turn.due(unit.since_s + grace_s + STOP_AGAIN_S):
        stop_unit(turn, unit, grace_s)


def stop_unit(turn: Turn, unit: Unit, grace_s: float) -> None:
    """Order the end of a unit's whole tree; an exit that has already happened stays unordered."""
    ordered = unit.ordered or unit.state is not UnitState.EXITED
    established = unit.established or _established(turn)
    ending = replace(unit, state=UnitState.STOPPING, ordered=ordered, established=established)
    set_unit(turn, replace(ending, since_s=turn.now))
    turn.order(StopUnit(unit=unit.unit, generation=unit.generation, grace_s=grace_s))


def _established(turn: Turn) -> bool:
    """Whether this node's Ray has been up: the head saw its table, a worker hears the engine's phase."""
    lead = turn.state.coordinator
    if lead is not None:
        return lead.watch.membership is not None
    head = turn.state.peer(turn.policy.head)
    heard = head.telemetry if head is not None else None
    return heard is not None and heard.phase in UP


UP = (*ENGINE, Phase.VERIFYING, Phase.SERVING)


def _is_wanted(unit: Unit, intent: Intent, node: str) -> bool:
    return unit.generation == intent.stamp.generation and unit.unit in intent.units_of(node)


def _start_wanted(turn: Turn, intent: Intent) -> None:
    member = turn.member
    if not member.swept or member.leaving or intent.phase is Phase.STOPPING:
        return
    generation = intent.stamp.generation
    if any(unit.generation != generation for unit in alive(turn)):
        return  # nothing starts beside an older generation
    for name in intent.units_of(turn.state.node):
        if find_unit(turn, name, generation) is None:
            _start(turn, name, intent)


def _start(turn: Turn, name: UnitName, intent: Intent) -> None:
    if not alive(turn):
        _begin_run(turn, intent.stamp.generation)
    # What was there for this start may be gone at the next one: it is looked for anew after the end.
    turn.set_member(ready=None, not_ready=None, checked_at_s=float("-inf"))
    generation = intent.stamp.generation
    _take_back_answers(turn, generation)
    set_unit(turn, Unit(unit=name, generation=generation, state=UnitState.STARTING, since_s=turn.now))
    turn.order(StartUnit(unit=name, stamp=intent.stamp, settings=intent.settings))
    turn.note(UnitChanged(unit=name, generation=generation, state=UnitState.STARTING))


def _begin_run(turn: Turn, generation: int) -> None:
    """Note what is there before a start: what comes back less with every one is leaking."""
    member = turn.member
    sample = member.memory
    available = sample.available_bytes if sample is not None else None
    returned = member.returned
    if available is not None:
        returned = (*returned, available)[-turn.policy.leak_cycles :]
    turn.note(MemberRan(generation=generation, returned=returned, at_s=turn.now))
    turn.set_member(
        baseline_bytes=available,
        lowest_bytes=available,
        ran=True,
        ran_at_s=turn.now,
        returned=returned,
        leaking=leaks(returned, turn.policy),
    )


def runs_on(turn: Turn) -> None:
    """What an earlier daemon started runs on here: its start's memory is the last that was noted."""
    member = turn.member
    available = member.memory.available_bytes if member.memory is not None else None
    generation = max(u.generation for u in alive(turn))
    turn.note(MemberRan(generation=generation, returned=member.returned, at_s=member.ran_at_s))
    turn.set_member(
        baseline_bytes=member.returned[-1] if member.returned else None, lowest_bytes=available, ran=True
    )


def _take_back_answers(turn: Turn, generation: int) -> None:
    """Take back what was true while only other nodes had units: nothing of it lives here, and all is read."""
    member = turn.member
    turn.set_member(
        emptied_generation=min(member.emptied_generation, generation - 1),
        fenced_generation=min(member.fenced_generation, generation - 1),
        drained_generation=min(member.drained_generation, generation - 1),
        draining_generation=min(member.draining_generation, generation - 1),
    )


def _drain(turn: Turn) -> None:
    """When the last process of a generation is gone, read its logs to the end."""
    member = turn.member
    generation = max([unit.generation for unit in member.units], default=0)
    if generation <= max(member.drained_generation, member.draining_generation):
        return
    if not any(unit.alive for unit in member.units if unit.generation == generation):
        turn.set_member(draining_generation=generation)
        turn.order(DrainSources(generation=generation))


def _note_empty(turn: Turn) -> None:
    """The explicit answer to a fence: nothing of this generation or an older one lives here."""
    member = turn.member
    intent = member.intent
    if intent is None or not member.swept or alive(turn) or intent.units_of(turn.state.node):
        return
    generation = intent.stamp.generation
    if generation > member.emptied_generation:
        turn.set_member(
            emptied_generation=generation, emptied_at_s=turn.now, rose_bytes=0, rose_at_s=turn.now
        )
        if turn.policy.unified_memory and not turn.policy.observe_only:
            turn.order(EvictPages())
        if not any(unit.generation == generation for unit in member.units):
            turn.set_member(drained_generation=max(member.drained_generation, generation))


def _note_memory_back(turn: Turn) -> None:
    member = turn.member
    if member.fenced_generation >= member.emptied_generation or member.emptied_at_s is None:
        return
    if release.is_over(turn, member.emptied_at_s):
        turn.set_member(fenced_generation=member.emptied_generation)
        _rest(turn, member.emptied_generation)


def _rest(turn: Turn, generation: int) -> None:
    """Nothing runs here any more: an end of the boot is no unclean one from here on."""
    if turn.member.ran:
        turn.note(MemberRested(generation=generation, returned=turn.member.returned))
        turn.set_member(ran=False)


def _check_model(turn: Turn) -> None:
    """What a launch needs is checked while nothing runs; a serving engine is left in peace.

    While processes end there is time for it: the launch after a failure does not wait for it then.
    """
    member = turn.member
    if (
        turn.policy.observe_only
        or any(unit.state in (UnitState.STARTING, UnitState.RUNNING) for unit in member.units)
        or member.leaving
        or not turn.due(member.checked_at_s + turn.policy.model_check_s)
    ):
        return
    turn.set_member(checked_at_s=turn.now)
    turn.order(CheckModel())


END_AGAIN_S = 10.0
"""A daemon that was told to end is gone within a second or two; after so long it is told again."""


def _leave(turn: Turn) -> None:
    """A daemon that ends takes its child processes along, after the coordinator's fence or alone."""
    since_s, ending_since_s = turn.state.leaving_since_s, turn.state.ending_since_s
    if since_s is None or (ending_since_s is not None and not turn.due(ending_since_s + END_AGAIN_S)):
        return
    if not turn.member.swept and not turn.due(since_s + LEAVING_PATIENCE_S):
        return  # nobody knows yet what an earlier daemon left here
    if not alive(turn) or all(unit.state is UnitState.UNKILLABLE for unit in alive(turn)):
        if not alive(turn):
            _rest(turn, max((unit.generation for unit in turn.member.units), default=0))
        turn.set_state(ending_since_s=turn.now)
        turn.order(EndDaemon())
    elif turn.due(since_s + LEAVING_PATIENCE_S):
        for unit in alive(turn):
            end_unit(turn, unit, turn.policy.stop_grace_s)
