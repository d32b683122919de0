"""Several starts in one log: the last one counts, and that an earlier one failed is told beside it."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import pytest

from sparkd.cli.diagnose_text import diagnosis_text
from sparkd.cli.reading import Diagnoser
from sparkd.signals.catalogue import packaged_catalogue
from sparkd.signals.model import Diagnosis
from sparkd.words import GIB, Phase

DIAGNOSER = Diagnoser(packaged_catalogue())
DATA = Path(__file__).parent / "data"
OOM, GOOD = "s03b_oom_kv_alloc.serve", "s01_healthy_v2.serve"
FAILED = {
    OOM: "cuda_oom",
    "vllm-fail-bad-arg-value": "bad_cli_argument",
    "vllm-fail-enginecore-sigkill": "worker_process_died",
    "vllm-fail-kv-cache-too-small": "kv_cache_too_small",
    "vllm-fail-missing-shard": "weights_missing_or_corrupt",
    "vllm-fail-port-in-use": "port_in_use",
    "vllm-fail-unsupported-arch": "model_unsupported",
}


def run(name: str, hour: int | None) -> list[str]:
    """Return the lines of a recorded run as if it had begun in that hour; None = without any times."""
    text = gzip.decompress((DATA / f"{name}.log.gz").read_bytes()).decode()
    text = re.sub(r"(?m)^\[ *\d+\.\d+\] ", "", text)
    text = re.sub(r"(?m)^# .*\n", "", text)
    if hour is None:
        return re.sub(r"(?:2026-)?11-?30[ T]\d\d:\d\d:\d\d[.,\d]*(?:\+00:00)? ?", "", text).split("\n")
    return re.sub(r"(11-?30[ T])\d\d:", rf"\g<1>{hour:02}:", text).split("\n")


def diagnosed(*names: str, timed: bool = True, before: str = "") -> Diagnosis:
    lines = [
        line for number, name in enumerate(names) for line in run(name, 3 + 4 * number if timed else None)
    ]
    return DIAGNOSER.lines([before + line for line in lines]).diagnosis


@pytest.mark.parametrize("timed", [True, False])
@pytest.mark.parametrize("failed", FAILED)
def test_a_start_that_serves_ends_what_an_earlier_one_failed_of(failed: str, timed: bool) -> None:
    assert diagnosed(failed, timed=timed).cause == FAILED[failed]
    last = diagnosed(failed, GOOD, timed=timed)
    assert (last.cause, last.phase) == ("none", Phase.SERVING)
    assert "an earlier start in this log failed: " in last.explanation


@pytest.mark.parametrize("before", ["vllm-1   | ", "Nov 30 12:00:00 spark-a vllm[100]: "])
def test_so_it_is_in_every_wrapping(before: str) -> None:
    assert diagnosed(OOM, GOOD, before=before).cause == "none"


def test_a_person_reads_that_and_of_what_it_failed() -> None:
    found = DIAGNOSER.lines([*run(OOM, 3), *run(GOOD, 7)])
    first, second, *_ = diagnosis_text(found, explain=False).split("\n")
    assert first.startswith("nothing wrong found")
    assert second.startswith("an earlier start in this log failed: the device had no memory left")
    assert "40.0 GiB of KV cache" in second, "what the failed run had, not the later one"


@pytest.mark.parametrize(("failed", "cause"), FAILED.items())
def test_what_fails_last_is_the_cause(failed: str, cause: str) -> None:
    for earlier in ((GOOD,), (OOM, GOOD)):
        last = diagnosed(*earlier, failed)
        assert last.cause == cause
        assert last.phase == diagnosed(failed).phase
        assert "earlier" not in last.explanation


def test_a_start_that_has_not_served_yet_ends_nothing() -> None:
    begun = run(GOOD, 7)[:30]
    assert DIAGNOSER.lines([*run(OOM, 3), *begun]).diagnosis.cause == "cuda_oom"


def test_a_stop_of_the_last_start_is_told_with_what_the_first_failed_of() -> None:
    last = diagnosed(OOM, "vllm-sigterm-with-inflight-request")
    assert (last.cause, last.phase) == ("clean_shutdown", Phase.SERVING)
    assert "an earlier start in this log failed: " in last.explanation


def test_the_kv_cache_of_a_later_log_is_not_that_of_the_failed_one(tmp_path: Path) -> None:
    from sparkd.cli.reading import NamedLog
    from sparkd.intake.files import LogFile

    logs = []
    for name, lines in {"first.log": run(OOM, 3), "second.log": run(GOOD, 7)}.items():
        (tmp_path / name).write_text("\n".join(lines))
        logs.append(NamedLog(LogFile(tmp_path / name, name)))
    found = DIAGNOSER.files(logs).diagnosis
    assert round((found.quantity("kv_cache_bytes") or 0.0) / GIB) == 40


def of_files(folder: Path, packed: bool = False, **runs: list[str]) -> Diagnosis:
    from sparkd.cli.reading import NamedLog
    from sparkd.intake.files import LogFile

    logs = []
    for name, lines in runs.items():
        path = folder / (f"{name}.log.gz" if packed else f"{name}.log")
        text = "\n".join(lines).encode()
        path.write_bytes(gzip.compress(text) if packed else text)
        logs.append(NamedLog(LogFile(path, path.name)))
    return DIAGNOSER.files(logs).diagnosis


DEATH = "vllm-fail-enginecore-sigkill"


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("turned", [False, True])
def test_of_logs_of_two_runs_the_last_failure_is_the_answer(tmp_path, packed, turned) -> None:
    """An earlier run's failure explains nothing of a later one, and is no cascade of it."""
    runs = {"b": run(OOM, 3), "a": run(DEATH, 7)}
    found = of_files(tmp_path, packed, **(dict(reversed(runs.items())) if turned else runs))
    assert (found.cause, found.phase) == ("worker_process_died", Phase.SERVING)
    assert "an earlier run (b.log" in found.explanation
    assert "the device had no memory left" in found.explanation
    assert all(quote.source.startswith("a.log") for quote in (*found.evidence, *found.cascade))


