"""The units: what systemd says of them, and that every directive is explained."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from lab.faults import inspect
from sparkd.adapters import model_unit
from sparkd.adapters.services import KILL_DEADLINE_S, SLICE, TARGET, service
from sparkd.app import EX_CONFIG
from sparkd.cli.sparkd_options import parser
from sparkd.config.checks import UNIT_STOP_S, leaving_s
from sparkd.config.values import Paths
from sparkd.core.member import LEAVING_PATIENCE_S
from sparkd.core.policy import Policy
from sparkd.loop.executor import DEADLINE_S
from sparkd.words import UnitName

ROOT = Path(__file__).parents[2]
UNITS = sorted((ROOT / "units").iterdir())
SPARKD, GUARD = ROOT / "units" / "sparkd.service", ROOT / "units" / "sparkd-guard.service"
FILES = ROOT / "units" / "sparkd-files.service"
ENGINE = {unit: ROOT / "units" / service(unit) for unit in UnitName}
ANALYZE = shutil.which("systemd-analyze")
DIRECTIVE = re.compile(r"#?([A-Z][A-Za-z]+)=(.*)")
IDS = {"ids": lambda path: path.name}


def directives(path: Path) -> dict[str, str]:
    """Return the directives in force; of one that is repeated, the last."""
    found = [DIRECTIVE.fullmatch(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return {match[1]: match[2] for match in found if match and not match[0].startswith("#")}


def analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [ANALYZE, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.skipif(ANALYZE is None, reason="systemd-analyze is not installed")
@pytest.mark.parametrize("path", UNITS, **IDS)
@pytest.mark.parametrize("commented", [False, True], ids=["as it is", "with all"])
def test_systemd_has_nothing_to_say(path, commented, tmp_path) -> None:
    """A wrong directive is only a line of its output, not its exit code."""
    for unit in UNITS:
        text = unit.read_text(encoding="utf-8")
        text = re.sub(r"(?m)^(Exec\w+=)\S+", r"\g<1>/bin/true", text)  # /opt/sparkd is not on this machine
        if commented:
            text = re.sub(r"(?m)^#(?=[A-Z][A-Za-z]+=)", "", text)
        (tmp_path / unit.name).write_text(text, encoding="utf-8")

    done = analyze("verify", "--man=no", "--generators=no", str(tmp_path / path.name))

    assert not [line for line in (done.stdout + done.stderr).splitlines() if "sparkd" in line]
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(ANALYZE is None, reason="systemd-analyze is not installed")
@pytest.mark.parametrize("path", [SPARKD, GUARD, FILES], **IDS)
def test_the_sandbox_is_tight(path) -> None:
    """0 is locked in, 10 is everything allowed."""
    done = analyze("security", "--offline=true", "--threshold=25", str(path))

    assert done.returncode == 0, done.stdout


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
    assert parser().parse_args(arguments).config == "/etc/sparkd/sparkd.toml"
    assert int(wanted["RestartPreventExitStatus"]) == EX_CONFIG
    for unit, path in ENGINE.items():
        python, *options, code = shlex.split(directives(path)["ExecStart"])[:4]
        assert (Path(python).name, options) == ("python3", ["-I", "-c"])
        assert code == "import sys; from sparkd.cli.sparkd import main; sys.exit(main())"
        options = parser().parse_args(shlex.split(directives(path)["ExecStart"])[4:])
        assert (options.command, options.unit, options.config) == ("exec", unit, "/etc/sparkd/sparkd.toml")


def test_the_lab_knows_a_unit_that_has_not_become_the_engine_yet(tmp_path) -> None:
    """By its real command line, held before Python has run a line of it."""
    held = tmp_path / "python3"
    held.write_text("#!/bin/sh\necho up\nread line\n", encoding="utf-8")
    held.chmod(0o755)
    for path in ENGINE.values():
        arguments = shlex.split(directives(path)["ExecStart"])[1:]
        for given, begins in ((arguments, True), (["-m", "vllm", "serve"], False)):
            with subprocess.Popen(
                [held, *given], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            ) as process:
                assert process.stdout.readline() == "up\n"
                found = inspect(process.pid)
                process.communicate("go\n")
            assert found.begins is begins, found.title


def test_the_look_at_files_is_the_engines_users_and_outlasts_what_the_daemon_waits() -> None:
    wanted, engine = directives(FILES), directives(ENGINE[UnitName.SERVE])
    options = parser().parse_args(wanted["ExecStart"].split()[1:])

    assert (options.command, options.config) == ("files", "/etc/sparkd/sparkd.toml")
    assert (wanted["User"], wanted["Group"]) == (engine["User"], engine["Group"])
    assert f"/run/{wanted['RuntimeDirectory']}" == f"{Paths().run_dir}/files"
    assert FILES.name == model_unit.UNIT
    assert model_unit.DEADLINE_S < DEADLINE_S < float(wanted["TimeoutStartSec"])


def test_the_directories_are_those_of_the_configuration() -> None:
    wanted, paths = directives(SPARKD), Paths()

    assert paths.state_dir == f"/var/lib/{wanted['StateDirectory']}"
    assert paths.log_dir == f"/var/log/{wanted['LogsDirectory']}"
    assert paths.run_dir == wanted["ReadWritePaths"]
    assert "RuntimeDirectory" not in wanted, "it would vanish with the daemon, and the engine outlives that"
    for unit, path in ENGINE.items():
        wanted = directives(path)
        assert f"/run/{wanted['RuntimeDirectory']}" == f"{paths.run_dir}/{unit}"
        assert wanted["RuntimeDirectoryPreserve"] == "yes"
        assert wanted["ExecStopPost"].endswith(f" {paths.run_dir}/{unit}/exit")
        assert wanted["ExecStop"].endswith(f" {paths.run_dir}/{unit}/stopped")


def test_an_orderly_end_has_the_time_that_it_needs() -> None:
    """The head waits for the cluster, then for the fence of its own member, then for SIGKILL to work."""
    grace_s = Policy(node="", head="", nodes=()).stop_grace_s
    stops = {float(directives(path)["TimeoutStopSec"]) for path in (SPARKD, *ENGINE.values())}

    assert stops == {UNIT_STOP_S}
    assert 2 * leaving_s(grace_s) <= UNIT_STOP_S
    assert leaving_s(grace_s) == 3 * grace_s + LEAVING_PATIENCE_S + KILL_DEADLINE_S


def test_at_a_shutdown_the_bus_outlives_sparkd() -> None:
    """It has to ask whether the system ends, and to end its units; at the end the order is reversed."""
    lines = SPARKD.read_text(encoding="utf-8").splitlines()
    after = {name for line in lines if line.startswith("After=") for name in line[6:].split()}

    assert {"dbus.service", "dbus-broker.service", "polkit.service", "network-online.target"} <= after


def test_the_first_launch_knows_of_the_guard() -> None:
    """Started side by side, the daemon would look before the guard is up, and leave Ray's monitor on."""
    assert "After=sparkd-guard.service" in SPARKD.read_text(encoding="utf-8").splitlines()
    assert directives(GUARD)["Type"] == "notify"
    limits = {"TimeoutStartSec", "TimeoutSec"} & directives(GUARD).keys()
    assert not limits, (
        "systemd's own ends one that hangs; a shorter one would end one that is only slow, for ever"
    )


