"""What pip installs has the files that `sparkctl install` puts in place."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from sparkd.setup import package

ROOT = Path(__file__).parents[2]
PARTS = ("daemon", "units", "etc", "pyproject.toml", "README.md", "LICENSE")


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    """The project, built and unpacked as pip does it, without asking any index."""
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("site")
    for part in PARTS:
        if (ROOT / part).is_dir():
            skip = shutil.ignore_patterns("__pycache__", "*.egg-info")
            shutil.copytree(ROOT / part, source / part, symlinks=True, ignore=skip)
        else:
            shutil.copy(ROOT / part, source / part)
    pip = [sys.executable, "-m", "pip", "wheel", "-qq", "--disable-pip-version-check", "--no-deps"]
    pip += ["--no-build-isolation", "--wheel-dir", str(target), str(source)]
    subprocess.run(pip, check=True, timeout=100, capture_output=True)
    wheel = next(target.glob("*.whl"))
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(target)
    return target


@pytest.mark.parametrize(
    ("direct", "requirement"),
    [
        (None, "sparkd[broker]==1.2"),
        ({"url": "file:///home/ada/sparkd", "dir_info": {}}, ""),
        (
            {"url": "https://example.org/sparkd.git", "vcs_info": {"vcs": "git", "commit_id": "0a1b"}},
            "sparkd[broker] @ git+https://example.org/sparkd.git@0a1b",
        ),
        (
            {"url": "https://example.org/sparkd.whl", "archive_info": {}},
            "sparkd[broker] @ https://example.org/sparkd.whl",
        ),
    ],
)
def test_where_it_came_from_is_what_pip_wrote_down(monkeypatch, direct, requirement) -> None:
    """PEP 610: direct_url.json, where it did not come from an index by its name."""

    class Found:
        version = "1.2"

        @staticmethod
        def read_text(name):
            assert name == "direct_url.json"
            return json.dumps(direct) if direct else None

    monkeypatch.setattr(package, "distribution", lambda name: Found)

    assert package.read_package().requirement == requirement


@pytest.mark.process
def test_units_and_etc_are_in_the_wheel_as_they_are_here(installed) -> None:
    for folder in ("units", "etc"):
        here = {p.relative_to(ROOT): p.read_bytes() for p in (ROOT / folder).rglob("*") if p.is_file()}
        there = installed / "sparkd" / "setup"
        packed = {p.relative_to(there): p for p in (there / folder).rglob("*") if p.is_file()}

        assert {path: packed[path].read_bytes() for path in packed} == here
        assert not [path for path in packed.values() if path.is_symlink()]


@pytest.mark.process
def test_the_installed_package_plans_an_install(installed, tmp_path) -> None:
    """It runs from the wheel alone: this folder is not on its path."""
    script = "import sparkd, sys; from sparkd.cli.sparkctl import main; print(sparkd.__path__[0]); main()"
    packages = [path for path in sys.path if path.endswith("site-packages")]
    done = subprocess.run(
        [sys.executable, "-S", "-P", "-c", script, "install", "--root", str(tmp_path), "--dry-run"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(installed), *packages])},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert done.stdout.startswith(str(installed)), done.stderr
    assert "sparkd.toml is missing" in done.stdout
    assert "nothing was changed: refused" in done.stdout
