"""A node with a real systemd: a container of systemd-nspawn on an overlay of this machine's own root.

    with nspawn.node("spark-a") as node:
        node.run("systemctl", "is-system-running")
        node.power_off()        # as if the plug was pulled
        node.boot()

Rules of this file:
- A node needs no image: it sees this machine's files, writes only to a folder of its own, and has its own
  hostname, machine-id, /run, /tmp, journal, accounts and network. What this machine would start and a node
  does not need is not started.
- Its network is a namespace that is given (one of `netns.pair()`: 192.168.200.12 and .13, links that can be
  cut), or nothing but a loopback.
- Each node has control groups of its own: two containers in one group would share every unit's processes.
- The folder's name tells which process owns it (its id and start time), so a run can remove what
  dead ones left and never touches a living one. There is no other record.
- Leaving `node()` removes everything, also on an exception; `netns.leaving_on_signals` makes one of a signal
  and, in tests, pytest. What a killed run left, a running container included, is removed by the next run.
"""

import contextlib
import json
import os
import pathlib
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence

from lab import netns
from sparkd.adapters.cgroups import Groups, hierarchies

PREFIX = "sparkd-node"
PLACE = pathlib.Path("/var/tmp")  # noqa: S108 - on disk, and not below a home
BOOT_DEADLINE_S = 60.0
END_DEADLINE_S = 30.0
# Directories of wants below /etc/systemd/system: what this machine starts is not what a node starts.
WANTS = "*.wants"
# Units of the vendor that find nothing to do in a container, or that would speak with the world.
MASKED = (
    "apt-daily.timer",
    "apt-daily-upgrade.timer",
    "console-getty.service",
    "e2scrub_all.timer",
    "fstrim.timer",
    "man-db.timer",
    "smartmontools.service",
    "systemd-networkd.service",
    "systemd-networkd-wait-online.service",
    "systemd-resolved.service",
    "systemd-timesyncd.service",
)
# Folders of this machine that a node does not see: scripts and state of this machine's own services.
EMPTY = (
    *(f"etc/rc{level}.d" for level in "0123456S"),
    "var/log/journal",
    "var/lib/sparkd",
    "var/log/sparkd",
    "etc/sparkd",
    "run",
)


# What of etc/ is put where in a node.
INSTALLED = {
    "sysusers/sparkd.conf": "/etc/sysusers.d/sparkd.conf",
    "tmpfiles/sparkd.conf": "/etc/tmpfiles.d/sparkd.conf",
    "polkit/50-sparkd.rules": "/etc/polkit-1/rules.d/50-sparkd.rules",
}


class NodeError(Exception):
    """The node cannot be had or does not do what it is asked; the text says what to do."""


def missing() -> str:
    """Return why there can be no nodes here, empty where there can."""
    if os.geteuid() != 0:
        return "nodes of systemd-nspawn need root"
    if shutil.which("systemd-nspawn") is None:
        return "systemd-nspawn is not installed: apt-get install systemd-container dbus"
    return ""


