"""An assessment of logs as text and as JSON. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from sparkd.cli.quoting import place, proof_lines, short
from sparkd.export.human import words
from sparkd.intake.files import Unread
from sparkd.signals.assess import Assessment
from sparkd.signals.causes import NONE, UNKNOWN
from sparkd.signals.model import Diagnosis, Quantity, Quote, Signal

UNREAD_MAX = 8
Document = dict[str, Any]
HEALTHY = frozenset({NONE, "clean_shutdown"})


def diagnosis_text(found: Assessment, *, explain: bool, unread: Sequence[Unread] = ()) -> str:
    """Return Why, Proof and what to do, as for an incident; and what of the logs it is without."""
    diagnosis = found.diagnosis
    healthy = _ignored_text(found, complete=not unread)
    lines = [healthy, *_earlier(diagnosis)] if diagnosis.cause == NONE else _cause_lines(diagnosis)
    if unread:
        lines += ["", *_unread_lines(unread)]
    if explain:
        lines += ["", *_explained(found)]
    return "\n".join(lines)


def document(found: Assessment, *, explain: bool = False, unread: Sequence[Unread] = ()) -> Document:
    """Return the result as JSON has it; unknown is null."""
    diagnosis = found.diagnosis
    sparkd, person = _would(diagnosis)
    result: Document = {
        "cause": diagnosis.cause,
        "phase": diagnosis.phase,
        "node": diagnosis.node or None,
        "rank": diagnosis.rank,
        "transient": diagnosis.transient,
        "confidence": diagnosis.confidence,
        "quantities": _numbers(diagnosis.quantities),
        "explanation": diagnosis.explanation,
        "evidence": [_quote(quote) for quote in diagnosis.evidence],
        "cascade": [_quote(quote) for quote in diagnosis.cascade],
        "candidates": list(diagnosis.candidates),
        "advice": diagnosis.advice,
        "sparkd_would": sparkd,
        "only_you_can": "" if sparkd else person,
        "ignored": found.noise_count,
        "unread": [{"source": u.name, "why": u.why, "read_bytes": u.read_bytes} for u in unread],
    }
    if explain:
        result["ignored_by_signature"] = dict(found.noise)
        result["signals"] = [_weighed(w.signal, w.verdict, w.why) for w in found.weighed]
        result["signals_dropped"] = found.signals_dropped
    return result


def _ignored_text(found: Assessment, *, complete: bool) -> str:
    healthy = "nothing wrong found" if complete else "nothing wrong found in what could be read"
    if not found.noise_count:
        return healthy
    lines = "line" if found.noise_count == 1 else "lines"
    listed = "sparkctl diagnose --explain lists them"
    return f"{healthy}; {found.noise_count} known-harmless error {lines} ignored ({listed})"


def _earlier(diagnosis: Diagnosis) -> list[str]:
    """Return that an earlier start failed: the last one is well."""
    _, mark, failed = diagnosis.explanation.partition("; ")
    return [failed] if mark else []


def _unread_lines(unread: Sequence[Unread]) -> list[str]:
    lines = _entry("Unread", (" ".join(str(one).split()) for one in unread[:UNREAD_MAX]))
    more = len(unread) - UNREAD_MAX
    return [*lines, f"{'':<7}and {more} more"] if more > 0 else lines


def _numbers(quantities: Iterable[Quantity]) -> Document:
    """Return quantities by name; JSON knows no infinity."""
    return {q.name: q.value if math.isfinite(q.value) else None for q in quantities}


def _cause_lines(diagnosis: Diagnosis) -> list[str]:
    where = [diagnosis.node or "node unknown"]
    phase = [words(diagnosis.phase)] if diagnosis.phase else []
    headline = " · ".join([diagnosis.cause, *phase, *where, f"confidence {diagnosis.confidence:.0%}"])
    why = [diagnosis.explanation]
    if diagnosis.candidates:
        could = "it could be" if diagnosis.cause == UNKNOWN else "the evidence would also allow"
        why.append(f"{could}: {', '.join(diagnosis.candidates)}")
    proof = proof_lines(diagnosis.evidence, diagnosis.cascade)
    lines = [headline, "", *_entry("Why", why)]
    if proof:
        lines += _entry("Proof", proof)
    return [*lines, *_advice(diagnosis)]


def _advice(diagnosis: Diagnosis) -> list[str]:
    if diagnosis.cause == "clean_shutdown":
        return ["", "nothing to do: it ended because it was asked to"]
    sparkd, person = _would(diagnosis)
    if not sparkd:
        return ["", f"only you can: {person}"]
    return ["", f"sparkd would: {sparkd}", *([f"you can: {person}"] if person else [])]


def _would(diagnosis: Diagnosis) -> tuple[str, str]:
    """Return what `would` says; its rules are read only where something is wrong, for a person waits."""
    if diagnosis.cause in HEALTHY:
        return "", ""
    from sparkd.cli.would import would

    return would(diagnosis)


def _explained(found: Assessment) -> list[str]:
    lines = []
    for weighed in found.weighed:
        signal = weighed.signal
        said = f"{signal.id} ({signal.cause})"
        lines.append(f"{weighed.verdict:<10} {said}: {weighed.why}")
        lines.append(f"{'':<10} {place(signal.node, signal.source, signal.printed)}  {short(signal.quote)}")
    if found.signals_dropped:
        lines.append(f"{found.signals_dropped} further signals were beyond what is kept")
    lines += [f"ignored    {count} times {name}: known to be harmless" for name, count in found.noise]
    return lines or ["no line says anything: no signature of the catalogue matched"]


def _entry(title: str, lines: Iterable[str]) -> list[str]:
    return [f"{title if number == 0 else '':<7}{line}" for number, line in enumerate(lines)]


def _quote(quote: Quote) -> Document:
    return {
        "node": quote.node or None,
        "source": quote.source,
        "printed": quote.printed or None,
        "text": quote.text,
        "role": quote.role,
    }


def _weighed(signal: Signal, verdict: str, why: str) -> Document:
    return {
        "verdict": verdict,
        "why": why,
        "id": signal.id,
        "cause": signal.cause,
        "proof": signal.proof,
        "fatal": signal.fatal,
        "node": signal.node or None,
        "rank": signal.rank,
        "phase": signal.phase,
        "source": signal.source,
        "printed": signal.printed,
        "quantities": _numbers(signal.quantities),
        "quote": signal.quote,
    }
