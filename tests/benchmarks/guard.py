"""The memory guard beside Debian's earlyoom and nohang, and against a real hog; its size and its cost.

Run: make bench-guard [ARGS="--runs 30 --hogs 50"]. Root, Linux; no process outside its own namespaces is in
danger. The last line is JSON:

- `rates`: the same feed, bind-mounted over /proc/meminfo of three namespaces, falls at a rate. Milliseconds
  from the crossing of the floor (10 % of 120 GiB, the same for all) to the victim's death, at how many GiB
  that was, and how often the memory ended first (`missed`). The three watch the same fall at the same time.
- `step`: 40 % of the memory are gone at once, the victim takes half a second to end when it is asked, and
  memory goes on falling at 1 GB/s until it does: the lowest level of all runs.
- `hog`: a real one, as fast as this machine hands out pages, in the engine's slice of a nspawn node of 2 GiB
  with the real unit: how often it was ended before the kernel's OOM killer had to act; how many others died.
- `pss_mib`, `cpu_percent`: of a guard with forty processes to watch, at rest.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import select
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lab import nspawn

GIB, GB = 1 << 30, 10**9
TOTAL = 120 * GIB
FLOOR = TOTAL // 10
RATES_GB_S = (0.3, 2.0, 10.0, 40.0)
FALL_S = 1.0
DEADLINE_S = 30.0
# Between two victims the group is empty for longer than two looks: a guard strikes until nobody is left.
EMPTY_S = 0.2
UNIFIED = Path("/sys/fs/cgroup/unified")
MEMORY = Path("/sys/fs/cgroup/memory")
NODE_BYTES = 2 * GIB


class Feed:
    """A file that stands in for /proc/meminfo, written in place by a thread."""

    def __init__(self, path: Path, calm: float) -> None:
        self.path = path
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        self.say(calm)

    def say(self, available: float) -> None:
        kib = max(int(available), 0) >> 10
        rows = {"MemTotal": TOTAL >> 10, "MemFree": kib, "MemAvailable": kib, "Buffers": 0, "Cached": 0}
        rows |= {"SwapCached": 0, "Active": 0, "Inactive": 0, "Mlocked": 0, "SwapTotal": 0, "SwapFree": 0}
        rows |= {"Shmem": 0, "Slab": 0, "SReclaimable": 0, "SUnreclaim": 0, "KernelStack": 0, "PageTables": 0}
        text = "".join(f"{name + ':':<16}{value:>12} kB\n" for name, value in rows.items())
        os.pwrite(self._fd, text.encode(), 0)

    def follow(self, level: Callable[[float], float | None]) -> None:
        """Say *level* of the moment, about a thousand times a second, until it is None."""
        while (available := level(time.monotonic())) is not None:
            self.say(available)
            time.sleep(0.0005)


class Cell:
    """A guard with its victim, from outside."""

    def __init__(self, name: str, feed: Feed, guard: list[str]) -> None:
        self.name, self.others = name, 0
        self.group = UNIFIED / f"sparkd-bench-{os.getpid()}-{name}"
        self.group.mkdir()
        argv = ["unshare", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child", sys.executable]
        argv += ["-m", "benchmarks.guard_cell", str(feed.path), str(self.group)]
        guard = [word.replace("GROUP", f"/{self.group.name}") for word in guard]
        self._process = subprocess.Popen([*argv, *guard], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        os.set_blocking(self._process.stdout.fileno(), False)
        self._held = b""
        self.seen: dict[str, float] = {}

    def victim(self, kind: str) -> None:
        """Start a victim, and wait until it is there."""
        time.sleep(EMPTY_S)
        self.seen.clear()
        assert self._process.stdin is not None
        self._process.stdin.write(f"{kind}\n".encode())
        self._process.stdin.flush()
        end = time.monotonic() + DEADLINE_S
        while "ready" not in self.seen:
            if time.monotonic() > end:
                raise SystemExit(
                    f"{self.name}: no victim within {DEADLINE_S} s; its log lies beside {self.group}"
                )
            self.look(0.05)

    def look(self, wait_s: float = 0.0) -> dict[str, float]:
        """Return what the cell has told since the victim was asked for: moment → monotonic seconds."""
        assert self._process.stdout is not None
        if select.select([self._process.stdout], [], [], wait_s)[0]:
            text = self._process.stdout.read()
            if text == b"":
                raise SystemExit(f"{self.name}: its cell has ended")
            *lines, self._held = (self._held + (text or b"")).split(b"\n")
            for line in lines:
                what, at = line.decode().split()
                self.others += what == "other"
                self.seen[what] = float(at)
        return self.seen

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()
        with contextlib.suppress(OSError):
            (self.group / "cgroup.kill").write_text("1")
        end = time.monotonic() + DEADLINE_S
        while time.monotonic() < end:
            with contextlib.suppress(OSError):
                self.group.rmdir()
                return
            time.sleep(0.05)


def guards(folder: Path) -> dict[str, list[str]]:
    """The three, set to the same floor: SIGTERM at 10 % available, SIGKILL at 5 %."""
    conf = folder / "nohang.conf"
    text = Path("/etc/nohang/nohang.conf").read_text()
    lines = []
    for line in text.splitlines():
        key = line.partition("=")[0].strip()
        values = {
            "soft_threshold_min_mem": "10 %",
            "hard_threshold_min_mem": "5 %",
            "warning_threshold_min_mem": "20 %",
        }
        lines.append(f"{key} = {values[key]}" if key in values else line)
    conf.write_text("\n".join(lines) + "\n")
    sparkd = [
        sys.executable,
        "-m",
        "sparkd.guard",
        "--slice=GROUP",
        f"--floor={FLOOR}",
        f"--floor_most={FLOOR}",
    ]
    sparkd += [f"--status={folder}/status", f"--state_dir={folder}/state", f"--lease={folder}/none"]
    return {
        "sparkd": sparkd,
        "earlyoom": ["earlyoom", "-r", "0", "-p", "-m", "10,5", "-s", "100,100"],
        "nohang": ["nohang", "--monitor", "--config", str(conf)],
    }


def fall(cells: list[Cell], feed: Feed, rate: float, rng: random.Random) -> dict[str, tuple[float, float]]:
    """One fall for all; return for each its delay in seconds and the level at its victim's death."""
    start = FLOOR + rate * FALL_S
    feed.say(start)
    for cell in cells:
        cell.victim("quick")
    time.sleep(rng.uniform(0.8, 1.8))
    begun = time.monotonic()
    last = begun + start / rate + 3.0

    def level(now: float) -> float | None:
        for cell in cells:
            cell.look()
        if all("dead" in cell.seen for cell in cells) or now > last:
            return None
        return start - rate * (now - begun)

    feed.follow(level)
    crossed = begun + FALL_S
    feed.say(start)
    for cell in cells:
        while "dead" not in cell.look(0.05):
            feed.say(0)
    feed.say(start)
    ends = {cell.name: cell.seen["dead"] for cell in cells}
    return {name: (at - crossed, start - rate * (at - begun)) for name, at in ends.items()}


