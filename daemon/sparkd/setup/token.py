"""What the line of `sparkctl join` carries: one text without blanks, whole or refused.

In it are the configuration (what is set of it), the cluster key and the worker's broker password. Compressed,
not encrypted: who has it can speak as a node of the cluster, until the key is changed on every node.
"""

from __future__ import annotations

import base64
import binascii
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

PREFIX = "sparkd1."
SIZE_MAX = 1 << 20
CA = "broker_ca"
"""Under this name the certificate of the broker's authority travels: no secret, but to be whole."""


class TokenError(Exception):
    """The text is no token; says what to do."""


@dataclass(frozen=True, slots=True)
class Token:
    """What a worker gets.

    Attributes:
        node: the worker's name.
        version: of the head's sparkd.
        document: the configuration, as tomllib reads it.
        secrets: name of a credential -> its content; `CA` -> the authority's certificate.
    """

    node: str
    version: str
    document: Mapping[str, Any]
    secrets: Mapping[str, str] = field(repr=False)


def encode(token: Token) -> str:
    """Return the token as one word."""
    parts = {
        "node": token.node,
        "version": token.version,
        "document": token.document,
        "secrets": token.secrets,
    }
    packed = zlib.compress(json.dumps(parts, separators=(",", ":"), ensure_ascii=False).encode(), 9)
    return PREFIX + base64.urlsafe_b64encode(packed).decode().rstrip("=")


def decode(text: str) -> Token:
    """Return what *text* carries; zlib's checksum tells a damaged copy. Raises TokenError."""
    word = "".join(text.split())
    if not word.startswith(PREFIX):
        raise TokenError(f"that is no token of `sparkctl init`: it begins with {PREFIX}")
    try:
        padded = word.removeprefix(PREFIX) + "=" * (-len(word.removeprefix(PREFIX)) % 4)
        unpacking = zlib.decompressobj()
        content = unpacking.decompress(base64.b64decode(padded, b"-_", validate=True), SIZE_MAX)
        if not unpacking.eof:
            raise TokenError("the token is not whole: copy the line from `sparkctl init` again, to its end")
        parts = json.loads(content)
        secrets = {str(name): str(value) for name, value in parts["secrets"].items()}
        return Token(str(parts["node"]), str(parts["version"]), dict(parts["document"]), secrets)
    except (binascii.Error, zlib.error, ValueError, KeyError, TypeError, AttributeError):
        raise TokenError(
            "the token is damaged: copy the line from `sparkctl init` again, all of it"
        ) from None
