"""`sparkctl diagnose` and `sparkctl signatures`, as an operator types them."""

from __future__ import annotations

import gzip
import io
import json
import lzma
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from sparkd.cli import sparkctl
from sparkd.cli.diagnose_text import diagnosis_text
from sparkd.signals.assess import Assessment
from sparkd.signals.causes import CAUSES
from sparkd.signals.model import Diagnosis, Quantity

DATA = Path(__file__).parents[1] / "signals" / "data"
OOM = (
    "(EngineCore pid=31) ERROR 11-30 01:58:20 [core.py:15] torch.OutOfMemoryError: CUDA out of memory. "
    "Tried to allocate 512.00 MiB. GPU 0 has a total capacity of 119.70 GiB of which 230.00 MiB is free.\n"
)
QUIET = "(APIServer pid=7) INFO 11-30 01:58:01 [a.py:1] ordinary\nnanobind: leaked 4 instances!\n"
SITE = """
[[signature]]
id = "our_switch"
cause = "peer_lost"
proof = "proves"
fatal = true
literals = ["SWITCH PORT DOWN"]
pattern = 'SWITCH PORT DOWN (?P<port_number>\\d+)'
examples = ["SWITCH PORT DOWN 7"]
"""


@pytest.fixture
def run(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr("sparkd.cli.diagnose.FOLDER", tmp_path / "none")

    def ask(*arguments: str, stdin: bytes = b""):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        status = sparkctl.main(list(arguments))
        told = capsys.readouterr()
        return status, told.out, told.err

    return ask


def write(path: Path, data: str | bytes) -> str:
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return str(path)


def test_a_cause_is_told_as_why_and_proof(run, tmp_path) -> None:
    status, out, _ = run("diagnose", write(tmp_path / "serve.log", OOM))
    assert status == 1
    lines = out.split("\n")
    assert lines[0].startswith("cuda_oom · ")
    assert any(line.startswith("Why    ") for line in lines)
    proof = next(line for line in lines if line.startswith("Proof  "))
    assert "serve.log  11-30 01:58:20  torch.OutOfMemoryError" in proof
    assert any(line.startswith("sparkd would: ") for line in lines)


def test_nothing_wrong_is_told_with_what_was_ignored(run, tmp_path) -> None:
    status, out, _ = run("diagnose", write(tmp_path / "serve.log", QUIET))
    assert status == 0
    assert out == (
        "nothing wrong found; 1 known-harmless error line ignored (sparkctl diagnose --explain lists them)\n"
    )
    _, out, _ = run("diagnose", "--explain", str(tmp_path / "serve.log"))
    assert "1 times noise_leaks_at_exit: known to be harmless" in out


def test_what_only_a_person_can_do(run, tmp_path) -> None:
    text = "vllm: error: unrecognized arguments: --no-such-flag 3\n"
    status, out, _ = run("diagnose", write(tmp_path / "log", text))
    assert status == 1
    assert "only you can: " in out
    assert "sparkd would" not in out


def test_a_failure_that_nothing_explains_is_no_health(run, tmp_path) -> None:
    text = "Traceback (most recent call last):\n  File \"x.py\", line 1, in <module>\nKeyError: 'surprise'\n"
    status, out, _ = run("diagnose", "--json", write(tmp_path / "log", text))
    assert status == 1
    assert json.loads(out)["cause"] == "unknown"


def test_a_clean_stop_is_nothing_wrong(run) -> None:
    status, out, _ = run("diagnose", str(DATA / "vllm-sigterm-with-inflight-request.log.gz"))
    assert status == 0
    assert out.startswith("clean_shutdown")


def test_json_has_what_a_program_needs(run, tmp_path) -> None:
    _, out, _ = run("diagnose", "--json", "--explain", "--node", f"spark-b={write(tmp_path / 'log', OOM)}")
    found = json.loads(out)
    assert (found["cause"], found["node"], found["transient"]) == ("cuda_oom", "spark-b", False)
    assert found["quantities"]["requested_bytes"] == 512 << 20
    assert found["evidence"][0]["printed"] == "11-30 01:58:20"
    assert found["signals"][0]["verdict"] == "root"
    wanted = {"phase", "rank", "confidence", "explanation", "cascade", "candidates", "advice", "ignored"}
    assert wanted <= found.keys()


def test_explain_says_why_each_signal_won_or_lost(run) -> None:
    _, out, _ = run("diagnose", "--explain", str(DATA / "vllm-fail-ray-worker-actor-sigkill.log.gz"))
    assert "\nroot " in out
    assert "\ncascade " in out


@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress, lambda d: d.decode().encode("utf-16")])
def test_packed_and_recoded_files(run, tmp_path, pack) -> None:
    status, out, _ = run("diagnose", write(tmp_path / "log", pack((QUIET + OOM).encode())))
    assert (status, out[:8]) == (1, "cuda_oom")


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_utf16_without_a_mark(run, tmp_path, encoding) -> None:
    assert run("diagnose", write(tmp_path / "log", (QUIET + OOM).encode(encoding)))[0] == 1


