"""What a unit of the engine has run, for a start of the same: nothing is read and rendered anew.

`sparkd exec` notes what an order amounted to (`<unit>/rendered`, the engine's user's and for him alone). An
order that is the same but for its stamp is run from there, as long as everything that it was made of stands
unchanged: the configuration's file, the variables that count, sparkd's own code. What is run has the digest
that the daemon has ordered, here as there. All else is left to `cli.execute`, which also says each refusal.

Every relaunch waits for this: it imports only what is light (no dataclasses, pathlib, argparse).
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence

from sparkd.adapters import ran
from sparkd.adapters.notify import Notifier
from sparkd.engines import executed
from sparkd.files import replace_whole

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

OWN_FOLDER = "RUNTIME_DIRECTORY"
"""systemd's name for the unit's own folder, <run_dir>/<unit> (systemd.exec(5), RuntimeDirectory=)."""
COUNTS = ("SPARKD_", "CREDENTIALS_DIRECTORY")
SIZE_MAX = 1 << 20


def run(unit: str, path: str, node: str | None, environ: Mapping[str, str]) -> None:
    """Become the unit's process as the last time; return where that cannot be."""
    try:
        note = json.loads(_read(f"{environ[OWN_FOLDER]}/rendered"))
        run_dir = os.path.dirname(environ[OWN_FOLDER])  # noqa: PTH120 - light
        order = json.loads(_read(f"{run_dir}/launch-{unit}.json"))
        epoch, generation = order.pop("stamp")
        if note["of"] != made_of(path, node, environ) or note["order"] != order:
            return
        if epoch < 0 or generation <= ran.parsed(_read(f"{run_dir}/{unit}/ran"))[1]:
            return
        argv, env = list(note["argv"]), [(str(name), str(value)) for name, value in note["env"]]
        if executed.digest_of([(unit, argv, env)]) != order["digest"] or not os.access(
            note["program"], os.X_OK
        ):
            return
        ran.write(run_dir, unit, (epoch, generation), environ.get("INVOCATION_ID", ""))
        become(unit, (epoch, generation), note, environ)
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return


def become(
    unit: str, stamp: tuple[int, int], note: Mapping[str, Any], environ: Mapping[str, str]
) -> NoReturn:
    """Say that the unit is up, and execute what is noted with the mark of *stamp*. Raises OSError."""
    for warning in note["warnings"]:
        print(f"sparkd exec {unit}: {warning}", file=sys.stderr)
    env = {str(name): str(value) for name, value in note["env"]}
    env[executed.STAMP_NAME] = executed.restamped(env[executed.STAMP_NAME], stamp[1])
    notifier = Notifier.of(environ)
    notifier.status(f"generation {stamp[1]} (epoch {stamp[0]})")
    notifier.ready()
    os.execve(note["program"], list(note["argv"]), env)  # noqa: S606 - becoming the engine is the job


def note_of(
    order: Mapping[str, Any],
    program: str,
    command: Sequence[str],
    env: Sequence[tuple[str, str]],
    warnings: Sequence[str],
) -> dict[str, Any]:
    """Return what is to be noted of an order (as in its file) and of what it amounts to."""
    asked = {name: value for name, value in order.items() if name != "stamp"}
    return {"order": asked, "program": program, "argv": command, "env": env, "warnings": warnings}


def remember(note: dict[str, Any], path: str, node: str | None, environ: Mapping[str, str]) -> None:
    """Keep *note* for the next start; where that cannot be, the next start renders anew."""
    try:
        text = json.dumps({**note, "of": made_of(path, node, environ)})
        replace_whole(f"{environ[OWN_FOLDER]}/rendered", text.encode(), 0o600)
    except (OSError, LookupError):
        return


def made_of(path: str, node: str | None, environ: Mapping[str, str]) -> list[Any]:
    """Return what a rendering is made of: the file, this node's name, variables, the code. Raises OSError."""
    counting = sorted([name, value] for name, value in environ.items() if name.startswith(COUNTS))
    folder = os.path.dirname(executed.__file__)  # noqa: PTH120 - light
    package = os.path.dirname(folder)  # noqa: PTH120 - light
    code = [f"{folder}/{name}" for name in sorted(os.listdir(folder)) if name.endswith(".py")]  # noqa: PTH208
    files = [path, *code, f"{package}/releases.py", f"{package}/config/served.py"]
    return [node, counting, [[file, *_state(file)] for file in files]]


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
