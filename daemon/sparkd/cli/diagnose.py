"""`sparkctl diagnose`: the root cause in any logs, without a daemon.

Exit status: 0 = nothing wrong found (a clean stop is nothing wrong), 1 = a cause found, or a failure
without one, 2 = nothing usable was given, or nothing wrong was found but not everything that was given could
be read: what is not known is not called healthy.
With --batch: 0 = answered, 2 = no line of the batch was usable.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Timer
from typing import Any

from sparkd.cli.diagnose_text import HEALTHY, diagnosis_text, document
from sparkd.cli.layout import safe
from sparkd.cli.reading import Diagnoser, NamedLog
from sparkd.cli.recorded import assessed, incident_in
from sparkd.intake.files import STDIN, LogFile, NoLogError, Tell, Unread, UnusableError, expand
from sparkd.intake.opening import opened
from sparkd.intake.signature_files import FOLDER, with_site_signatures
from sparkd.signals.assess import Assessment
from sparkd.signals.catalogue import Catalogue, packaged_catalogue

# The name that sets the daemon's folder, too.
FOLDER_VARIABLE = "SPARKD_PATHS__SIGNATURES_DIR"
HEALTHY_LOGS, CAUSE_FOUND, UNUSABLE = 0, 1, 2
STREAM_TOLD_S = 5.0
STREAM_TOLD = "sparkctl: still reading; the answer comes at the end of the stream, or with Ctrl-C"
_WANTED = 'wanted is an object {"id": …, "lines": ["…", …]} on each line'
# A line of a batch is one log; one that is longer is no line.
BATCH_LINE_BYTES_MAX = 1 << 30


def run(options: argparse.Namespace) -> int:
    """Diagnose what the command line names and return the exit status."""
    try:
        diagnoser = Diagnoser(site_catalogue(options.signatures))
        if options.batch is not None:
            return _batch(diagnoser, options)
        return _files(diagnoser, options)
    except UnusableError as error:
        print(f"sparkctl: {safe(str(error))}", file=sys.stderr)
        return UNUSABLE


def site_catalogue(folder: Path | None) -> Catalogue:
    """Return the packaged signatures with the site's; what cannot be used is told and left out."""
    asked = f"--signatures {folder}" if folder else f"environment {FOLDER_VARIABLE}"
    named = folder or (Path(os.environ[FOLDER_VARIABLE]) if os.environ.get(FOLDER_VARIABLE) else None)
    if named is not None and not named.is_dir():
        raise UnusableError(f"{asked}: {named} is no folder: give one with *.toml files")
    catalogue, problems = with_site_signatures(packaged_catalogue(), named or FOLDER)
    for problem in problems:
        print(f"sparkctl: left out: {safe(problem)}", file=sys.stderr)
    return catalogue


def _files(diagnoser: Diagnoser, options: argparse.Namespace) -> int:
    named = _nodes(options.node)
    names = [*dict.fromkeys([*options.files, *named])]
    if not names and sys.stdin is not None and sys.stdin.isatty():
        raise UnusableError("name the logs: sparkctl diagnose FILE…, or - for standard input")
    unread: list[Unread] = []
    found = _recorded(names or [STDIN]) or _assessed(diagnoser, names or [STDIN], named, unread)
    if options.json:
        for trouble in unread:
            print(f"sparkctl: {safe(str(trouble))}", file=sys.stderr)
        _tell(document(found, explain=options.explain, unread=unread), indent=2)
    else:
        print(safe(diagnosis_text(found, explain=options.explain, unread=unread)), flush=True)
    if found.diagnosis.cause not in HEALTHY:
        return CAUSE_FOUND
    return UNUSABLE if unread else HEALTHY_LOGS


def _recorded(names: Sequence[str]) -> Assessment | None:
    """Return what a recorded incident proves, None where logs are given."""
    incidents = {name: document for name in names if (document := incident_in(name)) is not None}
    if not incidents:
        return None
    if len(names) > 1:
        raise UnusableError(f"{next(iter(incidents))} is a recorded incident: give it alone")
    return next(assessed(name, document) for name, document in incidents.items())


def _assessed(
    diagnoser: Diagnoser, names: Sequence[str], named: Mapping[str, str], unread: list[Unread]
) -> Assessment:
    """Return what the logs prove; what cannot be read is added to *unread*."""
    with ExitStack() as stack:
        files = _expanded(names, lambda: _scratch(stack), unread.append)
        logs = [NamedLog(file, named.get(name)) for name, file in files]
        with _patience(logs):
            found = diagnoser.files(logs)
    unread += [log.file.unread for log in logs if log.file.unread is not None]
    return found


