"""One story in every wrapping in which operators have it: always the same cause, phase and quantities."""

import datetime as dt
import json
import random

import pytest

from sparkd.cli.reading import Diagnoser
from sparkd.intake.sieve import Sieve
from sparkd.intake.whole import Origin, WholeLog
from sparkd.signals.catalogue import packaged_catalogue
from sparkd.signals.match import Places
from sparkd.signals.wrapping import unwrap
from sparkd.words import GIB, Phase

CATALOGUE = packaged_catalogue()
DIAGNOSER = Diagnoser(CATALOGUE)
SIEVE = Sieve(CATALOGUE)
OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 512.00 MiB. GPU 0 has a total capacity of "
    "119.70 GiB of which 230.00 MiB is free."
)


def vllm(second: int, level: str, text: str, process: str = "EngineCore pid=31") -> str:
    return f"({process}) {level} 11-30 01:58:{second:02} [core.py:15] {text}"


STORY = [
    vllm(1, "INFO", "non-default args: {'model': '/srv/m'}", "APIServer pid=7"),
    vllm(2, "INFO", "Initializing a V1 LLM engine (v0.32.0) with config: model='/srv/m'"),
    vllm(5, "INFO", "Starting to load model /srv/m..."),
    "Loading safetensors checkpoint shards: 100% Completed | 4/4 [00:02<00:00,  1.5it/s]",
    vllm(9, "INFO", "Available KV cache memory: 49.1 GiB", "Worker_TP0 pid=40"),
    vllm(20, "ERROR", "EngineCore failed to start."),
    vllm(20, "ERROR", "Traceback (most recent call last):"),
    vllm(20, "ERROR", '  File "/opt/vllm/v1/worker/gpu_model_runner.py", line 5700, in capture_model'),
    vllm(20, "ERROR", "    cuda_graph_size = self._capture_cudagraphs("),
    vllm(20, "ERROR", OOM),
    "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}",
]


def second_of(line: str, last: int) -> int:
    at = line.find("11-30 01:58:")
    return last if at < 0 else int(line[at + 12 : at + 14])


def stamped(form: str) -> list[str]:
    """Return the story with a collector's prefix, whose time is that of the line."""
    last, wrapped = 1, []
    for line in STORY:
        last = second_of(line, last)
        when = dt.datetime(2026, 11, 30, 1, 58, last, 250_000, tzinfo=dt.UTC)
        iso = when.strftime("%Y-%m-%dT%H:%M:%S")
        wrapped.append(form.format(iso=iso, syslog=when.strftime("%b %d %H:%M:%S"), offset=last, line=line))
    return wrapped


def older(line: str) -> str:
    return line.replace("[core.py:15]", "core.py:15]").replace("(EngineCore pid=31) ", "")


WRAPPINGS = {
    "plain": STORY,
    "before 0.8": [older(line) for line in STORY],
    "V1 of 0.9": [line.replace("EngineCore pid", "EngineCore_0 pid") for line in STORY],
    "worker with rank": [line.replace("EngineCore pid", "VllmWorker rank=0 pid") for line in STORY],
    "wrapper of Ray": [line.replace("EngineCore pid", "RayWorkerWrapper pid") for line in STORY],
    "torchrun": [line.replace("(EngineCore pid=31) ", "[rank0]: ") for line in STORY],
    "coloured": [line.replace("(", "\x1b[36m(", 1).replace(")", ")\x1b[0m", 1) for line in STORY],
    "colours pasted": [line.replace("(Eng", "[36m(Eng", 1).replace("31)", "31)[0m", 1) for line in STORY],
    "journal": stamped("{syslog} spark-a vllm[123]: {line}"),
    "journal precise": stamped("{syslog}.250000 spark-a vllm[123]: {line}"),
    "journal iso": stamped("{iso}+0000 spark-a vllm[123]: {line}"),
    "journal full": stamped("Mon 2026-11-30 01:58:20 UTC spark-a vllm[123]: {line}"),
    "rsyslog": stamped("{syslog} spark-a vllm[123]: #033[36m{line}#033[0m"),
    "journal json": [
        json.dumps(
            {
                "__REALTIME_TIMESTAMP": "1796003900000000",
                "_HOSTNAME": "spark-a",
                "SYSLOG_IDENTIFIER": "vllm",
                "_PID": "123",
                "MESSAGE": list(line.encode()) if "KV" in line else line,
            }
        )
        for line in STORY
    ],
    "docker json-file": [
        json.dumps({"log": line + "\n", "stream": "stderr", "time": "2026-11-30T01:58:20.1Z"})
        for line in STORY
    ],
    "docker logs -t": stamped("{iso}.250000000Z {line}"),
    "kubernetes": stamped("{iso}.250000000Z stderr F {line}"),
    "kubectl": stamped("[pod/vllm-0/vllm] {line}"),
    "compose": stamped("vllm-1  | {line}"),
    "compose -t": stamped("vllm-1  | {iso}.250Z {line}"),
    "bracketed": stamped("[{iso}Z] {line}"),
    "lab": stamped("[{offset:8.2f}] {line}"),
    "mpirun": stamped("[1,0]<stderr>:{line}"),
    "logging": stamped("2026-11-30 01:58:20,100 - INFO - vLLM: {line}"),
}


