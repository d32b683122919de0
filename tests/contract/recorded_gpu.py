"""Record what a real NVIDIA driver says of its memory and its processes, for `test_gpu_processes.py`.

Run as root on a machine with a GPU: python3 tests/contract/recorded_gpu.py FILE. Only reads; one child holds
a gibibyte of the device meanwhile. Standard library only. Serials, UUIDs, the
host's name and the interpreter's path are left out.
"""

from __future__ import annotations

import ctypes
import json
import os
import pwd
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

APPS = "--query-compute-apps=pid,used_gpu_memory,name"
FORMAT = "--format=csv,noheader,nounits"
QUESTIONS = {
    "apps": ("nvidia-smi", APPS, FORMAT),
    "gpu": (
        "nvidia-smi",
        "--query-gpu=name,driver_version,memory.total,memory.used,memory.free,memory.reserved,mig.mode.current",
        FORMAT,
    ),
    "xml": ("nvidia-smi", "-q", "-x"),
    "no_such_field": ("nvidia-smi", "--query-compute-apps=pid,used_memory_of_nobody", FORMAT),
    "no_such_gpu": ("nvidia-smi", "-i", "99", APPS, FORMAT),
}
HELD_BYTES = 1 << 30
_KEPT = re.compile(r"<(fb_memory_usage|bar1_memory_usage|mig_mode|processes)>.*?</\1>", re.DOTALL)
_UUID = re.compile(r"(?:GPU|MIG)-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def clean(text: str) -> str:
    """Leave out what names this very machine or device; of the long report, what is about memory stays."""
    if text.startswith("<?xml"):
        text = "\n".join(found.group() for found in _KEPT.finditer(text))
    for program in (sys.executable, os.path.realpath(sys.executable)):
        text = text.replace(program, Path(program).name)
    return _UUID.sub("removed", text).replace(socket.gethostname(), "node")


def asked(argv: tuple[str, ...], user: str = "") -> dict[str, object]:
    """Ask once: the answer, its status, how long it took."""
    begun = time.monotonic()
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, user=user or None, check=False)
    took = round(time.monotonic() - begun, 3)
    told = {"argv": argv, "status": done.returncode, "took_s": took, "stdout": clean(done.stdout)}
    return told | ({"stderr": clean(done.stderr)} if done.stderr else {})


def hold() -> None:
    """Be the process on the device: a context and a gibibyte, until the parent's end of the pipe closes."""
    cuda = ctypes.CDLL("libcuda.so.1")
    device, context, at = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    steps = [
        cuda.cuInit(0),
        cuda.cuDeviceGet(ctypes.byref(device), 0),
        cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device),
        cuda.cuCtxSetCurrent(context),
        cuda.cuMemAlloc_v2(ctypes.byref(at), ctypes.c_size_t(HELD_BYTES)),
        cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)),
    ]
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    host = {name: status[name].strip() for name in ("VmRSS", "RssAnon", "RssFile", "RssShmem")}
    print(json.dumps({"steps": steps, "free": free.value, "total": total.value, "host": host}), flush=True)
    sys.stdin.read()


class Nvml:
    """The library's answers as numbers, with the code of each call: 0 = success, 3 = not supported."""

    def __init__(self) -> None:
        self._nvml = ctypes.CDLL("libnvidia-ml.so.1")
        self.codes = {"init": self._nvml.nvmlInit_v2()}
        self._device = ctypes.c_void_p()
        self.codes["handle"] = self._nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(self._device))

    def memory(self) -> dict[str, object]:
        first = (ctypes.c_ulonglong * 3)()
        code = self._nvml.nvmlDeviceGetMemoryInfo(self._device, first)
        second = (ctypes.c_ulonglong * 5)()
        second[0] = ctypes.sizeof(second) | 2 << 24  # `version` is 32 bits, then padding
        code_2 = self._nvml.nvmlDeviceGetMemoryInfo_v2(self._device, second)
        names, names_2 = ("total", "free", "used"), ("total", "reserved", "free", "used")
        return {
            "v1": {"code": code, **dict(zip(names, first, strict=True))},
            "v2": {"code": code_2, **dict(zip(names_2, list(second)[1:], strict=True))},
        }

    def processes(self, call: str) -> dict[str, object]:
        """Version 3 of the structure: pid, bytes (all ones = not available), two instances."""
        room, number = (ctypes.c_ulonglong * (3 * 64))(), ctypes.c_uint(64)
        code = getattr(self._nvml, call)(self._device, ctypes.byref(number), room)
        found = []
        for at in range(number.value if code == 0 else 0):
            pid, used, instances = room[3 * at : 3 * at + 3]
            found.append({"pid": pid & 0xFFFFFFFF, "used": used, "instances": instances})
        return {"code": code, "number": number.value, "processes": found}

    def all(self) -> dict[str, object]:
        mode, pending = ctypes.c_uint(), ctypes.c_uint()
        mig = self._nvml.nvmlDeviceGetMigMode(self._device, ctypes.byref(mode), ctypes.byref(pending))
        return {
            "codes": self.codes,
            "memory": self.memory(),
            "compute": self.processes("nvmlDeviceGetComputeRunningProcesses_v3"),
            "graphics": self.processes("nvmlDeviceGetGraphicsRunningProcesses_v3"),
            "mig": {"code": mig, "current": mode.value, "pending": pending.value},
        }


def looks(user: str) -> dict[str, object]:
    """All questions once; the library is asked in a child, as one never does in a process of worth."""
    child = [sys.executable, __file__, "--nvml"]
    said = subprocess.run(child, capture_output=True, text=True, timeout=60, user=user or None, check=False)
    nvml = json.loads(said.stdout) if said.returncode == 0 else {"failed": said.stderr[-300:]}
    return {name: asked(argv, user) for name, argv in QUESTIONS.items()} | {"nvml": nvml}


def main() -> int:
    if sys.argv[1:] == ["--hold"]:
        hold()
        return 0
    if sys.argv[1:] == ["--nvml"]:
        print(json.dumps(Nvml().all()))
        return 0
    nobody = pwd.getpwnam("nobody").pw_name if os.getuid() == 0 else ""
    found: dict[str, object] = {"idle": looks("")}
    argv = [sys.executable, __file__, "--hold"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdin is not None
        found["holder"] = {"pid": child.pid, **json.loads(child.stdout.readline())}
        found["held"] = looks("")
        found["held_unprivileged"] = looks(nobody) if nobody else None
        namespace = ("unshare", "--pid", "--fork", "--mount-proc", *QUESTIONS["apps"])
        found["held_other_pid_namespace"] = asked(namespace)
        child.stdin.close()
    found["freed"] = looks("")
    Path(sys.argv[1]).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
