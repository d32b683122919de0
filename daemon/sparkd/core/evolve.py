"""A changed copy of a frozen record, for the few that change in every step.

`dataclasses.replace` runs the record's `__init__`, field by field; one dictionary made of two costs a tenth
of that and says the same. It needs records with a `__dict__` (frozen, no slots): `Evolving`.
"""

from __future__ import annotations

from typing import Any, TypeVar

T = TypeVar("T")

_new, _set = object.__new__, object.__setattr__


class Evolving:
    """What `evolve` copies: a record whose dictionary is its own from its birth.

    CPython lets the dictionaries of a class share their keys. A copy of such a one shares them, too, and
    fields are looked up there at a third of the pace; what was inserted item by item is copied as one block.
    """

    def __post_init__(self) -> None:
        _set(self, "__dict__", dict(list(self.__dict__.items())))


def evolve(record: T, changes: dict[str, Any]) -> T:
    """Return a copy of *record* with *changes*.

    Raises:
        TypeError: where a name is no field of the record.
    """
    fields = record.__dict__
    values = fields | changes
    if len(values) != len(fields):
        raise TypeError(f"{type(record).__name__} has no field {', '.join(changes.keys() - fields.keys())}")
    copy = _new(type(record))
    _set(copy, "__dict__", values)
    return copy
