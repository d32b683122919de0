"""The digest of what is executed, less what changes with the stamp. Light to import: starts wait for it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence

STAMP_NAME = "SPARKD_STAMP"
"""The variable that marks every process of a unit."""
CREDENTIALS = "/run/credentials/"
"""Where systemd puts the credentials of a unit, below its name (systemd.exec(5), LoadCredential=)."""

Executed = tuple[str, Sequence[str], Iterable[Sequence[str]]]
"""A unit's name, its command, the pairs of its environment."""


def digest_of(units: Iterable[Executed]) -> str:
    """Return the digest of what a node would execute, whatever the order of units and variables."""
    return sha256_of(
        [
            (unit, argv, sorted(_told(*pair) for pair in env if pair[0] != STAMP_NAME))
            for unit, argv, env in sorted(units, key=lambda executed: executed[0])
        ]
    )


def sha256_of(value: object) -> str:
    """Hex SHA-256 over the value's JSON with sorted keys and no blanks."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def restamped(value: str, generation: int) -> str:
    """Return the mark <cluster>/<node>/<generation>/<unit> with another generation."""
    front, _, unit = value.rpartition("/")
    return f"{front.rpartition('/')[0]}/{generation}/{unit}"


def _told(name: str, value: str) -> tuple[str, str]:
    """A credential lies in another directory for each systemd unit; which one it is, is the same."""
    if not value.startswith(CREDENTIALS):
        return (name, value)
    return (name, f"credential:{value.removeprefix(CREDENTIALS).partition('/')[2]}")
