"""An exception that no signature knows: it ended something, and only a person can say why.

Named because it is evidence against every guess: where it stands, "the engine is dead" is not all that the
log says, and a survivor's error is not the root.
"""

from __future__ import annotations

import re

KINDS = ("Error", "Exception", "Exit", "Interrupt", "Fault", "Unavailable")
"""What the names of exceptions end with."""
# At the beginning of a line, or after what a logger or collector put there; torch and Ray add words behind.
_RAISED = re.compile(
    r"^(?:[^\n]{0,160}[\]|>]:? ?)?(?:ray\.exceptions\.RayTaskError\()?"
    rf"((?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:{'|'.join(KINDS)}))\b\)?(?::\s*(.*))?$",
    re.MULTILINE,
)
# What an engine raises to say that another part of it has failed, what a stop raises, what refuses a request.
_RELAYED = frozenset(
    {
        "ActorDiedError",
        "AsyncEngineDeadError",
        "BrokenPipeError",
        "CancelledError",
        "ChildFailedError",
        "ConnectionResetError",
        "DistBackendError",
        "EOFError",
        "EngineDeadError",
        "EngineGenerateError",
        "HTTPException",
        "KeyboardInterrupt",
        "MQEngineDeadError",
        "QueueEmpty",
        "RayActorError",
        "SystemExit",
        "TimeoutError",
        "VLLMNotFoundError",
        "VLLMValidationError",
    }
)
_RELAYED_TEXTS = (
    "Engine core initialization failed",
    "Engine process failed to start",
    "WorkerProc initialization failed",
    "cancelled",
    "Executor failed",
    "Background loop",
    "Worker failed with error",
    "Task finished unexpectedly",
    "EngineCore encountered an issue",
    "EngineCore hit an exception",
    "NCCL communicator was aborted",
)


# What a failure says where no exception does: a level of its own, a shell's, a compiler's, a crash's words;
# not what a request is refused with.
_FAILED = re.compile(
    r"^(?:[^\n]{0,80}[\s:\]|>])?(?:(?:FATAL|CRITICAL|ERROR|PANIC|ERR)\b|(?:[Ff]atal|[Ee]rror|panic|ERROR):\s+\S"
    r"|fatal error: |Traceback \(most recent call last\)|terminate called after|Aborted\b"
    r"|Killed\b(?! /| process \d)|[Ss]egmentation fault|core dumped)"
    r"|\bError response from daemon: "
    r"|(?:^|[\s.])(?!VLLM(?:Validation|NotFound))[A-Z]\w+(?:Error|Exception)\b(?=[:( ]|$)"
    r"|: (?:command not found|No such file or directory|[Pp]ermission denied|[Cc]onnection refused)\b"
    r"|\b(?:Failed|failed|Cannot|Could not|Unable|unable) to (?!automatically)\w+",
    re.MULTILINE,
)
# Types of exceptions that tell of a slip in a program and not of what it met.
_SLIPS = re.compile(
    r"(?:Assertion|Index|Key|Attribute|Type|UnboundLocal|Name|ZeroDivision|Recursion|NotImplemented)Error\b"
)


def is_slip(raised: str) -> bool:
    """Return whether an exception is of a type that tells of an error in the program itself."""
    return _SLIPS.match(raised.partition(":")[0].rpartition(".")[2]) is not None


# The same in any program's words; not where it only informs, or answers what is a client's mistake.
_FAILED_SOMEHOW = re.compile(
    r"^(?![^\n]*(?:\bINFO\b|\"code\": ?4\d\d\b))[^\n]*"
    r"\b(?i:failed|failure|fatal|error|out of resource|stopped: subcommand|timed out"
    r"|refused|denied|no matching manifest)\b(?![=:] ?(?:0|false|none)\b)",
    re.MULTILINE,
)


def failed_in(text: str) -> str | None:
    """Return the line of *text* that tells of a failure in whatever words, None where none does."""
    found = _FAILED.search(text) or _FAILED_SOMEHOW.search(text)
    if found is None:
        return None
    start = text.rfind("\n", 0, found.end()) + 1
    end = text.find("\n", found.end())
    return text[start : len(text) if end < 0 else end].strip()


def raised_in(text: str) -> str | None:
    """Return the exception that *text* ends with ("KeyError: 'a'"), None where it tells of another's end."""
    if not any(kind in text for kind in KINDS):
        return None
    own = [found for found in _RAISED.finditer(text) if not _is_relayed(found)]
    if not own:
        return None
    return " ".join(f"{own[-1][1]}: {own[-1][2] or ''}".split()).removesuffix(":")


def _is_relayed(found: re.Match[str]) -> bool:
    name = found[1].rpartition(".")[2]
    said = found[2] or ""
    return name in _RELAYED or said.startswith(_RELAYED_TEXTS) or "gloo/transport/" in said
