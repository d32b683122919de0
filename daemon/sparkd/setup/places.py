"""What goes where, and whose it is. One table; the tests hold every file of units/ and etc/ against it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

CONFIG_DIR = "/etc/sparkd"
CONFIG = f"{CONFIG_DIR}/sparkd.toml"
MANIFEST = f"{CONFIG_DIR}/installed.json"
CLUSTER_KEY = f"{CONFIG_DIR}/cluster_key"
# A missing one would fail the unit: only those that are there are named, in a drop-in.
OPTIONAL_CREDENTIALS = ("broker_password", "api_token", "ray_token")
ENGINE_CREDENTIALS = ("ray_token",)
BROKER_CA = f"{CONFIG_DIR}/broker-ca.pem"
BROKER_ACCOUNTS = f"{CONFIG_DIR}/broker_accounts"
UNIT_DIR = "/etc/systemd/system"
DAEMON = "sparkd.service"
ENGINE_UNITS = ("sparkd-serve.service", "sparkd-ray.service")
# The daemon is in the engine's group, and both read the configuration, which may name secrets of the engine.
CONFIG_MODE, CONFIG_GROUP = 0o640, "sparkd-engine"
DAEMON_USER, ENGINE_USER = "sparkd", "sparkd-engine"
ENGINE_HOME = "/var/lib/sparkd-engine"
SYSUSERS = "/etc/sysusers.d/sparkd.conf"
TMPFILES = "/etc/tmpfiles.d/sparkd.conf"
JOURNALD = "/etc/systemd/journald.conf.d/sparkd.conf"
WATCHDOG = "/etc/systemd/system.conf.d/sparkd-watchdog.conf"
WATCHDOG_DEVICE = "/dev/watchdog0"
# The programs' folder as the units name it; the real one takes its place.
SHIPPED_BIN = "/opt/sparkd/bin"
SHIPPED_PYTHON = f"{SHIPPED_BIN}/python3"
# What --purge removes beside the configuration. The defaults alone: a configuration could name any folder.
STATE_DIRS = (
    "/var/lib/sparkd",
    "/var/lib/sparkd-guard",
    "/var/log/sparkd",
    ENGINE_HOME,
    "/var/tmp/sparkd-ray",  # noqa: S108
    "/run/sparkd",
    "/run/sparkd-guard",
)


@dataclass(frozen=True, slots=True)
class Place:
    """One file of the package on the host.

    Attributes:
        source: its name in the package.
        target: its path on the host.
        why: what it does.
        is_configuration: the operator's: kept when changed. Else sparkd's own: replaced.
        needs: a path without which it is left out.
    """

    source: str
    target: str
    why: str
    is_configuration: bool = False
    needs: str = ""


FIXED = (
    Place("etc/polkit/50-sparkd.rules", "/etc/polkit-1/rules.d/50-sparkd.rules",
          "lets the daemon start and stop the engine's units, and nothing else"),
    Place("etc/guard.conf", f"{CONFIG_DIR}/guard.conf", "the memory guard's settings", is_configuration=True),
    Place("etc/sysusers/sparkd.conf", SYSUSERS, "the users sparkd and sparkd-engine"),
    Place("etc/tmpfiles/sparkd.conf", TMPFILES, "makes /run/sparkd, the engine's HOME and Ray's folder"),
    Place("etc/journald/sparkd.conf", JOURNALD,
          "keeps the journal on the disk: evidence survives a power cut", is_configuration=True),
    Place("etc/needrestart/sparkd.conf", "/etc/needrestart/conf.d/sparkd.conf",
          "keeps apt upgrades from restarting the engine", is_configuration=True),
    Place("etc/systemd/sparkd-watchdog.conf", WATCHDOG,
          "the board resets itself when the system is wedged", is_configuration=True, needs=WATCHDOG_DEVICE),
)  # fmt: skip


def beside(path: str) -> tuple[str, str]:
    """Return what install may have put beside a file: the one before, the new default."""
    return f"{path}.old", f"{path}.new"


def unit_places(units: Mapping[str, str]) -> tuple[Place, ...]:
    """Return where the units go; a unit says itself what it is."""
    return tuple(
        Place(f"units/{name}", f"{UNIT_DIR}/{name}", description(text)) for name, text in units.items()
    )


def description(unit: str) -> str:
    """Return the Description= of a unit."""
    found = [line.partition("=")[2] for line in unit.splitlines() if line.startswith("Description=")]
    return found[0] if found else "unit of sparkd"


def drop_in(unit: str, name: str) -> str:
    """Return the path of a drop-in of *unit*."""
    return f"{UNIT_DIR}/{unit}.d/{name}.conf"
