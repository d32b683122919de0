"""Takes memory until a chosen share of the machine is left, and holds it. Run as a program of its own.

    python3 hog.py --available-share 0.2 [--hold-s 300] [--rate-bytes-s N] [--parent PID]

Prints one JSON line for each event: `started`, `holding` (the target is reached), `released` (the cap gave
way).
Rules of this file:
- It dies with its parent (PR_SET_PDEATHSIG: the thread that started it must live on), at SIGTERM, and after
  --hold-s.
- It never leaves the machine less than FLOOR_BYTES available: it stops short of that, and gives memory back
  when others take it there. It offers itself first to the kernel's own killer.
"""

import argparse
import ctypes
import json
import mmap
import os
import pathlib
import signal
import sys
import time

FLOOR_BYTES = 3 << 30
STEP_BYTES = 64 << 20
PR_SET_PDEATHSIG = 1
MADV_POPULATE_WRITE = 23


def meminfo() -> tuple[int, int]:
    """(available, total) in bytes."""
    lines = pathlib.Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    values = {name: int(rest.split()[0]) << 10 for name, _, rest in (line.partition(":") for line in lines)}
    return values["MemAvailable"], values["MemTotal"]


def tell(event: str, held_bytes: int) -> None:
    available, total = meminfo()
    record = {"event": event, "held_bytes": held_bytes, "available_bytes": available, "total_bytes": total}
    print(json.dumps(record), flush=True)


def take(size: int) -> mmap.mmap:
    """Anonymous memory with every page really there."""
    chunk = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    try:
        chunk.madvise(MADV_POPULATE_WRITE)
    except OSError:  # a kernel before 5.14
        for offset in range(0, size, mmap.PAGESIZE):
            chunk[offset] = 1
    return chunk


def die_with(parent: int) -> None:
    """Have the kernel kill this process with the thread that made it; leave when that came too late."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit("the parent is gone")
    pathlib.Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")


def hog(target_bytes: int, hold_s: float, rate_bytes_s: float) -> None:
    """Fill, then hold until the time is over, giving way at the floor all along."""
    chunks: list[mmap.mmap] = []
    end, holding = time.monotonic() + hold_s, False
    while time.monotonic() < end:
        available, _ = meminfo()
        if available < FLOOR_BYTES and chunks:
            chunks.pop().close()
            tell("released", len(chunks) * STEP_BYTES)
            holding = True
        elif not holding and available - STEP_BYTES >= target_bytes:
            chunks.append(take(STEP_BYTES))
            time.sleep(STEP_BYTES / rate_bytes_s)
        elif not holding:
            holding = True
            tell("holding", len(chunks) * STEP_BYTES)
        else:
            time.sleep(0.05)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--available-share", type=float, required=True, help="of MemTotal, to leave available"
    )
    parser.add_argument("--hold-s", type=float, default=300.0)
    parser.add_argument("--rate-bytes-s", type=float, default=float(1 << 30))
    parser.add_argument("--parent", type=int, default=os.getppid())
    options = parser.parse_args()
    die_with(options.parent)
    target_bytes = int(options.available_share * meminfo()[1])
    if target_bytes < FLOOR_BYTES + STEP_BYTES:
        sys.exit(f"refused: {target_bytes} bytes left is below the cap of {FLOOR_BYTES + STEP_BYTES}")
    tell("started", 0)
    hog(target_bytes, options.hold_s, options.rate_bytes_s)


if __name__ == "__main__":
    main()
