"""`sparkctl install` on a system that runs: a node of systemd-nspawn, bare, installed, upgraded, bare again.

Daemon and engine are stand-ins that say they are up, and so is systemd-python: what they do is not the
question here.
"""

from __future__ import annotations

import shlex
import subprocess
import sysconfig
from pathlib import Path

import pytest

nspawn = pytest.importorskip("lab.nspawn", reason="needs the nodes of the lab")

ROOT = Path(__file__).parents[2]
SITE = sysconfig.get_path("purelib")
SYSTEM_PYTHON = "/usr/bin/python3"
CTL = "/opt/sparkd/bin/sparkctl"
INIT = ["--worker", "spark-b", "--address", "192.168.200.12", "--model", "/srv/models/x"]
DAEMON = """#!/usr/bin/python3
import os, signal, socket
name = os.environ["NOTIFY_SOCKET"]
with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
    systemd.connect(name.replace("@", chr(0), 1))
    systemd.send(b"READY=1\\nWATCHDOG_USEC=0")
    signal.pause()
"""
# The unit executes nothing without an order of a real daemon.
DROP_IN = "/run/systemd/system/sparkd-ray.service.d"
ENGINE = "[Service]\nExecStart=\nExecStart=/opt/sparkd/bin/sparkd\n"
PROGRAM = "#!/opt/sparkd/bin/python\nimport sys\nfrom sparkd.cli.sparkctl import main\nsys.exit(main())\n"


def same_python() -> bool:
    """The node's own Python runs the packages of this environment."""
    asked = [SYSTEM_PYTHON, "-c", "import sysconfig; print(sysconfig.get_python_version())"]
    try:
        said = subprocess.run(asked, capture_output=True, text=True, timeout=20, check=False).stdout
    except OSError:
        return False
    return said.strip() == sysconfig.get_python_version()


pytestmark = [
    pytest.mark.nodes,
    pytest.mark.process,
    pytest.mark.timeout(300),
    pytest.mark.skipif(bool(nspawn.missing()), reason=nspawn.missing() or "-"),
    pytest.mark.skipif(not same_python(), reason=f"{SYSTEM_PYTHON} is another Python than this one"),
]


def prepare(node) -> None:
    """Put sparkd into /opt/sparkd: the code of this folder, the packages of this environment."""
    node.run(SYSTEM_PYTHON, "-m", "venv", "--without-pip", "/opt/sparkd")
    node.run("mkdir", "/opt/sparkd/src")
    for part in ("daemon", "units", "etc"):
        node.run("cp", "-r", str(ROOT / part), f"/opt/sparkd/src/{part}")
    site = node.run("sh", "-c", "echo /opt/sparkd/lib/python3*/site-packages").stdout.strip()
    node.write(f"{site}/sparkd.pth", f"/opt/sparkd/src/daemon\n{SITE}\n")
    node.write(f"{site}/systemd/__init__.py", "")
    node.write("/opt/sparkd/bin/sparkd", DAEMON, 0o755)
    node.write(f"{DROP_IN}/engine.conf", ENGINE)
    node.write(CTL, PROGRAM, 0o755)
    node.run("ip", "address", "add", "192.168.200.12/24", "dev", "lo")


def ctl(node, *arguments: str) -> tuple[int, str]:
    done = node.run(CTL, *arguments, check=False)
    return done.returncode, done.stdout + done.stderr


def pids(node) -> dict[str, str]:
    """The first process of each of sparkd's units."""
    said = node.run(
        "systemctl", "show", "--property=Id,MainPID", "sparkd.service", "sparkd-ray.service"
    ).stdout
    blocks = [dict(line.split("=", 1) for line in block.splitlines()) for block in said.strip().split("\n\n")]
    return {block["Id"]: block["MainPID"] for block in blocks}


def change(node, path: str) -> None:
    node.run("sh", "-c", f"echo '# newer' >> {shlex.quote(path)}")


def test_from_bare_to_installed_upgraded_and_bare_again() -> None:
    with nspawn.node("spark-a", binds=[SITE]) as node:
        prepare(node)
        status, said = ctl(node, "install")
        assert (status, "sparkd.toml is missing" in said) == (1, True), said
        assert ctl(node, "init", *INIT)[0] == 0

        status, said = ctl(node, "install")
        assert status == 0, said
        assert "nothing was left to do" in ctl(node, "install")[1]
        node.run("systemctl", "start", "sparkd.service")
        node.run("systemctl", "--no-ask-password", "start", "sparkd-ray.service", user="sparkd")
        denied = node.run("systemctl", "--no-ask-password", "restart", "dbus", user="sparkd", check=False)
        assert "authentication required" in denied.stderr
        enabled = node.run("systemctl", "is-enabled", "sparkd.service").stdout.strip()
        assert enabled == "enabled"

        before = pids(node)
        change(node, "/opt/sparkd/src/units/sparkd.service")
        change(node, "/opt/sparkd/src/units/sparkd-ray.service")
        assert ctl(node, "install")[0] == 0
        after = pids(node)
        assert after["sparkd-ray.service"] == before["sparkd-ray.service"] != "0"
        assert after["sparkd.service"] not in {before["sparkd.service"], "0"}

        status, said = ctl(node, "uninstall")
        assert (status, "the engine runs (sparkd-ray.service)" in said) == (1, True), said
        assert pids(node) == after
        node.run("systemctl", "stop", "sparkd-ray.service")
        assert ctl(node, "uninstall", "--purge")[0] == 0
        assert node.run("systemctl", "list-unit-files", "sparkd*", "--no-legend", check=False).stdout == ""
        node.run("rm", "-r", DROP_IN)
        left = node.run("find", "/etc", "/run", "/var/lib", "/usr/local", "-xdev", "-name", "*sparkd*").stdout
        assert left.split() == []