def bench_rates(folder: Path, runs: int, seed: int) -> list[dict[str, Any]]:
    feed, rng = Feed(folder / "rates", 60 * GIB), random.Random(seed)
    cells = [Cell(name, feed, guard) for name, guard in guards(folder).items()]
    rows = []
    try:
        time.sleep(3)
        for rate in RATES_GB_S:
            found = [fall(cells, feed, rate * GB, rng) for _ in range(runs)]
            row: dict[str, Any] = {"gb_per_s": rate}
            for cell in cells:
                delays = [one[cell.name][0] * 1000 for one in found]
                row[cell.name] = {
                    "median_ms": round(statistics.median(delays), 1),
                    "max_ms": round(max(delays), 1),
                    "missed": sum(one[cell.name][1] <= 0 for one in found),
                    "lowest_gib": round(max(min(one[cell.name][1] for one in found) / GIB, 0), 2),
                }
            print(json.dumps(row), flush=True)
            rows.append(row)
    finally:
        for cell in cells:
            cell.end()
    if any(cell.others for cell in cells):
        print("other processes killed:", {cell.name: cell.others for cell in cells})
    return rows


def one_step(cell: Cell, feed: Feed, rng: random.Random) -> float:
    """Return the lowest level of one step, in bytes."""
    calm = TOTAL * 0.495
    feed.say(calm)
    cell.victim("slow")
    time.sleep(rng.uniform(1.2, 2.2))
    begun, lowest = time.monotonic(), calm

    def level(now: float) -> float | None:
        nonlocal lowest
        seen = cell.look()
        if "dead" in seen:
            return None
        stopped = seen.get("asked", now)
        at = calm - 0.4 * TOTAL - GB * (stopped - begun) + 8 * GB * (now - stopped)
        lowest = min(lowest, at)
        return at

    feed.follow(level)
    feed.say(calm)
    return lowest


