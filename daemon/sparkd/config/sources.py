"""Where values come from: the TOML file, the environment, the directory of credentials."""

from __future__ import annotations

import json
import pathlib
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, get_origin

from pydantic import BaseModel
from pydantic_settings import EnvSettingsSource

from sparkd.config.errors import suggestion, table_of
from sparkd.config.model import DELIMITER, File
from sparkd.config.refusal import ConfigError
from sparkd.config.served import PREFIX

# Names below the prefix that are no keys: how the program is called, what its children carry, test beds.
RESERVED: Mapping[str, str] = {
    "SPARKD_CONFIG": "path of the file",
    "SPARKD_NODE": "this node's name, as --node",
    "SPARKD_STAMP": "mark of the engine's processes",
    "SPARKD_CPU_RAY": "test bed: lets the CPU build of vLLM run over Ray",
    "SPARKD_ENGINE_ENV": "test bed: environment with the real engine",
}
RESERVED_PREFIXES: Mapping[str, str] = {"SPARKD_STANDIN_": "test bed: what the stand-in engine pretends"}
KEY_MIN_BYTES = 16


@dataclass(frozen=True)
class Credentials:
    """What the credentials directory holds; None = no such file."""

    cluster_key: bytes | None = field(default=None, repr=False)
    broker_password: str | None = field(default=None, repr=False)
    api_token: str | None = field(default=None, repr=False)
    ray_token_path: str | None = None


class Environ(EnvSettingsSource):
    """pydantic's own reading of variables, of the mapping that is given instead of the process's."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = {name.lower(): value for name, value in environ.items()}
        super().__init__(File)

    def _load_env_vars(self) -> Mapping[str, str | None]:
        return dict(self._environ)


def read_file(path: str) -> dict[str, Any]:
    """Return the file's tables. Raises ConfigError where it cannot be read."""
    try:
        return tomllib.loads(pathlib.Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError([f"{path}: cannot be read: {error.strerror or error}"]) from error
    except UnicodeDecodeError as error:
        raise ConfigError([f"{path}: is no UTF-8 text: {error.reason} at byte {error.start}"]) from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError([f"{path}: is no TOML: {error}"]) from error


def variables() -> dict[str, Any]:
    """Return every variable that sets a key, with the key's type. Arrays of tables are the file's alone."""
    return dict(_variables(File, PREFIX))


def _variables(model: type[BaseModel], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, info in model.model_fields.items():
        table = table_of(info.annotation)
        if table is None:
            yield prefix + name.upper(), info.annotation
        elif get_origin(info.annotation) is not list:
            yield from _variables(table, prefix + name.upper() + DELIMITER)


def read_environment(environ: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, str], list[str]]:
    """Return (tables, key -> variable that sets it, errors) of the SPARKD_* variables."""
    known = variables()
    used: dict[str, str] = {}
    problems = []
    for name in sorted(environ):
        if not name.startswith(PREFIX) or name in RESERVED or name.startswith(tuple(RESERVED_PREFIXES)):
            continue
        problem = _check_variable(name, environ[name], known)
        if problem:
            problems.append(problem)
        else:
            used[name.removeprefix(PREFIX).replace(DELIMITER, ".").lower()] = name
    chosen = {name: environ[name] for name in used.values()}
    return (Environ(chosen)() if chosen else {}), used, problems


def _check_variable(name: str, value: str, known: Mapping[str, Any]) -> str | None:
    if name not in known:
        near = suggestion(name, [*known, *RESERVED])
        return f"environment {name}: sets no key{near} (SPARKD_<section>__<key>, see sparkd.toml)"
    if get_origin(known[name]) in {list, dict}:
        try:
            json.loads(value)
        except ValueError:
            return f"environment {name}: must be JSON, such as {_example(known[name])}"
    return None


def _example(annotation: Any) -> str:
    return '["--option=value"]' if get_origin(annotation) is list else '{"NAME": "value"}'


def merged(document: dict[str, Any], overrides: dict[str, Any]) -> dict[str, Any]:
    """Return the file's tables with the environment's values over them."""
    result = dict(document)
    for key, value in overrides.items():
        below = result.get(key)
        if isinstance(below, dict) and isinstance(value, dict):
            result[key] = merged(below, value)
        else:
            result[key] = value
    return result


def read_credentials(directory: str | None) -> tuple[Credentials, list[str]]:
    """Return (what the directory holds, errors): cluster_key, broker_password, api_token, ray_token."""
    if directory is None:
        return Credentials(), []
    problems: list[str] = []
    if not pathlib.Path(directory).is_dir():
        return Credentials(), [f"{directory}: is no directory of credentials"]
    key = _secret(directory, "cluster_key", problems)
    password = _secret(directory, "broker_password", problems)
    page = _secret(directory, "api_token", problems)
    token = pathlib.Path(directory) / "ray_token"
    found = Credentials(
        cluster_key=key,
        broker_password=password.decode("utf-8", "replace") if password is not None else None,
        api_token=page.decode("utf-8", "replace") if page is not None else None,
        ray_token_path=str(token) if token.exists() else None,
    )
    return found, problems


def _secret(directory: str, name: str, problems: list[str]) -> bytes | None:
    """An editor's final newline is no part of a secret."""
    path = pathlib.Path(directory) / name
    try:
        secret = path.read_bytes().strip()
    except FileNotFoundError:
        return None
    except OSError as error:
        problems.append(f"{path}: cannot be read: {error.strerror or error}")
        return None
    if not secret:
        problems.append(f"{path}: is empty")
    return secret
