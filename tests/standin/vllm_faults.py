"""What goes wrong in a worker, and the texts that the real one leaves behind."""

import json
import os
import signal
import struct
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from standin import faults, oom, proc, texts
from standin.knobs import GIB

if TYPE_CHECKING:
    from standin.vllm_worker import Worker

# Until the weights are loaded a Ray worker is inside an actor call, after that behind the message queue.
INIT_PHASES = {"init_distributed", "loading_weights", "loading_weights_half"}
MEMORY_DOCS = "https://docs.pytorch.org/docs/stable/notes/cuda.html#optimizing-memory-usage-with-pytorch-cuda-alloc-conf"
GROWN_MIB = 1024
KINDS = {
    "delay",
    "grow",
    "worker_sigkill",
    "ray_oom_kill",
    "raylet_sigkill",
    "gcs_sigkill",
    "serve_sigkill",
    "enginecore_sigkill",
    "cuda_oom",
    "hang",
    "startup_hang",
    "nccl_init_failure",
    "gloo_connect_failure",
    "wrong_interface",
    "weights_corrupt",
    "weights_missing",
    "startup_free_memory_too_low",
}


class WorkerError(Exception):
    """An exception of the real worker: its printed type, its message, the recorded block to show."""

    def __init__(
        self, kind: str, message: str, block: str = "worker_exception.txt", *, told: bool = True
    ) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind = kind
        self.message = message
        self.block = block
        self.told = told


def tell(worker: "Worker", error: WorkerError, phase: str) -> None:
    """Print as the real one does and report to EngineCore."""
    ray, early = worker.config.get("ray"), phase in INIT_PHASES
    if not (ray and early):  # Ray carries an actor call's exception itself
        name = (
            error.block if error.block != "worker_exception.txt" or not early else "worker_missing_shard.txt"
        )
        text = texts.block(name, worker=worker.name, last=str(error))
        if not early:
            text = text.replace("WorkerProc failed to start.", "WorkerProc hit an exception.")
        worker.out(text)
    if error.told:
        worker.channel.send(t="error", rank=worker.rank, kind=error.kind, message=error.message, early=early)
    if early and not ray:
        time.sleep(0.05)
        os._exit(1)


def accept(worker: "Worker", fault: faults.Fault, phase: str) -> bool:
    """Whether the world is bad enough: Ray's monitor kills only above its threshold, and only if it is on."""
    if fault.kind != "ray_oom_kill":
        return True
    watch = oom.monitor(worker.knobs.memory_total_bytes)
    return bool(worker.config.get("ray")) and watch.on and used_bytes(worker, fault, phase) > watch.threshold


def used_bytes(worker: "Worker", fault: faults.Fault, phase: str) -> int:
    """The reading that the kill reports."""
    params = fault.params
    if params.get("used_from_settings"):
        return worker.sizes.used_at(phase.removesuffix("_half"), worker.knobs.memory_used_bytes)
    if "used_gb" in params:
        return round(params["used_gb"] * GIB)
    return int(params.get("used_bytes", oom.DEFAULT_USED))


def strike(worker: "Worker", fault: faults.Fault, phase: str) -> None:
    """Do it. Returns only where the worker goes on."""
    kind, params = fault.kind, fault.params
    if kind == "delay":
        time.sleep(params["delay_s"])
    elif kind == "ray_oom_kill":
        from standin.vllm_worker import ask_raylet

        ask_raylet("oom", used_bytes(worker, fault, phase))
        _wait_for_ever()
    elif kind == "gcs_sigkill":
        from standin.vllm_worker import ask_raylet

        ask_raylet("kill_gcs")
    elif kind == "hang":
        _wait_for_ever()
    elif kind == "grow":
        grow(worker)
    elif kind.endswith("_sigkill"):
        _kill(worker, kind)
    else:
        raise _error(worker, kind, params)


def grow(worker: "Worker") -> None:
    """Take memory, as a leak does, until whoever limits it ends us; a bound keeps the machine safe."""
    for _ in range(GROWN_MIB):
        worker.held.append(bytearray(b"\x5a") * (1 << 20))
        time.sleep(0.005)


def _kill(worker: "Worker", kind: str) -> None:
    victims = {
        "worker_sigkill": os.getpid(),
        "raylet_sigkill": os.getppid(),
        "serve_sigkill": worker.config["api_pid"],
        "enginecore_sigkill": worker.config["core_pid"],
    }
    proc.kill_quietly(victims[kind], signal.SIGKILL)


def _wait_for_ever() -> None:
    while True:
        signal.pause() if threading.current_thread() is threading.main_thread() else time.sleep(60)


def _error(worker: "Worker", kind: str, params: dict[str, Any]) -> WorkerError:
    if kind == "cuda_oom":
        return cuda_oom(worker, params)
    if kind == "startup_hang":
        error = cuda_oom(worker, params)
        error.told = False
        return error
    if kind == "nccl_init_failure":
        message = params.get("message", "unhandled system error (run with NCCL_DEBUG=INFO for details)")
        return WorkerError("RuntimeError", f"NCCL error: {message}")
    if kind == "gloo_connect_failure":
        message = "Gloo connectFullMesh failed with "
        message += "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:144] no error"
        return WorkerError("RuntimeError", params.get("message", message))
    if kind == "wrong_interface":
        message = (
            "[enforce fail at /pytorch/third_party/gloo/gloo/transport/tcp/device.cc:84] ifa != nullptr. "
        )
        name = os.environ.get("GLOO_SOCKET_IFNAME", "eth9")
        return WorkerError("RuntimeError", message + f"Unable to find address for: {name}")
    if kind == "weights_corrupt":
        message = "Error while deserializing header: header too large"
        return WorkerError("safetensors._safetensors_rust.SafetensorError", message, "worker_corrupt.txt")
    if kind == "weights_missing":
        missing = str(Path(worker.settings.model, "model-00002-of-00039.safetensors"))
        return _missing({missing})
    return free_memory(worker, params.get("free_gib"))


