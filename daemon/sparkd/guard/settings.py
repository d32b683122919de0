"""The guard's settings: defaults < file < environment < command line; a wrong one is refused by name."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

EX_CONFIG = 78
FILE = "/etc/sparkd/guard.conf"
VARIABLES = "SPARKD_GUARD_"
_FILE_MAX_BYTES = 1 << 16
_SIZES = {
    "": 1,
    "B": 1,
    "KiB": 1 << 10,
    "MiB": 1 << 20,
    "GiB": 1 << 30,
    "kB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
}


class Refused(Exception):  # noqa: N818 - the word of the house
    """A setting that cannot be used: where it stands, key, value, and what is allowed."""


def _size(text: str) -> int:
    digits = len(text) - len(text.lstrip("0123456789."))
    number, unit = float(text[:digits]), text[digits:].strip()
    if unit not in _SIZES:
        raise ValueError
    return int(number * _SIZES[unit])


def _number(least: float, most: float) -> Callable[[str], float]:
    def read(text: str) -> float:
        value = float(text)
        if not least <= value <= most:
            raise ValueError
        return value

    return read


def _sized(least: int, most: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        value = _size(text)
        if not least <= value <= most:
            raise ValueError
        return value

    return read


def _one_of(*words: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in words:
            raise ValueError
        return text

    return read


def _flag(text: str) -> bool:
    return {"yes": True, "no": False}[text]


def _path(text: str) -> str:
    if not text.startswith("/") or "\0" in text:
        raise ValueError
    return text.rstrip("/") or "/"


def _slice(text: str) -> str:
    if text.startswith("/"):
        parts = text.strip("/").split("/")
        if not text.strip("/") or ".." in parts or "\0" in text:
            raise ValueError
        return "/" + "/".join(parts)
    stem = text[: -len(".slice")]
    if not text.endswith(".slice") or "/" in text or not all(stem.split("-")):
        raise ValueError
    return text


def _mark(text: str) -> str:
    if text and (text.count("/") != 1 or not all(text.split("/"))):
        raise ValueError
    return text


_GIB = 1 << 30
_A_SIZE = "a size such as 2GiB"
_A_PATH = "an absolute path"

KEYS: dict[str, tuple[str, Callable[[str], Any], str]] = {
    "mode": ("enforce", _one_of("observe", "enforce"), "observe or enforce"),
    "slice": (
        "sparkd-engine.slice",
        _slice,
        "the name of a slice, or a control group's path from the root of its hierarchy (/…), never the root",
    ),
    "tree": ("", _mark, "empty, or CLUSTER/NODE as in SPARKD_STAMP"),
    "floor": ("2GiB", _sized(16 << 20, 64 * _GIB), f"{_A_SIZE}, from 16MiB to 64GiB"),
    "floor_most": ("8GiB", _sized(16 << 20, 64 * _GIB), f"{_A_SIZE}, from 16MiB to 64GiB, not below floor"),
    "floor_share_most": ("0.1", _number(0.001, 0.5), "a share from 0.001 to 0.5"),
    "kill_share": ("0.5", _number(0.0, 1.0), "a share of the floor from 0 to 1"),
    "term_s": ("3", _number(0, 60), "seconds from 0 (always SIGKILL) to 60"),
    "lease": ("/run/sparkd/guard/floors", _path, _A_PATH),
    "lease_most_s": ("60", _number(1, 3600), "seconds from 1 to 3600"),
    "free_floor": ("512MiB", _sized(0, 64 * _GIB), f"{_A_SIZE}, at most 64GiB; 0 turns the rule off"),
    "stall_percent": ("60", _number(1, 100), "percent from 1 to 100"),
    "stall_s": ("10", _number(1, 50), "seconds from 1 to 50"),
    "poll_least_s": ("0.01", _number(0.001, 1), "seconds from 0.001 to 1, not above poll_most_s"),
    "poll_most_s": ("1", _number(0.01, 2), "seconds from 0.01 to 2"),
    "rate_most": ("64GB", _sized(10**8, 10**12), "a size per second, from 100MB to 1000GB"),
    "shm": ("yes", _flag, "yes or no"),
    "realtime": ("yes", _flag, "yes or no"),
    "status": ("/run/sparkd-guard/status", _path, _A_PATH),
    "state_dir": ("/var/lib/sparkd-guard", _path, _A_PATH),
    "proc_root": ("/proc", _path, _A_PATH),
    "cgroup_root": ("/sys/fs/cgroup", _path, _A_PATH),
    "shm_root": ("/dev/shm", _path, _A_PATH),  # noqa: S108 - where POSIX shared memory is
    "docker_root": ("/var/lib/docker", _path, _A_PATH),
}
"""Key → (default as it is written, reader, what is allowed). etc/guard.conf explains each."""


class Settings:
    """All keys as attributes, in bytes, seconds, shares."""

    mode: str
    slice: str
    tree: str
    floor: int
    floor_most: int
    floor_share_most: float
    kill_share: float
    term_s: float
    lease: str
    lease_most_s: float
    free_floor: int
    stall_percent: float
    stall_s: float
    poll_least_s: float
    poll_most_s: float
    rate_most: int
    shm: bool
    realtime: bool
    status: str
    state_dir: str
    proc_root: str
    cgroup_root: str
    shm_root: str
    docker_root: str

    def __init__(self, values: Mapping[str, Any]) -> None:
        """Take read values; what is missing has its default."""
        for key, (default, reader, _) in KEYS.items():
            setattr(self, key, values[key] if key in values else reader(default))


def read_value(where: str, key: str, text: str) -> Any:
    """Return the value of *key*. Raises Refused with *where* it stands."""
    if key not in KEYS:
        raise Refused(f"{where}: {key} = {text}: no such key; allowed are: {', '.join(KEYS)}")
    _, reader, allowed = KEYS[key]
    try:
        return reader(text)
    except (ValueError, KeyError, OverflowError):
        raise Refused(f"{where}: {key} = {text}: must be {allowed}") from None


def read_file(name: str, text: str) -> dict[str, Any]:
    """Return a file's values: `key = value` lines, `#` comments, `[guard]` as the only section."""
    values: dict[str, Any] = {}
    for number, line in enumerate(text.splitlines(), 1):
        where, said = f"{name}:{number}", line.strip()
        if not said or said[0] in "#;" or said == "[guard]":
            continue
        key, equals, value = (part.strip() for part in said.partition("="))
        if not equals:
            raise Refused(f"{where}: {said}: must be key = value, a # comment, or [guard]")
        if key in values:
            raise Refused(f"{where}: {key} = {value}: stands here twice; keep one of them")
        values[key] = read_value(where, key, value)
    return values


