"""Failures by class, from `data/cases.txt`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

HEALTHY_CAUSES = ("none", "clean_shutdown")


@dataclass
class Case:
    """What one failure prints."""

    cause: str
    lines: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"{self.cause}: {self.lines[-1][-50:]}"


def _read(name: str) -> tuple[list[Case], dict[str, list[str]]]:
    cases: list[Case] = []
    parts: dict[str, list[str]] = {}
    lines: list[str] = []
    text = (Path(__file__).parent / "data" / name).read_text(encoding="utf-8")
    for line in text.splitlines():
        if line.startswith("# "):
            continue
        if line.startswith("~ "):
            lines = parts.setdefault(line[2:], [])
        elif line.startswith("= "):
            cases.append(Case(line[2:]))
            lines = cases[-1].lines
        else:
            lines.append(line)
    return cases, parts


_CASES, _PARTS = _read("cases.txt")
VARIANTS, _ = _read("variants.txt")
NOISE, CASCADE, SURVIVOR = _PARTS["noise"], _PARTS["cascade"], _PARTS["survivor"]
CASES = [case for case in _CASES if case.cause not in HEALTHY_CAUSES]
HEALTHY = [case for case in _CASES if case.cause in HEALTHY_CAUSES]
