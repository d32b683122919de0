"""`sparkctl diagnose` with pipes, devices, damage, hostile JSON and wrong usage: told, never lost or hung."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import os
import subprocess
import sys
import tarfile
import threading
import zipfile
from pathlib import Path

import pytest

from sparkd.cli import sparkctl
from sparkd.intake import files, opening

OOM = (
    "(EngineCore pid=31) ERROR 11-30 01:58:20 [core.py:15] torch.OutOfMemoryError: CUDA out of memory. "
    "Tried to allocate 512.00 MiB. GPU 0 has a total capacity of 119.70 GiB of which 230.00 MiB is free.\n"
)
QUIET = "(APIServer pid=7) INFO 11-30 01:58:01 [a.py:1] ordinary\n"
LONG = "".join(QUIET.replace("ordinary", f"ordinary {n * 7919 % 10_007}") for n in range(3000))
DEEP = "[" * 100_000


@pytest.fixture
def run(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr("sparkd.cli.diagnose.FOLDER", tmp_path / "none")

    def ask(*arguments: str, stdin: bytes = b""):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        status = sparkctl.main(["diagnose", *arguments])
        told = capsys.readouterr()
        return status, told.out, told.err

    return ask


def write(path: Path, data: str | bytes) -> str:
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return str(path)


def shell(command: str, *, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[bytes]:
    sparkctl_words = f"{sys.executable} -m sparkd.cli.sparkctl diagnose"
    return subprocess.run(
        ["bash", "-c", command.replace("DIAGNOSE", sparkctl_words)],
        capture_output=True,
        check=False,
        timeout=30,
        env={**os.environ, **(env or {})},
    )


@pytest.mark.parametrize(
    "command",
    [
        "DIAGNOSE <(cat {0})",
        "cat {0} | DIAGNOSE /dev/stdin",
        "cat {0} | DIAGNOSE /dev/fd/0",
        "DIAGNOSE /dev/stdin < {0}",
        "DIAGNOSE --node a=<(cat {0}) --node b=<(cat {0})",
        "gzip -c {0} | DIAGNOSE",
        "DIAGNOSE <(gzip -c {0})",
    ],
)
def test_pipes_lose_nothing(tmp_path, command) -> None:
    log = write(tmp_path / "log", OOM + LONG)
    done = shell(command.format(log))
    assert (done.returncode, done.stdout[:8], done.stderr) == (1, b"cuda_oom", b"")


def test_a_fifo_is_read_as_a_stream_and_without_a_writer_refused(run, tmp_path, monkeypatch) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_text(OOM + LONG))
    writer.start()
    assert run(str(pipe))[0] == 1
    writer.join()
    monkeypatch.setattr(opening, "WRITER_WAIT_S", 0.05)
    status, out, err = run(str(pipe))
    assert (status, out) == (2, "")
    assert "nobody writes to" in err
    with os.fdopen(os.open(pipe, os.O_RDWR), "wb"):
        pass  # lets the waiting thread go


@pytest.mark.parametrize("arguments", [["/dev/zero"], ["/dev/null"], ["--batch", "/dev/zero"]])
def test_devices_are_refused(run, arguments) -> None:
    status, out, err = run(*arguments)
    assert (status, out) == (2, "")
    assert "is a device" in err


@pytest.mark.parametrize(
    ("pack", "times"),
    [
        (gzip.compress, 1),
        (gzip.compress, 5),
        (lzma.compress, 1),
        (lzma.compress, 5),
        (lambda data: bz2.compress(data, 1), 5),
    ],
)
def test_a_cut_log_gives_what_stands_before(run, tmp_path, pack, times) -> None:
    text = (OOM + LONG[:50_000] * times).encode()
    log = write(tmp_path / "log.gz", pack(text)[:-20])
    status, out, _ = run(log)
    assert (status, out[:8]) == (1, "cuda_oom")
    assert "is read only in part, its first " in out
    _, out, err = run("--json", log)
    assert "is read only in part, its first " in err
    unread = json.loads(out)["unread"]
    assert [one["source"] for one in unread] == [log]
    assert unread[0]["read_bytes"] > 40_000


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("DIAGNOSE < /dev/zero", b"standard input: it is a device"),
        ("DIAGNOSE --batch < /dev/zero", b"standard input: it is a device"),
        ("DIAGNOSE /dev/stdin < /dev/zero", b"/dev/stdin: it is a device"),
        ("DIAGNOSE < /dev/null", b"standard input: it is empty"),
    ],
)
def test_a_device_as_standard_input_is_refused(command, said) -> None:
    done = shell(command)
    assert (done.returncode, done.stdout) == (2, b"")
    assert said in done.stderr


class Endless(io.BytesIO):
    """A stream that gives the same for ever."""

    def __init__(self, piece: bytes) -> None:
        super().__init__()
        self.piece = piece

    def read1(self, _size: int = -1) -> bytes:
        return self.piece


@pytest.mark.parametrize(
    ("piece", "status", "said"),
    [
        (QUIET.encode() * 500, 2, "nothing wrong found in what could be read"),
        ((QUIET + OOM).encode() * 500, 1, "cuda_oom"),
        (b"x" * 50_000, 2, "standard input: no line of it looks like a log"),
        (bytes(50_000), 2, "nothing but zeros and blanks"),
    ],
)
def test_a_stream_without_an_end_is_read_up_to_a_bound(run, monkeypatch, piece, status, said) -> None:
    monkeypatch.setattr(files, "STREAM_BYTES_MAX", 1 << 20)
    monkeypatch.setattr(files, "HOLE_BYTES_MAX", 1 << 20)
    monkeypatch.setattr(files, "opened", lambda _name: Endless(piece))
    told = run("-")
    assert told[0] == status
    assert said in told[1] + told[2]
    if told[1]:
        assert "it has no end: give a part of it" in told[1]


def test_a_line_of_a_batch_without_an_end_is_refused(run, monkeypatch) -> None:
    monkeypatch.setattr("sparkd.cli.diagnose.BATCH_LINE_BYTES_MAX", 1 << 16)
    status, _, err = run("--batch", stdin=b"[" * (1 << 17))
    assert status == 2
    assert "a line of it has no end" in err


class Interrupted(Endless):
    """A stream that a person ends with Ctrl-C after its first piece."""

    def read1(self, _size: int = -1) -> bytes:
        if not self.piece:
            raise KeyboardInterrupt
        piece, self.piece = self.piece, b""
        return piece


def test_an_interrupt_of_a_stream_gives_the_answer_so_far(run, monkeypatch) -> None:
    monkeypatch.setattr(files, "opened", lambda _name: Interrupted((QUIET + OOM).encode()))
    status, out, _ = run("-")
    assert (status, out[:8]) == (1, "cuda_oom")
    assert "standard input is read only in part, its first 2" in out
    monkeypatch.setattr(files, "opened", lambda _name: Interrupted(b""))
    assert run("-") == (130, "", "")


@pytest.mark.parametrize("head", ["", "of memory, he asks: '"])
def test_the_rest_of_a_cut_line_proves_nothing(run, tmp_path, head) -> None:
    log = write(tmp_path / "serve.log", head + OOM.partition("] ")[2] + LONG[:50_000])
    found = json.loads(run("--json", "--explain", log)[1])
    assert (found["cause"], found["confidence"]) == ("cuda_oom", 0.6)
    assert {signal["proof"] for signal in found["signals"]} == {"suggests"}
    whole = json.loads(run("--json", write(tmp_path / "serve.log", OOM + LONG[:50_000]))[1])
    assert whole["confidence"] == 0.95


def test_what_a_cut_line_says_yields_to_what_is_proven(run, tmp_path) -> None:
    port = "(APIServer pid=7) OSError: [Errno 98] Address already in use\n"
    rest = OOM.partition("] ")[2]
    assert run(write(tmp_path / "log", rest + LONG[:5_000] + port))[1].startswith("port_in_use")
    assert run(write(tmp_path / "log", OOM + LONG[:5_000] + port))[1].startswith("cuda_oom")


SGLANG = "[2025-03-07 21:49:33 TP13] Decode out of memory happened. #retracted_reqs: 1"
KUBECTL = "    Last State:     Terminated\n      Reason:       Completed\n      Exit Code:    0\n"


def test_a_text_that_is_no_log_is_no_health(run, tmp_path) -> None:
    prose = write(tmp_path / "README.md", "# A page\n\nIt tells how to start.\n")
    quiet = write(tmp_path / "serve.log", QUIET)
    status, out, err = run(prose)
    assert (status, out) == (2, "")
    assert "README.md: no line of it looks like a log" in err
    status, out, _ = run(quiet, prose)
    assert status == 2
    assert out.startswith("nothing wrong found in what could be read\n")
    assert "README.md: no line of it looks like a log" in out
    assert run(quiet)[:2] == (0, "nothing wrong found\n")
    assert run(str(tmp_path))[:2] == (0, "nothing wrong found\n"), "of a folder only the logs count"
    (tmp_path / "serve.log").unlink()
    assert run(str(tmp_path))[0] == 2


PROSE = (
    "# How to\n\nWhen you see `CUDA out of memory. Tried to allocate 2.00 GiB` use less.\n"
    + "It is so.\n" * 60
)


def asked_both_ways(run, path: Path, text: str) -> list[tuple[str, float]]:
    """Return cause and confidence of a text as a file, and as a line of a batch."""
    found = json.loads(run("--json", write(path, text))[1])
    batch = json.loads(run("--batch", stdin=json.dumps({"id": 1, "lines": text.split("\n")}).encode())[1])
    return [(one["cause"], one["confidence"]) for one in (found, batch)]


@pytest.mark.parametrize(
    ("text", "confidence"),
    [
        (PROSE, 0.6),
        (
            "| seen | means |\n|---|---|\n" + "| `CUDA out of memory. Tried to allocate 2.00 GiB` | full |\n",
            0.6,
        ),
        ("of memory, he asks: '" + OOM.partition("] ")[2] + LONG[:50_000], 0.6),
        (OOM + "It is so.\n" * 10, 0.95),
        (OOM + LONG[:50_000], 0.95),
        (OOM.partition("] ")[2], 0.95),
        ("a layer was pulled\n" * 9_000 + OOM + LONG, 0.95),
    ],
    ids=["prose", "table", "cut", "pasted", "log", "line", "late"],
)
def test_prose_proves_nothing_and_a_batch_judges_as_a_file_does(run, tmp_path, text, confidence) -> None:
    assert asked_both_ways(run, tmp_path / "text", text) == [("cuda_oom", confidence)] * 2


def test_a_text_that_is_no_log_is_not_called_healthy(run) -> None:
    logs = [QUIET, "Application startup complete.", SGLANG, KUBECTL]
    texts = ["hello", "It is so.\n" * 100, *logs, OOM]
    batch = "".join(json.dumps({"id": 1, "lines": text}) + "\n" for text in texts).encode()
    found = [json.loads(line) for line in run("--batch", stdin=batch)[1].splitlines()]
    no_logs = [one.get("error", "").startswith("no line of it looks like a log") for one in found]
    assert no_logs == [True, True, *[False] * 5]
    assert [one.get("cause") for one in found] == [None, None, *["none"] * 4, "cuda_oom"]


def test_pages_beside_logs_are_passed_over(run, tmp_path) -> None:
    write(tmp_path / "README.md", PROSE + "It failed: an error is in view.\n")
    write(tmp_path / "serve.log", QUIET)
    assert run(str(tmp_path))[:2] == (0, "nothing wrong found\n")
    page = write(tmp_path / "CHANGELOG.md", "# Changes\n\n- a failed trial falls back\n")
    status, out, err = run(page)
    assert (status, out) == (2, "")
    assert "no line of it looks like a log" in err
    write(tmp_path / "run.md", OOM)
    assert run(str(tmp_path))[0] == 1, "a log is one whatever it is called"


def test_a_long_other_text_before_a_log_does_not_hide_it(run, tmp_path) -> None:
    assert run(write(tmp_path / "log", "a layer was pulled\n" * 9_000 + QUIET + LONG))[0] == 2
    began = "(APIServer pid=7) INFO 11-30 01:58:31 [api_utils.py:286] non-default args: {'model': 'x'}\n"
    assert run(write(tmp_path / "log", "a layer was pulled\n" * 9_000 + began + LONG))[0] == 0


def test_one_name_that_is_none_does_not_stop_the_others(run, tmp_path) -> None:
    log, missing = write(tmp_path / "serve.log", OOM), str(tmp_path / "typo.log")
    status, out, _ = run(missing, log)
    assert (status, out[:8]) == (1, "cuda_oom")
    assert "typo.log: it does not exist: check the path" in out
    write(tmp_path / "serve.log", QUIET)
    status, out, err = run("--json", missing, log)
    assert status == 2
    assert [one["source"] for one in json.loads(out)["unread"]] == [missing]
    assert "typo.log: it does not exist" in err
    status, out, err = run(missing, missing + "2")
    assert (status, out, err.count("\n")) == (2, "", 1)


def test_a_damaged_log_without_a_finding_is_no_health(run, tmp_path) -> None:
    status, out, _ = run(write(tmp_path / "log.gz", gzip.compress(LONG.encode())[:-20]))
    assert status == 2
    assert out.startswith("nothing wrong found in what could be read\n")
    assert "Unread" in out
    assert "log.gz is read only in part, its first " in out
    assert json.loads(run("--json", write(tmp_path / "log", QUIET))[1])["unread"] == []


def test_a_cut_block_of_bzip2_is_told_as_lost(run, tmp_path) -> None:
    status, out, err = run(write(tmp_path / "log.bz2", bz2.compress((OOM + LONG).encode())[:-20]))
    assert (status, out) == (2, "")
    assert "its last block (up to 900 kB of text) is lost" in err


def test_a_large_log_of_two_bytes_a_letter_is_one_text(run, tmp_path) -> None:
    quoted = "torch.OutOfMemoryError: CUDA out of\nmemory. Tried to allocate 512.00 MiB\n"
    plain = run(write(tmp_path / "log", quoted + LONG))
    assert run(write(tmp_path / "log", (quoted + LONG).encode("utf-16"))) == plain


def test_what_a_folder_hides_is_told(run, tmp_path, monkeypatch) -> None:
    logs = tmp_path / "logs"
    (logs / "closed").mkdir(parents=True)
    write(logs / "a.log", QUIET)
    write(logs / "b.log", OOM)
    write(logs / "c.zst", b"\x28\xb5\x2f\xfd....")
    scan, opened = os.scandir, files.opened

    def scandir(path):
        if str(path).endswith("closed"):
            raise PermissionError(13, "Permission denied", str(path))
        return scan(path)

    def refuse(name):
        if name.endswith("b.log"):
            raise PermissionError(13, "Permission denied", name)
        return opened(name)

    monkeypatch.setattr(os, "scandir", scandir)
    monkeypatch.setattr(files, "opened", refuse)
    status, out, err = run(str(logs))
    assert status == 2
    assert out.startswith("nothing wrong found in what could be read")
    for text in ("closed: Permission denied", "b.log: Permission denied", "c.zst: it is packed with zstd"):
        assert text in out
    assert err == "", "one list of it is enough"
    assert len(json.loads(run("--json", str(logs))[1])["unread"]) == 3


def test_a_cut_archive_gives_its_first_files(run, tmp_path) -> None:
    log = write(tmp_path / "serve.log", OOM + LONG)
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz") as tar:
        tar.add(log, "serve.log")
        tar.add(log, "more.log")
    packed = (tmp_path / "a.tar.gz").read_bytes()
    status, out, _ = run(write(tmp_path / "cut.tar.gz", packed[: len(packed) * 3 // 4]))
    assert (status, out[:8]) == (1, "cuda_oom")
    assert "more.log is read only in part" in out


def zipped(path: Path, method: int = zipfile.ZIP_STORED) -> bytearray:
    with zipfile.ZipFile(path, "w", method) as packed:
        packed.writestr("serve.log", OOM + LONG)
    return bytearray(path.read_bytes())


@pytest.mark.parametrize("what", ["encrypted", "method", "lzma"])
def test_a_zip_that_cannot_be_read_is_one_sentence(run, tmp_path, what) -> None:
    data = zipped(tmp_path / "a.zip", zipfile.ZIP_LZMA if what == "lzma" else zipfile.ZIP_STORED)
    directory = data.index(b"PK\x01\x02")
    if what == "encrypted":
        data[6] |= 1
        data[directory + 8] |= 1
    elif what == "method":
        data[8] = data[directory + 10] = 97
    else:
        data[50:400] = b"\xff" * 350
    status, out, err = run(write(tmp_path / "a.zip", bytes(data)))
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert "a.zip" in err


def test_a_batch_outlives_every_line(run, tmp_path) -> None:
    lines = [DEEP, '{"id": "\\ud800", "lines": ["\\ud800"]}', '{"id": NaN, "lines": []}']
    lines += ['{"id": [-Infinity], "lines": 3}', json.dumps({"id": 1, "lines": [OOM]})]
    lines += ['{"id": ' + "[" * 900 + "]" * 900 + ', "lines": []}']
    status, out, _ = run("--batch", write(tmp_path / "b", "\n".join(lines)))

    def constant(name: str) -> None:
        raise AssertionError(name)

    found = [json.loads(line, parse_constant=constant) for line in out.splitlines()]
    assert status == 0
    assert "error" in found[0]
    assert [one["id"] for one in found[1:5]] == ["\ud800", "NaN", "[-Infinity]", 1]
    assert found[4]["cause"] == "cuda_oom"
    assert len(found) == 6


@pytest.mark.parametrize(
    "first",
    [
        '{"a": ' + DEEP,
        "-- Journal begins at Mon --",
        '{"MESSAGE": null}',
        '{"__REALTIME_TIMESTAMP": {}, "MESSAGE": "x"}',
        '{"__REALTIME_TIMESTAMP": [], "_HOSTNAME": ["a"], "MESSAGE": ["x", [121]]}',
    ],
)
def test_json_is_recognised_line_by_line(run, tmp_path, first) -> None:
    entry = {
        "__REALTIME_TIMESTAMP": ["1764467900000000", "2"],
        "_HOSTNAME": ["spark-b", "x"],
        "SYSLOG_IDENTIFIER": "vllm",
        "MESSAGE": list(OOM.encode()),
    }
    _, out, _ = run("--json", write(tmp_path / "log", f"{first}\n{json.dumps(entry)}\n"))
    found = json.loads(out)
    assert (found["cause"], found["node"]) == ("cuda_oom", "spark-b")


def test_streams_that_are_closed_full_or_narrow(tmp_path) -> None:
    log = write(tmp_path / "log", OOM.replace("free.", "free. \u00e9\u2192 "))
    closed = shell("DIAGNOSE <&-")
    assert (closed.returncode, closed.stderr.count(b"\n")) == (2, 1)
    full = shell(f"DIAGNOSE {log} > /dev/full")
    assert (full.returncode, full.stderr) == (2, b"sparkctl: No space left on device\n")
    narrow = shell(f"DIAGNOSE {log}", env={"PYTHONIOENCODING": "ascii"})
    assert (narrow.returncode, narrow.stdout[:8]) == (1, b"cuda_oom")


def test_an_interrupt_is_quiet(run, monkeypatch) -> None:
    def interrupt(_options):
        raise KeyboardInterrupt

    monkeypatch.setattr("sparkd.cli.diagnose.run", interrupt)
    assert run("x") == (130, "", "")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([""], "an empty name"),
        (["--batch", "b", "LOG"], "--batch takes its one FILE"),
        (["--batch", "--node", "a=LOG"], "--batch takes its one FILE"),
        (["--node", "a=LOG", "--node", "b=./LOG"], "already named as a log of a"),
        (["--node", "a\x1b[2J=LOG"], "cannot be printed"),
    ],
)
def test_wrong_usage_is_refused(run, tmp_path, monkeypatch, arguments, said) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "LOG", OOM)
    status, out, err = run(*arguments)
    assert (status, out) == (2, "")
    assert said in err
    assert "\x1b" not in err


def test_the_name_of_a_file_cannot_be_a_line_of_the_report(run, tmp_path) -> None:
    odd = tmp_path / "we\nnone - 95 %\nird.log"
    for data in (OOM, gzip.compress((OOM + LONG).encode())[:-20]):
        out = run("--explain", write(odd, data))[1]
        assert "we none - 95 % ird.log" in out
        assert "none - 95 %" not in out.split("\n")
    err = run(write(odd, ""))[2]
    assert err.count("\n") == 1
    assert "we none - 95 % ird.log: it is empty" in err


def test_a_file_whose_name_is_a_dash(run, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "-", OOM)
    assert run("./-")[0] == 1
