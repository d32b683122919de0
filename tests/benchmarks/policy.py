"""How well the ladder ends memory failures, against two habits and an oracle.

Run: make bench-policy [SEED=s]. The last line is JSON:

- `relaunches_mean`: relaunches until it serves, over the cases that can be recovered; who does not get there
  counts with `RELAUNCHES_MAX`.
- `one_relaunch_share`: of those cases, recovered with one relaunch.
- `repeat_failure_share`: of all relaunches ordered, those that failed again.
- `kv_kept`: KV cache of the recovered settings over the oracle's, at most 1 a case, mean over the recovered.
- `recovered_share`: of the cases that can be recovered.
- `hopeless`: cases for which the oracle finds no settings within the operator's floors, counted apart: how
  many, and for sparkd the share in which it ended with a person, the share in which it served all the same (a
  context between the oracle's steps, a start with luck), and the relaunches of all.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from benchmarks.policy_logs import ENDED_S, NODE, Heard, read
from benchmarks.policy_rivals import FixedLadder, Oracle, SameSettings, best_settings
from benchmarks.policy_world import GIB, Outcome, Truth, make_case, noise_of, run
from sparkd.core import restart
from sparkd.core.policy import Policy
from sparkd.core.remedy import Action, Facts, choose
from sparkd.signals.model import Curve, Diagnosis
from sparkd.words import Backend, Settings

CASES = 500
RELAUNCHES_MAX = 10


class Player(Protocol):
    """Who gets a failed generation and says what comes next."""

    def next(self, settings: Settings, outcome: Outcome) -> Settings | None: ...


class Sparkd:
    """The real remedy, fed with what the running daemon would know, the files' sizes with it."""

    sizing = True

    def __init__(self, truth: Truth) -> None:
        self.truth = truth
        self.policy = Policy(
            node=NODE,
            head=NODE,
            nodes=((NODE, "10.77.0.1"), ("spark-b", "10.77.0.2"))[: 2 if truth.unified else 1],
            gpus=1 if truth.unified else truth.ranks,
            backend=Backend.RAY if truth.ray else Backend.MP,
            settings=truth.asked,
            floors=truth.floors,
            guard_enforcing=truth.guard,
            unified_memory=truth.unified,
        )
        self.causes: tuple[str, ...] = ()
        self.spent: restart.Spent = ()
        self.failed: tuple[Settings, ...] = ()
        self.said: list[str] = []
        self.escalated = False

    def next(self, settings: Settings, outcome: Outcome) -> Settings | None:
        lowest = self._lowest(outcome)
        samples = () if lowest is None else ((ENDED_S, lowest),)
        total = int(self.truth.memory_total * GIB)
        curve = Curve(NODE, total, self.policy.guard_floor_bytes, samples, lowest)
        diagnosis, heard = read(self.truth, settings, outcome, curve)
        now = 600.0 * len(self.causes)
        chosen = choose(diagnosis, self._facts(settings, outcome, heard), self.policy, now)
        self.spent = restart.spend(diagnosis.cause, self.spent, self.policy, now)
        self.causes = (*self.causes, diagnosis.cause)
        self.failed = (*self.failed, settings)
        self.said.append(f"{_what(diagnosis)}: {chosen.explanation}")
        self.escalated = chosen.action is Action.ESCALATE
        return None if self.escalated else chosen.settings

    def _lowest(self, outcome: Outcome) -> int | None:
        """Return the least of the node's memory that was measured available, bytes."""
        if not outcome.sampled_used or (not self.truth.unified and outcome.killer == "torch"):
            return None
        read_at_trip = outcome.used if outcome.killer == "guard" else outcome.sampled_used
        return int((self.truth.memory_total - read_at_trip) * GIB)

    def _facts(self, settings: Settings, outcome: Outcome, heard: Heard) -> Facts:
        truth, lowest = self.truth, self._lowest(outcome)
        request = (
            heard.kv_cache_bytes / heard.kv_requests if heard.kv_cache_bytes and heard.kv_requests else None
        )
        weights, tokens = heard.weights_bytes, heard.request_tokens
        if self.sizing:  # what a log says goes before what the files tell, as in the daemon
            weights = weights or int(truth.weights * GIB * 1.01)
            tokens = tokens or truth.length(settings)
            request = request or truth.needed_kv(settings) * GIB * 1.01
        return Facts(
            settings=settings,
            failures=len(self.causes) + 1,
            spent=self.spent,
            kv_cache_bytes=heard.kv_cache_bytes,
            total_bytes=int(truth.memory_total * GIB),
            causes=self.causes,
            baseline_bytes=int((truth.memory_total - truth.node_used - noise_of(truth, 0).host) * GIB),
            lowest_available_bytes=lowest,
            loading_available_bytes=int((truth.memory_total - outcome.snapshot) * GIB)
            if outcome.snapshot
            else None,
            request_kv_bytes=int(request) if request else None,
            request_tokens=tokens,
            weights_bytes=weights,
            failed=self.failed,
            sizes=heard.sizes,
        )


