"""The digest of what is executed, less what changes with the stamp. Light to import: starts wait for it."""

from __future__ import annotations

# hashlib loads OpenSSL, which takes longer than all the rest of such a start.
try:
    from _sha2 import sha256  # type: ignore[import-not-found,unused-ignore]
except ImportError:
    try:
        from _sha256 import sha256  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        from hashlib import sha256

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    Executed = tuple[str, Sequence[str], Iterable[Sequence[str]]]
    """A unit's name, its command, the pairs of its environment."""

STAMP_NAME = "SPARKD_STAMP"
"""The variable that marks every process of a unit."""
CREDENTIALS = "/run/credentials/"
"""Where systemd puts the credentials of a unit, below its name (systemd.exec(5), LoadCredential=)."""


def digest_of(units: Iterable[Executed]) -> str:
    """Return the digest of what a node would execute, whatever the order of units and variables."""
    told = [
        [unit, list(argv), sorted(_told(*pair) for pair in env if pair[0] != STAMP_NAME)]
        for unit, argv, env in sorted(units, key=lambda executed: executed[0])
    ]
    return str(sha256(_text(told).encode("utf-8", "surrogatepass")).hexdigest())


def _text(value: str | Sequence[object]) -> str:
    """Return a text that no other value has: every string with its length, every list in brackets."""
    if isinstance(value, str):
        return f"{len(value)}:{value}"
    return f"[{''.join(map(_text, value))}]"  # type: ignore[arg-type] # lists of lists of texts


def restamped(value: str, generation: int) -> str:
    """Return the mark <cluster>/<node>/<generation>/<unit> with another generation."""
    front, _, unit = value.rpartition("/")
    return f"{front.rpartition('/')[0]}/{generation}/{unit}"


def _told(name: str, value: str) -> list[str]:
    """A credential lies in another directory for each systemd unit; which one it is, is the same."""
    if not value.startswith(CREDENTIALS):
        return [name, value]
    return [name, f"credential:{value.removeprefix(CREDENTIALS).partition('/')[2]}"]
