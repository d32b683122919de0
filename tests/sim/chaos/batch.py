"""The fixed worlds of `make sim` as tests: four files share them, so that two workers can."""

from __future__ import annotations

from sim.chaos.run import run_seed

WORLDS = 2000
FILES = 4
SLICE = 50


def slices(part: int) -> list[int]:
    """Return the first seeds of the slices of one file, from 0."""
    size = WORLDS // FILES
    return list(range(part * size, (part + 1) * size, SLICE))


def broken(first: int) -> list[str]:
    """Run one slice; return what was broken, each with the command that tells its story."""
    found = []
    for seed in range(first, first + SLICE):
        verdict = run_seed(seed)
        if verdict.rule is not None:
            command = f"PYTHONPATH=daemon:tests .venv/bin/python -m sim.chaos --worlds 1 --seed {seed}"
            found.append(f"{verdict.rule}: {verdict.text}\n  shrink and tell: {command}")
    return found
