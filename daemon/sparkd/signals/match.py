"""Record → signals, by the catalogue. Never raises on any text; cheap for the lines that say nothing."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from sparkd.signals import prefix
from sparkd.signals.catalogue import Catalogue, Measure, Signature
from sparkd.signals.frames import phase_of
from sparkd.signals.model import UNNAMED, Proof, Quantity, Record, Signal
from sparkd.words import Phase

QUOTE_CHARS = 400
_TAIL_CHARS = 180
_WARNING = "WARNING"
_RAYS = ("ray_", "worker_process_died", "clean_shutdown", "killed_unspecified")


@dataclass(frozen=True, slots=True)
class Places:
    """What tells a node from an address or a rank.

    Attributes:
        addresses: address → node, all addresses of all nodes.
        ranks: rank → node, as far as the plan fixes it.
        head: the head node.
        open: whether other nodes may exist: an address that is not listed then stands for its own node.
    """

    addresses: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    ranks: Mapping[int, str] = field(default_factory=lambda: MappingProxyType({}))
    head: str | None = None
    open: bool = False

    def at(self, address: str, unknown: str = "") -> str:
        """Return the node of *address*; *unknown* where the nodes are known and it is none of theirs."""
        return self.addresses.get(address, address if self.open else unknown)


NO_PLACES = Places()


def recognise(record: Record, catalogue: Catalogue, places: Places = NO_PLACES) -> tuple[Signal, ...]:
    """Return what *record* says, at most one signal a cause (the catalogue's order decides).

    A record that is noise gives that one signal of proof `noise` and nothing else.
    """
    candidates = catalogue.candidates(record.text)
    if not candidates:
        return ()
    if not record.level and not record.process:
        record = _with_prefix(record)
    quiet = prefix.is_quiet(record.level)
    found: dict[str, Signal] = {}
    noise: tuple[Signal, ...] = ()
    for signature in candidates:
        if signature.cause in found or (quiet and not signature.quiet and signature.proof is not Proof.NOISE):
            continue
        match = _try(signature, record)
        if match is None:
            continue
        if signature.proof is not Proof.NOISE:
            signal = _signal(signature, match, record, places)
            found[signature.cause] = _warned(signal) if record.level == _WARNING else signal
            continue
        noise = noise or (_signal(signature, match, record, places),)
        record = _without(record, match)
        if not record.text:
            return noise
    return tuple(found.values()) or noise


def _warned(signal: Signal) -> Signal:
    """Return a failure that its program itself only warns of: it goes on, and may fail of it later.

    Ray warns of what ends others.
    """
    if not signal.fatal or signal.cause.startswith(_RAYS):
        return signal
    proof = Proof.SUGGESTS if signal.proof is Proof.PROVES else signal.proof
    return replace(signal, proof=proof, fatal=False)


def _without(record: Record, match: re.Match[str]) -> Record:
    """Return a report without a harmless line; of what begins with harmless words nothing is left."""
    text = record.text
    if match.start() == 0 or "\n" not in text:
        return replace(record, text="")
    start = text.rfind("\n", 0, match.start()) + 1
    end = text.find("\n", match.end())
    return replace(record, text=text[:start] + ("" if end < 0 else text[end + 1 :]))


def _with_prefix(record: Record) -> Record:
    """Take the prefix off a record that was not read by the intake."""
    parts = prefix.split(record.text)
    if parts.body == record.text:
        return record
    return replace(
        record,
        text=parts.body,
        printed=record.printed or parts.printed,
        process=parts.process,
        level=parts.level,
        address=parts.address,
        rank=parts.rank,
    )


def _try(signature: Signature, record: Record) -> re.Match[str] | None:
    if signature.sources and not any(name in record.source for name in signature.sources):
        return None
    return signature.pattern.search(record.text)


def _signal(signature: Signature, match: re.Match[str], record: Record, places: Places) -> Signal:
    groups = match.groupdict()
    rank = _whole(groups.get("rank"))
    if rank is None and groups.get("address") is None:
        rank = record.rank  # the writer tells of itself; with an address it tells of another node
    node = _node(signature, groups.get("address"), rank, record, places)
    return Signal(
        id=signature.id,
        cause=signature.cause,
        proof=signature.proof,
        node=node,
        source=record.source,
        quote=_quote(match, record.text),
        at_s=record.at_s,
        generation=record.generation,
        fatal=signature.fatal,
        rank=rank,
        phase=_phase(signature, record.text),
        printed=record.printed,
        quantities=_quantities(signature.measures, groups),
        reader="" if node == record.node else record.node or UNNAMED,
        file=record.file,
    )


def _node(signature: Signature, named: str | None, rank: int | None, record: Record, places: Places) -> str:
    """Return whom it concerns: the address in the text, else as the signature says, else the writer.

    A place that is another node without being named is the empty text: a wrong node is worse than none.
    """
    if named is not None:
        return places.at(named, "" if places.addresses else record.node)
    if signature.place == "rank":
        return places.ranks.get(rank, "") if rank is not None else ""
    if signature.place == "head":
        return places.head or ""
    if signature.place == "elsewhere":
        return ""
    if record.address is not None:
        return places.at(record.address)
    return record.node


def _phase(signature: Signature, text: str) -> Phase | None:
    """Return the phase that the signature tells, else the frames of the traceback that it stands in."""
    found = (phase for phase, pattern in signature.phases if pattern is None or pattern.search(text))
    return next(found, None) or phase_of(text)


AMOUNT_MAX = 1e18
"""A longer number is no amount of anything: a line can hold what it likes."""


def _quantities(measures: Iterable[Measure], groups: Mapping[str, str | None]) -> tuple[Quantity, ...]:
    """Return the numbers; where a text gives one twice, the exact one (measures stand exact first)."""
    found: dict[str, Quantity] = {}
    for measure in measures:
        value = _number(groups.get(measure.group))
        if value is None or measure.name in found:
            continue
        if abs(amount := value * measure.factor) <= AMOUNT_MAX:
            found[measure.name] = Quantity(measure.name, amount)
    return tuple(found.values())


def _number(text: str | None) -> float | None:
    try:
        number = float(text) if text is not None else math.nan
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _whole(text: str | None) -> int | None:
    number = _number(text)
    return None if number is None or number > 1e6 else int(number)


def _quote(match: re.Match[str], text: str) -> str:
    """Return the decisive words: the matched lines, of a long match its beginning and its end.

    In a traceback the exception's own line, not the source line of a frame that names it.
    """
    start = text.rfind("\n", 0, match.start()) + 1
    if text[start : start + 1] in {" ", "\t"}:
        for later in match.re.finditer(text, match.end()):
            begin = text.rfind("\n", 0, later.start()) + 1
            if text[begin : begin + 1] not in {" ", "\t"}:
                match, start = later, begin
                break
    end = text.find("\n", match.end())
    words = " ".join(text[start : len(text) if end < 0 else end].split())
    if len(words) <= QUOTE_CHARS:
        return words
    return f"{words[: QUOTE_CHARS - _TAIL_CHARS]} … {words[-_TAIL_CHARS:]}"
