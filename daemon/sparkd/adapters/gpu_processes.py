"""What GPU processes hold: asked of the driver by `nvidia-smi`, in a child that nobody waits for for ever.

NVML can hang in the kernel (a process in D state ends by no signal), so it is never called in this process; a
child that does not answer is left behind, and not asked again: each would be another one that hangs. On GB10
the memory of the device is "Not Supported", and that of a process may be.

The driver names only processes of the asker's PID namespace, and says nothing of the others: in a container
the answer is empty, with status 0, beside a full device (recorded on an H200, driver 580). An empty answer
is therefore held against what is in use on the device; where that is not said either, as on GB10, nobody
knows.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

ASK = ("nvidia-smi", "--query-compute-apps=pid,used_gpu_memory,name", "--format=csv,noheader,nounits")
USED = ("nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits")
DEADLINE_S = 3.0
_MIB = 1 << 20
_UNSAID = ("N/A", "NOT SUPPORTED", "INSUFFICIENT PERMISSIONS", "UNKNOWN ERROR")


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """One process on a GPU; `used_bytes`: None = the driver does not say."""

    pid: int
    name: str
    used_bytes: int | None


@dataclass(frozen=True, slots=True)
class GpuSeen:
    """The processes, or in `why` why nobody can say; empty and without a reason = none runs."""

    processes: tuple[GpuProcess, ...] = ()
    why: str = ""


class GpuProcesses:
    """Asks the driver; after one answer that did not come it is left alone."""

    def __init__(
        self, argv: Sequence[str] = ASK, deadline_s: float = DEADLINE_S, used: Sequence[str] = USED
    ) -> None:
        """Take the question, how long an answer may take, and what is asked where no process is named."""
        self._argv, self._used = tuple(argv), tuple(used)
        self._deadline_s = deadline_s
        self._hung: subprocess.Popen[str] | None = None

    def read(self) -> GpuSeen:
        """Return what is on the GPUs."""
        said, why = self._asked(self._argv)
        seen = parsed(said)
        if why or seen.processes:
            return GpuSeen(seen.processes, why)
        used, why = self._asked(self._used)
        return GpuSeen(why=why or unnamed(used))

    def _asked(self, argv: tuple[str, ...]) -> tuple[str, str]:
        """Return the answer, or why there is none."""
        if self._hung is not None and self._hung.poll() is None:
            return "", f"{argv[0]} hangs (pid {self._hung.pid}): the driver does not answer"
        try:
            child = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )
        except OSError as error:
            return "", f"{argv[0]}: {error.strerror}"
        try:
            said, _ = child.communicate(timeout=self._deadline_s)
        except subprocess.TimeoutExpired:
            child.kill()  # and not waited for: in D state it ends when the kernel lets it
            if child.stdout is not None:
                child.stdout.close()
            self._hung = child
            return "", f"{argv[0]} did not answer within {self._deadline_s:g} s"
        if child.returncode:
            return "", f"{argv[0]}: {said.strip().splitlines()[0] if said.strip() else 'failed'}"
        return said, ""


def unnamed(said: str) -> str:
    """Read what is in use on each device, in MiB, beside no named process: what that means, empty = idle.

    A device that does not say, as GB10, is unknown and not idle.
    """
    each = [_amount(line) for line in said.splitlines()]
    used = sum(filter(None, each))
    if used:
        return (
            f"{used // _MIB} MiB are in use by processes that the driver does not name here: graphics, or "
            "processes of another container (ask on the host)"
        )
    if each and None not in each:
        return ""
    return (
        "the driver names no process here and does not say what is in use: idle, or processes of another "
        "container (ask on the host)"
    )


def parsed(said: str) -> GpuSeen:
    """Read the answer: a line for each process, its memory in MiB, or why not in brackets."""
    found = []
    for line in said.splitlines():
        pid, comma, rest = line.partition(",")
        used, second, name = rest.partition(",")
        if not comma or not second or not pid.strip().isdigit():
            continue  # "No running processes found", and whatever else is for people
        found.append(GpuProcess(int(pid), name.strip(), _amount(used)))
    return GpuSeen(tuple(found))


def _amount(text: str) -> int | None:
    text = text.strip().strip("[]").upper()
    return None if text in _UNSAID or not text.isdigit() else int(text) * _MIB
