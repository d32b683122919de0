"""Planning of `sparkctl uninstall`: the way back, without what is the operator's."""

from __future__ import annotations

from collections.abc import Iterator

from sparkd.setup import broker, checks, places
from sparkd.setup.host import Host
from sparkd.setup.install import LINK_DIR, LINKS, engine_user_of, paths_of, wanted_files
from sparkd.setup.manifest import Manifest, digest, read_manifest
from sparkd.setup.package import Package
from sparkd.setup.steps import Keep, Plan, Remove, Run, Step, Write


def plan_uninstall(package: Package, host: Host, *, purge: bool = False, root: str = "/") -> Plan:
    """Return what `uninstall` does.

    Args:
        package: what was installed; `host.files` holds `paths_of(package)` and what the manifest names.
        host: what is there.
        purge: remove configuration, secrets and state, too.
        root: the folder of the system.
    """
    manifest = read_manifest(host.files)
    changed = set() if purge else _changed(package, host, manifest)
    removed = [path for path in _ours(package, manifest) if path in host.files and path not in changed]
    there = bool(removed) or any(f"{LINK_DIR}/{name}" in host.links for name in LINKS)
    return Plan(
        title=f"uninstall sparkd {manifest.version or package.version}",
        steps=(
            *_stop(package, host, root),
            *(Remove(path, "installed by sparkctl install") for path in removed),
            *(Keep(path, "you changed it; it still has its effect", "keep") for path in sorted(changed)),
            *_links(host),
            *(_reload(host, removed) if there else ()),
            *(_purge(host, _ours(package, manifest)) if purge else _leave(host, manifest, changed)),
        ),
        refusals=(*checks.not_root("uninstall", host), *checks.engine_runs(host)),
        after=_after(host, purge=purge),
    )


def _after(host: Host, *, purge: bool) -> tuple[str, ...]:
    users = [
        f"sudo userdel {name}" for name in (places.DAEMON_USER, places.ENGINE_USER) if name in host.users
    ]
    stay = (f"the users stay; to remove them: {' && '.join(users)}",) if users else ()
    left = f"configuration and state stay in {places.CONFIG_DIR} and /var/lib/sparkd: --purge removes them"
    return stay if purge else (left, *stay)


def _ours(package: Package, manifest: Manifest) -> list[str]:
    """Return every path that an install may have written, of this version or of the one that is there."""
    own = [path for path in paths_of(package) if not path.startswith(f"{places.CONFIG_DIR}/")]
    known = [path for path in manifest.files if not path.startswith(f"{places.CONFIG_DIR}/")]
    return list(dict.fromkeys([*own, *known]))


def _changed(package: Package, host: Host, manifest: Manifest) -> set[str]:
    """Return the configuration files that are neither as this version has them nor as they were put there."""
    files = wanted_files(package, host, engine_user_of(package, host))
    now = {file.place.target: digest(file.content) for file in files if file.place.is_configuration}
    return {
        path
        for path, fresh in now.items()
        if path in host.files and digest(host.files[path]) not in {fresh, manifest.files.get(path)}
    }


def _stop(package: Package, host: Host, root: str) -> Iterator[Step]:
    names = [name for name in package.units if name in host.enabled | host.active]
    where = ("--now",) if host.live else (f"--root={root}",)
    if names:
        yield Run(("systemctl", "--quiet", "disable", *where, *names), "ends them, and starts none at boot")


def _links(host: Host) -> Iterator[Step]:
    for name in LINKS:
        path = f"{LINK_DIR}/{name}"
        if host.links.get(path, "").endswith(f"/{name}"):
            yield Remove(path, "its program goes with the package")


def _reload(host: Host, removed: list[str]) -> Iterator[Step]:
    if not host.live:
        return
    yield Run(("systemctl", "daemon-reload"), "systemd forgets the units")
    if places.JOURNALD in removed:
        yield Run(("systemctl", "restart", "systemd-journald"), "the journal as it was", must=False)
    if places.WATCHDOG in removed:
        yield Run(("systemctl", "daemon-reexec"), "the hardware watchdog as it was", must=False)


def _leave(host: Host, manifest: Manifest, changed: set[str]) -> Iterator[Step]:
    """Yield the note on what stays: a later install must still know a changed default from an old one."""
    left = {p: d for p, d in manifest.files.items() if p in changed or p == places.CONFIG}
    content = Manifest("", left).encoded()
    if places.MANIFEST in host.files and host.files[places.MANIFEST] != content:
        yield Write(places.MANIFEST, content, "remembers what stays", "note")


def _purge(host: Host, ours: list[str]) -> Iterator[Step]:
    for path in (aside for file in ours for aside in places.beside(file)):
        if path in host.present:
            yield Remove(path, "what install had put aside")
    for path in (places.CONFIG_DIR, *places.STATE_DIRS):
        if path in host.present:
            why = "configuration, cluster key, accounts" if path == places.CONFIG_DIR else "state"
            yield Remove(path, why, tree=True)
    for path in broker.FILES:
        if path in host.present:
            yield Remove(path, "mosquitto as the cluster's broker; restart mosquitto")
