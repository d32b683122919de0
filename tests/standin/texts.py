"""How the real programs write: prefixes, stamps, colours, bars, and blocks kept in data/."""

import functools
import os
import re
import sys
import threading
import time
from pathlib import Path

DATA = str(Path(Path(__file__).resolve().parent, "data"))
_lock = threading.Lock()


def emit(text: str, *, err: bool = False) -> None:
    """Write one piece at once; a closed pipe is ignored: an orphan must outlive its reader."""
    data = text.encode("utf-8", "replace") + b"\n"
    try:
        with _lock:
            os.write(2 if err else 1, data)
    except OSError:
        return


def stamp() -> str:
    """The stamp of vLLM's lines."""
    return time.strftime("%m-%d %H:%M:%S")


def ray_stamp() -> str:
    """The stamp of Ray's Python logger."""
    now = time.time()
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(now)) + f",{int(now % 1 * 1000):03d}"


def vllm_line(who: str, level: str, where: str, text: str, pid: int | None = None) -> str:
    return f"({who} pid={pid or os.getpid()}) {level} {stamp()} [{where}] {text}"


def vllm(who: str, level: str, where: str, text: str) -> None:
    """One vLLM line, one prefix for each line of the text."""
    emit("\n".join(vllm_line(who, level, where, part) for part in text.split("\n")))


def ray_cpp(process: str, level: str, where: str, text: str) -> str:
    """A line of Ray's C++ side, as in raylet.out."""
    now = time.time()
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(now)) + f",{int(now % 1 * 1000):03d}"
    name = f" ({process})" if process else ""
    return f"[{when} {level} {os.getpid()} {threading.get_native_id()}]{name} {where}: {text}"


def ray_python(level: str, where: str, text: str) -> None:
    """A line of Ray's Python logger or CLI; both go to standard error."""
    emit(f"{ray_stamp()}\t{level} {where} -- {text}", err=True)


@functools.cache
def data(name: str) -> str:
    with Path(DATA, name).open(encoding="utf-8") as file:
        return file.read().rstrip("\n")


def block(name: str, *, worker: str = "Worker", last: str | None = None, **values: object) -> str:
    """A recorded block with this process's pid and the present stamp; `last` replaces its final text."""
    text = data(name)
    if last is not None:
        head, _, final = text.rpartition("\n")
        prefix = re.match(r"(\(@?\w+ pid=@PID\) \w+ @STAMP \[[\w.]+:\d+\] )?", final)
        text = "\n".join([head, *(prefix.group() + part for part in last.split("\n"))])
    text = text.replace("@PID", str(os.getpid())).replace("@STAMP", stamp()).replace("@WORKER", worker)
    for key, value in values.items():
        text = text.replace(f"@{key}", str(value))
    return text


def bar(desc: str, done: int, total: int, elapsed: float) -> str:
    """A tqdm bar of a known length."""
    rate = done / elapsed if elapsed > 0 and done else 0.0
    remaining = clock((total - done) / rate) if rate else "?"
    speed = "?it/s" if not done else f"{rate:5.2f}it/s" if rate >= 1 else f"{1 / rate:5.2f}s/it"
    return f"{desc} {done}/{total} [{clock(elapsed)}<{remaining}, {speed.strip()}]"


def clock(seconds: float) -> str:
    return f"{int(seconds) // 60:02d}:{int(seconds) % 60:02d}"


def gib(count: float) -> str:
    """VLLM's format_gib."""
    return str(round(count / (1 << 30), 2))


def say_error(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()
