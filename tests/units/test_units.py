"""The units: what systemd says of them, and that every directive is explained."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from sparkd.adapters.children import KILL_DEADLINE_S
from sparkd.app import EX_CONFIG
from sparkd.cli.sparkd import _parser
from sparkd.config.values import Paths
from sparkd.core.member import LEAVING_PATIENCE_S
from sparkd.core.policy import Policy

ROOT = Path(__file__).parents[2]
UNITS = sorted((ROOT / "units").glob("*.service"))
SPARKD = ROOT / "units" / "sparkd.service"
ANALYZE = shutil.which("systemd-analyze")
DIRECTIVE = re.compile(r"#?([A-Z][A-Za-z]+)=(.*)")
IDS = {"ids": lambda path: path.name}


def directives(path: Path) -> dict[str, str]:
    """Return the directives in force; of one that is repeated, the last."""
    found = [DIRECTIVE.fullmatch(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return {match[1]: match[2] for match in found if match and not match[0].startswith("#")}


@pytest.mark.skipif(ANALYZE is None, reason="systemd-analyze is not installed")
@pytest.mark.parametrize("path", UNITS, **IDS)
def test_systemd_has_nothing_to_say(path, tmp_path) -> None:
    """A wrong directive is only a line of its output, not its exit code."""
    text = path.read_text(encoding="utf-8")
    installed = re.sub(r"(?m)^(Exec\w+=)\S+", r"\g<1>/bin/true", text)  # /opt/sparkd is not on this machine
    commented = re.sub(r"(?m)^#(?=[A-Z][A-Za-z]+=)", "", installed)
    for kind, content in {"as_it_is": installed, "with_all": commented}.items():
        copy = tmp_path / kind / path.name
        copy.parent.mkdir()
        copy.write_text(content, encoding="utf-8")
        done = subprocess.run(
            [ANALYZE, "verify", "--man=no", "--generators=no", str(copy)],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        said = [line for line in (done.stdout + done.stderr).splitlines() if path.name in line]
        assert not said
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("path", UNITS, **IDS)
def test_every_directive_is_explained_by_the_comment_above_it(path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    for before, line in zip(["", *lines], lines, strict=False):
        if DIRECTIVE.fullmatch(line):
            assert before.startswith("# "), line
        else:
            assert not line or line.startswith(("# ", "[")), line


def test_the_units_run_what_is_installed() -> None:
    wanted = directives(SPARKD)
    program, *arguments = wanted["ExecStart"].split()
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["scripts"]

    assert Path(program).name in scripts
    assert _parser().parse_args(arguments).config == "/etc/sparkd/sparkd.toml"
    assert int(wanted["RestartPreventExitStatus"]) == EX_CONFIG


def test_the_directories_are_those_of_the_configuration() -> None:
    wanted, paths = directives(SPARKD), Paths()

    assert paths.state_dir == f"/var/lib/{wanted['StateDirectory']}"
    assert paths.log_dir == f"/var/log/{wanted['LogsDirectory']}"
    assert paths.run_dir == f"/run/{wanted['RuntimeDirectory']}"


def test_an_orderly_end_has_the_time_that_it_needs() -> None:
    """The head waits for the cluster, then for the fence of its own member, then for SIGKILL to work."""
    grace_s = Policy(node="", head="", nodes=()).stop_grace_s

    assert float(directives(SPARKD)["TimeoutStopSec"]) >= 2 * (
        3 * grace_s + LEAVING_PATIENCE_S + KILL_DEADLINE_S
    )


def test_it_lives_through_what_it_has_to_tell_of() -> None:
    wanted = directives(SPARKD)

    assert (wanted["OOMPolicy"], wanted["KillMode"], wanted["Restart"]) == ("continue", "mixed", "always")
