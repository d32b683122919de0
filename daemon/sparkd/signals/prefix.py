"""What stands in front of a line: who wrote it, where, when, how loud.

Outermost first, each may be absent: `(RayWorkerProc pid=9680, ip=10.77.0.2) (Worker_TP1 pid=9680)`,
torchrun's `[rank0]:`, then headers: vLLM's `INFO 11-30 01:58:34 [core.py:1512]` (before 0.8
`core.py:1512]`), Ray's C++ `[2026-11-30 01:58:34,821 W 88 88] (raylet) store.cc:366:`, Ray's Python
`2026-11-30 01:47:20,103<TAB>INFO worker.py:1691 --`, logging's `2026-11-30 01:47:20,103 - INFO - name:`,
torch's `[W1130 01:43:40.244165208 utils.cpp:68]`, glog's `E1130 01:43:40.244165 67580 rdma.cpp:203]`.
Uvicorn's `INFO:` and Ray's `[state-dump]` stay in the text and only give the level. What collectors put
before all this is taken off by `wrapping`.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_SEGMENT = re.compile(
    r"\((?P<name>[A-Za-z_][\w.:-]*)?(?: (?P<tag>rank=\d+|[DTEP]P\d+(?:[ _][DTEP]P\d+)*))?"
    r"(?:(?: |(?<=\())pid=\d+)?(?:, ip=(?P<ip>[^\s,)]+))?\) ?"
)
# Names that Ray prints without a pid.
_BARE = frozenset({"raylet", "gcs_server", "autoscaler"})
_LEVEL = r"(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL|FATAL)"
_VLLM = re.compile(
    _LEVEL + r" (?P<printed>(?:\d{4}-)?\d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d+)?) \[?(?P<where>[^\]\[\s]+:\d+)\] ?"
)
_RAY_CPP = re.compile(
    r"\[(?P<printed>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d+) (?P<level>[A-Z]) \d+ \d+\] "
    r"(?:\((?P<process>\w+)\) )?(?P<where>[\w.]+:\d+): ?"
)
_DATED = r"(?P<printed>\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d+)?)"
_RAY_PYTHON = re.compile(_DATED + r"\s(?P<level>[A-Z]+) (?P<where>[\w.]+:\d+) -- ?")
_LOGGING = re.compile(
    _DATED
    + r" (?:- (?:[\w.]+ - )?)?"
    + _LEVEL
    + r"(?: -)? (?:\d+ )?(?:\[?(?P<where>[\w./]+:\d+)\]|[\w.]+:)? ?"
)
_TORCH = re.compile(r"\[(?P<level>[IWEF])(?P<printed>\d{4} \d\d:\d\d:\d\d)\.\d+ (?P<where>[\w.]+:\d+)\] ?")
_GLOG = re.compile(r"(?P<level>[IWEF])(?P<printed>\d{4} \d\d:\d\d:\d\d)\.\d+ +\d+ (?P<where>[\w.]+:\d+)\] ?")
_TORCHRUN = re.compile(r"\[rank(\d+)\]: ?")
_RANK = re.compile(r"Worker(?:_DP0)?(?:_PP0)?_TP(\d+)(?:_\w+)?|VllmWorker-(\d+)")
_TAG = re.compile(r"rank=(\d+)|(?:DP0[ _])?(?:PP0[ _])?TP(\d+)(?:[ _]\w+)?")
# What a prefix can begin with; any other line is all body.
_FIRST = frozenset("([0123456789DIWECF")
_QUIET_STARTS = ("INFO:     ", "[state-dump]")
_QUIET = frozenset({"DEBUG", "INFO", "I", "D"})


class Prefix(NamedTuple):
    """A line taken apart (a tuple: one is made for every line).

    Attributes:
        body: the line without its prefix.
        process: the writing process, innermost name ("Worker_TP1"); stream: all that says who wrote it.
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
        return self.level in {"ERROR", "CRITICAL", "FATAL"}


def is_quiet(level: str) -> bool:
    """Return whether a line of this level only informs."""
    return level in _QUIET


def split(line: str) -> Prefix:
    """Take *line* apart; a line without prefix is all body."""
    if line[:1] not in _FIRST:
        return Prefix(line)
    if line.startswith(_QUIET_STARTS):
        return Prefix(line, level="INFO")
    start, process, address, rank = _segments(line) if line[0] == "(" else (0, "", None, None)
    stream = line[:start]
    if line.startswith("[rank", start):
        found = _TORCHRUN.match(line, start)
        if found is not None:
            start, stream = found.end(), line[: found.end()]
            rank = int(found[1]) if rank is None else rank
    header = _header(line, start)
    if header is None:
        return Prefix(line[start:] if start else line, process, stream, address, rank)
    level, printed = header.group("level", "printed")
    where, end = header["where"] or "", header.end()
    if header.re is _RAY_CPP:
        process = process or header["process"] or ""
    elif header.re is _LOGGING and not where:
        inner = split(line[end:])  # a program that relays another's lines: its level is not theirs
        own = inner.level or ("" if is_quiet(level) else level)
        return inner._replace(
            process=inner.process or process,
            stream=stream + inner.stream,
            address=inner.address or address,
            rank=rank if inner.rank is None else inner.rank,
            level=own,
            printed=inner.printed or printed,
        )
    return Prefix(line[end:], process, stream, address, rank, level, printed, where)


def _segments(line: str) -> tuple[int, str, str | None, int | None]:
    """Return where the text after the `(name pid=N)` segments begins, the last name, address and rank."""
    position, process, address, rank = 0, "", None, None
    while line.startswith("(", position):
        found = _SEGMENT.match(line, position)
        if found is None or not ("pid=" in found[0] or found["name"] in _BARE):
            break
        name, tag, ip = found.group("name", "tag", "ip")
        process = f"{name} {tag}" if tag else name or ""
        rank = _rank(name or "", tag or "")
        address = ip or address
        position = found.end()
    return position, process, address, rank


def _header(line: str, start: int) -> re.Match[str] | None:
    first = line[start : start + 1]
    if first == "[":
        return _RAY_CPP.match(line, start) or _TORCH.match(line, start)
    if first.isdigit():
        return _RAY_PYTHON.match(line, start) or _LOGGING.match(line, start)
    if first in _FIRST and first:
        return _VLLM.match(line, start) or _GLOG.match(line, start)
    return None


def _rank(name: str, tag: str) -> int | None:
    found = _TAG.fullmatch(tag) if tag else _RANK.fullmatch(name) if "orker" in name else None
    return int(found[1] or found[2]) if found else None
