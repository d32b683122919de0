"""The state diagrams of docs/phases.md are the transition tables, drawn.

Rewrite them after a change of the tables: SPARKD_REWRITE=1 pytest tests/architecture/test_diagrams.py
"""

from __future__ import annotations

import os
from pathlib import Path

from sparkd.core.by_hand import PAUSABLE
from sparkd.core.messages import UnitState
from sparkd.core.phases import TRANSITIONS
from sparkd.words import ENGINE, LIVE, Phase

DOCS = Path(__file__).parents[2] / "docs" / "phases.md"
REWRITE = "SPARKD_REWRITE"
INTRO = """# Phases

Where a generation is, and where it may go from there. This page is drawn from the tables in
`core/phases.py` by a test; what is not drawn here raises.

"""


def diagram(edges: list[tuple[str, str]]) -> str:
    drawn = (f"    {before} --> {after}" for before, after in edges)
    return "\n".join(["```mermaid", "stateDiagram-v2", *drawn, "```"]) + "\n"


def overview() -> list[tuple[str, str]]:
    """The engine's phases as one state."""

    def name(phase: Phase) -> str:
        return "engine" if phase in ENGINE else phase.value

    edges = [(name(a), name(b)) for a, afters in TRANSITIONS.items() for b in afters]
    return sorted({edge for edge in edges if edge[0] != edge[1]}, key=edges.index)


def engine() -> list[tuple[str, str]]:
    return [(a.value, b.value) for a in ENGINE for b in TRANSITIONS[a] if b in ENGINE]


def page() -> str:
    parts = [
        INTRO,
        "## A generation\n\n`engine` stands for the engine's own phases, drawn below.\n\n",
        diagram(overview()),
        "\n## Within the engine\n\nIts phases may be skipped and come in its own order; sparkd only moves\n",
        "on. Each may also fail, be fenced, be stopped, or be verified.\n\n",
        diagram(engine()),
        "\n## Words\n\n",
        f"- An exit that nobody ordered is a failure in: {', '.join(LIVE)}.\n",
        f"- A pause takes effect in: {', '.join(PAUSABLE)}.\n",
        f"- A unit is one of: {', '.join(UnitState)}. Dead is `gone` alone: no process of its tree lives.\n",
    ]
    return "".join(parts)


def test_the_diagrams_are_the_tables() -> None:
    if os.environ.get(REWRITE):
        DOCS.write_text(page(), encoding="utf-8")
    assert DOCS.read_text(encoding="utf-8") == page(), f"{REWRITE}=1 rewrites docs/phases.md"


def test_every_phase_can_be_reached_and_left() -> None:
    reached = {after for afters in TRANSITIONS.values() for after in afters}
    assert set(Phase) - reached <= {Phase.IDLE}
    assert all(TRANSITIONS[phase] for phase in Phase)
