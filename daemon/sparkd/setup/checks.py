"""Why a host cannot have sparkd yet, and what its operator should know. Each line says what to do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from sparkd.setup.host import Host
from sparkd.setup.places import CONFIG, ENGINE_UNITS, ENGINE_USER, OPTIONAL_CREDENTIALS

SYSTEMD_MIN = 252
# What ProtectHome= and PrivateTmp= of the units hide.
HOMES = ("/home/", "/root", "/tmp/", "/run/user/")  # noqa: S108 - compared


def not_root(command: str, host: Host) -> Iterator[str]:
    """Yield a refusal unless this process may change the system; a folder's owner may change the folder."""
    if host.live and not host.is_root:
        yield f"only root may do this: sudo sparkctl {command}"


def system(host: Host) -> Iterator[str]:
    """Yield what the system lacks."""
    if host.live and not host.booted:
        yield "systemd does not run here: use `sparkd run` (README), or --root DIR for the folder of a system"
    elif host.live and host.systemd is None:
        yield "the version of systemd is unknown: `systemctl --version` must work"
    if host.systemd is not None and host.systemd < SYSTEMD_MIN:
        yield (
            f"systemd is {host.systemd}; the units need {SYSTEMD_MIN} or newer (Debian 12, Ubuntu 24.04, "
            "DGX OS 7): "
            "upgrade the system"
        )
    if not host.has_polkit:
        yield "polkit is missing: without it the daemon may start nothing: sudo apt install polkitd"
    if not host.has_journal:
        yield (
            "systemd-python is missing, by which the daemon reads the engine's output: sudo apt install "
            "python3-systemd, and make its environment with `python3 -m venv --system-site-packages` (README)"
        )


def program(host: Host) -> Iterator[str]:
    """Yield why the units could not run the programs: they are other users, and see no homes."""
    if host.bin_dir.startswith(HOMES):
        yield (
            f"sparkd is installed in {host.bin_dir}, which its units may not see: install it in "
            "/opt/sparkd (README)"
        )
    elif host.bin_hidden.startswith(HOMES):
        yield (
            f"the Python of {host.bin_dir} is in {host.bin_hidden}, which its units may not see: make that "
            "environment with the system's own /usr/bin/python3 (README)"
        )
    elif host.bin_hidden:
        yield f"the users of sparkd may not enter {host.bin_hidden}: sudo chmod a+rx {host.bin_hidden}"


def configuration(host: Host) -> Iterator[str]:
    """Yield what is missing or wrong in the configuration."""
    if CONFIG not in host.files:
        yield (
            f"{CONFIG} is missing: on the head `sudo sparkctl init` writes it, on a worker the line that "
            "init printed"
        )
    else:
        yield from host.wrong


def credential_paths(units: Mapping[str, str]) -> dict[str, str]:
    """Return path -> unit of every credential that a unit will not start without."""
    found: dict[str, str] = {}
    for name, text in units.items():
        for line in text.splitlines():
            path = line.partition(":")[2] if line.startswith("LoadCredential=") else ""
            if path.startswith("/"):
                found.setdefault(path, name)
    return found


def credentials(host: Host, units: Mapping[str, str]) -> Iterator[str]:
    """Yield each credential that a unit needs and that is not there."""
    for path, unit in credential_paths(units).items():
        if path not in host.files:
            yield (
                f"{path} is missing, and {unit} does not start without it: `sudo sparkctl init` on the "
                "head makes it, "
                "the line that it prints brings it to a worker"
            )
        elif not host.files[path].strip():
            yield f"{path} is empty: copy it from the head, where `sudo sparkctl init` made it"


def engine_user(host: Host, user: str) -> Iterator[str]:
    """Yield a refusal when an engine's user of the operator's own does not exist."""
    if user != ENGINE_USER and user not in host.users:
        yield f"the engine's user {user} does not exist: sudo adduser {user}, or leave --engine-user out"
    if user == "root":
        yield "the engine must not run as root: name another --engine-user"


def engine_runs(host: Host) -> Iterator[str]:
    """Yield a refusal while the engine runs: its units would be taken away under it."""
    running = [unit for unit in ENGINE_UNITS if unit in host.active]
    if running:
        yield f"the engine runs ({', '.join(running)}): end it first, on the head: sparkctl stop"


def warnings(host: Host) -> Iterator[str]:
    """Yield what is no reason to refuse."""
    if not host.live and host.systemd is None:
        yield f"the version of systemd in that folder is unknown; the units need {SYSTEMD_MIN} or newer"
    if host.broker_error:
        yield f"{host.broker_error}: sparkd waits for it, and says so"
    if host.node is not None and not host.has_model:
        yield f"{host.node.model} is not there yet: sparkd waits for the model's files, and says so"
    if host.node is not None and not host.node.embedded and "broker_password" in _without(host):
        yield "no /etc/sparkd/broker_password: the broker must let this node in without a password"


def _without(host: Host) -> list[str]:
    return [name for name in OPTIONAL_CREDENTIALS if f"/etc/sparkd/{name}" not in host.files]
