"""One world from its plan to its verdict."""

from __future__ import annotations

import gc
import hashlib
from dataclasses import dataclass
from time import process_time

from sim.chaos import liveness
from sim.chaos.plan import Plan, draw
from sim.chaos.world import Violation, World
from sparkd.core.step import step

# A world's objects live until it ends: looking for garbage among them costs a fifth of the time.
gc.collect()
gc.freeze()
gc.set_threshold(50_000, 20, 20)


@dataclass(slots=True)
class Verdict:
    """How a world went."""

    seed: int
    virtual_s: float
    steps: int
    sampled: int = 0  # steps that were done again and measured
    core_s: float = 0.0  # of the processor, for those
    world_s: float = 0.0  # of the processor, for the whole world
    rule: str | None = None
    text: str = ""
    at_s: float = 0.0
    digest: str = ""
    log: list[tuple[float, str, str]] | None = None


def run(plan: Plan, *, tracing: bool = False, digest: bool = False) -> Verdict:
    """Run *plan*: the safety stretch, then the healing and what must come of it."""
    begun_s = process_time()
    said = hashlib.sha256() if digest else None
    world = World(plan, said, tracing=tracing)
    verdict = Verdict(plan.seed, 0.0, 0)
    try:
        world.run(plan.safety_s)
        liveness.demand(world)
    except Violation as found:
        verdict.rule, verdict.text, verdict.at_s = found.rule, found.text, found.at_s
    verdict.virtual_s, verdict.steps = world.now, world.steps
    verdict.world_s = process_time() - begun_s
    if verdict.rule is None:
        verdict.sampled, verdict.core_s = len(world.sample), _core_s(world)
    verdict.digest = said.hexdigest() if said is not None else ""
    verdict.log = world.log
    return verdict


def _core_s(world: World) -> float:
    """Return the processor's seconds for the sampled steps, done again in a row.

    A clock read around a step within the world is a call of the system, which costs as much as a part of the
    step and slows what follows it. A step is pure: with the same arguments it does the same again.
    """
    begun_s = process_time()
    for state, events, now, policy in world.sample:
        step(state, events, now, policy)
    return process_time() - begun_s


def run_seed(seed: int) -> Verdict:
    """Run the world of *seed*."""
    return run(draw(seed))