def test_a_later_start_that_failed_is_told_as_if_it_were_alone(tmp_path) -> None:
    alone = DIAGNOSER.lines(run(OOM, 7)).diagnosis
    found = of_files(tmp_path, first=run(DEATH, 3), second=run(OOM, 7))
    assert (found.cause, found.phase, found.quantities) == (alone.cause, alone.phase, alone.quantities)


def test_a_run_that_is_well_hides_no_failure_of_another(tmp_path) -> None:
    found = of_files(tmp_path, bad=run(OOM, 3), good=run(GOOD, 7))
    assert found.cause == "cuda_oom"
    assert "earlier" not in found.explanation


def test_the_kernel_tells_of_the_run_in_whose_time_it_spoke(tmp_path) -> None:
    kernel = (
        "Nov 30 03:41:48 spark-a kernel: Out of memory: Killed process 77 (VLLM::EngineCor) "
        "total-vm:1kB, anon-rss:100000000kB, file-rss:0kB, shmem-rss:0kB, UID:0 pgtables:1kB oom_score_adj:0"
    )
    found = of_files(tmp_path, first=run(DEATH, 3), second=run(OOM, 7), kernel=[kernel])
    assert found.cause == "cuda_oom"
    assert "an earlier run (kernel.log" in found.explanation


def test_of_a_loop_of_starts_the_last_ones_own_reason_counts() -> None:
    begins = (
        "(APIServer pid=1) INFO 11-30 0{}:00:00 [u.py:1] non-default args: {{'model': 'm', 'port': 8000}}"
    )
    resolved = "(APIServer pid=1) INFO 11-30 0{}:00:01 [m.py:1] Resolved architecture: X"
    error = "(APIServer pid=1) ERROR 11-30 0{}:00:50 [x.py:1] "
    out = error + "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB."
    unknown = error + "ValueError: Model architectures ['X'] are not supported for now."
    taken = error + "OSError: [Errno 98] Address already in use"

    def cause(*ends: str) -> str:
        lines = [line.format(n) for n, end in enumerate(ends, 1) for line in (begins, resolved, end)]
        return Diagnoser(packaged_catalogue()).lines(lines).diagnosis.cause

    assert cause(out, unknown, unknown) == "model_unsupported"
    assert cause(unknown, unknown, out) == "cuda_oom"
    assert cause(out, taken) == "cuda_oom"
