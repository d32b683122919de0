"""A configuration that is right, to be changed by the tests of this directory."""

import copy
import pathlib
from typing import Any

import pytest

from sparkd.config import ConfigError, Loaded
from sparkd.config.load import load

EXAMPLE = pathlib.Path(__file__).parents[2] / "etc/sparkd.toml"
KEY = "0123456789abcdef"
RIGHT: dict[str, Any] = {
    "cluster": {"name": "sparks", "key": KEY},
    "node": [
        {"name": "spark-a", "role": "head", "address": "192.168.200.12", "interface": "enp1s0f0np0"},
        {"name": "spark-b", "role": "worker", "address": "192.168.200.13", "interface": "enp1s0f0np0"},
    ],
    "engine": {"model": "/srv/models/Qwen3"},
}


def toml(value: Any) -> str:
    """Spell a value as TOML, tables inline: enough for these tests."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {toml(item)}" for key, item in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else str(value)


def changed(changes: dict[str, Any]) -> dict[str, Any]:
    """Return RIGHT with `{"engine.ray.port": 1}` in it; `...` as the value removes the key."""
    document = copy.deepcopy(RIGHT)
    for key, value in changes.items():
        *parents, last = [int(part) if part.isdigit() else part for part in key.split(".")]
        table: Any = document
        for part in parents:
            table = table[part] if isinstance(part, int) else table.setdefault(part, {})
        if value is ...:
            del table[last]
        else:
            table[last] = value
    return document


class Place:
    """A directory with one configuration file."""

    def __init__(self, directory: pathlib.Path) -> None:
        self.directory = directory
        self.path = str(directory / "sparkd.toml")

    def write(self, document: dict[str, Any]) -> None:
        lines = [f"{key} = {toml(value)}" for key, value in document.items()]
        pathlib.Path(self.path).write_text("\n".join(lines) + "\n", encoding="utf-8")

    def load(self, who="spark-a", environ=None, credentials_dir=None, **changes: Any) -> Loaded:
        self.write(changed({key.replace("__", "."): value for key, value in changes.items()}))
        return load(self.path, who, environ or {}, credentials_dir)

    def refused(self, who="spark-a", environ=None, credentials_dir=None, **changes: Any) -> list[str]:
        """Return the lines of the refusal, without the file's path."""
        with pytest.raises(ConfigError) as refusal:
            self.load(who, environ, credentials_dir, **changes)
        return [line.removeprefix(f"{self.path}: ") for line in refusal.value.lines]
