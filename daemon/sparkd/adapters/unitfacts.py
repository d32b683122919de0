"""What systemd says of a service, and what that means for its end. Plain functions, no bus."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_EXITED = 1  # CLD_EXITED of <signal.h>, as ExecMainCode= has it; 2 and 3 are killed and dumped
# Ends that systemd ordered for reasons of its own (systemd.exec(5), $SERVICE_RESULT): nobody's hand.
FORCED = frozenset({"timeout", "watchdog", "oom-kill", "resources", "protocol"})


@dataclass(frozen=True, slots=True)
class Facts:
    """The properties of a service that count; times are microseconds of the monotonic clock, 0 = never."""

    loaded: bool = False
    active_state: str = ""
    group: str = ""
    slice: str = ""
    job_id: int = 0
    invocation: str = ""
    main_pid: int = 0
    exec_pid: int = 0
    main_code: int = 0
    main_status: int = 0
    main_exit_us: int = 0
    active_enter_us: int = 0
    active_exit_us: int = 0
    result: str = ""
    status_text: str = ""

    @property
    def stopping(self) -> bool:
        """Whether a root that runs is being ended by a job of systemd."""
        return self.active_state == "deactivating" and self.main_pid != 0


@dataclass(frozen=True, slots=True)
class Ending:
    """How a root ended: exactly one of code and signal, or neither where nobody knows."""

    code: int | None = None
    signal: int | None = None
    by_job: bool = False


def facts_of(properties: Mapping[str, Any]) -> Facts:
    """Return the facts of a unit's properties, of all its interfaces together."""
    job = properties.get("Job") or (0, "/")
    return Facts(
        loaded=properties.get("LoadState") == "loaded",
        active_state=str(properties.get("ActiveState", "")),
        group=str(properties.get("ControlGroup", "")),
        slice=str(properties.get("Slice", "")),
        job_id=int(job[0]),
        invocation=bytes(properties.get("InvocationID", b"")).hex(),
        main_pid=int(properties.get("MainPID", 0)),
        exec_pid=int(properties.get("ExecMainPID", 0)),
        main_code=int(properties.get("ExecMainCode", 0)),
        main_status=int(properties.get("ExecMainStatus", 0)),
        main_exit_us=int(properties.get("ExecMainExitTimestampMonotonic", 0)),
        active_enter_us=int(properties.get("ActiveEnterTimestampMonotonic", 0)),
        active_exit_us=int(properties.get("ActiveExitTimestampMonotonic", 0)),
        result=str(properties.get("Result", "")),
        status_text=str(properties.get("StatusText", "")),
    )


def ending_of(facts: Facts) -> Ending | None:
    """Return how the root ended, None while it runs.

    A stop job makes the unit leave *active* before its root ends; a root that ends by itself, or is killed
    without a job, ends first. The two times tell which it was, however late they are read.
    """
    if facts.main_exit_us == 0 or facts.main_pid != 0:
        return None
    exited = facts.main_code == _EXITED
    left_first = facts.active_enter_us <= facts.active_exit_us < facts.main_exit_us
    return Ending(
        code=facts.main_status if exited else None,
        signal=None if exited else facts.main_status,
        by_job=left_first and facts.active_exit_us > 0 and facts.result not in FORCED,
    )
