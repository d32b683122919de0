"""What `sparkctl install` puts in place, against the real programs that read it; each line explained."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from sparkd.config.values import Paths
from sparkd.engines.model import EngineSpec
from sparkd.setup import broker
from sparkd.setup.places import DAEMON_USER, ENGINE_HOME, ENGINE_USER, FIXED

ETC = Path(__file__).parents[2] / "etc"
# Written by `sparkctl init`, or for other programs' hosts: not what install puts in place.
ELSEWHERE = {"etc/sparkd.toml", "etc/mosquitto/sparkd.conf", "etc/mosquitto/sparkd.acl"}
ELSEWHERE |= {"etc/mosquitto/sparkd-service.conf"}
FOR_OTHERS = ("etc/prometheus/", "etc/grafana/")
SYSTEMD = Path("/lib/systemd")
COMMENT = ("#", "//")
# A section's head, and what belongs to the rule that polkit is given: its comments stand within.
OF_A_BLOCK = ("[", "polkit.addRule(", " ", "}")


def of(name: str) -> Path:
    """The shipped file that goes to a place which ends with *name*."""
    found = [ETC.parent / place.source for place in FIXED if place.target.endswith(name)]
    assert len(found) == 1
    return found[0]


def lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()


def said(path: Path) -> list[str]:
    """The lines that say something to the program."""
    return [line for line in lines(path) if line and not line.startswith(COMMENT)]


def run(*argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)


def needs(program: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(shutil.which(program) is None, reason=f"{program} is not installed")


def test_every_file_of_etc_has_its_place() -> None:
    shipped = {str(path.relative_to(ETC.parent)) for path in ETC.rglob("*") if path.is_file()}
    rest = {name for name in shipped if not name.startswith(FOR_OTHERS)}

    assert rest == {place.source for place in FIXED} | ELSEWHERE
    assert len({place.target for place in FIXED}) == len(FIXED)


@pytest.mark.parametrize(
    ("source", "target"),
    [
        *((place.source, place.target) for place in FIXED),
        ("etc/mosquitto/sparkd-service.conf", broker.SERVICE),
    ],
)
def test_every_line_is_explained_and_the_place_is_told(source, target) -> None:
    """A comment above each line; where the file goes stands in its head."""
    text = lines(ETC.parent / source)
    above = ""
    for line in text:
        explained = above.startswith(COMMENT) or line.startswith(("[", "}", " "))
        explained = above.startswith(COMMENT) or line.startswith(OF_A_BLOCK)
        assert not line or line.startswith(COMMENT) or explained, line
        above = line

    assert target.rpartition("/")[0] + "/" in "\n".join(text[:4])


MOSQUITTO = "[Service]\nType=notify\nExecStart=/bin/true -c /etc/mosquitto/mosquitto.conf\n"


@needs("systemd-analyze")
@pytest.mark.parametrize("more", ["", "NoSuchKey=1\n"])
def test_systemd_takes_the_drop_in_of_mosquitto(tmp_path, more) -> None:
    """Beside a unit as Debian has it; a wrong key in it would be told."""
    (tmp_path / "mosquitto.service").write_text(MOSQUITTO)
    (tmp_path / "mosquitto.service.d").mkdir()
    drop_in = (ETC / "mosquitto" / "sparkd-service.conf").read_text()
    (tmp_path / "mosquitto.service.d" / "sparkd.conf").write_text(drop_in + more)

    done = run(
        "systemd-analyze", "verify", "--man=no", "--generators=no", str(tmp_path / "mosquitto.service")
    )
    told = [line for line in (done.stdout + done.stderr).splitlines() if "sparkd.conf" in line]
    assert len(told) == (1 if more else 0), told


@needs("systemd-sysusers")
def test_sysusers_makes_the_users_and_their_groups(tmp_path) -> None:
    """The daemon reads the engine's logs and the journal; the engine is in no group of the daemon's."""
    (tmp_path / "etc").mkdir()
    done = run("systemd-sysusers", f"--root={tmp_path}", str(of("sysusers.d/sparkd.conf")))

    assert done.returncode == 0, done.stderr
    users = {row[0]: row for row in rows(tmp_path / "etc/passwd")}
    groups = {row[0]: row[3] for row in rows(tmp_path / "etc/group")}
    assert set(users) == {DAEMON_USER, ENGINE_USER}
    assert all(row[6].endswith("nologin") for row in users.values())
    assert users[ENGINE_USER][5] == ENGINE_HOME
    assert groups == {DAEMON_USER: "", ENGINE_USER: DAEMON_USER, "systemd-journal": DAEMON_USER}


def rows(path: Path) -> list[list[str]]:
    return [line.split(":") for line in lines(path)]


@needs("systemd-tmpfiles")
@needs("systemd-sysusers")
def test_tmpfiles_makes_the_folders_with_their_owners(tmp_path) -> None:
    (tmp_path / "etc").mkdir()
    run("systemd-sysusers", f"--root={tmp_path}", str(of("sysusers.d/sparkd.conf")))
    done = run("systemd-tmpfiles", f"--root={tmp_path}", "--create", str(of("tmpfiles.d/sparkd.conf")))

    assert (done.returncode, done.stderr) == (0, "")
    names = {int(row[2]): row[0] for row in rows(tmp_path / "etc/passwd")}
    found = {path: (tmp_path / path.lstrip("/")).stat() for path in folders()}
    assert {path: (oct(stat.st_mode & 0o7777), names[stat.st_uid]) for path, stat in found.items()} == {
        "/run/sparkd": ("0o755", DAEMON_USER),
        "/var/lib/sparkd-engine": ("0o750", ENGINE_USER),
        EngineSpec(model="", served_name="").ray_temp_dir: ("0o2750", ENGINE_USER),
    }


def folders() -> list[str]:
    return [line.split()[1] for line in said(of("tmpfiles.d/sparkd.conf"))]


def test_the_folders_are_those_of_the_configuration() -> None:
    assert folders() == [Paths().run_dir, ENGINE_HOME, EngineSpec(model="", served_name="").ray_temp_dir]


def is_known(section: str, key: str) -> bool:
    """Whether the program's own tables have the key: as a text of its own, with or without its section."""
    names = ("systemd-journald",) if section == "Journal" else ("systemd", "libsystemd-core-*.so")
    programs = [path.read_bytes() for name in names for path in SYSTEMD.glob(name)]
    texts = [f"\0{section}.{key}\0".encode(), f"\0{key}\0".encode()]
    return any(text in program for text in texts for program in programs)


