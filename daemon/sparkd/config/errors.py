"""What is wrong with a configuration, for a person: where, which key, which value, what is allowed."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from sparkd.config.model import File

SECRET_KEYS = ("key", "password", "token")
VALUE_MAX = 80


def key_of(location: tuple[int | str, ...]) -> str:
    """Return a place in the file as an operator writes it: node[1].address."""
    key = ""
    for part in location:
        key += f"[{part}]" if isinstance(part, int) else f".{part}" if key else part
    return key


def suggestion(word: str, known: Iterable[str]) -> str:
    """Return `; did you mean X?` for the nearest of the known words, else nothing."""
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"; did you mean {near[0]}?" if near else ""


def shown(location: tuple[int | str, ...], value: object) -> str:
    """Return ` = value` for an error, without secrets and without whole tables."""
    if isinstance(value, dict | list):
        return f" = ({'table' if isinstance(value, dict) else 'array'})"
    if any(part in SECRET_KEYS for part in location) or "env" in location:
        return " = (hidden)"
    text = repr(value)
    return f" = {text if len(text) <= VALUE_MAX else text[: VALUE_MAX - 1] + '…'}"


def schema_lines(error: ValidationError, path: str, from_env: Mapping[str, str]) -> list[str]:
    """Return one line for each error; *from_env* maps keys to the variables that set them."""
    seen: dict[str, str] = {}
    for detail in error.errors(include_url=False, include_context=True):
        location = _real(detail["loc"])
        key = key_of(location)
        place = f"environment {from_env[key]}" if key in from_env else path
        line = f"{place}: {key}{_complaint(location, detail)}"
        seen[key] = f"{seen[key]}, or {_words(detail)}" if key in seen else line
    return list(seen.values())


def _complaint(location: tuple[int | str, ...], detail: Any) -> str:
    if detail["type"] == "missing":
        return ": is missing and has no default"
    if detail["type"] == "extra_forbidden":
        known = known_keys(location[:-1])
        listed = ", ".join(known)
        return f": unknown key{suggestion(str(location[-1]), known)} (known here: {listed})"
    return f"{shown(location, detail['input'])}: {_words(detail)}"


def _words(detail: Any) -> str:
    message = str(detail["msg"]).removeprefix("Value error, ")
    if detail["type"] == "string_type" and isinstance(detail["input"], int | float):
        message += ": put it in quotes"  # 2.60 is a number in TOML, and no longer what was written
    return message.replace("Input should be", "must be").replace("should have", "must have")


def _real(location: tuple[int | str, ...]) -> tuple[int | str, ...]:
    """Drop what pydantic adds to a place for the alternatives of a union."""
    kept: list[int | str] = []
    for part in location:
        if isinstance(part, str) and kept and part not in known_keys(tuple(kept)) and _is_leaf(tuple(kept)):
            break
        kept.append(part)
    return tuple(kept)


def _is_leaf(location: tuple[int | str, ...]) -> bool:
    model, rest = _walk(location)
    return model is None and not rest


def known_keys(location: tuple[int | str, ...]) -> tuple[str, ...]:
    """Return the keys of the table at *location*, none where there is no table."""
    model, _ = _walk(location)
    return tuple(model.model_fields) if model is not None else ()


def _walk(location: tuple[int | str, ...]) -> tuple[type[BaseModel] | None, tuple[int | str, ...]]:
    """Return the table at *location* (None: a plain value), and what of it lies below a plain value."""
    model: type[BaseModel] | None = File
    for index, part in enumerate(location):
        if isinstance(part, int):
            continue
        if model is None or part not in model.model_fields:
            return None, location[index:]
        model = table_of(model.model_fields[part].annotation)
    return model, ()


def table_of(annotation: Any) -> type[BaseModel] | None:
    """Return the model of a table or of an array of tables, None for a plain value."""
    for candidate in (annotation, *get_args(annotation)):
        if isinstance(candidate, type) and issubclass(candidate, BaseModel):
            return candidate
    return None
