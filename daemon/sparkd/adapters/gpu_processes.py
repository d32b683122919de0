"""What GPU processes hold: asked of the driver by `nvidia-smi`, in a child that nobody waits for for ever.

NVML can hang in the kernel (a process in D state ends by no signal), so it is never called in this process; a
child that does not answer is left behind, and not asked again: each would be another one that hangs. On GB10
the memory of the device is "Not Supported", and that of a process may be.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

ASK = ("nvidia-smi", "--query-compute-apps=pid,used_gpu_memory,name", "--format=csv,noheader,nounits")
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

    def __init__(self, argv: Sequence[str] = ASK, deadline_s: float = DEADLINE_S) -> None:
        """Take the question and how long its answer may take."""
        self._argv = tuple(argv)
        self._deadline_s = deadline_s
        self._hung: subprocess.Popen[str] | None = None

    def read(self) -> GpuSeen:
        """Return what is on the GPUs."""
        if self._hung is not None and self._hung.poll() is None:
            return GpuSeen(why=f"{self._argv[0]} hangs (pid {self._hung.pid}): the driver does not answer")
        try:
            child = subprocess.Popen(
                self._argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )
        except OSError as error:
            return GpuSeen(why=f"{self._argv[0]}: {error.strerror}")
        try:
            said, _ = child.communicate(timeout=self._deadline_s)
        except subprocess.TimeoutExpired:
            child.kill()  # and not waited for: in D state it ends when the kernel lets it
            if child.stdout is not None:
                child.stdout.close()
            self._hung = child
            return GpuSeen(why=f"{self._argv[0]} did not answer within {self._deadline_s:g} s")
        if child.returncode:
            return GpuSeen(
                why=f"{self._argv[0]}: {said.strip().splitlines()[0] if said.strip() else 'failed'}"
            )
        return parsed(said)


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
