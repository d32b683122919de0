"""The status page: plain HTML from the status document. Pure. No script: it asks again every few seconds."""

from __future__ import annotations

from html import escape
from typing import Any

from sparkd.export.human import (
    UNKNOWN,
    duration_text,
    gib_text,
    mark,
    memory_text,
    setting_text,
    words,
)
from sparkd.export.sentences import last_text, now_lines

REFRESH_S = 5
_COLOURS = {"serving": "#1a7f37", "escalated": "#b42318", "failing": "#b42318", "backing_off": "#b54708"}
_STYLE = """
:root{color-scheme:light dark}
body{font:16px/1.45 system-ui,sans-serif;max-width:44rem;margin:0 auto;padding:1rem}
h1{color:#fff;padding:.6rem .8rem;border-radius:.5rem;font-size:1.3rem;margin:.2rem 0}
h2{font-size:1rem;margin:1.4rem 0 .3rem}
table{border-collapse:collapse;width:100%}
td,th{text-align:left;padding:.25rem .6rem .25rem 0;border-bottom:1px solid #8884;vertical-align:top}
.needs{border-left:.3rem solid #b42318;padding-left:.7rem}
small{opacity:.7}
"""


def page(document: dict[str, Any]) -> str:
    """Return the page.

    Args:
        document: what `status.status_view` returned.
    """
    title = escape(f"{document['cluster'] or 'sparkd'}: {words(document['phase'])}")
    parts = [_top(document), _now(document), _nodes(document), _settings(document), _last(document)]
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f'<meta name="viewport" content="width=device-width">'
        f'<meta http-equiv="refresh" content="{REFRESH_S}">'
        f"<style>{_STYLE}</style></head><body>{''.join(parts)}</body></html>"
    )


def _top(document: dict[str, Any]) -> str:
    phase = document["phase"]
    colour = _COLOURS.get(phase or "", "#475467")
    needs = document["needs"]
    since = f" for {duration_text(document['phase_for_s'])}" if document["phase_for_s"] is not None else ""
    said = UNKNOWN if needs is None else escape(needs) or "nothing"
    css = ' class="needs"' if needs else ""
    where = f"{document['cluster'] or ''} · {document['node']} ({document['role']})"
    return (
        f"<small>{escape(where)}</small>"
        f'<h1 style="background:{colour}">{escape(words(phase).upper())}{since}</h1>'
        f"<p{css}>Needs you: {said}</p>"
        + (
            f'<p class="needs">sparkd itself: {escape(document["trouble"])}</p>'
            if document["trouble"]
            else ""
        )
    )


def _now(document: dict[str, Any]) -> str:
    model = document["model"]
    lines = [f"{escape(model['name'] or UNKNOWN)}, generation {document['generation']}"]
    lines += [escape(line) for line in now_lines(document)]
    return "<h2>Now</h2><p>" + "<br>".join(lines) + "</p>"


def _nodes(document: dict[str, Any]) -> str:
    rows = "".join(_node_row(node) for node in document["nodes"])
    head = "<tr><th>node<th>memory available<th>floor<th>pressure<th>engine<th>peer<th>broker</tr>"
    return f"<h2>Nodes</h2><table>{head}{rows}</table>"


def _node_row(node: dict[str, Any]) -> str:
    pressure = node["pressure_percent"]
    units = node["units"]
    engine = (
        UNKNOWN if units is None else " ".join(f"{unit}: {state}" for unit, state in units.items()) or "none"
    )
    peer = "this node" if node["self"] else f"mqtt {mark(node['mqtt'])} http {mark(node['http'])}"
    cells = (
        f"{node['node']} ({node['role']})",
        memory_text(node["available_bytes"], node["total_bytes"]),
        gib_text(node["floor_bytes"]),
        UNKNOWN if pressure is None else f"{pressure:.1f} %",
        engine,
        peer,
        mark(node["broker"]),
    )
    return "<tr>" + "".join(f"<td>{escape(cell)}" for cell in cells) + "</tr>"


def _settings(document: dict[str, Any]) -> str:
    settings = document["settings"]
    in_force = settings["in_force"] or {}
    rows = []
    for name, asked in settings["asked"].items():
        current = setting_text(name, in_force[name]) if name in in_force else UNKNOWN
        weight = " style='font-weight:600'" if name in settings["changed"] else ""
        rows.append(
            f"<tr{weight}><td>{escape(name)}<td>{escape(current)}<td>{escape(setting_text(name, asked))}</tr>"
        )
    head = "<tr><th>setting<th>in force<th>asked</tr>"
    return f"<h2>Settings</h2><table>{head}{''.join(rows)}</table>"


def _last(document: dict[str, Any]) -> str:
    last = document["last_incident"]
    if last is None:
        return ""
    return f"<h2>Last incident</h2><p>{escape(last_text(last))}</p>"
