"""`sparkctl status` and `sparkctl settings` as text. Pure, but for the time zone."""

from __future__ import annotations

from typing import Any

from sparkd.cli.layout import clock_text, columns
from sparkd.export.human import (
    UNKNOWN,
    about_text,
    bar,
    duration_text,
    gib_text,
    mark,
    memory_text,
    setting_text,
    words,
)
from sparkd.export.sentences import last_text, now_lines, traffic_text

Document = dict[str, Any]


def status_text(document: Document, wall_s: float) -> str:
    """Return the status as text.

    Args:
        document: the daemon's status document.
        wall_s: the present, seconds since the epoch; ages become times of day with it.
    """
    lines = [_headline(document, wall_s), _model_line(document), *_now(document), ""]
    lines += columns([_HEAD, *(_node(node) for node in document["nodes"])])
    lines += [f"guard     {line}" for line in _guards(document)]
    lines += ["", f"settings  {_settings_line(document)}"]
    last = document["last_incident"]
    if last is not None:
        lines.append(f"last      {_last_line(last, wall_s)}")
    if document["trouble"]:
        lines.append(f"sparkd    {document['trouble']}")
    lines.append(f"needs you {_needs(document)}")
    return "\n".join(lines)


def settings_text(document: Document) -> str:
    """Return the memory settings, in force against asked, and where the difference comes from."""
    settings = document["settings"]
    in_force = settings["in_force"]
    rows = [("setting", "in force", "asked", "")]
    for name, asked in settings["asked"].items():
        current = UNKNOWN if in_force is None else setting_text(name, in_force[name])
        changed = "changed" if name in settings["changed"] else ""
        rows.append((name, current, setting_text(name, asked), changed))
    lines = columns(rows)
    learned = settings["learned"]
    if learned is not None:
        lines += ["", f"learned   {_age(learned)}: {learned.get('reason') or UNKNOWN}"]
    return "\n".join(lines)


def _headline(document: Document, wall_s: float) -> str:
    phase = words(document["phase"])
    spent_s = document["phase_for_s"]
    if spent_s is None:
        since = "since unknown"
    else:
        since = f"since {clock_text(wall_s - spent_s, wall_s)} ({duration_text(spent_s)})"
    cluster = f"cluster {document['cluster'] or UNKNOWN}"
    return f"{cluster:<27} {phase.upper()}  {since}   generation {document['generation']}"


def _model_line(document: Document) -> str:
    model = document["model"]
    version = model["engine_version"]
    parts = [model["parallel"], model["backend"], f"vllm {version or UNKNOWN}"]
    line = f"model   {model['name'] or UNKNOWN}  {' · '.join(part for part in parts if part)}"
    if model["api_url"]:
        line += f"   {model['api_url']}"
    return f"{line}  {traffic_text(document['traffic'])}" if document["serving"] else line


def _now(document: Document) -> list[str]:
    progress = document["progress"]
    lines = now_lines({**document, "serving": False})
    if not lines:
        return []
    first = ""
    if progress is not None and progress["done"] is not None and progress["total"]:
        first = bar(progress["done"] / progress["total"]) + " "
    return [f"now     {first}{lines[0]}", *(f"        {line}" for line in lines[1:])]


_HEAD = ("node", "role", "phase", "memory available", "floor", "pressure", "engine", "peer", "broker")


def _node(node: Document) -> tuple[str, ...]:
    pressure = node["pressure_percent"]
    return (
        node["node"],
        node["role"],
        words(node["phase"]),
        memory_text(node["available_bytes"], node["total_bytes"]),
        gib_text(node["floor_bytes"]),
        UNKNOWN if pressure is None else f"{pressure:.1f} %",
        _engine(node["units"]),
        "-" if node["self"] else f"{mark(node['mqtt'])} {mark(node['http'])}",
        mark(node["broker"]),
    )


def _guards(document: Document) -> list[str]:
    """Return what is wrong with a node's memory guard, or what it did; nothing where all is well."""
    lines = []
    for node in document["nodes"]:
        if node["guard"] is None:
            continue
        name = node["node"]
        if node["guard_why"]:
            lines.append(f"{name}: memory guard {node['guard']}: {node['guard_why']}")
        if node["guard_trips"]:
            times = "once" if node["guard_trips"] == 1 else f"{node['guard_trips']} times"
            lines.append(f"{name}: the memory guard acted {times} since it began (docs/guard.md)")
        lines += [f"{name}: {note}" for note in node["guard_notes"]]
    return lines


def _engine(units: dict[str, str] | None) -> str:
    if units is None:
        return UNKNOWN
    said = [f"{unit} ✓" if state == "running" else f"{unit} {state}" for unit, state in units.items()]
    return " ".join(said) or "none"


def _settings_line(document: Document) -> str:
    settings = document["settings"]
    in_force, asked = settings["in_force"], settings["asked"]
    if in_force is None:
        return UNKNOWN
    parts = [_kv_cache(in_force, asked, settings["kv_cache_measured_bytes"])]
    parts.append(f"ray monitor {setting_text('ray_memory_threshold', in_force['ray_memory_threshold'])}")
    parts[-1] += ", guard enforcing" if document["guard_enforcing"] else ""
    shown = ("kv_cache_bytes", "gpu_memory_utilization", "ray_memory_threshold")
    parts += [
        f"{words(name)} {setting_text(name, in_force[name])} (asked {setting_text(name, asked[name])})"
        for name in settings["changed"]
        if name not in shown
    ]
    learned = settings["learned"]
    tail = f"     learned {_age(learned)}, sparkctl settings" if learned and settings["changed"] else ""
    return " · ".join(parts) + tail


def _kv_cache(in_force: Document, asked: Document, measured: float | None) -> str:
    wanted = (
        f"utilisation {asked['gpu_memory_utilization']:.2f}"
        if asked["kv_cache_bytes"] is None
        else f"{gib_text(asked['kv_cache_bytes'])} GiB"
    )
    if in_force["kv_cache_bytes"] is not None:
        return f"KV cache {gib_text(in_force['kv_cache_bytes'])} GiB (asked {wanted})"
    now = f"utilisation {in_force['gpu_memory_utilization']:.2f}"
    size = f"KV cache {gib_text(measured)} GiB: " if measured is not None else ""
    return size + (now if now == wanted else f"{now} (asked {wanted})")


def _last_line(last: Document, wall_s: float) -> str:
    opened = last.get("opened_wall_s")
    at = UNKNOWN if opened is None else clock_text(opened, wall_s)
    return f"{at} {last_text(last)}      sparkctl incidents show {last['incident']}"


def _needs(document: Document) -> str:
    needs = document["needs"]
    if needs is None:
        return f"{UNKNOWN} here: ask on the head, {document['head']}"
    return needs or "nothing"


def _age(learned: Document) -> str:
    age_s = learned.get("age_s")
    return UNKNOWN if age_s is None else f"{about_text(age_s)} ago"
