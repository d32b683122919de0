"""mosquitto for the cluster: an account a node and who may say what, from the examples in etc/mosquitto."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from sparkd.setup.package import Package
from sparkd.setup.places import BROKER_ACCOUNTS
from sparkd.setup.steps import Run, Step, Write

CONF, ACL, PASSWD = (
    "/etc/mosquitto/conf.d/sparkd.conf",
    "/etc/mosquitto/sparkd.acl",
    "/etc/mosquitto/sparkd.passwd",
)
CERTS = {
    "ca": "/etc/mosquitto/certs/ca.pem",
    "cert": "/etc/mosquitto/certs/broker.pem",
    "key": "/etc/mosquitto/certs/broker.key",
}
TLS_LINES = re.compile(r"^#(?=(?:cafile|certfile|keyfile|tls_version) )", re.MULTILINE)
SERVICE = "/etc/systemd/system/mosquitto.service.d/sparkd.conf"
FILES = (CONF, ACL, PASSWD, SERVICE, *CERTS.values())
WATCHER = "watcher"
EXAMPLE_CLUSTER, EXAMPLE_HEAD, EXAMPLE_WORKER = "sparks", "spark-a", "spark-b"
EXAMPLE_ADDRESS = "192.168.100.1"
LISTENER = re.compile(r"^listener 1883 \S+$", re.MULTILINE)
BLOCK_END = "\n\n"


@dataclass(frozen=True, slots=True)
class Certificates:
    """What speaks TLS for the broker: the authority and its own certificate with its key, as PEM."""

    ca: str
    cert: str
    key: str = field(repr=False)


def acl(example: str, cluster: str, head: str, workers: Sequence[str]) -> str:
    """Return who may say and hear what: the example's blocks, a worker's once for each."""
    blocks = example.rstrip("\n").split(BLOCK_END)
    found = []
    for block in blocks:
        if f"user {EXAMPLE_WORKER}" in block.splitlines():
            found += [_named(block, cluster, EXAMPLE_WORKER, worker) for worker in workers]
        elif f"user {EXAMPLE_HEAD}" in block.splitlines():
            found.append(_named(block, cluster, EXAMPLE_HEAD, head))
        else:
            found.append(_named(_telling(block, cluster, head, workers), cluster, "", ""))
    return BLOCK_END.join(found) + "\n"


def _telling(block: str, cluster: str, head: str, workers: Sequence[str]) -> str:
    """Return a comment that tells the names, with the names of this cluster."""
    quoted = ", ".join(f'"{worker}"' for worker in workers)
    names = {EXAMPLE_CLUSTER: f'"{cluster}"', EXAMPLE_HEAD: f'"{head}"', EXAMPLE_WORKER: quoted}
    for before, after in names.items():
        block = block.replace(f'"{before}"', after)
    return block


def _named(block: str, cluster: str, before: str, after: str) -> str:
    """Return a block for another cluster and account; its comments stay as they are."""
    lines = []
    for line in block.splitlines():
        if line.startswith(("user ", "topic ")):
            line = line.replace(f"sparkd/{EXAMPLE_CLUSTER}/", f"sparkd/{cluster}/")  # noqa: PLW2901
            line = re.sub(rf"(?<=[ /]){re.escape(before)}(?=/|$)", after, line) if before else line  # noqa: PLW2901
        lines.append(line)
    return "\n".join(lines)


def conf(example: str, address: str, port: int) -> str:
    """Return mosquitto's configuration for this address. Raises ValueError: the example has no listener."""
    text, count = LISTENER.subn(f"listener {port} {address}", example)
    if count != 1:
        raise ValueError("etc/mosquitto/sparkd.conf: the line `listener 1883 ADDRESS` is missing")
    return text.replace(EXAMPLE_ADDRESS, address)


def with_tls(conf_: str) -> str:
    """Return the configuration with TLS. Raises ValueError: the example lacks one of its lines."""
    text, count = TLS_LINES.subn("", conf_)
    if count != len(CERTS) + 1 or not all(path in text for path in CERTS.values()):
        raise ValueError("etc/mosquitto/sparkd.conf: the lines for TLS are missing")
    return text


def accounts_text(accounts: Mapping[str, str]) -> bytes:
    """Return accounts as lines of name and password, as mosquitto_passwd -U takes them."""
    return "".join(f"{name}:{password}\n" for name, password in accounts.items()).encode()


def read_accounts(content: bytes) -> dict[str, str]:
    """Return the accounts that were written."""
    rows = [line.partition(":") for line in content.decode("utf-8", "replace").splitlines() if ":" in line]
    return {name: password for name, _, password in rows}


def steps(
    package: Package,
    cluster: str,
    names: Sequence[str],
    address: tuple[str, int],
    accounts: Mapping[str, str],
    *,
    root: str,
    tls: Certificates | None = None,
) -> Iterator[Step]:
    """Yield what sets mosquitto up on the head; *names* are the nodes, the head first."""
    text = acl(package.texts["etc/mosquitto/sparkd.acl"], cluster, names[0], names[1:])
    config = conf(package.texts["etc/mosquitto/sparkd.conf"], *address)
    yield Write(
        BROKER_ACCOUNTS, accounts_text(accounts), "the broker's passwords, for further joins", mode=0o600
    )
    if tls:
        config = with_tls(config)
        yield Write(CERTS["ca"], tls.ca.encode(), "mosquitto: the authority")
        yield Write(CERTS["cert"], tls.cert.encode(), "mosquitto: its certificate")
        yield Write(CERTS["key"], tls.key.encode(), "mosquitto: its key", mode=0o400, owner="mosquitto")
    yield Write(
        CONF, config.encode(), "mosquitto: the cluster's listener, its bounds; TLS is explained in it"
    )
    yield Write(ACL, text.encode(), "mosquitto: which account may say what", mode=0o640, owner="mosquitto")
    yield Write(PASSWD, accounts_text(accounts), "mosquitto: the accounts", mode=0o600, owner="mosquitto")
    service = package.texts["etc/mosquitto/sparkd-service.conf"].encode()
    yield Write(SERVICE, service, "mosquitto: waits for the network at boot, and never gives up")
    yield Run(("mosquitto_passwd", "-U", f"{root.rstrip('/')}{PASSWD}"), "hashes the passwords in it")
    if root == "/":
        yield Run(("systemctl", "daemon-reload"), "systemd reads the drop-in")
        yield Run(("systemctl", "--quiet", "enable", "mosquitto"), "starts mosquitto at boot")
        yield Run(("systemctl", "restart", "mosquitto"), "mosquitto reads them")
