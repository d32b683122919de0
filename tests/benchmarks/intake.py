"""Lines a second through the intake, of ordinary logs and of a death.

Run: PYTHONPATH=daemon:tests python tests/benchmarks/intake.py.
"""

import time

from signals.replay import CATALOGUE, TWO_NODES, text_of
from sparkd.engines.lines import read_line
from sparkd.intake.pump import Intake
from sparkd.words import UnitName

LINES = 200_000


def measure(name: str, text: str) -> None:
    lines = [line for line in text.split("\n") if line]
    data = "\n".join(lines * (LINES // len(lines) + 1)).encode() + b"\n"
    intake = Intake("a", CATALOGUE, read_line, TWO_NODES)
    chunks = [data[at : at + 65536] for at in range(0, len(data), 65536)]
    begun = time.process_time()
    for number, chunk in enumerate(chunks):
        intake.feed("serve log", UnitName.SERVE, 1, chunk, float(number))
    spent = time.process_time() - begun
    print(f"{name}: {data.count(10) / spent:,.0f} lines/s, {len(data) / spent / 1e6:.1f} MB/s (CPU)")


if __name__ == "__main__":
    measure("access log", 'INFO:     10.77.0.1:42744 - "GET /health HTTP/1.1" 200 OK')
    measure("healthy start", text_of("vllm-healthy-22-shards-eager.log"))
    measure("raylet.out", text_of("ray-oom-raylet-out-vllm-worker-nodeB.log"))
    measure("a death", text_of("vllm-fail-mp-nnodes2-remote-worker-sigkill-rank0.log"))
