"""Signatures that a site adds: every `*.toml` of a folder."""

from __future__ import annotations

import stat
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from sparkd.signals.catalogue import PLACES, Catalogue, extend
from sparkd.signals.causes import CAUSES
from sparkd.signals.model import Proof
from sparkd.words import Phase

FOLDER = Path("/etc/sparkd/signatures.d")
FILE_BYTES_MAX = 1 << 20
REQUIRED = ("id", "cause", "proof", "literals", "pattern", "examples")
KEYS = (*REQUIRED, "fatal", "phase", "phases", "place", "level", "sources")
_TABLES = "signatures are written as tables that begin with [[signature]]"


class _FaultError(Exception):
    """A file cannot be used; the text says why."""


def with_site_signatures(catalogue: Catalogue, folder: Path = FOLDER) -> tuple[Catalogue, tuple[str, ...]]:
    """Return *catalogue* with those of *folder*, and what is wrong with the files that were left out.

    No folder is no mistake. Signatures replace those of the package by their id; no two files give the same.
    """
    problems: list[str] = []
    try:
        paths = sorted(path for path in folder.iterdir() if path.suffix == ".toml")
    except FileNotFoundError:
        return catalogue, ()
    except OSError as error:
        return catalogue, (f"{folder}: cannot be read: {error.strerror}",)
    given: dict[str, str] = {}
    for path in paths:
        try:
            text = _text(path)
            _check(text)
            _check_new(text, given)
            catalogue, more = extend(catalogue, [(str(path), text)])
            problems += more
            given |= {} if more else dict.fromkeys(_ids(text), path.name)
        except _FaultError as error:
            problems.append(f"{path}: {error}")
        except (OSError, UnicodeDecodeError) as error:
            problems.append(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}")
        except (RecursionError, OverflowError, TypeError) as error:
            problems.append(f"{path}: cannot be used: {error}")
    return catalogue, tuple(problems)


def _text(path: Path) -> str:
    state = path.stat()
    if not stat.S_ISREG(state.st_mode):
        raise _FaultError("is no plain file")
    with path.open("rb") as file:
        data = file.read(FILE_BYTES_MAX + 1)
    if len(data) > FILE_BYTES_MAX:
        raise _FaultError(f"larger than {FILE_BYTES_MAX >> 20} MiB")
    return data.decode("utf-8").replace("\r\n", "\n")


def _check(text: str) -> None:
    """Raise _FaultError for a file whose shape is not that of signatures; `extend` judges what they say."""
    try:
        entries = tomllib.loads(text).get("signature")
    except tomllib.TOMLDecodeError as error:
        raise _FaultError(f"no TOML: {error}") from error
    if entries is None:
        raise _FaultError(f"has no signature: {_TABLES}")
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise _FaultError(f"signature is {_kind(entries)}: {_TABLES}")
    if not entries:
        raise _FaultError(f"has no signature: {_TABLES}")
    for entry in entries:
        fault = _fault(entry)
        if fault:
            raise _FaultError(f"{entry.get('id', 'a signature without id')}: {fault}")


def _ids(text: str) -> list[str]:
    return [str(entry.get("id")) for entry in tomllib.loads(text)["signature"]]


def _check_new(text: str, given: dict[str, str]) -> None:
    """Raise _FaultError for an id that another file of the site has: which of both is meant, nobody says."""
    for name in _ids(text):
        if name in given:
            raise _FaultError(
                f"{name}: {given[name]} has a signature of this id: give one of both another id"
            )


def _kind(value: object) -> str:
    if isinstance(value, dict):
        return "one table [signature]"
    return "a list of other things" if isinstance(value, list) else f"the value {str(value)[:40]!r}"


def _fault(entry: dict[str, Any]) -> str:
    """Return what is wrong with an entry, with what is allowed; empty where nothing is."""
    unknown = sorted(set(entry) - set(KEYS))
    if unknown:
        return f"{unknown[0]}: no such key{_near(unknown[0], KEYS)}; there are {', '.join(KEYS)}"
    missing = [key for key in REQUIRED if key not in entry]
    if missing:
        return f"{missing[0]} is missing: a signature needs {', '.join(REQUIRED)}"
    for key in ("cause", "proof", "pattern", "phase", "place", "level"):
        if key in entry and not (isinstance(entry[key], str) and entry[key]):
            return f"{key}: must be a text that is not empty"
    for key in ("literals", "examples", "sources"):
        value = entry.get(key, [])
        if not isinstance(value, list) or not all(isinstance(item, str) and item for item in value):
            return f'{key}: must be a list of texts, ["…"]'
    phases = entry.get("phases", [])
    if not isinstance(phases, list) or not all(map(_is_phase, phases)):
        return 'phases: must be a list of pairs, [["phase", "pattern"]]'
    return _wrong_word(entry)


def _wrong_word(entry: dict[str, Any]) -> str:
    """Return which word of an entry is none that is known, and those that are."""
    if entry["cause"] not in CAUSES:
        near = _near(entry["cause"], CAUSES)
        return (
            f"cause {entry['cause']!r} is not known{near}; docs/runbook.md and sparkctl signatures list them"
        )
    phases = [entry.get("phase"), *(pair[0] for pair in entry.get("phases", ()))]
    words: list[tuple[str, str | None, Iterable[str]]] = [("phase", phase, Phase) for phase in phases]
    words += [("proof", entry["proof"], Proof), ("place", entry.get("place"), PLACES)]
    for key, word, known in words:
        if word is not None and word not in [*known]:
            return f"{key}: {word!r} is not known{_near(word, known)}; one of {', '.join(known)}"
    return ""


def _near(word: str, known: Iterable[str]) -> str:
    from difflib import get_close_matches

    near = get_close_matches(word, list(known), n=1)
    return f" (did you mean {near[0]}?)" if near else ""


def _is_phase(pair: object) -> bool:
    return isinstance(pair, list) and len(pair) == 2 and all(isinstance(text, str) and text for text in pair)
