"""`sparkctl install`, `uninstall`, `init`, `join` as an operator types them, on folders as small systems."""

from __future__ import annotations

import asyncio
import fcntl
import io
import os
import shlex
import shutil
import stat
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import aiomqtt
import pytest

from cli.setup_bed import small_system, tree
from ports import free_port
from sparkd.cli import setting_up, sparkctl
from sparkd.config.load import load
from sparkd.setup import apply as applying
from sparkd.setup import survey
from sparkd.setup.steps import Run, Write
from wire.brokers import LOOPBACK, MOSQUITTO, Mosquitto

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("systemd-sysusers") is None, reason="needs root and systemd's programs"
)
INIT = ["--worker", "spark-b=192.168.200.13", "--address", "192.168.200.12", "--interface", "enp1s0f0np0"]
INIT += ["--model", "/srv/models/Qwen3"]
DEADLINE_S = 20.0


class System:
    """One folder, and sparkctl for it."""

    def __init__(self, folder: Path, name: str, capsys, monkeypatch) -> None:
        self.root = small_system(folder, name)
        self._capsys, self._monkeypatch = capsys, monkeypatch

    def ctl(self, command: str, *arguments: str, stdin: str = "") -> tuple[int, str, str]:
        self._monkeypatch.setattr("sys.stdin", io.StringIO(stdin))
        status = sparkctl.main([command, "--root", str(self.root), *arguments])
        said = self._capsys.readouterr()
        return status, said.out, said.err

    def mode(self, path: str) -> str:
        return oct(stat.S_IMODE((self.root / path).stat().st_mode))

    def group(self, path: str) -> str:
        rows = [line.split(":") for line in (self.root / "etc/group").read_text().splitlines()]
        return next(row[0] for row in rows if int(row[2]) == (self.root / path).stat().st_gid)

    def loaded(self, node: str):
        return load(str(self.root / "etc/sparkd/sparkd.toml"), node, {}, str(self.root / "etc/sparkd"))


@pytest.fixture
def head(tmp_path, capsys, monkeypatch) -> System:
    return System(tmp_path, "spark-a", capsys, monkeypatch)


@pytest.fixture
def worker(tmp_path, capsys, monkeypatch) -> System:
    return System(tmp_path, "spark-b", capsys, monkeypatch)


def token_of(said: str) -> str:
    """The token in what init printed."""
    return next(word for word in said.split() if word.startswith("sparkd1."))


def test_from_nothing_to_an_installed_pair(head, worker) -> None:
    status, said, _ = head.ctl("init", *INIT)
    assert status == 0
    assert head.ctl("install")[0] == 0
    assert worker.ctl("join", "-", stdin=f"{token_of(said)}\n")[0] == 0

    pair = [head.loaded("spark-a"), worker.loaded("spark-b")]
    assert pair[0].key == pair[1].key
    assert len(pair[0].key) == 64
    assert pair[0].policy.shared_digest == pair[1].policy.shared_digest
    for system in (head, worker):
        assert system.mode("etc/sparkd/cluster_key") == "0o600"
        assert system.mode("etc/sparkd/sparkd.toml") == "0o640"
        assert system.group("etc/sparkd/sparkd.toml") == "sparkd-engine"
        assert (system.root / "etc/systemd/system/multi-user.target.wants/sparkd.service").is_symlink()
        assert "sparkd-engine:x:" in (system.root / "etc/passwd").read_text()
        assert (system.root / "run/sparkd").is_dir()


def test_the_line_for_the_worker_is_one_line_and_says_what_it_carries(head) -> None:
    _, said, _ = head.ctl("init", *INIT)
    lines = [line for line in said.splitlines() if "sparkd1." in line]

    assert len(lines) == 1
    assert lines[0].startswith(" sudo ")  # the blank keeps it out of the history
    assert lines[0].endswith("| sudo /opt/sparkd/bin/sparkctl join -")
    assert "printf %s sparkd1." in lines[0]
    assert "cluster key" in said
    assert "not encrypted" in said
    assert subprocess.run(["bash", "-nc", lines[0]], check=False).returncode == 0
    assert (head.root / "etc/sparkd/cluster_key").read_text().strip() not in said


