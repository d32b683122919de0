"""What is quoted, looked for or alerted has not happened by that."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sparkd.cli.reading import Diagnoser, NamedLog
from sparkd.intake.files import LogFile
from sparkd.signals.catalogue import packaged_catalogue

DIAGNOSER = Diagnoser(packaged_catalogue())
ERRORS = [
    "CUDA out of memory. Tried to allocate 2.50 GiB",
    "NCCL error: unhandled system error",
    "EngineCore failed to start.",
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB",
    "Worker proc VllmWorker-1 died unexpectedly, shutting down executor.",
]
QUOTES = {
    "shell": '$ grep -rn "{0}" /var/log/vllm',
    "root's shell": "root@spark-a:~# journalctl -u vllm | grep '{0}'",
    "sudo": 'sudo[3]: anna : TTY=pts/0 ; PWD=/ ; USER=root ; COMMAND=/usr/bin/less +/"{0}" /var/log/vllm.log',
    "proxy": '10.0.0.1 - - [30/Nov/2026:05:00:00 +0000] "GET /search?q={0} HTTP/1.1" 200 512 "-" "curl/8"',
    "alert": '{{"alerts":[{{"status":"resolved","annotations":{{"summary":"{0}"}}}}]}}',
    "alert of grafana": '{{"receiver":"x","alerts":[],"message":"{0}"}}',
    "labels": 'level=warn msg="notify" alertname=EngineDown summary="{0}"',
}
SERVING = [
    "INFO 11-30 04:00:00 [x.py:1] Resolved architecture: Qwen3ForCausalLM",
    "INFO:     Application startup complete.",
]
JOURNAL = "Nov 30 04:{0:02}:00 spark-a {1}"


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("quote", QUOTES)
def test_a_quoted_error_is_none(quote: str, error: str) -> None:
    line = QUOTES[quote].format(error)
    assert DIAGNOSER.lines([line]).diagnosis.cause == "none"
    assert DIAGNOSER.lines([*SERVING, line]).diagnosis.cause == "none"
    journal = [JOURNAL.format(at, f"vllm[100]: {said}") for at, said in enumerate(SERVING)]
    said = line if quote == "sudo" else f"relay[9]: {line}"
    assert DIAGNOSER.lines([*journal, JOURNAL.format(9, said)]).diagnosis.cause == "none"


@pytest.mark.parametrize("error", ERRORS)
def test_a_line_that_grep_found_is_the_engines(error: str) -> None:
    line = f"ERROR 11-30 04:00:00 [core.py:1000] {error}"
    assert DIAGNOSER.lines([f"/var/log/vllm.log:120:{line}"]).diagnosis.cause != "none"
    assert DIAGNOSER.lines([json.dumps({"level": "error", "msg": error})]).diagnosis.cause != "none"


@pytest.mark.parametrize("name", ["README.md", "notes.rst", "CHANGELOG"])
@pytest.mark.parametrize("error", ERRORS)
def test_a_page_beside_logs_is_passed_over_whatever_it_quotes(name: str, error: str, tmp_path: Path) -> None:
    quoted = [f"```\nERROR 11-30 02:28:27 [core.py:1000] {error}\n```", f"- `{error}`: lower it."]
    (tmp_path / "serve.log").write_text("\n".join(SERVING))
    (tmp_path / name).write_text("\n".join(["# Notes", *quoted]))
    page = LogFile(tmp_path / name, name, named=False)
    logs = [NamedLog(LogFile(tmp_path / "serve.log", "serve.log", named=False)), NamedLog(page)]
    assert DIAGNOSER.files(logs).diagnosis.cause == "none"
    assert DIAGNOSER.files(logs[1:]).diagnosis.cause != "none"


@pytest.mark.parametrize("error", ERRORS)
def test_what_a_talk_says_of_errors_has_not_happened(error: str) -> None:
    talk = ["User: why does it end?", f"Assistant: with `{error}` it lacks something.", "User: thanks"]
    assert DIAGNOSER.lines(talk).diagnosis.cause == "none"
    pasted = [*talk, f"ERROR 11-30 04:00:00 [core.py:1000] {error}"]
    assert DIAGNOSER.lines(pasted).diagnosis.cause != "none"


def test_a_page_that_somebody_named_proves_nothing(tmp_path: Path) -> None:
    page = tmp_path / "README.md"
    page.write_text(f"# Trouble\n\nWhen it ends with\n\n```\n{ERRORS[3]}\n```\n\nlower it. Then go on.\n")
    found = DIAGNOSER.files([NamedLog(LogFile(page, "README.md"))]).diagnosis
    assert found.confidence < 0.9
    log = tmp_path / "serve.log"
    log.write_text(f"{ERRORS[3]}\n")
    assert DIAGNOSER.files([NamedLog(LogFile(log, "serve.log"))]).diagnosis.confidence > 0.9


@pytest.mark.parametrize("name", ["notes.txt", "ticket", "README"])
def test_what_is_written_as_a_page_proves_nothing_whatever_it_is_called(name: str, tmp_path: Path) -> None:
    error = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB"
    fenced = f"```\nERROR 11-30 02:28:27 [core.py:1] EngineCore failed to start.\n{error}\n```\n"
    page = f"# Notes\n\nWe saw this once:\n\n{fenced}\nWe lowered\nthe share,\nand it was well.\n"
    confidence = []
    for text in (page, fenced):
        (tmp_path / name).write_text(text)
        confidence.append(DIAGNOSER.files([NamedLog(LogFile(tmp_path / name, name))]).diagnosis.confidence)
    assert confidence == [0.6, 0.95]
