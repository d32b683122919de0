"""The files by which the daemon and a unit's process speak, all in the run directory, all gone with a boot.

- `launch-<unit>.json`, the daemon's: which stamp and settings the unit shall run, and the digest of what
  that amounts to. No argv, environment, path or secret: `sparkd exec` renders them from the configuration.
- `<unit>/rendered`, the unit's own: what its last order amounted to (`cli.again`).
- `<unit>/ran`, the unit's: the last stamp that it has run. A stamp runs once: whoever starts the unit by
  hand later does not bring an old generation back.
- `<unit>/exit`, the unit's (ExecStopPost=): invocation, result, code and status of its last end, which
  systemd itself forgets after an exit with 0.
- `<unit>/stopped`, the unit's (ExecStop=): the last invocation that a job of systemd stopped while it ran.

Every file is replaced as a whole, but for `exit` and `stopped`: a shell writes each in place, by one
write of one short line; until then it is empty, which is read as none.
What cannot be understood is refused, never guessed.
"""

from __future__ import annotations

import contextlib
import json
import signal
from dataclasses import dataclass
from pathlib import Path

from sparkd.adapters import ran
from sparkd.adapters.unitfacts import FORCED, Ending
from sparkd.files import replace_whole
from sparkd.wire.common import DIGEST, SETTINGS, STAMP
from sparkd.wire.fields import choice, shape
from sparkd.wire.refusal import WireError
from sparkd.words import NO_STAMP, Settings, Stamp, UnitName

SIZE_MAX = 4096
"""Bytes of one file at most; a launch file has about 400."""


class LaunchError(Exception):
    """A file of the run directory does not say what it must; the text names it."""


@dataclass(frozen=True, slots=True)
class Launch:
    """What one unit is ordered to run; `digest` is `engines.digest.node_digest` of its rendering."""

    unit: UnitName
    stamp: Stamp
    settings: Settings
    digest: str


_LAUNCH = shape(
    Launch,
    {"unit": choice(UnitName), "stamp": STAMP, "settings": SETTINGS, "digest": DIGEST},
)


def launch_path(run_dir: Path, unit: UnitName) -> Path:
    """Return where the daemon's order for *unit* stands."""
    return run_dir / f"launch-{unit}.json"


def text_of(launch: Launch) -> str:
    """Return the order as its file has it."""
    return json.dumps(_LAUNCH.encode(launch), sort_keys=True)


def write_launch(run_dir: Path, launch: Launch) -> None:
    """Replace the unit's order. Raises OSError."""
    # The engine's user reads it: there is nothing in it that another may not know.
    replace_whole(launch_path(run_dir, launch.unit), text_of(launch).encode(), 0o644)


def read_launch(run_dir: Path, unit: UnitName) -> Launch | None:
    """Return the unit's order, None where there is none. Raises LaunchError."""
    path = launch_path(run_dir, unit)
    text = _read(path)
    if text is None:
        return None
    try:
        launch: Launch = _LAUNCH.decode(json.loads(text), False)
    except (ValueError, RecursionError, WireError) as error:
        raise LaunchError(f"{path}: {error}") from None
    if launch.unit is not unit:
        raise LaunchError(f"{path}: is about the unit {launch.unit}")
    return launch


def remove_launch(run_dir: Path, unit: UnitName) -> None:
    """Take the unit's order back; none is not an error."""
    with contextlib.suppress(FileNotFoundError):
        launch_path(run_dir, unit).unlink()


def write_ran(run_dir: Path, unit: UnitName, stamp: Stamp, invocation: str) -> None:
    """Note that *invocation* of the unit runs *stamp* now. Raises OSError."""
    ran.write(str(run_dir), unit, (stamp.epoch, stamp.generation), invocation)


def read_ran(run_dir: Path, unit: UnitName) -> tuple[Stamp, str]:
    """Return the last stamp that the unit ran and its invocation; `NO_STAMP` where it ran none.

    Raises:
        LaunchError: where the note cannot be understood.
    """
    path = run_dir / unit / "ran"
    text = _read(path)
    if text is None:
        return NO_STAMP, ""
    try:
        epoch, generation, invocation = ran.parsed(text)
    except ValueError as error:
        raise LaunchError(f"{path}: {error}") from None
    return Stamp(epoch, generation), invocation


def read_exit(run_dir: Path, unit: UnitName, invocation: str) -> Ending | None:
    """Return how *invocation* of the unit ended, None where nobody noted it."""
    with contextlib.suppress(LaunchError):
        words = (_read(run_dir / unit / "exit") or "").split()
        if len(words) == 4 and words[0] == invocation:
            by_job = was_stopped(run_dir, unit, invocation) and words[1] not in FORCED
            return Ending(*_ended(words[2], words[3]), by_job=by_job)
    return None


def was_stopped(run_dir: Path, unit: UnitName, invocation: str) -> bool:
    """Return whether a stop job ended *invocation*: sparkd has none of its own."""
    with contextlib.suppress(LaunchError):
        return (_read(run_dir / unit / "stopped") or "").split() == [invocation]
    return False


def _ended(code: str, status: str) -> tuple[int | None, int | None]:
    """EXIT_CODE and EXIT_STATUS of systemd.exec(5): exited with a number, killed or dumped by a name."""
    if code == "exited":
        return (int(status), None) if status.isascii() and status.isdecimal() else (None, None)
    number = getattr(signal.Signals, f"SIG{status}", None)
    return None, None if number is None else int(number)


def _read(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            data = file.read(SIZE_MAX + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise LaunchError(f"{path}: cannot be read: {error.strerror or error}") from error
    if len(data) > SIZE_MAX:
        raise LaunchError(f"{path}: is longer than {SIZE_MAX} bytes")
    return data.decode("utf-8", "replace")
