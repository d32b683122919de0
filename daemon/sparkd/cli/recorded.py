"""A recorded incident, given to `sparkctl diagnose`: judged from the evidence that the daemon kept."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from sparkd.intake.files import UnusableError
from sparkd.signals.assess import Assessment
from sparkd.signals.judge import weigh
from sparkd.signals.model import Evidence

# An incident is at most some hundred records; a log that begins as one is larger or has other lines.
_BYTES_MAX = 64 << 20
_BEGINS = re.compile(rb'(?:\xef\xbb\xbf)?\s*\{\s*"incident"\s*:')
_HEAD_BYTES = 256


def incident_in(name: str) -> dict[str, Any] | None:
    """Return the incident that a file holds (`sparkctl --json incidents show N`), else None."""
    path = Path(name)
    try:
        if not path.is_file() or path.stat().st_size > _BYTES_MAX:
            return None
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
        document = json.loads(path.read_bytes()) if _BEGINS.match(head) else None
    except (OSError, ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) and document.get("judged") else None


def assessed(name: str, document: dict[str, Any]) -> Assessment:
    """Return what the evidence of an incident's last decision proves.

    Raises UnusableError where it cannot be understood.
    """
    from pydantic import TypeAdapter, ValidationError  # which no log needs

    try:
        evidence = TypeAdapter(Evidence).validate_python(document["judged"][-1]["case"]["evidence"])
    except (ValidationError, KeyError, TypeError, IndexError) as error:
        where = str(error).partition("\n")[0]
        raise UnusableError(
            f"{name}: a recorded incident that cannot be understood ({where}): was it cut or changed? "
            "Make it anew with: sparkctl --json incidents show N > FILE"
        ) from error
    diagnosis, weighed = weigh(evidence)
    return Assessment(diagnosis, weighed)
