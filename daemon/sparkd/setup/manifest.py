"""What sparkd wrote last, by digest: that tells an old default from a file that somebody changed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from sparkd.setup.places import MANIFEST


@dataclass(frozen=True, slots=True)
class Manifest:
    """The version that is installed (empty = none); path -> digest of the default that was put there last."""

    version: str = ""
    files: Mapping[str, str] = field(default_factory=dict)

    def noting(self, path: str, content: bytes) -> Manifest:
        """Return it with *content* as the default that was put at *path* last."""
        return Manifest(self.version, {**self.files, path: digest(content)})

    def encoded(self) -> bytes:
        """Return it as the file's content."""
        document = {"version": self.version, "files": dict(sorted(self.files.items()))}
        return (json.dumps(document, indent=1) + "\n").encode()


def digest(content: bytes) -> str:
    """Return the SHA-256 of a file's content, hex."""
    return hashlib.sha256(content).hexdigest()


def read_manifest(files: Mapping[str, bytes]) -> Manifest:
    """Return what is remembered; nothing where there is no such file, or none that can be read."""
    try:
        document = json.loads(files.get(MANIFEST, b"{}"))
        return Manifest(
            str(document.get("version", "")), {str(k): str(v) for k, v in document["files"].items()}
        )
    except (ValueError, KeyError, AttributeError):
        return Manifest()
