"""Every key of the guard is explained and has the code's default; a wrong one is refused by name."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkd.guard import settings as module
from sparkd.guard.settings import EX_CONFIG, KEYS, Refused, Settings, load, read_file

EXAMPLE = Path(__file__).parents[2] / "etc" / "guard.conf"
TEXT = EXAMPLE.read_text(encoding="utf-8")
SHOWN = re.sub(r"(?m)^#(?=[a-z_]+ =)", "", TEXT)
NOWHERE = ["--config", str(EXAMPLE)]


@pytest.mark.parametrize("key", KEYS)
def test_every_key_is_shown_and_explained_with_its_default(key) -> None:
    values = read_file("guard.conf", SHOWN)
    default, reader, _ = KEYS[key]
    assert values[key] == reader(default)
    before = TEXT[: re.search(rf"(?m)^#{key} =", TEXT).start()]
    paragraph = before.rpartition("\n\n")[2].splitlines()
    assert any(line.startswith("# ") for line in paragraph), f"{key} has no comment"


def test_the_example_shows_nothing_else_and_changes_nothing() -> None:
    assert set(read_file("guard.conf", SHOWN)) == set(KEYS)
    assert read_file("guard.conf", TEXT) == {}


def test_the_later_source_wins(tmp_path) -> None:
    file = tmp_path / "guard.conf"
    file.write_text("[guard]\nfloor = 3GiB\nterm_s = 1\nmode=observe\n")
    environ = {"SPARKD_GUARD_TERM_S": "2", "SPARKD_GUARD_MODE": "observe", "OTHER": "x"}
    found = load(["--config", str(file), "--mode=enforce"], environ)
    assert (found.floor, found.term_s, found.mode) == (3 << 30, 2.0, "enforce")
    assert found.floor_most == 8 << 30


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("mode", "enforcing"),
        ("mode", ""),
        ("slice", "sparkd-engine"),
        ("slice", "/"),
        ("slice", "/a/../b"),
        ("slice", "-.slice"),
        ("tree", "prod"),
        ("tree", "prod/"),
        ("floor", "2"),
        ("floor", "2 TiB"),
        ("floor", "-2GiB"),
        ("floor", "1e400GiB"),
        ("floor", "GiB"),
        ("floor", "1MiB"),
        ("kill_share", "1.5"),
        ("kill_share", "nan"),
        ("term_s", "inf"),
        ("poll_least_s", "0"),
        ("lease", "run/floors"),
        ("shm", "true"),
        ("rate_most", "0"),
        ("stall_percent", "0"),
        ("floor_", "2GiB"),
    ],
)
def test_what_cannot_be_used_is_refused_from_every_source(tmp_path, key, text) -> None:
    file = tmp_path / "guard.conf"
    file.write_text(f"\n{key} = {text}\n")
    with pytest.raises(Refused, match=rf"guard.conf:2: {key} = {re.escape(text)}: "):
        load(["--config", str(file)], {})
    with pytest.raises(Refused, match=rf"environment SPARKD_GUARD_{key.upper()}: {key} = {re.escape(text)}"):
        load(NOWHERE, {f"SPARKD_GUARD_{key.upper()}": text})
    with pytest.raises(Refused, match=rf"command line: {key} = {re.escape(text)}"):
        load([*NOWHERE, f"--{key}={text}"], {})


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"floor\n", "guard.conf:1: floor: must be key = value"),
        (b"[gaurd]\n", "must be key = value, a # comment, or"),
        (b"floor=2GiB\nfloor=3GiB\n", "guard.conf:2: floor = 3GiB: stands here twice"),
        (b"floor = \xff\n", "not UTF-8"),
        (b"floor = 9GiB\n", "floor = 9663676416: must be at most floor_most = 8589934592"),
        (b"poll_least_s = 1\npoll_most_s = 0.5\n", "poll_least_s = 1: must be at most poll_most_s = 0.5"),
    ],
)
def test_a_file_that_is_none_is_refused(tmp_path, content, says) -> None:
    file = tmp_path / "guard.conf"
    file.write_bytes(content)
    with pytest.raises(Refused, match=re.escape(says)):
        load(["--config", str(file)], {})


def test_a_named_file_must_be_there_and_the_usual_one_need_not(tmp_path, monkeypatch) -> None:
    with pytest.raises(Refused, match="no such file"):
        load(["--config", str(tmp_path / "absent")], {})
    with pytest.raises(Refused, match="must be a file"):
        load(["--config", str(tmp_path)], {})
    monkeypatch.setattr(module, "FILE", str(tmp_path / "absent"))
    assert load([], {}).mode == "enforce"


@pytest.mark.parametrize("words", [["floor"], ["--floor"], ["-f", "1"], ["--floor", "x"]])
def test_a_wrong_command_line_ends_with_78_and_says_what_is_allowed(words) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "sparkd.guard", *words],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == EX_CONFIG
    assert "sparkd-guard: refused: command line: " in done.stderr


def test_check_reads_and_ends_and_help_names_every_key() -> None:
    program = [sys.executable, "-m", "sparkd.guard"]
    done = subprocess.run(
        [*program, "--check", *NOWHERE], capture_output=True, text=True, timeout=60, check=True
    )
    assert "this can be used" in done.stdout
    told = subprocess.run([*program, "--help"], capture_output=True, text=True, timeout=60, check=True).stdout
    assert all(f"--{key}" in told for key in KEYS)


def attempt(read, *given_to_it):
    """What it returned, or the refusal's text."""
    try:
        return read(*given_to_it)
    except Refused as refused:
        return str(refused)


@given(st.sampled_from(sorted(KEYS)), st.text(max_size=30))
def test_any_text_is_a_value_or_refused(key, text) -> None:
    value = attempt(module.read_value, "here", key, text)
    refused = isinstance(value, str) and value.startswith(f"here: {key} = {text}: must be ")
    assert refused or getattr(Settings({key: value}), key) == value


@given(st.text(max_size=200))
def test_any_file_is_read_or_refused(text) -> None:
    found = attempt(read_file, "x", text)
    assert found.startswith("x:") if isinstance(found, str) else found.keys() <= KEYS.keys()
