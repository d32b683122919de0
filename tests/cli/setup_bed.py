"""A package and a host for the planners of `sparkctl install` and its sisters; a folder as a small system."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

from sparkd.setup.host import Host, Node
from sparkd.setup.manifest import Manifest
from sparkd.setup.package import Package, read_package
from sparkd.setup.places import CLUSTER_KEY, CONFIG, MANIFEST, WATCHDOG_DEVICE
from sparkd.setup.steps import Link, Plan, Protect, Remove, Run, Write

KEY = "0123456789abcdef0123456789abcdef"
UNIT = "[Unit]\nDescription={}\n\n[Service]\nExecStart=/opt/sparkd/bin/sparkd {}\n{}\n"
INSTALL = "[Install]\nWantedBy=multi-user.target"
ENGINE = "User=sparkd-engine"
UNITS = {
    "units/sparkd.service": UNIT.format(
        "the daemon", "run", f"LoadCredential=cluster_key:{CLUSTER_KEY}\n{INSTALL}"
    ),
    "units/sparkd-ray.service": UNIT.format("Ray", "exec ray", ENGINE),
    "units/sparkd-serve.service": UNIT.format("vLLM", "exec serve", ENGINE),
}
NODE = Node("sparks", "spark-a", "head", "/srv/models/x", ("192.168.200.12", 1883), True)


@cache
def shipped() -> Package:
    return read_package()


def package(version="1.0", requirement="sparkd[broker]==1.0", **texts: str) -> Package:
    """The real etc/ with small units, and *texts* by their name in the package."""
    etc = {name: text for name, text in shipped().texts.items() if name.startswith("etc/")}
    return Package(version, {**UNITS, **etc, **texts}, requirement)


def host(**changes) -> Host:
    """A host that lacks nothing, with a configuration and a key, and nothing installed."""
    noted = Manifest().noting(CONFIG, package().texts["etc/sparkd.toml"].encode()).encoded()
    right = Host(
        systemd=255,
        hostname="spark-a",
        files={CONFIG: b"# a configuration\n", CLUSTER_KEY: f"{KEY}\n".encode(), MANIFEST: noted},
        config_access="640 sparkd-engine",
        present=frozenset({WATCHDOG_DEVICE}),
        node=NODE,
    )
    return replace(right, **changes)


def done(before: Host, plan: Plan, **changes) -> Host:
    """The host after the plan was carried out."""
    assert not plan.refusals
    files, links, open_files = dict(before.files), dict(before.links), set(before.open_files)
    enabled, users = set(before.enabled), set(before.users)
    for step in plan.steps:
        match step:
            case Write(path, content):
                files[path] = content
            case Link(path, target):
                links[path] = target
            case Remove(path):
                files.pop(path, None)
            case Protect(path):
                open_files.discard(path)
            case Run(argv) if "enable" in argv:
                enabled |= {name for name in argv if name.endswith((".service", ".target"))}
            case Run(("systemd-sysusers", *_)):
                users |= {"sparkd", "sparkd-engine"}
    after = replace(before, files=files, links=links, open_files=frozenset(open_files))
    return replace(after, **{"enabled": frozenset(enabled), "users": frozenset(users), **changes})


def runs(plan: Plan) -> list[str]:
    return [" ".join(step.argv) for step in plan.steps if isinstance(step, Run)]


def writes(plan: Plan) -> dict[str, Write]:
    return {step.path: step for step in plan.steps if isinstance(step, Write)}


def small_system(folder: Path, hostname: str) -> Path:
    """A folder with what a system's folder needs for users and units."""
    root = folder / hostname
    (root / "etc").mkdir(parents=True)
    (root / "etc/hostname").write_text(f"{hostname}\n")
    (root / "etc/passwd").write_text("root:x:0:0::/root:/bin/sh\n")
    (root / "etc/group").write_text("root:x:0:\n")
    return root


def tree(root: Path) -> dict[str, bytes | str]:
    """Everything below a folder, to compare."""
    found: dict[str, bytes | str] = {}
    for path in sorted(root.rglob("*")):
        name = str(path.relative_to(root))
        if path.is_symlink():
            found[name] = f"-> {path.readlink()}"
        else:
            found[name] = path.read_bytes() if path.is_file() else "folder"
    return found