def test_zeros_and_damage_within_a_log(run, tmp_path) -> None:
    holes = (
        b"\0" * 300_000
        + QUIET.encode()
        + b"\0\0"
        + OOM.encode().replace(b"memory", b"mem\0ory")
        + b"\xff\xfe"
    )
    assert run("diagnose", write(tmp_path / "log", holes))[1].startswith("cuda_oom")


def test_a_packed_log_that_ends_too_early_is_read_as_far_as_it_goes(run, tmp_path) -> None:
    packed = gzip.compress((OOM + QUIET * 200_000).encode())
    status, out, _ = run("diagnose", write(tmp_path / "log.gz", packed[:-100]))
    assert (status, out[:8]) == (1, "cuda_oom")
    assert "log.gz is read only in part" in out


def test_standard_input(run) -> None:
    assert run("diagnose", "-", stdin=OOM.encode())[0] == 1
    assert run("diagnose", stdin=OOM.encode())[1].startswith("cuda_oom")


def test_a_folder_is_read_with_what_is_below_it(run, tmp_path) -> None:
    below = tmp_path / "logs" / "session" / "logs"
    below.mkdir(parents=True)
    write(below / "raylet.out", QUIET)
    write(below / "serve.log", OOM)
    write(below / "model.bin", bytes(range(256)) * 99)
    write(below / "empty.log", "")
    (below / "again.log").symlink_to(below / "serve.log")
    status, out, _ = run("diagnose", str(tmp_path / "logs"))
    assert status == 1
    assert "session/logs/" in out


def test_archives(run, tmp_path) -> None:
    log = Path(write(tmp_path / "serve.log", OOM))
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz") as tar:
        tar.add(log, "../../evil/serve.log")
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as packed:
        packed.write(log, "node/serve.log")
    (tmp_path / "bundle").write_bytes((tmp_path / "a.tar.gz").read_bytes())
    (tmp_path / "other").write_bytes((tmp_path / "a.zip").read_bytes())
    for name in ("a.tar.gz", "a.zip", "bundle", "other"):
        status, out, _ = run("diagnose", str(tmp_path / name))
        assert (status, out[:8]) == (1, "cuda_oom")
        status, out, _ = run("diagnose", stdin=(tmp_path / name).read_bytes())
        assert (status, out[:8]) == (1, "cuda_oom")
    assert not (tmp_path.parent / "evil").exists()


@pytest.mark.parametrize("name", ["a.tar.gz", "a.zip"])
def test_an_archive_in_a_folder_is_no_text(run, tmp_path, name) -> None:
    inner = tmp_path / "logs"
    inner.mkdir()
    log = Path(write(inner / "serve.log", QUIET))
    with tarfile.open(inner / "a.tar.gz", "w:gz") as tar:
        tar.add(log, "serve.log")
    with zipfile.ZipFile(inner / "a.zip", "w") as packed:
        packed.write(log, "serve.log")
    status, out, _ = run("diagnose", str(inner))
    assert status == 2
    assert f"cannot read {name}: it is an archive that was not named itself" in out