def test_it_lives_through_what_it_has_to_tell_of() -> None:
    wanted = directives(SPARKD)

    assert (wanted["OOMPolicy"], wanted["KillMode"], wanted["Restart"]) == ("continue", "mixed", "always")
    for path in ENGINE.values():
        engine = directives(path)
        assert int(wanted["OOMScoreAdjust"]) < 0 < int(engine["OOMScoreAdjust"])
        assert (engine["OOMPolicy"], engine["KillMode"], engine["Restart"]) == (
            "continue",
            "control-group",
            "no",
        )
        assert (engine["Slice"], engine["LimitMEMLOCK"]) == (SLICE, "infinity")


def test_the_two_engine_units_differ_in_their_name_alone() -> None:
    ray, serve = (directives(path) for path in ENGINE.values())
    del ray["Description"], serve["Description"]

    assert {name: re.sub(r"\bray\b", "serve", value) for name, value in ray.items()} == serve


def test_a_node_leaves_by_its_target() -> None:
    """Stopping the target ends daemon and engine, the daemon first; stopping the daemon ends nothing else."""
    for path in (SPARKD, GUARD, *ENGINE.values()):
        assert directives(path)["PartOf"] == TARGET
    for path in ENGINE.values():
        assert directives(path)["Before"] == SPARKD.name
        assert "BindsTo" not in directives(path)
