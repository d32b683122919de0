"""A guard over memory proves a kill of the engine only where it killed a process of the engine."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from sparkd.cli.reading import Diagnoser
from sparkd.guard.report import trip_says
from sparkd.signals.catalogue import packaged_catalogue
from sparkd.words import GIB

DIAGNOSER = Diagnoser(packaged_catalogue())
LINE = "Nov 30 04:{0:02}:00 spark-a {1}: {2}"
SERVING = [
    LINE.format(0, "vllm[100]", "INFO 11-30 04:00:00 [x.py:1] Resolved architecture: Qwen3ForCausalLM"),
    LINE.format(5, "vllm[100]", "INFO:     Application startup complete."),
]
PRESSURE = "due to memory pressure for /user.slice being 71.30% > 50.00% for > 20s with reclaim activity"
OF_OTHERS = [
    (
        "systemd-oomd[801]",
        f"Killed /user.slice/user-1000.slice/user@1000.service/app.slice/app-firefox.scope {PRESSURE}",
    ),
    ("systemd-oomd[801]", f"Killed /user.slice/xray.service {PRESSURE}"),
    ("systemd-oomd[801]", f"Killed /user.slice/web-server.service {PRESSURE}"),
    ("systemd[1]", "firefox.scope: systemd-oomd killed 12 process(es) in this unit."),
    ("earlyoom[655]", 'sending SIGTERM to process 9635 uid 1000 "firefox": badness 1300, VmRSS 4100 MiB'),
    (
        "sparkd-guard[77]",
        "sparkd-guard: records of trips cannot be written to /var/lib/sparkd-guard: No space left",
    ),
]
OF_THE_ENGINE = [
    ("systemd-oomd[801]", f"Killed /system.slice/vllm.service {PRESSURE}"),
    ("systemd-oomd[801]", f"Killed /sparkd.slice/sparkd-serve.service {PRESSURE}"),
    ("systemd-oomd[801]", f"Killed /system.slice/docker-3f2a91bc.scope {PRESSURE}"),
    ("earlyoom[655]", 'sending SIGKILL to process 9635 uid 1000 "VLLM::Worker_TP": badness 1300'),
]


def trip(*roles: str) -> Any:
    """Return a trip with victims of those roles."""
    return SimpleNamespace(
        victims=[SimpleNamespace(role=role) for role in roles],
        level=SimpleNamespace(free=GIB // 4, name="node", available=GIB, total=120 * GIB),
        floors=SimpleNamespace(floor=2 * GIB),
        fall=0.0,
        code="below_hard_floor",
        termed_at_s=None,
        killed_at_s=1.0,
    )


def cause(writer: str, text: str) -> tuple[str, float]:
    found = DIAGNOSER.lines([*SERVING, LINE.format(11, writer, text)]).diagnosis
    return found.cause, found.confidence


@pytest.mark.parametrize(("writer", "text"), OF_OTHERS)
def test_a_kill_of_another_is_no_cause(writer: str, text: str) -> None:
    assert cause(writer, text)[0] == "none"


@pytest.mark.parametrize(("writer", "text"), OF_THE_ENGINE)
def test_a_kill_of_the_engine_is_proven(writer: str, text: str) -> None:
    assert cause(writer, text) == ("memory_guard_kill", 0.95)


@pytest.mark.parametrize("writer", ["sparkd-guard[77]", "systemd[1]"])
@pytest.mark.parametrize("start", ["sparkd-guard: ", ""])
def test_our_guard_is_a_cause_where_it_killed_and_not_where_it_observes(writer: str, start: str) -> None:
    tripped = cast("Any", trip("worker", "EngineCore"))
    assert cause(writer, start + trip_says(tripped, "serving", True)) == ("memory_guard_kill", 0.95)
    assert cause(writer, start + trip_says(tripped, "serving", False))[0] == "none"
    assert cause(writer, start + trip_says(cast("Any", trip()), "serving", True))[0] == "none"


def test_where_no_engine_speaks_the_kill_is_the_subject() -> None:
    writer, text = OF_OTHERS[4]
    found = DIAGNOSER.lines([LINE.format(11, writer, text)]).diagnosis
    assert (found.cause, found.confidence) == ("memory_guard_kill", 0.6)


OF_ANYBODY = [
    "Memory cgroup out of memory: Killed process 4711 (nginx) total-vm:90000kB, anon-rss:40000kB",
    "Out of memory: Killed process 4711 (firefox) total-vm:9000000kB, anon-rss:4000000kB, file-rss:0kB",
    "NVRM: Xid (PCI:000f:01:00): 31, pid=77, name=jupyter-kernel, Ch 00000008, MMU Fault",
]


@pytest.mark.parametrize("text", OF_ANYBODY)
def test_what_befalls_others_on_a_healthy_node_is_no_cause(text: str) -> None:
    """Where an engine is in view; alone it is what the log is about."""
    assert cause("kernel", text)[0] == "none"
    assert DIAGNOSER.lines([LINE.format(11, "kernel", text)]).diagnosis.cause != "none"


MEMCG = [
    "Memory cgroup out of memory: Killed process 4711 ({}) total-vm:90000kB, anon-rss:40000kB",
    "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=x,mems_allowed=0,oom_memcg=/x,task={},pid=4711",
]


@pytest.mark.parametrize("line", MEMCG)
@pytest.mark.parametrize(("name", "confidence"), [("VLLM::Worker", 0.95), ("ollama", 0.95), ("nginx", 0.6)])
def test_the_lines_of_one_kill_agree_on_whose_it_was(line: str, name: str, confidence: float) -> None:
    found = DIAGNOSER.lines([LINE.format(11, "kernel", line.format(name))]).diagnosis
    assert (found.cause, found.confidence) == ("cgroup_oom", confidence)