def bench_step(folder: Path, runs: int, seed: int) -> dict[str, Any]:
    found = {}
    for name, guard in guards(folder).items():
        feed, rng = Feed(folder / f"step-{name}", 60 * GIB), random.Random(seed)
        cell = Cell(name, feed, guard)
        try:
            time.sleep(3)
            lowest = [one_step(cell, feed, rng) for _ in range(runs)]
            found[name] = {
                "lowest_gib": round(min(lowest) / GIB, 3),
                "median_gib": round(statistics.median(lowest) / GIB, 3),
            }
        finally:
            cell.end()
    return found


HOG = """
import mmap, random, time
time.sleep(random.uniform(0.3, 1.3))
memory = mmap.mmap(-1, 12 << 30, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
memory.madvise(14)  # MADV_HUGEPAGE
memory.madvise(23)  # MADV_POPULATE_WRITE
"""
DROP_IN = """[Service]
ProtectHome=read-only
ExecStart=
ExecStart=/opt/sparkd/bin/python -m sparkd.guard
Environment=PYTHONPATH={code} SPARKD_GUARD_FLOOR=1GiB
"""


def kernel_kills(group: Path) -> int:
    """How many processes the kernel's OOM killer has ended in a group and below it."""
    total = 0
    for file in group.rglob("memory.oom_control"):
        words = file.read_text().split()
        total += int(words[words.index("oom_kill") + 1])
    return total


def read_status(path: Path) -> dict[str, Any]:
    for _ in range(200):
        with contextlib.suppress(OSError, ValueError):
            found: dict[str, Any] = json.loads(path.read_text())
            if found["seq"] == found["seq_end"]:
                return found
        time.sleep(0.02)
    raise SystemExit(f"no status in {path}")


def bench_hog(runs: int) -> dict[str, Any]:
    """Let hogs loose in the engine's slice of a node with a systemd and a memory of its own."""
    if nspawn.missing():
        return {"runs": 0, "saved": 0, "others_killed": 0, "reason": nspawn.missing()}
    code = Path(__file__).parents[2] / "daemon"
    with nspawn.node("spark-g", memory_bytes=NODE_BYTES, boot=False) as node:
        nspawn.install(node, "")
        node.write("/etc/systemd/system/sparkd-guard.service.d/bench.conf", DROP_IN.format(code=code))
        node.write("/var/lib/hog.py", HOG)
        node.boot()
        node.run("systemctl", "start", "sparkd-guard")
        node.run("systemd-run", "--unit=bystander", "sleep", "infinity")
        return hogs(node, runs)


def others_of(node: nspawn.Node) -> list[str]:
    """The pids of what must not be touched."""
    return [
        node.run("systemctl", "show", "-P", "MainPID", name).stdout for name in ("bystander", "sparkd-guard")
    ]


