"""`sparkctl memory`: what is drawn, and that it stops where nobody watches."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace

import pytest

from export import states
from sim.world import ENFORCING, UNSEEN
from sparkd.adapters.gpu_processes import GpuProcesses
from sparkd.cli import memory
from sparkd.cli.client import ClientError
from sparkd.cli.memory_text import Here, fall_of, memory_text, pool
from sparkd.core.messages import UnitState
from sparkd.export.status import status_view
from sparkd.words import GIB, Phase


def document(guard=ENFORCING, **said):
    state = states.serving()
    watch = state.coordinator.watch
    lead = replace(state.coordinator, watch=replace(watch, said=replace(watch.said, **said)))
    own = replace(state.member, guard=guard, baseline_bytes=int(117.2 * GIB))
    return status_view(replace(state, member=own, coordinator=lead), states.POLICY, states.NOW)


def test_a_node_says_its_pool_its_floor_and_who_holds_what() -> None:
    text = memory_text(document(weights_bytes=int(54.0 * GIB)), {})
    first, _, name, bar, use, floor, held, *_ = text.splitlines()

    assert first == "SERVING   generation 14"
    assert name == "spark-a"
    assert bar.split() == ["pool", pool(113.5 * GIB, 119.7 * GIB, 3 * GIB)]
    assert use.strip() == "113.5 of 119.7 GiB in use, 6.2 available"
    assert floor.split(maxsplit=1) == ["floor", "3.0 GiB, guard enforcing"]
    assert held.strip() == (
        "held by  before the launch 2.5 · weights 54.0 · KV cache 44.6 · the rest of the engine 12.4"
    )


def test_what_is_in_another_memory_is_not_said_to_be_held_here() -> None:
    """A GPU with memory of its own, or an engine that only pretends."""
    text = memory_text(document(weights_bytes=int(140.0 * GIB)), {})
    assert "held by  unknown: the engine tells of more than is in use here (" in text
    assert "weights 140.0 · KV cache 44.6)" in text and "the rest" not in text


@pytest.mark.parametrize("ended", ["gone", "older"])
def test_what_an_ended_generation_said_is_held_by_nobody(ended) -> None:
    state = states.head(Phase.STOPPED, watch=states.SERVING_WATCH)
    changed = {"state": UnitState.GONE} if ended == "gone" else {"generation": 13}
    units = tuple(replace(unit, **changed) for unit in state.member.units)
    member = replace(state.member, units=units, baseline_bytes=int(117.2 * GIB))
    said = status_view(replace(state, member=member), states.POLICY, states.NOW)

    assert set(said["held"].values()) == {None}
    assert said["settings"]["kv_cache_measured_bytes"] is None
    assert "KV cache" not in memory_text(said, {})
    if ended == "gone":
        assert "held by  system and other programs: no engine runs here" in memory_text(said, {})


def test_a_fall_is_told_with_the_time_to_the_floor_and_the_past_is_drawn() -> None:
    looks = [(float(at), (16.2 - at) * GIB) for at in range(11)]
    text = memory_text(document(), {"spark-a": looks})

    assert "falls by 1.00 GiB/s, there in 3 s" in text
    assert "10 s, lowest 6.2 available" in text
    assert "▆" in text or "▇" in text


@pytest.mark.parametrize(
    ("looks", "fall"),
    [
        ([], 0.0),
        ([(1.0, 5.0)], 0.0),
        ([(1.0, 5.0), (1.0, 4.0)], 0.0),
        ([(1.0, 5.0), (2.0, 7.0)], 0.0),
        ([(0.0, 900.0), (20.0, 100.0), (30.0, 50.0)], 5.0),
    ],
)
def test_how_fast_it_falls(looks, fall) -> None:
    assert fall_of(looks) == fall


@pytest.mark.parametrize(
    ("used", "floor", "drawn"),
    [(0, None, "░" * 10), (10, None, "█" * 10), (5, 2, "█████░░░|░"), (99, 20, "|█████████")],
)
def test_the_bar(used, floor, drawn) -> None:
    assert pool(used, 10, min(floor, 10) if floor else floor, width=10) == drawn


def test_what_is_not_known_is_said_to_be_unknown() -> None:
    text = memory_text(document(UNSEEN), {})
    assert "no memory guard is seen: no guard is seen" in text
    silent = document()
    silent["nodes"][1]["available_bytes"] = None
    assert "spark-b: memory unknown" in memory_text(silent, {})


def test_what_only_the_node_itself_sees_stands_with_it_alone() -> None:
    gpu = (("VLLM::Worker_TP0 (9635)", 54 * GIB), ("Xorg (2110)", None))
    here = Here((("sparkd-ray.service", GIB), ("sparkd-serve.service", 12 * GIB)), gpu)
    own, other = memory_text(document(), {}, here).split("\n\n")[1:]

    squeezed = [" ".join(line.split()) for line in own.splitlines()]
    units = "units sparkd-ray.service 1.0 · sparkd-serve.service 12.0 (control groups; the GPU's is in none)"
    assert units in squeezed
    assert "gpu VLLM::Worker_TP0 (9635) 54.0 · Xorg (2110) unknown" in squeezed
    assert "units" not in other and "gpu" not in other
    hangs = memory_text(document(), {}, Here(gpu_why="nvidia-smi hangs (pid 7)"))
    assert "nvidia-smi hangs (pid 7)" in hangs


def test_what_the_guard_says_of_the_memory_is_told_here_too() -> None:
    """The kernel's fault that loses memory: CmaFree above CmaTotal."""
    note = "CmaFree 8192 MiB is above CmaTotal 0 MiB: a fault of some kernels"
    text = memory_text(document(replace(ENFORCING, notes=(note,))), {})
    assert text.count(note) == 1


