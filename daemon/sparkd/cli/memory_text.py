"""`sparkctl memory` as text: each node's pool, its last minutes, its floor, and who holds what. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sparkd.cli.layout import columns
from sparkd.core.messages import UnitState
from sparkd.export.human import UNKNOWN, about_text, gib_text, words
from sparkd.words import GIB

Document = dict[str, Any]
Look = tuple[float, float]
"""When it was looked (seconds), and what was available then (bytes)."""

WIDTH = 60
_STEPS = "▁▂▃▄▅▆▇█"
TREND_S = 10.0
"""Over so long the fall is measured."""
FALL_LEAST = GIB / 50
"""A slower fall, bytes a second, is the system's own coming and going."""


@dataclass(frozen=True, slots=True)
class Here:
    """What only the node itself can see.

    Attributes:
        units: what each control group of the engine holds, bytes.
        gpu: GPU processes by name, None = the driver does not say what they hold.
        gpu_why: why nobody can say which there are.
    """

    units: tuple[tuple[str, int], ...] = ()
    gpu: tuple[tuple[str, int | None], ...] = ()
    gpu_why: str = ""


def memory_text(document: Document, looks: Mapping[str, Sequence[Look]], here: Here | None = None) -> str:
    """Return what is known of the memory now.

    Args:
        document: the daemon's status document.
        looks: of each node, oldest first; none is fine.
        here: what the daemon's own node shows beside it; None = it was not looked at.
    """
    head = f"{words(document['phase']).upper()}   generation {document['generation']}"
    parts = [[head]]
    for node in document["nodes"]:
        own = here if node["self"] else None
        parts.append([*_node(document, node, looks.get(node["node"], ())), *_here(node, own)])
    return "\n\n".join("\n".join(part) for part in parts)


def _node(document: Document, node: Document, looks: Sequence[Look]) -> list[str]:
    available, total = node["available_bytes"], node["total_bytes"]
    if available is None or not total:
        return [f"{node['node']}: memory {UNKNOWN}"]
    used = total - available
    rows = [
        ("pool", pool(used, total, node["floor_bytes"])),
        ("", f"{gib_text(used)} of {gib_text(total)} GiB in use, {gib_text(available)} available"),
        ("floor", _floor(node, looks)),
    ]
    if len(looks) > 1:
        rows.append(("past", _past(looks, total)))
    rows.append(("held by", _held(document, node, used)))
    return [node["node"], *(f"  {line}" for line in columns(rows))]


def _here(node: Document, here: Here | None) -> list[str]:
    rows = []
    if here is not None and here.units:
        held = " · ".join(f"{name} {gib_text(used)}" for name, used in here.units)
        rows.append(("units", f"{held} (control groups; the GPU's is in none)"))
    if here is not None and (here.gpu or here.gpu_why):
        said = [f"{name} {UNKNOWN if used is None else gib_text(used)}" for name, used in here.gpu]
        rows.append(("gpu", here.gpu_why or " · ".join(said)))
    rows += [("note", note) for note in node["guard_notes"] or ()]
    return [f"  {line}" for line in columns(rows)] if rows else []


def pool(used: float, total: float, floor: float | None, width: int = WIDTH) -> str:
    """Return the pool as a bar; `|` is where the guard acts."""
    full = round(min(1.0, used / total) * width)
    cells = list("█" * full + "░" * (width - full))
    if floor is not None:
        cells[min(width - 1, int((1 - floor / total) * width))] = "|"
    return "".join(cells)


def _floor(node: Document, looks: Sequence[Look]) -> str:
    floor, guard = node["floor_bytes"], node["guard"]
    if floor is None:
        why = f": {node['guard_why']}" if node["guard_why"] else ""
        return f"no memory guard is seen{why}" if guard is not None else UNKNOWN
    said = f"{gib_text(floor)} GiB, guard {guard}"
    fall = fall_of(looks)
    if fall >= FALL_LEAST:
        left_s = max(0.0, (node["available_bytes"] - floor) / fall)
        said += f"; falls by {fall / GIB:.2f} GiB/s, there in {about_text(left_s)}"
    return said


def fall_of(looks: Sequence[Look]) -> float:
    """Return how fast what is available falls, bytes a second over the last `TREND_S`; 0 = it does not."""
    recent = [look for look in looks if look[0] >= looks[-1][0] - TREND_S]
    if len(recent) < 2 or recent[-1][0] <= recent[0][0]:
        return 0.0
    return max(0.0, (recent[0][1] - recent[-1][1]) / (recent[-1][0] - recent[0][0]))


def _past(looks: Sequence[Look], total: float) -> str:
    """The use of the last looks, empty to full; each column is the highest of its share of them."""
    each = -(-len(looks) // WIDTH)
    columns_ = [looks[at : at + each] for at in range(0, len(looks), each)]
    marks = [_STEPS[_step(1 - min(left for _, left in part) / total)] for part in columns_]
    lowest = min(left for _, left in looks)
    return f"{''.join(marks)}  {about_text(looks[-1][0] - looks[0][0])}, lowest {gib_text(lowest)} available"


def _step(share: float) -> int:
    return max(0, min(len(_STEPS) - 1, int(share * len(_STEPS))))


def _held(document: Document, node: Document, used: float) -> str:
    """What was there before, what the engine says of itself, and the rest; CUDA's is in no process's size."""
    held, total = document["held"], node["total_bytes"]
    baseline = node["baseline_bytes"]
    if all(state == UnitState.GONE for state in (node["units"] or {}).values()) or baseline is None:
        return "system and other programs: no engine runs here"
    known = [("before the launch", total - baseline)]
    known += [(name, held[key]) for name, key in _SAID if held[key] is not None]
    told = " · ".join(f"{name} {gib_text(amount)}" for name, amount in known)
    if sum(amount for _, amount in known[1:]) > used:
        return f"{UNKNOWN}: the engine tells of more than is in use here ({told})"
    rest = used - sum(amount for _, amount in known)
    return f"{told} · the rest of the engine {gib_text(rest)}" if rest > 0 else told


_SAID = (("weights", "weights_bytes"), ("KV cache", "kv_cache_bytes"), ("CUDA graphs", "graphs_bytes"))
