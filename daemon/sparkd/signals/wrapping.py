r"""What collectors put before a line: time of receipt, machine, unit. `prefix` reads what is left.

Known are journalctl (short, short-precise, short-iso, short-full), syslog, the kernel's ring buffer, docker
and kubernetes stamps (RFC 3339, CRI's `stdout F`, `[pod/…]`), compose's `vllm-1  | `, mpirun's
`[1,0]<stderr>:`, seconds since a start (`[  12.345] `), and what pasting and rsyslog make of colours
(`[36m`, `#033[36m`). JSON forms (docker's json-file, `journalctl -o json`) are turned into such lines by
the intake.
"""

from __future__ import annotations

import re
from typing import NamedTuple

LAYERS_MAX = 4
_DAY = r"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)"
_MONTH = r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)"
_CLOCK = r"\d\d:\d\d:\d\d(?:[.,]\d+)?"
# A child that systemd has forked and not yet started is called "(vllm)".
_FROM = r"(?P<host>[\w.-]+) \(?(?P<unit>[\w@.\\/-]+?)\)?(?:\[\d+\])?: ?"
# After a stamp that other collectors print, too, only these words are surely a machine and a unit.
_SURELY_FROM = r"(?P<host>[\w.-]+) (?P<unit>kernel(?=:)|[\w@.\\/-]+(?=\[\d+\]:))(?:\[\d+\])?: ?"
# Seconds since something; the kernel's own form is the same.
_OFFSET = re.compile(r"\[ *(?P<time>\d+\.\d+)\](?:\[ *[TC]\d+\])? ?")
_SYSLOG = re.compile(rf"(?:{_DAY} )?(?P<time>{_MONTH} [ \d]\d {_CLOCK})(?: \d{{4}})? {_FROM}")
_FULL = re.compile(rf"{_DAY} (?P<time>\d{{4}}-\d\d-\d\d {_CLOCK}) [A-Z]{{2,5}} {_FROM}")
_ISO = re.compile(
    rf"(?P<time>\d{{4}}-\d\d-\d\d[T ]{_CLOCK}(?P<zone> ?Z| ?[+-]\d\d:?\d\d)?)"
    rf"(?: (?:stdout|stderr) [FP](?: |$)|\s*\|\s?| {_SURELY_FROM}|[ \t]+|$)"
)
_BRACKETED = re.compile(rf"\[(?P<time>\d{{4}}-\d\d-\d\d[T ]{_CLOCK}(?: ?Z| ?[+-]\d\d:?\d\d)?)\](?: |$)")
_COMPOSE = re.compile(r"(?P<unit>[A-Za-z0-9][\w./-]*)?\s*\|(?: |$)")
_POD = re.compile(r"\[pod/[^\]\s]+\] ?")
_MPIRUN = re.compile(
    r"(?:[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \d{4})?\[\d+,\d+\]<std(?:out|err)>: ?"
)
_PRIORITY = re.compile(r"<\d{1,3}>")
_PASTED_COLOUR = re.compile(r"(?:#033|\^\[)?\[\d{0,3}(?:;\d{1,3})*[mK]")
_BY_FIRST = {
    "[": (_OFFSET, _BRACKETED, _POD, _MPIRUN),
    "<": (_PRIORITY,),
    "|": (_COMPOSE,),
    **dict.fromkeys("0123456789", (_ISO, _COMPOSE)),
    **dict.fromkeys("MTWFS", (_SYSLOG, _FULL, _MPIRUN, _COMPOSE)),
    **dict.fromkeys("JFMASOND", (_SYSLOG, _FULL, _COMPOSE)),
}
_OTHERS = (_COMPOSE,)


class Unwrapped(NamedTuple):
    """A line without what its collector added.

    Attributes:
        body: the line as its program wrote it.
        time: the collector's stamp as printed; machine, unit: where and of what it was collected.
    """

    body: str
    time: str | None = None
    machine: str | None = None
    unit: str | None = None


def unwrap(line: str) -> Unwrapped:
    """Take off what collectors added, outermost first; the first stamp and machine count."""
    if line[:1] == "(" and ")[0m" not in line:
        return Unwrapped(line)
    if "[0m" in line or "#033[" in line or line[:1] == "[":
        line = _without_pasted_colours(line)
    line = line.removesuffix("^M")
    time = machine = unit = None
    for _ in range(LAYERS_MAX):
        found = _layer(line)
        if found is None:
            break
        groups = found.groupdict()
        time = time or groups.get("time")
        machine, unit = machine or groups.get("host"), unit or groups.get("unit")
        line = line[found.end() :]
    return Unwrapped(line, time, machine, unit)


def _without_pasted_colours(line: str) -> str:
    if "#033[" in line or ")[0m" in line or _PASTED_COLOUR.match(line):
        return _PASTED_COLOUR.sub("", line)
    return line


def _layer(line: str) -> re.Match[str] | None:
    """Return the outermost wrapping; the engine's own stamps (Ray's, logging's) are not one."""
    first = line[:1]
    if first in " \t\xa0" and first:
        stripped = line.lstrip(" \t\xa0")
        return _LEADING.match(line) if stripped[:1] == "|" and _LEADING.match(line) else None
    for form in _BY_FIRST.get(first, _OTHERS):
        found = form.match(line)
        if found is not None and not (form is _ISO and _is_own(line, found)):
            return found
    return None


_LEADING = re.compile(r"[ \t\xa0]*\|[ \t]*(?=\d{4}-\d\d-\d\d[T ])")
_OWN = re.compile(r"(?:- (?:[\w.]+ - )?)?(?:DEBUG|INFO|WARNING|ERROR|CRITICAL|FATAL)\b")


def _is_own(line: str, found: re.Match[str]) -> bool:
    """Return whether a dated start is the program's own header: no zone, and a level follows."""
    return found["zone"] is None and found["host"] is None and _OWN.match(line, found.end()) is not None
