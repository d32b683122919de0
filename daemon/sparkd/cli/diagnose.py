"""`sparkctl diagnose`: the root cause in any logs, without a daemon.

Exit status: 0 = nothing wrong found (a clean stop is nothing wrong), 1 = a cause found, or a failure
without one, 2 = nothing usable was given. With --batch: 0 = answered, 2 = no line of the batch was usable.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from sparkd.cli.diagnose_text import HEALTHY, diagnosis_text, document
from sparkd.cli.layout import safe
from sparkd.cli.reading import Diagnoser, NamedLog
from sparkd.intake.files import STDIN, UnusableError, expand
from sparkd.intake.signature_files import FOLDER, with_site_signatures
from sparkd.signals.catalogue import Catalogue, packaged_catalogue

HEALTHY_LOGS, CAUSE_FOUND, UNUSABLE = 0, 1, 2


def run(options: argparse.Namespace) -> int:
    """Diagnose what the command line names and return the exit status."""
    try:
        diagnoser = Diagnoser(site_catalogue(options.signatures))
        if options.batch is not None:
            return _batch(diagnoser, options)
        return _files(diagnoser, options)
    except UnusableError as error:
        print(f"sparkctl: {error}", file=sys.stderr)
        return UNUSABLE


def site_catalogue(folder: Path | None) -> Catalogue:
    """Return the packaged signatures with the site's; what cannot be used is told and left out."""
    if folder is not None and not folder.is_dir():
        raise UnusableError(f"--signatures {folder}: no such folder")
    catalogue, problems = with_site_signatures(packaged_catalogue(), folder or FOLDER)
    for problem in problems:
        print(f"sparkctl: left out: {problem}", file=sys.stderr)
    return catalogue


def _files(diagnoser: Diagnoser, options: argparse.Namespace) -> int:
    named = dict(_named(option) for option in options.node)
    names = [*dict.fromkeys([*options.files, *named])]
    if not names and sys.stdin.isatty():
        raise UnusableError("name the logs: sparkctl diagnose FILE…, or - for standard input")
    with ExitStack() as stack:
        logs = [
            NamedLog(file, named.get(name))
            for name in names or [STDIN]
            for file in expand(name, lambda: _scratch(stack))
        ]
        found = diagnoser.files(logs)
    for trouble in filter(None, (log.file.trouble for log in logs)):
        print(f"sparkctl: {trouble}", file=sys.stderr)
    if options.json:
        _tell(document(found, explain=options.explain), indent=2)
    else:
        print(safe(diagnosis_text(found, explain=options.explain)), flush=True)
    return HEALTHY_LOGS if found.diagnosis.cause in HEALTHY else CAUSE_FOUND


def _scratch(stack: ExitStack) -> Path:
    import tempfile

    return Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sparkctl-")))


def _named(option: str) -> tuple[str, str]:
    """Return (file, node) of NAME=FILE."""
    node, mark, file = option.partition("=")
    if not (node and mark and file):
        raise UnusableError(f"--node {option}: wanted is NAME=FILE, for example --node spark-a=serve.log")
    return file, node


def _batch(diagnoser: Diagnoser, options: argparse.Namespace) -> int:
    """Answer each line as it comes: memory is bounded by the longest line."""
    answered = usable = 0
    for line in _lines(options.batch):
        answered += 1
        result = _result(diagnoser, line, explain=options.explain)
        usable += "error" not in result
        _tell(result)
    if not answered:
        raise UnusableError(f"--batch {options.batch}: it has no lines")
    return HEALTHY_LOGS if usable else UNUSABLE


def _lines(name: str) -> Iterator[bytes]:
    if name == STDIN:
        yield from filter(bytes.strip, sys.stdin.buffer)
        return
    try:
        with Path(name).open("rb") as file:
            yield from filter(bytes.strip, file)
    except OSError as error:
        raise UnusableError(f"--batch {name}: {error.strerror}") from error


def _result(diagnoser: Diagnoser, line: bytes, *, explain: bool) -> dict[str, Any]:
    try:
        entry = json.loads(line)
    except ValueError as error:
        return {"id": None, "error": f"no JSON: {error}"}
    if not isinstance(entry, dict):
        return {"id": None, "error": 'wanted is an object {"id": …, "lines": […]}'}
    lines = entry.get("lines")
    lines = lines.split("\n") if isinstance(lines, str) else lines
    if not isinstance(lines, list) or not all(isinstance(text, str) for text in lines):
        return {"id": entry.get("id"), "error": '"lines" must be a list of texts'}
    return {"id": entry.get("id"), **document(diagnoser.lines(lines), explain=explain)}


def _tell(what: dict[str, Any], indent: int | None = None) -> None:
    print(json.dumps(what, ensure_ascii=False, indent=indent), flush=True)
