"""Planning of `sparkctl install` and `uninstall`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sparkd.setup import checks, places
from sparkd.setup.host import Host
from sparkd.setup.manifest import Manifest, digest, read_manifest
from sparkd.setup.package import Package
from sparkd.setup.places import Place, drop_in
from sparkd.setup.placing import file_steps, offer
from sparkd.setup.steps import Keep, Link, Plan, Protect, Remove, Run, Step, Write

LINKS = ("sparkd", "sparkctl")
LINK_DIR = "/usr/local/bin"
MADE = "# Made by `sparkctl install`; it is written anew each time.\n"
ENGINE_USER_DROP_IN, NODE_DROP_IN, CREDENTIALS_DROP_IN = "10-engine-user", "10-node", "10-credentials"


@dataclass(frozen=True, slots=True)
class File:
    """A file as it should be on the host."""

    place: Place
    content: bytes


def plan_install(package: Package, host: Host, engine_user: str | None = None, root: str = "/") -> Plan:
    """Return what `install` does.

    Args:
        package: what to install.
        host: what is there; its `files` hold `paths_of(package)`.
        engine_user: who runs the engine; None = as before, at first the package's own user.
        root: the folder of the system; for programs that want it named.
    """
    user = engine_user or engine_user_of(package, host)
    wanted = wanted_files(package, host, user)
    manifest = read_manifest(host.files)
    files = [step for file in wanted for step in file_steps(file.place, file.content, host, manifest)]
    stale = list(_stale(wanted, host, manifest))
    # By what was noted, not by what is written now: the note comes last, so an interrupted work is resumed.
    changed = {f.place.target for f in wanted if manifest.files.get(f.place.target) != digest(f.content)}
    changed |= {step.path for step in [*files, *stale] if isinstance(step, Write | Remove)}
    node = host.node
    return Plan(
        title=f"install sparkd {package.version}"
        + (f" on {node.name}, {node.role} of {node.cluster}" if node else ""),
        steps=(
            *files,
            *stale,
            *_links(host),
            *_secrets(package, host),
            *_system_steps(package, host, manifest, changed, root),
            *_remember(package, wanted, host, manifest),
        ),
        refusals=tuple(_refusals(package, host, user)),
        warnings=tuple(checks.warnings(host)),
        after=_after(host),
    )


def _refusals(package: Package, host: Host, user: str) -> Iterator[str]:
    if host.live and not host.is_root:
        yield from checks.not_root("install", host)
        return  # what is not for this user to read cannot be judged
    yield from checks.system(host)
    yield from checks.program(host)
    yield from checks.configuration(host)
    yield from checks.credentials(host, package.units)
    yield from checks.engine_user(host, user)


def _after(host: Host) -> tuple[str, ...]:
    if not host.live or places.DAEMON in host.active:
        return ()
    return ("start it:  sudo systemctl start sparkd     and watch it:  sparkctl status",)


def paths_of(package: Package) -> tuple[str, ...]:
    """Return every path whose content the planners want to know."""
    targets = [place.target for place in (*places.FIXED, *places.unit_places(package.units))]
    drop_ins = [
        drop_in(unit, name)
        for unit in package.units
        for name in (ENGINE_USER_DROP_IN, NODE_DROP_IN, CREDENTIALS_DROP_IN)
    ]
    own = [places.CONFIG, places.MANIFEST, places.CLUSTER_KEY, places.BROKER_ACCOUNTS, places.BROKER_CA]
    optional = [f"{places.CONFIG_DIR}/{name}" for name in places.OPTIONAL_CREDENTIALS]
    return (*targets, *drop_ins, *own, *optional, *checks.credential_paths(package.units))


def wanted_files(package: Package, host: Host, user: str) -> list[File]:
    """Return every file as it should be, for this host."""
    found = []
    for place in (*places.unit_places(package.units), *places.FIXED):
        if place.needs and place.needs not in host.present:
            continue
        text = package.texts[place.source].replace(places.SHIPPED_PYTHON, host.python)
        text = text.replace(f"{places.SHIPPED_BIN}/", f"{host.bin_dir}/")
        if place.target == places.TMPFILES:
            text = for_engine_user(text, user)
        found.append(File(place, text.encode()))
    return [*found, *_drop_ins(package, host, user)]


def for_engine_user(tmpfiles: str, user: str) -> str:
    """Return the folders for another engine's user; the group stays: it is how the daemon reads the logs."""
    return tmpfiles.replace(f" {places.ENGINE_USER} {places.ENGINE_USER} ", f" {user} {places.ENGINE_USER} ")


def _drop_ins(package: Package, host: Host, user: str) -> Iterator[File]:
    """Yield what differs from host to host, as drop-ins beside the units."""
    for unit, text in package.units.items():
        is_engine = f"User={places.ENGINE_USER}" in text.splitlines()
        if is_engine and user != places.ENGINE_USER:
            yield _drop_in(unit, ENGINE_USER_DROP_IN, f"runs the engine as {user}", f"User={user}\n")
        if unit.endswith(".service") and host.node is not None and host.node.name != host.hostname:
            why = f"this machine is the node {host.node.name}"
            yield _drop_in(unit, NODE_DROP_IN, why, f"Environment=SPARKD_NODE={host.node.name}\n")
        runs_engine = unit in places.ENGINE_UNITS
        names = places.ENGINE_CREDENTIALS if runs_engine else places.OPTIONAL_CREDENTIALS
        there = [name for name in names if f"{places.CONFIG_DIR}/{name}" in host.files]
        if there and (runs_engine or unit == places.DAEMON):
            body = "".join(f"LoadCredential={name}:{places.CONFIG_DIR}/{name}\n" for name in there)
            yield _drop_in(unit, CREDENTIALS_DROP_IN, f"hands it {', '.join(there)}", body)