def _read_path(path: str, required: bool) -> dict[str, Any]:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        if required:
            raise Refused(f"{path}: no such file; make it, or leave out --config for {FILE}") from None
        return {}
    except OSError as error:
        raise Refused(f"{path}: {error.strerror}; it must be readable by who runs the guard") from None
    try:
        content = os.read(fd, _FILE_MAX_BYTES)
    except OSError as error:
        raise Refused(f"{path}: {error.strerror}; it must be a file") from None
    finally:
        os.close(fd)
    try:
        return read_file(path, content.decode())
    except UnicodeDecodeError:
        raise Refused(f"{path}: is not UTF-8 text; write it anew from etc/guard.conf") from None


def _from_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    values = {}
    for name, text in environ.items():
        if name.startswith(VARIABLES):
            values[name[len(VARIABLES) :].lower()] = read_value(
                f"environment {name}", name[len(VARIABLES) :].lower(), text
            )
    return values


def _from_arguments(arguments: Sequence[str]) -> tuple[str | None, dict[str, Any]]:
    values: dict[str, Any] = {}
    path, left = None, list(arguments)
    while left:
        word = left.pop(0)
        name, equals, text = word.partition("=")
        if not name.startswith("--"):
            raise Refused(f"command line: {word}: must be --config FILE, --check, --help or --KEY VALUE")
        if not equals:
            if not left:
                raise Refused(f"command line: {name}: needs a value")
            text = left.pop(0)
        key = name[2:].replace("-", "_")
        if key == "config":
            path = text
        else:
            values[key] = read_value("command line", key, text)
    return path, values


def load(arguments: Sequence[str], environ: Mapping[str, str]) -> Settings:
    """Return the settings. Raises Refused; the caller ends with `EX_CONFIG`."""
    path, given = _from_arguments(arguments)
    values = _read_path(path or FILE, path is not None) | _from_environment(environ) | given
    settings = Settings(values)
    if settings.floor > settings.floor_most:
        raise Refused(f"floor = {settings.floor}: must be at most floor_most = {settings.floor_most}")
    if settings.poll_least_s > settings.poll_most_s:
        least, most = settings.poll_least_s, settings.poll_most_s
        raise Refused(f"poll_least_s = {least:g}: must be at most poll_most_s = {most:g}")
    return settings