def _bytes(gib: float) -> int:
    return int(gib * GIB)


class UnsizedSparkd(Sparkd):
    """The same, where the files cannot be read: weights and KV cache are known once a log says them."""

    sizing = False


def _what(diagnosis: Diagnosis) -> str:
    return f"{diagnosis.cause}/{diagnosis.phase}"


@dataclass
class Score:
    """What one policy did with the cases that can be recovered."""

    relaunches: list[int] = field(default_factory=list)
    recovered: list[bool] = field(default_factory=list)
    kept: list[float] = field(default_factory=list)
    orders: int = 0
    again: int = 0

    def add(self, story: Story, best_kv: float) -> None:
        self.orders += story.relaunches
        self.again += story.relaunches - (1 if story.recovered else 0)
        self.recovered.append(story.recovered)
        self.relaunches.append(story.relaunches if story.recovered else RELAUNCHES_MAX)
        if story.recovered:
            self.kept.append(min(1.0, story.kv / best_kv))

    def summary(self) -> dict[str, float]:
        one = [r and n == 1 for r, n in zip(self.recovered, self.relaunches, strict=True)]
        return {
            "relaunches_mean": round(statistics.fmean(self.relaunches), 3),
            "one_relaunch_share": round(statistics.fmean(one), 4),
            "repeat_failure_share": round(self.again / max(1, self.orders), 4),
            "kv_kept": round(statistics.fmean(self.kept), 4) if self.kept else 0.0,
            "recovered_share": round(statistics.fmean(self.recovered), 4),
        }


@dataclass
class Story:
    """One case played by one policy."""

    relaunches: int
    recovered: bool
    kv: float
    settings: Settings


def play(truth: Truth, player: Player) -> Story:
    """Play until it serves, the policy gives up, or the limit is reached."""
    settings = truth.asked
    outcome = run(truth, settings, 0)
    for attempt in range(1, RELAUNCHES_MAX + 1):
        following = player.next(settings, outcome)
        if following is None:
            return Story(attempt - 1, recovered=False, kv=0.0, settings=settings)
        settings = following
        outcome = run(truth, settings, attempt)
        if outcome.serves:
            return Story(attempt, recovered=True, kv=outcome.kv or 0.0, settings=settings)
    return Story(RELAUNCHES_MAX, recovered=False, kv=0.0, settings=settings)


PLAYERS: dict[str, Callable[[Truth], Player]] = {
    "sparkd": Sparkd,
    "sparkd_unsized": UnsizedSparkd,
    "fixed_ladder": FixedLadder,
    "same_settings": SameSettings,
    "oracle": Oracle,
}


def bench(seed: str, cases: int, tell: Callable[[str], None]) -> dict[str, object]:
    """Return the figures of one seed; *tell* gets a line for each case that sparkd did not end in one."""
    scores = {name: Score() for name in PLAYERS}
    hopeless: list[tuple[bool, bool, int]] = []
    for number in range(cases):
        truth = make_case(f"{seed}:{number}")
        best = best_settings(truth)
        if best is None:
            sparkd = Sparkd(truth)
            story = play(truth, sparkd)
            hopeless.append((sparkd.escalated, story.recovered, story.relaunches))
            continue
        for name, player in PLAYERS.items():
            made = player(truth)
            story = play(truth, made)
            scores[name].add(story, best[1])
            if name == "sparkd" and isinstance(made, Sparkd):
                _explain(number, truth, story, made=made, best=best, tell=tell)
    return {
        "cases": cases,
        "seed": seed,
        **{name: score.summary() for name, score in scores.items()},
        "hopeless": _hopeless(hopeless),
    }


def _hopeless(stories: list[tuple[bool, bool, int]]) -> dict[str, float]:
    """What sparkd did where the oracle finds nothing."""
    escalated, recovered, relaunches = zip(*stories, strict=True) if stories else ((True,), (False,), (0,))
    return {
        "cases": len(stories),
        "sparkd_escalated_share": round(statistics.fmean(escalated), 4),
        "sparkd_recovered_share": round(statistics.fmean(recovered), 4),
        "sparkd_relaunches_mean": round(statistics.fmean(relaunches), 3),
    }


def _explain(
    number: int,
    truth: Truth,
    story: Story,
    *,
    made: Sparkd,
    best: tuple[Settings, float],
    tell: Callable[[str], None],
) -> None:
    kept = story.kv / best[1]
    kind = "unified" if truth.unified else "discrete"
    first = run(truth, truth.asked, 0)
    tell(
        f"{number} {kind} {first.killer}/{first.phase} n={story.relaunches} ok={story.recovered} "
        f"kept={kept:.2f} "
        f"kv={story.kv:.1f}/{best[1]:.1f} | " + " | ".join(made.said)
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", default="1")
    parser.add_argument("--cases", type=int, default=CASES)
    parser.add_argument("--tell", action="store_true", help="a line for every case")
    args = parser.parse_args()
    print(json.dumps(bench(args.seed, args.cases, print if args.tell else lambda _line: None)))


if __name__ == "__main__":
    main()