def _drop_in(unit: str, name: str, why: str, body: str) -> File:
    return File(Place("", drop_in(unit, name), f"{unit}: {why}"), f"{MADE}\n[Service]\n{body}".encode())


def engine_user_of(package: Package, host: Host) -> str:
    """Return the user of the drop-in that an earlier install wrote: the one place that remembers it."""
    for unit in package.units:
        text = host.files.get(drop_in(unit, ENGINE_USER_DROP_IN), b"").decode("utf-8", "replace")
        for line in text.splitlines():
            if line.startswith("User="):
                return line.partition("=")[2]
    return places.ENGINE_USER


def _stale(wanted: list[File], host: Host, manifest: Manifest) -> Iterator[Step]:
    """Yield what an older version put there and this one does not have any more."""
    now = {file.place.target for file in wanted} | {places.CONFIG}
    for path in manifest.files:
        if path not in now and path in host.files:
            yield Remove(path, "no part of this version any more")


def _links(host: Host) -> Iterator[Step]:
    for name in LINKS:
        path, target = f"{LINK_DIR}/{name}", f"{host.bin_dir}/{name}"
        if host.bin_dir in {LINK_DIR, "/usr/bin"}:
            continue
        if host.links.get(path) == target:
            yield Keep(path, "found by every shell")
        else:
            yield Link(path, target, "found by every shell")


def _secrets(package: Package, host: Host) -> Iterator[Step]:
    paths = [*checks.credential_paths(package.units), places.CLUSTER_KEY, places.BROKER_ACCOUNTS]
    paths += [f"{places.CONFIG_DIR}/{name}" for name in places.OPTIONAL_CREDENTIALS]
    for path in dict.fromkeys(paths):
        if path in host.open_files:
            yield Protect(path, "a secret: for root alone, systemd hands it on")


def _remember(package: Package, wanted: list[File], host: Host, manifest: Manifest) -> Iterator[Step]:
    """Yield what was installed, and the new default of the configuration where there is one."""
    example = package.texts["etc/sparkd.toml"].encode()
    last = manifest.files.get(places.CONFIG)
    if places.CONFIG in host.files and last != digest(example):
        yield from offer(places.CONFIG, example, last, "the configuration")
    files = {file.place.target: digest(file.content) for file in wanted}
    left_out = {p: d for p, d in manifest.files.items() if p not in files and p not in host.files}
    content = Manifest(package.version, {**left_out, **files, places.CONFIG: digest(example)}).encoded()
    if host.files.get(places.MANIFEST) != content:
        yield Write(places.MANIFEST, content, "remembers what was installed", "note")


def _system_steps(
    package: Package, host: Host, manifest: Manifest, changed: set[str], root: str
) -> Iterator[Step]:
    """Yield what makes the files count: users, folders, systemd. Nothing where nothing changed."""
    where = () if host.live else (f"--root={root}",)
    if places.SYSUSERS in changed or places.DAEMON_USER not in host.users:
        yield Run(("systemd-sysusers", *where, _name(places.SYSUSERS)), "makes the users")
    if host.config_access != f"{places.CONFIG_MODE:o} {places.CONFIG_GROUP}":
        why = "for the daemon and the engine alone: it may name secrets"
        yield Protect(places.CONFIG, why, places.CONFIG_MODE, places.CONFIG_GROUP)
    if places.TMPFILES in changed:
        yield Run(("systemd-tmpfiles", *where, "--create", _name(places.TMPFILES)), "makes the folders")
    new = [unit for unit in startable(package) if unit not in host.enabled]
    if host.live and any(path.startswith(f"{places.UNIT_DIR}/") for path in changed):
        yield Run(("systemctl", "daemon-reload"), "systemd reads the units anew")
    if new:
        yield Run(("systemctl", *where, "--quiet", "enable", *new), "starts them at boot")
    if host.live:
        yield from _live_steps(package, host, manifest, changed)


def _name(path: str) -> str:
    """Return a file's name alone: systemd looks for it in its folders, below --root, too."""
    return path.rpartition("/")[2]


def startable(package: Package) -> list[str]:
    """Return the units that want to be started at boot."""
    return [name for name, text in package.units.items() if "[Install]" in text.splitlines()]


def _live_steps(package: Package, host: Host, manifest: Manifest, changed: set[str]) -> Iterator[Step]:
    if places.JOURNALD in changed:
        yield Run(("systemctl", "restart", "systemd-journald"), "the journal goes to the disk", must=False)
    if places.WATCHDOG in changed:
        yield Run(("systemctl", "daemon-reexec"), "systemd feeds the hardware watchdog", must=False)
    units = [path for path in changed if path.startswith(f"{places.UNIT_DIR}/{places.DAEMON}")]
    if places.DAEMON in host.active and (units or manifest.version != package.version):
        yield Run(("systemctl", "try-restart", places.DAEMON), "the new daemon; the engine serves on")
