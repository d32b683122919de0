"""What stands in front of a line: who wrote it, where, when, how loud.

Outermost first, each may be absent: `(RayWorkerProc pid=9680, ip=10.77.0.2) (Worker_TP1 pid=9680)`, then
one header: vLLM's `INFO 11-30 01:58:34 [core.py:1512]`, Ray's C++ `[2026-11-30 01:58:34,821 W 88 88]
(raylet) store.cc:366:`, Ray's Python `2026-11-30 01:47:20,103<TAB>INFO worker.py:1691 --`, or torch's
`[W1130 01:43:40.244165208 utils.cpp:68]`. Uvicorn's `INFO:` and Ray's `[state-dump]` stay in the text and
only give the level.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_SEGMENT = re.compile(
    r"\((?P<name>[A-Za-z_][\w.:-]*)?(?:(?: |(?<=\())pid=\d+)?(?:, ip=(?P<ip>[^\s,)]+))?\) ?"
)
# Names that Ray prints without a pid.
_BARE = frozenset({"raylet", "gcs_server", "autoscaler"})
_VLLM = re.compile(
    r"(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL) (?P<printed>\d\d-\d\d \d\d:\d\d:\d\d) "
    r"\[(?P<where>[^\]\s]+:\d+)\] ?"
)
_RAY_CPP = re.compile(
    r"\[(?P<printed>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d+) (?P<level>[A-Z]) \d+ \d+\] "
    r"(?:\((?P<process>\w+)\) )?(?P<where>[\w.]+:\d+): ?"
)
_RAY_PYTHON = re.compile(
    r"(?P<printed>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d+)\s(?P<level>[A-Z]+) (?P<where>[\w.]+:\d+) -- ?"
)
_TORCH = re.compile(r"\[(?P<level>[IWEF])(?P<printed>\d{4} \d\d:\d\d:\d\d)\.\d+ (?P<where>[\w.]+:\d+)\] ?")
_RANK = re.compile(r"Worker_(?:PP0_)?TP(\d+)|VllmWorker-(\d+)")
# What a prefix can begin with; any other line is all body.
_FIRST = frozenset("([0123456789DIWEC")
_QUIET_STARTS = ("INFO:     ", "[state-dump]")
_QUIET = frozenset({"DEBUG", "INFO", "I", "D"})


class Prefix(NamedTuple):
    """A line taken apart (a tuple: one is made for every line).

    Attributes:
        body: the line without its prefix.
        process: the writing process, innermost name ("Worker_TP1"); stream: all names, to tell streams apart.
        address: where Ray says that it ran, None = here or not said.
        rank: the rank that its name gives.
        level, printed, where: of the header, empty where there is none.
    """

    body: str
    process: str = ""
    stream: str = ""
    address: str | None = None
    rank: int | None = None
    level: str = ""
    printed: str | None = None
    where: str = ""

    @property
    def loud(self) -> bool:
        """Whether the line is an error by its own level."""
        return self.level in {"ERROR", "CRITICAL"}


def is_quiet(level: str) -> bool:
    """Return whether a line of this level only informs."""
    return level in _QUIET


def split(line: str) -> Prefix:
    """Take *line* apart; a line without prefix is all body."""
    if line[:1] not in _FIRST:
        return Prefix(line)
    if line.startswith(_QUIET_STARTS):
        return Prefix(line, level="INFO")
    start, names, address = _segments(line) if line[0] == "(" else (0, [], None)
    process = names[-1] if names else ""
    header = _header(line, start)
    if header is None:
        body = line[start:] if start else line
        return Prefix(
            body=body, process=process, stream="/".join(names), address=address, rank=_rank(process)
        )
    level, printed, where = header.group("level", "printed", "where")
    if not process and header.re is _RAY_CPP:
        process = header["process"] or ""
    return Prefix(
        line[header.end() :], process, "/".join(names), address, _rank(process), level, printed, where
    )


def _segments(line: str) -> tuple[int, list[str], str | None]:
    """Return where the text after the `(name pid=N)` segments begins, their names, and the address."""
    position, names, address = 0, [], None
    while line.startswith("(", position):
        found = _SEGMENT.match(line, position)
        if found is None or not ("pid=" in found.group() or found["name"] in _BARE):
            break
        names.append(found["name"] or "")
        address = found["ip"] or address
        position = found.end()
    return position, names, address


def _header(line: str, start: int) -> re.Match[str] | None:
    first = line[start : start + 1]
    if first == "[":
        return _RAY_CPP.match(line, start) or _TORCH.match(line, start)
    if first.isdigit():
        return _RAY_PYTHON.match(line, start)
    return _VLLM.match(line, start)


def _rank(process: str) -> int | None:
    if "orker" not in process:
        return None
    found = _RANK.fullmatch(process)
    return int(found[1] or found[2]) if found else None
