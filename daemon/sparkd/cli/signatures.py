"""`sparkctl signatures`: the catalogue, for people, for programs, and for grep."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from sparkd.cli.diagnose import UNUSABLE, site_catalogue
from sparkd.cli.layout import columns, safe
from sparkd.intake.files import UnusableError
from sparkd.signals.catalogue import Signature
from sparkd.signals.posix import to_ere

EXAMPLE_CHARS_MAX = 100


def run(options: argparse.Namespace) -> int:
    """List the signatures and return the exit status."""
    try:
        signatures = site_catalogue(options.signatures).signatures
    except UnusableError as error:
        print(f"sparkctl: {error}", file=sys.stderr)
        return UNUSABLE
    if options.patterns:
        print("\n".join(dict.fromkeys(to_ere(signature.pattern) for signature in signatures)))
    elif options.json:
        print(json.dumps([_document(signature) for signature in signatures], ensure_ascii=True, indent=2))
    else:
        ordered = sorted(signatures, key=lambda s: (s.cause, s.id))
        rows = [(s.id, s.cause, s.proof, _first_line(s.examples[0])) for s in ordered]
        print(safe("\n".join(columns([("signature", "cause", "proof", "example"), *rows]))))
    return 0


def _document(signature: Signature) -> dict[str, Any]:
    return {
        "id": signature.id,
        "cause": signature.cause,
        "proof": signature.proof,
        "fatal": signature.fatal,
        "pattern": signature.source,
        "grep": to_ere(signature.pattern),
        "literals": list(signature.literals),
        "quantities": list(dict.fromkeys(measure.name for measure in signature.measures)),
        "phases": [phase for phase, _ in signature.phase_sources],
        "examples": list(signature.examples),
    }


def _first_line(example: str) -> str:
    line = " ".join(example.strip().split("\n")[0].split())
    return line if len(line) <= EXAMPLE_CHARS_MAX else f"{line[:EXAMPLE_CHARS_MAX].rstrip()} …"
