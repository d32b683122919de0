"""What the first lines of a text tell of it: whether it is a log, and whether its first line was cut."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Sequence

from sparkd.intake.forms import Plain, is_headed
from sparkd.intake.lines import clean, text_of
from sparkd.intake.records import OPENERS
from sparkd.intake.sieve import read_phase
from sparkd.signals import wrapping
from sparkd.signals.catalogue import Catalogue
from sparkd.signals.match import recognise
from sparkd.signals.model import Record

# Of a log that nothing else is mixed into nearly every line is headed; of prose with a quoted line few are.
LOG_SHARE = 0.05
# Prose quotes what logs say; where so many lines are known words, a log was cut down to them.
KNOWN_SHARE = 0.5
# So many of the lines after the first one are looked at, at least and at most, and so many must be headed for
# a first line that is not to be the rest of one.
NEIGHBOURS_MIN, NEIGHBOURS_MAX = 8, 100
NEIGHBOURS_SHARE = 0.9
# What a page puts around lines of a log.
_FENCE = "```"
_HEADING = re.compile(r"#{1,6} +\S")
_RAISED = re.compile(r"(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception)(?:: \S|$)")
# How other engines write (Go's logfmt, llama.cpp, SGLang): their logs are read for what they share with ours;
# what kubectl tells of a container's end, and what NCCL tells who asks after its health for JSON.
_OTHER_ENGINES = re.compile(
    r"time=\S+ level=[A-Z]+ |\[GIN\] \d{4}/\d\d/\d\d - |(?:srv|slot) +\w+: |(?:llama|ggml)_\w+: "
    r"|(?:\[[^\]]*\] )?\[(?:TRT-LLM|TensorRT-LLM)\]"
    r"|\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?: [A-Z]{2}\d{1,3}){1,3}\] "
    r"| +Exit Code: +\d"
    r"|[\s{]*\"(?:nccl_version|communicators(?:_count)?|secondary_hash|missing_ranks(?:_count)?|cuda_dev"
    r"|nvml_dev|collective_counts|considered_dead|unresponsive)\": ?"
)
# A talk with a model, as a client prints or keeps it: who speaks.
_ASKS = re.compile(
    r"(?i)[\W_]*(?:user|human|you|me|prompt)[\W_]*:|<\|(?:im_start\|>)?user|.*\"role\": ?\"user\""
)
_ANSWERS = re.compile(
    r"(?i)[\W_]*(?:assistant|ai|bot|model|chatgpt|claude|qwen)[\W_]*:|<\|(?:im_start\|>)?assistant"
    r"|.*\"role\": ?\"assistant\""
)
_TRACEBACK = ('File "', "Traceback (most recent call last):")


def lines_of(head: bytes) -> list[str]:
    """Return the lines that a text begins with, *head* being its first bytes; the last may be cut."""
    plain = Plain()
    lines = plain.lines(clean(head.rstrip(b"\n") + b"\n")) + plain.flush()
    return [text_of(line) for line in lines.split(b"\n") if line.strip()]


def is_log(lines: Sequence[str], catalogue: Catalogue) -> bool:
    """Return whether lines are of a log that is understood here, and not prose, a table, or another file."""
    lines = [line for line in lines if not line.lstrip().startswith(_FENCE)]
    return _are(lines, LOG_SHARE, lambda line: is_headed(line) or _is_own(line)) or _are(
        lines, KNOWN_SHARE, lambda line: _is_known(line, catalogue)
    )


def is_mostly_log(lines: Sequence[str]) -> bool:
    """Return whether at least half of the lines are by their form a log's: a page quotes fewer."""
    lines = [line for line in lines if not line.lstrip().startswith(_FENCE)]
    return _are(lines, KNOWN_SHARE, lambda line: is_headed(line) or _is_own(line))


def is_page(lines: Sequence[str]) -> bool:
    """Return whether lines are written as a page is: it has headings, and fences around what it quotes."""
    return any(line.lstrip().startswith(_FENCE) for line in lines) and any(map(_HEADING.match, lines))


def is_talk(lines: Sequence[str]) -> bool:
    """Return whether lines are a talk with a model, and no line of a log was pasted into it.

    What is said in it of errors, by whomever, has not happened by that.
    """
    if not any(map(_ANSWERS.match, lines)) or any(map(is_headed, lines)):
        return False
    return any(map(_ASKS.match, lines)) or all('"role"' in line for line in lines)


def is_cut(lines: Sequence[str]) -> bool:
    """Return whether the first line is the rest of one: the file was rotated by size, or cut by `tail -c`.

    It is where all others have a head (a time, a level, who wrote it) and it has none, and begins nothing.
    """
    if len(lines) <= NEIGHBOURS_MIN or is_headed(lines[0]):
        return False
    if lines[0].startswith((*OPENERS, " ", "\t")):
        return False
    neighbours = lines[1 : NEIGHBOURS_MAX + 1]
    return sum(map(is_headed, neighbours)) >= NEIGHBOURS_SHARE * len(neighbours)


def _are(lines: Sequence[str], share: float, what: Callable[[str], bool]) -> bool:
    """Return whether so large a share of *lines* is *what*; no more of them are asked than are needed."""
    wanted = max(1, math.ceil(share * len(lines)))
    return sum(1 for _ in itertools.islice(filter(what, lines), wanted)) == wanted


def _is_own(line: str) -> bool:
    """Return whether a line is by its form one of a program's: of a traceback, an exception, a phase."""
    body = wrapping.unwrap(line).body
    if body.lstrip().startswith(_TRACEBACK) or read_phase(body) is not None:
        return True
    return _RAISED.match(body) is not None or _OTHER_ENGINES.match(body) is not None


def _is_known(line: str, catalogue: Catalogue) -> bool:
    body = wrapping.unwrap(line).body
    return _is_own(line) or bool(recognise(Record("log", "", body), catalogue))
