"""Who else on this node kills for memory, and who would act first.

Two guards shoot at each other's victims: an operator has to know of the other one before it happens. What
is found is told and never changed. Runs on the clerk's thread.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

FOUND_MOST = 16
_READ_BYTES = 32 << 10
# Defaults of the programs: earlyoom 1.7 -m 10 -s 10; nohang 0.2 soft_threshold_min_mem = 5 %; Ray 0.95.
EARLYOOM_PERCENT, NOHANG_PERCENT, RAY_THRESHOLD = 10.0, 5.0, 0.95
NOHANG_CONF = "/etc/nohang/nohang.conf"


class Rival:
    """Another guardian. `acts_at`: available bytes below which it kills, None = not by available memory."""

    __slots__ = ("acts_at", "name", "pid", "says")

    def __init__(self, name: str, pid: int, acts_at: int | None, says: str) -> None:
        self.name, self.pid, self.acts_at, self.says = name, pid, acts_at, says

    def as_dict(self, floor: int) -> dict[str, Any]:
        """Return it with who of the two acts first at *floor*."""
        first = "unknown" if self.acts_at is None else self.name if self.acts_at > floor else "sparkd-guard"
        return {
            "name": self.name,
            "pid": self.pid,
            "acts_at_bytes": self.acts_at,
            "first": first,
            "says": self.says,
        }


def _read(path: str) -> bytes:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return b""
    try:
        return os.read(fd, _READ_BYTES)
    except OSError:
        return b""
    finally:
        os.close(fd)


def _float(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def earlyoom(arguments: list[str], total: int) -> tuple[int, str]:
    """Return where earlyoom sends SIGTERM, by its arguments, and the sentence about it."""
    at, swap = int(total * EARLYOOM_PERCENT / 100), EARLYOOM_PERCENT
    for name, value in zip(arguments, [*arguments[1:], ""], strict=True):
        # Both `-m 5` and `-m5`; the first of `TERM,KILL` counts.
        text = (value if len(name) == 2 else name[2:]).split(",")[0]
        number = _float(text)
        if number is None:
            continue
        if name.startswith("-m"):
            at = int(total * number / 100)
        elif name.startswith("-M"):
            at = int(number * 1024)
        elif name.startswith("-s"):
            swap = number
    return at, f"earlyoom ends the largest process below {at >> 20} MiB available and {swap:g} % of swap free"


def nohang(conf: str, total: int) -> tuple[int, str]:
    """Return where nohang acts first, by its configuration, and the sentence about it."""
    at = int(total * NOHANG_PERCENT / 100)
    for line in conf.splitlines():
        key, _, value = (part.strip() for part in line.partition("="))
        if key == "soft_threshold_min_mem":
            number = _float(value.split()[0]) if value.split() else None
            if number is not None:
                at = int(total * number / 100) if value.endswith("%") else int(number * (1 << 20))
    return at, f"nohang ends the worst process below {at >> 20} MiB available, or by its PSI rules"


def ray(environ: dict[str, str], total: int) -> tuple[int, str] | None:
    """Return where Ray's memory monitor kills, by the raylet's environment, None where it is off."""
    if _float(environ.get("RAY_memory_monitor_refresh_ms", "")) == 0:
        return None
    threshold = _float(environ.get("RAY_memory_usage_threshold", "")) or RAY_THRESHOLD
    at = int(total * max(0.0, 1 - threshold))
    return (
        at,
        f"Ray's monitor kills workers with less than {at >> 20} MiB available (threshold {threshold:g})",
    )


def docker_restarts(root: str) -> Iterator[str]:
    """Yield a sentence for each container that Docker starts again by itself."""
    try:
        names = os.listdir(f"{root}/containers")
    except OSError:
        return
    for name in names:
        text = _read(f"{root}/containers/{name}/hostconfig.json")
        _, _, rest = text.partition(b'"RestartPolicy":{"Name":"')
        policy = rest.partition(b'"')[0].decode("ascii", "replace")
        if policy not in ("", "no"):
            yield f"Docker starts container {name[:12]} again after a kill (restart policy {policy})"


class Rivals:
    """The survey: read once in a while."""

    def __init__(self, proc_root: str, docker_root: str) -> None:
        self._proc, self._docker = proc_root, docker_root
        self.found: list[Rival] = []

    def survey(self, total: int) -> None:
        """Look at all processes' names, and at what the known ones were told."""
        found = []
        for name in os.listdir(self._proc):
            if name.isdigit():
                comm = _read(f"{self._proc}/{name}/comm").strip().decode("ascii", "replace")
                rival = self._known(comm, int(name), total)
                if rival is not None:
                    found.append(rival)
        found += [Rival("docker", 0, None, says) for says in docker_restarts(self._docker)]
        self.found = sorted(found, key=lambda rival: -(rival.acts_at or 0))[:FOUND_MOST]

    def _known(self, comm: str, pid: int, total: int) -> Rival | None:
        if comm == "earlyoom":
            return Rival(comm, pid, *earlyoom(self._words(pid, "cmdline"), total))
        if comm == "nohang":
            conf = next((w for w in self._words(pid, "cmdline") if w.endswith(".conf")), NOHANG_CONF)
            return Rival(comm, pid, *nohang(_read(conf).decode("utf-8", "replace"), total))
        if comm in ("systemd-oomd", "oomd"):
            return Rival(
                comm, pid, None, f"{comm} kills whole units by pressure and swap, where it is told to"
            )
        if comm == "raylet":
            pairs = (word.partition("=") for word in self._words(pid, "environ"))
            acts = ray({key: value for key, _, value in pairs}, total)
            return None if acts is None else Rival("ray", pid, *acts)
        if comm.startswith(("memguard", "dgx-anti-oom")):
            return Rival(comm, pid, None, f"{comm} is running; what it does is not known here")
        return None

    def _words(self, pid: int, file: str) -> list[str]:
        return _read(f"{self._proc}/{pid}/{file}").decode("utf-8", "replace").split("\0")