def check(found, node: str | None = None) -> None:
    diagnosis = found.diagnosis
    assert (diagnosis.cause, diagnosis.phase) == ("cuda_oom", Phase.CAPTURING_GRAPHS), diagnosis
    assert diagnosis.quantity("requested_bytes") == 512 << 20
    assert diagnosis.quantity("free_bytes") == 230 << 20
    assert diagnosis.quantity("total_bytes") == pytest.approx(119.7 * GIB)
    assert "CUDA out of memory" in diagnosis.evidence[0].text
    assert diagnosis.node in {node, None, ""}


@pytest.mark.parametrize("lines", WRAPPINGS.values(), ids=WRAPPINGS.keys())
def test_the_cause_is_found_in_every_wrapping(lines: list[str]) -> None:
    check(DIAGNOSER.lines(lines), "spark-a")


@pytest.mark.parametrize(
    "name", ["journal", "journal precise", "journal iso", "journal full", "journal json"]
)
def test_a_journal_names_the_node(name: str) -> None:
    assert DIAGNOSER.lines(WRAPPINGS[name]).diagnosis.node == "spark-a"


@pytest.mark.parametrize("end", ["\r\n", "\r", "\n\n", "^M\n", "\0\n", "\x1b[0m\n"])
def test_line_ends(end: str) -> None:
    check(DIAGNOSER.lines((end.join(STORY) + end).split("\n")))


def test_progress_bars_with_carriage_returns_and_megabytes_in_a_line() -> None:
    bar = "\rCapturing CUDA graphs: 10%|█         | 1/10 [00:01<00:09]" * 2000
    check(DIAGNOSER.lines([*STORY[:5], bar, "x" * 3_000_000, *STORY[5:]]))


def test_invalid_utf8_between() -> None:
    log = WholeLog(Origin("log"), SIEVE)
    data = b"\xff\xfe\xff broken \x80\n" + "\n".join(STORY).encode()
    assert any("CUDA out of memory" in record.text for record in log.records([data]))


@pytest.mark.parametrize("seed", range(5))
def test_other_writers_between_the_lines(seed: int) -> None:
    """Collectors interleave: the lines of each writer keep their order, nothing else does."""
    chance = random.Random(seed)
    lines = list(STORY)
    others = [vllm(n % 60, "ERROR", f"line {n}", f"Worker_TP{n % 4} pid={n % 4}") for n in range(30)]
    others += [f'INFO:     10.0.0.1:4{n:03} - "GET /health HTTP/1.1" 200 OK' for n in range(30)]
    at = 0
    for other in others:
        at = min(len(lines), at + chance.randrange(3))
        lines.insert(at, other)
    check(DIAGNOSER.lines(lines))


def test_the_time_of_a_record() -> None:
    log = WholeLog(Origin("log"), SIEVE)
    records = list(log.records(["\n".join(WRAPPINGS["docker logs -t"]).encode()]))
    failed = next(r for r in records if "out of memory" in r.text)
    started = next(r for r in records if "Initializing" in r.text)
    assert failed.at_s - started.at_s == pytest.approx(18.0)
    assert failed.printed == "11-30 01:58:20"


def test_containers_in_utc_and_an_engine_in_local_time_are_one_scale() -> None:
    utc = [f"2026-11-29T23:58:{n:02}.5Z {vllm(n, 'ERROR', 'x')}" for n in range(9)]
    local = [vllm(n, "ERROR", "x") for n in range(9)]
    times = [
        [record.at_s for record in WholeLog(Origin("log"), SIEVE).records(["\n".join(lines).encode()])]
        for lines in (utc, local)
    ]
    assert times[0] == pytest.approx([at + 0.5 for at in times[1]])


def test_seconds_since_a_start_are_brought_to_times_of_day() -> None:
    lab, plain = (
        next(
            r for r in WholeLog(Origin("log"), SIEVE).records(["\n".join(lines).encode()]) if "GiB" in r.text
        )
        for lines in (WRAPPINGS["lab"], STORY)
    )
    assert lab.at_s == pytest.approx(plain.at_s, abs=1.0)


def test_the_turn_of_the_year() -> None:
    lines = [
        "INFO 12-31 23:59:59 [a.py:1] Using max model len 8",
        "ERROR 01-01 00:00:01 [a.py:1] " + OOM,
    ]
    first, last = WholeLog(Origin("log"), SIEVE).records(["\n".join(lines).encode()])
    assert last.at_s - first.at_s == pytest.approx(2.0)


@pytest.mark.parametrize(
    "line",
    [
        "[2026-11-30 01:58:34,821 W 88 88] (raylet) store.cc:366: gone",
        "2026-11-30 01:47:20,103\tINFO worker.py:1691 -- Using",
        "10%|███   | 3/30 [00:49<07:23, 16.44s/it]",
        "    raise ValueError | x",
        "Traceback (most recent call last):",
        "[rank0]:[W1130 01:43:40.244165208 utils.cpp:68] Warning",
        "spark-a:100:200 [0] NCCL WARN Cuda failure 2 'out of memory'",
        "RuntimeError: a | b",
    ],
)
def test_what_programs_print_themselves_stays(line: str) -> None:
    assert unwrap(line).body == line


def test_addresses_are_nodes_where_nobody_names_them() -> None:
    places = Places(open=True)
    assert places.at("10.0.0.2") == "10.0.0.2"
    assert Places(addresses={"10.0.0.1": "a"}, open=True).at("10.0.0.1") == "a"
    line = f"(RayWorkerProc pid=7, ip=10.77.0.2) (Worker_TP1 pid=7) ERROR 11-30 01:58:34 [m.py:1] {OOM}"
    assert DIAGNOSER.lines([line]).diagnosis.node == "10.77.0.2"