@pytest.mark.parametrize("options", [{"url": "http://10.0.0.1:8080"}, {"demo": True}])
def test_another_nodes_daemon_is_not_told_of_this_nodes_processes(options) -> None:
    given = argparse.Namespace(**{"url": None, "demo": False, **options})
    assert memory.looked_here(given, GpuProcesses(("no-such-program",))) is None


def test_a_node_without_the_drivers_program_says_so() -> None:
    given = argparse.Namespace(url=None, demo=False)
    here = memory.looked_here(given, GpuProcesses(("no-such-program",)))
    assert here is not None
    assert (here.gpu, here.gpu_why) == ((), "no-such-program: No such file or directory")


class Daemon:
    """Answers so often, and is gone then."""

    def __init__(self, answers: int) -> None:
        self.answers = answers

    def __call__(self, _client):
        if not self.answers:
            raise ClientError("no daemon answers; start it")
        self.answers -= 1
        return document()


@pytest.fixture
def ask(monkeypatch):
    def run(answers: int, *, json_: bool = False, tty: bool = False) -> int:
        monkeypatch.setattr(memory, "status_of", Daemon(answers))
        monkeypatch.setattr(memory, "EVERY_S", 0.001)
        monkeypatch.setattr("sys.stdout.isatty", lambda: tty)
        given = argparse.Namespace(url=None, demo=False, socket=None, once=False, json=json_)
        return memory.run(given)

    return run


def test_one_look_where_nobody_watches_and_json(ask, capsys) -> None:
    assert ask(1) == 0
    assert capsys.readouterr().out.count("spark-a") == 1
    assert ask(1, json_=True) == 0
    assert json.loads(capsys.readouterr().out)["nodes"][0]["guard"] == "enforcing"


def test_it_draws_until_the_daemon_is_gone_and_says_so(ask, capsys) -> None:
    assert ask(4, tty=True) == 2
    said = capsys.readouterr()
    assert said.out.count("\x1b[H") == 4
    assert "past" in said.out
    assert "start it" in said.err
