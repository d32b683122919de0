"""Carrying a plan out: thin, step by step, each safe to be done again after an interruption."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

from sparkd.setup.steps import Keep, Link, Protect, Remove, Run, Step, Write
from sparkd.setup.survey import below

RUN_TIMEOUT_S = 120.0


class StepError(Exception):
    """A step failed; those before it are done, and doing all again is safe."""


def apply(steps: Iterable[Step], root: str = "/") -> Iterator[tuple[Step, str]]:
    """Do the steps in order; yield each with what there is to say of it (empty = done).

    Args:
        steps: of a plan without refusals.
        root: the folder of the system; `/` = the running one.

    Raises:
        StepError: what failed, and what to do.
    """
    for step in steps:
        try:
            said = _do(step, root)
        except OSError as error:
            raise StepError(
                f"{error.filename or ''}: {error.strerror or error}; mend it and say it again"
            ) from error
        yield step, said


def _do(step: Step, root: str) -> str:
    match step:
        case Write():
            return _write(step, root)
        case Protect():
            return _protect(step, root)
        case Link(path, target):
            _link(below(root, path), target)
        case Remove(path, _, tree):
            _remove(below(root, path), tree=tree)
        case Run():
            return _run(step)
        case Keep():
            pass
    return ""


def _write(step: Write, root: str) -> str:
    """Write beside and rename: readers see the old file or the new one; a secret is never open."""
    path = below(root, step.path)
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.sparkd")
    with contextlib.suppress(FileNotFoundError):
        fresh.unlink()
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(step.content)
        file.flush()
        os.fchmod(file.fileno(), step.mode)
        os.fsync(file.fileno())
    said = _own(fresh, step.owner, root)
    fresh.replace(path)
    return said


def _protect(step: Protect, root: str) -> str:
    """Give a file to a group of that system, and close it to all others first."""
    path = below(root, step.path)
    path.chmod(0o600)
    group = _number(below(root, "/etc/group"), step.group)
    if os.geteuid() == 0:
        os.chown(path, 0, 0 if group is None else group)
    path.chmod(step.mode)
    return "" if group is not None else f"the group {step.group} is not there"


def _number(accounts: Path, name: str) -> int | None:
    """Return the number of a user or group, by the accounts of that system: in a folder they are its own."""
    lines = accounts.read_text(encoding="utf-8", errors="replace").splitlines() if accounts.is_file() else []
    rows = [line.split(":") for line in lines]
    return next((int(row[2]) for row in rows if len(row) > 2 and row[0] == name), None)


def _own(path: Path, owner: str, root: str) -> str:
    if owner == "root" or os.geteuid() != 0:
        return ""
    user, group = (_number(below(root, f"/etc/{kind}"), owner) for kind in ("passwd", "group"))
    if user is None or group is None:
        return f"the user {owner} is not there: sudo chown {owner}: {path.parent}/..., once it is"
    os.chown(path, user, group)
    return ""


def _link(path: Path, target: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.sparkd")
    with contextlib.suppress(FileNotFoundError):
        fresh.unlink()
    fresh.symlink_to(target)
    fresh.replace(path)


def _remove(path: Path, *, tree: bool) -> None:
    if tree and not path.is_symlink():
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(path)
        return
    path.unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # a drop-in's folder goes with its last file
        if path.parent.suffix == ".d" and path.parent.name.startswith(("sparkd", "mosquitto.service")):
            path.parent.rmdir()


def _run(step: Run) -> str:
    try:
        done = subprocess.run(
            step.argv,
            capture_output=True,
            text=True,
            timeout=RUN_TIMEOUT_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        said = (done.stderr or done.stdout).strip() if done.returncode else ""
        failed = f"ended with {done.returncode}: {said}" if done.returncode else ""
    except subprocess.TimeoutExpired:
        failed = f"did not end within {RUN_TIMEOUT_S:g} s"
    except FileNotFoundError:
        failed = "is not installed"
    if failed and step.must:
        raise StepError(
            f"{' '.join(step.argv)} {failed}; mend it and say it again: what is done is not done twice"
        )
    return failed
