"""What a file that should be somewhere comes to, with what is there: written, replaced, kept or offered."""

from __future__ import annotations

from collections.abc import Iterator

from sparkd.setup import places
from sparkd.setup.host import Host
from sparkd.setup.manifest import Manifest, digest
from sparkd.setup.places import Place
from sparkd.setup.steps import Keep, Protect, Step, Write


def file_steps(place: Place, content: bytes, host: Host, manifest: Manifest) -> Iterator[Step]:
    """Yield the steps for a file of the package."""
    there, last = host.files.get(place.target), manifest.files.get(place.target)
    if there == content:
        yield Keep(place.target, place.why)
    elif there is None and last is not None and place.is_configuration:
        yield Keep(place.target, f"you removed it: {place.why}", "left out")
    elif there is None:
        yield Write(place.target, content, place.why)
    elif digest(there) == last:
        yield Write(place.target, content, place.why, "replace")
    elif place.is_configuration:
        yield from offer(place.target, content, last, place.why)
    else:
        yield Write(f"{place.target}.old", there, "somebody changed it: use drop-ins instead", "keep .old")
        yield Write(place.target, content, place.why, "replace")


def offer(path: str, content: bytes, last: str | None, why: str) -> Iterator[Step]:
    """Yield the steps for a changed file of the operator's: a new default goes beside it, once."""
    yield Keep(path, f"yours: {why}", "keep")
    if digest(content) != last:
        yield Write(f"{path}.new", content, "the new default, to compare", "offer")


def config_steps(host: Host, content: bytes, why: str) -> Iterator[Step]:
    """Yield the steps for sparkd.toml itself, when it is to be this; the one before is kept."""
    there = host.files.get(places.CONFIG)
    if there == content:
        yield Keep(places.CONFIG, why)
        return
    if there is not None:
        yield Write(f"{places.CONFIG}.old", there, "the one before", "keep .old", 0o600)
    yield Write(places.CONFIG, content, why, "new" if there is None else "replace", 0o600)


def secret_steps(host: Host, name: str, secret: str, why: str) -> Iterator[Step]:
    """Yield the steps for a credential: readable by root alone."""
    path = f"{places.CONFIG_DIR}/{name}"
    there = host.files.get(path, b"").decode("utf-8", "replace").strip()
    if there != secret:
        yield Write(path, f"{secret}\n".encode(), why, "replace" if there else "new", mode=0o600)
    elif path in host.open_files:
        yield Protect(path, why)
    else:
        yield Keep(path, why)
