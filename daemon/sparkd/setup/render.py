"""A configuration as commented TOML: the packaged example with the values set, every explanation kept.

The example shows every key there is (the tests of the configuration hold that), so every value has its place.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

TABLE = re.compile(r"\[+([a-z_.]+)\]+")
KEY = re.compile(r"#?([a-z_]+) = .*")
NODE = "[[node]]"


def render(example: str, document: Mapping[str, Any], opening: str = "") -> str:
    """Return *example* with the values of *document*.

    Args:
        example: etc/sparkd.toml.
        document: tables as tomllib reads them.
        opening: what stands above it, as comment lines.

    Raises:
        ValueError: there is no node, or a value has no place in the example: it is no key.
    """
    if not document.get("node"):
        raise ValueError("node: there is none")
    left = {place: value for place, value in _places(document) if place[0] != "node"}
    lines = list(_lines(example, document, left))
    if left:
        raise ValueError(f"{', '.join('.'.join(place) for place in left)}: unknown key")
    return opening + "\n".join(lines) + "\n"


def _places(table: Mapping[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield (place, value) of every key; a table called env is a value itself."""
    for name, value in table.items():
        if isinstance(value, Mapping) and name != "env":
            yield from _places(value, (*above, name))
        else:
            yield (*above, name), value


def _lines(example: str, document: Mapping[str, Any], left: dict[tuple[str, ...], Any]) -> Iterator[str]:
    section: tuple[str, ...] = ()
    nodes = list(document.get("node", []))
    node: dict[str, Any] = {}
    seen = 0
    for line in example.splitlines():
        table, key = TABLE.fullmatch(line), KEY.fullmatch(line)
        if table:
            section = tuple(table[1].split("."))
            seen += line == NODE
            if line == NODE and seen == 1:
                node = dict(nodes.pop(0))
            elif line == NODE:
                yield from _further(nodes)
        if section == ("node",) and seen > 1:
            if not table and not line.startswith(tuple("abcdefghijklmnopqrstuvwxyz")):
                yield line  # the second node of the example is replaced, the comments around it stay
            continue
        yield _set(line, key[1], section, node if section == ("node",) else left) if key else line


def _set(line: str, key: str, section: tuple[str, ...], values: dict[Any, Any]) -> str:
    """Return the line of a key with its value; one of an example without a value becomes a comment."""
    place = key if section == ("node",) else (*section, key)
    if place in values:
        return f"{key} = {toml(values.pop(place))}"
    return line if line.startswith("#") else f"#{line}"


def _further(nodes: list[Mapping[str, Any]]) -> Iterator[str]:
    for index, node in enumerate(nodes):
        yield from ([""] if index else [])
        yield NODE
        yield from (f"{key} = {toml(value)}" for key, value in node.items())


def toml(value: Any) -> str:
    """Return a value as TOML spells it, tables inline."""
    if isinstance(value, Mapping):
        pairs = ", ".join(f"{_key(str(key))} = {toml(item)}" for key, item in value.items())
        return f"{{ {pairs} }}" if pairs else "{}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(toml, value)) + "]"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return repr(value)


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else toml(name)