class Node:
    """One container; see `node`."""

    def __init__(
        self,
        name: str,
        place: pathlib.Path,
        *,
        namespace: str | None,
        binds: Sequence[str],
        memory_bytes: int | None,
    ) -> None:
        self.name = name
        self.leader = 0
        self._first = -1
        self.root = place / "root"
        self._place, self._namespace, self._binds = place, namespace, tuple(binds)
        self._memory_bytes = memory_bytes
        self._container: subprocess.Popen[bytes] | None = None
        self._prepare()

    # -- its life

    def boot(self) -> None:
        """Start it; return when its systemd says that it is up. Raises NodeError."""
        if self._container is not None and self._container.poll() is None:
            raise NodeError(f"{self.name} runs already")
        groups = self._groups()
        notify = self._place / "notify"
        notify.unlink(missing_ok=True)
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
            heard.bind(str(notify))
            with (self._place / "console.log").open("ab") as console:
                self._container = subprocess.Popen(
                    self._command(),
                    stdin=subprocess.DEVNULL,
                    stdout=console,
                    stderr=console,
                    env={"PATH": os.environ["PATH"], "NOTIFY_SOCKET": str(notify)},
                    process_group=0,  # not a session: the child backend takes foreign ones for units
                    preexec_fn=_join(groups),  # noqa: PLW1509 - it writes its own pid, no lock is taken
                )
            self._await_ready(heard)

    def power_off(self) -> None:
        """Pull the plug: everything in it ends at once, nothing is written any more."""
        self._end(signal.SIGKILL)

    def shut_down(self) -> None:
        """Shut it down in order, as `poweroff` does."""
        self._end(signal.SIGTERM)  # nspawn hands it to the container's systemd as SIGRTMIN+4 (--kill-signal)

    # -- what is done in it

    def enter(self, user: str | None = None) -> list[str]:
        """What goes before a command so that it runs in this node, with a clean environment."""
        if not self.leader:
            raise NodeError(f"{self.name} is not running")
        command = ["nsenter", "-t", str(self.leader), "-m", "-u", "-i", "-n", "-p", "-C", "--"]
        if user:
            command += ["setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups", "--"]
        return [*command, "env", "-i", "PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "LANG=C.UTF-8"]

    def run(
        self,
        *argv: str,
        check: bool = True,
        timeout_s: float = 60.0,
        user: str | None = None,
        stdin: str = "",
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in it to its end."""
        done = subprocess.run(
            [*self.enter(user), *argv],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        if check and done.returncode:
            raise NodeError(
                f"{self.name}: {' '.join(argv)}: {done.returncode}: {done.stdout}{done.stderr}".strip()
            )
        return done

    def write(self, path: str, text: str, mode: int = 0o644) -> pathlib.Path:
        """Write a file of it, before or after its boot."""
        target = self.path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
        target.chmod(mode)
        return target

    def path(self, path: str) -> pathlib.Path:
        """Return where a path of it lies as seen from here; while it runs, its own mounts included."""
        base = pathlib.Path(f"/proc/{self.leader}/root") if self.leader else self.root
        return base / path.lstrip("/")

    def journal(self, *arguments: str) -> list[dict[str, object]]:
        """Return records of its journal, as `journalctl -o json` gives them."""
        text = self.run("journalctl", "-o", "json", "--no-pager", *arguments).stdout
        return [json.loads(line) for line in text.splitlines()]

    # -- how

    def _groups(self) -> list[pathlib.Path]:
        """Make the groups in which the container begins, of its own memory size where one is given."""
        groups = [root / self._place.name for root in hierarchies(_mounts())]
        for group in groups:
            group.mkdir(exist_ok=True)
        if self._memory_bytes is not None:
            memory = pathlib.Path("/sys/fs/cgroup/memory")
            v1 = (memory / "memory.limit_in_bytes").exists()
            group = memory / self._place.name if v1 else groups[0]
            group.mkdir(exist_ok=True)
            limit = "memory.limit_in_bytes" if v1 else "memory.max"
            (group / limit).write_text(str(self._memory_bytes), encoding="ascii")
            groups.append(group)
        return groups

    def _prepare(self) -> None:
        for name in ("upper", "work", "root"):
            (self._place / name).mkdir()
        options = f"lowerdir=/,upperdir={self._place}/upper,workdir={self._place}/work"
        _do("mount", "-t", "overlay", f"{PREFIX}", "-o", options, str(self.root))
        system = self.root / "etc/systemd/system"
        for wants in system.glob(WANTS):
            shutil.rmtree(wants)
        for unit in MASKED:
            (system / unit).unlink(missing_ok=True)
            (system / unit).symlink_to("/dev/null")
        for folder in EMPTY:
            shutil.rmtree(self.root / folder, ignore_errors=True)
        (self.root / "run").mkdir(exist_ok=True)
        self.write("/etc/hostname", f"{self.name}\n")
        self.write("/etc/hosts", f"127.0.0.1 localhost\n127.0.1.1 {self.name}\n")
        self.write("/etc/machine-id", "")
        (self.root / "var/lib/dbus/machine-id").unlink(missing_ok=True)

    def _command(self) -> list[str]:
        network = (
            ["--private-network"]
            if self._namespace is None
            else [f"--network-namespace-path=/run/netns/{self._namespace}"]
        )
        return [
            "systemd-nspawn",
            "--quiet",
            "--boot",
            f"--directory={self.root}",
            f"--machine={self.name}",
            "--register=no",
            "--keep-unit",
            "--console=pipe",
            "--notify-ready=yes",
            "--link-journal=no",
            "--resolv-conf=off",
            "--timezone=off",
            *network,
            *(f"--bind={path}" for path in self._binds),
        ]

    def _await_ready(self, heard: socket.socket) -> None:
        """systemd-nspawn hands on its container's READY=1, and tells the pid of its first process."""
        container = self._container
        assert container is not None
        exited = os.pidfd_open(container.pid)
        try:
            said = ""
            while "READY=1" not in said:
                ready, _, _ = select.select([heard, exited], [], [], BOOT_DEADLINE_S)
                if heard not in ready:
                    raise NodeError(f"{self.name} did not boot: {self._console()}")
                said = heard.recv(4096).decode()
                for line in said.splitlines():
                    if line.startswith("X_NSPAWN_LEADER_PID="):
                        self.leader = int(line.partition("=")[2])
                        self._first = os.pidfd_open(self.leader)
        finally:
            os.close(exited)

    def _console(self) -> str:
        with contextlib.suppress(OSError):
            return (self._place / "console.log").read_text("utf-8", "replace")[-2000:]
        return "nothing was said"

    def _end(self, number: signal.Signals) -> None:
        """End it; return when its first process is gone, and with it all that was in its pid namespace."""
        container, first = self._container, self._first
        self._container, self.leader, self._first = None, 0, -1
        if container is None:
            return
        try:
            if number is signal.SIGKILL and first >= 0:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(first, signal.SIGKILL)
            with contextlib.suppress(ProcessLookupError):
                os.kill(container.pid, number)
            container.wait(END_DEADLINE_S)
            if first >= 0 and not select.select([first], [], [], END_DEADLINE_S)[0]:
                raise NodeError(f"{self.name} does not end; see ps for systemd-nspawn --machine={self.name}")
        finally:
            if first >= 0:
                os.close(first)


@contextlib.contextmanager
def node(
    name: str,
    *,
    namespace: str | None = None,
    binds: Sequence[str] = (),
    memory_bytes: int | None = None,
    boot: bool = True,
) -> Iterator[Node]:
    """A node for as long as the block lasts. Raises NodeError.

    Args:
        name: its hostname.
        namespace: the network namespace in which it lives; None = one with a loopback alone.
        binds: folders of this machine that it shares, at the same path.
        memory_bytes: its memory, as its control group says it; None = all of this machine's.
        boot: whether it is booted already.
    """
    if why := missing():
        raise NodeError(why)
    remove_dead()
    place = pathlib.Path(tempfile.mkdtemp(prefix=f"{PREFIX}-{netns.new_run_id()}-", dir=PLACE))
    place.chmod(0o755)
    made: Node | None = None
    try:
        made = Node(name, place, namespace=namespace, binds=binds, memory_bytes=memory_bytes)
        if boot:
            made.boot()
        yield made
    finally:
        with netns.signals_deferred():
            if made is not None:
                made.power_off()
            _remove(place)


def remove_dead() -> None:
    """Remove what runs that are no more have left, their containers included."""
    for place in PLACE.glob(f"{PREFIX}-*"):
        if netns.is_leftover(place.name.replace(PREFIX, netns.PREFIX, 1)):
            _remove(place)


def open_way(made: Node, path: pathlib.Path) -> None:
    """In the node alone: let other users reach what lies below a private folder of this machine."""
    for folder in [path, *path.parents]:
        inside = made.root / str(folder).lstrip("/")
        if inside.is_dir() and inside.stat().st_mode & 0o005 != 0o005:
            inside.chmod(inside.stat().st_mode | 0o055)


def install(made: Node, config: str) -> None:
    """Put sparkd into a node that is not booted yet: units, accounts, directories, rules, configuration.

    The program is this machine's environment with the code of this working tree, at /opt/sparkd.
    """
    root = pathlib.Path(__file__).parents[2]
    for unit in (root / "units").iterdir():
        made.write(f"/etc/systemd/system/{unit.name}", unit.read_text(encoding="utf-8"))
    for source, target in INSTALLED.items():
        made.write(target, (root / "etc" / source).read_text(encoding="utf-8"))
    made.write("/etc/sparkd/sparkd.toml", config)
    made.write("/etc/sparkd/cluster_key", "0123456789abcdef0123456789abcdef", 0o600)
    environment = pathlib.Path(sys.executable).parents[1]
    (made.root / "opt/sparkd").symlink_to(environment)
    # A container's own boot id is a mount in /proc/sys; these two parts of the sandbox mount the machine's
    # over it, and the journal of this boot, and a boot itself, would not be told apart.
    bare = "[Service]\nProtectKernelTunables=no\nProtectControlGroups=no\n"
    made.write("/etc/systemd/system/sparkd.service.d/boot.conf", bare)
    interpreter = pathlib.Path(sys.executable).resolve()
    for path in (interpreter, environment, root / "daemon", root / "tests"):
        open_way(made, path)
    if interpreter.is_relative_to("/root") or interpreter.is_relative_to("/home"):
        # Here Python itself may lie below a home, which the daemon's sandbox hides.
        for unit in ("sparkd", "sparkd-guard"):
            path = f"/etc/systemd/system/{unit}.service.d/python.conf"
            made.write(path, "[Service]\nProtectHome=read-only\n")


def group_roots(made: Node) -> tuple[pathlib.Path, ...]:
    """Return the mount points of the node's hierarchies of units, as seen from here."""
    text = pathlib.Path(f"/proc/{made.leader}/mountinfo").read_text(encoding="utf-8")
    return tuple(made.path(str(root)) for root in hierarchies(text))


def _mounts() -> str:
    return pathlib.Path("/proc/self/mountinfo").read_text(encoding="utf-8")


def _remove(place: pathlib.Path) -> None:
    """Give back everything of a node; what still runs in its groups is killed."""
    roots = hierarchies(_mounts())

    def empty() -> bool:
        pids = Groups(roots).pids(place.name)
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return not pids

    netns.wait_until(empty, END_DEADLINE_S)
    while (
        subprocess.run(["umount", str(place / "root")], stderr=subprocess.DEVNULL, check=False).returncode
        == 0
    ):
        pass
    for root in (*roots, pathlib.Path("/sys/fs/cgroup/memory")):
        for folder, _, _ in os.walk(root / place.name, topdown=False):
            with contextlib.suppress(OSError):
                pathlib.Path(folder).rmdir()
    shutil.rmtree(place, ignore_errors=True)


def _join(groups: Sequence[pathlib.Path]):
    def prepare() -> None:
        for group in groups:
            (group / "cgroup.procs").write_text(str(os.getpid()), encoding="ascii")

    return prepare


def _do(*argv: str) -> None:
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NodeError(f"{' '.join(argv)}: {done.stderr.strip()}")