@pytest.mark.parametrize(
    ("requirement", "said"),
    [
        ("sparkd[broker]==1.0", "/opt/sparkd/bin/pip install -q "),
        ("sparkd[broker] @ git+https://example.org/sparkd@0a1b", "sparkd[broker] @ git+https://example.org/"),
        ("", "rsync -a ada@192.168.200.12:/opt/sparkd/ /opt/sparkd/"),
    ],
)
def test_the_worker_gets_the_same_package(head, monkeypatch, requirement, said) -> None:
    """From where the head's came, or from the head itself."""
    monkeypatch.setenv("SUDO_USER", "ada")
    whole = setting_up.read_package()
    monkeypatch.setattr(setting_up, "read_package", lambda: replace(whole, requirement=requirement))
    line = next(line for line in head.ctl("init", *INIT)[1].splitlines() if "sparkd1." in line)

    first = shlex.split(line.partition(" && printf")[0])
    assert first[:3] == ["sudo", "sh", "-c"]
    assert said in first[3]
    assert "python3-systemd" in first[3]
    assert subprocess.run(["bash", "-nc", first[3]], check=False).returncode == 0


def test_a_second_time_changes_nothing(head, worker) -> None:
    _, said, _ = head.ctl("init", *INIT)
    head.ctl("install")
    worker.ctl("join", "-", stdin=token_of(said))
    before = tree(head.root), tree(worker.root)

    status, again, _ = head.ctl("init")
    assert status == 0
    assert token_of(again) == token_of(said)
    assert "nothing was left to do" in head.ctl("install")[1]
    assert "nothing was left to do" in worker.ctl("join", "-", stdin=token_of(said))[1]
    assert (tree(head.root), tree(worker.root)) == before


def test_a_dry_run_says_everything_and_changes_nothing(head, worker) -> None:
    empty = tree(head.root)
    status, said, _ = head.ctl("init", *INIT, "--dry-run")
    assert (status, tree(head.root)) == (0, empty)
    assert "/etc/sparkd/sparkd.toml" in said
    assert "sparkd1." not in said

    _, said, _ = head.ctl("init", *INIT)
    before = tree(head.root)
    status, planned, _ = head.ctl("install", "--dry-run")
    assert (status, tree(head.root)) == (0, before)
    _, done, _ = head.ctl("install")
    assert [line for line in planned.splitlines() if line.startswith("  ")] == [
        line for line in done.splitlines() if line.startswith("  ")
    ]

    bare = tree(worker.root)
    assert worker.ctl("join", "-", "--dry-run", stdin=token_of(said))[0] == 0
    assert tree(worker.root) == bare


def old_systemd(root: Path) -> None:
    (root / "usr/lib/systemd").mkdir(parents=True)
    (root / "usr/lib/systemd/libsystemd-shared-249.so").touch()


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda root: (root / "etc/sparkd/cluster_key").unlink(), "cluster.key: is missing"),
        (lambda root: (root / "etc/sparkd/sparkd.toml").unlink(), "sparkd.toml is missing: on the head"),
        (
            lambda root: (root / "etc/sparkd/sparkd.toml").write_text("[engine]\nmodle = 1\n"),
            "modle: unknown",
        ),
        (lambda root: (root / "etc/sparkd/cluster_key").write_text("short\n"), "at least 16 are needed"),
        (lambda root: (root / "etc/hostname").write_text("dgx-17\n"), "none of the configured nodes"),
        (old_systemd, "systemd is 249; the units need 252"),
    ],
)
def test_a_refused_install_changes_nothing(head, spoil, said) -> None:
    head.ctl("init", *INIT)
    spoil(head.root)
    before = tree(head.root)

    status, out, _ = head.ctl("install")

    assert status == 1
    assert said in out
    assert "nothing was changed: refused" in out
    assert tree(head.root) == before


def test_a_host_with_another_name_says_which_node_it_is_once(head) -> None:
    head.ctl("init", *INIT)
    (head.root / "etc/hostname").write_text("dgx-17\n")

    assert head.ctl("install", "--node", "spark-a")[0] == 0
    drop_in = head.root / "etc/systemd/system/sparkd.service.d/10-node.conf"
    assert "Environment=SPARKD_NODE=spark-a" in drop_in.read_text()
    assert "nothing was left to do" in head.ctl("install")[1]


