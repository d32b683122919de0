"""A recorded incident, given to `sparkctl diagnose`: judged from the evidence that the daemon kept."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from sparkd.intake.files import NoLogError, UnusableError
from sparkd.intake.opening import STDIN, begun, opened
from sparkd.signals.assess import Assessment
from sparkd.signals.judge import weigh
from sparkd.signals.model import Evidence

# An incident is at most some hundred records; a log that begins as one is larger or has other lines.
_BYTES_MAX = 64 << 20
_BEGINS = re.compile(rb'(?:\xef\xbb\xbf)?\s*\{\s*"incident"\s*:')
_HEAD_BYTES = 256
_NONE = (
    "standard input begins as a recorded incident and is none ({}): pipe in what "
    "sparkctl --json incidents show N prints, or give a log as a file"
)


def incident_in(name: str) -> dict[str, Any] | None:
    """Return the incident that a file holds (`sparkctl --json incidents show N`), else None."""
    if name == STDIN:
        return _of_stdin()
    path = Path(name)
    try:
        if not path.is_file() or path.stat().st_size > _BYTES_MAX:
            return None
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
        document = json.loads(path.read_bytes()) if _BEGINS.match(head) else None
    except (OSError, ValueError, RecursionError):
        return None
    return _incident(document)


def _of_stdin() -> dict[str, Any] | None:
    """Return the incident that is piped in; None where what is piped in does not begin as one.

    Raises UnusableError where it does and is none: it has been read, and no log is left.
    """
    try:
        if not _BEGINS.match(begun(STDIN)[:_HEAD_BYTES]):
            return None
        incident = _incident(json.loads(opened(STDIN).read(_BYTES_MAX)))
    except NoLogError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise UnusableError(_NONE.format(error)) from error
    if incident is None:
        raise UnusableError(_NONE.format("nothing of it was judged"))
    return incident


def _incident(document: object) -> dict[str, Any] | None:
    return document if isinstance(document, dict) and document.get("judged") else None


def understood(kind: Any, document: Any, *path: str | int) -> Any:
    """Return what stands at *path* of an incident as a value of the type *kind*.

    Raises UnusableError, with the field that is missing or wrong, and what to do.
    """
    from pydantic import TypeAdapter, ValidationError  # which no log needs

    from sparkd.config.errors import key_of

    at: tuple[str | int, ...] = ()
    for part in path:
        at = (*at, part)
        try:
            document = document[part]
        except (KeyError, TypeError, IndexError):
            raise not_understood(key_of(at), "is missing") from None
    try:
        return TypeAdapter(kind).validate_python(document)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise not_understood(key_of((*at, *first["loc"])), first["msg"]) from None


def not_understood(field: str, why: str) -> UnusableError:
    """Return the refusal of an incident by its field."""
    why = why[:1].lower() + why[1:]
    return UnusableError(
        f"a recorded incident that cannot be understood: {field}: {why}: was it cut or changed, or written "
        "by another version? Make it anew with: sparkctl --json incidents show N > FILE"
    )


def assessed(name: str, document: dict[str, Any]) -> Assessment:
    """Return what the evidence of an incident's last decision proves.

    Raises UnusableError where it cannot be understood.
    """
    try:
        evidence = understood(Evidence, document, "judged", -1, "case", "evidence")
    except UnusableError as error:
        raise UnusableError(f"{name}: {error}") from error
    diagnosis, weighed = weigh(evidence)
    return Assessment(diagnosis, weighed)
