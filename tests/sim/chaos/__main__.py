"""`python -m sim.chaos --worlds N --seed S [--jobs J]`: the last line is JSON.

`steps_per_second` is the core's own speed on one core: steps (invariants included) for a second of processor
time, over every 7th step of all worlds: each world's are done again in a row when it has ended, with the
same arguments, so that nothing but `step` is measured and no reading of the clock disturbs it.
`world_steps_per_second` counts all of the processor's time: broker, engines, checkers and the wire, too.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from multiprocessing import get_context

from sim.chaos.plan import Plan, draw
from sim.chaos.run import Verdict, run, run_seed
from sim.chaos.shrink import shrink

LINES_MAX = 160


def main(argv: list[str] | None = None) -> int:
    """Run worlds; return 1 where a rule was broken."""
    options = _parsed(argv)
    if options.only:
        return _one(options)
    seeds = range(options.seed, options.seed + options.worlds)
    hours = steps = sampled = core_s = world_s = 0.0
    broken: list[Verdict] = []
    for verdict in _verdicts(seeds, options.jobs):
        hours += verdict.virtual_s / 3600
        steps += verdict.steps
        sampled += verdict.sampled
        core_s += verdict.core_s
        world_s += verdict.world_s
        if verdict.rule is not None:
            broken.append(verdict)
            print(f"seed {verdict.seed}: {verdict.rule}: {verdict.text}", flush=True)
    for verdict in broken[: options.explain]:
        explain(draw(verdict.seed))
    summary = {
        "worlds": len(seeds),
        "virtual_hours": round(hours, 1),
        "steps_per_second": round(sampled / core_s) if core_s else 0,
        "world_steps_per_second": round(steps / world_s) if world_s else 0,
        "violations": len(broken),
    }
    print(json.dumps(summary))
    return 1 if broken else 0


def _parsed(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m sim.chaos", description=__doc__.partition("\n")[0])
    parser.add_argument("--worlds", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0, help="of the first world")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--explain", type=int, default=3, help="violations to shrink and tell")
    parser.add_argument("--only", action="store_true", help="run the one world of --seed and tell its story")
    parser.add_argument("--faults", default="", help="with --only: numbers of the faults to keep")
    parser.add_argument("--digest", action="store_true", help="with --only: say the digest of its commands")
    return parser.parse_args(argv)


def _verdicts(seeds: range, jobs: int) -> Iterator[Verdict]:
    if jobs <= 1:
        yield from map(run_seed, seeds)
        return
    with get_context("fork").Pool(jobs) as pool:
        yield from pool.imap_unordered(run_seed, seeds, chunksize=8)


def explain(plan: Plan) -> None:
    """Shrink a plan that breaks a rule, and tell its shortest story."""
    first = run(plan)
    if first.rule is None:
        return
    small = shrink(plan, first.rule, lambda p: run(p).rule)
    numbers = [i for i, fault in enumerate(plan.faults) if fault in small.faults]
    verdict = run(small, tracing=True)
    print(f"\n== seed {plan.seed}: {verdict.rule}\n   {verdict.text}")
    _tell(small, verdict)
    kept = ",".join(map(str, numbers)) or "none"
    command = f"python -m sim.chaos --only --seed {plan.seed} --faults {kept}"
    print(f"   repeat: PYTHONPATH=daemon:tests .venv/bin/{command}")


def _tell(plan: Plan, verdict: Verdict) -> None:
    print(f"   {len(plan.names)} nodes, {plan.backend}, {len(plan.faults)} faults, codec {plan.codec}")
    for at_s, what, text in (verdict.log or [])[-LINES_MAX:]:
        print(f"   {at_s:9.3f} {what:>9} {text[:300]}")


def _one(options: argparse.Namespace) -> int:
    plan = draw(options.seed)
    if options.faults == "none":
        plan = plan.without(())
    elif options.faults:
        plan = plan.without(tuple(plan.faults[int(n)] for n in options.faults.split(",")))
    if options.digest:
        print(run(plan, digest=True).digest)
        return 0
    verdict = run(plan, tracing=True)
    _tell(plan, verdict)
    print(f"seed {plan.seed}: {verdict.rule or 'every rule held'} {verdict.text}")
    return 1 if verdict.rule else 0


if __name__ == "__main__":
    sys.exit(main())
