"""Other programs in the engine's log are not the engine, wherever their lines stand."""

from __future__ import annotations

import pytest

from sparkd.cli.reading import Diagnoser
from sparkd.signals import foreigners
from sparkd.signals.catalogue import packaged_catalogue

DIAGNOSER = Diagnoser(packaged_catalogue())
SERVING = [
    "INFO 11-30 04:00:00 [x.py:1] Resolved architecture: Qwen3ForCausalLM",
    "INFO:     Application startup complete.",
    "INFO 11-30 04:10:00 [loggers.py:1] Avg generation throughput: 21.0 tokens/s, Running: 1 reqs",
]
FAILURES = [
    "ModuleNotFoundError: No module named 'pandas'",
    "OSError: [Errno 98] Address already in use",
    "Fatal Python error: Segmentation fault",
    "PermissionError: [Errno 13] Permission denied: '/data/x'",
    "Killed",
    "INFO:     Shutting down",
    "error: something else went wrong",
    "Error: listen EADDRINUSE: address already in use :::3000",
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB.",
    "RuntimeError: CUDA error: an illegal memory access was encountered",
    "RuntimeError: CUDA error: device-side assert triggered",
]
UNITS = [
    "open-webui",
    "web-server",
    "code-server",
    "node-app",
    "api-gateway",
    "gray-proxy",
    "headscale",
    "python3",
]
PREFIXES = {
    "journal": "Nov 30 04:1{minute}:00 spark-a {unit}[{pid}]: ",
    "compose": "{unit}-1  | ",
}


def collected(prefix: str, unit: str, lines: list[str], minute: int = 0) -> list[str]:
    return [PREFIXES[prefix].format(unit=unit, minute=minute, pid=100 + minute) + line for line in lines]


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize("failure", FAILURES)
def test_another_program_that_fails_is_not_the_engine(prefix: str, failure: str, unit: str) -> None:
    engine = collected(prefix, "vllm", SERVING)
    other = collected(prefix, unit, [failure], 5)
    assert DIAGNOSER.lines([*engine, *other]).diagnosis.cause == "none"
    assert DIAGNOSER.lines([*other, *engine[:1]]).diagnosis.cause == "none"


@pytest.mark.parametrize(
    "unit", ["vllm", "ray-head", "systemd", "kernel", "serve.sh", "worker", "vllm_worker-2"]
)
def test_what_belongs_to_the_engine_is_heard(unit: str) -> None:
    engine = collected("journal", "vllm", SERVING)
    died = collected("journal", unit, ["Fatal Python error: Segmentation fault"], 5)
    assert DIAGNOSER.lines([*engine, *died]).diagnosis.cause == "worker_process_died"


def test_without_an_engine_any_program_is_the_subject() -> None:
    lines = collected("journal", "open-webui", ["Fatal Python error: Segmentation fault"])
    assert DIAGNOSER.lines(lines).diagnosis.cause == "worker_process_died"


def test_what_tells_of_the_node_is_heard_of_anybody() -> None:
    engine = collected("journal", "vllm", SERVING)
    other = collected(
        "journal", "comfyui", ["NVRM: Xid (PCI:000f:01:00): 79, GPU has fallen off the bus."], 5
    )
    assert DIAGNOSER.lines([*engine, *other]).diagnosis.cause == "gpu_xid"


def test_files_are_no_units() -> None:
    assert foreigners.of(["my serve.log"], ["my serve.log", "my raylet.out", "my notes"]) == ()
    assert foreigners.of(["a.log vllm"], ["a.log web", "b.log web", "a.log kernel"]) == ("a.log web",)
    assert foreigners.of([], ["b.log nginx", "b.log web"]) == ("b.log nginx",)


ENDS = [
    "{0}.service: Main process exited, code=exited, status=1/FAILURE",
    "{0}.service: Main process exited, code=killed, status=9/KILL",
    "{0}.service: Main process exited, code=dumped, status=11/SEGV",
    "{0}.service: Main process exited, code=killed, status=15/TERM",
    "{0}.service: Failed with result 'exit-code'.",
    "{0}.service: Failed with result 'core-dump'.",
    "{0}.service: Failed with result 'oom-kill'.",
    "{0}.service: Start request repeated too quickly.",
]
EXITS = [
    "{0} exited with code 1",
    "{0} exited with code 137",
    "{0} exited with code 139",
    "{0} exited with code 143",
]
OTHERS = ["backup", "redis-1", "open-webui-1", "web-server", "fwupd-refresh", "postgres"]


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("unit", OTHERS)
@pytest.mark.parametrize("end", [*ENDS, *EXITS])
def test_the_end_of_another_unit_is_not_the_engines(end: str, unit: str, last: bool) -> None:
    if end in EXITS:
        engine, told = collected("compose", "vllm", SERVING), end.format(unit)
    else:
        engine = collected("journal", "vllm", SERVING)
        told = f"Nov 30 04:15:00 spark-a systemd[1]: {end.format(unit)}"
    lines = [*engine, told] if last else [*engine, told, engine[-1].replace("04:10", "04:16")]
    assert DIAGNOSER.lines(lines).diagnosis.cause == "none"


