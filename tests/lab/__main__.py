"""`make lab`: what goes wrong on real machines, and what sparkd makes of it.

Two parts. *Engines*: two real daemons, the real Ray and the real vLLM, in two network namespaces. *Nodes*:
two booted systems with real units, journal, polkit and mosquitto, and the stand-in engine (`nodes_*`).

Prints one table and writes build/lab.json (the old one is deleted first), where rounds are asked for
(`--rounds`) also build/lab-long.json: a row a scenario, with `runs` and each time's p50 and worst. Exit
status 1 if one row is not ok. By default every scenario is lived through twice in a row, each time on a
fresh cluster.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import pathlib
import shutil
import statistics
import subprocess
import sys
import time
from typing import Any

from cluster import DeadlineError
from lab import by_hand, netns, nodes_run, repeated, site, systemd_pair
from lab.engine_env import REPOSITORY, EngineEnvError, engine_env
from lab.scenarios import ORDER, Result

OUT = REPOSITORY / "build" / "lab.json"
LONG = REPOSITORY / "build" / "lab-long.json"
COLUMNS = ("scenario", "ok", "cause", "detect_s", "fence_s", "decide_s", "serving_s", "raw_start_s")
KILLS = ("worker_sigkill", "raylet_sigkill", "serve_sigkill")
DECIDED_MAX_S = 3.0
OVERHEAD_MAX_S = 5.0


def say(text: str) -> None:
    """Progress, at once."""
    print(text, flush=True)


def say_row(result: Result, took_s: float) -> None:
    """Say how a scenario went, at once."""
    verdict = f"{'ok' if result.ok else 'NOT OK':<7} {took_s:6.1f} s"
    say(f"  {result.scenario:<38} {verdict}  {result.cause or ''}  {result.note[:2000]}")


def raw_start(env: pathlib.Path, model: pathlib.Path, times: int) -> float:
    """Start the engine by hand, without sparkd: the reference. Returns the median of seconds."""
    spent = []
    for _ in range(times):
        with by_hand.engine(env, model) as running:
            spent.append(running.seconds["raw_start_s"])
    return statistics.median(spent)


async def live_through(where: site.Site, names: set[str] | None) -> list[Result]:
    """Run the scenarios in their order on one cluster."""
    results = []
    for scenario, expected in ORDER:
        name = scenario.__name__
        if names is not None and name not in names and name != "first_start":
            continue
        result = Result(scenario=name, expected_cause=expected)
        begun = time.monotonic()
        try:
            await scenario(where, result)
        except (DeadlineError, LookupError, OSError, KeyError) as error:
            result.note = f"{type(error).__name__}: {error}"
        results.append(result)
        say_row(result, time.monotonic() - begun)
        if not result.ok and name == "first_start":
            break
    return results


async def keep_incidents(where: site.Site, folder: pathlib.Path) -> None:
    """Keep every incident as `sparkctl --json incidents show N` prints it: what `sparkctl replay` takes."""
    head = where.cluster.head
    found = [s["incident"] for s in await head.ask("GET", "/incidents")]
    _write_incidents(folder, [await head.ask("GET", f"/incidents/{number}") for number in found])


def _write_incidents(folder: pathlib.Path, documents: list[dict[str, Any]]) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for document in documents:
        path = folder / f"{document['incident']:02}-{document['cause']}.json"
        path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def one_round(env: pathlib.Path, model: pathlib.Path, names: set[str] | None, number: int) -> list[Result]:
    """Live through everything once, on fresh namespaces."""
    with netns.pair() as (head, worker):
        where = site.make(env, model, head, worker)

        async def lived() -> list[Result]:
            try:
                lived = await live_through(where, names)
                await keep_incidents(where, REPOSITORY / "build" / f"lab-incidents-{number}")
                return lived
            finally:
                await where.cluster.stop()

        try:
            return asyncio.run(lived())
        finally:
            site.keep_logs(where, REPOSITORY / "build" / f"lab-logs-{number}")


def table(results: list[Result]) -> str:
    """Return the table for people."""
    rows = [list(COLUMNS)] + [[_cell(getattr(result, name)) for name in COLUMNS] for result in results]
    widths = [max(len(row[i]) for row in rows) for i in range(len(COLUMNS))]
    return "\n".join("  ".join(map(str.ljust, row, widths)) for row in rows)


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "ok" if value else "NOT OK"
    return "-" if value is None else f"{value:.2f}" if isinstance(value, float) else str(value)


def figures(results: list[Result], raw_s: float | None) -> dict[str, Any]:
    """Return what has to be shown beside the rows: time to the decision, sparkd's own share of a start."""
    kills = [r for r in results if r.scenario in KILLS and None not in {r.detect_s, r.fence_s, r.decide_s}]
    decided = [r.detect_s + max(r.fence_s, r.decide_s) for r in kills]
    ordered = [r.detect_s for r in kills]
    starts = [r.serving_s for r in results if r.scenario == "first_start" and r.serving_s is not None]
    own_s = None if raw_s is None or not starts else round(statistics.median(starts) - raw_s, 1)
    return {
        "kill_to_decided_median_s": round(statistics.median(decided), 2) if decided else None,
        "kill_to_fence_ordered_median_s": round(statistics.median(ordered), 2) if ordered else None,
        "own_share_of_start_s": own_s,
    }