@pytest.mark.skipif(not (SYSTEMD / "systemd-journald").exists(), reason="systemd is not installed")
@pytest.mark.parametrize(
    ("name", "section"),
    [("journald.conf.d/sparkd.conf", "Journal"), ("system.conf.d/sparkd-watchdog.conf", "Manager")],
)
def test_systemd_knows_every_key(name, section) -> None:
    head, *keys = said(of(name))

    assert head == f"[{section}]"
    assert not is_known(section, "NoSuchKeySec")
    assert [line for line in keys if not is_known(section, line.partition("=")[0])] == []


@needs("systemd-analyze")
def test_systemd_reads_every_span_of_time() -> None:
    keys = [
        line for name in ("journald.conf.d/sparkd.conf", "sparkd-watchdog.conf") for line in said(of(name))
    ]
    spans = [line.partition("=")[2] for line in keys if "Sec=" in line]

    done = run("systemd-analyze", "timespan", *spans)
    assert (len(spans), done.returncode) == (3, 0), done.stderr


@needs("perl")
@pytest.mark.parametrize(
    ("unit", "left_alone"),
    [
        ("sparkd-ray.service", True),
        ("sparkd-serve.service", True),
        ("sparkd.service", False),
        ("sparkd-guard.service", False),
        ("ssh.service", False),
    ],
)
def test_needrestart_leaves_the_engine_alone(unit, left_alone) -> None:
    """As needrestart does it: each file of conf.d is evaluated, the first pattern that fits decides."""
    script = (
        "our %nrconf; do $ARGV[0] or die $@ || $!;"
        "my @found = grep { $ARGV[1] =~ /$_/ } keys %{$nrconf{override_rc}};"
        "print @found ? $nrconf{override_rc}{$found[0]} : 'asked';"
    )
    done = run("perl", "-we", f"use strict; {script}", str(of("needrestart/conf.d/sparkd.conf")), unit)

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == ("0" if left_alone else "asked")
