"""Planning of `sparkctl join`: what a worker's token brings, and the install that follows."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from sparkd.setup import places
from sparkd.setup.head import KEY_WHY, PASSWORD_WHY, ca_steps
from sparkd.setup.host import Host, Node
from sparkd.setup.install import plan_install
from sparkd.setup.manifest import read_manifest
from sparkd.setup.network import Network
from sparkd.setup.package import Package
from sparkd.setup.placing import config_steps, secret_steps
from sparkd.setup.render import render
from sparkd.setup.steps import Keep, Plan, Protect, Step, Write
from sparkd.setup.token import CA, Token

OPENING = """\
# Written by `sparkctl join` from the head's configuration. What all nodes must have in common is changed on
# the head first; `sudo sparkctl init` there prints the line that brings it here (add --force to it).
#
"""
WHY = {"cluster_key": KEY_WHY, "broker_password": PASSWORD_WHY}


@dataclass(frozen=True, slots=True)
class Local:
    """The token's configuration for this machine.

    Attributes:
        document: with this machine's own interface.
        facts: what was found out. refusals: why this machine cannot be that node.
    """

    document: dict[str, Any]
    facts: tuple[str, ...] = ()
    refusals: tuple[str, ...] = ()


def local(token: Token, net: Network, *, live: bool) -> Local:
    """Return the configuration as this machine needs it: interfaces have other names on other machines."""
    document = copy.deepcopy(dict(token.document))
    nodes = document.get("node", [])
    own = next((node for node in nodes if isinstance(node, dict) and node.get("name") == token.node), None)
    if own is None:
        return Local(
            document, refusals=(f"the token is for {token.node}, which is no node of its configuration",)
        )
    if not live:
        return Local(document)
    link = next((link for link in net.links if link.address == own.get("address")), None)
    if link is None:
        addresses = ", ".join(f"{link.interface} {link.address}" for link in net.links)
        say = (
            f"{token.node} is to have the address {own.get('address')}, which this machine has not "
            f"({addresses}): "
            f"set it (netplan), or on the head: sudo sparkctl init --force --worker {token.node}=ADDRESS ..."
        )
        return Local(document, refusals=(say,))
    facts = [f"{token.node}: {link.address} on {link.interface}"]
    own["interface"] = link.interface
    if "management_address" not in own:
        facts += [
            f"{other.address} could be the second path to this node: management_address in the head's "
            "configuration"
            for other in net.links
            if other.gateway and other.address != link.address
        ]
    return Local(document, tuple(facts))


def text_of(package: Package, here: Local) -> str:
    """Return the configuration's text. Raises ValueError where the token has keys that this version lacks."""
    return render(package.texts["etc/sparkd.toml"], here.document, OPENING)


def plan_join(
    package: Package,
    host: Host,
    token: Token,
    here: Local,
    checked: Node | tuple[str, ...],
    *,
    engine_user: str | None = None,
    root: str = "/",
    force: bool = False,
) -> Plan:
    """Return what `join` does: the configuration and the secrets, then what install does with them.

    Args:
        package: of this machine.
        host: what is there.
        token: what the head gave.
        here: its configuration for this machine.
        checked: what the daemon's loader says of that configuration: this node, or what is wrong.
        engine_user: as for install.
        root: the folder of the system.
        force: replace a configuration that is there and differs.
    """
    text = b"" if here.refusals or isinstance(checked, tuple) else text_of(package, here).encode()
    own = list(_own_steps(host, token, text))
    written = {step.path: step.content for step in own if isinstance(step, Write)}
    handled = {step.path for step in own if isinstance(step, Write | Keep | Protect)}
    noted = read_manifest(host.files).noting(places.CONFIG, package.texts["etc/sparkd.toml"].encode())
    seen = replace(
        host,
        files={**host.files, **written, places.MANIFEST: noted.encoded()},
        open_files=host.open_files - handled,
        config_access="" if places.CONFIG in written else host.config_access,
        node=checked if isinstance(checked, Node) else None,
        wrong=checked if isinstance(checked, tuple) else (),
    )
    install = plan_install(package, seen, engine_user, root)
    return Plan(
        f"join the cluster {_cluster(token)} as {token.node}",
        (*own, *install.steps),
        here.facts,
        (*here.refusals, *_refusals(package, host, token, text, force=force), *_only_new(here, install)),
        install.warnings,
        install.after,
    )


def _only_new(here: Local, install: Plan) -> tuple[str, ...]:
    """What install says of a configuration that is refused already is no news."""
    return install.refusals if not here.refusals else ()


def _cluster(token: Token) -> str:
    cluster = token.document.get("cluster")
    return str(cluster.get("name")) if isinstance(cluster, dict) else "?"


def _own_steps(host: Host, token: Token, text: bytes) -> Iterator[Step]:
    yield from config_steps(host, text, "the configuration, as on the head")
    for name, why in WHY.items():
        if name in token.secrets:
            yield from secret_steps(host, name, token.secrets[name], why)
    if CA in token.secrets:
        yield from ca_steps(host, token.secrets[CA])


def _refusals(package: Package, host: Host, token: Token, text: bytes, *, force: bool) -> Iterator[str]:
    if token.version != package.version:
        yield (
            f"the head has sparkd {token.version}, this machine {package.version}: install the head's "
            "version here "
            "(the line that init printed does)"
        )
    there = host.files.get(places.CONFIG)
    if there is not None and there != text and not force:
        yield (
            f"{places.CONFIG} is there already and differs: --force replaces it, the one before is kept as "
            ".old"
        )
