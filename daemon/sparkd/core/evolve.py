"""A changed copy of a frozen record, for the few that change in every step.

`dataclasses.replace` runs the record's `__init__`, field by field; a copy of the record's dictionary costs
a fifth of that and says the same. It needs records with a `__dict__` (frozen, no slots).
"""

from __future__ import annotations

from typing import Any, TypeVar

T = TypeVar("T")


def evolve(record: T, changes: dict[str, Any]) -> T:
    """Return a copy of *record* with *changes*.

    Raises:
        TypeError: where a name is no field of the record.
    """
    fields = record.__dict__
    copy = object.__new__(type(record))
    values = copy.__dict__
    values.update(fields)
    values.update(changes)
    if len(values) != len(fields):
        raise TypeError(f"{type(record).__name__} has no field {', '.join(changes.keys() - fields.keys())}")
    return copy