def hogs(node: nspawn.Node, runs: int) -> dict[str, Any]:
    group = MEMORY / node.root.parent.name
    status = node.path("/run/sparkd-guard/status")
    pids = [
        node.run("systemctl", "show", "-P", "MainPID", unit).stdout for unit in ("bystander", "sparkd-guard")
    ]
    saved, others = 0, 0
    for _ in range(runs):
        kernel, trips = kernel_kills(group), read_status(status)["trips"]
        ran = [
            "systemd-run",
            "--wait",
            "--collect",
            "--slice=sparkd-engine.slice",
            "/usr/bin/python3",
            "/var/lib/hog.py",
        ]
        node.run(*ran, check=False)
        after = [
            node.run("systemctl", "show", "-P", "MainPID", unit).stdout
            for unit in ("bystander", "sparkd-guard")
        ]
        others += sum(one != two for one, two in zip(pids, after, strict=True))
        pids = after
        saved += kernel_kills(group) == kernel and read_status(status)["trips"] == trips + 1
    falls = [json.loads(path.read_text()) for path in node.path("/var/lib/sparkd-guard").glob("trip-*.json")]
    return {
        "runs": runs,
        "saved": saved,
        "others_killed": others,
        "fall_gb_per_s": round(statistics.median(fall["fall_bytes_per_s"] for fall in falls) / GB, 2),
        "lowest_mib": min(fall["available_bytes"] for fall in falls) >> 20,
        "page_faults": max(fall["page_faults"] for fall in falls),
    }


def ran_s(pid: int) -> float:
    """Seconds on a CPU of all of a process's threads."""
    return (
        sum(int(task.read_text().split()[0]) for task in Path(f"/proc/{pid}/task").glob("*/schedstat")) / 1e9
    )


def bench_rest(folder: Path, seconds: float) -> tuple[float, float]:
    """Return the guard's PSS in MiB, and the percent of one core that it takes at rest."""
    group = UNIFIED / f"sparkd-bench-{os.getpid()}-rest"
    group.mkdir()
    join = ["sh", "-c", f'echo 0 > {group}/cgroup.procs; exec "$@"', "join", "sleep", "100000"]
    members = [subprocess.Popen(join) for _ in range(40)]
    argv = [sys.executable, "-m", "sparkd.guard", f"--slice=/{group.name}", f"--status={folder}/rest-status"]
    guard = subprocess.Popen([*argv, f"--state_dir={folder}/rest-state"], stderr=subprocess.DEVNULL)
    try:
        while read_status(folder / "rest-status")["scope"]["members"] < 40:
            time.sleep(0.05)
        time.sleep(15)  # the first survey and the first names are behind it
        before, began = ran_s(guard.pid), time.monotonic()
        time.sleep(seconds)
        share = (ran_s(guard.pid) - before) / (time.monotonic() - began)
        rollup = Path(f"/proc/{guard.pid}/smaps_rollup").read_text()
        pss = next(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:"))
    finally:
        for process in (guard, *members):
            process.kill()
            process.wait()
        time.sleep(0.2)
        group.rmdir()
    return round(pss / 1024, 2), round(share * 100, 3)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=30, help="falls a rate")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--hogs", type=int, default=50)
    parser.add_argument("--rest", type=float, default=60.0, help="seconds at rest")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    if os.geteuid() != 0:
        raise SystemExit("bench-guard needs root: namespaces, control groups, a file over /proc/meminfo")
    result: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="sparkd-bench-guard-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        if given.rest:
            result["pss_mib"], result["cpu_percent"] = bench_rest(folder, given.rest)
        if given.hogs:
            result["hog"] = bench_hog(given.hogs)
            print(json.dumps(result), flush=True)
        if given.steps:
            result["step"] = bench_step(folder, given.steps, given.seed)
            print(json.dumps(result["step"]), flush=True)
        if given.runs:
            result["rates"] = bench_rates(folder, given.runs, given.seed)
    print(
        json.dumps(
            {key: result[key] for key in ("rates", "step", "hog", "pss_mib", "cpu_percent") if key in result}
        )
    )


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    threading.current_thread().name = "bench"
    main()
