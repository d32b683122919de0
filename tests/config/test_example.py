"""etc/sparkd.toml against the models: every key is there, with the default that the code has."""

import re
import tomllib
from dataclasses import fields

import pytest

from config.files import EXAMPLE, KEY
from sparkd.config.errors import table_of
from sparkd.config.load import load
from sparkd.config.model import File
from sparkd.config.sources import RESERVED, RESERVED_PREFIXES, variables
from sparkd.core.policy import Policy
from sparkd.engines.model import EngineSpec, NodeSpec

TEXT = EXAMPLE.read_text(encoding="utf-8")
SHOWN = tomllib.loads(re.sub(r"^#(?=[a-z_]+ = )", "", TEXT, flags=re.MULTILINE))
# Made from other keys, observed, or the caller's: no keys of their own.
MADE = {"context", "node", "head", "nodes", "settings", "floors", "shared_digest", "node_digest", "version"}
MADE |= {"guard_enforcing", "ray_monitor_off_asked", "gpus"}
RENAMED = {"ray_program": "program", "vllm_program": "program", "vllm_version": "version"}


def keys(model=File, place=()):
    """Every (place, field) of a plain value."""
    for name, info in model.model_fields.items():
        table = table_of(info.annotation)
        if table is None:
            yield (*place, name), info
        else:
            yield from keys(table, (*place, name))


KEYS = list(keys())


def at(document, place):
    for part in place:
        document = document[0] if isinstance(document, list) else document
        document = document[part]
    return document


def comment_above(place):
    """The comment over a key; a key without one of its own shares that of the key above it."""
    section = place[0] if place[0] == "node" else ".".join(place[:-1])
    start = re.search(rf"^(# .*\n)*\[+{re.escape(section)}\]+$", TEXT, flags=re.MULTILINE).start()
    before = TEXT[start : re.compile(rf"^#?{place[-1]} = ", re.MULTILINE).search(TEXT, start).start()]
    comments = re.findall(r"(?:^# .*\n)+", before, flags=re.MULTILINE)
    return comments[-1] if comments else ""


@pytest.mark.parametrize(("place", "info"), KEYS, ids=[".".join(place) for place, _ in KEYS])
def test_every_key_is_shown_and_explained(place, info):
    value = at(SHOWN, place)
    assert comment_above(place)
    default = info.get_default(call_default_factory=True)
    if info.is_required():
        assert re.search(rf"^{place[-1]} = ", TEXT, flags=re.MULTILINE)
    elif default is None:
        assert "No default" in comment_above(place)
    elif default == {}:
        assert "Default: empty" in comment_above(place)
    else:
        shown = load_value(place, value)
        assert shown == default
        assert type(shown) is type(default)


def load_value(place, value):
    """The value as its section's model reads it."""
    document = tomllib.loads(TEXT) | {"cluster": {"name": "x"}}
    *parents, last = place
    table = document
    for part in parents:
        table = table.setdefault(part, {})
    table[last] = value
    read = File(**document)
    for part in place:
        read = getattr(read, part)
    return read


def test_nothing_else_is_shown():
    known = {place for place, _ in KEYS}

    def walk(table, place=()):
        for name, value in table.items():
            here = (*place, name)
            if here in known:
                continue
            below = value if isinstance(value, list) else [value]
            assert all(isinstance(item, dict) for item in below), here
            for item in below:
                walk(item, here)

    walk(SHOWN)


def test_it_loads_as_it_stands():
    loaded = load(str(EXAMPLE), "spark-b", {"SPARKD_CLUSTER__KEY": KEY})
    assert loaded.node.name == "spark-b"
    assert loaded.notes == ()


def test_it_loads_with_every_comment_removed(place):
    """All examples beside the defaults fit together, too."""
    shown = {**SHOWN, "engine": {**SHOWN["engine"], "ray": {**SHOWN["engine"]["ray"]}}}
    shown["broker"] = {key: SHOWN["broker"][key] for key in ("host", "port", "username", "password", "tls")}
    place.write(shown)
    assert load(place.path, "spark-a", {}).engine.ray_num_gpus == 1


def test_reserved_names_are_documented():
    for name in (*RESERVED, *RESERVED_PREFIXES):
        assert name in TEXT
    assert not set(variables()) & set(RESERVED)


def test_every_field_of_the_policy_can_be_set():
    names = {place[-1] for place, _ in KEYS} | {part for place, _ in KEYS for part in place}
    assert {field.name for field in fields(Policy)} - MADE <= names


def test_every_field_of_the_engine_and_of_a_node_can_be_set():
    names = {place[-1] for place, _ in KEYS}
    for field in fields(EngineSpec):
        assert field.name in names or field.name.removeprefix("ray_") in names or field.name in RENAMED
    assert {field.name for field in fields(NodeSpec)} - {"rank"} <= names