def test_uninstall_leaves_configuration_and_state_and_purge_does_not(head) -> None:
    head.ctl("init", *INIT)
    head.ctl("install")
    (head.root / "var/lib/sparkd").mkdir(parents=True)
    (head.root / "var/lib/sparkd/history.db").touch()

    assert head.ctl("uninstall")[0] == 0
    left = tree(head.root)
    assert {"etc/sparkd/sparkd.toml", "etc/sparkd/cluster_key", "var/lib/sparkd/history.db"} < set(left)
    assert not [name for name in left if "sparkd" in name and "systemd" in name]
    assert "usr/local/bin/sparkctl" not in left
    assert "nothing was left to do" in head.ctl("uninstall")[1]

    (head.root / "etc/needrestart/conf.d/sparkd.conf.new").write_text("offered by an upgrade")
    assert head.ctl("uninstall", "--purge")[0] == 0
    assert not [name for name in tree(head.root) if "sparkd" in name]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--model", "/m"], "who is the worker?"),
        (["--worker", "spark-b", "--model", "relative/path", *INIT[2:6]], "engine.model = 'relative/path'"),
        (["--worker", "spark-b=192.168.200.12", "--model", "/m", *INIT[2:6]], "is used more than once"),
    ],
)
def test_an_init_that_would_not_load_is_refused(head, arguments, said) -> None:
    before = tree(head.root)

    status, out, err = head.ctl("init", *arguments)

    assert status == 1
    assert said in out + err
    assert tree(head.root) == before


def test_a_join_that_is_refused_changes_nothing(head, worker) -> None:
    _, said, _ = head.ctl("init", *INIT)
    (worker.root / "etc/sparkd").mkdir()
    (worker.root / "etc/sparkd/sparkd.toml").write_text("# mine\n")
    before = tree(worker.root)

    status, out, _ = worker.ctl("join", "-", stdin=token_of(said))
    assert (status, tree(worker.root)) == (1, before)
    assert "--force replaces it" in out

    status, _, err = worker.ctl("join", "-", stdin=token_of(said)[:-20])
    assert (status, tree(worker.root)) == (1, before)
    assert "copy the line from `sparkctl init` again" in err

    assert worker.ctl("join", "-", "--force", stdin=token_of(said))[0] == 0
    assert (worker.root / "etc/sparkd/sparkd.toml.old").read_text() == "# mine\n"


def test_a_token_from_a_file(head, worker, tmp_path) -> None:
    _, said, _ = head.ctl("init", *INIT)
    (tmp_path / "token").write_text(f"{token_of(said)}\n")

    assert worker.ctl("join", f"@{tmp_path / 'token'}")[0] == 0
    status, _, err = worker.ctl("join", f"@{tmp_path / 'none'}")
    assert (status, "No such file" in err) == (1, True)


@pytest.mark.process
def test_a_token_given_as_an_argument_leaves_the_list_of_processes(head, worker) -> None:
    """The program stands still at its first word of output, as long as the pipe for it is full."""
    word = token_of(head.ctl("init", *INIT)[1])
    reading, writing = os.pipe()
    size = fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
    os.write(writing, b"x" * size)
    program = "import sys; from sparkd.cli.sparkctl import main; sys.exit(main())"
    arguments = ["join", word, "--root", str(worker.root)]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    process = subprocess.Popen([sys.executable, "-c", program, *arguments], stdout=writing, env=environ)
    os.close(writing)
    try:
        shown = until(
            lambda: Path(f"/proc/{process.pid}/cmdline").read_bytes(), lambda said: b"\0-P\0" in said
        )
        assert word.encode() not in shown
        with os.fdopen(reading, "rb") as out:
            said = out.read().decode()[size:]
        assert process.wait(DEADLINE_S) == 0
    finally:
        process.kill()
        process.wait()
    assert "join the cluster sparks as spark-b" in said
    assert (worker.root / "etc/sparkd/cluster_key").exists()


def until(look, fits):
    """Return what is seen, once it fits."""
    end = time.monotonic() + DEADLINE_S
    while not fits(seen := look()):
        assert time.monotonic() < end, seen
        time.sleep(0.01)
    return seen


