"""Reading the host, or the folder that will be one, into `host.Host`. Nothing is changed here."""

from __future__ import annotations

import os
import re
import socket
import stat
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path

from sparkd.setup import broker, places
from sparkd.setup.host import Host, Node
from sparkd.setup.install import LINK_DIR, LINKS, paths_of
from sparkd.setup.manifest import read_manifest
from sparkd.setup.package import Package
from sparkd.setup.probe import read_node

TOOL_TIMEOUT_S = 20.0
BROKER_TIMEOUT_S = 2.0
# Where polkit's daemon is in the distributions that have systemd 252 or newer.
POLKIT = ("/usr/lib/polkit-1/polkitd", "/usr/libexec/polkitd", "/usr/libexec/polkit-1/polkitd")
LIBRARY = re.compile(r"libsystemd-shared-(\d+)")
FIRST_NUMBER = re.compile(r"systemd (\d+)")


def survey(package: Package, root: str = "/", node: str | None = None) -> Host:
    """Return what the planners need to know.

    Args:
        package: what is to be installed.
        root: the folder of the system; `/` = the running one.
        node: this node's name; None = as an earlier install found it, else the hostname.
    """
    live = root == "/"
    asked = paths_of(package)
    files = dict(_files(root, asked))
    files |= dict(_files(root, (path for path in read_manifest(files).files if path not in files)))
    hostname = _hostname(root)
    config = _configuration(root, node or _node_of(files) or hostname)
    names = tuple(package.units)
    # In the folder of a system nothing runs: there the programs will be where the units look.
    bin_dir = sysconfig.get_path("scripts") if live else places.SHIPPED_BIN
    return Host(
        is_root=os.geteuid() == 0,
        live=live,
        booted=not live or Path("/run/systemd/system").is_dir(),
        systemd=_systemd() if live else _systemd_of(root),
        has_polkit=not live or any(Path(path).exists() for path in POLKIT),
        has_journal=not live or find_spec("systemd") is not None,
        hostname=hostname,
        bin_dir=bin_dir,
        python=sys.executable if live else places.SHIPPED_PYTHON,
        bin_hidden=(_hidden(bin_dir) or _hidden(os.path.realpath(sys.executable))) if live else "",
        users=_users(root),
        files=files,
        open_files=frozenset(path for path in files if _is_open(below(root, path))),
        config_access=_access(root, places.CONFIG),
        present=_present(root, {*asked, *files}),
        links=dict(_links(root)),
        active=frozenset(_units("is-active", "active", names)) if live else frozenset(),
        enabled=frozenset(_units("is-enabled", "enabled", names, root)),
        node=config if isinstance(config, Node) else None,
        wrong=config if isinstance(config, tuple) else (),
        has_model=not isinstance(config, Node) or below(root, config.model).is_dir(),
        broker_error=_broker_error(config) if live and isinstance(config, Node) else "",
    )


def below(root: str, path: str) -> Path:
    """Return where *path* of the host is, seen from here."""
    return Path(root) / path.lstrip("/")


def _files(root: str, paths: Iterable[str]) -> Iterator[tuple[str, bytes]]:
    for path in paths:
        real = below(root, path)
        if real.is_file():
            try:
                yield path, real.read_bytes()
            except PermissionError:
                yield path, b""  # not root: what is planned then is only looked at


def _present(root: str, files: Iterable[str]) -> frozenset[str]:
    asked = (places.CONFIG_DIR, *places.STATE_DIRS, *broker.FILES, places.WATCHDOG_DEVICE)
    aside = (path for file in files for path in places.beside(file))
    return frozenset(path for path in (*asked, *aside) if below(root, path).exists())


def _access(root: str, path: str) -> str:
    real = below(root, path)
    if not real.exists():
        return ""
    found = real.stat()
    accounts = below(root, "/etc/group")
    rows = [line.split(":") for line in accounts.read_text().splitlines()] if accounts.is_file() else []
    group = next((row[0] for row in rows if row[2:3] == [str(found.st_gid)]), str(found.st_gid))
    return f"{stat.S_IMODE(found.st_mode):o} {group}"


