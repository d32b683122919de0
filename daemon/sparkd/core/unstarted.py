"""Why a unit could not be started: the cause where the error decides it, else `unknown`.

The number is that of the operating system (`OSError`, as its text begins: `[Errno 2] …`); `sparkd exec` and
systemd tell in words. A fork that fails, an earlier unit that still lives, a bus that does not answer can
pass: nothing is decided by them.
"""

from __future__ import annotations

import errno
import re

from sparkd.signals.causes import UNKNOWN
from sparkd.words import UnitName

_NUMBER = re.compile(r"\[Errno (\d+)\]")
_DECIDED: tuple[tuple[str, tuple[int, ...], tuple[str, ...]], ...] = (
    (
        "broken_install",
        (errno.ENOENT, errno.ENOTDIR, errno.ENOEXEC),
        ("no such file", "not a directory", "exec format error"),
    ),
    (
        "permission_denied",
        (errno.EACCES, errno.EPERM),
        ("permission denied", "operation not permitted"),
    ),
    ("disk_full", (errno.ENOSPC, errno.EDQUOT), ("no space left", "quota exceeded")),
)


SIGNAL_ID = "observed_start_failed"


def text_of(unit: UnitName, reason: str) -> str:
    """Return what is said of it."""
    return f"{unit} could not be started: {reason}"


def cause_of(reason: str) -> str:
    """Return the cause that *reason* decides, `unknown` where it decides none."""
    said = _NUMBER.search(reason)
    number, text = int(said[1]) if said else 0, reason.lower()
    for cause, numbers, words in _DECIDED:
        if number in numbers or any(word in text for word in words):
            return cause
    return UNKNOWN
