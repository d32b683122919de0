"""The catalogue: what a text means, as data. TOML in, compiled signatures out.

A signature is an array entry `[[signature]]` with: `id`, `cause` (a code of `causes`), `proof`, `fatal`
(the running generation cannot go on), `literals` (any of them must stand in the text before the pattern is
tried: the cheap filter), `pattern`, `phase` or `phases` (pairs of phase and a further pattern, first match
wins), `place` (whom it concerns: "reader" the node that wrote it, "rank" the node of its rank, "head",
"elsewhere" another node that it does not name), `level` ("info": also where the line itself is only
informative), `sources` (substrings of the sources that it applies to; none = all) and `examples`. In a
pattern `{engine}` stands for the beginnings of the names of an engine's processes, `{engine_unit}` for those
of its units.

Named groups of a pattern become quantities with their unit last: `used_gib` gives `used_bytes`. Ray prints
"GB" and means GiB. `rank` and `address` are taken as such; names that begin with `_` are not taken.
"""

from __future__ import annotations

import pkgutil
import re
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from ahocorasick_rs import AhoCorasick

from sparkd.signals import regular
from sparkd.signals.causes import CAUSES
from sparkd.signals.model import Proof
from sparkd.words import GIB, Phase

# vLLM's processes (and its like's), Ray's, and what they start, as the kernel names them.
_NAMES = {
    "{engine}": (
        "(?:ray::|raylet|gcs_server|VLLM|vllm|pt_|python|EngineCore|uvicorn|cicc|ptxas|nvcc"
        "|sglang|trtllm|ollama|llama)"
    ),
    "{engine_unit}": "(?:vllm|(?:ray|raylet|llm|serve|engine|inference)(?![A-Za-z]))",
}
# The files, in the order of reading: `surface` is the last, of one cause the first signature counts.
PACKAGED = (
    *("engine", "install", "kernel", "memory", "network", "noise", "ray", "setup", "setup_options"),
    "surface",
)
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


_GROUP = re.compile(r"\(\?P<(\w+)>")


class CatalogueError(ValueError):
    """A catalogue cannot be used; the text names the signature and what is wrong with it."""


@dataclass(frozen=True, slots=True)
class Measure:
    """How a named group of a pattern becomes a quantity."""

    group: str
    name: str
    factor: float


@dataclass(frozen=True)
class Signature:
    """One entry; see the module for its fields. Exact measures stand before converted ones.

    A pattern is compiled when it is first needed: of hundreds a log needs a few, and a person waits.
    """

    id: str
    cause: str
    proof: Proof
    fatal: bool
    literals: tuple[str, ...]
    source: str
    measures: tuple[Measure, ...]
    phase_sources: tuple[tuple[Phase, str | None], ...]
    place: str
    quiet: bool
    sources: tuple[str, ...]
    examples: tuple[str, ...]

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """The compiled pattern."""
        return re.compile(self.source)

    @cached_property
    def phases(self) -> tuple[tuple[Phase, re.Pattern[str] | None], ...]:
        """Phases with the further pattern that tells each; None = the phase always holds."""
        return tuple(
            (phase, None if source is None else re.compile(source)) for phase, source in self.phase_sources
        )


@dataclass(frozen=True, slots=True)
class Catalogue:
    """What a text is compared with.

    All literals are looked for in one pass over a text (an Aho-Corasick automaton): what the catalogue grows
    by costs nothing for the lines that say nothing.

    Attributes:
        signatures: noise first, then as written.
        literals: those of all signatures; telling_literals: those of all that are no noise.
        quiet_literals: those of the ones that apply to informative lines: few, and those lines are most.
    """

    signatures: tuple[Signature, ...]
    literals: tuple[str, ...]
    quiet_literals: tuple[str, ...]
    telling_literals: tuple[str, ...]
    _of_literal: tuple[tuple[int, ...], ...] = field(repr=False)
    _finder: AhoCorasick = field(repr=False, compare=False)

    def candidates(self, text: str) -> list[Signature]:
        """Return the signatures of which a literal stands in *text*, in the catalogue's order."""
        found = self._finder.find_matches_as_indexes(text, overlapping=True)
        if not found:
            return []
        numbers = {number for literal, _, _ in found for number in self._of_literal[literal]}
        return [self.signatures[number] for number in sorted(numbers)]


def compile_catalogue(texts: Iterable[str]) -> Catalogue:
    """Compile TOML *texts*; a later text replaces a signature of an earlier one with the same id.

    Raises:
        CatalogueError: where an entry cannot be used.
    """
    catalogue = _of_texts(texts)
    _try_out(catalogue.signatures, examples=False)
    return catalogue


def _of_texts(texts: Iterable[str]) -> Catalogue:
    found: dict[str, Signature] = {}
    for text in texts:
        found.update(_compile_text(text))
    return of_signatures(found.values())