def _is_open(path: Path) -> bool:
    return bool(stat.S_IMODE(path.stat().st_mode) & (stat.S_IRWXG | stat.S_IRWXO))


def _links(root: str) -> Iterator[tuple[str, str]]:
    for name in LINKS:
        path = below(root, f"{LINK_DIR}/{name}")
        if path.is_symlink():
            yield f"{LINK_DIR}/{name}", str(path.readlink())


def _hostname(root: str) -> str:
    """Return the first label of the machine's name, as the daemon compares it."""
    if root == "/":
        return socket.gethostname().partition(".")[0]
    name = below(root, "/etc/hostname")
    return name.read_text().strip().partition(".")[0] if name.is_file() else ""


def _node_of(files: Mapping[str, bytes]) -> str:
    """Return the node that an earlier install or join wrote into a drop-in; empty = none."""
    text = files.get(places.drop_in(places.DAEMON, "10-node"), b"").decode("utf-8", "replace")
    found = re.search(r"^Environment=SPARKD_NODE=(\S+)$", text, flags=re.MULTILINE)
    return found[1] if found else ""


def _configuration(root: str, node: str) -> Node | tuple[str, ...]:
    """Return the configuration as the daemon will read it, or what is wrong with it."""
    path = below(root, places.CONFIG)
    if not path.is_file():
        return ()
    return read_node(str(path), node or None, str(below(root, places.CONFIG_DIR)))


def _broker_error(node: Node) -> str:
    """Return why the broker cannot be reached; the one that the head's own daemon runs comes with it."""
    if node.embedded and node.role == "head":
        return ""
    try:
        socket.create_connection(node.broker, BROKER_TIMEOUT_S).close()
    except OSError as error:
        host, port = node.broker
        return f"the broker at {host}:{port} does not answer ({error.strerror or error})"
    return ""


def _run(*argv: str) -> str:
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=TOOL_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout


def _systemd() -> int | None:
    found = FIRST_NUMBER.match(_run("systemctl", "--version"))
    return int(found[1]) if found else None


def _systemd_of(root: str) -> int | None:
    """A folder is not asked: its systemd's library has the version in its name."""
    for folder in ("usr/lib/systemd", "usr/lib/*-linux-gnu/systemd", "usr/lib64/systemd"):
        for path in Path(root).glob(f"{folder}/libsystemd-shared-*"):
            found = LIBRARY.match(path.name)
            if found:
                return int(found[1])
    return None


def _units(verb: str, state: str, names: tuple[str, ...], root: str = "/") -> list[str]:
    """Return the units that are in a state, in one question; systemctl answers a line for each."""
    where = () if root == "/" else (f"--root={root}",)
    if not names:
        return []
    if root != "/":  # asked one by one: a unit that is not there ends the answer
        return [name for name in names if _run("systemctl", *where, verb, name).strip() == state]
    said = _run("systemctl", *where, verb, *names).splitlines()
    if len(said) != len(names):
        return [name for name in names if _run("systemctl", verb, name).strip() == state]
    return [name for name, line in zip(names, said, strict=True) if line.strip() == state]


def _users(root: str) -> frozenset[str]:
    accounts = below(root, "/etc/passwd")
    lines = accounts.read_text(encoding="utf-8", errors="replace").splitlines() if accounts.is_file() else []
    return frozenset(line.partition(":")[0] for line in lines)


def _hidden(path: str) -> str:
    """Return the outermost folder of *path* that other users may not enter; empty = none."""
    for folder in [*reversed(Path(path).parents), Path(path)]:
        if folder.exists() and not folder.stat().st_mode & stat.S_IXOTH:
            return str(folder)
    return ""