@pytest.mark.parametrize("unit", ["vllm", "my-vllm@0", "sparkd-serve", "qwen3-coder", "llm-head", "ray"])
@pytest.mark.parametrize("end", [*ENDS[:3], ENDS[4], *EXITS[:3]])
def test_the_end_of_a_unit_that_is_called_as_an_engine_is(end: str, unit: str) -> None:
    engine = collected("journal" if end in ENDS else "compose", "vllm", SERVING)
    told = f"Nov 30 04:15:00 spark-a systemd[1]: {end.format(unit)}" if end in ENDS else end.format(unit)
    assert DIAGNOSER.lines([*engine, told]).diagnosis.cause not in {"none", "clean_shutdown"}


def test_the_end_of_the_unit_that_speaks_is_the_engines_whatever_it_is_called() -> None:
    engine = collected("compose", "backend", SERVING)
    assert (
        DIAGNOSER.lines([*engine, "backend-1 exited with code 137"]).diagnosis.cause == "killed_unspecified"
    )


@pytest.mark.parametrize("unit", ["backend", "app", "job-pool"])
@pytest.mark.parametrize("end", ENDS)
def test_a_service_that_is_called_nothing_like_an_engine_is_another_program(end: str, unit: str) -> None:
    """Where no engine speaks, too: a journal has a hundred services, and most of them fail some day."""
    told = [f"Nov 30 04:15:0{at} spark-a systemd[1]: {end.format(unit)}" for at in range(3)]
    assert DIAGNOSER.lines(told).diagnosis.cause == "none"
    named = [line.replace(unit, "vllm-chat") for line in told]
    assert DIAGNOSER.lines(named).diagnosis.cause != "none"


@pytest.mark.parametrize("end", EXITS[:3])
def test_a_container_alone_is_the_subject(end: str) -> None:
    assert DIAGNOSER.lines(["api-1  | hello", end.format("api-1")]).diagnosis.cause != "none"


CHATTER = [
    "kernel: cfg80211: failed to load regulatory.db",
    "kernel: ACPI BIOS Error (bug): Could not resolve symbol [\\_SB.PC00], AE_NOT_FOUND",
    "kernel: usb 1-1: device descriptor read/64, error -71",
    "systemd[1]: Failed to start apt-daily.service - Daily apt download activities.",
    "systemd[1]: Failed to start Daily apt download activities.",
    "sshd[5]: error: kex_exchange_identification: Connection closed by remote host",
    "snapd[8]: error: cannot refresh",
    'node_exporter[811]: level=error msg="listen tcp :9100: bind: address already in use"',
    'alertmanager[1]: level=info msg="notify" summary="vLLM: CUDA out of memory. Tried to allocate 2.50 GiB"',
]


@pytest.mark.parametrize("line", CHATTER)
def test_what_every_boot_says_is_no_failure(line: str) -> None:
    boot = "Nov 30 05:00:00 spark-a kernel: Linux version 6.11.0-1016-nvidia (buildd@host) #16"
    for said in (line, line.replace("kernel: ", "systemd-udevd[3]: ")):
        assert DIAGNOSER.lines([boot, f"Nov 30 05:00:01 spark-a {said}"]).diagnosis.cause == "none"
    ring = ["[    0.000000] Linux version 6.11.0-1016-nvidia", f"[   12.345678] {line.partition(': ')[2]}"]
    if line.startswith("kernel"):
        assert DIAGNOSER.lines(ring).diagnosis.cause == "none"


@pytest.mark.parametrize(
    "line",
    [
        "kernel: Kernel panic - not syncing: Fatal exception",
        "systemd[1]: Failed to start vllm.service - vLLM.",
        "systemd[1]: Failed to start vLLM server.",
        "myapp[3]: error: it broke",
    ],
)
def test_a_failure_of_the_node_or_of_what_may_be_the_engine_is_not_nothing(line: str) -> None:
    assert DIAGNOSER.lines([f"Nov 30 05:00:01 spark-a {line}"]).diagnosis.cause == "unknown"


@pytest.mark.parametrize("unit", ["app-1", "app-12", "webui-1", "job-1", "shop-app-1"])
def test_where_nothing_speaks_as_an_engine_the_end_of_a_container_counts(unit: str) -> None:
    for lines in ([f"{unit} exited with code 137"], [f"{unit}  | hello", f"{unit} exited with code 137"]):
        assert DIAGNOSER.lines(lines).diagnosis.cause == "killed_unspecified"
