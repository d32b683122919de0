"""A program that cannot be started is told as that, by whoever says it; only a person can mend it."""

from __future__ import annotations

import pytest

from sparkd.cli.reading import Diagnoser
from sparkd.signals.catalogue import packaged_catalogue
from sparkd.signals.model import Diagnosis

DIAGNOSER = Diagnoser(packaged_catalogue())
MISSING = [
    "zsh: command not found: {name}",
    "sh: 1: {name}: not found",
    "/bin/sh: 1: /opt/venv/bin/{name}: not found",
    "fish: Unknown command: {name}",
    "bash: line 1: {name}: command not found",
    "sudo: {name}: command not found",
    "Command '{name}' not found, did you mean:",
    "env: '{name}': No such file or directory",
    "nohup: failed to run command '{name}': No such file or directory",
    "-bash: /opt/venv/bin/{name}: No such file or directory",
    'runc create failed: exec: "{name}": executable file not found in $PATH: unknown',
    "Error: crun: executable file `{name}` not found in $PATH: No such file or directory",
    "{name}.service: Unable to locate executable '/opt/venv/bin/{name}': No such file or directory",
]
UNFIT = [
    "exec /usr/local/bin/vllm: exec format error",
    "standard_init_linux.go:228: exec user process caused: exec format error",
    "zsh: exec format error: ./vllm",
    "-bash: ./vllm: cannot execute binary file: Exec format error",
    "bash: /opt/venv/bin/vllm: /opt/old/bin/python3: bad interpreter: No such file or directory",
    "bash: /opt/venv/bin/vllm: cannot execute: required file not found",
    "docker: Error response from daemon: manifest unknown: manifest unknown.",
    "Illegal instruction (core dumped)",
    "start.sh: line 4:  4711 Illegal instruction     vllm serve /srv/models/m",
    "*** SIGILL received at time=1764496594 on cpu 3 ***",
    "Fatal Python error: Illegal instruction",
    "vllm-1 exited with code 132",
    "traps: VLLM::EngineCor[9635] trap invalid opcode ip:7f sp:7f error:0 in libtorch_cpu.so[7f]",
]
LINE = "Nov 30 05:00:0{0} spark-a {1}: {2}"
PREFIXES = [
    "",
    "2026-11-30T04:10:00.123456789Z stderr F ",
    "vllm-1  | ",
    "Nov 30 04:10:00 spark-b serve.sh[41]: ",
]


def of_unit(why: str, number: str, unit: str = "vllm.service") -> Diagnosis:
    lines = [
        ("systemd[1]", f"Started {unit} - vLLM."),
        ("(vllm)[1234]", f"{unit}: {why}"),
        ("systemd[1]", f"{unit}: Main process exited, code=exited, status={number}"),
        ("systemd[1]", f"{unit}: Failed with result 'exit-code'."),
    ]
    return DIAGNOSER.lines([LINE.format(at, *line) for at, line in enumerate(lines)]).diagnosis


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize("name", ["vllm", "ray"])
@pytest.mark.parametrize("text", MISSING)
def test_a_program_that_is_missing(text: str, name: str, prefix: str) -> None:
    found = DIAGNOSER.lines([prefix + text.format(name=name)]).diagnosis
    assert (found.cause, found.transient) == ("missing_python_dependency", False)


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize("text", UNFIT)
def test_a_program_that_does_not_fit_this_machine(text: str, prefix: str) -> None:
    found = DIAGNOSER.lines([prefix + text]).diagnosis
    assert (found.cause, found.transient) == ("broken_install", False)


@pytest.mark.parametrize(
    ("why", "number", "cause"),
    [
        ("Failed at step EXEC spawning /opt/vllm: No such file or directory", "203/EXEC", "broken_install"),
        ("Failed at step EXEC spawning /opt/bin/vllm: Exec format error", "203/EXEC", "broken_install"),
        ("Failed at step EXEC spawning /opt/bin/vllm: Permission denied", "203/EXEC", "permission_denied"),
        ("Failed at step CHDIR spawning /opt/vllm: No such file or directory", "200/CHDIR", "broken_install"),
        ("Changing to the requested working directory failed: No such file", "200/CHDIR", "broken_install"),
        ("Failed to determine user credentials: No such process", "217/USER", "broken_install"),
    ],
)  # fmt: skip
def test_systemd_says_why_a_unit_cannot_be_started(why: str, number: str, cause: str) -> None:
    found = of_unit(why, number)
    assert (found.cause, found.node, found.confidence) == (cause, "spark-a", 0.95)
    assert why in found.evidence[0].text


def test_another_unit_that_cannot_be_started_is_not_the_engine() -> None:
    why = "Failed at step EXEC spawning /opt/bin/backup: No such file or directory"
    assert of_unit(why, "203/EXEC", "backup.service").cause not in {"broken_install", "permission_denied"}


@pytest.mark.parametrize(
    "text", ["ls: cannot access '/srv/vllm': No such file or directory", "ray: up again"]
)
def test_a_name_alone_is_no_missing_program(text: str) -> None:
    assert DIAGNOSER.lines([text]).diagnosis.cause != "missing_python_dependency"
