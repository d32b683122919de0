"""After the great healing everything must come right, within a bound that the policy gives."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sim.chaos.judgements import LEAKS, SURVIVES
from sparkd.core import events as ev
from sparkd.core.policy import Policy
from sparkd.core.release import PATIENCE
from sparkd.words import GIB, Phase

if TYPE_CHECKING:
    from sim.chaos.world import World

RESTS = (Phase.SERVING, Phase.ESCALATED, Phase.STOPPED, Phase.PAUSED, Phase.IDLE)
ENDS = (Phase.SERVING, Phase.ESCALATED)
EMPTY = (Phase.STOPPED, Phase.ESCALATED, Phase.IDLE)
"""Where nothing runs, whoever decided it."""
LAUNCHES = 14
"""More tries than any budget and ladder of these policies allow in one go."""
HOLD_S = 200.0
"""So long what serves must go on serving: longer than a canary's and a hang's patience together."""
ROUNDS = 6
"""So often a person does what sparkd says is needed."""
EMPTY_S = 90.0
LEAVE_S = 60.0


def bound(policy: Policy) -> float:
    """Return the longest that the cluster may take to come to a rest, in seconds."""
    notice_s = policy.no_progress_s + policy.canary_idle_s + policy.verify_deadline_s + policy.peer_silence_s
    stuck_s = max(limit_s for _, limit_s in policy.phase_budget_s)
    start_s = sum(limit_s for _, limit_s in policy.phase_budget_s) / 4
    fence_s = 3 * (policy.stop_grace_s + 26.0) + PATIENCE * policy.memory_release_s + 2 * policy.resend_s
    once_s = (
        stuck_s + start_s + fence_s + policy.backoff_max_s + policy.model_check_s + policy.drain_deadline_s
    )
    return LEAVE_S + notice_s + LAUNCHES * once_s


def demand(world: World) -> None:
    """Heal the world and demand that it comes right; violates where it does not."""
    policy = world.policies[world.head]
    world.heal()
    verb = world.check.judge.last_verb
    world.run(world.now + 3.0)
    if policy.observe_only:
        world.run(world.now + HOLD_S)
        return
    limit_s = bound(policy)
    _await(world, lambda: world.phase in RESTS and _settled(world, verb), limit_s, "it comes to a rest")
    _nothing_lives(world)
    for _ in range(ROUNDS):
        if _comes_right(world, limit_s):
            return
    if world.check.judge.satisfiable(slack=3 * GIB):
        world.violate("after the healing it serves", f"{world.phase} after {ROUNDS} rounds")


def _comes_right(world: World, limit_s: float) -> bool:
    """A person does what is needed and asks for the start; return whether it serves, and goes on serving."""
    if world.phase is Phase.ESCALATED:
        _do_what_is_needed(world)
    if world.phase is not Phase.SERVING:
        world.ask(world.head, ev.Verb.RESUME)
        world.ask(world.head, ev.Verb.START)
        world.run(world.now + 1.0)
    _await(world, lambda: world.phase in ENDS, limit_s, "it serves or is given up")
    if world.phase is Phase.SERVING and not world.run(world.now + HOLD_S, lambda: _left(world)):
        _serves(world)
        return True
    _await(world, lambda: world.phase in ENDS, limit_s, "it serves or is given up again")
    return False


def _nothing_lives(world: World) -> None:
    """Where it is called stopped, given up or idle, nothing is left running."""
    if world.phase not in EMPTY or world.run(world.now + EMPTY_S, lambda: _moves(world)):
        return
    for machine in world.machines.values():
        for tree in machine.trees:
            if tree.alive:
                text = f"{tree.unit} of {tree.generation} on {machine.name} though it is {world.phase}"
                world.violate("what is stopped is dead", text)


def _moves(world: World) -> bool:
    return world.phase not in EMPTY


def _left(world: World) -> bool:
    return world.phase is not Phase.SERVING


def _settled(world: World, verb: ev.Verb | None) -> bool:
    """What a person asked last is so, where the daemon that was asked still lives."""
    judge = world.check.judge
    if judge.last_verb is not verb:
        return True
    if verb is ev.Verb.STOP:
        return world.phase in EMPTY  # idle: a new daemon that knows of the stop begins nothing
    if verb is ev.Verb.PAUSE:
        return world.phase in (Phase.PAUSED, *EMPTY)
    return True


def _await(world: World, done: object, limit_s: float, what: str) -> None:
    if done() or world.run(world.now + limit_s, done):
        return
    text = f"not in {limit_s:.0f} s: {world.phase}; {world.told_waiting()}"
    world.violate(f"after the healing {what}", text)


def _do_what_is_needed(world: World) -> None:
    """A person reads why it was given up, and does it."""
    reason = world.check.judge.gave_up
    said = next((said for said in (SURVIVES, LEAKS) if reason.startswith(said)), None)
    if said is not None:
        for name in reason[len(said) :].split(", "):
            world.machines[name].lose_power("kept")
            world.blame_node(name, "a person rebooted it")
            world.at(5.0, world.power_on, name)
        world.run(world.now + 40.0)


def _serves(world: World) -> None:
    """What is called serving is whole, on every node, and nothing is left open."""
    judge = world.check.judge
    engine = world.engines.get(judge.verified)
    if engine is None or not engine.whole() or engine.hung:
        world.violate("serving is true", f"generation {judge.verified} is not whole")
    if judge.incident is not None:
        world.violate("every incident ends", f"incident {judge.incident} is open though it serves")
    for machine in world.machines.values():
        strange = [
            tree.generation for tree in machine.trees if tree.alive and tree.generation != judge.verified
        ]
        if strange:
            world.violate("one generation at a time", f"{strange} lives on {machine.name} at the end")
