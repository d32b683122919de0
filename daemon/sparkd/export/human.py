"""Numbers as people read them. Pure; used by the page and by sparkctl. Unknown is said, never hidden."""

from __future__ import annotations

from collections.abc import Mapping

from sparkd.words import GIB

UNKNOWN = "unknown"
_UNITS = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def duration_text(seconds: float | None) -> str:
    """Return a duration with its two largest units: `6 h 12 min`, `14 min 31 s`, `0.3 s`, `412 ms`."""
    if seconds is None:
        return UNKNOWN
    seconds = max(0.0, seconds)
    if 0 < seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 10:
        return f"{seconds:.1f}".removesuffix(".0") + " s"
    left = round(seconds)
    parts = []
    for size, unit in _UNITS:
        count, left = divmod(left, size)
        parts.append((count, unit))
    first = next(index for index, (count, _) in enumerate(parts) if count)
    return " ".join(f"{count} {unit}" for count, unit in parts[first : first + 2] if count)


def about_text(seconds: float) -> str:
    """Return a rough duration for what is only estimated: `9 min`, `40 s`, `2 h`."""
    for size, unit in _UNITS[:3]:
        if seconds >= 1.5 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(1, round(seconds))} s"


def gib_text(count: float | None) -> str:
    """Return bytes in GiB with one decimal, without the unit."""
    return UNKNOWN if count is None else f"{count / GIB:.1f}"


def percent_text(share: float | None) -> str:
    """Return a share (0 to 1) in percent."""
    return UNKNOWN if share is None else f"{share * 100:.0f} %"


def words(code: str | None) -> str:
    """Return a code as words: `loading_weights` → `loading weights`."""
    return UNKNOWN if code is None else code.replace("_", " ")


def mark(value: bool | None) -> str:
    """Return ✓, ✗, or ? for what is not known."""
    if value is None:
        return "?"
    return "✓" if value else "✗"


def bar(share: float, width: int = 20) -> str:
    """Return a progress bar."""
    full = round(max(0.0, min(1.0, share)) * width)
    return "█" * full + "░" * (width - full)


def memory_text(available: float | None, total: float | None) -> str:
    """Return `6.2 of 119.7 GiB`."""
    if available is None:
        return UNKNOWN
    return f"{gib_text(available)} of {gib_text(total)} GiB"


def changes_text(before: Mapping[str, object], after: Mapping[str, object]) -> list[str]:
    """Return every setting that differs, one a line: `KV cache bytes 49.1 GiB → 44.6 GiB`."""
    lines = []
    for name in dict.fromkeys([*before, *after]):
        old, new = (_of(each, name) for each in (before, after))
        if old != new:
            lines.append(f"{words(name)} {old} → {new}")
        elif before.get(name) != after.get(name):  # too near for the text
            lines.append(f"{words(name)} {before.get(name)} → {after.get(name)}")
    return lines


def _of(settings: Mapping[str, object], name: str) -> str:
    return setting_text(name, settings[name]) if name in settings else UNKNOWN


def setting_text(name: str, value: object) -> str:
    """Return one memory setting for people; None is the engine's own default, or Ray's monitor off."""
    if value is None:
        return "off" if name == "ray_memory_threshold" else "engine default"
    if name == "kv_cache_bytes" and isinstance(value, (int, float)):
        return f"{gib_text(value)} GiB"
    return str(value)
