"""Speed of `sparkctl diagnose` beside grep, of the live tail, and of the start. `make bench-diagnose`.

The log: pieces of real runs that ended well, with their numbers and times changed, and one cause at its end.
grep counts the lines that the catalogue's own patterns match, in the same run on the same file. The last
line is JSON.
"""

import argparse
import gzip
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from sparkd.cli.sparkctl import main as sparkctl
from sparkd.engines.lines import read_line
from sparkd.intake.pump import Intake
from sparkd.signals.catalogue import packaged_catalogue
from sparkd.words import UnitName

DATA = Path(__file__).parents[1] / "signals" / "data"
QUIET = ("vllm-healthy-", "vllm-ray-tp", "vllm-mp-nnodes2-rank", "ray-start-", "s01")
CAUSE = (
    b"(EngineCore pid=31) ERROR 11-30 23:59:50 [core.py:1512] torch.OutOfMemoryError: CUDA out of memory. "
    b"Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 119.70 GiB of which 1.25 GiB is free.\n"
)
REQUESTS = (
    b'INFO:     10.77.0.%d:4%04d - "POST /v1/chat/completions HTTP/1.1" 200 OK\n',
    b'INFO:     10.77.0.%d:4%04d - "GET /health HTTP/1.1" 200 OK\n',
    (
        b"(APIServer pid=%d) INFO 11-30 03:%02d:01 [loggers.py:271] Engine 000: Avg prompt throughput: 8.1 "
        b"tokens/s, Avg generation throughput: 27.1 tokens/s, Running: 3 reqs, Waiting: 0 reqs, GPU KV cache "
        b"usage: 1.9%%\n"
    ),
    (
        b"[2026-11-30 03:26:%02d,082 W 24%03d 24911] (raylet) memory_monitor_utils.cc:437: Got negative used "
        b"memory for cgroup -1, setting it to zero\n"
    ),
)
# Not of a date, also where a letter stands before it ("W1130"): one that does not exist orders nothing.
NUMBER = re.compile(rb"(?<![-:\w])\d{2,}(?![-:\d])|(?<=:)\d\d(?=[ ,.])")
STOP = re.compile(rb"shutdown|SIGTERM|Shutting down|Traceback|EngineDead|# EXIT")
LINES_AT_ONCE = 40
TAIL_MB = 20
STARTS = 5


def pieces() -> list[list[bytes]]:
    """Return runs of lines of the recorded logs, each log up to its stop."""
    found = []
    for path in sorted(DATA.glob("*.gz")):
        if path.name.startswith(QUIET):
            lines = STOP.split(gzip.decompress(path.read_bytes()))[0].split(b"\n")[:-1]
            found += [lines[at : at + LINES_AT_ONCE] for at in range(0, len(lines), LINES_AT_ONCE)]
    return found


def write_log(path: Path, megabytes: float, chance: random.Random) -> None:
    """Write the mixture: a third pieces of starts, the rest a serving day, and at its end what ended it.

    Earlier, the work that follows would acquit it: an engine that serves on has not ended.
    """
    known = pieces()
    size, wanted = 0, int(megabytes * 1e6)
    with path.open("wb") as file:
        while size < wanted:
            piece = b"\n".join(chance.choice(known)) + b"\n"
            piece = NUMBER.sub(lambda found: varied(found[0], chance), piece)
            for _ in range(LINES_AT_ONCE * 2):
                piece += chance.choice(REQUESTS) % (chance.randrange(256), chance.randrange(60))
            size += file.write(piece)
        file.write(CAUSE)


def varied(number: bytes, chance: random.Random) -> bytes:
    """Return a number with another last digit: seconds, ports and process ids differ in every piece."""
    return number[:-1] + b"%d" % chance.randrange(10)


def cpu_of(command: list[str]) -> tuple[float, int]:
    """Return the seconds of CPU that a command took, and its exit status."""
    before = os.times()
    env = {**os.environ, "LC_ALL": "C"}
    # A pipe: grep stops at the first match where its output is thrown away.
    done = subprocess.run(command, stdout=subprocess.PIPE, check=False, env=env)
    after = os.times()
    spent = after.children_user + after.children_system - before.children_user - before.children_system
    return spent, done.returncode


def tail(path: Path) -> float:
    """Return lines a second of CPU through the daemon's intake, in chunks as the follower reads them."""
    data = path.read_bytes()[: int(TAIL_MB * 1e6)]
    intake = Intake("a", packaged_catalogue(), read_line)
    chunks = [data[at : at + 65536] for at in range(0, len(data), 65536)]
    begun = time.process_time()
    for number, chunk in enumerate(chunks):
        intake.feed("serve log", UnitName.SERVE, 1, chunk, number / 10)
    return data.count(b"\n") / (time.process_time() - begun)


def start_s(folder: Path) -> float:
    """Return the shortest of several whole runs on a small log: what a person waits."""
    small = folder / "small.log"
    small.write_bytes(CAUSE)
    times = []
    for _ in range(STARTS):
        begun = time.perf_counter()
        subprocess.run([*SPARKCTL, "diagnose", small], stdout=subprocess.DEVNULL, check=False)
        times.append(time.perf_counter() - begun)
    return min(times)


SPARKCTL = [sys.executable, "-m", sparkctl.__module__]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=float, default=200.0)
    parser.add_argument("--seed", type=int, default=7)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        log, patterns = folder / "mixture.log", folder / "patterns"
        write_log(log, options.megabytes, random.Random(options.seed))
        listed = subprocess.run([*SPARKCTL, "signatures", "--patterns"], stdout=subprocess.PIPE, check=True)
        patterns.write_bytes(listed.stdout)
        megabytes = log.stat().st_size / 1e6
        ours_s, status = cpu_of([*SPARKCTL, "diagnose", str(log)])
        assert status == 1, "the cause was not found"
        print(f"diagnose {ours_s:.1f} s of CPU for {megabytes:.0f} MB", flush=True)
        grep_s, status = cpu_of(["grep", "-cE", "-f", str(patterns), str(log)])
        assert status == 0, "grep found nothing"
        print(f"grep     {grep_s:.1f} s", flush=True)
        result = {
            "mb_per_s": round(megabytes / ours_s, 1),
            "grep_mb_per_s": round(megabytes / grep_s, 1),
            "ratio_to_grep": round(grep_s / ours_s, 2),
            "patterns": listed.stdout.count(b"\n"),
            "tail_lines_per_s": round(tail(log)),
            "startup_s": round(start_s(folder), 3),
        }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
