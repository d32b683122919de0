"""Records as JSON and back: what stands in the history is plain data that any tool can read."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from sparkd.core.records import InContext, Kept, Record
from sparkd.sizing.model import Learned
from sparkd.words import NOTHING_SAID, CudaGraph, EngineMemory, LoadFormat, Phase, Settings, Sizes


def kind_of(record: Record) -> str:
    """Return the record's kind: its class name in snake_case."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", type(record).__name__).lower()


def body_of(record: Record) -> str:
    """Return the record's fields as JSON. What is not a finite number becomes null: JSON knows no NaN."""
    return json.dumps(_finite(asdict(record)), ensure_ascii=False, allow_nan=False)


def settings_body(settings: Settings) -> dict[str, Any]:
    """Return settings as plain data."""
    return asdict(settings)


def settings_from(body: object) -> Settings | None:
    """Return the settings that *body* describes, None where it does not describe any."""
    if not isinstance(body, dict):
        return None
    try:
        known = dict(body)
        known["cudagraph"] = CudaGraph(known["cudagraph"])
        known["load_format"] = LoadFormat(known["load_format"])
        return Settings(**known)
    except (KeyError, TypeError, ValueError):
        return None


def kept_from(body: dict[str, Any]) -> Kept:
    """Return what *body* says was kept; nothing where it cannot be understood."""
    try:
        return Kept(
            context=str(body["context"]),
            proven=settings_from(body["proven"]),
            spent=tuple(map(str, body["spent"])),
            silences=_silences_from(body["silences"]),
            forgiven=int(body["forgiven"]),
            unclean=int(body["unclean"]),
            learned=_learned_from(body.get("learned")),
            generation=int(body.get("generation", 0)),
            phase=Phase(body.get("phase", Phase.IDLE)),
            target=None if body["target"] is None else bool(body["target"]),
            paused=bool(body["paused"]),
            climbed=bool(body.get("climbed", False)),
            streak=int(body.get("streak", 0)),
            needs=str(body.get("needs", "")),
            may_pass=bool(body.get("may_pass", False)),
            awaits_reboot=bool(body.get("awaits_reboot", False)),
            config=str(body.get("config", "")),
            others=tuple(filter(None, map(_in_context_from, body.get("others", ())))),
            said=_said_from(body.get("said")),
            failed=tuple(filter(None, map(settings_from, body.get("failed", ())))),
        )
    except (KeyError, TypeError, ValueError):
        return Kept()


def _learned_from(body: dict[str, Any] | None) -> Learned | None:
    if body is None:
        return None
    by_phase = tuple((Phase(name), int(delta)) for name, delta in body["by_phase"])
    sizes = (int(body.get(name, 0)) for name in ("step_bytes", "graphs_bytes"))
    return Learned(int(body["kv_cache_bytes"]), by_phase, *sizes)


def _said_from(body: dict[str, Any] | None) -> EngineMemory:
    """Return what *body* says that the engine said; nothing where another version of sparkd wrote it."""
    try:
        known = dict(body or {})
        return EngineMemory(**{**known, "sizes": Sizes(**known.get("sizes", {}))})
    except (TypeError, ValueError):
        return NOTHING_SAID


def _in_context_from(body: object) -> InContext | None:
    """Return what *body* says was learned, None where it cannot be understood: the rest still counts."""
    if not isinstance(body, dict):
        return None
    try:
        return InContext(
            context=str(body["context"]),
            settings=settings_from(body["settings"]),
            asked=settings_from(body["asked"]),
            proven=settings_from(body["proven"]),
            silences=_silences_from(body["silences"]),
            learned=_learned_from(body.get("learned")),
        )
    except (KeyError, TypeError, ValueError):
        return None


def _silences_from(pairs: Iterable[tuple[str, float]]) -> tuple[tuple[Phase, float], ...]:
    return tuple((Phase(name), float(silence_s)) for name, silence_s in pairs)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