def _missing(files: set[str]) -> WorkerError:
    message = f"Weight files referenced in index but missing: {files}"
    return WorkerError("FileNotFoundError", message, "worker_missing_shard.txt")


def cuda_oom(worker: "Worker", params: dict[str, Any]) -> WorkerError:
    """Torch's text with quantities that fit the settings."""
    total = worker.sizes.total / GIB
    asked, free = params.get("tried_gib", 2.0), params.get("free_gib", 1.37)
    used = params.get("used_gib", total - free - worker.knobs.memory_used_bytes / GIB)
    text = f"CUDA out of memory. Tried to allocate {asked:.2f} GiB. GPU 0 has a total capacity of "
    text += f"{total:.2f} GiB of "
    text += f"which {free:.2f} GiB is free. Including non-PyTorch memory, this process has {used:.2f} GiB "
    text += "memory in "
    text += f"use. Of the allocated memory {used - 1.21:.2f} GiB is allocated by PyTorch, and 260.94 MiB is "
    text += "reserved "
    text += "by PyTorch but unallocated. If reserved but unallocated memory is large try setting "
    text += "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See documentation for "
    text += "Memory "
    return WorkerError("torch.OutOfMemoryError", text + f"Management  ({MEMORY_DOCS})")


def free_memory(worker: "Worker", free_gib: float | None = None) -> WorkerError:
    size, share = worker.sizes, worker.settings.gpu_memory_utilization
    free = texts.gib(size.free) if free_gib is None else f"{free_gib:.2f}"
    text = f"Free memory on device cuda:0 ({free}/{texts.gib(size.total)} GiB) on startup is less than "
    text += "desired GPU "
    text += f"memory utilization ({share}, {texts.gib(size.requested)} GiB). Decrease GPU memory utilization "
    text += "or reduce "
    return WorkerError("ValueError", text + "GPU memory used by other processes.")


def suggestion(worker: "Worker") -> str:
    """The long line after graph capture, with a ready-made pin for the next start."""
    size, gib = worker.sizes, texts.gib
    others = size.weights + size.activation + size.graphs + (150 << 20)
    fit, most = size.requested - others, size.free - others
    text = f"Free memory on device ({gib(size.free)}/{gib(size.total)} GiB) on startup. Desired GPU memory "
    text += "utilization "
    text += f"is ({worker.settings.gpu_memory_utilization}, {gib(size.requested)} GiB). Actual usage is "
    text += f"{gib(size.weights)} GiB for consumed memory (weights + non-torch), {gib(size.activation)} GiB "
    text += "for peak "
    text += f"activation, and {gib(size.graphs)} GiB for CUDAGraph memory. Replace gpu_memory_utilization "
    text += "config with "
    text += f"`--kv-cache-memory={fit}` ({gib(fit)} GiB) to fit into requested memory, or "
    text += f"`--kv-cache-memory={most}` "
    text += f"({gib(most)} GiB) to fully utilize gpu memory. Current kv cache memory in use is "
    text += f"{gib(size.kv)} GiB."
    return text


def check_files(worker: "Worker") -> None:
    """Real weights files are looked at: the index's files must be there, headers must fit their file."""
    model = worker.settings.model
    index = str(Path(model, "model.safetensors.index.json"))
    if Path(index).exists():
        with Path(index).open(encoding="utf-8") as file:
            names = {str(Path(model, name)) for name in json.load(file)["weight_map"].values()}
        if missing := {name for name in names if not Path(name).exists()}:
            raise _missing(missing)
    for name in sorted([entry.name for entry in Path(model).iterdir()]) if Path(model).is_dir() else []:
        if name.endswith(".safetensors"):
            _check_header(str(Path(model, name)))


def _check_header(path: str) -> None:
    size = Path(path).stat().st_size
    with Path(path).open("rb") as file:
        head = file.read(8)
    length = struct.unpack("<Q", head)[0] if len(head) == 8 else 0
    kind = "safetensors._safetensors_rust.SafetensorError"
    if length > 100_000_000:
        raise WorkerError(kind, "Error while deserializing header: header too large", "worker_corrupt.txt")
    if length == 0 or 8 + length > size:
        message = "Error while deserializing header: incomplete metadata, file not fully covered"
        raise WorkerError(kind, message, "worker_corrupt.txt")


def watch_serving(worker: "Worker") -> None:
    """While serving, a fault strikes an idle worker too: look at the file ten times a second."""
    if not faults.path():
        return

    def watch() -> None:
        seen: float | None = None
        while True:
            time.sleep(0.1)
            try:
                changed = Path(faults.path()).stat().st_mtime
            except OSError:
                continue
            if changed != seen and worker.serving:
                seen = changed
                worker.fault("serving", KINDS - {"hang", "delay", "cuda_oom", "nccl_init_failure"})

    threading.Thread(target=watch, daemon=True).start()