def commit() -> str:
    """Return the commit of the working tree, marked where it has changes."""
    found = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=40"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    return found.stdout.strip() or "unknown"


def main() -> int:
    """Run the lab from the command line."""
    parser = argparse.ArgumentParser(prog="make lab")
    rounds = parser.add_mutually_exclusive_group()
    rounds.add_argument("--once", action="store_const", const=1, dest="rounds", help="one round, not two")
    rounds.add_argument("--rounds", type=int, metavar="N", help="so many, and what came of all in one row")
    parser.add_argument("--summary", action="store_true", help="end with 'N passed, N failed'")
    parser.add_argument("--only", nargs="*", metavar="SCENARIO", help="first_start and these alone")
    parser.add_argument(
        "--no-raw", action="store_true", help="do not start the engine by hand for comparison"
    )
    options = parser.parse_args()
    known = {*nodes_run.NAMES, *(scenario.__name__ for scenario, _ in ORDER)}
    if unknown := sorted(set(options.only or ()) - known):
        print(
            f"make lab: no scenario {', '.join(unknown)}; there are {', '.join(sorted(known))}",
            file=sys.stderr,
        )
        return 2
    OUT.unlink(missing_ok=True)
    if (why := netns.why_not() or systemd_pair.missing()) is not None and why:
        print(f"make lab: {why}", file=sys.stderr)
        return 2
    netns.cleanup()
    try:
        return run(options)
    except EngineEnvError as error:
        print(f"make lab: {error}", file=sys.stderr)
        return 2


def run(options: argparse.Namespace) -> int:
    """Live through it, print and write what came of it."""
    chosen = None if options.only is None else set(options.only)
    ofnodes = None if chosen is None else chosen & set(nodes_run.NAMES)
    results: list[Result] = []
    if ofnodes is None or ofnodes:
        say("on two nodes with systemd:")
        for number in range(1, (options.rounds or 2) + 1):
            say(f"round {number}:")
            results += nodes_run.lived(ofnodes, say_row)
    raw_s = None
    if chosen is None or chosen - set(nodes_run.NAMES):
        ofengines, raw_s = with_engines(options, chosen)
        results += ofengines
    return report(results, raw_s, summary=options.summary, long=(options.rounds or 1) > 1)


def with_engines(options: argparse.Namespace, chosen: set[str] | None) -> tuple[list[Result], float | None]:
    """Live through what needs the real engines; also how long they take by hand. Raises EngineEnvError."""
    env = engine_env()
    model = by_hand.make_model(env)
    raw_s = None
    if not options.no_raw:
        say("by hand, without sparkd:")
        raw_s = raw_start(env, model, min(2, options.rounds or 2))
        say(f"  raw start {raw_s:.1f} s")
    results: list[Result] = []
    for number in range(1, (options.rounds or 2) + 1):
        say(f"round {number}:")
        results += one_round(env, model, chosen, number)
    for result in results:
        result.raw_start_s = raw_s
    return results, raw_s


def report(results: list[Result], raw_s: float | None, *, summary: bool, long: bool) -> int:
    """Print the table, write the file, return the exit status."""
    shown = figures(results, raw_s)
    document = {"commit": commit(), **shown, "scenarios": [dataclasses.asdict(r) for r in results]}
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text(json.dumps(document, indent=1), encoding="utf-8")
    if long:
        document = {"commit": commit(), **shown, "scenarios": repeated.rows(results)}
        LONG.write_text(json.dumps(document, indent=1), encoding="utf-8")
    say("\n" + table(results))
    say("  ".join(f"{name} {value}" for name, value in shown.items()))
    failed = [result for result in results if not result.ok]
    for result in failed:  # once more at the end, where whoever sees only the tail of a run looks
        say(f"NOT OK {result.scenario} (cause {result.cause}): {result.note[:1000]}")
    if summary:
        say(f"{len(results) - len(failed)} passed, {len(failed)} failed")
    return 1 if failed or not results else 0


if __name__ == "__main__":
    sys.exit(main())