def test_two_nodes_are_told_apart(run) -> None:
    head, worker = (
        str(DATA / f"vllm-fail-mp-nnodes2-remote-worker-sigkill-rank{rank}.log.gz") for rank in (0, 1)
    )
    _, out, _ = run("diagnose", "--json", "--node", f"spark-a={head}", "--node", f"spark-b={worker}")
    found = json.loads(out)
    assert (found["cause"], found["node"]) == ("worker_process_died", "spark-b")


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("log", None, "does not exist: check the path"),
        ("log", "", "is empty: there is nothing to diagnose"),
        ("log", "\0\0 \n\n", "is empty"),
        ("log", b"\x7fELF" + bytes(range(256)) * 100, "is binary: it is no log"),
        ("x.zst", b"\x28\xb5\x2f\xfd....", "zstd -dc"),
        ("x.journal", b"LPKSHHRH....", "journalctl --file"),
        ("x.gz", b"\x1f\x8b\x08\x00broken", "cannot read"),
        ("x.tar.gz", b"no archive", "cannot read"),
        ("x.zip", b"no archive", "cannot read"),
    ],
)
def test_unusable_input_says_what_to_do(run, tmp_path, name, data, said) -> None:
    path = tmp_path / name
    if data is not None:
        write(path, data)
    status, out, err = run("diagnose", str(path))
    assert (status, out) == (2, "")
    assert err.startswith("sparkctl: ")
    assert said in err
    assert str(path) in err


def test_a_folder_without_logs_and_a_wrong_node(run, tmp_path) -> None:
    assert "has no files" in run("diagnose", str(tmp_path))[2]
    assert "wanted is NAME=FILE" in run("diagnose", "--node", "spark-a")[2]
    write(tmp_path / "x.bin", bytes(range(256)) * 99)
    status, _, err = run("diagnose", str(tmp_path))
    assert status == 2
    assert "is binary" in err


def test_a_batch_answers_line_by_line_and_goes_on_after_bad_ones(run, tmp_path) -> None:
    entries = [
        json.dumps({"id": "a", "lines": OOM.split("\n")}),
        "no json",
        "",
        json.dumps({"id": "b", "lines": 7}),
        json.dumps([1]),
        json.dumps({"id": 4, "lines": []}),
        json.dumps({"id": 5, "lines": ["", "  "]}),
        json.dumps({"id": "e", "lines": QUIET}),
    ]
    status, out, _ = run("diagnose", "--batch", write(tmp_path / "b.jsonl", "\n".join(entries)))
    found = [json.loads(line) for line in out.splitlines()]
    assert status == 0
    assert [f["id"] for f in found] == ["a", None, "b", None, 4, 5, "e"]
    assert [f.get("cause") for f in found] == ["cuda_oom", *5 * [None], "none"]
    assert all('"lines"' in f["error"] for f in found[1:6])
    wanted = {
        "id",
        "cause",
        "phase",
        "node",
        "transient",
        "confidence",
        "quantities",
        "explanation",
        "evidence",
    }
    assert wanted <= found[0].keys()


def test_a_batch_from_standard_input_and_one_without_use(run, tmp_path) -> None:
    line = json.dumps({"id": 1, "lines": [OOM]}).encode()
    assert json.loads(run("diagnose", "--batch", stdin=line)[1])["cause"] == "cuda_oom"
    for useless in (b"no\nno\n", b"Some prose.\n", b'{"id": 1, "lines": []}\n'):
        status, _, err = run("diagnose", "--batch", stdin=useless)
        assert status == 2
        assert 'wanted is an object {"id"' in err
    assert run("diagnose", "--batch", stdin=b"")[0] == 2
    assert run("diagnose", "--batch", str(tmp_path / "missing"))[0] == 2


def test_a_wrong_option_shows_the_usage_of_its_own_command(capsys) -> None:
    for command in ("diagnose", "signatures", "plan"):
        with pytest.raises(SystemExit) as ended:
            sparkctl.main([command, "--foo"])
        assert ended.value.code == 2
        err = capsys.readouterr().err
        assert err.startswith(f"usage: sparkctl {command} ")
        assert "unrecognized arguments: --foo" in err


def test_quotes_cannot_move_the_cursor(run, tmp_path) -> None:
    _, out, _ = run("diagnose", write(tmp_path / "log", OOM.replace("Tried", "\x9b2J\x1b]0;x\x07Tried")))
    assert "\x9b" not in out
    assert "\x1b" not in out


