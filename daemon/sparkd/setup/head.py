"""Planning of `sparkctl init`: the configuration of a new cluster, its secrets, the workers' tokens."""

from __future__ import annotations

import copy
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from sparkd.setup import broker, checks, network, places, token
from sparkd.setup.broker import Certificates
from sparkd.setup.host import Host
from sparkd.setup.manifest import read_manifest
from sparkd.setup.network import Link, Network, NetworkError
from sparkd.setup.package import Package
from sparkd.setup.placing import config_steps, secret_steps
from sparkd.setup.render import render
from sparkd.setup.steps import Keep, Plan, Step, Write
from sparkd.wire.names import NAME_PATTERN, is_name

OPENING = """\
# Written by `sparkctl init`, yours from now on: change what you like, then `sudo systemctl restart sparkd`.
# After a change that all nodes must know, say `sudo sparkctl init` again: it changes nothing, and prints the
# lines that bring the workers up to date (add --force to them).
#
"""
BROKER_PORT, TLS_PORT = 1883, 8883
CA_WHY = "the authority that the broker's certificate is signed by"
KEY_WHY = "signs every message between the nodes"
PASSWORD_WHY = "this node's password at the broker"  # noqa: S105 - a sentence


class InitError(Exception):
    """What is wanted cannot be planned; each line says what to give."""

    def __init__(self, *lines: str) -> None:
        self.lines = lines
        super().__init__("\n".join(lines))


@dataclass(frozen=True, slots=True)
class Programs:
    """What was found of the engine and the broker.

    Attributes:
        folder: of `vllm`; empty = not found. has_ray: `ray` is beside it.
        vllm_version, ray_version: empty = not known.
        has_mosquitto: mosquitto is installed.
    """

    folder: str = ""
    has_ray: bool = False
    vllm_version: str = ""
    ray_version: str = ""
    has_mosquitto: bool = False


@dataclass(frozen=True, slots=True)
class Wishes:
    """What the operator said.

    Attributes:
        cluster: its name.
        workers: NAME or NAME=ADDRESS of each.
        model: folder of the weights; None = the one of `models`, where there is one.
        models: folders that hold weights, as far as was looked.
        address, interface: this machine's on the fabric; None = found out.
        mosquitto: set mosquitto up on this machine, with an account a node.
        tls: what mosquitto speaks TLS with; None = it does not.
        force: write a configuration anew that is already there.
    """

    cluster: str = "sparks"
    workers: tuple[str, ...] = ()
    model: str | None = None
    models: tuple[str, ...] = ()
    address: str | None = None
    interface: str | None = None
    mosquitto: bool = False
    tls: Certificates | None = None
    force: bool = False


@dataclass(frozen=True, slots=True)
class Fresh:
    """Secrets drawn for this run: used where none is there yet."""

    key: str = field(repr=False)
    passwords: tuple[str, ...] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Head:
    """What `init` comes to.

    Attributes:
        plan: what is done.
        text: the configuration, as it is or will be.
        key: the cluster key.
        tokens: worker -> its token.
    """

    plan: Plan
    text: str
    key: str = field(repr=False)
    tokens: Mapping[str, str] = field(repr=False)


def plan_init(
    package: Package,
    host: Host,
    net: Network,
    *,
    programs: Programs,
    wishes: Wishes,
    fresh: Fresh,
    root: str = "/",
) -> Head:
    """Return what `init` does. Raises InitError where something must be given that cannot be found out."""
    there = host.files.get(places.CONFIG)
    if there is not None and not wishes.force:
        return _again(package, host, there, fresh)
    document, facts, warned = _document(host, net, programs, wishes)
    names = [str(node["name"]) for node in document["node"]]
    accounts = _accounts(names, host, fresh) if wishes.mosquitto else {}
    text = render(package.texts["etc/sparkd.toml"], document, OPENING)
    key = _key(host, fresh)
    address = (str(document["node"][0]["address"]), TLS_PORT if wishes.tls else BROKER_PORT)
    steps = (
        *config_steps(host, text.encode(), "the configuration, every key explained"),
        *secret_steps(host, "cluster_key", key, KEY_WHY),
        *(
            _broker_steps(package, host, document, names, address, accounts, root, wishes.tls)
            if accounts
            else ()
        ),
        _note(package, host),
    )
    plan = Plan(
        f"set up the cluster {wishes.cluster} with {names[0]} as its head",
        steps,
        facts,
        tuple(checks.not_root("init ...", host)),
        warned,
        _next(host),
    )
    ca = wishes.tls.ca if wishes.tls else ""
    return Head(plan, text, key, _tokens(package, tomllib.loads(text), key, accounts, ca))


def _next(host: Host) -> tuple[str, ...]:
    return (f"look at {places.CONFIG}, then:  sudo {host.bin_dir}/sparkctl install",) if host.live else ()