def _expanded(names: Sequence[str], scratch: Callable[[], Path], tell: Tell) -> list[tuple[str, LogFile]]:
    """Return the logs behind each name; a name that gives none is told. Raises NoLogError where all do."""
    found: list[tuple[str, LogFile]] = []
    refused: list[NoLogError] = []
    for name in names:
        try:
            found += [(name, file) for file in expand(name, scratch, tell)]
        except NoLogError as error:
            refused.append(error)
    if not found:
        raise refused[0]
    for one in refused:
        tell(one.unread)
    return found


@contextmanager
def _patience(logs: Sequence[NamedLog]) -> Iterator[None]:
    """Tell a person who waits for a stream that does not end how to get the answer."""
    if not (sys.stderr is not None and sys.stderr.isatty() and any(log.file.once for log in logs)):
        yield
        return
    told = Timer(STREAM_TOLD_S, lambda: print(STREAM_TOLD, file=sys.stderr, flush=True))
    told.daemon = True
    told.start()
    try:
        yield
    finally:
        told.cancel()


def _scratch(stack: ExitStack) -> Path:
    import tempfile

    return Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sparkctl-")))


def _nodes(given: Iterable[str]) -> dict[str, str]:
    """Return the node of each file, of options NAME=FILE."""
    nodes: dict[str, str] = {}
    known: dict[str, str] = {}
    for option in given:
        node, mark, file = option.partition("=")
        if not (node and mark and file):
            raise UnusableError(f"--node {option}: wanted is NAME=FILE, for example --node spark-a=serve.log")
        if not node.isprintable():
            raise UnusableError(f"--node {safe(node)}: the name has characters that cannot be printed")
        if known.setdefault(os.path.realpath(file), node) != node:
            other = known[os.path.realpath(file)]
            raise UnusableError(f"--node {node}={file}: it was already named as a log of {other}")
        nodes[file] = node
    return nodes


def _batch(diagnoser: Diagnoser, options: argparse.Namespace) -> int:
    """Answer each line as it comes: memory is bounded by the longest line."""
    if options.files or options.node:
        raise UnusableError("--batch takes its one FILE: further files and --node do not go with it")
    answered = usable = 0
    for line in _lines(options.batch):
        answered += 1
        result = _result(diagnoser, line, explain=options.explain)
        usable += "error" not in result
        _tell(result)
    if not answered:
        raise UnusableError(f"--batch {options.batch}: it has no lines")
    if usable:
        return HEALTHY_LOGS
    raise UnusableError(f"--batch {options.batch}: none of its {answered} lines can be used: {_WANTED}")


def _lines(name: str) -> Iterator[bytes]:
    try:
        with opened(name) as file:
            while line := file.readline(BATCH_LINE_BYTES_MAX):
                if len(line) >= BATCH_LINE_BYTES_MAX:
                    raise UnusableError(f"--batch {name}: a line of it has no end")
                if line.strip():
                    yield line
    except OSError as error:
        raise UnusableError(f"--batch {name}: {error.strerror}") from error


def _result(diagnoser: Diagnoser, line: bytes, *, explain: bool) -> dict[str, Any]:
    try:
        entry = json.loads(line)
    except ValueError as error:
        return {"id": None, "error": f"no JSON ({error}): {_WANTED}"}
    except RecursionError:
        return {"id": None, "error": f"no JSON (nested too deeply): {_WANTED}"}
    if not isinstance(entry, dict):
        return {"id": None, "error": f"no object: {_WANTED}"}
    identity = _printable(entry.get("id"))
    lines = entry.get("lines")
    lines = lines.split("\n") if isinstance(lines, str) else lines
    if not isinstance(lines, list) or not all(isinstance(text, str) for text in lines):
        return {"id": identity, "error": f'"lines" must be a list of texts: {_WANTED}'}
    if not any(text.strip() for text in lines):
        return {
            "id": identity,
            "error": '"lines" has no line of a log: what is not known is not called healthy',
        }
    try:
        return {"id": identity, **document(diagnoser.log(lines), explain=explain)}
    except UnusableError as error:
        return {"id": identity, "error": str(error)}


def _printable(identity: object) -> object:
    """Return an id as it was given; as text where JSON cannot have it (NaN, Infinity)."""
    try:
        json.dumps(identity, allow_nan=False)
    except ValueError:
        return json.dumps(identity)
    except RecursionError:
        return None
    return identity


def _tell(what: dict[str, Any], indent: int | None = None) -> None:
    print(json.dumps(what, ensure_ascii=True, allow_nan=False, indent=indent), flush=True)