def test_signatures_of_a_site(run, tmp_path) -> None:
    folder = tmp_path / "signatures.d"
    folder.mkdir()
    write(folder / "10-ours.toml", SITE)
    write(folder / "20-bad.toml", SITE.replace("peer_lost", "no_such").replace("our_switch", "bad"))
    write(folder / "30-worse.toml", "[[")
    write(folder / "40-blind.toml", SITE.replace("PORT DOWN 7", "PORT UP").replace("our_switch", "blind"))
    log = write(tmp_path / "log", "SWITCH PORT DOWN 12\n")
    status, out, err = run("diagnose", "--json", "--signatures", str(folder), log)
    found = json.loads(out)
    assert (status, found["cause"], found["quantities"]["port_number"]) == (1, "peer_lost", 12)
    assert "20-bad.toml: bad: cause 'no_such' is not known" in err
    assert "30-worse.toml: no TOML" in err
    assert "40-blind.toml: blind: no literal stands in the example" in err
    assert run("diagnose", "--signatures", str(tmp_path / "nowhere"), log)[0] == 2
    assert "our_switch" in run("signatures", "--signatures", str(folder))[1]


def test_the_folder_of_a_site_may_be_named_by_the_environment(run, tmp_path, monkeypatch) -> None:
    folder = tmp_path / "signatures.d"
    folder.mkdir()
    write(folder / "10-ours.toml", SITE)
    assert "our_switch" not in run("signatures")[1]
    monkeypatch.setenv("SPARKD_PATHS__SIGNATURES_DIR", str(folder))
    assert "our_switch" in run("signatures")[1]
    assert run("diagnose", write(tmp_path / "log", "SWITCH PORT DOWN 12\n"))[1].startswith("peer_lost")
    assert "our_switch" not in run("signatures", "--signatures", str(tmp_path))[1], "the option wins"
    monkeypatch.setenv("SPARKD_PATHS__SIGNATURES_DIR", str(tmp_path / "nowhere"))
    status, _, err = run("signatures")
    assert status == 2
    assert "environment SPARKD_PATHS__SIGNATURES_DIR: " in err
    assert "nowhere is no folder" in err


def test_the_catalogue_is_listed(run) -> None:
    status, out, _ = run("signatures")
    assert status == 0
    assert out.split("\n")[0].split() == ["signature", "cause", "proof", "example"]
    listed = json.loads(run("signatures", "--json")[1])
    assert {entry["cause"] for entry in listed} <= set(CAUSES)
    assert all(entry["id"] and entry["examples"] and entry["grep"] for entry in listed)


def test_the_patterns_are_for_grep(run, tmp_path) -> None:
    _, out, _ = run("signatures", "--patterns")
    patterns = write(tmp_path / "patterns", out)
    log = write(tmp_path / "log", f"ordinary\n{OOM}\n")
    done = subprocess.run(
        ["grep", "-cE", "-f", patterns, log],
        capture_output=True,
        env={"LC_ALL": "C", "PATH": "/usr/bin:/bin"},
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, b"1\n")
    assert all(out.splitlines()), "an empty pattern matches every line"


@pytest.mark.parametrize("cause", sorted(set(CAUSES) - {"none"}))
def test_every_cause_has_its_text(cause: str) -> None:
    diagnosis = Diagnosis(cause, None, None, None, 0.9, "why", quantities=(Quantity("total_bytes", 1e11),))
    text = diagnosis_text(Assessment(diagnosis), explain=True)
    assert text.startswith(cause)
    assert ("sparkd would: " in text) or ("only you can: " in text) or ("nothing to do" in text)
    assert "only you can: \n" not in text


def test_nothing_of_a_daemon_is_imported(tmp_path) -> None:
    """It starts in a fraction of a second because it imports little."""
    log = write(tmp_path / "log", OOM)
    code = (
        "import sys; from sparkd.cli import sparkctl; sparkctl.main(['diagnose', sys.argv[1]]);"
        "heavy = ('asyncio', 'aiohttp', 'structlog', 'pydantic', 'grpc', 'http.client', 'tarfile');"
        "print([name for name in heavy if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code, log], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_a_named_log_that_tells_its_own_address_names_it(run) -> None:
    serve, raylet = (str(DATA / f"s06_ray_oom_kill_v2.{name}.gz") for name in ("serve.log", "raylet.out"))
    _, out, _ = run("diagnose", "--json", "--node", f"spark-a={serve}", "--node", f"spark-a={raylet}")
    assert (json.loads(out)["cause"], json.loads(out)["node"]) == ("ray_oom_kill", "spark-a")
    _, out, _ = run("diagnose", "--json", serve, raylet)
    assert json.loads(out)["node"] == "192.0.2.2", "nobody named it: its address is its name"
