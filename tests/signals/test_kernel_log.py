"""What the kernel of one node tells decides why the other node's process ended with code 0."""

from __future__ import annotations

import pytest

from sparkd.engines.lines import read_line
from sparkd.intake.pump import Intake
from sparkd.signals.catalogue import packaged_catalogue
from sparkd.signals.judge import judge
from sparkd.signals.model import Diagnosis, Evidence, Proof, Signal, UnitExit
from sparkd.words import Phase, UnitName

CATALOGUE = packaged_catalogue()
# As Linux prints them (mm/oom_kill.c); names are cut to 15 characters.
INVOKED = (
    b"VLLM::Worker_TP invoked oom-killer: gfp_mask=0x140cca(GFP_HIGHUSER_MOVABLE), order=0, oom_score_adj=500"
)
GLOBAL = (
    b"oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=sparkd.service,mems_allowed=0,global_oom,"
    b"task_memcg=/system.slice/sparkd.service,task=VLLM::Worker_TP,pid=1234,uid=0"
)
KILLED = (
    b"Out of memory: Killed process 1234 (VLLM::Worker_TP) total-vm:98000000kB, anon-rss:41000000kB, "
    b"file-rss:1024kB, shmem-rss:8192kB, UID:0 pgtables:92000kB oom_score_adj:500"
)
MEMCG = (
    b"oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=x,mems_allowed=0,oom_memcg=/docker/x,"
    b"task_memcg=/docker/x,task=VLLM::Worker_TP,pid=1234,uid=0"
)
MEMCG_KILLED = (
    b"Memory cgroup out of memory: Killed process 1234 (VLLM::Worker_TP) total-vm:98000000kB, "
    b"anon-rss:41000000kB, file-rss:1024kB, shmem-rss:8192kB, UID:0 pgtables:92000kB oom_score_adj:500"
)
OTHER = b"Out of memory: Killed process 77 (firefox) total-vm:98000000kB, anon-rss:41000000kB, file-rss:0kB"


def read(*lines: bytes, at_s: float = 9.5) -> tuple[Signal, ...]:
    intake = Intake("spark-b", CATALOGUE, read_line)
    return intake.feed("kernel", None, 0, b"\n".join(lines) + b"\n", at_s).signals


def judged(signals: tuple[Signal, ...]) -> Diagnosis:
    end = UnitExit("spark-a", UnitName.SERVE, 3, 10.0, code=0)
    return judge(
        Evidence(
            signals=signals, exits=(end,), phase=Phase.SERVING, nodes=("spark-a", "spark-b"), head="spark-a"
        )
    )


@pytest.mark.parametrize(
    ("lines", "cause"),
    [
        ((INVOKED, GLOBAL, KILLED), "kernel_oom"),
        ((GLOBAL,), "kernel_oom"),
        ((KILLED,), "kernel_oom"),
        ((MEMCG, MEMCG_KILLED), "cgroup_oom"),
        ((MEMCG,), "cgroup_oom"),
        ((MEMCG_KILLED,), "cgroup_oom"),
    ],
)
def test_the_kernels_kill_on_the_worker_explains_an_end_with_code_zero_on_the_head(lines, cause) -> None:
    signals = read(*lines)
    diagnosis = judged(signals)

    assert all(signal.generation == 0 and not signal.fatal for signal in signals)
    assert (diagnosis.cause, diagnosis.node, diagnosis.phase) == (cause, "spark-b", Phase.SERVING)
    assert diagnosis.confidence > 0.9
    assert diagnosis.evidence[0].source == "kernel"


def test_the_victims_memory_is_a_quantity() -> None:
    assert judged(read(GLOBAL, KILLED)).quantity("victim_bytes") == 41000000 * 1024


def test_a_kill_of_another_program_ends_nothing_by_itself() -> None:
    (signal,) = read(OTHER)

    assert (signal.proof, signal.fatal) == (Proof.SUGGESTS, False)
    assert judged((signal,)).cause == "host_memory_pressure"


def test_a_kill_of_another_program_within_its_own_limit_is_nothing_of_ours() -> None:
    other = b"Memory cgroup out of memory: Killed process 77 (nginx) total-vm:9000kB, anon-rss:4000kB"

    assert judged(read(other)).cause == "unknown"


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        (OTHER, "kernel_oom"),
        (b"Memory cgroup out of memory: Killed process 77 (nginx) total-vm:9000kB", "cgroup_oom"),
    ],
)
def test_of_a_log_that_somebody_gives_any_kill_is_the_subject(line: bytes, cause: str) -> None:
    found = judge(Evidence(signals=read(line), recorded=True))

    assert (found.cause, found.confidence) == (cause, 0.6)
