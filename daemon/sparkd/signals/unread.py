"""Who ended a process that only vanished: of recorded logs, only those that were given have been read.

An executor says that a worker is gone, never by what. A live daemon has read Ray's and the kernel's logs of
each node: that they say nothing is evidence. Somebody who gives the engine's log alone has not looked there.
"""

from __future__ import annotations

import re

from sparkd.signals.model import Evidence, Signal

_VANISHED = frozenset(
    {
        "engine_core_died",
        "engine_core_killed_at_start",
        "ray_worker_lost",
        "ray_worker_lost_told",
        "worker_died_local",
        "worker_died_ray",
        "worker_died_v0",
    }
)
_SIGKILL = -9
# What the logs are called, or the unit in a journal.
_RAYLETS = re.compile(r"(?i)\braylet")
_KERNELS = re.compile(r"(?i)\bkernel|\bkern\b|\bdmesg|\bjournal")
_BY_RAY, _BY_KERNEL = ("ray_oom_kill",), ("kernel_oom", "cgroup_oom")


def killers(root: Signal, evidence: Evidence) -> tuple[str, ...]:
    """Return what may have ended the process of *root* by the word of logs that nobody gave."""
    if not evidence.recorded or root.cause != "worker_process_died" or root.id not in _VANISHED:
        return ()
    if root.quantity("exit_code") not in {None, _SIGKILL}:
        return ()
    names = {*evidence.read, *(heard.source for heard in evidence.heard)}
    ray = evidence.on_ray and not any(map(_RAYLETS.search, names))
    kernel = not any(map(_KERNELS.search, names))
    return _BY_RAY * ray + _BY_KERNEL * kernel


def advice(might_be: tuple[str, ...]) -> str:
    """Return which logs would decide between *might_be* and an end of the process by itself."""
    logs = ["Ray's raylet.out"] * ("ray_oom_kill" in might_be)
    logs += ["the kernel's log (journalctl -k)"] * ("kernel_oom" in might_be)
    return f"Give {' and '.join(logs)} of that node, too: there it stands if memory ended the process."
