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

from pydantic import TypeAdapter, ValidationError

from sparkd.cli.layout import safe
from sparkd.core.decision import Case, decide
from sparkd.core.policy import Policy
from sparkd.core.remedy import Remedy
from sparkd.signals.model import Diagnosis

SAME, DIFFERS, UNUSABLE = 0, 1, 2
_COMPARED = ("cause", "phase", "node", "action", "settings")


class UnusableError(Exception):
    """The file is no recorded incident; the text says what to do."""


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
        print(f"sparkctl: {error}", file=sys.stderr)
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
            "the file has no recorded decisions; make it with: sparkctl --json incidents show N > FILE"
        )
    left = list(remedies)
    return [_again(entry, left) for entry in judged]


def _again(entry: dict[str, Any], left: list[dict[str, Any]]) -> Again:
    """Make a decision again; its record is the first that is left of its generation."""
    try:
        case = TypeAdapter(Case).validate_python(entry["case"])
        policy = TypeAdapter(Policy).validate_python(entry["policy"])
        index = next(i for i, remedied in enumerate(left) if remedied.get("generation") == case.generation)
        return Again(case.generation, _then(left.pop(index)), _now(*decide(case, policy)))
    except _NOT_UNDERSTOOD as error:
        where = str(error).partition("\n")[0] or type(error).__name__
        raise UnusableError(f"a recorded decision cannot be understood ({where})") from error


# Numbers that no recorded incident holds end in the arithmetic.
_NOT_UNDERSTOOD = (
    ValidationError,
    KeyError,
    TypeError,
    AttributeError,
    StopIteration,
    ArithmeticError,
    ValueError,
)


def _then(entry: dict[str, Any]) -> dict[str, Any]:
    diagnosis = entry["diagnosis"]
    return {
        "cause": diagnosis["cause"],
        "phase": diagnosis["phase"],
        "node": diagnosis["node"],
        "action": entry["action"],
        "settings": entry["settings_after"],
        "explanation": entry["explanation"],
        "why": diagnosis["explanation"],
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
    return lines


def _refused(constant: str) -> float:
    raise ValueError(f"{constant} is no number")


def _document(path: str) -> dict[str, Any]:
    try:
        text = sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8-sig")
        document = json.loads(text, parse_constant=_refused)
    except OSError as error:
        raise UnusableError(f"{path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise UnusableError(f"{path}: is no JSON ({error})") from error
    if not isinstance(document, dict):
        raise UnusableError(f"{path}: is no recorded incident")
    return document
