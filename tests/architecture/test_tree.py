"""What lies at the top of the repository is what belongs there: nothing that somebody tried is kept."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
TOP = {
    *(".ci", ".gitignore", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "Makefile", "README.md"),
    *("daemon", "docs", "etc", "mutants.lock", "pyproject.toml", "requirements.lock", "tests", "units"),
}


def test_nothing_else_is_tracked_at_the_top() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    if listed.returncode:
        pytest.skip("an export without its history does not say what is tracked")
    found = {name.split("/")[0] for name in listed.stdout.split("\0") if name}

    assert found == TOP
