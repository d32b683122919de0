"""A real guard beside each real daemon: heard, leased, and its trip is what the incident is about."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from guard.rig import GIB, Rig, rig
from sparkd.adapters.machine import boot_id
from sparkd.core.launch import MONITOR_AGAIN, MONITOR_OFF
from standin_cluster import Standin, is_event, until

pytestmark = [pytest.mark.process, pytest.mark.timeout(240)]

FLOOR = 3 * GIB


def beside(standin: Standin, node: str, made: Rig) -> None:
    """Start the node's guard, with an engine of its own to kill; the daemon is told where it stands."""
    setup = standin.cluster.daemons[node].setup
    setup.env["SPARKD_PATHS__GUARD_STATUS"] = str(made.status_file)
    setup.env["SPARKD_PATHS__GUARD_DIR"] = str(made.state)
    setup.env["SPARKD_SETTINGS__RAY_MEMORY_THRESHOLD"] = "off"
    boot = made.proc / "sys" / "kernel" / "random" / "boot_id"
    boot.parent.mkdir(parents=True)
    boot.write_text(boot_id() + "\n")
    made.lease = setup.directory / "run" / "guard" / "floors"
    made.engine.add()
    made.start()


def test_guards_are_heard_and_what_they_do_is_known(live: Callable[..., Standin], tmp_path: Path) -> None:
    with rig(tmp_path / "a") as head_guard, rig(tmp_path / "b") as worker_guard:

        def prepare(standin: Standin) -> None:
            beside(standin, "spark-a", head_guard)
            beside(standin, "spark-b", worker_guard)

        async def story(standin: Standin) -> None:
            head = standin.cluster.head
            adopted = await head.wait(is_event("settings_adopted"), 60)
            assert (adopted["reason"], adopted["ray_memory_threshold"]) == (MONITOR_OFF, None)
            await standin.cluster.phase("serving", 60)
            for guard in (head_guard, worker_guard):

                async def told(guard: Rig = guard) -> dict:
                    return guard.status()

                leased = await until(told, lambda s: s.get("phase") == "serving", 15)
                assert (leased["floor_from"], leased["floor_bytes"]) == ("daemon", FLOOR)

            async def page() -> str:
                return (await standin.get("spark-a", "/metrics"))[1]

            # The worker's floor comes with its next word.
            nodes = ("spark-a", "spark-b")
            floors = [f'sparkd_memory_floor_bytes{{node="{node}"}} 3.221225472e+09' for node in nodes]
            shown = ["sparkd_guard_enforcing 1.0", *floors]
            await until(page, lambda text: all(line in text for line in shown), 15)

            start = len(head.events)
            worker_guard.memory(0.5)
            judged = await head.wait(is_event("remedied"), 60, start)
            assert (judged["cause"], judged["node"]) == ("memory_guard_kill", "spark-b")
            assert judged["used_bytes"] == 119.5 * GIB
            assert judged["phase"] == "serving"
            worker_guard.memory(60)
            closed = await head.wait(is_event("incident_closed"), 60, start)
            assert (closed["outcome"], closed["relaunches"]) == ("recovered", 1)

            assert worker_guard.process is not None
            os.kill(worker_guard.process.pid, signal.SIGSTOP)
            status = await until(head.status, lambda s: s["guard_enforcing"] is False, 30)
            node = next(n for n in status["nodes"] if n["node"] == "spark-b")
            assert (node["guard"], node["floor_bytes"]) == ("not there", None)
            assert "dead or stands still" in node["guard_why"]
            assert status["phase"] == "serving", "nothing that serves is ended for it"
            start = len(head.events)
            (pid, *_) = standin.pids("spark-a", "vllm serve")
            os.kill(pid, signal.SIGKILL)
            again = await head.wait(lambda e: e.get("reason") == MONITOR_AGAIN, 60, start)
            assert again["ray_memory_threshold"] == 0.98

        live(story, prepare=prepare)
