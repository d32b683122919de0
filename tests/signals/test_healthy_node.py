"""A healthy node's journal tells of other units, and of sparkd's own: none of it is about the engine."""

from __future__ import annotations

import pytest

from sparkd.cli.reading import Diagnoser
from sparkd.signals.catalogue import packaged_catalogue

DIAGNOSER = Diagnoser(packaged_catalogue())
LINE = "Nov 30 04:{0:02}:{1:02} spark-a {2}: {3}"
SERVING = [
    LINE.format(0, 0, "vllm[100]", "INFO 11-30 04:00:00 [x.py:1] Resolved architecture: Qwen3ForCausalLM"),
    LINE.format(5, 0, "vllm[100]", "INFO:     Application startup complete."),
]
OTHERS = ["sparkd.service", "sparkd-guard.service", "xray.service", "web-server.service", "tray.service"]
ENGINES = ["vllm.service", "my-vllm@0.service", "sparkd-serve.service", "sparkd-ray.service", "ray.service"]


def stopped(unit: str) -> list[str]:
    return [
        LINE.format(11, 0, "systemd[1]", f"Stopping {unit} - something..."),
        LINE.format(11, 1, "systemd[1]", f"{unit}: Deactivated successfully."),
        LINE.format(11, 2, "systemd[1]", f"Stopped {unit} - something."),
    ]


def cause(*lines: str) -> str:
    return DIAGNOSER.lines([*SERVING, *lines]).diagnosis.cause


@pytest.mark.parametrize("unit", OTHERS)
def test_the_stop_of_another_unit_is_none_of_the_engine(unit: str) -> None:
    assert cause(*stopped(unit)) == "none"


@pytest.mark.parametrize("unit", ENGINES)
@pytest.mark.parametrize("line", [0, 1])
def test_the_stop_of_a_unit_of_the_engine_is(unit: str, line: int) -> None:
    assert cause(stopped(unit)[line]) == "clean_shutdown"


def test_the_stop_of_the_whole_is_a_stop_of_the_engine() -> None:
    assert (
        cause(LINE.format(11, 0, "systemd[1]", "Stopped target sparkd.target - all of it."))
        == "clean_shutdown"
    )


@pytest.mark.parametrize("name", ["postgres-server", "xray", "tray-engineer"])
def test_a_container_of_another_name_is_not_the_engine(name: str) -> None:
    row = f'1a2b   {name}   "cmd"   2 days ago   Exited (137) 8 days ago   '
    assert cause(row) != "killed_unspecified"
