"""One world from its plan to its verdict."""

from __future__ import annotations

import gc
import hashlib
from dataclasses import dataclass

from sim.chaos import liveness
from sim.chaos.daemon import TIMED_EVERY
from sim.chaos.plan import Plan, draw
from sim.chaos.world import Violation, World

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
    core_s: float  # of all steps, by the share that was measured
    rule: str | None = None
    text: str = ""
    at_s: float = 0.0
    digest: str = ""
    log: list[tuple[float, str, str]] | None = None


def run(plan: Plan, *, tracing: bool = False, digest: bool = False) -> Verdict:
    """Run *plan*: the safety stretch, then the healing and what must come of it."""
    said = hashlib.sha256() if digest else None
    world = World(plan, said, tracing=tracing)
    verdict = Verdict(plan.seed, 0.0, 0, 0.0)
    try:
        world.run(plan.safety_s)
        liveness.demand(world)
    except Violation as found:
        verdict.rule, verdict.text, verdict.at_s = found.rule, found.text, found.at_s
    verdict.virtual_s, verdict.steps = world.now, world.steps
    verdict.core_s = world.timed_s * TIMED_EVERY
    verdict.digest = said.hexdigest() if said is not None else ""
    verdict.log = world.log
    return verdict


def run_seed(seed: int) -> Verdict:
    """Run the world of *seed*."""
    return run(draw(seed))
