"""Tells the figures of the last run, a module a line, and which mutants are left."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from mutmut.stats import status_by_exit_code

FOLDER = Path("mutants/src/sparkd/core")
FOUND = ("killed", "timeout")
LEFT = ("survived", "no tests", "suspicious", "segfault")


def main() -> None:
    """Print a table for docs/mutants.md; what `make lint` refuses is counted apart."""
    total: Counter[str] = Counter()
    left: list[str] = []
    print("| module | mutants | refused by types | killed | time | left | share |")
    print("|---|---|---|---|---|---|---|")
    for path in sorted(FOLDER.glob("*.py.meta")):
        codes = json.loads(path.read_text())["exit_code_by_key"]
        verdicts = {name: status_by_exit_code[code] for name, code in codes.items()}
        if verdicts:
            counted = Counter(verdicts.values())
            total += counted
            print(row(path.name.removesuffix(".py.meta"), counted))
        left += [name for name, verdict in verdicts.items() if verdict in LEFT]
    print(row("all", total))
    print("\n".join(["", "left (`mutmut show NAME` tells each):", *left]))


def row(name: str, counted: Counter[str]) -> str:
    """Return a line of the table; the share is of those that types let pass."""
    found = sum(counted[verdict] for verdict in FOUND)
    left = sum(counted[verdict] for verdict in LEFT)
    share = f"{100 * found / (found + left):.1f} %" if found + left else "-"
    cells = (
        name,
        counted.total(),
        counted["caught by type check"],
        counted["killed"],
        counted["timeout"],
        left,
        share,
    )
    return "| " + " | ".join(map(str, cells)) + " |"


if __name__ == "__main__":
    main()
