"""`sparkctl replay FILE`: the decisions of a recorded incident, made again with this version's code.

FILE is what `sparkctl --json incidents show N` printed. Exit status: 0 = every decision is the same,
1 = at least one differs, 2 = the file cannot be used.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sparkd.cli.layout import safe
from sparkd.cli.recorded import not_understood, understood
from sparkd.core.decision import Case, decide
from sparkd.core.policy import Policy
from sparkd.core.remedy import Remedy
from sparkd.export.human import changes_text
from sparkd.intake.files import UnusableError
from sparkd.signals.model import Diagnosis

SAME, DIFFERS, UNUSABLE = 0, 1, 2
_COMPARED = ("cause", "phase", "node", "action", "settings")


@dataclass(frozen=True, slots=True)
class _Named:
    """What is compared of a recorded diagnosis."""

    cause: str
    phase: str | None
    node: str
    explanation: str


@dataclass(frozen=True, slots=True)
class _Decided:
    """What is compared of a recorded decision."""

    generation: int
    diagnosis: _Named
    action: str
    settings_after: dict[str, Any]
    explanation: str


@dataclass(frozen=True, slots=True)
class Again:
    """One decision: as it was recorded, and as it would be now."""

    generation: int
    then: dict[str, Any]
    now: dict[str, Any]

    @property
    def differing(self) -> list[str]:
        """What differs, by name."""
        return [name for name in _COMPARED if self.then[name] != self.now[name]]


def run(options: argparse.Namespace) -> int:
    """Replay the file and print where today's decisions differ."""
    try:
        decisions = replay(_document(options.file))
    except UnusableError as error:
        print(f"sparkctl: {safe(f'{options.file}: {error}')}", file=sys.stderr)
        return UNUSABLE
    if options.json:
        print(json.dumps([asdict(one) | {"differing": one.differing} for one in decisions], indent=2))
    else:
        print(safe("\n".join(line for one in decisions for line in _lines(one))))
    return DIFFERS if any(one.differing for one in decisions) else SAME


def replay(document: dict[str, Any]) -> list[Again]:
    """Return every decision of a recorded incident beside today's.

    Raises:
        UnusableError: it has none, or they cannot be understood.
    """
    judged, remedies = document.get("judged"), document.get("remedies")
    if not judged or not isinstance(judged, list) or not isinstance(remedies, list):
        raise UnusableError(
            "has no recorded decisions: make it with: sparkctl --json incidents show N > FILE"
        )
    left: list[_Decided] = [understood(_Decided, document, "remedies", at) for at in range(len(remedies))]
    return [_again(document, at, left) for at in range(len(judged))]


def _again(document: dict[str, Any], at: int, left: list[_Decided]) -> Again:
    """Make a decision again; its record is the first that is left of its generation."""
    case: Case = understood(Case, document, "judged", at, "case")
    policy: Policy = understood(Policy, document, "judged", at, "policy")
    then = next((one for one in left if one.generation == case.generation), None)
    if then is None:
        why = f"holds no decision of generation {case.generation}, which judged[{at}] is of"
        raise not_understood("remedies", why)
    left.remove(then)
    try:
        return Again(case.generation, _then(then), _now(*decide(case, policy)))
    except (ArithmeticError, ValueError) as error:
        why = f"has numbers that nothing can be worked out from ({error})"
        raise not_understood(f"judged[{at}]", why) from error


def _then(recorded: _Decided) -> dict[str, Any]:
    diagnosis = recorded.diagnosis
    return {
        "cause": diagnosis.cause,
        "phase": diagnosis.phase,
        "node": diagnosis.node,
        "action": recorded.action,
        "settings": recorded.settings_after,
        "explanation": recorded.explanation,
        "why": diagnosis.explanation,
    }


def _now(diagnosis: Diagnosis, chosen: Remedy) -> dict[str, Any]:
    plain: dict[str, Any] = json.loads(
        json.dumps(
            {
                "cause": diagnosis.cause,
                "phase": diagnosis.phase,
                "node": diagnosis.node,
                "action": chosen.action,
                "settings": asdict(chosen.settings),
                "explanation": chosen.explanation,
                "why": diagnosis.explanation,
            }
        )
    )
    return plain


def _lines(one: Again) -> list[str]:
    if not one.differing:
        return [f"generation {one.generation}: {one.now['cause']}, {one.now['action']}: the same as recorded"]
    lines = [f"generation {one.generation}: differs in {', '.join(one.differing)}"]
    for word, side in (("recorded", one.then), ("now", one.now)):
        lines.append(f"  {word:9} {side['cause']} · {side['phase']} · {side['node']} · {side['action']}")
        lines.append(f"            {side['why']}")
        lines.append(f"            {side['explanation']}")
    lines += [f"  settings  {change}" for change in changes_text(one.then["settings"], one.now["settings"])]
    return lines


def _refused(constant: str) -> float:
    raise ValueError(f"{constant} is no number")


def _document(path: str) -> dict[str, Any]:
    try:
        text = sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8-sig")
        document = json.loads(text, parse_constant=_refused)
    except OSError as error:
        raise UnusableError(error.strerror or str(error)) from error
    except (ValueError, RecursionError) as error:
        raise UnusableError(f"is no JSON ({error})") from error
    if not isinstance(document, dict):
        raise UnusableError("is no recorded incident: make it with: sparkctl --json incidents show N > FILE")
    return document
