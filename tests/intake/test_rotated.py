"""Logs that a rotation cut into files are one log, the oldest part first; other files beside them are not."""

from __future__ import annotations

import gzip
import tarfile
from pathlib import Path

import pytest

from sparkd.cli.reading import Diagnoser, NamedLog
from sparkd.intake.files import LogFile, expand
from sparkd.intake.rotated import Part, logs_of
from sparkd.signals.catalogue import packaged_catalogue
from sparkd.signals.model import Diagnosis

DIAGNOSER = Diagnoser(packaged_catalogue())
BEGUN = "(APIServer pid=9) INFO 11-30 {0}:00:00 [utils.py:1] non-default args: {{'model': 'm'}}\n"
RESOLVED = "(APIServer pid=9) INFO 11-30 {0}:00:01 [model.py:1] Resolved architecture: Qwen3ForCausalLM\n"
WORKER = (
    "(RayWorkerProc pid=5, ip=10.0.0.2) A worker died or was killed while executing a task by an unexpected "
    "system error. Worker exit type: SYSTEM_ERROR\n"
)
DIED = (
    "(EngineCore pid=8) ERROR 11-30 {0}:05:00 [x.py:1] RayWorkerProc rank=[1] died unexpectedly, shutting "
    "down executor.\n"
)
SERVED = (
    "(APIServer pid=9) INFO 11-30 {0}:05:00 [x.py:1] Application startup complete.\n"
    "(APIServer pid=9) INFO 11-30 {0}:10:00 [l.py:1] Engine 000: Avg generation throughput: 21.0 tokens/s, "
    "Running: 1 reqs\n"
)
REFUSED = "vllm: error: unrecognized arguments: --foo\n"
FAILED = (BEGUN + RESOLVED + DIED + WORKER).format("03")
GOOD = (BEGUN + RESOLVED + SERVED).format("07")


def diagnosed(folder: Path, files: dict[str, str]) -> Diagnosis:
    logs = []
    for name, text in files.items():
        (folder / name).write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
        logs.append(NamedLog(LogFile(folder / name, name)))
    return DIAGNOSER.files(logs).diagnosis


@pytest.mark.parametrize("old", ["serve.log.1", "serve.log.2.gz", "serve.log-20261130", "serve.log.old"])
@pytest.mark.parametrize(
    ("failed", "cause"),
    [(FAILED, "worker_process_died"), (REFUSED, "bad_cli_argument")],
    ids=["run", "option"],
)
def test_a_later_part_that_serves_ends_what_an_earlier_one_failed_of(tmp_path, old, failed, cause) -> None:
    assert diagnosed(tmp_path, {old: failed}).cause == cause
    for names in ([old, "serve.log"], ["serve.log", old]):
        assert diagnosed(tmp_path, {n: GOOD if n == "serve.log" else failed for n in names}).cause == "none"
    assert diagnosed(tmp_path, {"other.log": GOOD, old: failed}).cause == cause


def test_of_several_parts_the_last_start_counts_and_a_quote_names_its_file(tmp_path) -> None:
    again = FAILED.replace("11-30 03", "11-30 09")
    found = diagnosed(
        tmp_path,
        {"serve.log": "INFO 11-30 10:00:00 [x.py:1] bye\n", "serve.log.2": GOOD, "serve.log.1": again},
    )
    assert found.cause == "worker_process_died"
    assert found.evidence[0].source == "serve.log.1"


@pytest.mark.parametrize(("old", "new"), [("12-31 23", "01-01 00"), ("02-29 23", "03-01 00")])
def test_parts_go_on_over_the_turn_of_a_year_and_a_leap_day(tmp_path, old, new) -> None:
    files = {"a.log": "INFO hello\n", "serve.log.1": FAILED.replace("11-30 03", old)}
    files |= {"b.log": "INFO hello\n", "serve.log": GOOD.replace("11-30 07", new)}
    found = diagnosed(tmp_path, files)
    assert found.cause == "none"
    assert "an earlier start in this log failed" in found.explanation


def test_parts_in_an_archive_are_one_log(tmp_path) -> None:
    for name, text in {"serve.log": GOOD, "serve.log.1": FAILED}.items():
        (tmp_path / name).write_text(text)
    archive = tmp_path / "logs.tgz"
    with tarfile.open(archive, "w:gz") as tar:
        for name in ("serve.log", "serve.log.1"):
            tar.add(tmp_path / name, f"./{name}")
    logs = [NamedLog(file) for file in expand(str(archive), lambda: tmp_path, pytest.fail)]
    assert DIAGNOSER.files(logs).diagnosis.cause == "none"


def test_parts_are_put_in_the_order_of_their_age() -> None:
    names = ["s.log", "s.log.10.gz", "s.log.2", "s.log-20261129.gz", "s.log-20261130", "r.log", "s.log.1"]
    (log,) = logs_of(Part(Path("d", name)) for name in names)
    assert [p.path.name for p in log] == [names[i] for i in (3, 4, 1, 2, 6, 0)]


@pytest.mark.parametrize(
    "parts",
    [
        [Part(Path("a/s.log")), Part(Path("b/s.log.1"))],
        [Part(Path("s.log"), "spark-a"), Part(Path("s.log.1"), "spark-b")],
        [Part(Path("s.log.0")), Part(Path("s.log.1"))],
        [Part(Path("s.log"), first_s=5.0), Part(Path("s.log.1"), first_s=6.0)],
        [Part(Path("s.log")), Part(Path("s.1.log"))],
    ],
    ids=["folders", "nodes", "ranks", "times", "other name"],
)
def test_other_files_are_logs_of_their_own(parts: list[Part]) -> None:
    assert logs_of(parts) == []
