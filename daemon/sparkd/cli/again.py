"""What a unit of the engine has run, for a start of the same: nothing is read and rendered anew.

`sparkd exec` notes what an order amounted to (`<unit>/rendered`, the engine's user's and for him alone). An
order that is the same but for its stamp is run from there, as long as everything that it was made of stands
unchanged: the configuration's file, the variables that count, sparkd's own code. What is run has the digest
that the daemon has ordered, here as there. All else is left to `cli.execute`, which also says each refusal.

Every relaunch waits for this: it imports nothing but `os`, `sys` and what is as light (no json, socket,
hashlib, dataclasses, pathlib, argparse), so orders are compared as texts, and the note is texts between NULs.
"""

from __future__ import annotations

import os
import sys

from sparkd.adapters import ran
from sparkd.adapters.notify import Notifier
from sparkd.engines import executed
from sparkd.files import replace_whole

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import NoReturn

OWN_FOLDER = "RUNTIME_DIRECTORY"
"""systemd's name for the unit's own folder, <run_dir>/<unit> (systemd.exec(5), RuntimeDirectory=)."""
COUNTS = ("SPARKD_", "CREDENTIALS_DIRECTORY")
SIZE_MAX = 1 << 20
READY_S = 10.0
"""So long for systemd to take that the unit is up, which is said once: a busy systemd's queue is full."""
STAMP = '"stamp": ['
"""What stands before the stamp in an order (`adapters.launch.text_of`)."""
END = "]"


class Noted:
    """What an order amounted to: nothing in it can hold a NUL, since it is executed."""

    __slots__ = ("argv", "env", "program", "warnings")

    def __init__(
        self, program: str, argv: Sequence[str], env: Iterable[tuple[str, str]], warnings: Sequence[str]
    ) -> None:
        self.program, self.argv, self.env, self.warnings = program, list(argv), list(env), list(warnings)


def run(unit: str, path: str, node: str | None, environ: Mapping[str, str]) -> None:
    """Become the unit's process as the last time; return where that cannot be."""
    try:
        of, front, back, noted = _parsed(_read(f"{environ[OWN_FOLDER]}/rendered"))
        run_dir = os.path.dirname(environ[OWN_FOLDER])  # noqa: PTH120 - light
        stamp = _stamp(_read(f"{run_dir}/launch-{unit}.json"), front, back)
        if of != made_of(path, node, environ):
            return
        if stamp[1] <= ran.parsed(_read(f"{run_dir}/{unit}/ran"))[1]:
            return
        digest = executed.digest_of([(unit, noted.argv, noted.env)])
        if not front.startswith(f'{{"digest": "{digest}", ') or not os.access(noted.program, os.X_OK):
            return
        ran.write(run_dir, unit, stamp, environ.get("INVOCATION_ID", ""))
        become(unit, stamp, noted, environ)
    except (OSError, ValueError, LookupError):
        return


def become(unit: str, stamp: tuple[int, int], noted: Noted, environ: Mapping[str, str]) -> NoReturn:
    """Say that the unit is up, and execute what is noted with the mark of *stamp*. Raises OSError."""
    for warning in noted.warnings:
        print(f"sparkd exec {unit}: {warning}", file=sys.stderr)
    env = dict(noted.env)
    env[executed.STAMP_NAME] = executed.restamped(env[executed.STAMP_NAME], stamp[1])
    notifier = Notifier.of(environ)
    notifier.status(f"generation {stamp[1]} (epoch {stamp[0]})")
    if not notifier.ready(READY_S):
        print(f"sparkd exec {unit}: systemd has not taken that the unit is up", file=sys.stderr)
    os.execve(noted.program, noted.argv, env)  # noqa: S606 - becoming the engine is the job


def remember(order: str, noted: Noted, path: str, node: str | None, environ: Mapping[str, str]) -> None:
    """Keep for the next start what *order*, as its file has it, amounted to; where that cannot be, do not."""
    front, _, rest = order.partition(STAMP)
    back = rest.partition(END)[2]
    try:
        texts = [made_of(path, node, environ), front, back, noted.program, str(len(noted.argv)), *noted.argv]
        texts += [str(len(noted.env)), *(text for pair in noted.env for text in pair), *noted.warnings]
        replace_whole(f"{environ[OWN_FOLDER]}/rendered", "\0".join(texts).encode(), 0o600)
    except (OSError, LookupError, ValueError):
        return


def _parsed(note: str) -> tuple[str, str, str, Noted]:
    """Return of what it was made, the order before and behind its stamp, what is run. Raises ValueError."""
    of, front, back, program, count, *rest = note.split("\0")
    argv, (size, *rest) = rest[: int(count)], rest[int(count) :]
    env, warnings = rest[: 2 * int(size)], rest[2 * int(size) :]
    return of, front, back, Noted(program, argv, zip(env[::2], env[1::2], strict=True), warnings)


def _stamp(order: str, front: str, back: str) -> tuple[int, int]:
    """Return the order's stamp; it is the noted one in all else. Raises ValueError: it is another."""
    before, _, rest = order.partition(STAMP)
    stamp, _, behind = rest.partition(END)
    epoch, _, generation = stamp.partition(", ")
    if (before, behind) != (front, back) or not (epoch + generation).isascii():
        raise ValueError("is another order")
    if not (epoch.isdecimal() and generation.isdecimal()):
        raise ValueError("is no stamp")
    return int(epoch), int(generation)


def made_of(path: str, node: str | None, environ: Mapping[str, str]) -> str:
    """Return what a rendering is made of: the file, this node's name, variables, the code. Raises OSError."""
    counting = sorted([name, value] for name, value in environ.items() if name.startswith(COUNTS))
    folder = os.path.dirname(executed.__file__)  # noqa: PTH120 - light
    package = os.path.dirname(folder)  # noqa: PTH120 - light
    code = [f"{folder}/{name}" for name in sorted(os.listdir(folder)) if name.endswith(".py")]  # noqa: PTH208
    files = [path, *code, f"{package}/releases.py", f"{package}/config/served.py"]
    return repr([node, counting, [[file, *_state(file)] for file in files]])


def _state(path: str) -> list[int]:
    """Return what a change of the file changes, whoever sets its times."""
    found = os.stat(path)  # noqa: PTH116 - light
    return [found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns]


def _read(path: str) -> str:
    with open(path, "rb") as file:  # noqa: PTH123 - light
        data = file.read(SIZE_MAX + 1)
    if len(data) > SIZE_MAX:
        raise ValueError(f"{path} is too long")
    return data.decode()