def _again(package: Package, host: Host, there: bytes, fresh: Fresh) -> Head:
    """The configuration is there: nothing is written but a missing key, and the lines are made from it."""
    document = _read(there)
    inline = str(document.get("cluster", {}).get("key", ""))
    key = inline or _key(host, fresh)
    accounts = broker.read_accounts(host.files.get(places.BROKER_ACCOUNTS, b""))
    secrets = () if inline else secret_steps(host, "cluster_key", key, KEY_WHY)
    names = [str(node.get("name")) for node in document.get("node", []) if node.get("role") == "worker"]
    without = [name for name in names if accounts and name not in accounts]
    plan = Plan(
        f"{places.CONFIG} is there already: it is kept (--force writes it anew)",
        (Keep(places.CONFIG, "the configuration"), *secrets),
        (),
        tuple(checks.not_root("init", host)),
        tuple(
            f"{name} has no account in {places.BROKER_ACCOUNTS}: add one there and in mosquitto"
            for name in without
        ),
        _next(host),
    )
    ca = host.files.get(places.BROKER_CA, b"").decode("ascii", "replace")
    return Head(plan, there.decode(), key, _tokens(package, document, key, accounts, ca))


def _read(content: bytes) -> dict[str, Any]:
    """Return the tables of a configuration; what is in them is the loader's to judge. Raises InitError."""
    try:
        document = tomllib.loads(content.decode())
    except ValueError as error:
        raise InitError(
            f"{places.CONFIG} is no TOML: {error}; mend it, or say --force for a new one"
        ) from error
    nodes = document.get("node")
    tables = [
        document.get("cluster"),
        document.get("broker", {}),
        *(nodes if isinstance(nodes, list) else [0]),
    ]
    if not all(isinstance(table, dict) for table in tables):
        raise InitError(f"{places.CONFIG} lacks [cluster] or [[node]]: mend it, or say --force for a new one")
    return document


def _document(
    host: Host, net: Network, programs: Programs, wishes: Wishes
) -> tuple[dict[str, Any], tuple[str, ...], tuple[str, ...]]:
    """Return the configuration's values, what was found out, and what should be looked at."""
    wrong = [*_wrong_names(host, wishes)]
    if wishes.mosquitto and not programs.has_mosquitto:
        wrong.append("mosquitto is not installed: sudo apt install mosquitto")
    model = wishes.model or (wishes.models[0] if len(wishes.models) == 1 else "")
    if not model:
        some = ", ".join(wishes.models) or "none found in /srv/models, /models"
        wrong.append(f"which model? say --model FOLDER, an absolute path, the same on every node ({some})")
    try:
        own = network.own_link(net, wishes.address, wishes.interface)
        nodes = [_node(host.hostname, "head", own.address, own.interface, network.management(net, own))]
        found = [_worker(net, own, wanted) for wanted in wishes.workers]
    except NetworkError as error:
        wrong.append(str(error))
    if wrong:
        raise InitError(*wrong)
    nodes += [node for node, _ in found]
    document = {
        "cluster": {"name": wishes.cluster},
        "node": nodes,
        "engine": _engine(model, len(nodes), programs),
    }
    if wishes.mosquitto:
        document["broker"] = _broker(own.address, host.hostname, tls=wishes.tls is not None)
    facts = (
        f"{host.hostname}: {own.address} on {own.interface}" + (", an RDMA interface" if own.rdma else ""),
        *(f"{node['name']}: {node['address']}: {how}" for node, how in found),
        *_engine_facts(model, wishes, programs),
    )
    return document, facts, tuple(_doubts(programs, found))


def _broker(address: str, account: str, *, tls: bool) -> dict[str, Any]:
    plain = {"host": address, "port": BROKER_PORT, "username": account}
    return {**plain, "port": TLS_PORT, "tls": True, "ca_file": places.BROKER_CA} if tls else plain


def _wrong_names(host: Host, wishes: Wishes) -> Iterator[str]:
    if not wishes.workers:
        yield "who is the worker? say --worker NAME, what `hostname` prints there (or --worker NAME=ADDRESS)"
    for name in (host.hostname, wishes.cluster, *(wanted.partition("=")[0] for wanted in wishes.workers)):
        if not is_name(name):
            yield f"{name!r} cannot name a node or a cluster: it must match {NAME_PATTERN}"
    if host.hostname in {wanted.partition("=")[0] for wanted in wishes.workers}:
        yield (
            f"{host.hostname} is this machine, the head: a worker needs another hostname (sudo hostnamectl "
            "hostname NAME)"
        )


def _node(name: str, role: str, address: str, interface: str, second: str | None) -> dict[str, Any]:
    node = {"name": name, "role": role, "address": address, "interface": interface}
    return node | ({"management_address": second} if second else {})