def extend(catalogue: Catalogue, named_texts: Iterable[tuple[str, str]]) -> tuple[Catalogue, tuple[str, ...]]:
    """Return *catalogue* with further (name, TOML text) files, and what is wrong with those left out.

    A file with a mistake is left out as a whole: half of somebody's signatures would be a riddle.
    """
    found = {signature.id: signature for signature in catalogue.signatures}
    problems = []
    for name, text in named_texts:
        try:
            more = _compile_text(text)
            _try_out(more.values(), examples=True)
        except CatalogueError as error:
            problems.append(f"{name}: {error}")
        else:
            found.update(more)
    return of_signatures(found.values()), tuple(problems)


def of_signatures(signatures: Iterable[Signature]) -> Catalogue:
    """Return the catalogue of *signatures*: noise first, then as they stand."""
    ordered = tuple(sorted(signatures, key=lambda signature: signature.proof is not Proof.NOISE))
    literals = _literals(ordered)
    places = {literal: place for place, literal in enumerate(literals)}
    of_literal: list[list[int]] = [[] for _ in literals]
    for number, signature in enumerate(ordered):
        for literal in dict.fromkeys(signature.literals):
            of_literal[places[literal]].append(number)
    return Catalogue(
        signatures=ordered,
        literals=literals,
        quiet_literals=_literals([signature for signature in ordered if signature.quiet]),
        telling_literals=_literals([s for s in ordered if s.proof is not Proof.NOISE]),
        _of_literal=tuple(map(tuple, of_literal)),
        _finder=AhoCorasick(literals),
    )


def _literals(signatures: Sequence[Signature]) -> tuple[str, ...]:
    return tuple(sorted({literal for signature in signatures for literal in signature.literals}))


def _try_out(signatures: Iterable[Signature], *, examples: bool) -> None:
    """Raise CatalogueError for a pattern that is none, or that does not find its own example.

    *examples* are asked of what a site adds, and so is whether its patterns come to an end on any text.
    """
    for signature in signatures:
        try:
            pattern, _ = signature.pattern, signature.phases
        except re.error as error:
            raise CatalogueError(f"{signature.id}: {error}") from error
        if examples:
            _bounded(signature)
        for example in signature.examples if examples else ():
            if not any(literal in example for literal in signature.literals):
                raise CatalogueError(f"{signature.id}: no literal stands in the example {example[:60]!r}")
            if pattern.search(example) is None:
                raise CatalogueError(f"{signature.id}: the pattern misses the example {example[:60]!r}")


def _bounded(signature: Signature) -> None:
    """Raise CatalogueError for a pattern that may take for ever."""
    for source in (signature.source, *(source for _, source in signature.phase_sources)):
        fault = regular.fault_of(source) if source is not None else ""
        if fault:
            raise CatalogueError(
                f"{signature.id}: pattern: {fault}: on some lines it would never end; give a bound, "
                f"like {{0,80}}, or say what stands between"
            )


def packaged_texts() -> tuple[str, ...]:
    """Return the catalogue files of this package: the only place here that reads anything."""
    return tuple(_packaged(name) for name in PACKAGED)


def _packaged(name: str) -> str:
    data = pkgutil.get_data("sparkd.signals", f"catalogue/{name}.toml")
    if data is None:
        raise CatalogueError(f"{name}.toml cannot be read: install sparkd again")
    return data.decode()


def packaged_catalogue() -> Catalogue:
    """Return the catalogue of this package; that its patterns compile is what its tests hold."""
    return _of_texts(packaged_texts())


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
        return Signature(
            id=name,
            cause=entry["cause"],
            proof=Proof(entry["proof"]),
            fatal=entry.get("fatal", False),
            literals=tuple(entry["literals"]),
            source=_named(entry["pattern"]),
            measures=_measures(entry["pattern"]),
            phase_sources=_phases(entry),
            place=entry.get("place", "reader"),
            quiet=entry.get("level") == "info",
            sources=tuple(entry.get("sources", ())),
            examples=tuple(entry["examples"]),
        )
    except KeyError as error:
        raise CatalogueError(f"{name}: {error} is missing") from error
    except (ValueError, TypeError) as error:
        raise CatalogueError(f"{name}: {error}") from error


def _named(pattern: str) -> str:
    """Return *pattern* with the engine's names in it."""
    for placeholder, names in _NAMES.items():
        pattern = pattern.replace(placeholder, names)
    return pattern


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


def _measures(pattern: str) -> tuple[Measure, ...]:
    found = []
    for group in _GROUP.findall(pattern):
        if group in {"rank", "address"} or group.startswith("_"):
            continue
        stem, _, unit = group.rpartition("_")
        if not stem or unit not in _UNITS:
            raise ValueError(f"group {group}: its name must end with one of {', '.join(_UNITS)}")
        name, factor = _UNITS[unit]
        found.append(Measure(group=group, name=f"{stem}_{name}", factor=factor))
    return tuple(sorted(found, key=lambda measure: measure.factor != 1.0))


def _phases(entry: dict[str, Any]) -> tuple[tuple[Phase, str | None], ...]:
    """Return the pairs of `phases`; a plain `phase` is one that always holds."""
    pairs: list[tuple[Phase, str | None]] = [
        (Phase(phase), pattern) for phase, pattern in entry.get("phases", ())
    ]
    if "phase" in entry:
        pairs.append((Phase(entry["phase"]), None))
    return tuple(pairs)
