"""The catalogue: what a text means, as data. TOML in, compiled signatures out.

A signature is an array entry `[[signature]]` with: `id`, `cause` (a code of `causes`), `proof`, `fatal`
(the running generation cannot go on), `literals` (any of them must stand in the text before the pattern is
tried: the cheap filter), `pattern`, `phase` or `phases` (pairs of phase and a further pattern, first match
wins), `place` (whom it concerns: "reader" the node that wrote it, "rank" the node of its rank, "head",
"elsewhere" another node that it does not name), `level` ("info": also where the line itself is only
informative), `sources` (substrings of the sources that it applies to; none = all) and `examples`.

Named groups of a pattern become quantities with their unit last: `used_gib` gives `used_bytes`. Ray prints
"GB" and means GiB. `rank` and `address` are taken as such; names that begin with `_` are not taken.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import resources
from typing import Any

from sparkd.signals.causes import CAUSES
from sparkd.signals.model import Proof
from sparkd.words import GIB, Phase

PLACES = ("reader", "rank", "head", "elsewhere")
_KEYS = frozenset(
    {
        "id",
        "cause",
        "proof",
        "fatal",
        "literals",
        "pattern",
        "phase",
        "phases",
        "place",
        "level",
        "sources",
        "examples",
    }
)
# Unit in a group's name -> (unit in the quantity's name, factor).
_UNITS = {
    "gib": ("bytes", float(GIB)),
    "mib": ("bytes", float(1 << 20)),
    "kib": ("bytes", 1024.0),
    "bytes": ("bytes", 1.0),
    "percent": ("share", 0.01),
    "share": ("share", 1.0),
    "ms": ("s", 0.001),
    "s": ("s", 1.0),
    "tokens": ("tokens", 1.0),
    "count": ("count", 1.0),
    "code": ("code", 1.0),
    "number": ("number", 1.0),
    "pid": ("pid", 1.0),
}


class CatalogueError(ValueError):
    """A catalogue cannot be used; the text names the signature and what is wrong with it."""


@dataclass(frozen=True, slots=True)
class Measure:
    """How a named group of a pattern becomes a quantity."""

    group: str
    name: str
    factor: float


@dataclass(frozen=True, slots=True)
class Signature:
    """One compiled entry; see the module for its fields. Exact measures stand before converted ones."""

    id: str
    cause: str
    proof: Proof
    fatal: bool
    literals: tuple[str, ...]
    pattern: re.Pattern[str]
    measures: tuple[Measure, ...]
    phases: tuple[tuple[Phase, re.Pattern[str] | None], ...]
    place: str
    quiet: bool
    sources: tuple[str, ...]
    examples: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Catalogue:
    """What a text is compared with.

    Attributes:
        signatures: noise first, then as written.
        literals: those of all signatures.
        quiet_literals: those of the ones that apply to informative lines: few, and those lines are most.
    """

    signatures: tuple[Signature, ...]
    literals: tuple[str, ...]
    quiet_literals: tuple[str, ...]

    def may_match(self, text: str, *, quiet: bool) -> bool:
        """Return whether any signature can match *text*: the cheap question, asked of every record.

        A plain loop of searches is measured to be faster than one alternation (long lines: four times) and
        than `any` over a generator.
        """
        for literal in self.quiet_literals if quiet else self.literals:  # noqa: SIM110
            if literal in text:
                return True
        return False


def compile_catalogue(texts: Iterable[str]) -> Catalogue:
    """Compile TOML *texts*; a later text replaces a signature of an earlier one with the same id.

    Raises:
        CatalogueError: where an entry cannot be used.
    """
    found: dict[str, Signature] = {}
    for text in texts:
        found.update(_compile_text(text))
    ordered = sorted(found.values(), key=lambda signature: signature.proof is not Proof.NOISE)
    return Catalogue(
        signatures=tuple(ordered),
        literals=tuple(sorted({literal for s in ordered for literal in s.literals})),
        quiet_literals=tuple(sorted({literal for s in ordered if s.quiet for literal in s.literals})),
    )


def packaged_texts() -> tuple[str, ...]:
    """Return the catalogue files of this package: the only place here that reads anything."""
    folder = resources.files("sparkd.signals").joinpath("catalogue")
    files = sorted((item for item in folder.iterdir() if item.name.endswith(".toml")), key=lambda f: f.name)
    return tuple(item.read_text(encoding="utf-8") for item in files)


def packaged_catalogue() -> Catalogue:
    """Return the compiled catalogue of this package."""
    return compile_catalogue(packaged_texts())


def _compile_text(text: str) -> dict[str, Signature]:
    try:
        entries = tomllib.loads(text).get("signature", [])
    except tomllib.TOMLDecodeError as error:
        raise CatalogueError(f"no TOML: {error}") from error
    found: dict[str, Signature] = {}
    for entry in entries:
        signature = _compile_entry(entry)
        if signature.id in found:
            raise CatalogueError(f"{signature.id}: the id is given twice")
        found[signature.id] = signature
    return found


def _compile_entry(entry: dict[str, Any]) -> Signature:
    name = entry.get("id")
    if not isinstance(name, str) or not name.isidentifier():
        raise CatalogueError(f"id {name!r}: must be a snake_case word")
    try:
        _check(entry)
        pattern = re.compile(entry["pattern"])
        return Signature(
            id=name,
            cause=entry["cause"],
            proof=Proof(entry["proof"]),
            fatal=entry.get("fatal", False),
            literals=tuple(entry["literals"]),
            pattern=pattern,
            measures=_measures(pattern),
            phases=_phases(entry),
            place=entry.get("place", "reader"),
            quiet=entry.get("level") == "info",
            sources=tuple(entry.get("sources", ())),
            examples=tuple(entry["examples"]),
        )
    except KeyError as error:
        raise CatalogueError(f"{name}: {error} is missing") from error
    except (ValueError, TypeError, re.error) as error:
        raise CatalogueError(f"{name}: {error}") from error


def _check(entry: dict[str, Any]) -> None:
    """Raise ValueError for what the types do not catch."""
    unknown = sorted(entry.keys() - _KEYS)
    if unknown:
        raise ValueError(f"unknown keys {', '.join(unknown)}")
    if entry["cause"] not in CAUSES:
        raise ValueError(f"cause {entry['cause']!r} is not known")
    if entry.get("place", "reader") not in PLACES:
        raise ValueError(f"place {entry['place']!r}: one of {', '.join(PLACES)}")
    if entry.get("level", "info") != "info":
        raise ValueError('level: only "info" can be given')
    if not isinstance(entry.get("fatal", False), bool):
        raise TypeError("fatal: true or false")
    for key in ("literals", "examples"):
        if not entry[key] or not all(isinstance(item, str) and item for item in entry[key]):
            raise ValueError(f"{key}: at least one text")


def _measures(pattern: re.Pattern[str]) -> tuple[Measure, ...]:
    found = []
    for group in pattern.groupindex:
        if group in {"rank", "address"} or group.startswith("_"):
            continue
        stem, _, unit = group.rpartition("_")
        if not stem or unit not in _UNITS:
            raise ValueError(f"group {group}: its name must end with one of {', '.join(_UNITS)}")
        name, factor = _UNITS[unit]
        found.append(Measure(group=group, name=f"{stem}_{name}", factor=factor))
    return tuple(sorted(found, key=lambda measure: measure.factor != 1.0))


def _phases(entry: dict[str, Any]) -> tuple[tuple[Phase, re.Pattern[str] | None], ...]:
    """Return the pairs of `phases`; a plain `phase` is one that always holds."""
    pairs: list[tuple[Phase, re.Pattern[str] | None]] = [
        (Phase(phase), re.compile(pattern)) for phase, pattern in entry.get("phases", ())
    ]
    if "phase" in entry:
        pairs.append((Phase(entry["phase"]), None))
    return tuple(pairs)
