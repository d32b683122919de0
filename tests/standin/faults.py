"""Faults on request: a JSON file that is read again at every point, so a test can arm one later.

How often a fault fired is kept in `<file>.state`, because the process that fires it dies of it.
"""

import fcntl
import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Fault:
    """One armed fault. Empty fields match everything."""

    kind: str
    id: str
    phase: str = ""
    node: str = ""
    rank: int | None = None
    generation: int | None = None
    times: int | None = None
    when: dict[str, Any] = field(default_factory=dict)
    params: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Place:
    """Where a process stands when it asks."""

    phase: str
    node: str = ""
    rank: int | None = None
    settings: dict[str, Any] = field(default_factory=dict)


def path() -> str:
    return os.environ.get("SPARKD_STANDIN_FAULTS", "")


def load() -> list[Fault]:
    """The faults of the file; none where no file is named or there."""
    if not path():
        return []
    try:
        with Path(path()).open(encoding="utf-8") as file:
            entries = json.load(file)["faults"]
    except (FileNotFoundError, json.JSONDecodeError):
        return []  # not there, or caught half written: the next point reads it again
    return [Fault(**{"id": f"{entry['kind']}-{n}", **entry}) for n, entry in enumerate(entries)]


def update(change: Any) -> Any:
    """Run `change(state)` on the shared counters under a lock and keep the result."""
    with Path(path() + ".state").open("a+", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        text = file.read()
        state = json.loads(text) if text else {"starts": 0, "fired": {}}
        result = change(state)
        file.seek(0)
        file.truncate()
        file.write(json.dumps(state))
    return result


def count_start() -> None:
    """A `vllm serve` of rank 0 begins: the generation that faults count by."""
    if path():

        def grow(state: dict[str, Any]) -> None:
            state["starts"] += 1

        update(grow)


def _bad(when: dict[str, Any], settings: dict[str, Any]) -> bool:
    """Whether the settings still are as bad as the fault needs them.

    Keys end in `_above`, `_below`, `_is` or `_in`; a setting that is not known counts as bad.
    """
    for key, bound in when.items():
        name, _, test = key.rpartition("_")
        value = settings.get(name)
        if value is None:
            continue
        holds = {
            "above": lambda v, b: v > b,
            "below": lambda v, b: v < b,
            "is": lambda v, b: v == b,
            "in": lambda v, b: v in b,
        }[test]
        if not holds(value, bound):
            return False
    return True


def _matches(fault: Fault, place: Place) -> bool:
    if fault.phase and fault.phase != place.phase:
        return False
    if fault.node and fault.node != place.node:
        return False
    if (
        place.rank is not None
        and (fault.rank is not None or not fault.node)
        and (fault.rank or 0) != place.rank
    ):
        return False
    return _bad(fault.when, place.settings)


def _take(fault: Fault, generation: int) -> bool:
    """Count one firing, unless the fault is used up or meant for another start."""

    def claim(state: dict[str, Any]) -> bool:
        current = generation or state["starts"]
        fired = state["fired"].get(fault.id, 0)
        if fault.times is not None and fired >= fault.times:
            return False
        if fault.generation is not None and current != fault.generation:
            return False
        state["fired"][fault.id] = fired + 1
        return True

    return bool(update(claim))


def due(
    place: Place, kinds: set[str], generation: int = 0, accept: Callable[[Fault], bool] = lambda _fault: True
) -> Fault | None:
    """The first fault of these kinds that fires here and now; `accept` may still decline one, uncounted."""
    if not path():
        return None
    for fault in load():
        if fault.kind in kinds and _matches(fault, place) and accept(fault) and _take(fault, generation):
            return fault
    return None


def hold(phase: str, node: str = "") -> None:
    """Stand still for as long as the file has a `hold` for this place; uncounted."""
    while any(f.kind == "hold" and f.phase == phase and f.node in {"", node} for f in load()):
        time.sleep(0.05)
