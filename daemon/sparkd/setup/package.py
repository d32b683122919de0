"""The package's own files, read once: units, and what is in etc/."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from importlib.resources import files
from importlib.resources.abc import Traversable

NAME = "sparkd"


@dataclass(frozen=True, slots=True)
class Package:
    """What is installed.

    Attributes:
        version: of sparkd.
        texts: name in the package, such as units/sparkd.service -> content.
        requirement: what pip takes to install the same elsewhere; empty = it came from a folder here.
    """

    version: str
    texts: Mapping[str, str]
    requirement: str = ""

    @property
    def units(self) -> dict[str, str]:
        """Name -> text of the units, in the order of their names."""
        found = {
            name.partition("/")[2]: text for name, text in self.texts.items() if name.startswith("units/")
        }
        return dict(sorted(found.items()))


def read_package() -> Package:
    """Return this package. Raises OSError where its files are missing."""
    base = files("sparkd.setup")
    texts = {
        f"{folder}{name}": content
        for folder in ("units", "etc")
        for name, content in _texts(base.joinpath(folder), "/")
    }
    if not texts:
        raise FileNotFoundError(0, "the package lacks its files (units, etc): install it anew with pip")
    version, requirement = _origin()
    return Package(version, texts, requirement)


def _texts(folder: Traversable, prefix: str) -> Iterator[tuple[str, str]]:
    if not folder.is_dir():
        return
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if entry.is_dir():
            yield from _texts(entry, f"{prefix}{entry.name}/")
        else:
            yield f"{prefix}{entry.name}", entry.read_text(encoding="utf-8")


def _origin() -> tuple[str, str]:
    """Return (version, what pip would take for it), by what pip wrote down when it installed (PEP 610)."""
    try:
        found = distribution(NAME)
    except PackageNotFoundError:
        return "unknown", ""
    direct = found.read_text("direct_url.json")
    if direct is None:
        return found.version, f"{NAME}[broker]=={found.version}"
    url = str(json.loads(direct).get("url", ""))
    vcs = json.loads(direct).get("vcs_info")
    if vcs:
        return found.version, f"{NAME}[broker] @ {vcs['vcs']}+{url}@{vcs['commit_id']}"
    local = url.startswith("file:") or not url
    return found.version, "" if local else f"{NAME}[broker] @ {url}"
