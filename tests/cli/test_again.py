"""A start of the same again: executed as noted, left to the long way where anything has changed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from sparkd.adapters.launch import Launch, text_of
from sparkd.cli import again
from sparkd.engines.executed import digest_of
from sparkd.words import Settings, Stamp, UnitName

ARGV = ["/bin/true", "--rank", "0"]
ENV = [["PATH", "/bin"], ["SPARKD_STAMP", "sparks/spark-a/7/serve"]]
ORDER = Launch(UnitName.SERVE, Stamp(3, 8), Settings(max_num_seqs=9), digest_of([("serve", ARGV, ENV)]))


def written(**changed: object) -> str:
    """As the daemon writes it, and then changed as it never does."""
    return json.dumps({**json.loads(text_of(ORDER)), **changed}, sort_keys=True)


class ExecutedError(Exception):
    """In the place of what never returns."""


@pytest.fixture
def bed(tmp_path, monkeypatch):
    """A run directory in which generation 7 of serve was run and 8 is ordered."""

    def execve(program: str, argv: list[str], env: dict[str, str]) -> None:
        raise ExecutedError(program, argv, env)

    monkeypatch.setattr(os, "execve", execve)
    return Bed(tmp_path)


class Bed:
    def __init__(self, folder: Path) -> None:
        self.run_dir = folder / "run"
        (self.run_dir / "serve").mkdir(parents=True)
        self.config = folder / "sparkd.toml"
        self.config.write_text("[cluster]\n")
        self.environ = {"RUNTIME_DIRECTORY": str(self.run_dir / "serve"), "INVOCATION_ID": "abc"}
        noted = again.Noted("/bin/true", ARGV, [(n, v) for n, v in ENV], ["warned"])
        before = text_of(replace(ORDER, stamp=Stamp(2, 7)))
        again.remember(before, noted, str(self.config), None, self.environ)
        self.ran = self.run_dir / "serve" / "ran"
        self.ran.write_text("2 7 old\n")
        self.order(text_of(ORDER))

    def order(self, text: str) -> None:
        (self.run_dir / "launch-serve.json").write_text(text)

    def run(self, node: str | None = None) -> tuple[str, list[str], dict[str, str]] | None:
        """Return what was executed, None where it was left to the long way."""
        try:
            again.run("serve", str(self.config), node, self.environ)
        except ExecutedError as executed:
            return executed.args
        return None


def test_the_same_order_of_a_new_generation_is_executed_with_its_mark(bed, capsys) -> None:
    program, argv, env = bed.run()

    assert (program, argv) == ("/bin/true", ARGV)
    assert env == {"PATH": "/bin", "SPARKD_STAMP": "sparks/spark-a/8/serve"}
    assert bed.ran.read_text() == "3 8 abc\n"
    assert capsys.readouterr().err == "sparkd exec serve: warned\n"
    assert (bed.run_dir / "serve" / "rendered").stat().st_mode & 0o777 == 0o600


def test_a_stamp_that_was_run_is_not_run_again(bed) -> None:
    bed.ran.write_text("3 8 abc\n")
    assert bed.run() is None
    bed.ran.unlink()
    assert bed.run() is None


@pytest.mark.parametrize(
    "order",
    [
        text_of(replace(ORDER, settings=Settings(max_num_seqs=8))),
        text_of(replace(ORDER, digest="other")),
        text_of(replace(ORDER, unit=UnitName.RAY)),
        written(more=1),
        written(stamp=[-1, 8]),
        written(stamp=["3", "8"]),
        written(stamp=[3]),
        written(stamp=[3, 8, 9]),
        written(stamp=None),
        text_of(ORDER).replace('"stamp"', '"stump"'),
        "[]",
        "[" * 5000,
    ],
)
def test_another_order_is_left_to_the_long_way(bed, order) -> None:
    bed.order(order)
    assert bed.run() is None
    assert bed.ran.read_text() == "2 7 old\n"


def test_a_changed_file_variable_or_name_is_left_to_the_long_way(bed) -> None:
    assert bed.run(node="spark-b") is None
    bed.environ["SPARKD_ENGINE__MODEL"] = "/srv/other"
    assert bed.run() is None
    del bed.environ["SPARKD_ENGINE__MODEL"]
    bed.config.write_text("[cluster]\n\n")
    assert bed.run() is None


def test_code_that_has_changed_is_left_to_the_long_way(bed, monkeypatch) -> None:
    monkeypatch.setattr(again, "_state", lambda _: [0])
    assert bed.run() is None


@pytest.mark.parametrize(
    ("noted", "changed"),
    [
        ("\0/bin/true\0--rank\0", "\0/bin/false\0--rank\0"),
        ("\0--rank\x000\0", "\0--rank\x001\0"),
        ("\0PATH\0/bin\0", "\0PATH\0/evil\0"),
        ("\0/bin/true\x003\0", "\0/nowhere\x003\0"),
    ],
)
def test_what_is_noted_must_amount_to_what_was_ordered(bed, noted, changed) -> None:
    path = bed.run_dir / "serve" / "rendered"
    assert noted in path.read_text()
    path.write_text(path.read_text().replace(noted, changed))
    assert bed.run() is None


@pytest.mark.parametrize("text", ["", "{", "\0" * 9, "a\0" * 9, "0\0" * 9, "x" * (again.SIZE_MAX + 1)])
def test_a_damaged_note_is_left_to_the_long_way(bed, text) -> None:
    (bed.run_dir / "serve" / "rendered").write_text(text)
    assert bed.run() is None


def test_without_a_folder_of_its_own_nothing_is_noted(bed) -> None:
    bed.environ.pop("RUNTIME_DIRECTORY")
    again.remember("", again.Noted("", [], [], []), str(bed.config), None, bed.environ)
    assert bed.run() is None


HEAVY = ("collections", "re", "enum", "json", "socket", "hashlib", "dataclasses", "typing", "sparkd.words")


def test_it_loads_only_what_is_light(bed) -> None:
    """Every relaunch waits for its imports: each of these takes as long as all of it."""
    code = (
        "import os, sys\n"
        f"os.execve = lambda *_: print([name for name in {HEAVY!r} if name in sys.modules]) or sys.exit()\n"
        "from sparkd.cli.sparkd import main\n"
        f"main(['exec', 'serve', '--config', {str(bed.config)!r}])\n"
    )
    daemon = Path(again.__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-S", "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**bed.environ, "PYTHONPATH": str(daemon)},
    )
    assert done.stdout.strip() == "[]"