def test_a_step_that_fails_is_told_and_the_work_is_resumed(head, monkeypatch) -> None:
    head.ctl("init", *INIT)
    monkeypatch.setenv("PATH", "/nowhere")
    status, out, err = head.ctl("install")
    assert status == 2
    assert "systemd-sysusers" in err
    assert "is not installed; mend it and say it again" in err
    assert "installed.json" not in out

    monkeypatch.undo()
    status, out, _ = head.ctl("install")
    assert status == 0
    assert "makes the users" in out
    assert "nothing was left to do" in head.ctl("install")[1]


def test_a_file_is_whole_or_not_there_and_a_secret_is_never_open(tmp_path, monkeypatch) -> None:
    seen = []
    monkeypatch.setattr(
        applying.os, "fchmod", lambda fd, mode: seen.append((os.fstat(fd).st_mode & 0o777, mode))
    )
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/.key.sparkd").write_text("left by a power cut")

    list(applying.apply([Write("/etc/key", b"secret\n", "", mode=0o600)], str(tmp_path)))

    assert seen == [(0o600, 0o600)]
    assert tree(tmp_path) == {"etc": "folder", "etc/key": b"secret\n"}


def test_a_link_at_the_place_of_a_file_is_replaced_and_not_followed(tmp_path) -> None:
    (tmp_path / "victim").write_text("mine")
    (tmp_path / "file").symlink_to(tmp_path / "victim")

    list(applying.apply([Write("/file", b"new\n", "")], str(tmp_path)))

    assert tree(tmp_path) == {"victim": b"mine", "file": b"new\n"}


def test_what_may_fail_is_only_told(tmp_path) -> None:
    step = Run(("false",), "", must=False)

    assert list(applying.apply([step], str(tmp_path))) == [(step, "ended with 1: ")]
    with pytest.raises(applying.StepError, match="false ended with 1"):
        list(applying.apply([Run(("false",), "")], str(tmp_path)))


def test_a_root_that_is_not_there(capsys) -> None:
    assert sparkctl.main(["install", "--root", "/nonexistent/system"]) == 2
    assert "no such folder" in capsys.readouterr().err


def test_the_running_system_is_looked_at_without_touching_it(capsys) -> None:
    """Whatever this machine lacks: a dry run ends with a plan or with reasons."""
    status = sparkctl.main(["install", "--dry-run"])

    assert status in {0, 1}
    assert "nothing was changed" in capsys.readouterr().out
    assert survey.survey(survey.Package("1", {}), "/").live


@pytest.mark.process
@pytest.mark.skipif(MOSQUITTO is None, reason="mosquitto is not installed")
def test_mosquitto_lets_the_worker_in_with_what_its_token_brought(head, worker, tmp_path) -> None:
    """Below a main file as Debian ships it, which includes the folder of further files."""
    _, said, _ = head.ctl("init", *INIT, "--broker", "mosquitto")
    worker.ctl("join", "-", stdin=token_of(said))
    password = worker.loaded("spark-b").broker.password
    port = free_port()
    conf = head.root / "etc/mosquitto/conf.d/sparkd.conf"
    text = conf.read_text()
    for before, after in (
        ("listener 1883 192.168.200.12", f"listener {port} {LOOPBACK}"),
        ("/etc/mosquitto/sparkd.", f"{head.root}/etc/mosquitto/sparkd."),
    ):
        assert before in text
        text = text.replace(before, after)
    conf.write_text(text)
    debian = f"persistence true\npersistence_location {tmp_path}/\ninclude_dir {conf.parent}\n"
    broker = Mosquitto(tmp_path, f"# listener {port}\n{debian}", port)

    async def ask(word: str) -> None:
        async with asyncio.timeout(DEADLINE_S):
            async with aiomqtt.Client(LOOPBACK, port, username="spark-b", password=word) as client:
                await client.publish("sparkd/sparks/node/spark-b/status", b"x", qos=1)

    async def story() -> None:
        await broker.start()
        try:
            await ask(password)
            with pytest.raises(aiomqtt.MqttError):
                await ask("wrong")
        finally:
            await broker.stop()

    asyncio.run(story())
    assert password not in (head.root / "etc/mosquitto/sparkd.passwd").read_text()
