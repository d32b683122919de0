"""What was learned about settings, and what the operator has edited since."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from sparkd.words import AMOUNTS, CudaGraph, Floors, Settings


def settings_in_force(learned: Settings | None, before: Settings | None, asked: Settings) -> Settings:
    """Return what was *learned* while *before* was asked, but as *asked* where that was edited since."""
    if learned is None or before is None:
        return asked
    edited = [
        name
        for group in SETTING_GROUPS
        for name in group
        if any(getattr(asked, other) != getattr(before, other) for other in group)
    ]
    return replace(learned, **{name: getattr(asked, name) for name in edited})


def within(settings: Settings, asked: Settings, floors: Floors) -> Settings:
    """Return *settings* raised to what the operator allows now: floors that were raised count at once."""
    eager = settings.cudagraph is CudaGraph.NONE and not floors.eager_allowed
    least = min(floors.gpu_memory_utilization, asked.gpu_memory_utilization)
    raised: dict[str, Any] = {
        name: _raised(getattr(settings, name), getattr(asked, name), getattr(floors, name))
        for name in AMOUNTS
    }
    raised["gpu_memory_utilization"] = max(settings.gpu_memory_utilization, least)
    raised["cudagraph"] = asked.cudagraph if eager else settings.cudagraph
    return replace(settings, **raised)


def _raised(value: int | None, asked: int | None, floor: int) -> int | None:
    if value is None or value == asked or value >= floor:
        return value
    return floor if asked is None else min(floor, asked)


# What was learned about one of a group says nothing once the operator has edited another of it.
_SIZES_KV = ("gpu_memory_utilization", "kv_cache_bytes")
SETTING_GROUPS: tuple[tuple[str, ...], ...] = (
    _SIZES_KV,
    *((item.name,) for item in fields(Settings) if item.name not in _SIZES_KV),
)
