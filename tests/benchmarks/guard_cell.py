"""One guard in a namespace of its own: `python -m benchmarks.guard_cell FEED CGROUP GUARD...`.

It sees only the processes of its cell, and *FEED* in the place of /proc/meminfo, so that no guard can touch
anything of the machine. Asked on standard input (`quick` or `slow`) it starts a victim; it tells its moments
on standard output, each with the monotonic time: `ready`, `asked` (SIGTERM came), `dead`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

SLOW = """
import os, signal, sys, time
def asked(*_):
    os.write(1, b"asked\\n")
    time.sleep(0.5)
    os._exit(3)
signal.signal(signal.SIGTERM, asked)
os.write(1, b"ready\\n")
signal.pause()
"""


def tell(what: str) -> None:
    print(what, time.monotonic(), flush=True)


def run_victim(kind: str, group: Path) -> None:
    """Start a victim in its control group, as the first that any guard would take; wait until it is dead."""
    inner = ["sleep", "1000"] if kind == "quick" else [sys.executable, "-S", "-c", SLOW]
    script = f'echo 0 > {group}/cgroup.procs; echo 1000 > /proc/self/oom_score_adj; exec "$@"'
    victim = subprocess.Popen(["sh", "-c", script, "victim", *inner], stdout=subprocess.PIPE)
    assert victim.stdout is not None
    if kind == "quick":
        tell("ready")
    else:
        for line in victim.stdout:
            tell(line.decode().strip())
    victim.wait()
    tell("dead")


def main() -> None:
    feed, group, *guard = sys.argv[1:]
    subprocess.run(["mount", "--bind", feed, "/proc/meminfo"], check=True)
    log = Path(feed).with_suffix(f".{Path(guard[0]).name}.log").open("wb")
    running = subprocess.Popen(
        guard, stdout=log, stderr=subprocess.STDOUT, env=os.environ | {"PYTHONUNBUFFERED": "1"}
    )
    bystander = subprocess.Popen(["sleep", "100000"])
    for line in sys.stdin:
        if line.strip() == "end":
            break
        if running.poll() is not None:
            raise SystemExit(f"the guard has ended with {running.returncode}; see {log.name}")
        run_victim(line.strip(), Path(group))
        if bystander.poll() is not None:
            tell("other")
            bystander = subprocess.Popen(["sleep", "100000"])
    for process in (running, bystander):
        process.kill()
        process.wait()


if __name__ == "__main__":
    main()