def _worker(net: Network, own: Link, wanted: str) -> tuple[dict[str, Any], str]:
    """Return a worker's node and how its address was found. Its interface is the head's until it joins."""
    name, _, given = wanted.partition("=")
    address, how = (
        (network.checked(given), "as you said") if given else network.worker_address(net, own, name)
    )
    return _node(name, "worker", address, own.interface, network.second_address(net, own, name)), how


def _engine(model: str, nodes: int, programs: Programs) -> dict[str, Any]:
    engine: dict[str, Any] = {"model": model, "tensor_parallel": nodes, "home": places.ENGINE_HOME}
    if programs.folder:
        usual = [folder for folder in ("/usr/local/bin", "/usr/bin", "/bin") if folder != programs.folder]
        engine["path"] = ":".join([programs.folder, *usual])
        engine["backend"] = "ray" if programs.has_ray else "mp"
    if programs.has_ray and programs.ray_version:
        engine["ray"] = {"version": programs.ray_version}
    if programs.vllm_version:
        engine["vllm"] = {"version": programs.vllm_version}
    return engine


def _engine_facts(model: str, wishes: Wishes, programs: Programs) -> Iterator[str]:
    yield f"model: {model}" + ("" if wishes.model else ": the only one found")
    if programs.folder:
        over = (
            "over Ray, which is beside it"
            if programs.has_ray
            else "over vLLM's own multi-node mode: no ray beside it"
        )
        yield f"vllm {programs.vllm_version or '(version unknown)'} in {programs.folder}, {over}"


def _doubts(programs: Programs, found: list[tuple[dict[str, Any], str]]) -> Iterator[str]:
    if not programs.folder:
        yield (
            "no vllm program was found: set engine.path, or say --engine-path FOLDER (the same on every node)"
        )
    for node, how in found:
        if how.startswith("assumed"):
            yield (
                f"{node['address']} for {node['name']} is only assumed: say --worker "
                f"{node['name']}=ADDRESS if it is not so"
            )


def _key(host: Host, fresh: Fresh) -> str:
    there = host.files.get(places.CLUSTER_KEY, b"").decode("utf-8", "replace").strip()
    return there or fresh.key


def _accounts(names: list[str], host: Host, fresh: Fresh) -> dict[str, str]:
    """Return an account for each node and one for people; those that are there keep their passwords."""
    there = broker.read_accounts(host.files.get(places.BROKER_ACCOUNTS, b""))
    wanted = [*names, broker.WATCHER]
    return {name: there.get(name, password) for name, password in zip(wanted, fresh.passwords, strict=False)}


def _broker_steps(  # noqa: PLR0917 - the parts of one set-up
    package: Package,
    host: Host,
    document: Mapping[str, Any],
    names: list[str],
    address: tuple[str, int],
    accounts: Mapping[str, str],
    root: str,
    tls: Certificates | None,
) -> Iterator[Step]:
    cluster = str(document["cluster"]["name"])
    yield from secret_steps(host, "broker_password", accounts[names[0]], PASSWORD_WHY)
    if tls:
        yield from ca_steps(host, tls.ca)
    yield from broker.steps(package, cluster, names, address, accounts, root=root, tls=tls)


def ca_steps(host: Host, ca: str) -> Iterator[Step]:
    """Yield the step for the authority's certificate, which is for everybody to read."""
    there = host.files.get(places.BROKER_CA)
    if there == ca.encode():
        yield Keep(places.BROKER_CA, CA_WHY)
    else:
        yield Write(places.BROKER_CA, ca.encode(), CA_WHY, "replace" if there else "new")


def _note(package: Package, host: Host) -> Step:
    """Note which default the configuration was made from: install offers only a newer one then."""
    noted = read_manifest(host.files).noting(places.CONFIG, package.texts["etc/sparkd.toml"].encode())
    return Write(places.MANIFEST, noted.encoded(), "remembers what was installed", "note")


def _tokens(
    package: Package, document: Mapping[str, Any], key: str, accounts: Mapping[str, str], ca: str
) -> dict[str, str]:
    """Return worker -> token: the head's values, less its secrets, with the worker's own account."""
    found = {}
    for node in document.get("node", []):
        name = str(node.get("name"))
        if node.get("role") != "worker":
            continue
        own = copy.deepcopy(dict(document))
        own.get("cluster", {}).pop("key", None)
        inline = own.get("broker", {}).pop("password", None)
        password = accounts.get(name) or (None if accounts else inline)
        if name in accounts:
            own["broker"]["username"] = name
        secrets = {"cluster_key": key} | ({"broker_password": str(password)} if password else {})
        if own.get("broker", {}).get("ca_file") == places.BROKER_CA and ca:
            secrets[token.CA] = ca
        found[name] = token.encode(token.Token(name, package.version, own, secrets))
    return found


def with_refusals(head: Head, lines: tuple[str, ...]) -> Head:
    """Return it refused for what the daemon's own loader says of the configuration."""
    return replace(head, plan=replace(head.plan, refusals=(*head.plan.refusals, *lines)))
